// Package scrape reads what a server and a machine say about themselves: Prometheus text under canonical names, expvar
// documents, and /proc. It keeps apart what is absent, what is not a number, what is 0, and what could not be read.
package scrape

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"time"
)

// Opt is an integer that may be absent. Absent is not zero.
type Opt struct {
	V  int64
	OK bool
}

// Some is a present v.
func Some(v int64) Opt { return Opt{V: v, OK: true} }

// States of a reading.
const (
	StateValue      = "value"
	StateNaN        = "nan"         // exposed, and not a number
	StateNotExposed = "not_exposed" // the server has no such series
	StateError      = "error"       // could not be read this time
)

// Reading is one series under its canonical name. Value is in the unit that the canonical name ends in, a count where it ends
// in none.
type Reading struct {
	Name, Source, State string
	Value               Opt
}

// maxBody bounds a scraped document: a vLLM with many engines sends a few hundred KiB.
const maxBody = 16 << 20

// Client fetches documents for samples. It keeps its connections apart from those under load.
type Client struct {
	HTTP    *http.Client
	Header  http.Header   // sent with every request
	Timeout time.Duration // of one request; 0: 2 s
}

// ErrAbsent says that the server has no such document: not a failure of the scrape.
var ErrAbsent = errors.New("no such document on this server")

// get returns the body of a 200.
func (c *Client) get(ctx context.Context, url, accept string) ([]byte, error) {
	timeout := c.Timeout
	if timeout == 0 {
		timeout = 2 * time.Second
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	for name, values := range c.Header {
		req.Header[name] = values
	}
	req.Header.Set("Accept", accept)
	resp, err := c.HTTP.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	switch resp.StatusCode {
	case http.StatusOK:
	case http.StatusNotFound, http.StatusMethodNotAllowed, http.StatusNotImplemented, http.StatusUnauthorized, http.StatusForbidden:
		io.Copy(io.Discard, io.LimitReader(resp.Body, 64<<10))
		return nil, fmt.Errorf("%w: HTTP %d", ErrAbsent, resp.StatusCode)
	default:
		return nil, fmt.Errorf("HTTP %d", resp.StatusCode)
	}
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxBody+1))
	if err != nil {
		return nil, err
	}
	if len(body) > maxBody {
		return nil, fmt.Errorf("document is larger than %d bytes", maxBody)
	}
	return body, nil
}

// scaled converts v to an integer of the canonical unit; a value that no integer holds reads as NaN.
func scaled(v, scale float64) (Opt, string) {
	v = math.Round(v * scale)
	if math.IsNaN(v) || math.Abs(v) >= 1<<53 {
		return Opt{}, StateNaN
	}
	return Some(int64(v)), StateValue
}

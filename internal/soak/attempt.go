package soak

import (
	"bytes"
	"context"
	"io"
	"mime"
	"net/http"
	"net/http/httptrace"
	"time"

	"cotenant/internal/ledger"
	"cotenant/internal/loadgen"
)

// Timeouts of one attempt. Zero means none.
type Timeouts struct {
	Headers time.Duration // to connect, and then from sent to the response's headers
	Idle    time.Duration // between two reads of the body
	Total   time.Duration // of the whole attempt
}

// client sends attempts to one endpoint. It is safe for concurrent use.
type client struct {
	http     *http.Client
	url      string
	header   http.Header
	timeouts Timeouts
	drain    time.Duration // how long a body may last after [DONE]
	redact   *redactor
	plan     *planned // what this attempt is to meet; nil: nothing
}

// verdict is what the retry policy needs beside the row.
type verdict struct {
	code       int64 // of an in-band error, -1 where it has none
	retryAfter ledger.Opt
	message    string // what went wrong, as it came; rows hold it redacted
}

// maxReconnects bounds how often one attempt is sent again because its kept-alive connection turned out to be closed.
const maxReconnects = 3

// do makes one attempt and fills in row: times, outcome, counts. The answer stays in s until its next use. Cancelling ctx with a
// cause ends the attempt; every attempt ends in a row.
func (c *client) do(ctx context.Context, s *scratch, clk *clock, body []byte, row *ledger.Row) verdict {
	s.reset()
	a := &answer{row: row, scratch: s, inbandCode: -1, plan: c.plan}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	w := newWatch(cancel, c.timeouts.Total)
	defer w.stop()
	c.plan.begin(w, cancel)
	trace := &sendTrace{clk: clk, onSent: func() {
		w.arm(c.timeouts.Headers, errHeadersTimeout)
		c.plan.reached(loadgen.CancelBeforeHeaders, 0)
	}}

	resp, err := c.send(httptrace.WithClientTrace(ctx, trace.hooks()), w, trace, body)
	var v verdict
	if err != nil {
		_, _, firstByte := trace.connection()
		row.Outcome, row.Error = transportOutcome(ctx, err, firstByte)
		row.SentUS, row.EndUS = trace.end()
	} else {
		row.SentUS, row.HeadersUS = trace.headers()
		row.HTTPStatus = ledger.Some(int64(resp.StatusCode))
		r := &bodyReader{src: causeReader{resp.Body, ctx}, clk: clk, watch: w, idle: c.timeouts.Idle, head: s.head[:0]}
		row.Outcome, row.Error = a.response(resp, r)
		_, row.EndUS = trace.end()
		c.finish(a, r, w)
		resp.Body.Close()
		row.Bytes = r.n
		v.retryAfter = retryAfter(resp.Header, time.Now())
		row.RetryAfterUS = v.retryAfter
		s.head = r.head
	}
	row.ConnReused, row.Reconnects, _ = trace.connection()
	if c.plan.cancelled() {
		row.Outcome, row.Error = ledger.CancelledInject, errPlanned.Error()
	}
	v.code = a.inbandCode
	v.message = row.Error
	a.settle()
	row.Error = c.redact.text(row.Error)
	return v
}

// send sends the request, again where a kept-alive connection had been closed by the server.
func (c *client) send(ctx context.Context, w *watch, trace *sendTrace, body []byte) (*http.Response, error) {
	for repeats := 0; ; repeats++ {
		w.arm(c.timeouts.Headers, errHeadersTimeout)
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.url, bytes.NewReader(body))
		if err != nil {
			return nil, err
		}
		req.Header = c.header
		resp, err := c.http.Do(req)
		if err == nil || repeats == maxReconnects || ctx.Err() != nil || !trace.stale(err) {
			return resp, err
		}
	}
}

// response reads a response and judges it.
func (a *answer) response(resp *http.Response, r *bodyReader) (ledger.Outcome, string) {
	if resp.StatusCode != http.StatusOK {
		return a.refusal(resp, r)
	}
	if enc := resp.Header.Get("Content-Encoding"); enc != "" && enc != "identity" {
		return ledger.Compressed, "Content-Encoding is " + enc
	}
	mediaType, _, err := mime.ParseMediaType(resp.Header.Get("Content-Type"))
	if err != nil {
		mediaType = ""
	}
	first, err := r.sniff(a.peek[:])
	switch {
	case err == io.EOF:
		return ledger.Truncated, "the body is empty"
	case err != nil:
		return bodyOutcome(err), describe(err)
	case first == '{' || first == '[' || first == '<' || mediaType != "text/event-stream" && !eventful(first):
		return a.whole(r, mediaType)
	}
	if mediaType != "text/event-stream" {
		a.quirk(ledger.QuirkMediaType)
	}
	return a.outcome(a.stream(r))
}

// eventful reports whether an event stream may begin with ch: a field name (data, event, id, retry), a comment, or a
// byte-order mark.
func eventful(ch byte) bool {
	switch ch {
	case 'd', 'e', 'i', 'r', ':', 0xEF:
		return true
	}
	return false
}

// refusal reads the message of a response other than 200.
func (a *answer) refusal(resp *http.Response, r *bodyReader) (ledger.Outcome, string) {
	body, err := io.ReadAll(io.LimitReader(r, headSize))
	message := string(body)
	if a.chunk.Decode(body) == nil && a.chunk.HasError && len(a.chunk.ErrorMessage) > 0 {
		message = string(a.chunk.ErrorMessage)
	}
	if err != nil {
		if o, ok := endedHere(err); ok && o == ledger.Interrupted {
			return o, err.Error()
		}
	}
	if location := resp.Header.Get("Location"); message == "" && location != "" {
		message = "redirected to another address"
	}
	return statusOutcome(resp.StatusCode, message), http.StatusText(resp.StatusCode) + ": " + message
}

// finish reads what follows [DONE], for a short time: a body that is read to its end leaves its connection for the next attempt.
// The attempt has ended before.
func (c *client) finish(a *answer, r *bodyReader, w *watch) {
	if !a.row.Done {
		return
	}
	r.unwatched = true
	w.arm(c.drain, errDrained)
	for {
		_, err := a.sse.Next()
		switch err {
		case nil:
			a.quirk(ledger.QuirkDataAfterDone)
		case io.EOF:
			return
		default:
			a.quirk(ledger.QuirkDrainTimeout)
			return
		}
	}
}

// causeReader reports why the context ended instead of that it did.
type causeReader struct {
	io.Reader
	ctx context.Context
}

func (r causeReader) Read(p []byte) (int, error) {
	n, err := r.Reader.Read(p)
	if err != nil && err != io.EOF {
		if cause := context.Cause(r.ctx); cause != nil {
			err = cause
		}
	}
	return n, err
}

// defaultHeader is what every attempt sends beside the user's headers.
func defaultHeader(version string) http.Header {
	return http.Header{
		"Content-Type":    {"application/json"},
		"Accept":          {"text/event-stream"},
		"Accept-Encoding": {"identity"},
		"User-Agent":      {"cotenant/" + version},
	}
}

package soak

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"syscall"
	"time"
	"unicode/utf8"

	"cotenant/internal/ledger"
)

// newTransport makes the transport of the load: HTTP/1.1, one connection a worker, kept alive while the server keeps it, nothing
// compressed or retried behind the rows' back. A connection may lie idle for ever: of several the pool hands out the one that came back
// last, so that others wait. dial is for tests; nil dials the network.
func newTransport(workers int64, connect time.Duration, dial func(ctx context.Context, network, addr string) (net.Conn, error)) *http.Transport {
	if dial == nil {
		dial = (&net.Dialer{Timeout: connect, KeepAlive: 30 * time.Second}).DialContext
	}
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	return &http.Transport{
		Proxy:               http.ProxyFromEnvironment,
		DialContext:         dial,
		Protocols:           protocols,
		TLSHandshakeTimeout: connect,
		DisableCompression:  true, // the request says identity itself; the transport would ask for gzip
		MaxConnsPerHost:     int(workers),
		MaxIdleConns:        int(workers),
		MaxIdleConnsPerHost: int(workers),
		ReadBufferSize:      16 << 10,
	}
}

// noRedirect hands a redirect out as the response that it is: following one would send the key elsewhere.
func noRedirect(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }

// transportOutcome names a request that got no response.
func transportOutcome(ctx context.Context, err error, firstByte bool) (ledger.Outcome, string) {
	if cause := context.Cause(ctx); cause != nil {
		if o, ok := endedHere(cause); ok {
			return o, cause.Error()
		}
	}
	text := describe(err)
	switch {
	case exhausted(err):
		return ledger.ClientExhausted, text
	case firstByte:
		return ledger.TransportMid, text
	}
	return ledger.TransportBefore, text
}

// exhausted reports an error that is this machine's own: no descriptor, port or buffer left.
func exhausted(err error) bool {
	for _, code := range []syscall.Errno{syscall.EMFILE, syscall.ENFILE, syscall.EADDRNOTAVAIL, syscall.ENOBUFS} {
		if errors.Is(err, code) {
			return true
		}
	}
	return false
}

// describe is err without the address that net and net/url put into theirs.
func describe(err error) string {
	if e, ok := errors.AsType[*url.Error](err); ok {
		err = e.Err
	}
	if e, ok := errors.AsType[*net.OpError](err); ok {
		return e.Op + ": " + e.Err.Error()
	}
	if e, ok := errors.AsType[*net.DNSError](err); ok {
		return "looking up the host: " + e.Err
	}
	return err.Error()
}

// statusOutcome names a response other than 200.
func statusOutcome(status int, message string) ledger.Outcome {
	switch {
	case templateFault(status, message):
		return ledger.Template
	case status == http.StatusTooManyRequests:
		return ledger.HTTP429
	case status >= 500:
		return ledger.HTTP5xx
	case status >= 300:
		return ledger.HTTP4xx
	}
	return ledger.BadBody
}

// Words by which servers say that the model's chat template refused the messages' roles.
var templateWords = regexp.MustCompile(`(?i)roles must alternate|chat template|jinja|template error|system role|raise_exception|role (is )?not supported`)

func templateFault(status int, message string) bool {
	return (status == http.StatusBadRequest || status == http.StatusUnprocessableEntity) && templateWords.MatchString(message)
}

// clip cuts s to n bytes at a character's edge and replaces invalid UTF-8.
func clip(s string, n int) string {
	s = strings.ToValidUTF8(s, "\uFFFD")
	if len(s) <= n {
		return s
	}
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n]
}

// redactor takes addresses and secrets out of foreign text.
type redactor struct{ words *strings.Replacer }

var (
	ipv4  = regexp.MustCompile(`\b\d{1,3}(\.\d{1,3}){3}(:\d{1,5})?\b`)
	ipv6  = regexp.MustCompile(`(?i)\[?([0-9a-f]{0,4}:){2,7}[0-9a-f]{0,4}\]?(:\d{1,5})?`)
	links = regexp.MustCompile(`(?i)\b[a-z][a-z0-9+.-]*://[^\s"'<>]+`)
	keys  = regexp.MustCompile(`\b(sk|pk|hf|gsk|xai|nvapi)[-_][\w-]{8,}|(?i:\bbearer\s+[\w.~+/=-]{8,})`)
)

// newRedactor knows the endpoint's host and whatever secrets are given; empty ones are left out.
func newRedactor(endpoint *url.URL, secrets ...string) *redactor {
	var pairs []string
	for _, s := range secrets {
		if len(s) >= 4 && !strings.EqualFold(s, "bearer") && !strings.EqualFold(s, "basic") {
			pairs = append(pairs, s, "[secret]")
		}
	}
	for _, s := range []string{endpoint.Host, endpoint.Hostname()} {
		if s != "" && s != "localhost" {
			pairs = append(pairs, s, "[endpoint]")
		}
	}
	return &redactor{strings.NewReplacer(pairs...)}
}

// text returns s fit for a row or an event: redacted, on one line, at most ledger.MaxText bytes.
func (r *redactor) text(s string) string {
	s = clip(s, headSize)
	s = strings.Join(strings.Fields(s), " ")
	s = r.words.Replace(s)
	s = links.ReplaceAllString(s, "[address]")
	s = ipv4.ReplaceAllString(s, "[address]")
	s = ipv6.ReplaceAllStringFunc(s, func(m string) string {
		if strings.Count(m, ":") < 3 && !strings.Contains(m, "::") {
			return m // a time of day or a position
		}
		return "[address]"
	})
	s = keys.ReplaceAllString(s, "[secret]")
	return clip(s, ledger.MaxText)
}

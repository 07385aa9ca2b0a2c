package soak

import (
	"errors"
	"io"
	"net/http/httptrace"
	"strings"
	"sync"
	"syscall"
	"time"

	"cotenant/internal/ledger"
)

// sendTrace follows one attempt's way onto a connection. net/http calls its hooks from other goroutines, some of them after the
// attempt has ended.
type sendTrace struct {
	clk    *clock
	onSent func()

	mu        sync.Mutex
	sent      ledger.Opt // stamped when the request was first written whole
	conns     int64      // connections that the request was given
	reused    bool       // the last of them had carried a request before
	wroteAt   time.Time  // on the last of them
	firstByte bool       // the last of them brought a byte back
	ended     bool
}

func (t *sendTrace) hooks() *httptrace.ClientTrace {
	return &httptrace.ClientTrace{
		GotConn: func(info httptrace.GotConnInfo) {
			t.mu.Lock()
			defer t.mu.Unlock()
			t.conns++
			t.reused, t.firstByte, t.wroteAt = info.Reused, false, time.Time{}
		},
		WroteRequest: func(info httptrace.WroteRequestInfo) {
			t.mu.Lock()
			defer t.mu.Unlock()
			if info.Err != nil || t.ended {
				return
			}
			t.wroteAt = time.Now()
			t.stampSent()
			t.onSent()
		},
		GotFirstResponseByte: func() {
			t.mu.Lock()
			defer t.mu.Unlock()
			t.firstByte = true
		},
	}
}

func (t *sendTrace) stampSent() {
	if !t.sent.OK {
		t.sent = ledger.Some(t.clk.stamp(+1))
	}
}

// headers notes that a response is there: then the request was sent, though the hook that says so may still be on its way.
func (t *sendTrace) headers() (sent, headers ledger.Opt) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.stampSent()
	return t.sent, at(t.clk.now(), t.sent)
}

// end closes the attempt's interval and returns its ends. Later hooks change nothing.
func (t *sendTrace) end() (sent ledger.Opt, end int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.ended = true
	if t.sent.OK {
		return t.sent, t.clk.stamp(-1)
	}
	return t.sent, t.clk.stamp(0)
}

// staleFor is how soon after a write a kept-alive connection must fail for it to count as one that the server had closed before,
// rather than as a server that died over the request.
const staleFor = time.Second

// stale reports whether err is that of a write on a kept-alive connection which the server had already closed (RFC 9112, 9.3.1):
// nothing came back, and at once. The request is then sent again on another connection and counted as a reconnect. The
// transport does this by itself only where nothing was written; for what a POST leaves open it must not.
func (t *sendTrace) stale(err error) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.reused || t.firstByte || (!t.wroteAt.IsZero() && time.Since(t.wroteAt) > staleFor) {
		return false
	}
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE) ||
		errors.Is(err, io.ErrClosedPipe) || strings.Contains(err.Error(), "server closed idle connection")
}

func (t *sendTrace) connection() (reused bool, reconnects int64, firstByte bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.reused, max(0, t.conns-1), t.firstByte
}

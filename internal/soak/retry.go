package soak

import (
	"math/rand/v2"
	"net/http"
	"strconv"
	"strings"
	"time"

	"cotenant/internal/ledger"
)

// Bounds of a wait between two attempts.
const (
	backoffBase   = 250 * time.Millisecond
	backoffMax    = 30 * time.Second
	retryAfterMax = 2 * time.Minute
)

// retryAfter reads what a response asks a client to wait, in µs: retry-after-ms (OpenAI's own), then Retry-After in seconds or as a
// date (RFC 9110, 10.2.3), clamped to two minutes. now is the wall time that a date is measured from.
func retryAfter(h http.Header, now time.Time) ledger.Opt {
	clamp := func(us float64) ledger.Opt {
		return ledger.Some(int64(min(max(us, 0), float64(retryAfterMax.Microseconds()))))
	}
	if v := strings.TrimSpace(h.Get("Retry-After-Ms")); v != "" {
		if ms, err := strconv.ParseFloat(v, 64); err == nil && ms == ms {
			return clamp(ms * 1e3)
		}
	}
	v := strings.TrimSpace(h.Get("Retry-After"))
	if v == "" {
		return ledger.Opt{}
	}
	if s, err := strconv.ParseFloat(v, 64); err == nil && s == s {
		return clamp(s * 1e6)
	}
	if t, err := http.ParseTime(v); err == nil {
		return clamp(float64(t.Sub(now).Microseconds()))
	}
	return ledger.Opt{}
}

// retryable reports whether a context may be tried again after an attempt that ended so.
func retryable(o ledger.Outcome, v verdict) bool {
	if o != ledger.InbandError {
		return o.Retryable()
	}
	// No code: most servers send in-band errors for their own faults.
	return v.code < 0 || v.code == http.StatusRequestTimeout || v.code == http.StatusTooManyRequests || v.code >= 500
}

// backoff is the wait before attempt number next (2 is the first retry): what the server asked for and up to a tenth more, else
// between half and all of an exponentially growing step, so that workers which failed together don't come back together.
func backoff(next int64, asked ledger.Opt) time.Duration {
	if us, ok := asked.Get(); ok {
		wait := time.Duration(us) * time.Microsecond
		return wait + time.Duration(rand.Int64N(int64(wait)/10+1))
	}
	step := backoffBase
	for i := int64(2); i < next && step < backoffMax; i++ {
		step *= 2
	}
	step = min(step, backoffMax)
	return step/2 + time.Duration(rand.Int64N(int64(step)/2+1))
}

package soak

import (
	"context"
	"errors"
	"sync"
	"time"
)

// Causes that end an attempt from this side.
var (
	errHeadersTimeout = errors.New("no response headers in time")
	errIdleTimeout    = errors.New("the stream stood still for too long")
	errTotalTimeout   = errors.New("the attempt took too long")
	errDrained        = errors.New("the body did not end in time after its answer")
	errInterrupted    = errors.New("interrupted")
)

// watch cancels an attempt's context when its present phase lasts too long. There is no deadline on the client as a whole: it would
// end long streams that move.
type watch struct {
	cancel context.CancelCauseFunc
	phase  *time.Timer
	total  *time.Timer

	mu    sync.Mutex
	cause error
	most  time.Duration // a phase lasts no longer, whatever arm says; 0: no limit
}

func newWatch(cancel context.CancelCauseFunc, total time.Duration) *watch {
	w := &watch{cancel: cancel}
	w.phase = time.AfterFunc(time.Hour, func() { cancel(w.why()) })
	w.phase.Stop()
	if total > 0 {
		w.total = time.AfterFunc(total, func() { cancel(errTotalTimeout) })
	}
	return w
}

// arm begins a phase that may last d (0: for ever).
func (w *watch) arm(d time.Duration, cause error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.most > 0 && (d <= 0 || d > w.most) {
		d = w.most
	}
	if d <= 0 {
		w.phase.Stop()
		return
	}
	w.cause = cause
	w.phase.Reset(d)
}

// tighten bounds the present phase, which becomes one of cause, and all later ones by d.
func (w *watch) tighten(d time.Duration, cause error) {
	w.mu.Lock()
	w.most = d
	w.mu.Unlock()
	w.arm(d, cause)
}

func (w *watch) why() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.cause
}

func (w *watch) stop() {
	w.phase.Stop()
	if w.total != nil {
		w.total.Stop()
	}
}

package soak

import (
	"context"
	"errors"
	"fmt"
	"sync"
)

// abort stops a run by itself, once.
type abort struct {
	sync.Mutex
	reason string
	stop   context.CancelFunc // no more attempts
	cut    context.CancelCauseFunc
	err    error // what Run returns: this side's own failure
}

// because stops handing out work. Attempts that are open go on.
func (a *abort) because(format string, args ...any) {
	a.Lock()
	defer a.Unlock()
	if a.reason == "" {
		a.reason = fmt.Sprintf(format, args...)
		a.stop()
	}
}

// fail is because of a failure that leaves nothing to write to: open attempts are cut.
func (a *abort) fail(err error) {
	a.because("own failure: %v", err)
	a.Lock()
	defer a.Unlock()
	a.err = errors.Join(a.err, err)
	a.cut(errInterrupted)
}

func (a *abort) why() (string, error) {
	a.Lock()
	defer a.Unlock()
	return a.reason, a.err
}

package soak

import (
	"sync"
	"time"

	"cotenant/internal/ledger"
)

// clock is a segment's monotonic clock and its count of open attempts. Moments are µs since its start.
type clock struct {
	start time.Time

	mu         sync.Mutex
	last       int64 // the last stamp
	open, peak int64
}

func newClock() *clock { return &clock{start: time.Now()} }

func (c *clock) now() int64 { return time.Since(c.start).Microseconds() }

// stamp moves the count of open attempts by delta and returns the moment. No two stamps are equal: the later is moved on by a
// microsecond, so that the rows, sorted by time, go through exactly the counts that were seen here.
func (c *clock) stamp(delta int64) int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	t := max(c.now(), c.last+1)
	c.last = t
	c.open += delta
	c.peak = max(c.peak, c.open)
	return t
}

// inFlight returns the open attempts and their high-water mark.
func (c *clock) inFlight() (open, peak int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.open, c.peak
}

// at is a moment that is known to lie not before floor: stamps may run a few µs ahead of the clock.
func at(t int64, floor ledger.Opt) ledger.Opt {
	if floor.OK && t < floor.V {
		t = floor.V
	}
	return ledger.Some(t)
}

// lastStamp is the latest moment that stamp has given out.
func (c *clock) lastStamp() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.last
}

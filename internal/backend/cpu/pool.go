package cpu

import (
	"runtime"
	"sync"
	"sync/atomic"
	"time"
)

// pool runs an operation's pieces on a fixed set of threads, of which the calling goroutine is number 0.
//
// A decode step is some two hundred operations of tens of microseconds, so handing one over must cost well under a
// microsecond: workers spin for spinFor after their last piece and then park until the next Begin or operation. Spinning
// yields to other goroutines all the time. Nobody waits for a worker that has not taken a piece: where the workers don't
// get a processor, the caller does all pieces itself.
type pool struct {
	threads int
	job     job
	shares  []share

	gate   atomic.Uint64 // 2*operation + 1 while its pieces may be taken, else even
	active atomic.Int64  // workers that look at the operation

	parked  []parked
	stopped atomic.Bool
	done    sync.WaitGroup
}

// share is the pieces that are one thread's to begin with, alone on its cache lines.
type share struct {
	next atomic.Int64
	end  int64
	_    [112]byte
}

// parked is one worker's bed, alone on its cache lines.
type parked struct {
	asleep atomic.Bool
	wake   chan struct{}
	_      [112]byte
}

// spinFor is how long a worker looks for work before it parks; about the pause between two steps.
const spinFor = 100 * time.Microsecond

func newPool(threads int) *pool {
	p := &pool{threads: threads, parked: make([]parked, threads), shares: make([]share, threads)}
	for i := 1; i < threads; i++ {
		p.parked[i].wake = make(chan struct{}, 1)
		p.done.Add(1)
		go p.work(i)
	}
	return p
}

// job is what threads share.
type job interface {
	do(thread, piece int)
}

// run calls j.do(thread, piece) for pieces 0 to n-1, each once, and returns when all are done. Each thread begins with its own
// share of neighbours. Calls of different
// pieces run at the same time; two of one thread never do.
func (p *pool) run(n int, j job) {
	if n <= 1 || p.threads == 1 {
		for i := range n {
			j.do(0, i)
		}
		return
	}
	p.job = j
	for i := range p.shares {
		s := &p.shares[i]
		s.next.Store(int64(n * i / p.threads))
		s.end = int64(n * (i + 1) / p.threads)
	}
	p.gate.Add(1) // odd: open
	p.wake()
	p.take(0)
	p.gate.Add(1) // even: whoever joins from here on takes nothing
	for i := 0; p.active.Load() != 0; i++ {
		relax(i)
	}
	p.job = nil
}

// take does the thread's own pieces, which are neighbours, in order: they read memory as one stream. Then it helps others.
func (p *pool) take(thread int) {
	j := p.job
	for k := range p.threads {
		s := &p.shares[(thread+k)%p.threads]
		for s.next.Load() < s.end {
			i := s.next.Add(1) - 1
			if i >= s.end {
				break
			}
			j.do(thread, int(i))
		}
	}
}

// wake rouses parked workers; those that spin need nothing.
func (p *pool) wake() {
	for i := 1; i < p.threads; i++ {
		b := &p.parked[i]
		if b.asleep.Load() && b.asleep.CompareAndSwap(true, false) {
			b.wake <- struct{}{}
		}
	}
}

func (p *pool) work(thread int) {
	defer p.done.Done()
	var seen uint64
	for {
		if g := p.gate.Load(); g&1 == 1 && g != seen {
			seen = g
			// Joining comes before the second look at the gate: run closes the gate before it looks at active, so
			// either it sees this worker and waits, or the worker sees the gate closed and touches nothing.
			p.active.Add(1)
			if p.gate.Load() == g {
				p.take(thread)
			}
			p.active.Add(-1)
		}
		if !p.spin(seen) {
			if !p.park(thread, seen) {
				return
			}
		}
	}
}

// spin waits a while for an operation other than seen.
func (p *pool) spin(seen uint64) bool {
	var until time.Time
	for i := 0; ; i++ {
		if g := p.gate.Load(); g&1 == 1 && g != seen {
			return true
		}
		if p.stopped.Load() {
			return false
		}
		relax(i)
		if i&63 == 63 {
			t := time.Now()
			if until.IsZero() {
				until = t.Add(spinFor)
			} else if t.After(until) {
				return false
			}
		}
	}
}

// park sleeps until there is an operation other than seen; false: the pool was closed.
func (p *pool) park(thread int, seen uint64) bool {
	b := &p.parked[thread]
	b.asleep.Store(true)
	g := p.gate.Load()
	if (g&1 == 1 && g != seen) || p.stopped.Load() {
		if !b.asleep.CompareAndSwap(true, false) {
			<-b.wake // wake was quicker, its message is on the way
		}
	} else {
		<-b.wake
	}
	return !p.stopped.Load()
}

// close ends the workers. No operation may be running.
func (p *pool) close() {
	p.stopped.Store(true)
	p.wake()
	p.done.Wait()
}

// relax is one turn of waiting: mostly the processor's own pause, now and then a chance for other goroutines.
func relax(i int) {
	if i&15 == 15 {
		runtime.Gosched()
	} else {
		pause()
	}
}

package interfere

import (
	"errors"
	"fmt"
	"runtime"
	"sync/atomic"
	"time"

	"cotenant/internal/cuda"
)

// feeder keeps an aggressor's units submitted, on a thread of its own with a driver handle of its own, so that the victim's thread does
// nothing but launch and poll.
type feeder struct {
	tasks chan feed
	began chan error
	done  chan error
	stop  atomic.Bool
	// ended counts units since begin; anyone may read it.
	ended atomic.Int64
	err   atomic.Pointer[error]
	busy  bool // between begin and end, on the worker's thread
}

type feed struct {
	job    *job
	stream cuda.Stream
	depth  int
}

// pause is how long the feeder sleeps while as many units as it wants are submitted: polling without a pause would contend with the
// victim's thread for the driver's locks.
const pause = 50 * time.Microsecond

// unitLimit is how long one unit may take before the GPU counts as hung.
const unitLimit = 20 * time.Second

// newFeeder starts the thread.
func newFeeder(names []string, context cuda.Context) (*feeder, error) {
	f := &feeder{tasks: make(chan feed), began: make(chan error), done: make(chan error)}
	ready := make(chan error)
	go func() {
		runtime.LockOSThread()
		d, err := cuda.Open(names...)
		if err == nil {
			err = d.SetCurrent(context)
		}
		ready <- err
		if err != nil {
			return
		}
		for t := range f.tasks {
			f.feed(d, t)
		}
	}()
	return f, <-ready
}

// begin starts feeding and returns when the first unit has ended.
func (f *feeder) begin(x *device, workload string, l lane) error {
	if f.busy {
		return errors.New("an aggressor runs already")
	}
	w, err := x.workload(workload)
	if err != nil {
		return err
	}
	j, err := x.job(workload, l)
	if err != nil {
		return err
	}
	f.ended.Store(0)
	f.err.Store(nil)
	f.stop.Store(false)
	f.busy = true
	f.tasks <- feed{j, l.stream, int(max(1, w.Depth))}
	if err := <-f.began; err != nil {
		return errors.Join(err, f.end())
	}
	return nil
}

// end stops feeding and waits for what is submitted.
func (f *feeder) end() error {
	if !f.busy {
		return nil
	}
	f.stop.Store(true)
	f.busy = false
	return <-f.done
}

func (f *feeder) failure() error {
	if p := f.err.Load(); p != nil {
		return *p
	}
	return nil
}

// feed runs on the feeder's thread. It answers on began once, and on done once.
func (f *feeder) feed(d *cuda.Driver, t feed) {
	told := false
	tell := func(err error) {
		if !told {
			told = true
			f.began <- err
		}
	}
	err := f.units(d, t, func() { tell(nil) })
	if err != nil {
		f.err.Store(&err)
	}
	tell(err)
	f.done <- err
}

// units submits and waits. Each unit has an event of a ring of depth.
func (f *feeder) units(d *cuda.Driver, t feed, first func()) (err error) {
	ring := make([]cuda.Event, t.depth)
	for i := range ring {
		if ring[i], err = d.CreateEvent(cuda.EventDisableTiming); err != nil {
			return err
		}
		defer func(e cuda.Event) { _ = d.DestroyEvent(e) }(ring[i])
	}
	submitted := 0
	wait := func() error {
		n := int(f.ended.Load())
		for begin := time.Now(); ; time.Sleep(pause) {
			done, err := d.EventDone(ring[n%t.depth])
			if err != nil {
				return err
			}
			if done {
				f.ended.Add(1)
				if n == 0 {
					first()
				}
				return nil
			}
			if time.Since(begin) > unitLimit {
				return fmt.Errorf("unit %d: %w", n, cuda.ErrDeadline)
			}
		}
	}
	for !f.stop.Load() || submitted == 0 {
		if submitted-int(f.ended.Load()) == t.depth {
			if err := wait(); err != nil {
				return err
			}
			continue
		}
		if err := t.job.submit(d); err != nil {
			return err
		}
		if err := d.RecordEvent(ring[submitted%t.depth], t.stream); err != nil {
			return err
		}
		submitted++
	}
	for int(f.ended.Load()) < submitted {
		if err := wait(); err != nil {
			return err
		}
	}
	return nil
}

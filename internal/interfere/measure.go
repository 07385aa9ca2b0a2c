package interfere

import (
	"time"

	"cotenant/internal/cuda"
	"cotenant/internal/interfere/record"
)

// launchLimit is how long one launch may take before the GPU counts as hung.
const launchLimit = 20 * time.Second

// timer times launches of one job in its lane.
type timer struct {
	d        *cuda.Driver
	from, to cuda.Event
	stream   cuda.Stream
}

func (w *workerState) newTimer(s cuda.Stream) (t timer, err error) {
	t.d, t.stream = w.device.d, s
	if t.from, err = t.d.CreateEvent(0); err == nil {
		t.to, err = t.d.CreateEvent(0)
	}
	return t, err
}

func (t *timer) close() {
	_ = t.d.DestroyEvent(t.from)
	_ = t.d.DestroyEvent(t.to)
}

// launch times one: by the host from before the first call until the end is seen by polling, by events around the job, and the
// launch call alone.
func (t *timer) launch(j *job) (host, event, submit int64, err error) {
	begin := time.Now()
	if err = t.d.RecordEvent(t.from, t.stream); err != nil {
		return 0, 0, 0, err
	}
	before := time.Now()
	if err = j.submit(t.d); err != nil {
		return 0, 0, 0, err
	}
	submit = time.Since(before).Nanoseconds()
	if err = t.d.RecordEvent(t.to, t.stream); err != nil {
		return 0, 0, 0, err
	}
	// Sleeping would cost what is measured.
	for done := false; !done; {
		if done, err = t.d.EventDone(t.to); err != nil {
			return 0, 0, 0, err
		}
		if host = time.Since(begin).Nanoseconds(); !done && host > launchLimit.Nanoseconds() {
			return 0, 0, 0, cuda.ErrDeadline
		}
	}
	ms, err := t.d.ElapsedMS(t.from, t.to)
	return host, int64(float64(ms) * 1e6), submit, err
}

// victim launches a victim as the plan's sampling says.
func (w *workerState) victim(o order) (r reply, err error) {
	l, err := w.lane(o.Mechanism, true)
	if err != nil {
		return r, err
	}
	j, err := w.device.job(o.Workload, l)
	if err != nil {
		return r, err
	}
	ahead := func() error { return nil }
	if o.Ahead != "" {
		unit, err := w.device.job(o.Ahead, l)
		if err != nil {
			return r, err
		}
		ahead = func() error { return unit.submit(w.device.d) }
	}
	t, err := w.newTimer(l.stream)
	if err != nil {
		return r, err
	}
	defer t.close()
	s := w.plan.Sampling
	r.Host, r.Event = make(record.Series, 0, s.MaxLaunches), make(record.Series, 0, s.MaxLaunches)
	for range s.Dropped {
		if err := ahead(); err != nil {
			return r, err
		}
		if _, _, _, err := t.launch(j); err != nil {
			return r, err
		}
	}
	for begin := time.Now(); ; {
		if err := ahead(); err != nil {
			return r, err
		}
		host, event, _, err := t.launch(j)
		if err != nil {
			return r, err
		}
		r.Host, r.Event = append(r.Host, host), append(r.Event, event)
		n, lasted := int64(len(r.Host)), time.Since(begin).Milliseconds()
		if n >= s.Launches && lasted >= s.MinMS || lasted >= s.MaxMS || n >= s.MaxLaunches {
			break
		}
	}
	r.AtUS = time.Since(w.start).Microseconds()
	if o.Ahead != "" {
		r.Units = int64(len(r.Host))
	}
	return r, nil
}

// overheadLaunches is how many empty kernels are timed, after as many that aren't.
const overheadLaunches = 200

// overhead times an empty kernel.
func (w *workerState) overhead() (r reply, err error) {
	l, err := w.lane(record.Whole, true)
	if err != nil {
		return r, err
	}
	out, err := w.device.d.Alloc(4)
	if err != nil {
		return r, err
	}
	j, err := w.device.single("tiny", 1, 32, l, uint64(out))
	if err != nil {
		return r, err
	}
	t, err := w.newTimer(l.stream)
	if err != nil {
		return r, err
	}
	defer t.close()
	for i := range 2 * overheadLaunches {
		host, event, submit, err := t.launch(j)
		if err != nil {
			return r, err
		}
		if i >= overheadLaunches {
			r.Host, r.Event, r.Submit = append(r.Host, host), append(r.Event, event), append(r.Submit, submit)
		}
	}
	return r, w.device.d.Free(out)
}

package interfere

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"runtime"
	"runtime/debug"
	"slices"
	"time"

	"cotenant/internal/bounded"
	"cotenant/internal/cuda"
	"cotenant/internal/interfere/record"
	"cotenant/internal/probe"
)

const workerTask = "interfere-worker"

// workRequest is what a worker is asked; as JSON it must fit in 4 KiB.
type workRequest struct {
	probe.Worker
	Names   []string `json:"names"` // of libcuda
	GPUUUID string   `json:"gpu_uuid"`
	Socket  string   `json:"socket"`
	Plan    string   `json:"plan"` // folder
	// Mechanisms are those that this worker plays a part in; Victims and Aggressors say which parts.
	Mechanisms []string `json:"mechanisms"`
	Victims    bool     `json:"victims"`
	Aggressors bool     `json:"aggressors"`
}

// workerState is one worker, on its first thread.
type workerState struct {
	req    workRequest
	plan   *record.Plan
	device *device
	feeder *feeder
	start  time.Time
}

// worker is the child's task: it takes orders until it is told to quit, or its supervisor is gone.
func worker(request []byte, out *bounded.Reporter) (err error) {
	runtime.LockOSThread() // the context is current on this thread; it ends with the process
	// A collection stops the world for tens of microseconds: none during a measurement, one after each order.
	debug.SetGCPercent(-1)
	w := &workerState{start: time.Now()}
	if err := json.Unmarshal(request, &w.req); err != nil {
		return fmt.Errorf("reading the request: %w", err)
	}
	journal, err := w.req.Begin()
	if err != nil {
		return err
	}
	defer func() {
		journal.End("worker", 0, err)
		err = errors.Join(err, journal.Close())
	}()
	f, err := record.Load(w.req.Plan)
	if err != nil {
		return err
	}
	w.plan = &f.Plan
	conn, err := net.Dial("unix", w.req.Socket)
	if err != nil {
		return fmt.Errorf("finding the supervisor: %w", err)
	}
	defer conn.Close()
	orders := scanner(conn)
	for orders.Scan() {
		var o order
		if err := json.Unmarshal(orders.Bytes(), &o); err != nil {
			return fmt.Errorf("reading an order: %w", err)
		}
		r, err := w.carryOut(o, out)
		if err != nil {
			r.Error = err.Error()
		}
		line, err := json.Marshal(r)
		if err != nil {
			return err
		}
		if _, err := conn.Write(append(line, '\n')); err != nil {
			return fmt.Errorf("answering: %w", err)
		}
		if o.Do == doQuit {
			return nil
		}
		runtime.GC()
	}
	return orders.Err()
}

// carryOut does what an order says.
func (w *workerState) carryOut(o order, out *bounded.Reporter) (r reply, err error) {
	if w.device == nil && o.Do != doPrepare && o.Do != doQuit {
		return r, errors.New("not prepared")
	}
	switch o.Do {
	case doPrepare:
		r.Facts, err = w.prepare(out)
	case doCheck:
		r.Checks, err = w.check()
	case doOverhead:
		return w.overhead()
	case doAggress:
		var l lane
		if l, err = w.lane(o.Mechanism, false); err == nil {
			err = w.feeder.begin(w.device, o.Workload, l)
		}
	case doMark:
		r.Units, r.AtUS = w.feeder.ended.Load(), time.Since(w.start).Microseconds()
		err = w.feeder.failure()
	case doVictim:
		return w.victim(o)
	case doStop:
		err = w.feeder.end()
	case doQuit:
		// The process's end gives everything back.
	default:
		err = fmt.Errorf("no order %q", o.Do)
	}
	return r, err
}

func (w *workerState) lane(mechanism string, victim bool) (lane, error) {
	p, ok := w.device.lanes[mechanism]
	if !ok {
		return lane{}, fmt.Errorf("mechanism %s isn't made here", mechanism)
	}
	if victim {
		return p.victim, nil
	}
	return p.aggressor, nil
}

// prepare opens the device and makes every lane and job that the plan's cells need here, so that nothing is made between measurements.
func (w *workerState) prepare(out *bounded.Reporter) (*facts, error) {
	d, err := cuda.Open(w.req.Names...)
	if err != nil {
		return nil, err
	}
	d.Calling = out.Calling
	if err := probe.Initialise(d); err != nil {
		return nil, err
	}
	x, err := openDevice(d, w.req.GPUUUID)
	if err != nil {
		return nil, err
	}
	x.plan, w.device = w.plan, x
	f := &facts{SMs: x.sms, Capability: x.capability, Priority: [2]int64{int64(x.least), int64(x.greatest)}, Made: []record.Made{}}
	for _, m := range w.plan.Mechanisms {
		if slices.Contains(w.req.Mechanisms, m.ID) {
			f.Made = append(f.Made, x.mechanism(m))
		}
	}
	if err := w.jobs(); err != nil {
		return nil, err
	}
	if err := d.Synchronize(); err != nil {
		return nil, err
	}
	f.Modules = x.loaded
	if f.FreeBytes, _, err = d.MemoryInfo(); err != nil {
		return nil, err
	}
	d.Calling = nil // it writes to a pipe, which no measurement can afford
	w.feeder, err = newFeeder(w.req.Names, x.context)
	return f, err
}

// jobs makes those of the plan's cells.
func (w *workerState) jobs() error {
	for _, c := range w.plan.Cells {
		p, ok := w.device.lanes[c.Mechanism]
		if !ok {
			continue
		}
		if w.req.Victims && c.Victim != "" {
			if _, err := w.device.job(c.Victim, p.victim); err != nil {
				return err
			}
		}
		if w.req.Aggressors && c.Aggressor != "" {
			if _, err := w.device.job(c.Aggressor, p.aggressor); err != nil {
				return err
			}
		}
	}
	return nil
}

package probe

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"runtime"
	"time"

	"cotenant/internal/bounded"
	"cotenant/internal/cuda"
	"cotenant/internal/cuda/query"
	"cotenant/internal/observe"
	"cotenant/internal/partition"
	"cotenant/internal/probe/evidence"
)

const createTask = "probe-create"

// workRequest is what a create worker is asked; as JSON it must fit in 4 KiB.
type workRequest struct {
	Run     string                 `json:"run"`    // id
	Parent  int                    `json:"parent"` // pid of the supervisor
	Folder  string                 `json:"folder"`
	Names   []string               `json:"names"` // of libcuda
	GPUUUID string                 `json:"gpu_uuid"`
	Request evidence.CreateRequest `json:"request"`
	// KernelMS is how long a kernel may take before the worker gives up.
	KernelMS int64 `json:"kernel_ms"`
	// Exact says that the device must be the only one visible.
	Exact bool `json:"exact"`
}

// failure is why a worker stopped.
type failure struct {
	Step string `json:"step"`
	Text string `json:"text"`
	Code int32  `json:"code"`
	// Stuck: work on the GPU didn't end, so nothing could be undone but by ending the process.
	Stuck bool `json:"stuck"`
	// Blocked: the environment, not the mechanism.
	Blocked bool `json:"blocked"`
}

// deviceFacts is what a worker saw of its device.
type deviceFacts struct {
	Name    string           `json:"name"`
	Version int              `json:"version"`
	Visible int              `json:"visible"`
	SMs     int              `json:"sms"` // attribute 16
	Limits  partition.Limits `json:"limits"`
	Told    bool             `json:"told"` // limits are the driver's
}

// undone is what a worker undid.
type undone struct {
	evidence.APICleanup
	Memory evidence.InProcess `json:"memory"`
}

// worker does the work of one create probe, on one OS thread.
type worker struct {
	req     workRequest
	out     *bounded.Reporter
	journal *evidence.Journal
	d       *cuda.Driver
	dev     cuda.Device
	facts   deviceFacts
	step    string // for a failure
	undone  undone
}

// createWorker is the child's task.
func createWorker(request []byte, out *bounded.Reporter) error {
	runtime.LockOSThread() // contexts are a thread's; the thread ends with the process
	w := &worker{out: out, step: "begin"}
	if err := json.Unmarshal(request, &w.req); err != nil {
		return fmt.Errorf("reading the request: %w", err)
	}
	endWithParent(w.req.Parent)
	var err error
	if w.journal, err = evidence.OpenJournal(w.req.Folder, "worker"); err != nil {
		return err
	}
	if err := w.journal.BeginWith("worker", 0, processDetail()); err != nil {
		return err
	}
	w.undone.APICleanup = evidence.APICleanup{Verdict: "nothing_made", Failures: []string{}, PrimaryGone: observe.None[bool]("cuDevicePrimaryCtxGetState", 0, "nothing was made")}
	w.undone.Memory.Verdict = evidence.Unknown
	err = w.work()
	if err != nil {
		code := cuda.CodeOf(err)
		out.Part("failure", failure{w.step, err.Error(), int32(code), errors.Is(err, cuda.ErrDeadline), blocked(code)})
	}
	out.Part("undone", w.undone)
	w.journal.End("worker", 0, err)
	return w.journal.Close()
}

// blocked says that a code is the environment's fault.
func blocked(c query.Code) bool {
	switch query.StatusOf(c) {
	case observe.BlockedByEnvironment, observe.Busy, observe.PermissionDenied, observe.BlockedByDeviceState, observe.BlockedByMode:
		return true
	}
	return c == query.NoDevice
}

// Begin and End make a worker partition.Steps: they journal each step and remember it for a failure.
func (w *worker) Begin(step string, index int) error {
	w.step = step
	return w.journal.Begin(step, index)
}

func (w *worker) End(step string, index int, err error) { w.journal.End(step, index, err) }

func (w *worker) take(step string, index int, f func() error) error {
	if err := w.Begin(step, index); err != nil {
		return err
	}
	err := f()
	w.End(step, index, err)
	return err
}

// work initialises, looks, and makes; what makes undoes.
func (w *worker) work() error {
	var err error
	if w.d, err = cuda.Open(w.req.Names...); err != nil {
		return err
	}
	w.d.Calling = w.out.Calling
	if missing := w.d.Missing(cuda.GreenSymbols...); len(missing) > 0 {
		return &cuda.MissingError{Symbol: missing[0]}
	}
	if w.facts.Version, err = w.d.Version(); err != nil {
		return err
	}
	if err := w.take("initialise", 0, w.d.Init); err != nil {
		return err
	}
	if err := w.look(); err != nil {
		return err
	}
	if w.req.Request.Map {
		w.step = "map"
		rows, err := partition.Map(w.d, w.dev)
		if err != nil {
			return fmt.Errorf("mapping splits: %w", err)
		}
		w.out.Part("map", rows)
	}
	w.out.Part("too_much", w.tooMuch())
	return w.inContext()
}

// look finds the device and its limits; no context is needed.
func (w *worker) look() (err error) {
	w.step = "find the device"
	if w.dev, w.facts.Visible, err = w.d.Find(w.req.GPUUUID); err != nil {
		return err
	}
	if w.req.Exact && w.facts.Visible != 1 {
		return fmt.Errorf("%d devices are visible, not the one alone", w.facts.Visible)
	}
	if w.facts.Name, err = w.d.DeviceName(w.dev); err != nil {
		return err
	}
	if w.facts.SMs, err = w.d.Attribute(w.dev, cuda.AttributeSMCount); err != nil {
		return err
	}
	major, err := w.d.Attribute(w.dev, cuda.AttributeMajor)
	if err != nil {
		return err
	}
	whole, err := w.d.DeviceResource(w.dev)
	if err != nil {
		return err
	}
	w.facts.Limits, w.facts.Told = partition.LimitsOf(&whole, w.facts.Version, major)
	w.out.Part("device", w.facts)
	return nil
}

// tooMuch asks for more SMs than there are.
func (w *worker) tooMuch() evidence.TooMuch {
	n := w.facts.Limits.Total + w.facts.Limits.Alignment
	whole, err := w.d.DeviceResource(w.dev)
	if err == nil {
		_, _, err = w.d.SplitByCount(&whole, 1, n, 0)
	}
	code := cuda.CodeOf(err)
	return evidence.TooMuch{Requested: n, Code: int32(code), Symbol: code.Name()}
}

// inContext retains the primary context, works in it and releases it.
func (w *worker) inContext() (err error) {
	var context cuda.Context
	if err := w.take("retain_primary_context", 0, func() (err error) {
		context, err = w.d.RetainPrimary(w.dev)
		return err
	}); err != nil {
		return err
	}
	w.undone.Verdict = "incomplete"
	err = w.d.SetCurrent(context)
	if err == nil {
		err = w.inCurrent()
	}
	if errors.Is(err, cuda.ErrDeadline) {
		// Destroying would wait for work that doesn't end.
		return err
	}
	step := w.step
	if rerr := w.take("release_primary_context", 0, func() error { return w.d.ReleasePrimary(w.dev) }); rerr != nil {
		w.undone.Failures = append(w.undone.Failures, rerr.Error())
	}
	active, aerr := w.d.PrimaryActive(w.dev)
	switch code := cuda.CodeOf(aerr); {
	case aerr != nil:
		w.undone.PrimaryGone = observe.None[bool]("cuDevicePrimaryCtxGetState", int32(code), aerr.Error())
	default:
		w.undone.PrimaryGone = observe.Got("cuDevicePrimaryCtxGetState", !active)
	}
	if len(w.undone.Failures) == 0 && w.undone.PrimaryGone.Or(false) && w.undone.Created == w.undone.Destroyed {
		w.undone.Verdict = "complete"
	}
	w.step = step
	return err
}

// inCurrent loads the kernels, makes partitions, runs the witness in each, undoes them, and does it again as often as asked.
func (w *worker) inCurrent() (err error) {
	sizes, err := w.req.Request.Plan.Sizes(w.facts.Limits)
	if err != nil {
		return err
	}
	run, err := w.newWitness(len(sizes), time.Duration(w.req.Request.SpinUS)*time.Microsecond)
	if err != nil {
		return err
	}
	defer func() {
		if !errors.Is(err, cuda.ErrDeadline) {
			w.undone.Failures = append(w.undone.Failures, run.free()...)
		}
	}()
	before, _, err := w.d.MemoryInfo()
	if err != nil {
		return err
	}
	set, err := partition.Create(w.d, w.dev, w.req.Request.Plan, w.facts.Limits, w)
	contexts := set.Contexts()
	if err == nil {
		err = w.prove(set, run)
	}
	if errors.Is(err, cuda.ErrDeadline) {
		return err
	}
	step := w.step
	u := set.Close()
	w.undone.Created += u.Created
	w.undone.Destroyed += u.Destroyed
	w.undone.Failures = append(w.undone.Failures, u.Failures...)
	if after, _, merr := w.d.MemoryInfo(); merr == nil {
		kept := int64(before) - int64(after)
		w.undone.Memory = evidence.InProcess{Verdict: evidence.Returned, FreeBefore: before, FreeAfter: after, KeptBytes: kept, Contexts: contexts}
		if kept > 0 {
			w.undone.Memory.Verdict = evidence.Kept
		}
	}
	if w.step = step; err != nil {
		return err
	}
	w.out.Part("features", w.features())
	if w.req.Request.Cycles > 0 {
		return w.cycles()
	}
	return nil
}

// prove asks the driver about what it made and runs the witness in all partitions at once.
func (w *worker) prove(set *partition.Set, run *witness) error {
	r, err := w.run(set, run)
	w.out.Part("resources", r)
	return err
}

func (w *worker) run(set *partition.Set, run *witness) (evidence.Resources, error) {
	r := evidence.Resources{TotalSMs: w.facts.Limits.Total, Minimum: w.facts.Limits.Minimum, Alignment: w.facts.Limits.Alignment,
		LimitsReported: w.facts.Told, Method: set.Method, LeftSMs: set.Left, Partitions: []evidence.Partition{}}
	var targets []target
	for _, p := range set.Partitions {
		r.Partitions = append(r.Partitions, w.describe(p))
		targets = append(targets, target{p.Stream, p.Resource.SMs()})
	}
	_, err := run.all(targets, r.Partitions)
	return r, err
}

// describe asks every query that the driver has about a partition.
func (w *worker) describe(p *partition.Partition) evidence.Partition {
	e := evidence.Partition{Index: p.Index, Requested: p.Requested, Granted: p.Resource.SMs(), Flags: []string{}, SMIDs: []int{}}
	if w.req.Request.Plan.IgnoreCoscheduling {
		e.Flags = append(e.Flags, "ignore_sm_coscheduling")
	}
	green, err := w.d.GreenResource(p.Green)
	e.GreenSMs = observed("cuGreenCtxGetDevResource", green.SMs(), err)
	context, err := w.d.ContextResource(p.Context)
	e.ContextSMs = observed("cuCtxGetDevResource", context.SMs(), err)
	stream, err := w.d.StreamResource(p.Stream)
	e.StreamSMs = observed("cuStreamGetDevResource", stream.SMs(), err)
	id, err := w.d.GreenID(p.Green)
	e.ID = observed("cuGreenCtxGetId", id, err)
	owner, err := w.d.GreenOfStream(p.Stream)
	e.StreamOwned = observed("cuStreamGetGreenCtx", owner == p.Green, err)
	return e
}

func observed[T any](call string, v T, err error) observe.Value[T] {
	var missing *cuda.MissingError
	switch {
	case err == nil:
		return observe.Got(call, v)
	case errors.As(err, &missing):
		return observe.None[T](call, 0, "not exported by this driver")
	}
	return observe.None[T](call, int32(cuda.CodeOf(err)), observe.Clip(err.Error()))
}

// features tries what newer drivers have; what is made for it is undone at once.
func (w *worker) features() evidence.Features {
	absent := func(symbol string, floor int) evidence.Feature {
		return evidence.Feature{Status: observe.Unavailable, Reason: fmt.Sprintf("this driver has no %s; CUDA %s is needed", symbol, query.FormatVersion(floor))}
	}
	f := evidence.Features{Heterogeneous: absent("cuDevSmResourceSplit", query.FloorWorkqueue),
		Workqueues: absent("workqueue resources", query.FloorWorkqueue), StreamResource: absent("cuStreamGetDevResource", query.FloorWorkqueue)}
	if w.d.Has("cuStreamGetDevResource") {
		f.StreamResource = evidence.Feature{Status: observe.SupportedDeclared, Reason: "exported; see stream_sms of each partition"}
	}
	if w.d.Has("cuDevSmResourceSplit") {
		f.Heterogeneous = w.heterogeneous()
	}
	if w.facts.Version >= query.FloorWorkqueue {
		f.Workqueues = w.workqueues()
	}
	return f
}

func (w *worker) heterogeneous() evidence.Feature {
	l := w.facts.Limits
	whole, err := w.d.DeviceResource(w.dev)
	if err != nil {
		return refused(err)
	}
	small := uint32(l.Minimum)
	parts, rest, err := w.d.Split(&whole, []cuda.GroupParams{{SMs: small}, {SMs: 2 * small}})
	if err != nil {
		return refused(err)
	}
	return evidence.Feature{Status: observe.SupportedProven, Reason: fmt.Sprintf("split into %d and %d SMs, %d left", parts[0].SMs(), parts[1].SMs(), rest.SMs())}
}

// workqueues makes a Green Context with a workqueue configuration.
func (w *worker) workqueues() evidence.Feature {
	q, err := w.d.DeviceWorkqueue(w.dev)
	if err != nil {
		return refused(err)
	}
	whole, err := w.d.DeviceResource(w.dev)
	if err != nil {
		return refused(err)
	}
	limit, _ := q.Workqueue()
	q.SetWorkqueue(max(1, limit/2), true)
	err = w.take("create_workqueue_context", 0, func() error {
		desc, err := w.d.Describe(whole, q)
		if err != nil {
			return err
		}
		g, err := w.d.CreateGreen(w.dev, desc)
		if err != nil {
			return err
		}
		w.undone.Created++
		if err := w.d.DestroyGreen(g); err != nil {
			w.undone.Failures = append(w.undone.Failures, err.Error())
			return err
		}
		w.undone.Destroyed++
		return nil
	})
	if err != nil {
		return refused(err)
	}
	return evidence.Feature{Status: observe.SupportedProven, Reason: fmt.Sprintf("a Green Context was made with a limit of %d concurrent streams, balanced", max(1, limit/2))}
}

func refused(err error) evidence.Feature {
	return evidence.Feature{Status: observe.Unsupported, Reason: observe.Clip(err.Error())}
}

// quiet takes steps without a journal: a cycle is one step.
type quiet struct{}

func (quiet) Begin(string, int) error { return nil }
func (quiet) End(string, int, error)  {}

// cycles creates and destroys again and again.
func (w *worker) cycles() error {
	c := evidence.Cycles{Asked: w.req.Request.Cycles, Rows: []evidence.Cycle{}}
	var err error
	if c.FreeBefore, _, err = w.d.MemoryInfo(); err != nil {
		return err
	}
	for n := 1; n <= c.Asked && err == nil; n++ {
		err = w.take("cycle", n, func() error {
			row := evidence.Cycle{Cycle: n}
			start := time.Now()
			set, err := partition.Create(w.d, w.dev, w.req.Request.Plan, w.facts.Limits, quiet{})
			row.CreateUS = time.Since(start).Microseconds()
			c.Contexts = set.Contexts()
			start = time.Now()
			u := set.Close()
			row.DestroyUS = time.Since(start).Microseconds()
			w.undone.Created += u.Created
			w.undone.Destroyed += u.Destroyed
			w.undone.Failures = append(w.undone.Failures, u.Failures...)
			if err == nil {
				row.FreeBytes, _, err = w.d.MemoryInfo()
			}
			if err == nil {
				c.Rows = append(c.Rows, row)
			}
			return err
		})
	}
	c.Summarize()
	w.out.Part("cycles", c)
	return err
}

// processDetail is what proves a process to be a run's, beside its environment: its pid is in every entry of the journal.
func processDetail() map[string]string {
	d := map[string]string{"run": os.Getenv(RunVariable)}
	if start := startTicks(os.Getpid()); start != "" {
		d["start_ticks"] = start
	}
	return d
}

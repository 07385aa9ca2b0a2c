package probe

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"time"

	"cotenant/internal/bounded"
	"cotenant/internal/cuda"
	"cotenant/internal/cuda/query"
	"cotenant/internal/observe"
	"cotenant/internal/partition"
	"cotenant/internal/probe/evidence"
)

const clientTask = "probe-mps-client"

// clientRequest is what a client of an MPS daemon is asked.
type clientRequest struct {
	workRequest
	Name string `json:"name"`
	// Allocations are tried one after the other; each is freed again.
	Allocations []int64 `json:"allocations,omitempty"`
	// Green makes two Green Contexts of the smallest size.
	Green bool `json:"green"`
	// Barrier is a folder where the client says that it is ready, and waits for a file "go".
	Barrier string `json:"barrier,omitempty"`
	// Repeat runs the kernel so often, and the SMs seen are those of all.
	Repeat int `json:"repeat"`
}

// serverRetry is how long a client waits for a server that isn't ready: while it starts, the driver says so.
const serverRetry = 8 * time.Second

// mpsClient is the child's task.
func mpsClient(request []byte, out *bounded.Reporter) error {
	runtime.LockOSThread()
	var req clientRequest
	if err := json.Unmarshal(request, &req); err != nil {
		return fmt.Errorf("reading the request: %w", err)
	}
	endWithParent(req.Parent)
	w := &worker{req: req.workRequest, out: out, step: "begin"}
	var err error
	if w.journal, err = evidence.OpenJournal(req.Folder, "client"); err != nil {
		return err
	}
	detail := processDetail()
	detail["client"] = req.Name
	if err := w.journal.BeginWith("client", 0, detail); err != nil {
		return err
	}
	c := &evidence.MPSClient{Name: req.Name, Splits: []evidence.SplitTry{}, SMIDs: []int{}, Allocations: []evidence.Allocation{},
		MPS: observe.None[bool]("", 0, "not asked")}
	err = w.client(req, c)
	if err != nil {
		c.Failure, c.Code = w.step+": "+err.Error(), int32(cuda.CodeOf(err))
	}
	out.Part("client", c)
	w.journal.End("client", 0, err)
	return w.journal.Close()
}

// client does what was asked. Everything ends with the process; only what could disturb the next step is undone before.
func (w *worker) client(req clientRequest, c *evidence.MPSClient) (err error) {
	if w.d, err = cuda.Open(req.Names...); err != nil {
		return err
	}
	w.d.Calling = w.out.Calling
	if err := w.take("initialise", 0, func() error { return Initialise(w.d) }); err != nil {
		return err
	}
	if w.facts.Version, err = w.d.Version(); err != nil {
		return err
	}
	w.step = "find the device"
	if w.dev, w.facts.Visible, err = w.d.Find(req.GPUUUID); err != nil {
		return err
	}
	if c.SMs, err = w.d.Attribute(w.dev, cuda.AttributeSMCount); err != nil {
		return err
	}
	enabled, err := w.d.Attribute(w.dev, cuda.AttributeMPSEnabled)
	c.MPS = observed("cuDeviceGetAttribute(133)", enabled != 0, err)
	w.facts.SMs = c.SMs
	w.splits(c)
	var context cuda.Context
	if err := w.take("retain_primary_context", 0, func() (err error) {
		context, err = w.d.RetainPrimary(w.dev)
		return err
	}); err != nil {
		return err
	}
	if err := w.d.SetCurrent(context); err != nil {
		return err
	}
	if c.FreeBytes, c.TotalBytes, err = w.d.MemoryInfo(); err != nil {
		return err
	}
	if err := w.kernels(req, c); err != nil {
		return err
	}
	for _, n := range req.Allocations {
		w.step = "allocate"
		p, err := w.d.Alloc(n)
		code := cuda.CodeOf(err)
		c.Allocations = append(c.Allocations, evidence.Allocation{Bytes: n, Code: int32(code), Symbol: code.Name()})
		if err == nil {
			if err := w.d.Free(p); err != nil {
				return err
			}
		}
	}
	if req.Green {
		if err := w.greenInClient(c); err != nil {
			c.GreenFailure = err.Error()
		}
	}
	return w.take("release_primary_context", 0, func() error { return w.d.ReleasePrimary(w.dev) })
}

// Initialise initialises the driver and waits for an MPS server that is starting.
func Initialise(d *cuda.Driver) error {
	for until := time.Now().Add(serverRetry); ; time.Sleep(200 * time.Millisecond) {
		err := d.Init()
		if cuda.CodeOf(err) != query.MPSServerNotReady || time.Now().After(until) {
			return err
		}
	}
}

// splits asks for splits with and without coscheduling; they make nothing.
func (w *worker) splits(c *evidence.MPSClient) {
	whole, err := w.d.DeviceResource(w.dev)
	if err != nil {
		return // an older driver, which has MPS all the same
	}
	c.ResourceSMs = whole.SMs()
	major, _ := w.d.Attribute(w.dev, cuda.AttributeMajor)
	w.facts.Limits, w.facts.Told = partition.LimitsOf(&whole, w.facts.Version, major)
	for _, flags := range []cuda.SplitFlags{0, cuda.IgnoreCoscheduling} {
		for _, n := range []int{2, w.facts.Limits.Minimum, 2 * w.facts.Limits.Minimum} {
			parts, rest, err := w.d.SplitByCount(&whole, 1, n, flags)
			code := cuda.CodeOf(err)
			t := evidence.SplitTry{IgnoreCoscheduling: flags != 0, Requested: n, Code: int32(code), Symbol: code.Name()}
			if err == nil && len(parts) > 0 {
				t.Granted, t.Left = parts[0].SMs(), rest.SMs()
			}
			c.Splits = append(c.Splits, t)
		}
	}
}

// kernels runs the witness on a plain stream and collects the SMs.
func (w *worker) kernels(req clientRequest, c *evidence.MPSClient) error {
	run, err := w.newWitness(1, time.Duration(req.Request.SpinUS)*time.Microsecond)
	if err != nil {
		return err
	}
	s, err := w.d.CreateStream(0)
	if err != nil {
		return err
	}
	if err := barrier(req); err != nil {
		return err
	}
	seen := make(map[int]bool)
	c.Correct = true
	for i := range max(1, req.Repeat) {
		r := make([]evidence.Partition, 1)
		origin, err := run.all([]target{{s, c.SMs}}, r)
		if err != nil {
			return err
		}
		if i == 0 {
			c.BeganNS = origin + r[0].BeganNS
		}
		c.EndedNS = origin + r[0].EndedNS
		c.Correct = c.Correct && r[0].OutputCorrect
		for _, id := range r[0].SMIDs {
			seen[id] = true
		}
	}
	for id := range seen {
		c.SMIDs = append(c.SMIDs, id)
	}
	slices.Sort(c.SMIDs)
	if err := w.d.DestroyStream(s); err != nil {
		return err
	}
	if failed := run.free(); len(failed) > 0 {
		return errors.New(failed[0])
	}
	return nil
}

// barrier says that the client is ready and waits until it may go on.
func barrier(req clientRequest) error {
	if req.Barrier == "" {
		return nil
	}
	if err := os.WriteFile(filepath.Join(req.Barrier, "ready-"+req.Name), nil, 0o600); err != nil {
		return err
	}
	for until := time.Now().Add(serverRetry); ; time.Sleep(time.Millisecond) {
		if _, err := os.Stat(filepath.Join(req.Barrier, "go")); err == nil {
			return nil
		}
		if time.Now().After(until) {
			return errors.New("the other client was not ready in time")
		}
	}
}

// greenInClient makes two Green Contexts, with coscheduling where the driver splits so, and runs the witness in both.
func (w *worker) greenInClient(c *evidence.MPSClient) error {
	if missing := w.d.Missing(cuda.GreenSymbols...); len(missing) > 0 {
		return &cuda.MissingError{Symbol: missing[0]}
	}
	plan := partition.Plan{SMs: []int{w.facts.Limits.Minimum, w.facts.Limits.Minimum}}
	for _, s := range c.Splits {
		if s.Requested == w.facts.Limits.Minimum && !s.IgnoreCoscheduling && s.Code != 0 {
			plan.IgnoreCoscheduling = true
		}
	}
	run, err := w.newWitness(2, time.Duration(w.req.Request.SpinUS)*time.Microsecond)
	if err != nil {
		return err
	}
	set, err := partition.Create(w.d, w.dev, plan, w.facts.Limits, w)
	if err == nil {
		w.req.Request.Plan = plan
		var r evidence.Resources
		r, err = w.run(set, run)
		c.Green = &r
	}
	if errors.Is(err, cuda.ErrDeadline) {
		return err
	}
	if u := set.Close(); len(u.Failures) > 0 {
		err = errors.Join(err, errors.New(u.Failures[0]))
	}
	if failed := run.free(); len(failed) > 0 {
		err = errors.Join(err, errors.New(failed[0]))
	}
	return err
}

package probe

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"cotenant/internal/inspect"
	"cotenant/internal/partition"
	"cotenant/internal/probe/evidence"
)

// CreateOptions say which Green Contexts to make.
type CreateOptions struct {
	Common
	Plan partition.Plan
	// Cycles repeats creation and destruction so often, in the same process.
	Cycles int
	// Map also asks for every split that the GPU has.
	Map bool
	// Spin is how long each block of the witness kernel stays; 0 means DefaultSpin.
	Spin time.Duration
}

// Limits of CreateOptions.
const (
	DefaultSpin = 200 * time.Microsecond
	MaxSpin     = 60 * time.Second // a test of the watchdog: the kernel outlives the deadline and ends by itself
	MaxCycles   = 10_000
)

// Check refuses options that make no sense on any GPU.
func (o CreateOptions) Check() error {
	if err := o.Common.Check(); err != nil {
		return err
	}
	if len(o.Plan.SMs) == 0 && o.Plan.Groups == 0 {
		return fmt.Errorf("no partitions are asked for")
	}
	if o.Cycles < 0 || o.Cycles > MaxCycles {
		return fmt.Errorf("%d cycles: want at most %d", o.Cycles, MaxCycles)
	}
	if o.Spin < 0 || o.Spin > MaxSpin {
		return fmt.Errorf("a spin of %v: want at most %v", o.Spin, MaxSpin)
	}
	// A GPU of any size shows what makes no sense at all.
	_, err := o.Plan.Sizes(partition.Limits{Total: 1 << 20, Minimum: 1, Alignment: 1})
	return err
}

// Create evaluates the gates and, where it is confirmed and they say yes, makes the partitions, proves them, undoes them and proves
// that.
func Create(ctx context.Context, o CreateOptions) (Outcome, error) {
	o.defaults()
	if o.Spin == 0 {
		o.Spin = DefaultSpin
	}
	if err := o.Check(); err != nil {
		return Outcome{}, err
	}
	id, err := newRunID(time.Now())
	if err != nil {
		return Outcome{}, err
	}
	run, err := prepare(ctx, o.Common, id)
	if err != nil {
		return Outcome{}, err
	}
	run.plan.Probe = evidence.CreateOperation
	request := evidence.CreateRequest{Plan: o.Plan, Cycles: o.Cycles, Map: o.Map, SpinUS: o.Spin.Microseconds()}
	run.plan.Request = request
	run.plan.Gates = append(run.host.common(run.plan.Folder), run.host.planGate(o.Plan))
	run.plan.Steps, run.plan.Cleanup, run.plan.Rollback = createSteps(o), createCleanup, rollback
	run.plan.Environment = workerVariables(run.plan.GPUUUID, run.plan.RunID, "<private folder>")
	return run.execute(ctx, func(ctx context.Context, s *supervisor) any { return s.create(ctx, request) })
}

func createSteps(o CreateOptions) []string {
	steps := []string{"start a worker process that sees this GPU alone and no MPS daemon", "initialise CUDA, find the device by its UUID"}
	if o.Map {
		steps = append(steps, "ask for every split of the SMs, with and without coscheduling (makes nothing)")
	}
	steps = append(steps, "ask for more SMs than there are (makes nothing)", "retain the primary context, load kernels, allocate a few MB",
		"split the SMs, make the Green Contexts and a stream in each", "ask the driver what it made",
		fmt.Sprintf("run one kernel of blocks of %v in each, check its output, collect %%smid", o.Spin),
		"destroy streams, then Green Contexts")
	if o.Cycles > 0 {
		steps = append(steps, fmt.Sprintf("make and destroy the Green Contexts %d more times", o.Cycles))
	}
	return append(steps, "release the primary context, end the worker", "compare the GPU's memory and processes with before")
}

var createCleanup = []string{
	"the worker destroys streams, then Green Contexts, then releases the primary context: the API's verdict",
	"the worker's end gives back what the driver keeps; memory and processes are compared from outside by NVML: the memory's verdict",
	"the worker is killed at its deadline, where the GPU or its display is lost or an Xid is reported, and ends by itself where its supervisor ends",
	"a guard process removes the private folder where the supervisor is killed",
	"what carries this run's id is ours; nothing else is touched",
}

var rollback = []string{
	"nothing persistent is changed: no mode, no clock, no setting, no file outside the evidence folder and a private temporary folder",
	"if the probe hangs: cotenant probe cleanup --run FOLDER --confirm",
	"if the GPU needs a reset afterwards that is for its operator to decide: the probe never resets",
}

// planGate says whether the plan fits the GPU.
func (h *host) planGate(p partition.Plan) evidence.Gate {
	g := gate("plan_fits", "do the partitions fit the GPU?")
	if h.cuda == nil {
		if h.mig != nil {
			return yes(g, "the MIG device's SMs are known to the worker only")
		}
		return unknown(g, "libcuda doesn't enumerate the GPU")
	}
	r, ok := h.cuda.SM.Get()
	if !ok {
		return no(g, "no SM resource: "+h.cuda.SM.Reason)
	}
	l := partition.Limits{Total: int(r.Count), Minimum: int(r.MinPartition.Or(0)), Alignment: int(r.Alignment.Or(0))}
	if l.Minimum == 0 || l.Alignment == 0 {
		l.Minimum, l.Alignment = 1, 1 // not reported: the driver will decide
	}
	sizes, err := p.Sizes(l)
	if err != nil {
		return no(g, err.Error())
	}
	return yes(g, fmt.Sprintf("%v of %d SMs, minimum %d, alignment %d", sizes, l.Total, l.Minimum, l.Alignment))
}

// run is a probe from its options to its end.
type run struct {
	c       Common
	host    *host
	inspect *inspect.Report
	plan    evidence.Plan
	start   time.Time
	// noEngine says why no container engine can be asked; empty where one is asked or none is needed.
	noEngine string
}

// prepare inspects the host and begins the plan.
func prepare(ctx context.Context, c Common, id string) (*run, error) {
	now := time.Now()
	folder := c.Out
	if folder == "" {
		folder = defaultFolder(id)
	}
	facts := inspect.Gather(ctx, inspect.Options{Version: c.Program.Version, Root: c.Root, Env: c.Env})
	r := &run{c: c, host: newHost(c, facts), inspect: inspect.Judge(facts), start: now}
	r.host.role = c.bind(r.inspect)
	r.plan = evidence.Plan{SchemaVersion: evidence.SchemaVersion, Operation: evidence.PlanOperation, RunID: id,
		Started: now.UTC().Format(time.RFC3339), GPUUUID: c.GPUUUID, Folder: folder, DeadlineMS: c.Deadline.Milliseconds(),
		Gates: []evidence.Gate{}, Overrides: []string{}, Role: r.host.role}
	r.plan.ImageDigest.Reason = "no container"
	return r, nil
}

// execute decides: a preview, a refusal, or work.
func (r *run) execute(ctx context.Context, work func(context.Context, *supervisor) any) (Outcome, error) {
	r.plan.Go, r.plan.Overrides = evidence.Go(r.plan.Gates), overrides(r.plan.Gates)
	out := Outcome{Plan: r.plan}
	if interrupted(ctx) {
		out.Exit, out.Why = ExitInterrupted, "interrupted; nothing was made"
		return out, nil
	}
	if why := cmp.Or(r.host.blocked(), r.noEngine); why != "" {
		out.Exit, out.Why = ExitBlocked, "blocked by the environment: "+why
		return out, nil
	}
	if !r.c.Confirm {
		return out, nil
	}
	if i := slices.IndexFunc(r.plan.Gates, func(g evidence.Gate) bool { return g.ID == "artifact_folder" && !g.Passes() }); i >= 0 {
		out.Exit, out.Why = ExitNo, "nowhere to write evidence: "+r.plan.Gates[i].Detail
		return out, nil
	}
	out.Folder = r.plan.Folder
	s, err := r.supervise()
	if err != nil {
		return out, err
	}
	if !r.plan.Go {
		out.Exit, out.Why = ExitNo, "go/no-go says no: "+strings.Join(refusals(r.plan.Gates), "; ")
		return out, s.seal(evidence.Refused, ExitNo, true)
	}
	return s.carryOut(ctx, out, work)
}

func refusals(gates []evidence.Gate) []string {
	var why []string
	for _, g := range gates {
		if !g.Passes() {
			text := g.ID + ": " + g.Detail
			if g.Override != "" {
				text += " (" + g.Override + ")"
			}
			why = append(why, text)
		}
	}
	return why
}

// supervise makes the folder and writes what is known before anything is made.
func (r *run) supervise() (*supervisor, error) {
	if err := os.MkdirAll(r.plan.Folder, 0o755); err != nil {
		return nil, fmt.Errorf("making the evidence folder: %w", err)
	}
	folder, err := filepath.Abs(r.plan.Folder)
	if err != nil {
		return nil, err
	}
	if err := evidence.WriteDocument(folder, evidence.PlanFile, r.plan); err != nil {
		return nil, err
	}
	var text strings.Builder
	if err := r.inspect.WriteJSON(&text); err != nil {
		return nil, err
	}
	if err := evidence.Write(folder, evidence.InspectFile, []byte(text.String())); err != nil {
		return nil, err
	}
	s := &supervisor{run: r, folder: folder}
	if s.journal, err = evidence.OpenJournal(folder, "supervisor"); err != nil {
		return nil, err
	}
	detail := processDetail()
	detail["run"] = r.plan.RunID
	if err := s.journal.BeginWith("run", 0, detail); err != nil {
		return nil, err
	}
	return s, nil
}

// workerVariables are the environment of what works on the GPU, beyond its supervisor's.
func workerVariables(uuid, runID, private string) []string {
	return []string{
		"CUDA_VISIBLE_DEVICES=" + uuid, "CUDA_DEVICE_ORDER=PCI_BUS_ID",
		"CUDA_MPS_PIPE_DIRECTORY=" + filepath.Join(private, "mps"), // nobody is there
		"CUDA_CACHE_DISABLE=1", // the driver's compiler leaves no file
		"CUDA_LOG_FILE=stderr", // the driver's own words on a refusal, from CUDA 12.9 on
		RunVariable + "=" + runID,
	}
}

func versionsOf(h *host) evidence.Versions {
	return evidence.Versions{DriverRelease: release(h.facts.NVML), CUDADriver: versionText(h.facts.CUDA.DriverVersion),
		CUDARuntime: versionText(h.facts.Runtime.Version), MPSControl: h.facts.MPS.Version}
}

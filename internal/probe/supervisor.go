package probe

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"cotenant/internal/bounded"
	"cotenant/internal/cuda/query"
	"cotenant/internal/kernels"
	"cotenant/internal/observe"
	"cotenant/internal/probe/evidence"
)

// supervisor runs one confirmed probe.
type supervisor struct {
	*run
	folder  string // absolute
	private string // of this run alone
	journal *evidence.Journal
	watch   *watch
	worker  *evidence.Process
	noise   strings.Builder // what children printed

	stopGuard func()
	verdict   verdict
}

// verdict is how a run ended.
type verdict struct {
	outcome string
	exit    int
	why     string
	clean   bool
}

// carryOut does the work under guard and writes what came of it.
func (s *supervisor) carryOut(ctx context.Context, out Outcome, work func(context.Context, *supervisor) any) (Outcome, error) {
	// The guard is there before anything that it would have to remove.
	if err := s.startGuard(); err != nil {
		return out, errors.Join(err, s.seal(evidence.Failed, ExitFailed, false))
	}
	private, err := privateFolder(s.journal, s.plan.RunID)
	if err == nil {
		s.private = private
		err = os.Mkdir(filepath.Join(private, pipeNames[0]), 0o700)
	}
	if err != nil {
		s.tidy()
		return out, errors.Join(err, s.seal(evidence.Failed, ExitFailed, false))
	}
	s.watch = newWatch(s.c)
	defer s.watch.close()
	if before := used(s.watch.Before); !before.OK() {
		// The gate could read it a moment ago: without it nothing that is made could be proven gone.
		s.tidy()
		out.Exit, out.Why = ExitBlocked, "the GPU's memory can't be read any more: "+before.Reason
		return out, s.seal(evidence.Failed, ExitBlocked, true)
	}
	out.Result = work(ctx, s)
	out.Exit, out.Why = s.verdict.exit, s.verdict.why
	err = evidence.WriteDocument(s.folder, evidence.ResultFile, out.Result)
	err = errors.Join(err, evidence.Write(s.folder, evidence.StderrFile, []byte(s.noise.String())))
	return out, errors.Join(err, s.seal(s.verdict.outcome, s.verdict.exit, s.verdict.clean))
}

// guardStart is how long the guard may take until it is seen.
const guardStart = 10 * time.Second

// startGuard starts the process that cleans up where this one is killed, and returns when it runs.
func (s *supervisor) startGuard() error {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	var res bounded.ChildResult
	go func() {
		defer close(done)
		env := append(bounded.WithoutVariables(s.c.Env, RunVariable), guardVariable+"="+s.plan.RunID)
		// A child lives no longer than MaxLong; a container may: then the next one takes over.
		for res.Outcome == "" || res.Outcome == bounded.TimedOut && ctx.Err() == nil {
			res = bounded.LongChild(ctx, guardTask, guardRequest{s.plan.RunID, s.folder, os.Getpid()}, env, bounded.MaxLong)
		}
	}()
	s.stopGuard = func() { cancel(); <-done }
	for until := time.Now().Add(guardStart); len(carrying(guardVariable+"="+s.plan.RunID)) == 0; time.Sleep(2 * time.Millisecond) {
		select {
		case <-done:
			reason, _ := res.Fault("the guard")
			return errors.New("the guard did not start: " + reason)
		default:
		}
		if time.Now().After(until) {
			s.stopGuard()
			return errors.New("the guard did not start in time")
		}
	}
	return nil
}

// tidy ends whatever is left of the run and says what it could not end. The guard goes last.
func (s *supervisor) tidy() Swept {
	entries, _, err := evidence.ReadJournal(s.folder)
	if err != nil {
		return Swept{Left: []string{"the journal can't be read: " + err.Error()}}
	}
	var swept Swept
	err = s.journal.Step("sweep", 0, nil, func() error {
		swept = newSweeper(s.plan.RunID, entries, s.c.Env).sweep(context.Background(), false)
		if len(swept.Left) > 0 {
			return errors.New(strings.Join(swept.Left, "; "))
		}
		return nil
	})
	if err != nil && len(swept.Left) == 0 {
		swept.Left = []string{err.Error()}
	}
	s.stopGuard()
	return swept
}

// child runs a worker under watch: it is killed at the deadline, where ctx ends, and where the GPU is lost.
func (s *supervisor) child(ctx context.Context, task string, request any, env []string) (bounded.ChildResult, string) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	watched, stop := context.WithCancel(ctx)
	done := make(chan struct{})
	lost := ""
	go func() {
		defer close(done)
		s.watch.during(watched, func(why string) { lost = why; cancel() })
	}()
	res := bounded.Child(ctx, task, request, env, s.c.Deadline)
	stop()
	<-done
	s.worker = &evidence.Process{Outcome: string(res.Outcome), ExitCode: res.ExitCode, Signal: res.Signal, WallUS: res.WallUS}
	if res.Noise != "" {
		fmt.Fprintf(&s.noise, "%s\n", res.Noise)
	}
	return res, lost
}

// outcomeOf says in a word how a child ended.
func outcomeOf(ctx context.Context, res bounded.ChildResult, lost string) string {
	switch {
	case lost != "":
		return evidence.HealthLost
	case ctx.Err() != nil:
		return evidence.Interrupted
	case res.Outcome == bounded.Abandoned:
		return evidence.Abandoned
	case res.Outcome == bounded.TimedOut:
		return evidence.Deadline
	case !res.Done && res.Failure == "":
		return evidence.Crashed
	case res.Failure != "":
		return evidence.Failed
	}
	return evidence.Completed
}

// create runs the worker of Create and makes its result.
func (s *supervisor) create(ctx context.Context, request evidence.CreateRequest) any {
	names := query.Candidates(s.c.Root, s.c.Env)
	env := append(workerEnvironment(s.c.Env), workerVariables(s.plan.GPUUUID, s.plan.RunID, s.private)...)
	req := workRequest{Run: s.plan.RunID, Parent: os.Getpid(), Folder: s.folder, Names: names, GPUUUID: s.plan.GPUUUID, Request: request, Exact: true,
		KernelMS: min(5*time.Second+time.Duration(request.SpinUS)*100*time.Microsecond, s.c.Deadline).Milliseconds()}
	r := s.newResult(request)
	var res bounded.ChildResult
	var lost string
	err := s.journal.Step("worker", 0, nil, func() error {
		res, lost = s.child(ctx, createTask, req, env)
		if reason, bad := res.Fault("the worker"); bad {
			return errors.New(reason)
		}
		return nil
	})
	r.Outcome = outcomeOf(ctx, res, lost)
	if err != nil {
		r.Failure = err.Error()
	}
	f := r.assemble(res.Parts)
	if r.Outcome == evidence.Completed && f != nil {
		r.Outcome = evidence.Failed
	}
	r.MutatedState = s.retained()
	if !res.Done && r.Cleanup.API.Verdict == "nothing_made" && r.MutatedState {
		r.Cleanup.API.Verdict = "by_process_end"
	}
	r.Cleanup.Process.Ended = res.Outcome != bounded.Abandoned
	r.Cleanup.Memory.Outside, r.Cleanup.Process.Listed = s.settle()
	r.Health = s.watch.health
	r.Cleanup.Left = s.tidy().Left
	r.Judge()
	s.verdict = verdict{outcome: r.Outcome, clean: r.CleanupComplete}
	s.verdict.exit, s.verdict.why = exitOf(r.Outcome, r.CleanupComplete, r.MutatedState, f != nil && f.Blocked, r.Checks)
	return &r.CreateResult
}

func (s *supervisor) settle() (evidence.Outside, observe.Value[bool]) {
	m, g := s.watch.settle(s.host.gpu != nil && s.host.attributed())
	return m, g.Listed
}

// workerEnvironment leaves out what would change which devices and daemons a worker sees.
func workerEnvironment(env []string) []string {
	kept := env[:0:0]
	for _, e := range env {
		if !strings.HasPrefix(e, "CUDA_") {
			kept = append(kept, e)
		}
	}
	return bounded.WithoutVariables(kept, RunVariable)
}

// exitOf is a probe's exit code and why it isn't 0.
func exitOf(outcome string, clean, mutated, blocked bool, checks []evidence.Check) (int, string) {
	why := strings.Join(evidence.FailedChecks(checks), "; ")
	switch {
	case mutated && !clean:
		return ExitFailed, "cleanup is not proven: " + why
	case outcome == evidence.Interrupted:
		return ExitInterrupted, "interrupted; cleanup is proven"
	case blocked:
		return ExitBlocked, "blocked by the environment: " + why
	case !evidence.Passed(checks):
		return ExitNo, why
	}
	return ExitDone, ""
}

// retained reports whether the journal says that the worker was about to make something.
func (s *supervisor) retained() bool {
	entries, _, err := evidence.ReadJournal(s.folder)
	for _, e := range entries {
		if e.By == "worker" && e.Step == "retain_primary_context" {
			return true
		}
	}
	return err != nil
}

// created is a result with what a worker sends besides.
type created struct {
	evidence.CreateResult
}

func (s *supervisor) newResult(request evidence.CreateRequest) *created {
	v := versionsOf(s.host)
	r := &created{evidence.CreateResult{SchemaVersion: evidence.SchemaVersion, Operation: evidence.CreateOperation, RunID: s.plan.RunID,
		GPUUUID: s.plan.GPUUUID, DriverVersion: v.CUDADriver.Or(""), DriverRelease: v.DriverRelease.Or(""), Runtime: v.CUDARuntime.Value,
		RuntimeReason: v.CUDARuntime.Reason, Request: request}}
	if r.Runtime == nil && r.RuntimeReason == "" {
		r.RuntimeReason = s.host.facts.Runtime.Reason
	}
	r.Resources.Partitions = []evidence.Partition{}
	r.Cleanup.API = evidence.APICleanup{Verdict: "nothing_made", Failures: []string{},
		PrimaryGone: observe.None[bool]("cuDevicePrimaryCtxGetState", 0, "the worker did not get that far")}
	r.Cleanup.Memory.InProcess.Verdict = evidence.Unknown
	absent := evidence.Feature{Status: observe.Unknown, Reason: "not tried"}
	r.Features = evidence.Features{Heterogeneous: absent, Workqueues: absent, StreamResource: absent}
	return r
}

// assemble puts what the worker sent into the result.
func (r *created) assemble(parts []bounded.Part) *failure {
	var f *failure
	for _, p := range parts {
		switch p.Kind {
		case "device":
			var d deviceFacts
			if json.Unmarshal(p.Value, &d) == nil {
				r.GPUName, r.Visible = d.Name, d.Visible
				r.Resources.TotalSMs, r.Resources.Minimum, r.Resources.Alignment, r.Resources.LimitsReported = d.Limits.Total, d.Limits.Minimum, d.Limits.Alignment, d.Told
			}
		case "map":
			_ = json.Unmarshal(p.Value, &r.Map)
		case "too_much":
			_ = json.Unmarshal(p.Value, &r.TooMuch)
		case "witness":
			_ = json.Unmarshal(p.Value, &r.Witness)
		case "resources":
			r.Resources = evidence.Resources{}
			_ = json.Unmarshal(p.Value, &r.Resources)
		case "features":
			_ = json.Unmarshal(p.Value, &r.Features)
		case "cycles":
			_ = json.Unmarshal(p.Value, &r.Cycles)
		case "undone":
			var u undone
			if json.Unmarshal(p.Value, &u) == nil {
				r.Cleanup.API, r.Cleanup.Memory.InProcess = u.APICleanup, u.Memory
			}
		case "failure":
			f = new(failure)
			_ = json.Unmarshal(p.Value, f)
		}
	}
	if f != nil {
		r.Failure, r.FailureCode = f.Step+": "+f.Text, f.Code
		if f.Stuck {
			r.Cleanup.API.Verdict = "by_process_end"
		}
	}
	return f
}

// seal ends the journal and writes the manifest.
func (s *supervisor) seal(outcome string, exit int, clean bool) error {
	s.journal.End("run", 0, nil)
	err := s.journal.Close()
	m := evidence.Manifest{Probe: s.plan.Probe, RunID: s.plan.RunID, Started: s.plan.Started, Ended: time.Now().UTC().Format(time.RFC3339),
		Outcome: outcome, ExitCode: exit, Worker: s.worker, ImageDigest: s.plan.ImageDigest, Versions: versionsOf(s.host), GPUUUID: s.plan.GPUUUID,
		GPULabel: evidence.Label(s.plan.GPUUUID), CleanupComplete: clean, Program: program(s.c.Program), Role: s.plan.Role}
	if k, kerr := kernels.ReadManifest(); kerr == nil {
		for _, info := range k.Modules {
			if slices.Contains(s.modules(), info.Name) {
				m.Kernels = append(m.Kernels, evidence.Kernels{Name: info.Name, SHA256: info.SHA256, Compiler: k.Compiler})
			}
		}
	}
	return errors.Join(err, evidence.Seal(s.folder, m))
}

// modules are the names of the PTX modules that the run's workers load; a measurement's are named where it is recorded.
func (s *supervisor) modules() []string {
	if s.plan.Probe == evidence.MeasureOperation {
		return nil
	}
	return []string{kernels.ProbeModule}
}

func program(p Program) evidence.Program {
	e := evidence.Program{Version: p.Version, Revision: p.Revision, OS: runtime.GOOS, Arch: runtime.GOARCH}
	path := "/proc/self/exe" // also where the file was replaced since
	if runtime.GOOS != "linux" {
		path, _ = os.Executable()
	}
	f, err := os.Open(path)
	if err != nil {
		e.SHA256 = observe.None[string]("", 0, observe.Clip(err.Error()))
		return e
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		e.SHA256 = observe.None[string]("", 0, observe.Clip(err.Error()))
		return e
	}
	e.SHA256 = observe.Got("", hex.EncodeToString(h.Sum(nil)))
	return e
}

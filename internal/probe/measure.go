package probe

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"cotenant/internal/bounded"
	"cotenant/internal/cuda/query"
	"cotenant/internal/inspect"
	"cotenant/internal/mps"
	mpsquery "cotenant/internal/mps/query"
	"cotenant/internal/nvml"
	"cotenant/internal/observe"
	"cotenant/internal/probe/evidence"
)

// Measurement is work of another package that is done under a probe's guard: gates before it, a journal and a watch during it, and
// afterwards proof that nothing is left.
type Measurement struct {
	Steps []string
	// Life bounds the work, at most MaxLife; what still runs then is ended.
	Life time.Duration
	// Prepare is called with the inspected host before anything else, also for a preview, and returns what the plan and the result say
	// was asked. Its error ends the command.
	Prepare func(*inspect.Report) (request any, err error)
	// Work measures. Its error is why it didn't go on, in words for the evidence.
	Work func(context.Context, *Session) error
}

// MaxLife is the longest that a Measurement may take.
const MaxLife = 10 * time.Minute

// Session is what Work works in. Its methods may be called by several goroutines.
type Session struct {
	s    *supervisor
	life time.Time

	mu        sync.Mutex
	processes []evidence.Worker
	daemons   []*mps.Daemon
	static    *mps.Daemon // one of daemons
	parts     []string    // ids of its partitions
	running   sync.WaitGroup
}

// Measure evaluates the gates and, where it is confirmed and they say yes, does the work.
func Measure(ctx context.Context, c Common, m Measurement) (Outcome, error) {
	c.defaults()
	if err := c.Check(); err != nil {
		return Outcome{}, err
	}
	if m.Life <= 0 || m.Life > MaxLife {
		return Outcome{}, fmt.Errorf("a life of %v: want more than 0 and at most %v", m.Life, MaxLife)
	}
	id, err := newRunID(time.Now())
	if err != nil {
		return Outcome{}, err
	}
	run, err := prepare(ctx, c, id)
	if err != nil {
		return Outcome{}, err
	}
	request, err := m.Prepare(run.inspect)
	if err != nil {
		return Outcome{}, err
	}
	run.plan.Probe, run.plan.Request, run.plan.DeadlineMS = evidence.MeasureOperation, request, m.Life.Milliseconds()
	run.plan.Gates = run.host.common(run.plan.Folder)
	for i := range run.plan.Gates {
		if run.plan.Gates[i].ID == "driver_and_symbols" {
			run.plan.Gates[i] = run.host.driverGate()
		}
	}
	run.plan.Steps, run.plan.Rollback = m.Steps, rollback
	run.plan.Cleanup = []string{
		"workers end by themselves when they are told to; their end gives everything on the GPU back",
		"an MPS daemon of our own is asked to quit; what carries this run's id and is still there is terminated, then killed",
		"a guard process does so where the supervisor is killed; memory and processes are compared from outside by NVML",
	}
	run.plan.Environment = workerVariables(run.plan.GPUUUID, run.plan.RunID, "<private folder>")
	return run.execute(ctx, func(ctx context.Context, s *supervisor) any { return s.measure(ctx, m) })
}

// floorPTX is the CUDA version of the first driver that knows the PTX of what is measured (7.8).
const floorPTX = 11080

// driverGate asks for no mechanism: which of them the host has is for the plan.
func (h *host) driverGate() evidence.Gate {
	g := gate("driver_and_symbols", "does the driver have what is used?")
	v, ok := h.facts.CUDA.DriverVersion.Get()
	switch {
	case !ok:
		return unknown(g, h.facts.CUDA.DriverVersion.Reason)
	case v < floorPTX:
		return no(g, fmt.Sprintf("CUDA %s, %s is needed", query.FormatVersion(v), query.FormatVersion(floorPTX)))
	}
	return yes(g, "CUDA "+query.FormatVersion(v))
}

func (s *supervisor) measure(ctx context.Context, m Measurement) any {
	r := &evidence.MeasureResult{SchemaVersion: evidence.SchemaVersion, Operation: evidence.MeasureOperation, RunID: s.plan.RunID, GPUUUID: s.plan.GPUUUID,
		Request: s.plan.Request, Outcome: evidence.Completed, MutatedState: true}
	session := &Session{s: s, life: time.Now().Add(m.Life)}
	var werr error
	lost := s.watched(ctx, m.Life, func(ctx context.Context) { werr = m.Work(ctx, session) })
	session.end()
	switch {
	case lost != "":
		r.Outcome, r.Failure = evidence.HealthLost, lost
	case ctx.Err() != nil:
		r.Outcome, r.Failure = evidence.Interrupted, "interrupted"
	case werr != nil:
		r.Outcome, r.Failure = evidence.Failed, observe.Clip(werr.Error())
	}
	r.Processes, r.Daemons = session.processes, len(session.daemons)
	if r.Processes == nil {
		r.Processes = []evidence.Worker{}
	}
	r.Cleanup.Left = s.tidy().Left
	r.Cleanup.Process.Ended = len(r.Cleanup.Left) == 0
	r.Cleanup.API = evidence.APICleanup{Verdict: "by_process_end", Failures: []string{}, PrimaryGone: observe.None[bool]("", 0, "each worker's own")}
	r.Cleanup.Memory.InProcess.Verdict = evidence.Unknown
	r.Cleanup.Memory.Outside, r.Cleanup.Process.Listed = s.settle()
	r.Health = s.watch.health
	r.Judge()
	s.verdict = verdict{outcome: r.Outcome, clean: r.CleanupComplete}
	s.verdict.exit, s.verdict.why = exitOf(r.Outcome, r.CleanupComplete, r.MutatedState, false, r.Checks)
	return r
}

// end waits for workers, whose context has ended, and quits daemons.
func (m *Session) end() {
	m.running.Wait()
	for i, id := range m.parts {
		_ = m.s.journal.Step("remove_mps_partition", i, nil, func() error {
			m.static.RemovePartition(context.Background(), m.s.plan.GPUUUID, id)
			return nil
		})
	}
	for _, d := range m.daemons {
		_ = m.s.journal.Step("quit_mps_daemon", 0, nil, func() error {
			_, err := d.Quit(context.Background(), quitTimeout)
			return err
		})
		d.Kill()
	}
}

// RunID is the guard's, Private a folder of the session alone, which goes with it.
func (m *Session) RunID() string   { return m.s.plan.RunID }
func (m *Session) Private() string { return m.s.private }

// Libraries are the names under which to look for libcuda.
func (m *Session) Libraries() []string { return query.Candidates(m.s.c.Root, m.s.c.Env) }

// Versions are the driver's release and the CUDA version that it supports; "unknown" where nothing tells.
func (m *Session) Versions() (release, cuda string) {
	v := versionsOf(m.s.host)
	return v.DriverRelease.Or("unknown"), v.CUDADriver.Or("unknown")
}

// NVML samples the GPU; nil where NVML isn't there.
func (m *Session) NVML() *nvml.Session { return m.s.watch.session }

// Left is how long the work may still take.
func (m *Session) Left() time.Duration { return time.Until(m.life) }

// Start runs a child task in a process of its own until ctx ends or the session's life is over, and calls ended when it has ended. Its
// environment shows it this GPU alone and, where pipe isn't empty, the MPS daemon of that folder; variables are added.
func (m *Session) Start(ctx context.Context, name, task string, request any, pipe string, variables []string, ended func(failure string)) {
	env := append(workerEnvironment(m.s.c.Env), workerVariables(m.s.plan.GPUUUID, m.s.plan.RunID, m.s.private)...)
	if pipe != "" {
		env = append(bounded.WithoutVariables(env, "CUDA_MPS_PIPE_DIRECTORY"), "CUDA_MPS_PIPE_DIRECTORY="+pipe)
	}
	env = append(env, variables...)
	m.running.Go(func() {
		res := bounded.LongChild(ctx, task, request, env, m.Left())
		w := evidence.Worker{Name: name, Process: evidence.Process{Outcome: string(res.Outcome), ExitCode: res.ExitCode, Signal: res.Signal, WallUS: res.WallUS}}
		if reason, bad := res.Fault(name); bad {
			w.Failure = reason
		}
		m.mu.Lock()
		m.processes = append(m.processes, w)
		if res.Noise != "" {
			fmt.Fprintf(&m.s.noise, "%s: %s\n", name, res.Noise)
		}
		m.mu.Unlock()
		ended(w.Failure)
	})
}

// Worker is what a task that Start runs needs to know of its run.
type Worker struct {
	Parent int    `json:"parent"` // pid of the supervisor
	Folder string `json:"folder"` // of the evidence
	Name   string `json:"name"`
}

// Worker returns what to put in a request.
func (m *Session) Worker(name string) Worker { return Worker{os.Getpid(), m.s.folder, name} }

// Begin makes the task's process end with its supervisor and opens the run's journal, in which it says that it began. Close ends it.
func (w Worker) Begin() (*evidence.Journal, error) {
	endWithParent(w.Parent)
	j, err := evidence.OpenJournal(w.Folder, "worker")
	if err != nil {
		return nil, err
	}
	detail := processDetail()
	detail["worker"] = w.Name
	if err := j.BeginWith("worker", 0, detail); err != nil {
		return nil, errors.Join(err, j.Close())
	}
	return j, nil
}

// ErrNoMPS says that the host has no MPS control program.
var ErrNoMPS = errors.New("nvidia-cuda-mps-control is not on PATH or in the usual folders")

// StartMPS starts an MPS daemon of our own in the private folder and returns its pipe folder. One of either kind can be started.
func (m *Session) StartMPS(ctx context.Context, static bool) (pipe string, err error) {
	control := mpsquery.FindControl(m.s.c.Root, m.s.c.Env)
	if control == "" {
		return "", ErrNoMPS
	}
	pipe = filepath.Join(m.s.private, pipeNames[2])
	if static {
		pipe = filepath.Join(m.s.private, pipeNames[1])
	}
	err = m.s.journal.Step("start_mps_daemon", 0, map[string]string{"pipe": pipe, "static": strconv.FormatBool(static)}, func() error {
		if err := os.Mkdir(pipe, 0o700); err != nil {
			return err
		}
		env := append(workerEnvironment(m.s.c.Env), "CUDA_VISIBLE_DEVICES="+m.s.plan.GPUUUID, RunVariable+"="+m.s.plan.RunID)
		d, err := mps.Start(ctx, mps.Options{Control: control, Pipe: pipe, Log: pipe + "-log", Env: env, Static: static})
		if err != nil {
			return err
		}
		m.mu.Lock()
		m.daemons = append(m.daemons, d)
		m.mu.Unlock()
		if static {
			m.static = d
		}
		return nil
	})
	return pipe, err
}

// SplitMPS makes two static partitions of the daemon that StartMPS started for them: of so many chunks, and of all others. It returns
// what a client's CUDA_MPS_SM_PARTITION must be to be in either. They are removed before the daemon quits.
func (m *Session) SplitMPS(ctx context.Context, chunks int) (parts [2]string, err error) {
	if m.static == nil {
		return parts, errors.New("no MPS daemon with static partitions was started")
	}
	rows, answer := m.static.Partitions(ctx)
	free := 0
	for _, r := range rows {
		free = max(free, r.FreeChunks.Or(0))
	}
	if chunks < 1 || chunks >= free {
		return parts, fmt.Errorf("%d chunks of %d leave nothing for a neighbour: %s", chunks, free, observe.Clip(answer.Text))
	}
	for i, n := range []int{chunks, free - chunks} {
		err := m.s.journal.Step("add_mps_partition", i, nil, func() error {
			id, said := m.static.AddPartition(ctx, m.s.plan.GPUUUID, n)
			if id == "" {
				return errors.New("the daemon made no partition: " + observe.Clip(said.Text))
			}
			m.parts = append(m.parts, id)
			parts[i] = m.s.plan.GPUUUID + "/" + id
			return nil
		})
		if err != nil {
			return parts, err
		}
	}
	return parts, nil
}

// SawServers records the servers that the daemon has started by now, so that a cleanup finds them although they may not carry the run's
// id.
func (m *Session) SawServers(ctx context.Context) {
	for _, d := range m.daemons {
		for _, pid := range d.Servers(ctx) {
			_ = m.s.journal.Record(evidence.Entry{Step: "saw_mps_server", Phase: evidence.Note,
				Detail: map[string]string{"pid": strconv.Itoa(pid), "start_ticks": startTicks(pid)}}, true)
		}
	}
}

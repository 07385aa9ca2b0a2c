package probe

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"cotenant/internal/bounded"
	"cotenant/internal/cuda/query"
	"cotenant/internal/mps"
	mpsquery "cotenant/internal/mps/query"
	"cotenant/internal/observe"
	"cotenant/internal/probe/evidence"
)

// MPSOptions say what to try.
type MPSOptions struct {
	Common
	// NoStatic leaves static partitioning out also where the control binary has it.
	NoStatic bool
}

// What the clients are given. A context's own memory counts towards a client's limit (513 MiB on an H200 with driver 580), so the limit
// leaves room for it: of the two allocations, in bytes, the first must fit beside a context, the second exceeds the limit.
const (
	sharePercent  = 25
	limitedMemory = 4 << 30
	fitsLimit     = 1 << 30
	exceedsLimit  = 6 << 30
	clientTimeout = 15 * time.Second
	quitTimeout   = 10 * time.Second
	// DefaultMPSDeadline is longer than that of contexts: a server and each of its clients take seconds to start.
	DefaultMPSDeadline = 50 * time.Second
)

// MPS evaluates the gates and, where it is confirmed and they say yes, starts an MPS daemon of its own, runs clients in it, ends it
// and proves that nothing is left.
func MPS(ctx context.Context, o MPSOptions) (Outcome, error) {
	if o.Deadline == 0 {
		o.Deadline = DefaultMPSDeadline
	}
	o.defaults()
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
	run.plan.Probe = evidence.MPSOperation
	request := evidence.MPSRequest{Percent: sharePercent, MemoryLimit: limitedMemory, MemoryFits: fitsLimit, MemoryExceeds: exceedsLimit, Static: !o.NoStatic}
	run.plan.Request = request
	control := mpsquery.FindControl(o.Root, o.Env)
	gates := run.host.common(run.plan.Folder)
	for i := range gates {
		if gates[i].ID == "driver_and_symbols" {
			gates[i] = run.host.controlGate(control)
		}
	}
	run.plan.Gates = gates
	run.plan.Steps, run.plan.Cleanup, run.plan.Rollback = mpsSteps, mpsCleanup, rollback
	run.plan.Environment = []string{"CUDA_VISIBLE_DEVICES=" + o.GPUUUID, "CUDA_MPS_PIPE_DIRECTORY=<private folder>/mps",
		"CUDA_MPS_LOG_DIRECTORY=<private folder>/log", RunVariable + "=" + run.plan.RunID}
	return run.execute(ctx, func(ctx context.Context, s *supervisor) any { return s.mps(ctx, request, control) })
}

var mpsSteps = []string{
	"start an MPS control daemon of our own in the foreground, in a private pipe folder, for this GPU alone",
	"run a client with the whole GPU: its SM count, the SMs that it runs on, Green Contexts in it, allocations of 1 and 6 GiB",
	"run a client with 25 %: the same, and what splits it gets",
	"set 25 % for all clients, run one that asks for 100 %, set it back",
	"run a client with a memory limit of 4 GiB that allocates 1 GiB, then 6 GiB",
	"set and read back a lower client priority, run a client with it, set it back",
	"run two clients with 25 % at once",
	"quit, and look that daemon, servers, folder and device memory are gone",
	"where the control binary is 13010 or later: the same with static partitions: add two, list, run a client in each, remove",
}

var mpsCleanup = []string{
	"the daemon is asked to quit, which ends its servers; what carries this run's id and is still there is terminated, then killed",
	"the kernel terminates the daemon where its supervisor ends; clients end by themselves; a guard process does the rest",
	"the private folder goes; daemons that were there before are compared with before",
	"memory and processes are compared from outside by NVML",
}

func (h *host) controlGate(control string) evidence.Gate {
	g := gate("mps_control", "is there an MPS control program that tells its version?")
	v, ok := h.facts.MPS.Version.Get()
	switch {
	case control == "":
		return no(g, "nvidia-cuda-mps-control is not on PATH or in the usual folders")
	case !ok:
		return no(g, h.facts.MPS.Version.Reason)
	}
	return yes(g, fmt.Sprintf("binary version %d", v))
}

// mpsRun is the work of one MPS probe.
type mpsRun struct {
	s       *supervisor
	r       *evidence.MPSResult
	control string
	names   []string // of libcuda
	pipe    string   // of the present daemon
	mutex   sync.Mutex
}

// mps does the work and makes the result.
func (s *supervisor) mps(ctx context.Context, request evidence.MPSRequest, control string) any {
	v := versionsOf(s.host)
	r := &evidence.MPSResult{SchemaVersion: evidence.SchemaVersion, Operation: evidence.MPSOperation, RunID: s.plan.RunID, GPUUUID: s.plan.GPUUUID,
		DriverVersion: v.CUDADriver.Or(""), DriverRelease: v.DriverRelease.Or(""), ControlVersion: v.MPSControl, Request: request, Outcome: evidence.Completed,
		Classic: newMode("not tried"), Static: newMode("not tried")}
	if d := s.host.cuda; d != nil {
		r.TotalSMs = int(d.SMCount.Or(0))
	}
	r.Others.Before = others(s.c.Root, s.plan.RunID)
	m := &mpsRun{s: s, r: r, control: control, names: query.Candidates(s.c.Root, s.c.Env)}
	lost := s.watched(ctx, s.c.Deadline, m.modes)
	switch {
	case lost != "":
		r.Outcome, r.Failure = evidence.HealthLost, lost
	case ctx.Err() != nil:
		r.Outcome, r.Failure = evidence.Interrupted, "interrupted"
	}
	swept := s.tidy()
	r.Cleanup.Left = swept.Left
	r.Cleanup.Process.Ended = len(swept.Left) == 0
	r.Cleanup.API = evidence.APICleanup{Verdict: "by_process_end", Failures: []string{}, PrimaryGone: observe.None[bool]("", 0, "each client's own")}
	if r.Classic.QuitClean && (!r.Static.Started || r.Static.QuitClean) {
		r.Cleanup.API.Verdict = "complete"
	}
	r.Cleanup.Memory.InProcess.Verdict = evidence.Unknown
	r.Cleanup.Memory.Outside, r.Cleanup.Process.Listed = s.settle()
	r.Others.After = others(s.c.Root, s.plan.RunID)
	r.Health = s.watch.health
	r.Judge()
	s.verdict = verdict{outcome: r.Outcome, clean: r.CleanupComplete}
	s.verdict.exit, s.verdict.why = exitOf(r.Outcome, r.CleanupComplete, r.MutatedState, false, r.Checks)
	return r
}

func newMode(why string) evidence.MPSMode {
	return evidence.MPSMode{Status: observe.Unknown, Reason: why, Exchanges: []evidence.Exchange{}, Clients: []evidence.MPSClient{}, Partitions: []evidence.MPSPart{}}
}

// others are the pids of MPS daemons and servers that aren't this run's.
func others(root, runID string) []int {
	daemons, servers := mpsquery.Scan(root)
	mine := ours(runID)
	pids := []int{}
	for _, d := range append(daemons, servers...) {
		if root != "" || !slices.Contains(mine, d.PID) {
			pids = append(pids, d.PID)
		}
	}
	slices.Sort(pids)
	return pids
}

// watched runs f until it ends, the deadline passes or the GPU is lost, which it returns.
func (s *supervisor) watched(ctx context.Context, deadline time.Duration, f func(context.Context)) (lost string) {
	ctx, cancel := context.WithTimeout(ctx, deadline)
	defer cancel()
	watched, stop := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.watch.during(watched, func(why string) { lost = why; cancel() })
	}()
	f(ctx)
	stop()
	<-done
	return lost
}

// modes tries classic MPS, then static partitions where there can be any.
func (m *mpsRun) modes(ctx context.Context) {
	m.mode(ctx, &m.r.Classic, false, m.classic)
	version := m.r.ControlVersion.Or(0)
	switch {
	case !m.r.Request.Static:
		m.r.Static.Reason = "not asked"
	case version < query.FloorMPSStaticControl:
		m.r.Static.Status = observe.BlockedByRuntimeVersion
		m.r.Static.Reason = fmt.Sprintf("the control binary is %d, %d is needed", version, query.FloorMPSStaticControl)
	case ctx.Err() == nil:
		m.mode(ctx, &m.r.Static, true, m.static)
	}
}

// mode starts a daemon, does its work, and ends it.
func (m *mpsRun) mode(ctx context.Context, e *evidence.MPSMode, static bool, work func(context.Context, *mps.Daemon) error) {
	m.pipe = filepath.Join(m.s.private, pipeNames[0])
	if static {
		m.pipe = filepath.Join(m.s.private, pipeNames[1])
	}
	pipe, log := m.pipe, m.pipe+"-log"
	start := time.Now()
	var d *mps.Daemon
	err := m.s.journal.Step("start_mps_daemon", 0, map[string]string{"pipe": pipe, "static": strconv.FormatBool(static)}, func() (err error) {
		m.r.MutatedState = true
		if err := os.MkdirAll(pipe, 0o700); err != nil {
			return err
		}
		env := append(workerEnvironment(m.s.c.Env), "CUDA_VISIBLE_DEVICES="+m.s.plan.GPUUUID, RunVariable+"="+m.s.plan.RunID)
		d, err = mps.Start(ctx, mps.Options{Control: m.control, Pipe: pipe, Log: log, Env: env, Static: static})
		return err
	})
	if err != nil {
		e.Status, e.Reason = observe.Unavailable, observe.Clip(err.Error())
		return
	}
	e.Started, e.StartedMS = true, time.Since(start).Milliseconds()
	err = work(ctx, d)
	e.Status, e.Reason = observe.SupportedProven, ""
	if err != nil {
		e.Status, e.Reason = observe.Unknown, observe.Clip(err.Error())
	}
	m.quit(e, d)
}

// quit ends the daemon and looks whether its servers are gone. It does so also where the run was interrupted.
func (m *mpsRun) quit(e *evidence.MPSMode, d *mps.Daemon) {
	ctx := context.Background()
	servers := d.Servers(ctx)
	e.Servers = len(servers)
	mine := ours(m.s.plan.RunID)
	e.ServersOurs = len(servers) > 0
	for _, pid := range servers {
		e.ServersOurs = e.ServersOurs && slices.Contains(mine, pid)
		// A cleanup finds a server also where it didn't inherit the run's id.
		_ = m.s.journal.Record(evidence.Entry{Step: "saw_mps_server", Phase: evidence.Note,
			Detail: map[string]string{"pid": strconv.Itoa(pid), "start_ticks": startTicks(pid)}}, true)
	}
	start := time.Now()
	err := m.s.journal.Step("quit_mps_daemon", 0, nil, func() error {
		_, err := d.Quit(ctx, quitTimeout)
		return err
	})
	gone := func() bool {
		return !slices.ContainsFunc(servers, alive)
	}
	for until := time.Now().Add(5 * time.Second); !gone() && time.Now().Before(until); {
		time.Sleep(20 * time.Millisecond)
	}
	e.QuitMS, e.QuitClean = time.Since(start).Milliseconds(), err == nil && gone()
	d.Kill()
	for _, pid := range servers {
		if alive(pid) {
			e.Left++
		}
	}
	e.DaemonOutput = d.Output()
}

// client runs one client and files what it says.
func (m *mpsRun) client(ctx context.Context, e *evidence.MPSMode, req clientRequest, variables ...string) {
	req.workRequest = workRequest{Run: m.s.plan.RunID, Parent: os.Getpid(), Folder: m.s.folder, Names: m.names, GPUUUID: m.s.plan.GPUUUID, KernelMS: 5000,
		Request: evidence.CreateRequest{SpinUS: 200}}
	env := append(workerEnvironment(m.s.c.Env), "CUDA_VISIBLE_DEVICES="+m.s.plan.GPUUUID, "CUDA_CACHE_DISABLE=1", "CUDA_LOG_FILE=stderr",
		"CUDA_MPS_PIPE_DIRECTORY="+m.pipe, RunVariable+"="+m.s.plan.RunID)
	res := bounded.Child(ctx, clientTask, req, append(env, variables...), clientTimeout)
	c := evidence.MPSClient{Name: req.Name, SMIDs: []int{}, Splits: []evidence.SplitTry{}, Allocations: []evidence.Allocation{}}
	for _, p := range res.Parts {
		if p.Kind == "client" {
			_ = json.Unmarshal(p.Value, &c)
		}
	}
	c.Environment = append([]string{}, variables...)
	c.WallUS = res.WallUS
	c.Outcome = outcomeOf(ctx, res, "")
	if reason, bad := res.Fault("the client"); bad && c.Failure == "" {
		c.Failure = reason
	}
	m.mutex.Lock()
	defer m.mutex.Unlock()
	if res.Noise != "" {
		fmt.Fprintf(&m.s.noise, "client %s: %s\n", req.Name, res.Noise)
	}
	e.Clients = append(e.Clients, c)
}

func (m *mpsRun) said(e *evidence.MPSMode, list ...mps.Said) {
	for _, s := range list {
		e.Exchanges = append(e.Exchanges, evidence.Exchange{Input: s.Input, Text: observe.Clip(s.Text)})
	}
}

func (m *mpsRun) asked(e *evidence.MPSMode, a mpsquery.Answer) {
	e.Exchanges = append(e.Exchanges, evidence.Exchange{Input: a.Input, Text: a.Text})
}

// classic runs the clients of a daemon without partitions.
func (m *mpsRun) classic(ctx context.Context, d *mps.Daemon) error {
	e := &m.r.Classic
	share := "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=" + strconv.Itoa(sharePercent)
	tried := []int64{fitsLimit, exceedsLimit}
	m.client(ctx, e, clientRequest{Name: "whole", Green: true, Allocations: tried}) // without a limit: what the limit is held against
	m.client(ctx, e, clientRequest{Name: "share", Green: true, Repeat: 4}, share)
	m.said(e, d.SetPercentage(ctx, sharePercent)...)
	m.asked(e, d.Ask(ctx, mpsquery.DefaultPercentage, 0))
	m.client(ctx, e, clientRequest{Name: "greedy"}, "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=100")
	m.said(e, d.SetPercentage(ctx, 100)...)
	m.client(ctx, e, clientRequest{Name: "limited", Allocations: tried},
		fmt.Sprintf("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=%dM", limitedMemory>>20))
	m.said(e, d.SetPriority(ctx, 1))
	m.asked(e, d.Ask(ctx, mpsquery.DefaultPriority, 0))
	m.client(ctx, e, clientRequest{Name: "below"}, "CUDA_MPS_CLIENT_PRIORITY=1")
	m.said(e, d.SetPriority(ctx, 0))
	m.together(ctx, e, share)
	m.asked(e, d.Ask(ctx, mpsquery.Processes, 0))
	return ctx.Err()
}

// together runs two clients whose kernels begin when both are ready.
func (m *mpsRun) together(ctx context.Context, e *evidence.MPSMode, share string) {
	barrier := filepath.Join(m.s.private, "barrier")
	if err := os.Mkdir(barrier, 0o700); err != nil {
		return
	}
	var wait sync.WaitGroup
	for _, name := range []string{"first", "second"} {
		wait.Go(func() { m.client(ctx, e, clientRequest{Name: name, Barrier: barrier, Repeat: 50}, share) })
	}
	for until := time.Now().Add(serverRetry); time.Now().Before(until) && ctx.Err() == nil; time.Sleep(5 * time.Millisecond) {
		if ready, _ := filepath.Glob(filepath.Join(barrier, "ready-*")); len(ready) == 2 {
			break
		}
	}
	_ = os.WriteFile(filepath.Join(barrier, "go"), nil, 0o600)
	wait.Wait()
}

// static makes two partitions of one and two chunks, runs a client in each and one in none, and removes them.
func (m *mpsRun) static(ctx context.Context, d *mps.Daemon) error {
	e := &m.r.Static
	uuid := m.s.plan.GPUUUID
	var ids []string
	for _, chunks := range []int{1, 2} {
		id, said := d.AddPartition(ctx, uuid, chunks)
		m.said(e, said)
		e.Partitions = append(e.Partitions, evidence.MPSPart{Chunks: chunks, Made: id != "", Text: observe.Clip(said.Text)})
		ids = append(ids, id)
	}
	rows, a := d.Partitions(ctx)
	m.asked(e, a)
	for i := range ids {
		for _, row := range rows {
			if row.ID != "" && row.ID == ids[i] {
				e.Partitions[i].Listed, e.Partitions[i].SMs = true, row.UsedSMs.Or(0)
			}
		}
	}
	for i, id := range ids {
		if id != "" {
			m.client(ctx, e, clientRequest{Name: "partition " + strconv.Itoa(i), Repeat: 4}, "CUDA_MPS_SM_PARTITION="+uuid+"/"+id)
		}
	}
	m.client(ctx, e, clientRequest{Name: "unbound"})
	_, said := d.AddPartition(ctx, uuid, 1000)
	m.said(e, said)
	for _, id := range ids {
		if id != "" {
			m.said(e, d.RemovePartition(ctx, uuid, id))
		}
	}
	rows, a = d.Partitions(ctx)
	m.asked(e, a)
	for i := range ids {
		e.Partitions[i].Gone = a.Kind == mpsquery.Answered && !slices.ContainsFunc(rows, func(p mpsquery.Partition) bool { return p.ID != "" && p.ID == ids[i] })
	}
	if slices.ContainsFunc(ids, func(id string) bool { return id == "" }) {
		return errors.New("a partition could not be made: " + strings.TrimSpace(e.Partitions[0].Text+" "+e.Partitions[1].Text))
	}
	return ctx.Err()
}

//go:build linux

package probe

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"cotenant/internal/gputest"
	"cotenant/internal/inspect"
	"cotenant/internal/partition"
	"cotenant/internal/probe/evidence"
)

// rig runs the supervisor on a host whose driver misbehaves in the worker.
type rig struct {
	facts  *inspect.Facts
	report *inspect.Report
}

func newRig(t *testing.T) *rig {
	t.Helper()
	m := gputest.Start(t, testHost(withVersion(13010)))
	facts := inspect.Gather(context.Background(), inspect.Options{Root: m.Root, Env: m.Env})
	return &rig{facts, inspect.Judge(facts)}
}

// create is Create after its inspection, on another machine.
func (g *rig) create(t *testing.T, ctx context.Context, m *gputest.Machine, deadline time.Duration, plan partition.Plan) (Outcome, *evidence.CreateResult) {
	t.Helper()
	c := Common{GPUUUID: testUUID, Confirm: true, Out: filepath.Join(t.TempDir(), "run"), Root: m.Root, Env: m.Env, Deadline: deadline}
	id, err := newRunID(time.Now())
	if err != nil {
		t.Fatal(err)
	}
	r := &run{c: c, host: newHost(c, g.facts), inspect: g.report, start: time.Now()}
	r.plan = evidence.Plan{SchemaVersion: evidence.SchemaVersion, Operation: evidence.PlanOperation, Probe: evidence.CreateOperation, RunID: id,
		Started: time.Now().UTC().Format(time.RFC3339), GPUUUID: c.GPUUUID, Folder: c.Out, DeadlineMS: deadline.Milliseconds()}
	r.plan.Gates = append(r.host.common(c.Out), r.host.planGate(plan))
	request := evidence.CreateRequest{Plan: plan, Cycles: 1, SpinUS: 200}
	r.plan.Request = request
	out, err := r.execute(ctx, func(ctx context.Context, s *supervisor) any { return s.create(ctx, request) })
	if err != nil {
		t.Fatal(err)
	}
	res, _ := out.Result.(*evidence.CreateResult)
	if res == nil {
		t.Fatalf("nothing ran: %s", out.Why)
	}
	return out, res
}

// workerCalls are the functions that a worker calls in a run in which all goes well.
func (g *rig) workerCalls(t *testing.T) []string {
	m := gputest.Start(t, testHost(withVersion(13010)))
	if out, _ := g.create(t, context.Background(), m, 10*time.Second, partition.Plan{SMs: []int{16, 64}}); out.Exit != ExitDone {
		t.Fatalf("exit %d, %s", out.Exit, out.Why)
	}
	var calls []string
	for _, line := range m.Log() {
		if strings.HasPrefix(line, "cu") && !slices.Contains(calls, line) && line != "cuStreamQuery" {
			calls = append(calls, line)
		}
	}
	if len(calls) < 25 {
		t.Fatalf("only %d calls: %v", len(calls), calls)
	}
	return calls
}

// Each error code at each call of the driver, the first and the second time: the run ends by its exit code, the evidence verifies, and
// nothing of it stays behind.
func TestEveryCallFails(t *testing.T) {
	g := newRig(t)
	calls := g.workerCalls(t)
	codes := []int{2, 719, 801, 915}
	gate := make(chan struct{}, 4)
	for i, symbol := range calls {
		for n := 1; n <= 2; n++ {
			// All codes at the first call, one of them at the second.
			for k, code := range codes {
				if n == 2 && (k != i%len(codes) || i%2 == 0) || raceEnabled && (n == 2 || k != i%len(codes)) {
					continue
				}
				t.Run(fmt.Sprintf("%s-%d-%d", symbol, n, code), func(t *testing.T) {
					t.Parallel()
					gate <- struct{}{}
					defer func() { <-gate }()
					m := gputest.Start(t, testHost(withVersion(13010), withFaults(gputest.Fault{Symbol: symbol, Call: n, Code: code})))
					out, r := g.create(t, context.Background(), m, 10*time.Second, partition.Plan{SMs: []int{16, 64}})
					if !r.CleanupComplete || out.Exit == ExitFailed {
						t.Errorf("exit %d, %s\n%s", out.Exit, out.Why, dump(r.Cleanup))
					}
					leftNothing(t, out)
				})
			}
		}
	}
}

// The worker is killed at each call, by a crash, by a library that ends it, and by its deadline where a call hangs: a worker that is
// gone without a word.
func TestWorkerEndsAtEveryCall(t *testing.T) {
	g := newRig(t)
	calls := g.workerCalls(t)
	gate := make(chan struct{}, 10)
	for i, symbol := range calls {
		for k, action := range []gputest.Action{gputest.Crash, gputest.Exit, gputest.Hang} {
			if action != gputest.Hang && i%2 != k {
				continue // a crash and an exit at every other call, a hang at each
			}
			if raceEnabled && i%4 != k {
				continue
			}
			t.Run(symbol+"-"+string(action), func(t *testing.T) {
				t.Parallel()
				gate <- struct{}{}
				defer func() { <-gate }()
				m := gputest.Start(t, testHost(withVersion(13010), withFaults(gputest.Fault{Symbol: symbol, Call: 1, Action: action})))
				start := time.Now()
				out, r := g.create(t, context.Background(), m, 2*time.Second, partition.Plan{SMs: []int{16, 64}})
				want := evidence.Crashed
				if action == gputest.Hang {
					want = evidence.Deadline
				}
				if r.Outcome != want || !r.CleanupComplete || out.Exit != ExitNo || !strings.Contains(r.Failure, symbol) {
					t.Errorf("exit %d, outcome %s, failure %q\n%s", out.Exit, r.Outcome, r.Failure, dump(r.Cleanup))
				}
				if d := time.Since(start); d > 15*time.Second {
					t.Errorf("took %v", d)
				}
				leftNothing(t, out)
			})
		}
	}
}

// A kernel that never ends: the worker gives up, or is killed at its deadline, and its end is the cleanup.
func TestEndlessKernel(t *testing.T) {
	g := newRig(t)
	m := gputest.Start(t, testHost(withFaults(gputest.Fault{Symbol: "cuStreamQuery", Code: 600})))
	out, r := g.create(t, context.Background(), m, time.Second, partition.Plan{Groups: 2})
	if out.Exit != ExitNo || !r.CleanupComplete || r.Cleanup.API.Verdict != "by_process_end" {
		t.Errorf("exit %d, %s\n%s", out.Exit, out.Why, dump(r))
	}
	leftNothing(t, out)
}

// Too little device memory is an answer, not a failure of the probe.
func TestOutOfMemory(t *testing.T) {
	g := newRig(t)
	m := gputest.Start(t, testHost(func(h *gputest.Host) { h.GPUs[0].Memory = 530 << 20 }))
	out, r := g.create(t, context.Background(), m, 5*time.Second, partition.Plan{Groups: 16})
	if out.Exit != ExitNo || r.FailureCode != 2 || !r.CleanupComplete || r.Cleanup.API.Verdict != "complete" {
		t.Errorf("exit %d, %s\n%s", out.Exit, out.Why, dump(r))
	}
	leftNothing(t, out)
}

// SIGINT is a context that ends: the worker is ended at once.
func TestInterrupt(t *testing.T) {
	g := newRig(t)
	m := gputest.Start(t, testHost(withFaults(gputest.Fault{Symbol: "cuLaunchKernel", Action: gputest.Hang})))
	ctx, cancel := context.WithCancel(context.Background())
	time.AfterFunc(600*time.Millisecond, cancel)
	start := time.Now()
	out, r := g.create(t, ctx, m, 20*time.Second, partition.Plan{Groups: 2})
	if out.Exit != ExitInterrupted || r.Outcome != evidence.Interrupted || !r.CleanupComplete || time.Since(start) > 10*time.Second {
		t.Errorf("exit %d, outcome %s after %v", out.Exit, r.Outcome, time.Since(start))
	}
	leftNothing(t, out)
}

// An Xid in the kernel's log ends the worker at once.
func TestXid(t *testing.T) {
	g := newRig(t)
	m := gputest.Start(t, testHost(withFaults(gputest.Fault{Symbol: "cuLaunchKernel", Action: gputest.Hang})))
	time.AfterFunc(600*time.Millisecond, func() {
		f, err := os.OpenFile(m.Path("/dev/kmsg"), os.O_APPEND|os.O_WRONLY, 0)
		if err != nil {
			t.Error(err)
			return
		}
		fmt.Fprintln(f, "3,2000,99,-;NVRM: Xid (PCI:0000:06:00): 79, GPU has fallen off the bus.")
		f.Close()
	})
	start := time.Now()
	out, r := g.create(t, context.Background(), m, 20*time.Second, partition.Plan{Groups: 2})
	if r.Outcome != evidence.HealthLost || len(r.Health.Xids) != 1 || !strings.Contains(r.Health.Lost, "79") || time.Since(start) > 10*time.Second {
		t.Errorf("exit %d, outcome %s, %+v after %v", out.Exit, r.Outcome, r.Health, time.Since(start))
	}
	leftNothing(t, out)
}

// A driver that doesn't give memory back is found out from outside: exit 1.
func TestMemoryNotReturned(t *testing.T) {
	g := newRig(t)
	m := gputest.Start(t, testHost(func(h *gputest.Host) { h.GPUs[0].KeepsMemory = true }))
	out, r := g.create(t, context.Background(), m, 5*time.Second, partition.Plan{Groups: 2})
	if out.Exit != ExitFailed || r.CleanupComplete || r.Cleanup.Memory.Outside.Verdict != evidence.NotReturned {
		t.Errorf("exit %d, %s\n%s", out.Exit, out.Why, dump(r.Cleanup))
	}
	leftNothing(t, out)
}

// supervisorVariable makes this test binary a supervisor: JSON of supervisorJob.
const supervisorVariable = "PROBE_TEST_SUPERVISOR"

type supervisorJob struct {
	MPS       bool
	Root, Out string
	Env       []string
}

func serveSupervisor() {
	text := os.Getenv(supervisorVariable)
	if text == "" {
		return
	}
	var job supervisorJob
	if err := json.Unmarshal([]byte(text), &job); err != nil {
		os.Exit(2)
	}
	c := Common{GPUUUID: testUUID, Confirm: true, Out: job.Out, Root: job.Root, Env: job.Env, Deadline: 20 * time.Second}
	if job.MPS {
		_, _ = MPS(context.Background(), MPSOptions{Common: c})
	} else {
		_, _ = Create(context.Background(), CreateOptions{Common: c, Plan: partition.Plan{Groups: 2}, Cycles: 2000})
	}
	os.Exit(0)
}

// startSupervisor runs a probe in a process of its own.
func startSupervisor(t *testing.T, m *gputest.Machine, mps bool) (*exec.Cmd, string) {
	t.Helper()
	out := filepath.Join(t.TempDir(), "run")
	job, err := json.Marshal(supervisorJob{mps, m.Root, out, m.Env})
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(slices.Clone(m.Env), supervisorVariable+"="+string(job))
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	return cmd, out
}

// waitFor waits until the journal holds all of the words in one line.
func waitFor(t *testing.T, out string, words ...string) {
	t.Helper()
	for until := time.Now().Add(20 * time.Second); time.Now().Before(until); time.Sleep(5 * time.Millisecond) {
		b, _ := os.ReadFile(filepath.Join(out, evidence.JournalFile))
		for line := range strings.Lines(string(b)) {
			all := true
			for _, w := range words {
				all = all && strings.Contains(line, w)
			}
			if all {
				return
			}
		}
	}
	t.Fatalf("the journal never said %v", words)
}

// killedLeavesNothing holds what a killed supervisor left against what it may: nothing, some seconds later.
func killedLeavesNothing(t *testing.T, m *gputest.Machine, out string) {
	t.Helper()
	entries, _, err := evidence.ReadJournal(out)
	if err != nil {
		t.Fatal(err)
	}
	id := entries[0].Detail["run"]
	var folder string
	for _, e := range entries {
		if e.Step == "make_private_folder" && e.Phase == evidence.Begin {
			folder = e.Detail["folder"]
		}
	}
	var pids []int
	// The guard's sweep has 20 s.
	for until := time.Now().Add(25 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		pids = ours(id)
		_, err := os.Stat(folder)
		held, _ := os.ReadDir(m.Path("/.fake/usage"))
		var holding []string
		for _, e := range held {
			if pid, err := strconv.Atoi(e.Name()); err == nil && alive(pid) {
				holding = append(holding, e.Name())
			}
		}
		if len(pids) == 0 && os.IsNotExist(err) && len(holding) == 0 {
			break
		}
		if time.Now().After(until) {
			var what []string
			for _, pid := range pids {
				line, _ := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "cmdline"))
				status, _ := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "status"))
				what = append(what, strings.ReplaceAll(string(line), "\x00", " ")+"\n"+string(status[:min(len(status), 300)]))
			}
			journal, _ := os.ReadFile(filepath.Join(out, evidence.JournalFile))
			t.Fatalf("left: processes %v %s, folder %s (%v), memory of %v\n%s", pids, what, folder, err, holding, journal[max(0, len(journal)-2000):])
		}
	}
	// cleanup finds nothing more to do, and makes of what is there a folder that verifies as what it is.
	for _, confirm := range []bool{false, true} {
		r, code, err := Cleanup(context.Background(), CleanupOptions{Run: out, Confirm: confirm, Env: m.Env})
		if err != nil || code != ExitDone || len(r.Swept.Left) > 0 || r.RunID != id {
			t.Errorf("cleanup: %d, %v\n%s", code, err, dump(r))
		}
	}
	v, err := evidence.Verify(out)
	if err != nil || !v.Holds || v.Outcome != evidence.Unfinished || len(v.Establishes) > 0 {
		t.Errorf("%v, %s", err, dump(v))
	}
}

// The supervisor is killed with SIGKILL while its worker is at each kind of step: worker and guard end everything by themselves.
func TestSupervisorKilled(t *testing.T) {
	for _, symbol := range []string{"", "cuDevicePrimaryCtxRetain", "cuModuleLoadDataEx", "cuMemAlloc_v2", "cuGreenCtxCreate", "cuGreenCtxStreamCreate",
		"cuLaunchKernel", "cuMemcpyDtoH_v2", "cuStreamDestroy_v2", "cuGreenCtxDestroy", "cuDevicePrimaryCtxRelease_v2"} {
		t.Run("at-"+symbol, func(t *testing.T) {
			t.Parallel()
			var faults []gputest.Fault
			words := []string{`"step":"cycle"`}
			if symbol != "" {
				faults = []gputest.Fault{{Symbol: symbol, Call: 1, Action: gputest.Hang}}
				words = []string{`"by":"worker"`}
			}
			m := gputest.Start(t, testHost(withFaults(faults...)))
			cmd, out := startSupervisor(t, m, false)
			waitFor(t, out, words...)
			time.Sleep(150 * time.Millisecond)
			if err := cmd.Process.Kill(); err != nil {
				t.Fatal(err)
			}
			_ = cmd.Wait()
			killedLeavesNothing(t, m, out)
		})
	}
}

// Killed at moments that nobody chose, the supervisor's own steps among them.
func TestSupervisorKilledAnywhere(t *testing.T) {
	for i := range 8 {
		t.Run(strconv.Itoa(i), func(t *testing.T) {
			t.Parallel()
			m := gputest.Start(t, testHost())
			cmd, out := startSupervisor(t, m, false)
			waitFor(t, out, `"step":"run"`)
			time.Sleep(time.Duration(i) * 17 * time.Millisecond)
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
			killedLeavesNothing(t, m, out)
		})
	}
}

// The supervisor of an MPS probe is killed while clients run: daemon, server, clients and folder go.
func TestMPSSupervisorKilled(t *testing.T) {
	for name, words := range map[string][]string{"daemon": {`"start_mps_daemon"`, `"end"`}, "client": {`"by":"client"`, `"launch"`}, "second client": {`"by":"client"`, `"client":"greedy"`}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := gputest.Start(t, testHost(withMPS(13000)))
			cmd, out := startSupervisor(t, m, true)
			waitFor(t, out, words...)
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
			killedLeavesNothing(t, m, out)
		})
	}
}

// Where the guard is killed too, cleanup does what it would have done, and touches nothing else.
func TestCleanupAfterGuard(t *testing.T) {
	m := gputest.Start(t, testHost(withMPS(13000)))
	cmd, out := startSupervisor(t, m, true)
	waitFor(t, out, `"by":"client"`, `"launch"`)
	if _, code, err := Cleanup(context.Background(), CleanupOptions{Run: out, Confirm: true, Env: m.Env}); code != ExitNo || err == nil {
		t.Errorf("cleanup of a run that goes on: %d, %v", code, err)
	}
	for _, pid := range guards(cmd.Process.Pid) {
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	bystander := exec.Command("sleep", "60")
	bystander.Env = append(os.Environ(), RunVariable+"=20260101T000000Z-0123456789abcdef")
	if err := bystander.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = bystander.Process.Kill(); _ = bystander.Wait() }()
	killed := time.Now()
	r, code, err := Cleanup(context.Background(), CleanupOptions{Run: out, Env: m.Env})
	if err != nil || code != ExitDone || len(r.Swept.Folders) != 1 || r.Swept.Folders[0].Removed != "would be removed" || len(r.Unfinished) == 0 {
		t.Errorf("preview: %d, %v\n%s", code, err, dump(r))
	}
	r, code, err = Cleanup(context.Background(), CleanupOptions{Run: out, Confirm: true, Env: m.Env})
	if err != nil || code != ExitDone || len(r.Swept.Left) > 0 || r.Swept.Folders[0].Removed != "removed" {
		t.Errorf("cleanup: %d, %v\n%s", code, err, dump(r))
	}
	t.Logf("cleaned %v after: %s", time.Since(killed), dump(r.Swept))
	if !alive(bystander.Process.Pid) {
		t.Error("a process of another run was ended")
	}
	if v, err := evidence.Verify(out); err != nil || !v.Holds {
		t.Errorf("%v, %s", err, dump(v))
	}
}

// guards are the guard processes of a supervisor.
func guards(supervisor int) []int {
	var pids []int
	entries, _ := os.ReadDir("/proc")
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		line, _ := os.ReadFile(filepath.Join("/proc", e.Name(), "cmdline"))
		stat, _ := os.ReadFile(filepath.Join("/proc", e.Name(), "stat"))
		f := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
		if len(f) > 1 && f[1] == strconv.Itoa(supervisor) && strings.Contains(string(line), guardTask) {
			pids = append(pids, pid)
		}
	}
	return pids
}

// A folder that isn't marked as the run's stays, whatever a journal says of it.
func TestSweepRefusesFolders(t *testing.T) {
	id := "20260101T000000Z-0123456789abcdef"
	dir := t.TempDir()
	for name, mark := range map[string]string{"cotenant-p0123456789abcdef": "another run", "cotenant-pffffffffffffffff": id, "elsewhere0123456789abcdef": id} {
		path := filepath.Join(dir, name)
		if err := os.Mkdir(path, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(path, ownerFile), []byte(mark), 0o600); err != nil {
			t.Fatal(err)
		}
		entries := []evidence.Entry{{Step: "make_private_folder", Phase: evidence.Begin, Detail: map[string]string{"folder": path}}}
		r := newSweeper(id, entries, nil).sweep(context.Background(), false)
		if r.Folders[0].Removed != "not ours" {
			t.Errorf("%s: %+v", name, r)
		}
		if _, err := os.Stat(path); err != nil {
			t.Errorf("%s is gone", name)
		}
	}
}

// A folder whose run ended while it was being marked is the run's: nobody else knew its name.
func TestSweepRemovesHalfMadeFolders(t *testing.T) {
	id := "20260101T000000Z-0123456789abcdef"
	for _, mark := range []string{"none", "", "20260101T0000"} {
		path := filepath.Join(t.TempDir(), "cotenant-p0123456789abcdef")
		if err := os.Mkdir(path, 0o700); err != nil {
			t.Fatal(err)
		}
		if mark != "none" {
			if err := os.WriteFile(filepath.Join(path, ownerFile), []byte(mark), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		entries := []evidence.Entry{{Step: "make_private_folder", Phase: evidence.Begin, Detail: map[string]string{"folder": path}}}
		if r := newSweeper(id, entries, nil).sweep(context.Background(), false); r.Folders[0].Removed != "removed" {
			t.Errorf("mark %q: %+v", mark, r)
		}
	}
}

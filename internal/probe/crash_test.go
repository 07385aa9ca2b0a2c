//go:build linux

package probe

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
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
	return g.createIn(t, ctx, m, deadline, plan, filepath.Join(t.TempDir(), "run"))
}

// createIn is create with its evidence in a folder that a test watches meanwhile.
func (g *rig) createIn(t *testing.T, ctx context.Context, m *gputest.Machine, deadline time.Duration, plan partition.Plan, out string) (Outcome, *evidence.CreateResult) {
	t.Helper()
	c := Common{GPUUUID: testUUID, Confirm: true, Out: out, Root: m.Root, Env: m.Env, Deadline: deadline}
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
	o, err := r.execute(ctx, func(ctx context.Context, s *supervisor) any { return s.create(ctx, request) })
	if err != nil {
		t.Fatal(err)
	}
	res, _ := o.Result.(*evidence.CreateResult)
	if res == nil {
		t.Fatalf("nothing ran: %s", o.Why)
	}
	return o, res
}

// deadlines are those of a worker that is to be killed by one: a busy machine's worker may not be where it hangs by the first.
var deadlines = []time.Duration{2 * time.Second, 10 * time.Second, MaxDeadline}

// workerCalls are the functions that a worker calls in a run in which all goes well.
func (g *rig) workerCalls(t *testing.T) []string {
	m := gputest.Start(t, testHost(withVersion(13010)))
	if out, _ := g.create(t, context.Background(), m, MaxDeadline, partition.Plan{SMs: []int{16, 64}}); out.Exit != ExitDone {
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
					out, r := g.create(t, context.Background(), m, MaxDeadline, partition.Plan{SMs: []int{16, 64}})
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
	var all sync.WaitGroup
	defer all.Wait()
	gate := make(chan struct{}, 8) // they wait most of the time, on any number of cores
	for i, symbol := range g.workerCalls(t) {
		for k, action := range []gputest.Action{gputest.Crash, gputest.Exit, gputest.Hang} {
			if action != gputest.Hang && i%2 != k {
				continue // a crash and an exit at every other call, a hang at each
			}
			if raceEnabled && i%4 != k {
				continue
			}
			all.Go(func() {
				gate <- struct{}{}
				defer func() { <-gate }()
				t.Run(symbol+"-"+string(action), func(t *testing.T) { g.endsAt(t, symbol, action) })
			})
		}
	}
}

// endsAt lets a worker end at its first call of a function of the driver.
func (g *rig) endsAt(t *testing.T, symbol string, action gputest.Action) {
	tries, want := []time.Duration{MaxDeadline}, evidence.Crashed
	if action == gputest.Hang {
		tries, want = deadlines, evidence.Deadline
	}
	for i, deadline := range tries {
		m := gputest.Start(t, testHost(withVersion(13010), withFaults(gputest.Fault{Symbol: symbol, Call: 1, Action: action})))
		out, r := g.create(t, context.Background(), m, deadline, partition.Plan{SMs: []int{16, 64}})
		leftNothing(t, out)
		if !strings.Contains(r.Failure, symbol) && r.Outcome == want && i < len(tries)-1 {
			continue // it wasn't there yet
		}
		if r.Outcome != want || !r.CleanupComplete || out.Exit != ExitNo || !strings.Contains(r.Failure, symbol) {
			t.Errorf("exit %d, outcome %s, failure %q\n%s", out.Exit, r.Outcome, r.Failure, dump(r.Cleanup))
		}
		return
	}
}

// A kernel that never ends: the worker gives up, or is killed at its deadline, and its end is the cleanup.
func TestEndlessKernel(t *testing.T) {
	g := newRig(t)
	m := gputest.Start(t, testHost(withFaults(gputest.Fault{Symbol: "cuStreamQuery", Code: 600})))
	out, r := g.create(t, context.Background(), m, deadlines[1], partition.Plan{Groups: 2})
	if out.Exit != ExitNo || !r.CleanupComplete || r.Cleanup.API.Verdict != "by_process_end" {
		t.Errorf("exit %d, %s\n%s", out.Exit, out.Why, dump(r))
	}
	leftNothing(t, out)
}

// Too little device memory is an answer, not a failure of the probe.
func TestOutOfMemory(t *testing.T) {
	g := newRig(t)
	m := gputest.Start(t, testHost(func(h *gputest.Host) { h.GPUs[0].Memory = 530 << 20 }))
	out, r := g.create(t, context.Background(), m, MaxDeadline, partition.Plan{Groups: 16})
	if out.Exit != ExitNo || r.FailureCode != 2 || !r.CleanupComplete || r.Cleanup.API.Verdict != "complete" {
		t.Errorf("exit %d, %s\n%s", out.Exit, out.Why, dump(r))
	}
	leftNothing(t, out)
}

// SIGINT is a context that ends: the worker is ended at once, long before its deadline.
func TestInterrupt(t *testing.T) {
	g := newRig(t)
	m := gputest.Start(t, testHost(withFaults(gputest.Fault{Symbol: "cuLaunchKernel", Action: gputest.Hang})))
	ctx, cancel := context.WithCancel(context.Background())
	folder := filepath.Join(t.TempDir(), "run")
	meanwhile := watchWorker(t, folder, cancel)
	out, r := g.createIn(t, ctx, m, MaxDeadline, partition.Plan{Groups: 2}, folder)
	<-meanwhile
	if out.Exit != ExitInterrupted || r.Outcome != evidence.Interrupted || !r.CleanupComplete {
		t.Errorf("exit %d, outcome %s", out.Exit, r.Outcome)
	}
	leftNothing(t, out)
}

// watchWorker calls f once a run's worker is about to launch, and closes what it returns after that.
func watchWorker(t *testing.T, folder string, f func()) <-chan struct{} {
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := journalSays(folder, nil, `"by":"worker"`, `"launch"`); err != nil {
			t.Error(err)
		}
		f()
	}()
	return done
}

// An Xid in the kernel's log ends the worker at once, long before its deadline.
func TestXid(t *testing.T) {
	g := newRig(t)
	m := gputest.Start(t, testHost(withFaults(gputest.Fault{Symbol: "cuLaunchKernel", Action: gputest.Hang})))
	folder := filepath.Join(t.TempDir(), "run")
	meanwhile := watchWorker(t, folder, func() {
		f, err := os.OpenFile(m.Path("/dev/kmsg"), os.O_APPEND|os.O_WRONLY, 0)
		if err != nil {
			t.Error(err)
			return
		}
		fmt.Fprintln(f, "3,2000,99,-;NVRM: Xid (PCI:0000:06:00): 79, GPU has fallen off the bus.")
		f.Close()
	})
	out, r := g.createIn(t, context.Background(), m, MaxDeadline, partition.Plan{Groups: 2}, folder)
	<-meanwhile
	if r.Outcome != evidence.HealthLost || len(r.Health.Xids) != 1 || !strings.Contains(r.Health.Lost, "79") {
		t.Errorf("exit %d, outcome %s, %+v", out.Exit, r.Outcome, r.Health)
	}
	leftNothing(t, out)
}

// A driver that doesn't give memory back is found out from outside: exit 1.
func TestMemoryNotReturned(t *testing.T) {
	g := newRig(t)
	m := gputest.Start(t, testHost(func(h *gputest.Host) { h.GPUs[0].KeepsMemory = true }))
	out, r := g.create(t, context.Background(), m, MaxDeadline, partition.Plan{Groups: 2})
	if out.Exit != ExitFailed || r.CleanupComplete || r.Cleanup.Memory.Outside.Verdict != evidence.NotReturned {
		t.Errorf("exit %d, %s\n%s", out.Exit, out.Why, dump(r.Cleanup))
	}
	leftNothing(t, out)
}

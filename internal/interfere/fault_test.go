//go:build linux

package interfere

import (
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"cotenant/internal/gputest"
	"cotenant/internal/interfere/record"
	"cotenant/internal/probe"
	"cotenant/internal/probe/evidence"
)

// refused runs a plan that can't be carried out and returns what came of it; the folder verifies, and nothing of it is left.
func refused(t *testing.T, o Options, exit int) Outcome {
	t.Helper()
	out, err := Run(context.Background(), o)
	if err != nil || out.Exit != exit {
		t.Fatalf("exit %d, want %d: %s %v", out.Exit, exit, out.Why, err)
	}
	r, _, err := Verify(o.Out)
	if err != nil || !r.Holds {
		t.Fatalf("%v %+v", err, r)
	}
	return out
}

// A kernel that leaves something else than it should is found before anything is timed.
func TestWrongOutput(t *testing.T) {
	for _, symbol := range []string{"cuLaunchKernel", "cuGraphLaunch", "cuMemcpyDtoHAsync_v2"} {
		t.Run(symbol, func(t *testing.T) {
			m := gputest.Start(t, testHost(gputest.Fault{Symbol: symbol, Action: gputest.Lie}))
			o := options(t, m, "testdata/small.json")
			out := refused(t, o, probe.ExitNo)
			if !strings.Contains(out.Why, "nothing is timed") || out.Blocks != 0 {
				t.Errorf("%d blocks: %s", out.Blocks, out.Why)
			}
		})
	}
}

// A plan that doesn't fit the GPU's memory says which workload doesn't.
func TestTooLarge(t *testing.T) {
	out := refused(t, options(t, gputest.Start(t, testHost()), "testdata/large.json"), probe.ExitNo)
	if !strings.Contains(out.Why, "buffers of hbm-3") || !strings.Contains(out.Why, "OUT_OF_MEMORY") {
		t.Error(out.Why)
	}
}

// A driver without Green Contexts measures the rest.
func TestOldDriver(t *testing.T) {
	h := testHost()
	h.CUDA[0].Version, h.NVML[0].CUDA, h.NVML[0].Driver, h.MPS = 12020, 12020, "535.104.05", nil
	out, _ := measured(t, options(t, gputest.Start(t, h), "testdata/small.json"))
	for _, m := range out.Ledger.Mechanisms {
		if m.Kind == record.Green && (m.Planned() || m.Reason == "") {
			t.Errorf("%s: %s %q", m.ID, m.Verdict, m.Reason)
		}
	}
}

// What the driver refuses is a failed cell with its reason; the others are measured.
func TestMechanismRefused(t *testing.T) {
	m := gputest.Start(t, testHost(gputest.Fault{Symbol: "cuGreenCtxCreate", Code: 801}))
	out, _ := measured(t, options(t, m, "testdata/small.json"))
	for _, c := range out.Ledger.Cells {
		if green := c.Mechanism == "green:16"; green != (c.State == record.Failed) || green && !strings.Contains(c.Reason, "NOT_SUPPORTED") {
			t.Errorf("cell %s: %s %s", c.ID, c.State, c.Reason)
		}
	}
}

// A host without MPS lists it with its verdict, and measures the rest.
func TestWithoutMPS(t *testing.T) {
	h := testHost()
	h.MPS = nil
	out, _ := measured(t, options(t, gputest.Start(t, h), "testdata/between.json"))
	for _, m := range out.Ledger.Mechanisms {
		if strings.HasPrefix(m.Kind, "mps") == m.Planned() || !m.Planned() && m.Reason == "" {
			t.Errorf("%s: %s %q", m.ID, m.Verdict, m.Reason)
		}
	}
	if out.Ledger.State != "complete" {
		t.Error(out.Ledger.State)
	}
}

// A worker that crashes ends the segment, whose rows stay; the run goes on where it was.
func TestCrashAndResume(t *testing.T) {
	o := options(t, gputest.Start(t, testHost(gputest.Fault{Symbol: "cuEventElapsedTime", Call: 408, Action: gputest.Crash})), "testdata/between.json")
	out := refused(t, o, probe.ExitNo)
	if out.Blocks == 0 || out.Blocks == out.Planned || !strings.Contains(out.Why, "ended while it was told to victim") {
		t.Fatalf("%d of %d blocks: %s", out.Blocks, out.Planned, out.Why)
	}
	other := testHost()
	other.NVML[0].Driver = "580.200.01"
	m := gputest.Start(t, other)
	o.Root, o.Env, o.PlanFile, o.Resume = m.Root, m.Env, "", true
	if out := refused(t, o, probe.ExitNo); !strings.Contains(out.Why, "another driver than segment 1") {
		t.Error(out.Why)
	}
	m = gputest.Start(t, testHost())
	o.Root, o.Env = m.Root, m.Env
	again, f := measured(t, o)
	if again.Ledger.State != "complete" || len(f.Segments) != 2 || f.Rows[out.Blocks].Segment != 2 {
		t.Errorf("%s, %d segments", again.Ledger.State, len(f.Segments))
	}
}

// An interruption keeps what is whole; a row that a crash left in pieces is cut off.
func TestInterruptedAndResumed(t *testing.T) {
	m := gputest.Start(t, testHost())
	o := options(t, m, "testdata/between.json")
	ctx, cancel := context.WithCancel(context.Background())
	o.Progress = func(done, _ int64, _ string) {
		if done == 5 {
			cancel()
		}
	}
	out, err := Run(ctx, o)
	if err != nil || out.Exit != probe.ExitInterrupted || out.Blocks != 5 {
		t.Fatalf("exit %d, %d blocks: %s %v", out.Exit, out.Blocks, out.Why, err)
	}
	rows, err := os.OpenFile(filepath.Join(o.Out, record.RowsFile), os.O_APPEND|os.O_WRONLY, 0)
	if err == nil {
		_, err = rows.WriteString(`{"segment":1,"block":5,"cell":"cri`)
	}
	if err != nil {
		t.Fatal(err)
	}
	rows.Close()
	if r, _, err := Verify(o.Out); err != nil || len(r.Failed()) != 1 || r.Failed()[0].Rule != "I-TORN" {
		t.Fatalf("%v %+v", err, r)
	}
	o.PlanFile, o.Resume, o.Progress = "", true, nil
	if out, f := measured(t, o); out.Ledger.State != "complete" || len(f.Segments) != 2 {
		t.Errorf("%s, %d segments", out.Ledger.State, len(f.Segments))
	}
	// Once more there is nothing to do, and no segment is begun.
	if out, f := measured(t, o); out.Blocks != out.Planned || len(f.Segments) != 2 {
		t.Errorf("%d blocks, %d segments", out.Blocks, len(f.Segments))
	}
	o.GPUUUID = strings.Replace(testUUID, "1", "2", 1)
	if _, err := Run(context.Background(), o); err == nil || !strings.Contains(err.Error(), "the folder's plan is for") {
		t.Errorf("another GPU: %v", err)
	}
}

const killedVariable = "INTERFERE_TEST_RUN"

// serveRun runs a plan in a process that a test can kill.
func serveRun() {
	text := os.Getenv(killedVariable)
	if text == "" {
		return
	}
	var o Options
	if err := json.Unmarshal([]byte(text), &o); err != nil {
		panic(err)
	}
	_, _ = Run(context.Background(), o)
	os.Exit(0)
}

// Nothing outlives a supervisor that was killed, the run goes on, and the folder says what happened.
func TestKilled(t *testing.T) {
	m := gputest.Start(t, testHost())
	o := options(t, m, "testdata/between.json")
	text, err := json.Marshal(o)
	if err != nil {
		t.Fatal(err)
	}
	c := exec.Command("/proc/self/exe")
	c.Env = append(os.Environ(), killedVariable+"="+string(text))
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	rows := filepath.Join(o.Out, record.RowsFile)
	for until := time.Now().Add(2 * time.Minute); ; time.Sleep(5 * time.Millisecond) {
		if info, err := os.Stat(rows); err == nil && info.Size() > 0 {
			break
		}
		if time.Now().After(until) {
			t.Fatal("no row was written")
		}
	}
	o.PlanFile, o.Resume = "", true
	_ = c.Process.Signal(syscall.SIGSTOP) // it must not end by itself meanwhile
	if out, err := Run(context.Background(), o); err != nil || out.Exit != probe.ExitNo || !strings.Contains(out.Why, "still goes on") {
		t.Errorf("beside a run that goes on: exit %d, %s %v", out.Exit, out.Why, err)
	}
	_ = c.Process.Signal(syscall.SIGKILL)
	_ = c.Wait()
	out, f := measured(t, o)
	if out.Ledger.State != "complete" || len(f.Segments) != 2 {
		t.Fatalf("%s, %d segments", out.Ledger.State, len(f.Segments))
	}
	g, err := evidence.Verify(filepath.Join(o.Out, record.GuardFolder, "1"))
	if err != nil || g.Outcome != evidence.Unfinished || !g.Holds {
		t.Errorf("%v %+v", err, g)
	}
}

// A guard's evidence that was changed, or is another run's, is found.
func TestGuardRule(t *testing.T) {
	m := gputest.Start(t, testHost())
	o := options(t, m, "testdata/between.json")
	_, f := measured(t, o)
	dir := filepath.Join(o.Out, record.GuardFolder, "1")
	for _, change := range []func() error{
		func() error {
			return os.WriteFile(filepath.Join(dir, evidence.StderrFile), []byte("nothing happened"), 0o644)
		},
		func() error { return os.RemoveAll(dir) },
	} {
		if err := change(); err != nil {
			t.Fatal(err)
		}
		r, _, err := Verify(o.Out)
		if err != nil || len(r.Failed()) != 1 || r.Failed()[0].Rule != record.GuardRule {
			t.Errorf("%v %+v", err, r.Failed())
		}
	}
	if detail := judgeGuard(&evidence.Report{Holds: true, Probe: evidence.MeasureOperation, RunID: "x", CleanupComplete: true}, f.Segments[0], false); !strings.Contains(detail, "another run") {
		t.Error(detail)
	}
	if detail := judgeGuard(&evidence.Report{Holds: true, Probe: evidence.MeasureOperation, RunID: f.Segments[0].RunID}, f.Segments[0], true); !strings.Contains(detail, "isn't proven") {
		t.Error(detail)
	}
}

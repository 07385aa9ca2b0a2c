//go:build linux

package interfere

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"cotenant/internal/bounded"
	"cotenant/internal/gputest"
	"cotenant/internal/inspect"
	"cotenant/internal/interfere/record"
	"cotenant/internal/probe"
)

func TestMain(m *testing.M) {
	tasks := inspect.Tasks()
	for _, more := range []map[string]bounded.Task{probe.Tasks(), Tasks()} {
		for name, task := range more {
			tasks[name] = task
		}
	}
	bounded.ServeChild(tasks)
	serveRun()
	code := m.Run()
	gputest.Cleanup()
	os.Exit(code)
}

const testUUID = "GPU-11111111-2222-3333-4444-555555555555"

func testHost(faults ...gputest.Fault) gputest.Host {
	return gputest.Host{Name: "interfere", CUDA: []gputest.CUDA{{Version: 13000}}, NVML: []gputest.NVML{{Driver: "580.159.04", CUDA: 13000}}, MPS: &gputest.MPS{Version: 13000},
		GPUs:   []gputest.GPU{{UUID: testUUID, Name: "NVIDIA H200", Bus: "00000000:06:00.0", CC: "9.0", SMs: 132, Memory: 150754820096, Reserved: 600 << 20, ECC: true}},
		Faults: faults}
}

func options(t *testing.T, m *gputest.Machine, plan string) Options {
	o := Options{PlanFile: plan}
	o.Common = probe.Common{GPUUUID: testUUID, Confirm: true, Out: filepath.Join(t.TempDir(), "run"), Root: m.Root, Env: m.Env}
	return o
}

// measured runs a plan and verifies what it left.
func measured(t *testing.T, o Options) (Outcome, *record.Folder) {
	t.Helper()
	out, err := Run(context.Background(), o)
	if err != nil || out.Exit != 0 {
		noise, _ := os.ReadFile(filepath.Join(o.Out, record.GuardFolder, "1", "stderr.txt"))
		t.Fatalf("exit %d: %s %v\n%s", out.Exit, out.Why, err, noise)
	}
	r, f, err := Verify(o.Out)
	if err != nil {
		t.Fatal(err)
	}
	if !r.Holds {
		t.Fatalf("%+v", r.Failed())
	}
	return out, f
}

// Every kernel is checked, every cell of one process is measured, and the folder holds.
func TestOneProcess(t *testing.T) {
	m := gputest.Start(t, testHost())
	out, f := measured(t, options(t, m, "testdata/small.json"))
	if out.Ledger.State != "complete" || out.Blocks != out.Planned || len(f.Rows) == 0 {
		t.Errorf("%d of %d blocks, %s", out.Blocks, out.Planned, out.Ledger.State)
	}
	for _, c := range out.Ledger.Cells {
		if c.State != record.Measured || c.Cell.Victim != "" && (c.Launches != 6 || c.Dropped != 2) {
			t.Errorf("cell %s: %s, %d launches, %d dropped", c.ID, c.State, c.Launches, c.Dropped)
		}
		if c.Aggressor != "" && (c.Neighbour == nil || c.Neighbour.US <= 0) {
			t.Errorf("cell %s: the aggressor wasn't counted", c.ID)
		}
	}
	s := f.Segments[0]
	if len(s.Checks) != 10 {
		t.Errorf("%d checks of 10 workloads: %+v", len(s.Checks), s.Checks)
	}
	i := slices.IndexFunc(s.Made, func(m record.Made) bool { return m.Mechanism == "green:16" })
	if i < 0 || s.Made[i].VictimSMs != 16 || s.Made[i].AggressorSMs != 116 {
		t.Errorf("made %+v", s.Made)
	}
	for _, m := range out.Ledger.Mechanisms {
		if (m.Kind == record.MPSStatic || m.Kind == record.MIG) && (m.Planned() || m.Reason == "") {
			t.Errorf("%s: %s %q", m.ID, m.Verdict, m.Reason)
		}
	}
	if len(m.Mutations()) == 0 || slices.ContainsFunc(m.Log(), func(l string) bool {
		return strings.HasPrefix(l, "mps") && !strings.Contains(l, "mps -v") && !strings.Contains(l, "get_")
	}) {
		t.Error("an MPS daemon was spoken to, and no mechanism of it was asked for")
	}
}

// Pairs of processes, time-sliced and as clients of a daemon of our own, with shares and priorities.
func TestBetweenProcesses(t *testing.T) {
	m := gputest.Start(t, testHost())
	out, f := measured(t, options(t, m, "testdata/between.json"))
	if out.Ledger.State != "complete" {
		t.Error(out.Ledger.State)
	}
	made := make(map[string]record.Made)
	for _, x := range f.Segments[0].Made {
		made[x.Mechanism] = x
		if x.Failure != "" {
			t.Errorf("%s: %s", x.Mechanism, x.Failure)
		}
	}
	if x := made["mps_percent:25"]; x.VictimSMs != 32 || x.AggressorSMs != 98 {
		t.Errorf("shares of 25 and 75 %% made %+v", x)
	}
	if x := made[record.MPSBelow]; x.VictimSMs != 132 || x.AggressorSMs != 132 {
		t.Errorf("priorities made %+v", x)
	}
}

// Static partitions of a daemon that has them: of two chunks and of all others, removed before it quits.
func TestStaticPartitions(t *testing.T) {
	h := testHost()
	h.CUDA[0].Version, h.NVML[0].CUDA, h.NVML[0].Driver, h.MPS.Version = 13010, 13010, "590.48.01", 13010
	m := gputest.Start(t, h)
	out, f := measured(t, options(t, m, "testdata/static.json"))
	if out.Ledger.State != "complete" {
		t.Error(out.Ledger.State)
	}
	i := slices.IndexFunc(f.Segments[0].Made, func(m record.Made) bool { return m.Mechanism == "mps_static:2" })
	if i < 0 || f.Segments[0].Made[i] != (record.Made{Mechanism: "mps_static:2", VictimSMs: 16, AggressorSMs: 104}) {
		t.Errorf("made %+v", f.Segments[0].Made)
	}
	removed := 0
	for _, line := range m.Log() {
		if strings.Contains(line, "sm_partition rm") {
			removed++
		}
	}
	if removed != 2 {
		t.Errorf("%d partitions were removed:\n%s", removed, strings.Join(m.Mutations(), "\n"))
	}
	// The second split of one plan is refused with its reason.
	for _, c := range out.Ledger.Cells {
		if other := c.Mechanism == "mps_static:4"; other != (c.State == record.Failed) {
			t.Errorf("cell %s: %s %s", c.ID, c.State, c.Reason)
		}
	}
}

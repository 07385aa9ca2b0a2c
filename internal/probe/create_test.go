//go:build linux

package probe

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"cotenant/internal/bounded"
	"cotenant/internal/gputest"
	"cotenant/internal/inspect"
	"cotenant/internal/observe"
	"cotenant/internal/partition"
	"cotenant/internal/probe/evidence"
)

func TestMain(m *testing.M) {
	tasks := inspect.Tasks()
	for name, task := range Tasks() {
		tasks[name] = task
	}
	bounded.ServeChild(tasks)
	serveSupervisor()
	code := m.Run()
	gputest.Cleanup()
	os.Exit(code)
}

const testUUID = "GPU-11111111-2222-3333-4444-555555555555"

// testHost is an H200 with nothing else on it.
func testHost(change ...func(*gputest.Host)) gputest.Host {
	h := gputest.Host{Name: "probe", CUDA: []gputest.CUDA{{Version: 13000}}, NVML: []gputest.NVML{{Driver: "580.159.04", CUDA: 13000}},
		GPUs:  []gputest.GPU{{UUID: testUUID, Name: "NVIDIA H200", Bus: "00000000:06:00.0", CC: "9.0", SMs: 132, Memory: 150754820096, Reserved: 600 << 20, ECC: true}},
		Files: map[string]string{"/dev/kmsg": "6,1,1,-;NVRM: Xid (PCI:0000:06:00): 13, an old one\n"}}
	for _, c := range change {
		c(&h)
	}
	return h
}

func withVersion(v int) func(*gputest.Host) {
	return func(h *gputest.Host) { h.CUDA[0].Version, h.NVML[0].CUDA = v, v }
}

func withFaults(f ...gputest.Fault) func(*gputest.Host) {
	return func(h *gputest.Host) { h.Faults = f }
}

func options(t *testing.T, m *gputest.Machine) CreateOptions {
	return CreateOptions{Common: Common{GPUUUID: testUUID, Confirm: true, Out: filepath.Join(t.TempDir(), "run"), Root: m.Root, Env: m.Env, Deadline: 10 * time.Second},
		Plan: partition.Plan{SMs: []int{16, partition.Rest}}}
}

func create(t *testing.T, o CreateOptions) (Outcome, *evidence.CreateResult) {
	t.Helper()
	out, err := Create(context.Background(), o)
	if err != nil {
		t.Fatal(err)
	}
	r, _ := out.Result.(*evidence.CreateResult)
	return out, r
}

func dump(v any) string {
	text, _ := json.MarshalIndent(v, "", " ")
	return string(text)
}

func TestCreate(t *testing.T) {
	m := gputest.Start(t, testHost())
	o := options(t, m)
	o.Cycles, o.Map = 5, true
	out, r := create(t, o)
	if out.Exit != ExitDone || r == nil {
		t.Fatalf("exit %d, %s\n%s", out.Exit, out.Why, dump(out))
	}
	if !r.MutatedState || !r.CleanupComplete || r.Outcome != evidence.Completed || r.DriverVersion != "13.0" || r.Runtime != nil || r.RuntimeReason == "" {
		t.Errorf("%s", dump(r))
	}
	p := r.Resources.Partitions
	if len(p) != 2 || p[0].Granted != 16 || len(p[0].SMIDs) != 16 || p[1].Granted != 116 || len(p[1].SMIDs) != 116 || !r.Overlap.Disjoint || r.Overlap.TogetherNS <= 0 {
		t.Errorf("partitions %s, overlap %+v", dump(p), r.Overlap)
	}
	if m := r.Cleanup.Memory; m.InProcess.Verdict != evidence.Kept || m.InProcess.KeptBytes != 8<<20 || m.Outside.Verdict != evidence.Returned {
		t.Errorf("memory %s", dump(m))
	}
	if c := r.Cycles; c == nil || len(c.Rows) != 5 || c.Contexts != 2 || c.KeptPerContext != 4<<20 {
		t.Errorf("cycles %s", dump(r.Cycles))
	}
	if len(r.Map) != 2*134 || r.TooMuch == nil || r.TooMuch.Code != 915 {
		t.Errorf("%d rows, too much %+v", len(r.Map), r.TooMuch)
	}
	if r.Features.Heterogeneous.Status != observe.Unavailable || r.Features.Workqueues.Status != observe.Unavailable {
		t.Errorf("features %+v", r.Features)
	}
	if r.Health.GPU.Status != observe.SupportedProven || r.Health.Xid.Status != observe.SupportedProven || len(r.Health.Xids) != 0 {
		t.Errorf("health %s", dump(r.Health))
	}
	leftNothing(t, out)
}

// leftNothing holds a run's folder and this machine against what a run may leave.
func leftNothing(t *testing.T, out Outcome) {
	t.Helper()
	if pids := ours(out.Plan.RunID); len(pids) > 0 {
		t.Errorf("processes %v are left", pids)
	}
	entries, torn, err := evidence.ReadJournal(out.Folder)
	if err != nil || torn {
		t.Fatalf("journal: %v, torn %v", err, torn)
	}
	for _, e := range entries {
		if f := e.Detail["folder"]; f != "" && e.Step == "make_private_folder" {
			if _, err := os.Stat(f); err == nil {
				t.Errorf("folder %s is left", f)
			}
		}
	}
	var man evidence.Manifest
	content, err := evidence.Read(out.Folder, evidence.ManifestFile)
	if err != nil {
		t.Fatal(err)
	}
	if err := evidence.Decode(evidence.ManifestFile, content, &man); err != nil {
		t.Fatal(err)
	}
	v, err := evidence.Verify(out.Folder)
	if err != nil {
		t.Fatal(err)
	}
	if !v.Holds {
		t.Errorf("the evidence doesn't verify: %+v", v.Failed())
	}
	if man.ExitCode != out.Exit || man.RunID != out.Plan.RunID || len(man.Files) < 3 {
		t.Errorf("manifest %s", dump(man))
	}
}

// Newer drivers have more, and it is tried.
func TestCreateFeatures(t *testing.T) {
	m := gputest.Start(t, testHost(withVersion(13010)))
	o := options(t, m)
	o.Plan = partition.Plan{SMs: []int{16, 64}}
	out, r := create(t, o)
	if out.Exit != ExitDone || r.Resources.Method != "heterogeneous" || r.Features.Heterogeneous.Status != observe.SupportedProven ||
		r.Features.Workqueues.Status != observe.SupportedProven || r.Resources.Partitions[1].StreamSMs.Or(0) != 64 {
		t.Errorf("exit %d %s\n%s", out.Exit, out.Why, dump(r))
	}
}

func TestCreateGroups(t *testing.T) {
	for groups, size := range map[int]int{1: 128, 8: 16, 16: 8} {
		m := gputest.Start(t, testHost(withVersion(12050)))
		o := options(t, m)
		o.Plan = partition.Plan{Groups: groups}
		out, r := create(t, o)
		if out.Exit != ExitDone || len(r.Resources.Partitions) != groups || r.Resources.Partitions[0].Granted != size || r.Resources.LimitsReported {
			t.Errorf("%d groups: exit %d %s\n%s", groups, out.Exit, out.Why, dump(r))
		}
	}
}

// Without --confirm nothing is made, and nothing is written.
func TestPreview(t *testing.T) {
	m := gputest.Start(t, testHost())
	o := options(t, m)
	o.Confirm = false
	out, r := create(t, o)
	if out.Exit != ExitDone || r != nil || !out.Plan.Go || len(out.Plan.Steps) < 5 {
		t.Errorf("%s", dump(out))
	}
	if got := m.Mutations(); len(got) > 0 {
		t.Errorf("mutations %q", got)
	}
	if _, err := os.Stat(o.Out); err == nil {
		t.Error("a folder was made")
	}
}

// Each gate that says no stops a confirmed run before anything is made, and an override lets it go on where there is one.
func TestGates(t *testing.T) {
	gpu := func(f func(*gputest.GPU)) func(*gputest.Host) {
		return func(h *gputest.Host) { f(&h.GPUs[0]) }
	}
	for _, c := range []struct {
		gate     string
		change   func(*gputest.Host)
		options  func(*CreateOptions)
		override func(*CreateOptions)
	}{
		{"uuid_bound", gpu(func(g *gputest.GPU) { g.UUID = "GPU-99999999-2222-3333-4444-555555555555" }), nil, nil},
		{"driver_and_symbols", withVersion(12040), nil, nil},
		{"driver_and_runtime_match", func(h *gputest.Host) { h.NVML[0].CUDA = 13010 }, nil, nil},
		{"driver_and_runtime_match", func(h *gputest.Host) { h.Runtime = []gputest.Runtime{{Version: 14000}} }, nil, nil},
		{"device_state", gpu(func(g *gputest.GPU) { g.UncorrectedECC = 3 }), nil, nil},
		{"cleanup_provable", gpu(func(g *gputest.GPU) {
			g.Codes = map[string]int{"nvmlDeviceGetMemoryInfo": 3, "nvmlDeviceGetMemoryInfo_v2": 3}
		}), nil, nil},
		{"compute_mode", gpu(func(g *gputest.GPU) { g.ComputeMode = 2 }), nil, nil},
		{"no_processes", gpu(func(g *gputest.GPU) { g.Compute = []gputest.Process{{PID: 4242, Used: 1 << 30}}; g.Used = 1 << 30 }), nil,
			func(o *CreateOptions) { o.AllowProcesses = true }},
		{"no_display", gpu(func(g *gputest.GPU) { g.Display = true }), nil, func(o *CreateOptions) { o.AllowDisplay = true }},
		{"no_mps", func(h *gputest.Host) { h.MPS = &gputest.MPS{Version: 13000, Daemons: []gputest.MPSDaemon{{PID: 4711}}} }, nil,
			func(o *CreateOptions) { o.AllowMPS = true }},
		{"plan_fits", func(*gputest.Host) {}, func(o *CreateOptions) { o.Plan = partition.Plan{SMs: []int{64, 72}} }, nil},
		{"plan_fits", func(*gputest.Host) {}, func(o *CreateOptions) { o.Plan = partition.Plan{Groups: 17} }, nil},
	} {
		m := gputest.Start(t, testHost(c.change))
		o := options(t, m)
		if c.options != nil {
			c.options(&o)
		}
		out, r := create(t, o)
		i := slices.IndexFunc(out.Plan.Gates, func(g evidence.Gate) bool { return g.ID == c.gate })
		if out.Exit != ExitNo || r != nil || i < 0 || out.Plan.Gates[i].Passes() || !strings.Contains(out.Why, c.gate) {
			t.Errorf("%s: exit %d, %s\n%s", c.gate, out.Exit, out.Why, dump(out.Plan.Gates))
			continue
		}
		if got := m.Mutations(); len(got) > 0 {
			t.Errorf("%s: mutations %q", c.gate, got)
		}
		leftNothing(t, out)
		if c.override == nil {
			continue
		}
		c.override(&o)
		o.Out += "-overridden"
		out, r = create(t, o)
		if out.Exit != ExitDone && !strings.Contains(out.Why, "cleanup") || r == nil || len(out.Plan.Overrides) != 1 {
			t.Errorf("%s overridden: exit %d, %s, overrides %v", c.gate, out.Exit, out.Why, out.Plan.Overrides)
		}
	}
}

func TestBlocked(t *testing.T) {
	for _, change := range []func(*gputest.Host){
		func(h *gputest.Host) { h.CUDA = nil },
		func(h *gputest.Host) { h.CUDA[0].Init = 100 },
		func(h *gputest.Host) { h.CUDA[0].Init = 803 },
	} {
		m := gputest.Start(t, testHost(change))
		o := options(t, m)
		if out, r := create(t, o); out.Exit != ExitBlocked || r != nil || out.Why == "" {
			t.Errorf("exit %d, %s", out.Exit, out.Why)
		}
	}
}

// Evidence is never written over.
func TestFolderNotEmpty(t *testing.T) {
	m := gputest.Start(t, testHost())
	o := options(t, m)
	if err := os.MkdirAll(o.Out, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(o.Out, "mine"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	out, r := create(t, o)
	if out.Exit != ExitNo || r != nil || out.Folder != "" {
		t.Errorf("exit %d, folder %q", out.Exit, out.Folder)
	}
	entries, _ := os.ReadDir(o.Out)
	if len(entries) != 1 {
		t.Errorf("%d files in somebody's folder", len(entries))
	}
}

//go:build linux && (amd64 || arm64) && !nocuda

package query_test

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"cotenant/internal/bounded"
	"cotenant/internal/cuda/query"
	"cotenant/internal/gputest"
	"cotenant/internal/observe"
)

func TestMain(m *testing.M) {
	bounded.ServeChild(query.Tasks())
	code := m.Run()
	gputest.Cleanup()
	os.Exit(code)
}

func h200() gputest.GPU {
	return gputest.GPU{UUID: "GPU-11111111-2222-3333-4444-555555555555", Name: "NVIDIA H200", Bus: "00000000:06:00.0", CC: "9.0",
		SMs: 132, Memory: 150754820096, ECC: true}
}

func inspect(t *testing.T, h gputest.Host) (query.Report, *gputest.Machine) {
	t.Helper()
	m := gputest.Start(t, h)
	r := query.Driver(context.Background(), query.Options{Root: m.Root, Env: m.Env})
	if got := m.Mutations(); len(got) > 0 {
		t.Errorf("mutating calls: %q", got)
	}
	return r, m
}

// What an H200 with driver 580 said: 132 SMs, minimum 8, alignment 8, no 13.1 symbols.
func TestH200(t *testing.T) {
	r, m := inspect(t, gputest.Host{CUDA: []gputest.CUDA{{Version: 13000}}, GPUs: []gputest.GPU{h200()}})
	if r.Status != observe.SupportedProven || !r.MPSBypassed {
		t.Fatalf("status %s, %s", r.Status, r.Reason)
	}
	if len(r.Attempts) != 1 || r.Attempts[0].Outcome != bounded.Exited {
		t.Errorf("attempts %+v", r.Attempts)
	}
	if got, want := r.Library.Path, m.Path("/usr/lib/x86_64-linux-gnu/libcuda.so.1"); got != want {
		t.Errorf("path %s, want %s", got, want)
	}
	if len(r.Devices) != 1 {
		t.Fatalf("%d devices", len(r.Devices))
	}
	d := r.Devices[0]
	for name, c := range map[string]struct{ got, want any }{
		"uuid":      {d.UUID.Or(""), "11111111-2222-3333-4444-555555555555"},
		"name":      {d.Name.Or(""), "NVIDIA H200"},
		"pci":       {d.PCI.Or(""), "0000:06:00.0"},
		"cc":        {d.ComputeCapability.Or(""), "9.0"},
		"sms":       {d.SMCount.Or(0), int64(132)},
		"memory":    {d.MemoryBytes.Or(0), uint64(150754820096)},
		"resource":  {d.SM.Or(query.SMResource{}).Count, uint32(132)},
		"minimum":   {d.SM.Or(query.SMResource{}).MinPartition.Or(0), uint32(8)},
		"alignment": {d.SM.Or(query.SMResource{}).Alignment.Or(0), uint32(8)},
		"raw":       {strings.HasPrefix(d.SM.Or(query.SMResource{}).Raw, "840000000800000008000000"), true},
		"flags":     {d.SM.Or(query.SMResource{}).Flags.OK(), false},
		"workqueue": {d.WorkqueueConfig.Reason, "not before CUDA 13.1"},
		"domains":   {d.Attributes["locality_domain_count"].Reason, "not before CUDA 13.4"},
		"mode":      {d.Attributes["compute_mode"].OK(), true},
	} {
		if c.got != c.want {
			t.Errorf("%s: got %v, want %v", name, c.got, c.want)
		}
	}
	for name, want := range map[string]bool{"cuGreenCtxCreate": true, "cuGreenCtxGetId": true, "cuGreenCtxStreamCreate": true,
		"cuDevSmResourceSplit": false, "cuStreamGetDevResource": false} {
		if got, asked := r.Symbols[name]; got != want || !asked {
			t.Errorf("symbol %s: %v, want %v", name, got, want)
		}
	}
}

// Each driver version reports the fields that it has, and what it lacks is absent rather than the garbage that the fake leaves
// there.
func TestResourceByVersion(t *testing.T) {
	for _, c := range []struct {
		version                                  int
		resource, limits, flags, domain, workers bool
	}{
		{12030, false, false, false, false, false},
		{12040, true, false, false, false, false},
		{12080, true, false, false, false, false},
		{13000, true, true, false, false, false},
		{13010, true, true, true, false, true},
		{13040, true, true, true, true, true},
	} {
		r, _ := inspect(t, gputest.Host{CUDA: []gputest.CUDA{{Version: c.version}}, GPUs: []gputest.GPU{h200()}})
		if len(r.Devices) != 1 {
			t.Fatalf("%d: %s", c.version, r.Reason)
		}
		d := r.Devices[0]
		sm, ok := d.SM.Get()
		got := []bool{ok, sm.MinPartition.OK(), sm.Flags.OK(), sm.LocalityDomain.OK(), d.WorkqueueConfig.OK() && d.Workqueue.OK()}
		if diff := cmp.Diff([]bool{c.resource, c.limits, c.flags, c.domain, c.workers}, got); diff != "" {
			t.Errorf("%d: %s", c.version, diff)
		}
		for symbol, since := range query.Introduced() {
			if r.Symbols[symbol] != (c.version >= since) {
				t.Errorf("%d: %s %v, introduced in %d", c.version, symbol, r.Symbols[symbol], since)
			}
		}
	}
}

func TestInitCodes(t *testing.T) {
	for code, want := range map[query.Code]observe.Status{
		query.NoDevice:                   observe.Unavailable,
		query.DeviceUnavailable:          observe.Busy,
		query.SystemNotReady:             observe.BlockedByDeviceState,
		query.SystemDriverMismatch:       observe.BlockedByEnvironment,
		query.CompatNotSupportedOnDevice: observe.BlockedByEnvironment,
		query.NotPermitted:               observe.PermissionDenied,
		query.MPSServerNotReady:          observe.BlockedByMode,
		query.Unknown:                    observe.Unknown,
	} {
		r, _ := inspect(t, gputest.Host{CUDA: []gputest.CUDA{{Version: 13000, Init: int(code)}}, GPUs: []gputest.GPU{h200()}})
		if r.Status != want || !strings.Contains(r.Reason, code.Name()) {
			t.Errorf("%v: %s, %q, want %s", code, r.Status, r.Reason, want)
		}
		if r.DriverVersion.Or(0) != 13000 {
			t.Errorf("%v: the version needs no cuInit, got %+v", code, r.DriverVersion)
		}
	}
}

// A stub, a compatibility package or a driver library that isn't WSL's comes first on the loader's path; the right one is found.
func TestWrongLibraryFirst(t *testing.T) {
	for name, c := range map[string]struct {
		libraries []gputest.CUDA
		files     map[string]string
		want      string
	}{
		"stub": {[]gputest.CUDA{{Folder: "/usr/local/cuda/lib64/stubs", Version: 12080, Init: 34}, {Version: 13000, Hidden: true}}, nil,
			"/usr/lib/x86_64-linux-gnu/libcuda.so.1"},
		"compat": {[]gputest.CUDA{{Folder: "/usr/local/cuda/compat", Version: 13010, Init: 804}, {Version: 12040, Hidden: true}}, nil,
			"/usr/lib/x86_64-linux-gnu/libcuda.so.1"},
		"wsl": {[]gputest.CUDA{{Version: 12040, Init: 100}, {Folder: "/usr/lib/wsl/lib", Version: 13030, Hidden: true}},
			map[string]string{"/dev/dxg": ""}, "/usr/lib/wsl/lib/libcuda.so.1"},
	} {
		r, m := inspect(t, gputest.Host{CUDA: c.libraries, GPUs: []gputest.GPU{h200()}, Files: c.files})
		if r.Status != observe.SupportedProven || r.Library.Path != m.Path(c.want) || len(r.Devices) != 1 {
			t.Errorf("%s: %s, %s, %+v", name, r.Status, r.Reason, r.Library)
		}
		if want := 2; name != "wsl" && len(r.Attempts) != want {
			t.Errorf("%s: %d attempts, want %d", name, len(r.Attempts), want)
		}
	}
}

func TestFaults(t *testing.T) {
	for name, c := range map[string]struct {
		fault   gputest.Fault
		status  observe.Status
		calling string
		devices int
	}{
		"hang":        {gputest.Fault{Symbol: "cuInit", Action: gputest.Hang}, observe.Hung, "cuInit", 0},
		"late hang":   {gputest.Fault{Symbol: "cuDeviceGetName", Call: 2, Action: gputest.Hang}, observe.Hung, "cuDeviceGetName", 1},
		"crash":       {gputest.Fault{Symbol: "cuDeviceGetCount", Action: gputest.Crash}, observe.Unknown, "cuDeviceGetCount", 0},
		"exit":        {gputest.Fault{Symbol: "cuDeviceTotalMem_v2", Call: 2, Action: gputest.Exit}, observe.Unknown, "cuDeviceTotalMem_v2", 1},
		"noise":       {gputest.Fault{Symbol: "cuDeviceGetName", Action: gputest.Noise}, observe.SupportedProven, "", 2},
		"late code":   {gputest.Fault{Symbol: "cuDeviceGetUuid_v2", Call: 2, Code: 999}, observe.SupportedProven, "", 2},
		"lie":         {gputest.Fault{Symbol: "cuDeviceGetDevResource", Action: gputest.Lie}, observe.SupportedProven, "", 2},
		"lying count": {gputest.Fault{Symbol: "cuDeviceGetCount", Action: gputest.Lie}, observe.SupportedProven, "", 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			second := h200()
			second.UUID, second.Bus = "GPU-99999999-2222-3333-4444-555555555555", "0000000F:01:00.0"
			m := gputest.Start(t, gputest.Host{CUDA: []gputest.CUDA{{Version: 13000}}, GPUs: []gputest.GPU{h200(), second}, Faults: []gputest.Fault{c.fault}})
			limit := time.Minute
			if c.fault.Action == gputest.Hang {
				limit = 5 * time.Second // until it is where it hangs, on a busy machine
			}
			start := time.Now()
			r := query.Driver(context.Background(), query.Options{Root: m.Root, Env: m.Env, Timeout: limit})
			if took := time.Since(start); took > limit+bounded.Overrun+20*time.Second {
				t.Errorf("took %v", took)
			}
			if r.Status != c.status || r.Attempts[0].Calling != c.calling || len(r.Devices) != c.devices {
				t.Errorf("status %s (%s), calling %q, %d devices", r.Status, r.Reason, r.Attempts[0].Calling, len(r.Devices))
			}
			switch name {
			case "noise":
				if !strings.Contains(r.Attempts[0].Noise, "on stdout") || !strings.Contains(r.Attempts[0].Noise, "on stderr") {
					t.Errorf("noise %q", r.Attempts[0].Noise)
				}
			case "late code":
				if u := r.Devices[1].UUID; u.OK() || u.Reason != "CUDA_ERROR_UNKNOWN" {
					t.Errorf("uuid %+v", u)
				}
			case "lie":
				if sm := r.Devices[0].SM; sm.OK() || !strings.Contains(sm.Reason, "type is 0") {
					t.Errorf("resource %+v", sm)
				}
			}
			if got := m.Mutations(); len(got) > 0 {
				t.Errorf("mutating calls: %q", got)
			}
		})
	}
}

// A running MPS daemon is hidden from libcuda: no server is started, and the child's private folder is gone afterwards.
func TestMPSIsBypassed(t *testing.T) {
	h := gputest.Host{CUDA: []gputest.CUDA{{Version: 13000}}, GPUs: []gputest.GPU{h200()},
		MPS: &gputest.MPS{Version: 13000, Daemons: []gputest.MPSDaemon{{PID: 77}}}}
	temp := t.TempDir() // other packages' tests use the common one at the same time
	t.Setenv("TMPDIR", temp)
	_, m := inspect(t, h)
	if left, _ := filepath.Glob(filepath.Join(temp, "cotenant-mps-*")); len(left) > 0 {
		t.Errorf("left behind %q", left)
	}
	// The same library in a process that can see the daemon does start one: the test can fail.
	res := bounded.Child(context.Background(), query.DriverTask, map[string]any{"names": []string{m.Path("/usr/lib/x86_64-linux-gnu/libcuda.so.1")}}, m.Env, 0)
	if !res.Done || len(m.Mutations()) != 1 {
		t.Errorf("without isolation: done %v, mutations %q", res.Done, m.Mutations())
	}
}

func TestAbsent(t *testing.T) {
	r, _ := inspect(t, gputest.Host{})
	if r.Status != observe.Unavailable || len(r.Devices) != 0 {
		t.Errorf("%s, %s", r.Status, r.Reason)
	}
	m := gputest.Start(t, gputest.Host{Files: map[string]string{"/usr/lib64/libcuda.so.1": "not a library"}})
	r = query.Driver(context.Background(), query.Options{Root: m.Root, Env: m.Env})
	if r.Status != observe.Unavailable || !strings.Contains(r.Reason, "libcuda.so.1") {
		t.Errorf("a file that is no library: %s, %s", r.Status, r.Reason)
	}
}

// Without another root the loader itself searches, here by LD_LIBRARY_PATH.
func TestLoaderSearches(t *testing.T) {
	m := gputest.Start(t, gputest.Host{CUDA: []gputest.CUDA{{Version: 13010}}, GPUs: []gputest.GPU{h200()}})
	r := query.Driver(context.Background(), query.Options{Env: m.Env})
	if r.Status != observe.SupportedProven || r.Library.Name != "libcuda.so.1" || !strings.HasPrefix(r.Library.Path, m.Root) {
		t.Errorf("%s, %s, %+v", r.Status, r.Reason, r.Library)
	}
}

func TestRuntime(t *testing.T) {
	for version, present := range map[int]bool{13020: true, 13000: false, 12080: false, 11080: false} {
		m := gputest.Start(t, gputest.Host{Runtime: []gputest.Runtime{{Version: version, Hidden: version == 13020}}})
		r := query.Runtime(context.Background(), query.Options{Root: m.Root, Env: m.Env})
		if r.Status != observe.SupportedProven || r.Version.Or(0) != version {
			t.Errorf("%d: %s, %s, %+v", version, r.Status, r.Reason, r.Version)
		}
		for _, symbol := range []string{"cudaGreenCtxCreate", "cudaDevSmResourceSplitByCount", "cudaDeviceGetDevResource",
			"cudaDevResourceGenerateDesc", "cudaExecutionCtxStreamCreate", "cudaExecutionCtxGetDevResource"} {
			if got, asked := r.Symbols[symbol]; got != present || !asked {
				t.Errorf("%d: %s %v, want %v", version, symbol, got, present)
			}
		}
		if log := m.Log(); len(log) != 1 || log[0] != "cudaRuntimeGetVersion" {
			t.Errorf("%d: calls %q", version, log)
		}
	}
	m := gputest.Start(t, gputest.Host{})
	if r := query.Runtime(context.Background(), query.Options{Root: m.Root, Env: m.Env}); r.Status != observe.Unavailable {
		t.Errorf("absent: %s", r.Status)
	}
}

// The report is the same bytes each time, but for times.
func TestStable(t *testing.T) {
	m := gputest.Start(t, gputest.Host{CUDA: []gputest.CUDA{{Version: 13010}}, GPUs: []gputest.GPU{h200()}})
	text := func() string {
		r := query.Driver(context.Background(), query.Options{Root: m.Root, Env: m.Env})
		for i := range r.Attempts {
			r.Attempts[i].WallUS, r.Attempts[i].Init.WallUS = 0, 0
		}
		r.Init.WallUS = 0
		b, err := json.Marshal(r)
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	if a, b := text(), text(); a != b {
		t.Error(cmp.Diff(a, b))
	}
}

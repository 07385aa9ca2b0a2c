//go:build linux && (amd64 || arm64) && !nocuda

package nvml_test

import (
	"context"
	"errors"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"cotenant/internal/bounded"
	"cotenant/internal/gputest"
	"cotenant/internal/nvml"
	"cotenant/internal/observe"
)

func TestMain(m *testing.M) {
	bounded.ServeChild(nvml.Tasks())
	code := m.Run()
	gputest.Cleanup()
	os.Exit(code)
}

func inspect(t *testing.T, h gputest.Host) (nvml.Report, *gputest.Machine) {
	t.Helper()
	m := gputest.Start(t, h)
	r := nvml.Inspect(context.Background(), nvml.Options{Root: m.Root, Env: m.Env})
	if got := m.Mutations(); len(got) > 0 {
		t.Errorf("mutating calls: %q", got)
	}
	return r, m
}

func h200() gputest.GPU {
	g := gputest.Named("h200-r580").GPUs[0]
	g.Compute = []gputest.Process{{PID: 4242, Used: 5 << 30}, {PID: 4243, Used: 1<<64 - 1}}
	g.Graphics = []gputest.Process{{PID: 17, Used: 1 << 20}}
	for i := range 40 {
		g.MPSClients = append(g.MPSClients, gputest.Process{PID: 5000 + i, Used: 1 << 20})
	}
	g.Throttle = 1<<2 | 1<<63
	return g
}

func TestDevice(t *testing.T) {
	r, _ := inspect(t, gputest.Host{NVML: []gputest.NVML{{Driver: "580.159.04", CUDA: 13000}}, GPUs: []gputest.GPU{h200()}})
	if r.Status != observe.SupportedProven || len(r.Devices) != 1 || r.System == nil {
		t.Fatalf("%s: %s", r.Status, r.Reason)
	}
	d := r.Devices[0]
	for name, c := range map[string]struct{ got, want any }{
		"driver":       {r.System.DriverVersion.Or(""), "580.159.04"},
		"nvml":         {r.System.NVMLVersion.Or(""), "13.580.159.04"},
		"cuda":         {r.System.CUDAVersion.Or(0), 13000},
		"cc feature":   {r.System.ConfidentialCompute.OK(), true},
		"uuid":         {d.UUID.Or(""), h200().UUID},
		"name":         {d.Name.Or(""), "NVIDIA H200"},
		"bus":          {d.PCI.Or(nvml.PCI{}).BusID, "00000000:07:00.0"},
		"bus number":   {d.PCI.Or(nvml.PCI{}).Bus, uint32(7)},
		"cc":           {d.ComputeCapability.Or(""), "9.0"},
		"arch":         {d.Architecture.Or(""), "hopper"},
		"cores":        {d.Cores.Or(0), uint32(132 * 128)},
		"total":        {d.Memory.Or(nvml.Memory{}).TotalBytes, uint64(150754820096)},
		"reserved":     {d.Memory.Or(nvml.Memory{}).ReservedBytes.Or(0), uint64(600 << 20)},
		"used":         {d.Memory.Or(nvml.Memory{}).UsedBytes, uint64(0)},
		"free":         {d.Memory.Or(nvml.Memory{}).FreeBytes, uint64(150754820096 - 600<<20)},
		"mode":         {d.ComputeMode.Or(""), "default"},
		"persistence":  {d.Persistence.Or(false), true},
		"display":      {d.DisplayAttached.Or(true), false},
		"virt":         {d.Virtualization.Or(""), "none"},
		"addressing":   {d.AddressingMode.Or(""), "none"},
		"host vgpu":    {d.HostVGPUMode.Reason, "NVML_ERROR_NOT_SUPPORTED"},
		"mig":          {d.MIG.Current.Or(true), false},
		"profiles":     {len(d.MIG.Profiles), 7},
		"remaining":    {d.MIG.Profiles[0].Remaining.OK(), false},
		"limit":        {d.Power.LimitMW.Or(0), uint32(700000)},
		"energy":       {d.Power.EnergyMJ.Or(0), uint64(123456789)},
		"temperature":  {d.Power.TemperatureC.Or(0), int32(31)},
		"sm clock":     {d.Power.SMMHz.Or(0), uint32(345)},
		"memory clock": {d.Power.MemoryMHz.Or(0), uint32(2619)},
		"max clock":    {d.Power.MaxSMMHz.Or(0), uint32(1980)},
		"throttle":     {strings.Join(d.Power.Throttle.Or(nil), " "), "sw_power_cap bit 63"},
		"ecc":          {d.Health.ECCCurrent.Or(false), true},
		"uncorrected":  {d.Health.UncorrectedVolatile.OK(), true},
		"remapped":     {d.Health.Remapped.OK(), true},
		"fabric":       {d.Health.Fabric.Or(nvml.Fabric{}).State, "completed"},
		"repair":       {d.Health.Repair.OK(), true},
		"compute":      {len(d.Processes.Compute.Or(nil)), 2},
		"graphics":     {len(d.Processes.Graphics.Or(nil)), 1},
		"mps":          {len(d.Processes.MPS.Or(nil)), 40},
		"call":         {d.Processes.MPS.Call, "nvmlDeviceGetMPSComputeRunningProcesses_v3"},
	} {
		if c.got != c.want {
			t.Errorf("%s: got %v, want %v", name, c.got, c.want)
		}
	}
	compute := d.Processes.Compute.Or(nil)
	if compute[0].PID != 4242 || compute[0].UsedBytes.Or(0) != 5<<30 || compute[1].UsedBytes.OK() || compute[0].GPUInstance.OK() {
		t.Errorf("processes %+v", compute)
	}
	if p := d.MIG.Profiles[0]; p.Name != "MIG 1g.18gb" || p.SMs != 16 || p.Instances != 7 || len(p.Placements) != 7 {
		t.Errorf("profile %+v", p)
	}
}

// Old libraries lack calls, or refuse a struct's version: the older call or struct is used, and what none has is absent.
func TestOldLibraries(t *testing.T) {
	g := h200()
	g.MIG = gputest.Named("h100-mig-mixed").GPUs[0].MIG
	for exports, want := range map[int]struct {
		reserved, mig, names bool
		processes            string
		mps                  int
		throttle             string
	}{
		10020: {false, false, false, "nvmlDeviceGetComputeRunningProcesses", 0, "nvmlDeviceGetCurrentClocksThrottleReasons"},
		11000: {false, true, false, "nvmlDeviceGetComputeRunningProcesses_v2", 40, "nvmlDeviceGetCurrentClocksThrottleReasons"},
		11060: {true, true, true, "nvmlDeviceGetComputeRunningProcesses_v3", 40, "nvmlDeviceGetCurrentClocksThrottleReasons"},
		12020: {true, true, true, "nvmlDeviceGetComputeRunningProcesses_v3", 40, "nvmlDeviceGetCurrentClocksEventReasons"},
	} {
		r, _ := inspect(t, gputest.Host{NVML: []gputest.NVML{{Driver: "1.2", CUDA: exports}}, GPUs: []gputest.GPU{g}})
		if len(r.Devices) != 1 {
			t.Fatalf("%d: %s", exports, r.Reason)
		}
		d := r.Devices[0]
		if got := d.Memory.Or(nvml.Memory{}); got.TotalBytes != g.Memory || got.ReservedBytes.OK() != want.reserved {
			t.Errorf("%d: memory %+v", exports, got)
		}
		if d.Processes.Compute.Call != want.processes || len(d.Processes.Compute.Or(nil)) != 2 || len(d.Processes.MPS.Or(nil)) != want.mps {
			t.Errorf("%d: processes %+v", exports, d.Processes.Compute)
		}
		if d.Processes.Compute.Or(nil)[0].UsedBytes.Or(0) != 5<<30 || d.Processes.Compute.Or(nil)[1].PID != 4243 {
			t.Errorf("%d: a struct of another size was read: %+v", exports, d.Processes.Compute)
		}
		if d.Power.Throttle.Call != want.throttle || !d.Power.TemperatureC.OK() {
			t.Errorf("%d: throttle by %s", exports, d.Power.Throttle.Call)
		}
		if d.MIG.Current.OK() != want.mig || len(d.MIG.Devices) == 3 != want.mig {
			t.Errorf("%d: MIG %+v", exports, d.MIG)
		}
		if want.mig && (d.MIG.Profiles[0].Name != "") != want.names {
			t.Errorf("%d: profile %+v", exports, d.MIG.Profiles[0])
		}
		if d.AddressingMode.Reason != "not exported by this library" {
			t.Errorf("%d: addressing mode %+v", exports, d.AddressingMode)
		}
	}
}

// Slots with holes are scanned to their end.
func TestMIG(t *testing.T) {
	r, _ := inspect(t, gputest.Named("h100-mig-mixed"))
	m := r.Devices[0].MIG
	var slots, sms []int
	for _, d := range m.Devices {
		slots = append(slots, d.Slot)
		sms = append(sms, int(d.Attributes.Or(nvml.Attributes{}).SMs))
	}
	if diff := cmp.Diff([]int{0, 1, 4}, slots) + cmp.Diff([]int{60, 32, 16}, sms); diff != "" {
		t.Error(diff)
	}
	d := m.Devices[2]
	if d.UUID.Or("") != "MIG-377e0049-554c-540b-93c6-d0976f8426cd" || d.GPUInstance.Or(0) != 13 || d.Attributes.Or(nvml.Attributes{}).MemoryMiB != 9984 ||
		d.Memory.Or(nvml.Memory{}).TotalBytes != 9984<<20 || d.Name.Or("") != "NVIDIA H100 80GB HBM3 MIG 1g.10gb" {
		t.Errorf("%+v", d)
	}
	if !m.Current.Or(false) || !m.Pending.Or(false) || m.MaxDevices.Or(0) != 7 || m.Profiles[0].Remaining.Or(9) != 1 || m.Profiles[5].Remaining.Or(9) != 0 {
		t.Errorf("%+v", m)
	}
	r, _ = inspect(t, gputest.Named("h100-mig-pending"))
	if m := r.Devices[0].MIG; m.Current.Or(true) || !m.Pending.Or(false) || len(m.Devices) != 0 {
		t.Errorf("%+v", m)
	}
	r, _ = inspect(t, gputest.Named("a100-r450-mig"))
	if m := r.Devices[0].MIG; len(m.Devices) != 3 || !strings.HasPrefix(m.Devices[1].UUID.Or(""), "MIG-GPU-") {
		t.Errorf("%+v", m)
	}
}

func TestLost(t *testing.T) {
	r, _ := inspect(t, gputest.Named("gpu-lost"))
	if r.Status != observe.SupportedProven || len(r.Devices) != 3 {
		t.Fatalf("%s, %d devices", r.Status, len(r.Devices))
	}
	if h := r.Devices[1].Handle; h.OK() || h.Reason != "NVML_ERROR_GPU_IS_LOST" {
		t.Errorf("%+v", h)
	}
	if !r.Devices[0].UUID.OK() || !r.Devices[2].UUID.OK() {
		t.Error("the others are not read")
	}
	r, _ = inspect(t, gputest.Named("gb10-spark"))
	if d := r.Devices[0]; d.Memory.OK() || d.Memory.Reason != "NVML_ERROR_NOT_SUPPORTED" || d.PCI.Or(nvml.PCI{}).Domain != 15 || d.AddressingMode.Or("") != "ats" {
		t.Errorf("%+v", d)
	}
}

func TestInitCodes(t *testing.T) {
	for code, want := range map[nvml.Return]observe.Status{
		nvml.DriverNotLoaded:      observe.Unavailable,
		nvml.LibRMVersionMismatch: observe.BlockedByEnvironment,
		nvml.NoPermission:         observe.PermissionDenied,
		nvml.ResetRequired:        observe.BlockedByDeviceState,
		nvml.Unknown:              observe.Unknown,
	} {
		r, _ := inspect(t, gputest.Host{NVML: []gputest.NVML{{Driver: "580.1", CUDA: 13000, Init: int(code)}}, GPUs: []gputest.GPU{h200()}})
		if r.Status != want || !strings.Contains(r.Reason, code.Name()) || len(r.Devices) != 0 {
			t.Errorf("%v: %s, %q", code, r.Status, r.Reason)
		}
		if r.System.CUDAVersion.Or(0) != 13000 || r.System.DriverVersion.Reason != "NVML_ERROR_UNINITIALIZED" {
			t.Errorf("%v: %+v", code, r.System)
		}
	}
	r, _ := inspect(t, gputest.Host{})
	if r.Status != observe.Unavailable {
		t.Errorf("absent: %s", r.Status)
	}
	// A library that refuses the flags is initialised without them.
	r, m := inspect(t, gputest.Host{NVML: []gputest.NVML{{Driver: "580.1", CUDA: 13000}}, Faults: []gputest.Fault{{Symbol: "nvmlInitWithFlags", Code: 2}}})
	if r.Status != observe.SupportedProven || r.Init.Name != "nvmlInit_v2" || !slices.Contains(m.Log(), "nvmlShutdown") {
		t.Errorf("%s, %+v, %q", r.Status, r.Init, m.Log())
	}
}

func TestFaults(t *testing.T) {
	for name, c := range map[string]struct {
		fault   gputest.Fault
		status  observe.Status
		calling string
		devices int
	}{
		"hang":      {gputest.Fault{Symbol: "nvmlInitWithFlags", Action: gputest.Hang}, observe.Hung, "nvmlInitWithFlags", 0},
		"late hang": {gputest.Fault{Symbol: "nvmlDeviceGetName", Call: 2, Action: gputest.Hang}, observe.Hung, "nvmlDeviceGetName", 1},
		"crash":     {gputest.Fault{Symbol: "nvmlDeviceGetMigMode", Call: 2, Action: gputest.Crash}, observe.Unknown, "nvmlDeviceGetMigMode", 1},
		"lies":      {gputest.Fault{Symbol: "nvmlDeviceGetComputeRunningProcesses_v3", Action: gputest.Lie}, observe.SupportedProven, "", 2},
		"forever":   {gputest.Fault{Symbol: "nvmlDeviceGetMPSComputeRunningProcesses_v3", Code: 7}, observe.SupportedProven, "", 2},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			second := h200()
			second.UUID = "GPU-99999999-2222-3333-4444-555555555555"
			m := gputest.Start(t, gputest.Host{NVML: []gputest.NVML{{Driver: "580.1", CUDA: 13000}}, GPUs: []gputest.GPU{h200(), second}, Faults: []gputest.Fault{c.fault}})
			limit := time.Minute
			if c.fault.Action == gputest.Hang {
				limit = 5 * time.Second // until it is where it hangs, on a busy machine
			}
			start := time.Now()
			r := nvml.Inspect(context.Background(), nvml.Options{Root: m.Root, Env: m.Env, Timeout: limit})
			if took := time.Since(start); took > limit+bounded.Overrun+20*time.Second {
				t.Errorf("took %v", took)
			}
			if r.Status != c.status || r.Attempts[0].Calling != c.calling || len(r.Devices) != c.devices {
				t.Errorf("%s (%s), calling %q, %d devices", r.Status, r.Reason, r.Attempts[0].Calling, len(r.Devices))
			}
			if name == "forever" {
				if p := r.Devices[0].Processes.MPS; p.OK() || p.Reason != "NVML_ERROR_INSUFFICIENT_SIZE" {
					t.Errorf("%+v", p)
				}
			}
		})
	}
}

// Session asks in this process.
func TestSession(t *testing.T) {
	m := gputest.Start(t, gputest.Host{NVML: []gputest.NVML{{Driver: "580.1", CUDA: 13000}}, GPUs: []gputest.GPU{h200()}})
	s, err := nvml.Open(m.Path("/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1"))
	if err != nil {
		t.Fatal(err)
	}
	x, err := s.Sample(h200().UUID)
	if err != nil || x.PowerMW.Or(0) != 75000 || x.EnergyMJ.Or(0) != 123456789 || x.Memory.Or(nvml.Memory{}).TotalBytes != h200().Memory {
		t.Errorf("%+v, %v", x, err)
	}
	if _, err := s.Sample("GPU-unknown"); !errors.Is(err, nvml.NotFound) {
		t.Errorf("error %v", err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if _, err := nvml.Open("/nonexistent/libnvidia-ml.so.1"); err == nil {
		t.Error("no error")
	}
}

package probe

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"cotenant/internal/cuda"
	"cotenant/internal/cuda/query"
	"cotenant/internal/nvml"
	"cotenant/internal/observe"
	"cotenant/internal/probe/evidence"
)

// PrerequisiteOperation is that of Prerequisite's document.
const PrerequisiteOperation = "green_context_prerequisite_inspect"

// DriverSymbols and RuntimeSymbols are those whose presence is asked for by name. Runtime symbols are reported and not needed.
var (
	DriverSymbols = []string{"cuDevResourceGenerateDesc", "cuDevSmResourceSplitByCount", "cuDeviceGetDevResource", "cuGreenCtxCreate",
		"cuGreenCtxRecordEvent", "cuGreenCtxStreamCreate"}
	RuntimeSymbols = []string{"cudaDevResourceGenerateDesc", "cudaDevSmResourceSplitByCount", "cudaDeviceGetDevResource",
		"cudaExecutionCtxGetDevResource", "cudaExecutionCtxStreamCreate", "cudaGreenCtxCreate"}
)

// Prerequisites is the non-creating inspection of one GPU.
type Prerequisites struct {
	SchemaVersion    int    `json:"schema_version"`
	Operation        string `json:"operation"`
	MutatedState     bool   `json:"mutated_state"`     // always false
	CreatedContext   bool   `json:"created_context"`   // always false
	LaunchedWorkload bool   `json:"launched_workload"` // always false
	// Met: everything that creating Green Contexts needs is there. Presence doesn't prove that creating them works.
	Met     bool     `json:"prerequisites_met"`
	Missing []string `json:"missing"`
	// Status is supported_declared where Met, unsupported, blocked_… and so on where not.
	Status  observe.Status `json:"status"`
	Reason  string         `json:"reason"`
	GPUUUID string         `json:"gpu_uuid"`

	Name              observe.Value[string]           `json:"gpu_name"`
	ComputeCapability observe.Value[string]           `json:"compute_capability"`
	SMCount           observe.Value[int64]            `json:"sm_count"`
	SMResource        observe.Value[query.SMResource] `json:"sm_resource"`
	DriverVersion     observe.Value[string]           `json:"driver_version"` // CUDA's, of libcuda
	DriverRelease     observe.Value[string]           `json:"driver_release"`
	RuntimeVersion    *string                         `json:"runtime_version"` // null where no libcudart was found
	RuntimeReason     string                          `json:"runtime_reason"`  // why null; empty
	RuntimePath       string                          `json:"runtime_library"`
	DriverSymbols     map[string]bool                 `json:"driver_symbols"`
	RuntimeSymbols    map[string]bool                 `json:"runtime_symbols"` // null where no libcudart was found
	Visible           Visible                         `json:"visible_devices"`
	MPSBypassed       bool                            `json:"mps_bypassed"`
	SideEffects       []string                        `json:"side_effects"`
	Role              *evidence.Role                  `json:"role"` // in the operator's topology; null without one
	Limitation        string                          `json:"limitation"`
}

// Visible is which devices there are and what this process's environment leaves of them.
type Visible struct {
	// Variable and Order are CUDA_VISIBLE_DEVICES and CUDA_DEVICE_ORDER; null where unset.
	Variable *string `json:"cuda_visible_devices"`
	Order    *string `json:"cuda_device_order"`
	// UUIDs are those that libcuda enumerates in PCI order with neither set.
	UUIDs []string `json:"uuids"`
}

// Prerequisite asks what creating Green Contexts on one GPU needs, and makes nothing. The exit code is 0 where all is there, 3 where
// something is not, 4 where it could not be asked.
func Prerequisite(ctx context.Context, c Common, timeout time.Duration) (Prerequisites, int) {
	c.defaults()
	var driver query.Report
	var runtime query.RuntimeReport
	var management nvml.Report
	var wait sync.WaitGroup
	for _, ask := range []func(){
		func() { driver = query.Driver(ctx, query.Options{Root: c.Root, Env: c.Env, Timeout: timeout}) },
		func() { runtime = query.Runtime(ctx, query.Options{Root: c.Root, Env: c.Env, Timeout: timeout}) },
		func() { management = nvml.Inspect(ctx, nvml.Options{Root: c.Root, Env: c.Env, Timeout: timeout}) },
	} {
		wait.Go(ask)
	}
	wait.Wait()
	p := Prerequisites{SchemaVersion: evidence.SchemaVersion, Operation: PrerequisiteOperation, GPUUUID: c.GPUUUID, Missing: []string{},
		DriverSymbols: make(map[string]bool), MPSBypassed: driver.MPSBypassed, Visible: visible(c.Env, driver),
		Limitation: "presence and versions only: that a Green Context can be made is proven by `cotenant probe create`"}
	p.SideEffects = append(append(slices.Clone(driver.SideEffects), runtime.SideEffects...), management.SideEffects...)
	p.DriverVersion, p.DriverRelease = versionText(driver.DriverVersion), release(management)
	p.runtime(runtime)
	for _, s := range DriverSymbols {
		p.DriverSymbols[s] = driver.Symbols[s]
	}
	p.device(driver)
	if c.Topology != nil {
		p.role(c.Topology, driver, management)
	}
	return p, p.judge(driver)
}

func versionText(v observe.Value[int]) observe.Value[string] {
	if n, ok := v.Get(); ok {
		return observe.Got(v.Call, query.FormatVersion(n))
	}
	return observe.None[string](v.Call, v.Code, v.Reason)
}

func release(r nvml.Report) observe.Value[string] {
	if r.System == nil {
		return observe.None[string]("nvmlSystemGetDriverVersion", 0, r.Reason)
	}
	return r.System.DriverVersion
}

func visible(env []string, driver query.Report) Visible {
	v := Visible{UUIDs: []string{}}
	for _, e := range env {
		if x, ok := strings.CutPrefix(e, "CUDA_VISIBLE_DEVICES="); ok {
			v.Variable = &x
		}
		if x, ok := strings.CutPrefix(e, "CUDA_DEVICE_ORDER="); ok {
			v.Order = &x
		}
	}
	for _, d := range driver.Devices {
		v.UUIDs = append(v.UUIDs, d.UUID.Or(""))
	}
	return v
}

func (p *Prerequisites) runtime(r query.RuntimeReport) {
	v, ok := r.Version.Get()
	if !ok {
		p.RuntimeReason = cmp.Or(r.Reason, r.Version.Reason, "no libcudart was found")
		return
	}
	text := query.FormatVersion(v)
	p.RuntimeVersion, p.RuntimePath = &text, r.Path
	p.RuntimeSymbols = make(map[string]bool)
	for _, s := range RuntimeSymbols {
		p.RuntimeSymbols[s] = r.Symbols[s]
	}
}

func (p *Prerequisites) device(driver query.Report) {
	why := cmp.Or(driver.Reason, "libcuda doesn't enumerate a device with this UUID")
	p.Name, p.ComputeCapability = observe.None[string]("", 0, why), observe.None[string]("", 0, why)
	p.SMCount, p.SMResource = observe.None[int64]("", 0, why), observe.None[query.SMResource]("", 0, why)
	if d := find(driver, p.GPUUUID); d != nil {
		p.Name, p.ComputeCapability, p.SMCount, p.SMResource = d.Name, d.ComputeCapability, d.SMCount, d.SM
	}
}

// find returns libcuda's device of a UUID.
func find(driver query.Report, uuid string) *query.Device {
	for i, d := range driver.Devices {
		if d.UUID.Or("") == cuda.BareUUID(uuid) {
			return &driver.Devices[i]
		}
	}
	return nil
}

// judge says whether all is there and returns the exit code.
func (p *Prerequisites) judge(driver query.Report) int {
	if driver.Status != observe.SupportedProven {
		p.Status, p.Reason = driver.Status, driver.Reason
		p.Missing = append(p.Missing, "libcuda")
		return ExitBlocked
	}
	if !p.SMCount.OK() && !p.Name.OK() {
		p.Missing = append(p.Missing, "gpu "+p.GPUUUID)
	}
	for _, s := range DriverSymbols {
		if !p.DriverSymbols[s] {
			p.Missing = append(p.Missing, s)
		}
	}
	version := driver.DriverVersion.Or(0)
	switch {
	case version < query.FloorGreenStream:
		p.Status = observe.BlockedByRuntimeVersion
		p.Reason = "the driver is of CUDA " + query.FormatVersion(version) + ", streams of Green Contexts need " + query.FormatVersion(query.FloorGreenStream)
		p.Missing = append(p.Missing, "driver "+query.FormatVersion(query.FloorGreenStream))
	case len(p.Missing) == 0 && !p.SMResource.OK():
		p.Status, p.Reason = observe.Unsupported, "the driver doesn't tell an SM resource: "+p.SMResource.Reason
		p.Missing = append(p.Missing, "SM resource")
	case len(p.Missing) == 0:
		p.Met, p.Status, p.Reason = true, observe.SupportedDeclared, "driver, symbols and SM resource are there"
		return ExitDone
	default:
		p.Status, p.Reason = observe.Unavailable, "not there: "+strings.Join(p.Missing, ", ")
	}
	return ExitNo
}

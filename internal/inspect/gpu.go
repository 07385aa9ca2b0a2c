package inspect

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"cotenant/internal/cuda/query"
	"cotenant/internal/nvml"
	"cotenant/internal/observe"
)

// States of a GPU.
const (
	stateOK            = "ok"
	stateLost          = "lost"           // fallen off the bus
	stateResetRequired = "reset_required" // needs a reset
	stateUnreachable   = "unreachable"    // NVML has no handle for it
	stateUndriven      = "not_driven"     // another kernel driver, or none, has it
	stateNotGiven      = "not_given"      // the host's, and not this container's
	stateExcluded      = "excluded"       // the kernel module was told to leave it alone
)

// first returns the first value that there is, else the first reason why there is none.
func first[T any](values ...observe.Value[T]) observe.Value[T] {
	for _, v := range values {
		if v.OK() {
			return v
		}
	}
	for _, v := range values {
		if v.Reason != "" {
			return v
		}
	}
	return observe.None[T]("", 0, "no source told it")
}

// gpu makes the report's part of one GPU, without its verdicts.
func (f *Facts) gpu(u *unit) GPU {
	g := GPU{UUID: u.uuid, State: u.state(f), SeenBy: u.seenBy(), Roles: []string{}, Instances: []Instance{}, Power: map[string]any{},
		Attributes: map[string]observe.Value[int64]{}, Mechanisms: map[string]Verdict{}}
	n := u.nvml
	if n == nil {
		none := nvmlAbsent(f.NVML)
		n = &none
	} else {
		g.Index = observe.Got("nvmlDeviceGetHandleByIndex_v2", n.Index)
	}
	if u.nvml == nil {
		g.Index = observe.None[int]("nvmlDeviceGetHandleByIndex_v2", 0, f.NVML.Reason)
	}
	c, whole := u.device()
	g.Ordinal = observe.None[int]("cuDeviceGet", 0, c.UUID.Reason)
	if whole {
		g.Ordinal = observe.Got("cuDeviceGet", c.Ordinal)
	}
	smiRow := SMIRow{}
	if u.smi != nil {
		smiRow = *u.smi
	}
	g.Name = first(n.Name, c.Name, smiRow.Name, u.modelName())
	g.PCI = observe.None[string]("", 0, "no source told it")
	if u.pci != "" {
		g.PCI = observe.Got("", u.pci)
	}
	g.KernelDriver = observe.None[string](pciFolder, 0, "not on the PCI bus, or the bus isn't shown")
	if u.bus != nil {
		g.KernelDriver = observe.Got(pciFolder, cmp.Or(u.bus.Driver, "none"))
	}
	g.ComputeCapability = first(c.ComputeCapability, n.ComputeCapability, smiRow.ComputeCapability)
	g.Architecture = n.Architecture
	g.SMCount = u.smCount(n, c, whole)
	g.MemoryBytes, g.MemoryUnified = f.memory(n, c, smiRow)
	g.ComputeMode = first(n.ComputeMode, computeModeOf(c), smiComputeMode(smiRow))
	g.Persistence, g.DisplayAttached, g.DisplayActive = n.Persistence, n.DisplayAttached, first(n.DisplayActive, smiBool(smiRow.Display))
	g.Virtualization, g.AddressingMode = n.Virtualization, n.AddressingMode
	g.MIG, g.Health, g.Power = f.stableMIG(n.MIG, smiRow), n.Health, f.power(n.Power)
	if f.Volatile {
		g.Memory = &n.Memory
	}
	g.Processes = f.heldBy(n.Processes)
	g.SMResource = resourceOf(c)
	if whole {
		g.Attributes = c.Attributes
	}
	for _, d := range u.cuda {
		if u.migEnabled() {
			uuid := d.UUID.Or("")
			if uuid != "" {
				uuid = "MIG-" + uuid
			}
			g.Instances = append(g.Instances, Instance{uuid, d.SMCount, resourceOf(*d)})
		}
	}
	return g
}

// nvmlAbsent is a device of which NVML said nothing, with the reason in the fields that matter.
func nvmlAbsent(r nvml.Report) nvml.Device {
	why := cmp.Or(r.Reason, "NVML doesn't list this GPU")
	none := observe.None[string]
	d := nvml.Device{UUID: none("", 0, why), ComputeMode: none("nvmlDeviceGetComputeMode", 0, why), Virtualization: none("", 0, why),
		Architecture: none("", 0, why), AddressingMode: none("", 0, why)}
	d.MIG = nvml.MIG{Current: observe.None[bool]("nvmlDeviceGetMigMode", 0, why), Pending: observe.None[bool]("nvmlDeviceGetMigMode", 0, why),
		MaxDevices: observe.None[uint32]("", 0, why), Devices: []nvml.MIGDevice{}, Profiles: []nvml.Profile{}}
	d.Persistence, d.DisplayAttached, d.DisplayActive = observe.None[bool]("", 0, why), observe.None[bool]("", 0, why), observe.None[bool]("", 0, why)
	d.Processes.Compute = observe.None[[]nvml.Process]("", 0, why)
	d.Processes.Graphics, d.Processes.MPS = d.Processes.Compute, d.Processes.Compute
	return d
}

// device returns CUDA's device for the GPU as a whole; whole is false where there is none, or where CUDA enumerates MIG
// devices in its place.
func (u *unit) device() (d query.Device, whole bool) {
	if len(u.cuda) == 1 && !u.migEnabled() {
		return *u.cuda[0], true
	}
	why := "CUDA doesn't enumerate this GPU"
	if u.migEnabled() {
		why = "MIG mode is on: CUDA enumerates MIG devices"
	}
	return query.Device{UUID: observe.None[string]("cuDeviceGet", 0, why), SM: observe.None[query.SMResource]("cuDeviceGetDevResource(SM)", 0, why),
		SMCount: observe.None[int64]("cuDeviceGetAttribute(16)", 0, why)}, false
}

func (u *unit) seenBy() []string {
	by := []string{}
	for _, x := range []struct {
		name string
		seen bool
	}{{"driver_files", u.driver != nil}, {"libcuda", len(u.cuda) > 0}, {"nvidia_smi", u.smi != nil}, {"nvml", u.nvml != nil}, {"pci", u.bus != nil}} {
		if x.seen {
			by = append(by, x.name)
		}
	}
	return by
}

// state says whether the GPU can be used at all.
func (u *unit) state(f *Facts) string {
	if u.nvml != nil {
		codes := []int32{u.nvml.Handle.Code, u.nvml.UUID.Code, u.nvml.Name.Code, u.nvml.Memory.Code, u.nvml.MIG.Current.Code, u.nvml.ComputeMode.Code}
		switch {
		case slices.Contains(codes, int32(nvml.GPUIsLost)):
			return stateLost
		case slices.Contains(codes, int32(nvml.ResetRequired)):
			return stateResetRequired
		case !u.nvml.Handle.OK():
			return stateUnreachable
		}
		return stateOK
	}
	if u.smi != nil {
		switch u.smi.MemoryMiB.Reason {
		case "gpu_requires_reset":
			return stateResetRequired
		case "gpu_is_lost":
			return stateLost
		}
	}
	if len(u.cuda) > 0 || u.smi != nil {
		return stateOK
	}
	switch {
	case u.driver != nil && u.driver.Excluded:
		return stateExcluded
	case u.bus != nil && u.bus.Driver != "nvidia":
		return stateUndriven
	case f.inContainer() && f.NVML.Status == observe.SupportedProven:
		return stateNotGiven
	case f.NVML.Status == observe.SupportedProven:
		// The kernel module, or the bus, has a GPU that NVML no longer lists.
		return stateLost
	}
	return stateUnreachable
}

func (u *unit) modelName() observe.Value[string] {
	if u.driver != nil && u.driver.Model != "" && u.driver.Model != "Unknown" {
		return observe.Got("/proc/driver/nvidia/gpus", u.driver.Model)
	}
	return observe.None[string]("/proc/driver/nvidia/gpus", 0, "no model there")
}

// coresPerSM of NVIDIA's architectures, by compute capability.
func coresPerSM(cc string) int64 {
	switch cc {
	case "6.0", "7.0", "7.2", "7.5", "8.0":
		return 64
	case "6.1", "6.2", "8.6", "8.7", "8.9", "9.0", "10.0", "10.3", "11.0", "12.0", "12.1":
		return 128
	}
	return 0
}

// smCount prefers the driver's attribute. NVML has no call for it, but counts cores.
func (u *unit) smCount(n *nvml.Device, c query.Device, whole bool) observe.Value[int64] {
	if whole && c.SMCount.OK() {
		return c.SMCount
	}
	cores, ok := n.Cores.Get()
	per := coresPerSM(n.ComputeCapability.Or(""))
	if ok && per > 0 && int64(cores)%per == 0 && cores > 0 {
		return observe.Got(fmt.Sprintf("nvmlDeviceGetNumGpuCores / %d", per), int64(cores)/per)
	}
	return first(c.SMCount, observe.None[int64]("nvmlDeviceGetNumGpuCores", n.Cores.Code, n.Cores.Reason))
}

// memory tells missing memory from a GPU that shares the host's. An integrated GPU may report nothing, or too little.
func (f *Facts) memory(n *nvml.Device, c query.Device, row SMIRow) (observe.Value[uint64], observe.Value[bool]) {
	integrated, told := c.Attributes["integrated"].Get()
	unified := observe.None[bool]("cuDeviceGetAttribute(18)", 0, "CUDA doesn't enumerate this GPU")
	if told {
		unified = observe.Got("cuDeviceGetAttribute(18)", integrated == 1)
	}
	m, ok := n.Memory.Get()
	total := observe.None[uint64](n.Memory.Call, n.Memory.Code, n.Memory.Reason)
	if ok {
		total = observe.Got(n.Memory.Call, m.TotalBytes)
	}
	switch {
	case !ok && (f.Tegra.Present || integrated == 1 || n.AddressingMode.Or("") == "ats"):
		return first(f.Kernel.MemTotal, c.MemoryBytes), observe.Got(cmp.Or(unified.Call, n.AddressingMode.Call), true)
	case ok && integrated == 1 && c.MemoryBytes.Or(0)/2 > m.TotalBytes:
		return c.MemoryBytes, unified
	}
	return first(total, c.MemoryBytes, smiMiB(row.MemoryMiB)), unified
}

func smiMiB(v observe.Value[string]) observe.Value[uint64] {
	if s, ok := v.Get(); ok {
		if mib, err := strconv.ParseUint(s, 10, 43); err == nil {
			return observe.Got(v.Call, mib<<20)
		}
		return observe.None[uint64](v.Call, 0, "not a number: "+observe.Clip(s))
	}
	return observe.None[uint64](v.Call, 0, v.Reason)
}

func smiBool(v observe.Value[string]) observe.Value[bool] {
	switch strings.ToLower(v.Or("")) {
	case "enabled", "yes":
		return observe.Got(v.Call, true)
	case "disabled", "no":
		return observe.Got(v.Call, false)
	}
	return observe.None[bool](v.Call, 0, v.Reason)
}

var computeModes = []string{"default", "exclusive_thread", "prohibited", "exclusive_process"}

func computeModeOf(c query.Device) observe.Value[string] {
	v := c.Attributes["compute_mode"]
	if x, ok := v.Get(); ok && x >= 0 && x < int64(len(computeModes)) {
		return observe.Got(v.Call, computeModes[x])
	}
	return observe.None[string](v.Call, v.Code, v.Reason)
}

func smiComputeMode(row SMIRow) observe.Value[string] {
	v := row.ComputeMode
	if s, ok := v.Get(); ok {
		return observe.Got(v.Call, strings.ToLower(strings.ReplaceAll(s, " ", "_")))
	}
	return v
}

func resourceOf(c query.Device) observe.Value[SMResource] {
	r, ok := c.SM.Get()
	if !ok {
		return observe.None[SMResource](c.SM.Call, c.SM.Code, c.SM.Reason)
	}
	return observe.Got(c.SM.Call, SMResource{r.Count, r.MinPartition, r.Alignment})
}

// stableMIG leaves out memory in use, and takes nvidia-smi's word where NVML has none.
func (f *Facts) stableMIG(m nvml.MIG, row SMIRow) nvml.MIG {
	m.Devices = slices.Clone(m.Devices)
	for i := range m.Devices {
		if !f.Volatile {
			m.Devices[i].Memory = observe.None[nvml.Memory]("nvmlDeviceGetMemoryInfo_v2", 0, "volatile")
		}
	}
	m.Current = first(m.Current, smiBool(row.MIGCurrent))
	m.Pending = first(m.Pending, smiBool(row.MIGPending))
	return m
}

// power keeps what a host has, and what it is doing only where that was asked for.
func (f *Facts) power(p nvml.Power) map[string]any {
	kept := map[string]any{"limit_mw": p.LimitMW, "max_memory_mhz": p.MaxMemoryMHz, "max_sm_mhz": p.MaxSMMHz}
	if f.Volatile {
		for name, v := range map[string]any{"power_mw": p.PowerMW, "energy_mj": p.EnergyMJ, "temperature_c": p.TemperatureC, "sm_mhz": p.SMMHz,
			"memory_mhz": p.MemoryMHz, "pstate": p.PState, "throttle": p.Throttle, "gpu_percent": p.GPUPercent, "memory_percent": p.MemPercent} {
			kept[name] = v
		}
	}
	return kept
}

// kindServer is the kind of an MPS server, whatever NVML calls it.
const kindServer = "mps_server"

// heldBy groups processes by executable.
func (f *Facts) heldBy(p nvml.Processes) observe.Value[[]HeldBy] {
	kinds := make(map[uint32][]string)
	known := false
	server := make(map[uint32]bool)
	for _, d := range f.MPS.Servers {
		server[uint32(d.PID)] = true
	}
	for _, x := range []struct {
		kind string
		list observe.Value[[]nvml.Process]
	}{{"compute", p.Compute}, {"graphics", p.Graphics}, {"mps", p.MPS}} {
		known = known || x.list.OK()
		for _, proc := range x.list.Or(nil) {
			kind := x.kind
			if server[proc.PID] {
				kind = kindServer
			}
			if !slices.Contains(kinds[proc.PID], kind) {
				kinds[proc.PID] = append(kinds[proc.PID], kind)
			}
		}
	}
	if !known {
		return observe.None[[]HeldBy](p.Compute.Call, p.Compute.Code, cmp.Or(p.Compute.Reason, "no source told it"))
	}
	groups := make(map[string]*HeldBy)
	for pid, k := range kinds {
		x, ok := f.Processes.ByPID[pid]
		if !ok {
			x.Executable = observe.None[string]("/proc/PID/exe", 0, cmp.Or(f.Processes.Reason, "not read"))
		}
		key := fmt.Sprint(x.Executable.Or(""), x.Executable.Reason, x.Deleted, k)
		if groups[key] == nil {
			groups[key] = &HeldBy{Executable: x.Executable, Deleted: x.Deleted, Kinds: k}
		}
		groups[key].Count++
		if f.Volatile {
			groups[key].PIDs = append(groups[key].PIDs, pid)
		}
	}
	list := make([]HeldBy, 0, len(groups))
	for _, g := range groups {
		slices.Sort(g.PIDs)
		list = append(list, *g)
	}
	slices.SortFunc(list, func(a, b HeldBy) int {
		return cmp.Or(cmp.Compare(a.Executable.Or("~"), b.Executable.Or("~")), cmp.Compare(fmt.Sprint(a.Kinds, a.Deleted, a.Executable.Reason), fmt.Sprint(b.Kinds, b.Deleted, b.Executable.Reason)))
	})
	return observe.Got(p.Compute.Call, list)
}

// capability reads "9.0" as 90; 0 where it isn't known.
func capability(cc observe.Value[string]) int {
	major, minor, ok := strings.Cut(cc.Or(""), ".")
	a, err1 := strconv.Atoi(major)
	b, err2 := strconv.Atoi(minor)
	if !ok || err1 != nil || err2 != nil || a < 0 || a > math.MaxInt16 || b < 0 || b > 9 {
		return 0
	}
	return a*10 + b
}

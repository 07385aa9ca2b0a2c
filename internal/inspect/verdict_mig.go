package inspect

import (
	"fmt"
	"strings"

	"cotenant/internal/nvml"
	"cotenant/internal/observe"
)

func (c subject) mig() Verdict {
	v := Verdict{Floor: "a GPU that NVIDIA lists for MIG (A100, A30, H100, H200, B200, RTX PRO 6000 Blackwell and their kin)",
		Limitation: "turning the mode on or off needs root and a GPU without clients, and instances come in fixed sizes"}
	if c.f.OS != "linux" {
		return v.as(observe.BlockedByEnvironment, "MIG exists on Linux, this is "+c.f.OS, "run Linux on this machine")
	}
	v, ok := c.usable(v)
	if !ok {
		return v
	}
	m := c.g.MIG
	v.Evidence = append(v.Evidence, valueEvidence(m.Current, func(b bool) string { return "current " + onOff(b) }))
	current, known := m.Current.Get()
	if !known {
		return c.migUnknown(v)
	}
	if pending, ok := m.Pending.Get(); ok && pending != current {
		return v.as(observe.BlockedByDeviceState, fmt.Sprintf("MIG mode is %s and will be %s after a reset", onOff(current), onOff(pending)),
			"reset the GPU without clients (nvidia-smi --gpu-reset), or reboot", valueEvidence(m.Pending, func(b bool) string { return "pending " + onOff(b) }))
	}
	switch n := len(m.Devices); {
	case !current:
		return v.as(observe.SupportedDeclared, fmt.Sprintf("MIG mode is off and can be turned on%s", profilesText(m.Profiles)), "")
	case n > 0:
		return v.as(observe.SupportedProven, fmt.Sprintf("MIG mode is on with %s: %s", plural(n, "MIG device"), strings.Join(instanceNames(m.Devices), ", ")), "",
			said("nvmlDeviceGetMigDeviceHandleByIndex", plural(n, "MIG device")))
	}
	return v.as(observe.SupportedDeclared, "MIG mode is on, no MIG device was made"+profilesText(m.Profiles), "")
}

func (c subject) migUnknown(v Verdict) Verdict {
	m := c.g.MIG.Current
	switch {
	case c.f.Tegra.Present:
		return v.as(observe.Unsupported, "an integrated GPU has no MIG", "use MPS or green contexts")
	case nvml.Return(m.Code) == nvml.NotSupported && c.g.Virtualization.Or("") == "vgpu_guest":
		return v.as(observe.BlockedByEnvironment, "a vGPU guest can't partition: the host does", "ask the host's administrator for a MIG-backed vGPU", valueEvidence(c.g.Virtualization, plain))
	case c.f.WSL.Present:
		return v.as(observe.BlockedByEnvironment, "WSL2 has no MIG", "run Linux on this machine")
	case nvml.Return(m.Code) == nvml.NotSupported, m.Reason == "n/a" && c.u.smi != nil:
		return v.as(observe.Unsupported, "the driver says that this GPU has no MIG", "use MPS or green contexts")
	case nvml.Return(m.Code) == nvml.NoPermission:
		return v.as(observe.PermissionDenied, "the driver doesn't tell this user", "run as root")
	case c.f.NVML.Status != observe.SupportedProven:
		return v.as(c.f.NVML.Status, "NVML doesn't answer: "+c.f.NVML.Reason, c.f.nvmlAdvice())
	}
	return v.as(observe.Unknown, "the driver doesn't tell the MIG mode: "+m.Reason, "see source nvml in the report")
}

// nvmlAdvice is what to do where NVML doesn't answer.
func (f *Facts) nvmlAdvice() string {
	code := nvml.Success
	if f.NVML.Init != nil {
		code = nvml.Return(f.NVML.Init.Code)
	}
	switch code {
	case nvml.LibRMVersionMismatch:
		return "the driver was upgraded and the old module still runs: reboot, or unload and load the module nvidia"
	case nvml.DriverNotLoaded:
		return "load the module nvidia (modprobe nvidia), or install the driver"
	case nvml.NoPermission:
		return "run as a user who may open /dev/nvidiactl"
	case nvml.OperatingSystem:
		return "a sandbox or a device control group keeps NVML from the driver: check /dev/nvidiactl"
	}
	switch f.NVML.Status {
	case observe.Hung:
		return "NVML hangs: look in the kernel log for Xid lines; a reboot may be needed"
	case observe.Unavailable:
		if f.inContainer() {
			return "give the container libnvidia-ml.so.1: NVIDIA_DRIVER_CAPABILITIES=compute,utility"
		}
		return "install NVIDIA's driver with its libnvidia-ml.so.1"
	case observe.BlockedByEnvironment:
		if f.WSL.Present || f.OS == "windows" {
			return "run inspect on Linux or inside WSL2"
		}
	}
	return "see source nvml in the report"
}

func onOff(b bool) string {
	if b {
		return "on"
	}
	return "off"
}

func plural(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

func instanceNames(devices []nvml.MIGDevice) []string {
	counts := make(map[string]int)
	var order []string
	for _, d := range devices {
		name := d.Name.Or("")
		if i := strings.Index(name, "MIG "); i >= 0 {
			name = name[i+len("MIG "):]
		}
		if name == "" {
			name = "unnamed"
		}
		if counts[name]++; counts[name] == 1 {
			order = append(order, name)
		}
	}
	for i, name := range order {
		order[i] = fmt.Sprintf("%d × %s", counts[name], name)
	}
	return order
}

func profilesText(profiles []nvml.Profile) string {
	var names []string
	for _, p := range profiles {
		name := strings.TrimPrefix(p.Name, "MIG ")
		if name == "" {
			// A driver may leave names out while the mode is off.
			name = fmt.Sprintf("%dg (%d SMs, %.0f GiB)", p.Slices, p.SMs, float64(p.MemoryMiB)/1024)
		}
		names = append(names, fmt.Sprintf("%d × %s", p.Instances, name))
	}
	if len(names) == 0 {
		return ""
	}
	return "; profiles: " + strings.Join(names, ", ")
}

// timeSlicing is what processes get without any partition.
func (c subject) timeSlicing() Verdict {
	v := Verdict{Floor: "compute mode Default", Limitation: "no isolation: a kernel that runs long delays every other process, and memory is first come, first served"}
	if c.f.OS != "linux" && c.f.OS != "windows" {
		return v.as(observe.BlockedByEnvironment, "NVIDIA has no driver for "+c.f.OS, "inspect the machine that has the GPU")
	}
	v, ok := c.usable(v)
	if !ok {
		return v
	}
	if v, bad := c.prohibited(v); bad {
		return v
	}
	if v, bad := c.cudaBroken(v); bad {
		return v
	}
	mode, known := c.g.ComputeMode.Get()
	v.Evidence = append(v.Evidence, valueEvidence(c.g.ComputeMode, plain))
	switch {
	case !known && c.f.Tegra.Present:
		return v.as(observe.SupportedDeclared, "integrated GPUs have no compute modes: processes take turns", "")
	case !known && c.f.NVML.Status != observe.SupportedProven && len(c.u.cuda) == 0:
		return v.as(c.f.NVML.Status, "the compute mode is not known: "+c.f.NVML.Reason, c.f.nvmlAdvice())
	case !known:
		return v.as(observe.Unknown, "the compute mode is not known: "+c.g.ComputeMode.Reason, "see source nvml in the report")
	case mode == "default":
		reason := "compute mode Default: contexts of different processes take turns"
		if c.g.Virtualization.Or("") == "vgpu_guest" {
			v.Limitation += "; this is a vGPU guest, and the host's scheduler slices it once more"
		}
		if c.u.migEnabled() {
			reason += ", each within its MIG device"
		}
		return v.as(observe.SupportedDeclared, reason, "")
	case strings.HasPrefix(mode, "exclusive"):
		return v.as(observe.BlockedByMode, "compute mode "+mode+": one process at a time has the GPU", "nvidia-smi -i "+c.g.label()+" -c DEFAULT (as root), or share by MPS")
	}
	return v.as(observe.Unknown, "compute mode "+mode+" is not known here", "see source nvml in the report")
}

package inspect

import (
	"fmt"
	"slices"
	"strings"

	"cotenant/internal/cuda/query"
	"cotenant/internal/observe"
)

// Mechanisms in the order in which people read them.
const (
	GreenContexts = "green_contexts"
	Workqueues    = "workqueue_resources"
	Heterogeneous = "heterogeneous_split"
	MPSClassic    = "mps"
	MPSStatic     = "mps_static_partitioning"
	MPSv3         = "mps_v3"
	MIG           = "mig"
	TimeSlicing   = "time_slicing"
)

// Mechanisms returns all of them in that order.
func Mechanisms() []string {
	return []string{GreenContexts, Workqueues, Heterogeneous, MPSClassic, MPSStatic, MPSv3, MIG, TimeSlicing}
}

// subject is what a verdict is made from: one GPU of one host.
type subject struct {
	f *Facts
	u *unit
	g *GPU
}

// verdicts judges every mechanism.
func (c subject) verdicts() map[string]Verdict {
	v := map[string]Verdict{
		GreenContexts: c.green(),
		Workqueues:    c.workqueues(),
		Heterogeneous: c.heterogeneous(),
		MPSClassic:    c.mps(),
		MPSStatic:     c.mpsStatic(),
		MPSv3:         c.mpsV3(),
		MIG:           c.mig(),
		TimeSlicing:   c.timeSlicing(),
	}
	for name, x := range v {
		if x.Evidence == nil {
			x.Evidence = []Evidence{}
		}
		if x.Status == observe.SupportedDeclared || x.Status == observe.SupportedProven {
			x.Next = ""
		}
		v[name] = x
	}
	return v
}

// as returns the verdict with this status, reason and next step, and more evidence.
func (v Verdict) as(s observe.Status, reason, next string, e ...Evidence) Verdict {
	v.Status, v.Reason, v.Next = s, reason, next
	v.Evidence = append(append([]Evidence{}, v.Evidence...), e...)
	return v
}

// valueEvidence shows an observation.
func valueEvidence[T any](v observe.Value[T], show func(T) string) Evidence {
	x, ok := v.Get()
	switch {
	case ok && (strings.HasPrefix(v.Call, "cu") || strings.HasPrefix(v.Call, "nvml")):
		return returned(v.Call, 0, show(x))
	case ok:
		return said(v.Call, show(x))
	case v.Code != 0:
		return returned(v.Call, v.Code, v.Reason)
	}
	return said(v.Call, v.Reason)
}

func plain[T any](x T) string { return fmt.Sprint(x) }

// usable refuses a GPU that nobody can use in its present state; ok is true where it can be used.
func (c subject) usable(v Verdict) (_ Verdict, ok bool) {
	e := said("state", c.g.State)
	if n := c.u.nvml; n != nil && n.Handle.Code != 0 {
		e = returned(n.Handle.Call, n.Handle.Code, n.Handle.Reason)
	}
	const state, env = observe.BlockedByDeviceState, observe.BlockedByEnvironment
	switch c.g.State {
	case stateLost:
		return v.as(state, "the GPU has fallen off the bus", "look for Xid 79 in the kernel log; reboot, then check power and seating", e), false
	case stateResetRequired:
		return v.as(state, "the driver says that the GPU requires a reset", "stop what uses it, then reset it or reboot", e), false
	case stateUnreachable:
		if c.f.NVML.Status == observe.SupportedProven {
			return v.as(state, "NVML lists the GPU and gives no handle for it", "look in the kernel log for NVRM lines; reboot if they name this GPU", e), false
		}
	case stateUndriven:
		driver := c.g.KernelDriver.Or("none")
		if driver == "none" {
			return v.as(env, "no kernel driver has the GPU", "load the module nvidia, or install the driver", said(pciFolder, "driver none")), false
		}
		return v.as(env, "the kernel driver "+driver+" has the GPU, not nvidia", "give the GPU back to the driver nvidia, or inspect inside the virtual machine that has it", said(pciFolder, "driver "+driver)), false
	case stateNotGiven:
		return v.as(env, "the host has this GPU, and this container was not given it", "give the container the GPU (docker run --gpus, or its CDI device), or inspect on the host", said(pciFolder, "driver nvidia")), false
	case stateExcluded:
		return v.as(env, "the kernel module was told to leave this GPU alone", "remove it from NVreg_ExcludedGpus and load the module again", e), false
	}
	return v, true
}

// prohibited refuses a GPU whose compute mode lets nobody in.
func (c subject) prohibited(v Verdict) (_ Verdict, bad bool) {
	if c.g.ComputeMode.Or("") != "prohibited" {
		return v, false
	}
	return v.as(observe.BlockedByMode, "compute mode Prohibited: no process may use the GPU for compute", "nvidia-smi -i "+c.g.label()+" -c DEFAULT (as root)",
		valueEvidence(c.g.ComputeMode, plain)), true
}

// exclusive reports whether compute mode lets one process in and one that isn't MPS's is there.
func (c subject) exclusive() (Evidence, bool) {
	if !strings.HasPrefix(c.g.ComputeMode.Or(""), "exclusive") {
		return Evidence{}, false
	}
	holders := 0
	for _, h := range c.g.Processes.Or(nil) {
		for _, k := range h.Kinds {
			if k == "compute" {
				holders += h.Count
			}
		}
	}
	return returned(c.g.Processes.Call, 0, fmt.Sprintf("compute mode %s, %d compute processes", *c.g.ComputeMode.Value, holders)), holders > 0
}

// mpsHolds reports whether an MPS server holds the GPU.
func (c subject) mpsHolds() bool {
	for _, h := range c.g.Processes.Or(nil) {
		if slices.Contains(h.Kinds, "mps") || slices.Contains(h.Kinds, kindServer) {
			return true
		}
	}
	return false
}

// label names the GPU in a command line.
func (g *GPU) label() string {
	if g.UUID != "" {
		return g.UUID
	}
	return g.PCI.Or("GPU")
}

// inContainer reports whether this process runs in a container.
func (f *Facts) inContainer() bool {
	return f.Container.Kind != "none" && f.Container.Kind != "unknown"
}

// cudaVersion is the version that floors are held against: libcuda's own word, or NVML's.
func (f *Facts) cudaVersion() observe.Value[int] {
	v := f.CUDA.DriverVersion
	if f.NVML.System != nil {
		return first(v, f.NVML.System.CUDAVersion)
	}
	return v
}

// driverFloor refuses a driver below a floor.
func (c subject) driverFloor(v Verdict, floor int, release string) (_ Verdict, ok bool) {
	have := c.f.cudaVersion()
	x, known := have.Get()
	if !known || x <= 0 {
		return v.as(observe.Unknown, "the driver's CUDA version could not be told", "see source libcuda in the report", valueEvidence(have, plain)), false
	}
	v.Evidence = append(v.Evidence, valueEvidence(have, plain))
	if x < floor {
		return v.as(observe.BlockedByRuntimeVersion, fmt.Sprintf("the driver is of CUDA %s, %s is needed", query.FormatVersion(x), query.FormatVersion(floor)),
			c.f.upgrade(release)), false
	}
	return v, true
}

// upgrade says how this place gets a driver of a release.
func (f *Facts) upgrade(release string) string {
	switch {
	case f.Tegra.Present:
		return "install a JetPack whose CUDA is new enough"
	case f.WSL.Present:
		return "update the Windows driver to release " + release + " or later; WSL2's libcuda comes with it"
	case f.inContainer():
		return "install a driver of release " + release + " or later on the host"
	}
	return "install a driver of release " + release + " or later"
}

// cudaBroken refuses what needs CUDA where libcuda was asked and failed. Busy is no failure: somebody else has the GPU.
func (c subject) cudaBroken(v Verdict) (_ Verdict, bad bool) {
	f := c.f
	if c.u.migEnabled() && c.u.nvml != nil && len(c.u.nvml.MIG.Devices) == 0 {
		return v.as(observe.BlockedByMode, "MIG mode is on and the GPU has no MIG device, so CUDA can't use it",
			"make GPU and compute instances (nvidia-smi mig -cgi … -C), or turn MIG mode off", valueEvidence(c.g.MIG.Current, func(b bool) string { return onOff(b) + ", 0 MIG devices" })), true
	}
	if f.OS != "linux" || f.Program.Libraries != "" || c.mpsHolds() {
		return v, false
	}
	switch f.CUDA.Status {
	case observe.SupportedProven, observe.Busy, "":
		return v, false
	}
	return v.as(f.CUDA.Status, "no process can use CUDA here: "+f.CUDA.Reason, f.cudaAdvice(), cudaEvidence(f.CUDA)...), true
}

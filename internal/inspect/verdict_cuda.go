package inspect

import (
	"cmp"
	"fmt"
	"path"
	"slices"
	"strings"

	"cotenant/internal/cuda/query"
	"cotenant/internal/observe"
)

const sharedMemory = "memory capacity, L2, bandwidth and copy engines stay shared; nothing was created, so creation, disjoint SMs and cleanup are not shown"

// cuda is what green contexts, workqueues and the heterogeneous split need in common; ok where the driver answered for this
// GPU, and devices are then its CUDA devices: itself, or its MIG devices.
func (c subject) cuda(v Verdict) (_ Verdict, devices []*query.Device, ok bool) {
	f := c.f
	if f.Program.Libraries != "" || f.OS != "linux" {
		next := "run inspect on Linux, on amd64 or arm64"
		switch {
		case strings.Contains(f.Program.Libraries, "nocuda"):
			next = "use a build without the tag nocuda"
		case f.OS == "windows":
			next = "run inspect inside WSL2 on this machine: libcuda is asked there"
		}
		return v.as(observe.BlockedByEnvironment, cmp.Or(f.CUDA.Reason, f.Program.Libraries), next), nil, false
	}
	if v, ok = c.usable(v); !ok {
		return v, nil, false
	}
	v, bad := c.prohibited(v)
	if bad {
		return v, nil, false
	}
	if v, bad = c.cudaBroken(v); bad {
		return v, nil, false
	}
	if f.CUDA.Status != observe.SupportedProven {
		v.Evidence = append(v.Evidence, cudaEvidence(f.CUDA)...)
		return v.as(f.CUDA.Status, f.CUDA.Reason, f.cudaAdvice()), nil, false
	}
	if len(c.u.cuda) == 0 {
		v, ok = c.notEnumerated(v)
		return v, nil, ok
	}
	return v, c.u.cuda, true
}

// notEnumerated says why CUDA works and doesn't list this GPU.
func (c subject) notEnumerated(v Verdict) (Verdict, bool) {
	count := valueEvidence(c.f.CUDA.DeviceCount, plain)
	if c.u.migEnabled() {
		return v.as(observe.Unknown, "MIG mode is on; CUDA lists one MIG device a process, and it was another's", "ask on a MIG device of this GPU: set CUDA_VISIBLE_DEVICES to its UUID for the program that needs it", count), false
	}
	if c.u.nvml != nil {
		if minor, ok := c.u.nvml.Minor.Get(); ok && len(c.f.Driver.Devices) > 0 && !slices.Contains(c.f.Driver.Devices, "nvidia"+utoa(minor)) {
			node := "/dev/nvidia" + utoa(minor)
			next := "load the driver's device nodes: nvidia-modprobe -u -c " + utoa(minor)
			if c.f.inContainer() {
				next = "give the container this GPU (docker run --gpus …, or its CDI device)"
			}
			return v.as(observe.BlockedByEnvironment, "CUDA doesn't list the GPU: "+node+" is missing here", next, count, said(node, "not there")), false
		}
	}
	return v.as(observe.Unknown, "CUDA doesn't list this GPU", "compare the report's sources nvml and libcuda; a device control group or a container may hide it", count), false
}

func cudaEvidence(r query.Report) []Evidence {
	var list []Evidence
	for _, a := range r.Attempts {
		text := a.Path
		if text == "" {
			text = "not opened"
		}
		list = append(list, said("dlopen libcuda", text))
		if a.Init != nil {
			list = append(list, returned(a.Init.Name, a.Init.Code, a.Init.Symbol))
		}
		if a.Calling != "" {
			list = append(list, said(a.Calling, string(a.Outcome)+" in this call"))
		}
	}
	return list
}

// cudaAdvice is what to do where libcuda doesn't answer.
func (f *Facts) cudaAdvice() string {
	code := query.Success
	if f.CUDA.Init != nil {
		code = query.Code(f.CUDA.Init.Code)
	}
	switch code {
	case query.StubLibrary:
		return "the library found is the toolkit's stub for linking: remove the stubs folder from LD_LIBRARY_PATH, install the driver's libcuda.so.1"
	case query.NoDevice:
		if f.inContainer() {
			return "give the container a GPU (docker run --gpus all, or a CDI device)"
		}
		if f.WSL.Present {
			return "a Linux driver's libcuda hides WSL2's: put /usr/lib/wsl/lib first in LD_LIBRARY_PATH and remove the Linux driver"
		}
		return "check nvidia-smi -L and the kernel log; NVIDIA_VISIBLE_DEVICES or a device control group may hide the GPUs"
	case query.DeviceUnavailable:
		return "a process or an MPS server holds the GPU exclusively: wait, run as a client of that MPS daemon, or set compute mode DEFAULT"
	case query.SystemNotReady:
		return "start nvidia-fabricmanager of the driver's version (NVSwitch systems), then look at the fabric state in the report"
	case query.SystemDriverMismatch:
		return "libcuda and the kernel module are of different versions: reboot, or load the module of the library's version"
	case query.CompatNotSupportedOnDevice:
		return "the image's cuda-compat library doesn't fit this GPU: remove its folder from LD_LIBRARY_PATH, or use an image of the driver's CUDA version"
	case query.OperatingSystem:
		return "the sandbox or a device control group keeps libcuda from the driver: check /dev/nvidiactl and /dev/nvidia-uvm"
	case query.NotPermitted:
		return "run as a user who may open /dev/nvidia*"
	case query.Success:
	default:
		return "look in the kernel log for NVRM lines and at source libcuda in the report"
	}
	for _, a := range f.CUDA.Attempts {
		if a.Calling != "" && f.CUDA.Status == observe.Unknown {
			return "libcuda crashed: look for driver files of two versions (ldconfig -p | grep libcuda) and for NVRM lines in the kernel log"
		}
	}
	switch f.CUDA.Status {
	case observe.Hung:
		return "libcuda hangs: look in the kernel log for Xid lines; a reboot may be needed"
	case observe.Unavailable:
		if f.inContainer() {
			return "give the container the driver's libraries: NVIDIA_DRIVER_CAPABILITIES=compute,utility and --gpus, or a CDI device"
		}
		return "install NVIDIA's driver with its CUDA library"
	}
	return "see source libcuda in the report"
}

// interposed returns the library that stands between CUDA and the driver; empty where none was seen.
func (f *Facts) interposed() string {
	if f.CUDA.Library == nil {
		return ""
	}
	for _, m := range f.CUDA.Library.Mapped {
		base := strings.ToLower(path.Base(m))
		if strings.Contains(base, "vgpu") || strings.Contains(base, "hami") {
			return m
		}
	}
	return ""
}

// symbols returns evidence of each name and whether all are exported.
func (f *Facts) symbols(names ...string) ([]Evidence, bool) {
	all := true
	var missing []string
	for _, n := range names {
		if !f.CUDA.Symbols[n] {
			all = false
			missing = append(missing, n)
		}
	}
	text := "exported: " + strings.Join(names, " ")
	if !all {
		text = "not exported: " + strings.Join(missing, " ")
	}
	return []Evidence{said("dlsym", text)}, all
}

// documented are NVIDIA's minimum partition and alignment for drivers that don't tell, by compute capability × 10 (CUDA
// Programming Guide, compute capabilities).
func documented(cc int) (least, align uint32) {
	switch {
	case cc >= 90:
		return 8, 8
	case cc >= 80:
		return 4, 2
	case cc >= 70:
		return 2, 2
	}
	return 1, 1
}

func (c subject) green() Verdict {
	v := Verdict{Floor: "driver of CUDA 12.4 (R550); streams of a green context from 12.5", Limitation: sharedMemory}
	v, devices, ok := c.cuda(v)
	if !ok {
		return v
	}
	if v, ok = c.driverFloor(v, query.FloorGreenContext, "550"); !ok {
		return v
	}
	e, all := c.f.symbols("cuGreenCtxCreate", "cuDeviceGetDevResource", "cuDevSmResourceSplitByCount", "cuDevResourceGenerateDesc")
	v.Evidence = append(v.Evidence, e...)
	if !all {
		return c.refused(v, observe.Unknown, "the driver is new enough and the library lacks the calls")
	}
	d := devices[0]
	r, answered := d.SM.Get()
	v.Evidence = append(v.Evidence, valueEvidence(d.SM, func(r query.SMResource) string { return smText(r, c.g) }))
	if !answered {
		if query.Code(d.SM.Code) == query.NotSupported {
			return c.refused(v, observe.Unsupported, "the driver refuses the SM resource: "+d.SM.Reason)
		}
		return c.refused(v, observe.Unknown, "the SM resource could not be read: "+d.SM.Reason)
	}
	if who := c.f.interposed(); who != "" {
		return c.refused(v, observe.Unknown, "an interposed library answers in the driver's place, so its numbers prove nothing")
	}
	least, align := limits(r, c.g)
	if r.Count < 2*least {
		return v.as(observe.Unsupported, fmt.Sprintf("%d SMs are too few for two partitions of at least %d", r.Count, least), "use time-slicing or MPS on this GPU")
	}
	if e, held := c.exclusive(); held || c.g.ComputeMode.Or("") == "exclusive_process" && c.mpsHolds() {
		return v.as(observe.Busy, "compute mode exclusive, and the GPU is held: another process gets no context", "wait, or set compute mode DEFAULT; inside the process that holds it green contexts may work", e)
	}
	v.Limitation = c.limits(v.Limitation, r)
	what := "the driver answers"
	if c.u.migEnabled() {
		what = "the driver answers for a MIG device"
	}
	return v.as(observe.SupportedDeclared, fmt.Sprintf("%s: %d SMs, partitions of at least %d in steps of %d", what, r.Count, least, align), "")
}

// limits returns the driver's minimum and alignment, or the documented ones; never 0.
func limits(r query.SMResource, g *GPU) (least, align uint32) {
	least, align = documented(capability(g.ComputeCapability))
	if x := r.MinPartition.Or(0); x > 0 {
		least = x
	}
	if x := r.Alignment.Or(0); x > 0 {
		align = x
	}
	return least, align
}

func smText(r query.SMResource, g *GPU) string {
	least, align := limits(r, g)
	text := fmt.Sprintf("%d SMs, minimum %d, alignment %d", r.Count, least, align)
	if !r.MinPartition.OK() {
		text += " (minimum and alignment by NVIDIA's table: this driver doesn't tell)"
	}
	return text
}

// limits adds what the place takes away from a declared support.
func (c subject) limits(text string, r query.SMResource) string {
	if !r.MinPartition.OK() {
		text += "; minimum and alignment are NVIDIA's table, not this driver's word"
	}
	if c.f.WSL.Present {
		text += "; under WSL2, where no NVIDIA document establishes it"
	}
	if c.f.Kernel.GVisor {
		text += "; under gVisor, which passes only the driver calls that it knows"
	}
	if c.g.Virtualization.Or("") == "vgpu_guest" {
		text += "; in a vGPU guest, whose share of SMs and time is the host's to give"
	}
	if c.f.CUDA.MPSBypassed && (len(c.f.MPS.Daemons) > 0 || len(c.f.MPS.Servers) > 0) {
		text += "; asked outside the running MPS daemon: a client of it may have fewer SMs"
	}
	if c.g.DisplayActive.Or(false) {
		text += "; a display is active: long kernels can disturb it"
	}
	return text
}

// refused blames an interposed library or a guest's hypervisor where there is one, for what would otherwise be this status.
func (c subject) refused(v Verdict, status observe.Status, reason string) Verdict {
	if who := c.f.interposed(); who != "" {
		return v.as(observe.BlockedByEnvironment, reason+" ("+path.Base(who)+" is loaded in front of the driver)",
			"run without "+path.Base(who)+" (LD_PRELOAD, /etc/ld.so.preload)", said("/proc/self/maps", who))
	}
	if c.g.Virtualization.Or("") == "vgpu_guest" {
		return v.as(observe.BlockedByEnvironment, reason+", in a vGPU guest", "use MIG-backed or passthrough GPUs for this, or share by the hypervisor's scheduler",
			valueEvidence(c.g.Virtualization, plain))
	}
	if c.f.Kernel.GVisor {
		return v.as(observe.BlockedByEnvironment, reason+", inside gVisor", "run outside gVisor, or with a gVisor whose nvproxy passes this call", said("/proc/sentry-meminfo", "exists"))
	}
	next := "look for driver files of two versions (ldconfig -p | grep libcuda), or install a newer driver"
	if status == observe.Unsupported {
		next = "use another mechanism on this GPU"
	}
	if c.f.WSL.Present {
		next = "update the Windows driver; WSL2's libcuda comes with it"
	}
	return v.as(status, reason, next)
}

func (c subject) workqueues() Verdict {
	v := Verdict{Floor: "driver of CUDA 13.1 (R590)", Limitation: "a workqueue only keeps streams from waiting in each other's queue; " + sharedMemory}
	v, devices, ok := c.cuda(v)
	if !ok {
		return v
	}
	if v, ok = c.driverFloor(v, query.FloorWorkqueue, "590"); !ok {
		return v
	}
	d := devices[0]
	v.Evidence = append(v.Evidence, valueEvidence(d.WorkqueueConfig, func(w query.WorkqueueConfig) string {
		return fmt.Sprintf("concurrency limit %d, sharing scope %d", w.ConcurrencyLimit, w.SharingScope)
	}))
	w, answered := d.WorkqueueConfig.Get()
	switch {
	case !answered && query.Code(d.WorkqueueConfig.Code) == query.NotSupported:
		return c.refused(v, observe.Unsupported, "the driver refuses the workqueue resource: "+d.WorkqueueConfig.Reason)
	case !answered:
		return c.refused(v, observe.Unknown, "the workqueue resource could not be read: "+d.WorkqueueConfig.Reason)
	case c.f.interposed() != "":
		return c.refused(v, observe.Unknown, "an interposed library answers in the driver's place, so its numbers prove nothing")
	}
	return v.as(observe.SupportedDeclared, fmt.Sprintf("the driver answers: up to %d concurrent workqueues", w.ConcurrencyLimit), "")
}

func (c subject) heterogeneous() Verdict {
	v := Verdict{Floor: "driver of CUDA 13.1 (R590)", Limitation: "the call was not made: its presence and the SM resource are all that is known; " + sharedMemory}
	v, devices, ok := c.cuda(v)
	if !ok {
		return v
	}
	if v, ok = c.driverFloor(v, query.FloorWorkqueue, "590"); !ok {
		return v
	}
	e, all := c.f.symbols("cuDevSmResourceSplit")
	d := devices[0]
	v.Evidence = append(append(v.Evidence, e...), valueEvidence(d.SM, func(r query.SMResource) string { return smText(r, c.g) }))
	switch {
	case !all:
		return c.refused(v, observe.Unknown, "the driver is new enough and the library lacks cuDevSmResourceSplit")
	case !d.SM.OK():
		return c.refused(v, observe.Unknown, "the SM resource could not be read: "+d.SM.Reason)
	case c.f.interposed() != "":
		return c.refused(v, observe.Unknown, "an interposed library answers in the driver's place, so its numbers prove nothing")
	}
	return v.as(observe.SupportedDeclared, "the driver exports cuDevSmResourceSplit and answers the SM resource", "")
}

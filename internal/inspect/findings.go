package inspect

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"cotenant/internal/cuda/query"
	mps "cotenant/internal/mps/query"
	"cotenant/internal/nvml"
	"cotenant/internal/observe"
)

// findings explain verdicts and name what needs somebody.
func (f *Facts) findings(all []*unit, r *Report) []Finding {
	list := []Finding{}
	add := func(id, gpu, text, next string, e ...Evidence) {
		for i := range e {
			e[i].Call, e[i].Text = f.unrooted(e[i].Call), f.unrooted(e[i].Text)
		}
		list = append(list, Finding{id, text, append([]Evidence{}, e...), next, gpu})
	}
	f.driverFindings(add, r)
	f.libraryFindings(add)
	f.gpuFindings(add, all, r)
	f.mpsFindings(add)
	f.environmentFindings(add)
	slices.SortStableFunc(list, func(a, b Finding) int {
		return cmp.Or(cmp.Compare(a.ID, b.ID), cmp.Compare(a.GPU, b.GPU), cmp.Compare(a.Text, b.Text))
	})
	return list
}

type adder func(id, gpu, text, next string, e ...Evidence)

func (f *Facts) driverFindings(add adder, r *Report) {
	init := nvml.Success
	if f.NVML.Init != nil {
		init = nvml.Return(f.NVML.Init.Code)
	}
	smi := strings.Contains(f.SMI.Reason, "versions don't match")
	lib := ""
	if f.NVML.System != nil {
		lib = f.NVML.System.DriverVersion.Or("")
	}
	if init == nvml.LibRMVersionMismatch || smi {
		text := "the NVML library and the loaded kernel module are of different versions"
		if f.CUDA.Status == observe.SupportedProven {
			text += "; CUDA answers all the same"
		}
		add("driver_library_mismatch", "", text, f.mismatchAdvice(), said("/proc/driver/nvidia/version", f.Driver.Version), said("nvmlSystemGetDriverVersion", lib))
	}
	if init == nvml.DriverNotLoaded || f.SMI.Reason == "the driver is not loaded" {
		add("driver_not_loaded", "", "the driver's libraries are installed and the kernel module doesn't answer", "load the module nvidia (modprobe nvidia); if it was just upgraded, reboot",
			said("/sys/module/nvidia", presence(f.Driver.Loaded)), said("/dev/nvidia*", strings.Join(f.Driver.Devices, " ")))
	}
	if f.NVML.Status == observe.Unavailable && f.CUDA.Status == observe.SupportedProven {
		add("nvml_missing", "", "CUDA answers and NVML doesn't: names, MIG, processes and modes are CUDA's word or missing", f.nvmlAdvice(), said("libnvidia-ml.so.1", f.NVML.Reason))
	}
	if len(r.GPUs) == 0 {
		text := "no NVIDIA GPU was found by any source"
		next := "if the machine has one: install the driver, or give this container the GPU"
		if f.OS == "darwin" {
			next = "run inspect on the machine that has the GPU"
		}
		add("no_gpu", "", text, next)
	}
	for name, s := range r.Sources {
		if s.Status == observe.Hung {
			add("source_hung", "", "source "+name+" did not answer by the deadline and was left behind", "ask again with a longer --timeout (at most 60s); look in the kernel log for Xid lines", said(name, s.Reason))
		}
	}
}

func (f *Facts) mismatchAdvice() string {
	if f.inContainer() {
		return "restart the container: it holds the libraries of the driver that the host had before"
	}
	return "reboot, or unload and load the module nvidia, so that both are of one version"
}

func (f *Facts) libraryFindings(add adder) {
	for _, a := range f.CUDA.Attempts {
		if a.Init == nil {
			continue
		}
		switch code := query.Code(a.Init.Code); {
		case code == query.StubLibrary || strings.Contains(a.Path, "/stubs/"):
			add("stub_library", "", "the loader found the toolkit's stub of libcuda, which is for linking only", "remove the stubs folder from LD_LIBRARY_PATH", said("dlopen libcuda", a.Path), returned("cuInit", a.Init.Code, a.Init.Symbol))
		case code == query.CompatNotSupportedOnDevice:
			add("compat_unsupported_on_device", "", "the image's cuda-compat library doesn't support this GPU", "remove its folder from LD_LIBRARY_PATH, or use an image of the driver's CUDA version", said("dlopen libcuda", a.Path), returned("cuInit", a.Init.Code, a.Init.Symbol))
		case code == query.SystemDriverMismatch:
			add("system_driver_mismatch", "", "libcuda and the kernel module are of versions that don't go together", "reboot, or load the module of the library's version", said("dlopen libcuda", a.Path), said("/proc/driver/nvidia/version", f.Driver.Version), returned("cuInit", a.Init.Code, a.Init.Symbol))
		case code == query.NoDevice && f.WSL.Present && !strings.Contains(a.Path, "/wsl/"):
			add("wsl_foreign_library", "", "a Linux driver's libcuda was found under WSL2 and sees no device", "remove the Linux driver from WSL2: the Windows driver brings /usr/lib/wsl/lib", said("dlopen libcuda", a.Path), returned("cuInit", a.Init.Code, a.Init.Symbol))
		case code == query.SystemNotReady:
			add("fabric_not_ready", "", "the GPUs' fabric is not ready", "start nvidia-fabricmanager of the driver's version", returned("cuInit", a.Init.Code, a.Init.Symbol))
		}
	}
	if who := f.interposed(); who != "" {
		add("interposed_library", "", "a library stands between CUDA and the driver: counts and sizes may be its own", "run without it to see what the GPU has", said("/proc/self/maps", who))
	}
	if rt, ok := f.Runtime.Version.Get(); ok {
		if d, ok := f.CUDA.DriverVersion.Get(); ok && rt/1000 > d/1000 {
			add("runtime_newer_than_driver", "", fmt.Sprintf("libcudart is of CUDA %s, the driver of %s: programs that use it may not start", query.FormatVersion(rt), query.FormatVersion(d)),
				"use a runtime of the driver's major version, or a newer driver; this program needs no libcudart", said("cudaRuntimeGetVersion", strconv.Itoa(rt)), said("cuDriverGetVersion", strconv.Itoa(d)))
		}
	}
}

func (f *Facts) gpuFindings(add adder, all []*unit, r *Report) {
	for i, u := range all {
		g := &r.GPUs[i]
		switch g.State {
		case stateLost:
			add("gpu_lost", g.label(), "the bus or the driver still names this GPU, and it no longer answers", "look for Xid 79 in the kernel log; reboot, then check power and seating")
		case stateResetRequired:
			add("gpu_reset_required", g.label(), "this GPU must be reset before it works again", "stop what uses it, then reset it or reboot")
		}
		for _, h := range g.Processes.Or(nil) {
			if h.Deleted {
				add("deleted_executable", g.label(), plural(h.Count, "process")+" on this GPU run"+third(h.Count)+" an executable whose file was deleted: perhaps a server from before an upgrade, which can hang",
					"find its pid (--volatile) and save its exact file before it ends: cotenant recover --pid PID --out DIR", said("/proc/PID/exe", h.Executable.Or("")+" (deleted)"))
			}
		}
		if remap, ok := g.Health.Remapped.Get(); ok && (remap.Failed || remap.Pending) {
			add("row_remapping", g.label(), fmt.Sprintf("memory rows are remapped: pending %v, failed %v", remap.Pending, remap.Failed), "reset the GPU to finish; where it failed, have the GPU replaced", said(g.Health.Remapped.Call, fmt.Sprintf("uncorrectable %d", remap.Uncorrectable)))
		}
		if p, ok := g.Health.Repair.Get(); ok && (p.ChannelPending || p.TPCPending) {
			add("repair_pending", g.label(), "a repair of this GPU awaits a reset", "reset the GPU when nothing uses it")
		}
		if fab, ok := g.Health.Fabric.Get(); ok && fab.State == "in_progress" {
			add("fabric_in_progress", g.label(), "this GPU's fabric is still being set up", "wait, then inspect again; look at nvidia-fabricmanager", said(g.Health.Fabric.Call, fab.State))
		}
		f.memoryFinding(add, u, g)
	}
}

func third(n int) string {
	if n == 1 {
		return "s"
	}
	return ""
}

func (f *Facts) memoryFinding(add adder, u *unit, g *GPU) {
	if u.nvml == nil || len(u.cuda) != 1 || u.migEnabled() {
		return
	}
	m, ok := u.nvml.Memory.Get()
	total, ok2 := u.cuda[0].MemoryBytes.Get()
	if ok && ok2 && u.cuda[0].Attributes["integrated"].Or(0) == 1 && total/2 > m.TotalBytes {
		add("memory_under_reported", g.label(), "NVML tells less than half of the memory that CUDA has: this GPU shares the host's", "go by CUDA's number",
			returned(u.nvml.Memory.Call, 0, strconv.FormatUint(m.TotalBytes, 10)), returned("cuDeviceTotalMem_v2", 0, strconv.FormatUint(total, 10)))
	}
}

func (f *Facts) mpsFindings(add adder) {
	for _, d := range f.MPS.Folders {
		// In a pid namespace of its own, a container doesn't see the host's daemon.
		foreign := f.Kernel.PIDNamespace == "own" && d.PIDState == mps.PIDDead
		if (strings.HasPrefix(string(d.PIDState), "stale_") || d.PIDState == mps.PIDMalformed) && !foreign {
			why := strings.ReplaceAll(strings.TrimPrefix(string(d.PIDState), "stale_"), "_", " ")
			add("stale_pid_file", "", "the pid file in "+d.Path+" is not a running daemon's: "+why, "if no daemon runs in another pid namespace, remove the folder before starting one", said(d.Path, string(d.PIDState)))
		}
		if d.TooLong {
			add("pipe_path_too_long", "", "the pipe folder "+observe.Clip(d.Path)+" is too long for a socket: its daemon can't be found", "use a path of at most 75 bytes", said(d.Path, "socket path over 107 bytes"))
		}
	}
	for _, a := range f.MPS.Answers {
		if a.Kind == mps.Refused {
			add("mps_credentials_rejected", "", "the MPS daemon of "+a.Folder+" refuses this process", "run as the daemon's user and in its user namespace; in a container, share the host's", said(a.Input, f.mask(a.Text)))
			break
		}
	}
}

func (f *Facts) environmentFindings(add adder) {
	for _, name := range []string{"CUDA_VISIBLE_DEVICES", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "CUDA_MPS_SM_PARTITION"} {
		if v, ok := f.Environment.Variables[name]; ok {
			add("environment_narrows", "", name+" is set: programs started here see less than this report, which ignored it", "unset it where that isn't wanted", said("environment "+name, v))
		}
	}
	if caps, ok := f.Environment.Variables["NVIDIA_DRIVER_CAPABILITIES"]; ok && caps != "all" && !(strings.Contains(caps, "compute") && strings.Contains(caps, "utility")) {
		add("driver_capabilities", "", "the container was given only these driver capabilities: "+caps, "NVIDIA_DRIVER_CAPABILITIES=compute,utility gives CUDA, NVML, nvidia-smi and the MPS control program", said("environment NVIDIA_DRIVER_CAPABILITIES", caps))
	}
}

// disagreements compares what sources said of one field.
func (f *Facts) disagreements(all []*unit) []Disagreement {
	list := []Disagreement{}
	compare := func(field, gpu string, said map[string]string) {
		var one string
		differ := false
		for _, v := range said {
			if one != "" && v != one {
				differ = true
			}
			one = v
		}
		if differ {
			list = append(list, Disagreement{field, gpu, said})
		}
	}
	versions := map[string]string{}
	put := func(m map[string]string, source string, v observe.Value[string]) {
		if s, ok := v.Get(); ok && s != "" {
			m[source] = s
		}
	}
	if f.Driver.Version != "" {
		versions["driver_files"] = f.Driver.Version
	}
	if f.NVML.System != nil {
		put(versions, "nvml", f.NVML.System.DriverVersion)
	}
	for _, row := range f.SMI.Rows {
		put(versions, "nvidia_smi", row.Driver)
	}
	compare("driver_version", "", versions)
	if f.NVML.System != nil && f.NVML.System.CUDAVersion.OK() && f.CUDA.DriverVersion.OK() {
		compare("cuda_version", "", map[string]string{"nvml": strconv.Itoa(*f.NVML.System.CUDAVersion.Value), "libcuda": strconv.Itoa(*f.CUDA.DriverVersion.Value)})
	}
	f.countDisagreement(all, compare)
	for _, u := range all {
		c, whole := u.device()
		uuid, name, cc, mode, mig := map[string]string{}, map[string]string{}, map[string]string{}, map[string]string{}, map[string]string{}
		if n := u.nvml; n != nil {
			put(uuid, "nvml", n.UUID)
			put(name, "nvml", n.Name)
			put(cc, "nvml", n.ComputeCapability)
			put(mode, "nvml", n.ComputeMode)
			put(mig, "nvml", onOffValue(n.MIG.Current))
		}
		if whole {
			if x := c.UUID.Or(""); x != "" {
				uuid["libcuda"] = "GPU-" + x
			}
			put(name, "libcuda", c.Name)
			put(cc, "libcuda", c.ComputeCapability)
			put(mode, "libcuda", computeModeOf(c))
		}
		if s := u.smi; s != nil {
			put(uuid, "nvidia_smi", s.UUID)
			put(name, "nvidia_smi", s.Name)
			put(cc, "nvidia_smi", s.ComputeCapability)
			put(mode, "nvidia_smi", smiComputeMode(*s))
			put(mig, "nvidia_smi", onOffValue(smiBool(s.MIGCurrent)))
		}
		if d := u.driver; d != nil && d.UUID != "" {
			uuid["driver_files"] = d.UUID
		}
		for _, x := range []struct {
			field string
			said  map[string]string
		}{{"uuid", uuid}, {"name", name}, {"compute_capability", cc}, {"compute_mode", mode}, {"mig_mode", mig}, {"memory_bytes", memorySaid(u, c, whole)}} {
			compare(x.field, u.name(), x.said)
		}
	}
	return list
}

func onOffValue(v observe.Value[bool]) observe.Value[string] {
	if b, ok := v.Get(); ok {
		return observe.Got(v.Call, onOff(b))
	}
	return observe.None[string](v.Call, v.Code, v.Reason)
}

// memorySaid compares NVML and nvidia-smi to the MiB. CUDA's total leaves out what the driver reserves, so it counts only where
// it is more than a tenth away.
func memorySaid(u *unit, c query.Device, whole bool) map[string]string {
	said := map[string]string{}
	if u.nvml == nil {
		return said
	}
	m, ok := u.nvml.Memory.Get()
	if !ok {
		return said
	}
	said["nvml"] = strconv.FormatUint(m.TotalBytes>>20<<20, 10)
	if u.smi != nil {
		if b, ok := smiMiB(u.smi.MemoryMiB).Get(); ok {
			said["nvidia_smi"] = strconv.FormatUint(b, 10)
		}
	}
	if t, ok := c.MemoryBytes.Get(); whole && ok && (t > m.TotalBytes/10*11 || t < m.TotalBytes/10*9) {
		said["libcuda"] = strconv.FormatUint(t, 10)
	}
	return said
}

// countDisagreement compares how many GPUs each source lists. CUDA counts MIG devices where the mode is on.
func (f *Facts) countDisagreement(all []*unit, compare func(field, gpu string, said map[string]string)) {
	counts := map[string]string{}
	mig := slices.ContainsFunc(all, func(u *unit) bool { return u.migEnabled() })
	if f.NVML.DeviceCount.OK() {
		counts["nvml"] = strconv.Itoa(*f.NVML.DeviceCount.Value)
	}
	if f.CUDA.DeviceCount.OK() && !mig {
		counts["libcuda"] = strconv.Itoa(*f.CUDA.DeviceCount.Value)
	}
	if f.SMI.Status == observe.SupportedProven {
		counts["nvidia_smi"] = strconv.Itoa(len(f.SMI.Rows))
	}
	if n := len(f.Driver.GPUs); n > 0 {
		counts["driver_files"] = strconv.Itoa(n)
	}
	nvidia := 0
	for _, d := range f.PCI.Devices {
		if d.Driver == "nvidia" {
			nvidia++
		}
	}
	if nvidia > 0 && !f.inContainer() {
		counts["pci"] = strconv.Itoa(nvidia)
	}
	compare("gpu_count", "", counts)
}

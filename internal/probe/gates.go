package probe

import (
	"cmp"
	"fmt"
	"os"
	"slices"
	"strings"

	"cotenant/internal/cuda"
	"cotenant/internal/cuda/query"
	"cotenant/internal/inspect"
	"cotenant/internal/nvml"
	"cotenant/internal/observe"
	"cotenant/internal/probe/evidence"
)

// host is what gates are evaluated from: the facts of one inspection, and the GPU asked for in them.
type host struct {
	c     Common
	facts *inspect.Facts
	gpu   *nvml.Device    // NVML's, or nil
	mig   *nvml.MIGDevice // where the UUID is a MIG device's
	cuda  *query.Device   // libcuda's, or nil
	role  *evidence.Role  // in the operator's topology; nil without one
}

func newHost(c Common, f *inspect.Facts) *host {
	h := &host{c: c, facts: f, cuda: find(f.CUDA, c.GPUUUID)}
	for i := range f.NVML.Devices {
		d := &f.NVML.Devices[i]
		if strings.EqualFold(d.UUID.Or(""), c.GPUUUID) {
			h.gpu = d
		}
		for k := range d.MIG.Devices {
			if strings.EqualFold(d.MIG.Devices[k].UUID.Or(""), c.GPUUUID) {
				h.gpu, h.mig = d, &d.MIG.Devices[k]
			}
		}
	}
	return h
}

// blocked says why nothing can be asked at all; empty where something can.
func (h *host) blocked() string {
	if h.facts.CUDA.Status != observe.SupportedProven {
		return "libcuda: " + cmp.Or(h.facts.CUDA.Reason, string(h.facts.CUDA.Status))
	}
	return ""
}

func gate(id, question string) evidence.Gate {
	return evidence.Gate{ID: id, Question: question, Answer: evidence.No}
}

func yes(g evidence.Gate, detail string) evidence.Gate {
	g.Answer, g.Detail = evidence.Yes, observe.Clip(detail)
	return g
}

func no(g evidence.Gate, detail string) evidence.Gate {
	g.Answer, g.Detail = evidence.No, observe.Clip(detail)
	return g
}

func unknown(g evidence.Gate, detail string) evidence.Gate {
	g.Answer, g.Detail = evidence.Unknown, observe.Clip(detail)
	return g
}

func notApplicable(g evidence.Gate, detail string) evidence.Gate {
	g.Answer, g.Detail = evidence.NotApplicable, observe.Clip(detail)
	return g
}

// overridable lets a flag decide where the answer is no or unknown.
func overridable(g evidence.Gate, flag string, given bool) evidence.Gate {
	g.Override = flag
	g.Overridden = given && (g.Answer == evidence.No || g.Answer == evidence.Unknown)
	return g
}

// common are the gates of every probe.
func (h *host) common(folder string) []evidence.Gate {
	return []evidence.Gate{
		h.uuidGate(), h.roleGate(), h.stateGate(), h.versionGate(), h.runtimeGate(), h.memoryGate(), h.modeGate(),
		overridable(h.processGate(), "--allow-processes", h.c.AllowProcesses),
		overridable(h.displayGate(), "--allow-display", h.c.AllowDisplay),
		overridable(h.mpsGate(), "--allow-mps", h.c.AllowMPS),
		folderGate(folder),
		notApplicable(gate("image_digest", "is the container's image pinned by digest?"), "no container: the probe is this program itself"),
		notApplicable(gate("no_unowned_container", "is there no container that isn't ours?"), "no container is used"),
		yes(gate("cleanup_contract", "is it recorded what is cleaned up and how that is proven?"), "cleanup_contract in plan.json"),
		yes(gate("rollback_plan", "is a rollback plan recorded?"), "rollback_plan in plan.json"),
	}
}

func (h *host) uuidGate() evidence.Gate {
	g := gate("uuid_bound", "is the UUID that of exactly one device here, by NVML and by libcuda?")
	switch {
	case h.gpu == nil && h.facts.NVML.Status != observe.SupportedProven:
		return unknown(g, "NVML: "+h.facts.NVML.Reason)
	case h.gpu == nil:
		return no(g, "NVML lists no device with this UUID")
	case h.mig != nil:
		return yes(g, "a MIG device of "+h.gpu.UUID.Or("?")+", slot "+fmt.Sprint(h.mig.Slot))
	case h.gpu.MIG.Current.Or(false):
		return no(g, "MIG mode is on: name one of its MIG devices, MIG-…")
	case h.cuda == nil:
		return no(g, "NVML lists it, libcuda doesn't")
	}
	return yes(g, h.cuda.Name.Or("?")+", "+h.cuda.PCI.Or("?"))
}

func (h *host) stateGate() evidence.Gate {
	g := gate("device_state", "is the GPU in good order?")
	if h.gpu == nil {
		return unknown(g, "NVML doesn't list it")
	}
	x := h.gpu.Health
	switch {
	case !h.gpu.Handle.OK():
		return no(g, h.gpu.Handle.Reason)
	case x.Remapped.Or(nvml.Remap{}).Pending || x.RetiredPending.Or(false) || x.Repair.Or(nvml.Repair{}) != nvml.Repair{}:
		return no(g, "memory or a channel awaits a reset to be repaired")
	case x.UncorrectedVolatile.Or(0) > 0:
		return no(g, fmt.Sprintf("%d uncorrected memory errors since the driver was loaded", x.UncorrectedVolatile.Or(0)))
	}
	return yes(g, "reachable, no repair pending")
}

func (h *host) versionGate() evidence.Gate {
	g := gate("driver_and_symbols", "does the driver have what is used?")
	v, ok := h.facts.CUDA.DriverVersion.Get()
	if !ok {
		return unknown(g, h.facts.CUDA.DriverVersion.Reason)
	}
	var missing []string
	for _, s := range cuda.GreenSymbols {
		if !h.facts.CUDA.Symbols[s] {
			missing = append(missing, s)
		}
	}
	if v < query.FloorGreenStream || len(missing) > 0 {
		return no(g, fmt.Sprintf("CUDA %s, %s is needed; missing: %s", query.FormatVersion(v), query.FormatVersion(query.FloorGreenStream), strings.Join(missing, ", ")))
	}
	return yes(g, fmt.Sprintf("CUDA %s, all %d symbols", query.FormatVersion(v), len(cuda.GreenSymbols)))
}

// runtimeGate holds libcuda, NVML and, where there is one, libcudart against each other.
func (h *host) runtimeGate() evidence.Gate {
	g := gate("driver_and_runtime_match", "do libcuda, NVML and a CUDA runtime, if there is one, fit each other?")
	driver := h.facts.CUDA.DriverVersion.Or(0)
	if h.facts.NVML.System != nil {
		if v, ok := h.facts.NVML.System.CUDAVersion.Get(); ok && v != driver {
			return no(g, fmt.Sprintf("libcuda is of CUDA %s, NVML of %s", query.FormatVersion(driver), query.FormatVersion(v)))
		}
	}
	v, ok := h.facts.Runtime.Version.Get()
	switch {
	case !ok:
		return yes(g, "no libcudart, and none is used")
	case v/1000 > driver/1000:
		return no(g, fmt.Sprintf("libcudart %s is of a later major release than the driver's CUDA %s", query.FormatVersion(v), query.FormatVersion(driver)))
	}
	return yes(g, fmt.Sprintf("libcudart %s on CUDA %s; it isn't used", query.FormatVersion(v), query.FormatVersion(driver)))
}

func (h *host) memoryGate() evidence.Gate {
	g := gate("cleanup_provable", "can device memory be read from outside, to prove that all was given back?")
	if h.gpu == nil {
		return unknown(g, "NVML doesn't list the GPU")
	}
	m := h.gpu.Memory
	if h.mig != nil {
		m = h.mig.Memory
	}
	if v, ok := m.Get(); ok {
		return yes(g, fmt.Sprintf("NVML: %d of %d bytes used", v.UsedBytes, v.TotalBytes))
	}
	return no(g, "NVML: "+m.Reason)
}

func (h *host) modeGate() evidence.Gate {
	g := gate("compute_mode", "does the compute mode let another process in?")
	if h.gpu == nil {
		return unknown(g, "NVML doesn't list the GPU")
	}
	mode, ok := h.gpu.ComputeMode.Get()
	switch {
	case !ok:
		return unknown(g, h.gpu.ComputeMode.Reason)
	case mode == "default":
		return yes(g, mode)
	case mode == "prohibited":
		return no(g, mode)
	}
	if n := len(h.processes()); n > 0 {
		return no(g, fmt.Sprintf("%s, and %d processes are there", mode, n))
	}
	return yes(g, mode+", and nobody is there")
}

// processes are the pids of all that hold the GPU.
func (h *host) processes() []uint32 {
	var pids []uint32
	if h.gpu == nil {
		return nil
	}
	for _, list := range []observe.Value[[]nvml.Process]{h.gpu.Processes.Compute, h.gpu.Processes.Graphics, h.gpu.Processes.MPS} {
		for _, p := range list.Or(nil) {
			if !slices.Contains(pids, p.PID) {
				pids = append(pids, p.PID)
			}
		}
	}
	return pids
}

func (h *host) processGate() evidence.Gate {
	g := gate("no_processes", "does nobody else use the GPU?")
	if h.gpu == nil {
		return unknown(g, "NVML doesn't list the GPU")
	}
	if !h.gpu.Processes.Compute.OK() {
		return unknown(g, "NVML: "+h.gpu.Processes.Compute.Reason)
	}
	if pids := h.processes(); len(pids) > 0 {
		return no(g, fmt.Sprintf("%d processes: %v", len(pids), pids))
	}
	return yes(g, "NVML lists none")
}

func (h *host) displayGate() evidence.Gate {
	g := gate("no_display", "is no display attached?")
	if h.gpu == nil {
		return unknown(g, "NVML doesn't list the GPU")
	}
	attached, active := h.gpu.DisplayAttached, h.gpu.DisplayActive
	switch {
	case attached.Or(false) || active.Or(false):
		return no(g, fmt.Sprintf("attached %v, active %v", attached.Or(false), active.Or(false)))
	case !attached.OK() && !active.OK():
		return unknown(g, "NVML: "+attached.Reason)
	}
	return yes(g, "NVML: none attached, none active")
}

// mpsGate says no where an MPS daemon or server is there: its clients could be disturbed, and it could hold the GPU.
func (h *host) mpsGate() evidence.Gate {
	g := gate("no_mps", "is no MPS daemon of somebody else's there?")
	m := h.facts.MPS
	if h.facts.OS != "linux" {
		return yes(g, "MPS exists on Linux only")
	}
	if n := len(m.Daemons) + len(m.Servers); n > 0 {
		var pids []int
		for _, d := range append(slices.Clone(m.Daemons), m.Servers...) {
			pids = append(pids, d.PID)
		}
		return no(g, fmt.Sprintf("%d daemons, %d servers: pids %v", len(m.Daemons), len(m.Servers), pids))
	}
	return yes(g, "/proc shows none")
}

// folderGate says whether the evidence can be written.
func folderGate(folder string) evidence.Gate {
	g := gate("artifact_folder", "is the evidence's folder new or empty, and can it be written?")
	entries, err := os.ReadDir(folder)
	switch {
	case os.IsNotExist(err):
		return yes(g, folder)
	case err != nil:
		return no(g, err.Error())
	case len(entries) > 0:
		return no(g, folder+" is not empty")
	}
	return yes(g, folder)
}

// attributed reports whether nobody else changes the GPU's memory while a probe runs.
func (h *host) attributed() bool { return len(h.processes()) == 0 && !h.gpu.DisplayActive.Or(false) }

// overrides are the flags that let a run go on.
func overrides(gates []evidence.Gate) []string {
	flags := []string{}
	for _, g := range gates {
		if g.Overridden && !slices.Contains(flags, g.Override) {
			flags = append(flags, g.Override)
		}
	}
	return flags
}

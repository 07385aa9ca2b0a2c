package nvml

import (
	"fmt"
	"unsafe"

	"cotenant/internal/dl"
	"cotenant/internal/observe"
)

// System asks what isn't about one device.
func (s *Session) System() System {
	var cuda int32
	var cc confCompute
	return System{
		DriverVersion: s.systemText("nvmlSystemGetDriverVersion"),
		NVMLVersion:   s.systemText("nvmlSystemGetNVMLVersion"),
		CUDAVersion: ask(s, "nvmlSystemGetCudaDriverVersion_v2", func(f dl.Symbol) Return {
			return Return(f.Call(uintptr(unsafe.Pointer(&cuda))))
		}, func() int { return int(cuda) }),
		ConfidentialCompute: ask(s, "nvmlSystemGetConfComputeState", func(f dl.Symbol) Return {
			return Return(f.Call(uintptr(unsafe.Pointer(&cc))))
		}, func() uint32 { return cc.ccFeature }),
	}
}

// DeviceCount returns how many GPUs NVML sees, broken ones among them.
func (s *Session) DeviceCount() observe.Value[int] {
	var n uint32
	return ask(s, "nvmlDeviceGetCount_v2", func(f dl.Symbol) Return { return Return(f.Call(uintptr(unsafe.Pointer(&n)))) },
		func() int { return int(n) })
}

func (s *Session) handleByIndex(i int) observe.Value[handle] {
	var h handle
	return ask(s, "nvmlDeviceGetHandleByIndex_v2", func(f dl.Symbol) Return {
		return Return(f.Call(uintptr(i), uintptr(unsafe.Pointer(&h))))
	}, func() handle { return h })
}

var (
	architectures = []string{2: "kepler", 3: "maxwell", 4: "pascal", 5: "volta", 6: "turing", 7: "ampere", 8: "ada", 9: "hopper",
		10: "blackwell", 11: "dla", 12: "dla2", 13: "rubin", 15: "npu3"}
	computeModes    = []string{"default", "exclusive_thread", "prohibited", "exclusive_process"}
	virtualizations = []string{"none", "passthrough", "vgpu_guest", "vgpu_host", "vsga_host"}
	hostVGPUModes   = []string{"non_sriov", "sriov"}
	addressingModes = []string{"none", "hmm", "ats"}
	fabricStates    = []string{"not_supported", "not_started", "in_progress", "completed"}
)

// Device asks everything about the GPU of this index. A lost GPU is a Device whose Handle is absent.
func (s *Session) Device(index int) Device {
	d := Device{Index: index}
	got := s.handleByIndex(index)
	d.Handle = convert(got, func(handle) bool { return true })
	h, ok := got.Get()
	if !ok {
		d.MIG.Devices, d.MIG.Profiles = []MIGDevice{}, []Profile{}
		return d
	}
	d.UUID = s.text("nvmlDeviceGetUUID", h)
	d.Name = s.text("nvmlDeviceGetName", h)
	d.PCI = s.pci(h)
	d.Minor = s.number("nvmlDeviceGetMinorNumber", h)
	d.ComputeCapability = s.computeCapability(h)
	d.Architecture = s.named("nvmlDeviceGetArchitecture", h, architectures)
	d.Cores = s.number("nvmlDeviceGetNumGpuCores", h)
	d.Memory = s.memory(h)
	d.ComputeMode = s.named("nvmlDeviceGetComputeMode", h, computeModes)
	d.Persistence = s.flag("nvmlDeviceGetPersistenceMode", h)
	d.DisplayAttached = s.flag("nvmlDeviceGetDisplayMode", h)
	d.DisplayActive = s.flag("nvmlDeviceGetDisplayActive", h)
	d.Virtualization = s.named("nvmlDeviceGetVirtualizationMode", h, virtualizations)
	d.HostVGPUMode = s.named("nvmlDeviceGetHostVgpuMode", h, hostVGPUModes)
	d.AddressingMode = s.addressingMode(h)
	d.MIG = s.mig(h)
	d.Processes = Processes{
		Compute:  s.processes("nvmlDeviceGetComputeRunningProcesses", h),
		Graphics: s.processes("nvmlDeviceGetGraphicsRunningProcesses", h),
		MPS:      s.processes("nvmlDeviceGetMPSComputeRunningProcesses", h),
	}
	d.Power = s.power(h)
	d.Health = s.health(h)
	return d
}

func (s *Session) pci(h handle) observe.Value[PCI] {
	var p pciInfo
	return ask(s, "nvmlDeviceGetPciInfo_v3", func(f dl.Symbol) Return {
		return Return(f.Call(uintptr(h), uintptr(unsafe.Pointer(&p))))
	}, func() PCI {
		return PCI{clean(p.busID[:]), p.domain, p.bus, p.device, p.pciDeviceID, p.pciSubSystemID}
	})
}

func (s *Session) computeCapability(h handle) observe.Value[string] {
	var major, minor int32
	return ask(s, "nvmlDeviceGetCudaComputeCapability", func(f dl.Symbol) Return {
		return Return(f.Call(uintptr(h), uintptr(unsafe.Pointer(&major)), uintptr(unsafe.Pointer(&minor))))
	}, func() string { return fmt.Sprintf("%d.%d", major, minor) })
}

// memory prefers version 2, which tells reserved memory apart. Drivers that know only version 1 lack the call or refuse the
// struct's version.
func (s *Session) memory(h handle) observe.Value[Memory] {
	m := memoryV2{}
	m.version = structVersion(unsafe.Sizeof(m), 2)
	v := ask(s, "nvmlDeviceGetMemoryInfo_v2", func(f dl.Symbol) Return {
		return Return(f.Call(uintptr(h), uintptr(unsafe.Pointer(&m))))
	}, func() Memory { return Memory{m.total, m.free, m.used, observe.Got("", m.reserved)} })
	if v.OK() || v.Reason != notExported && Return(v.Code) != ArgumentVersionMismatch {
		return v
	}
	var old memory
	return ask(s, "nvmlDeviceGetMemoryInfo", func(f dl.Symbol) Return {
		return Return(f.Call(uintptr(h), uintptr(unsafe.Pointer(&old))))
	}, func() Memory {
		return Memory{old.total, old.free, old.used, observe.None[uint64]("", 0, "version 1 of the call counts it as used")}
	})
}

func (s *Session) addressingMode(h handle) observe.Value[string] {
	m := addressingMode{}
	m.version = structVersion(unsafe.Sizeof(m), 1)
	return ask(s, "nvmlDeviceGetAddressingMode", func(f dl.Symbol) Return {
		return Return(f.Call(uintptr(h), uintptr(unsafe.Pointer(&m))))
	}, func() string { return nameOf(m.value, addressingModes) })
}

func (s *Session) health(h handle) Health {
	var x Health
	x.ECCCurrent, x.ECCPending = s.flags("nvmlDeviceGetEccMode", h)
	ecc := func(counter uintptr) observe.Value[uint64] {
		const uncorrected = 1
		var n uint64
		return ask(s, "nvmlDeviceGetTotalEccErrors", func(f dl.Symbol) Return {
			return Return(f.Call(uintptr(h), uncorrected, counter, uintptr(unsafe.Pointer(&n))))
		}, func() uint64 { return n })
	}
	x.UncorrectedVolatile, x.UncorrectedAggregate = ecc(0), ecc(1)
	var corr, unc, pending, failed uint32
	x.Remapped = ask(s, "nvmlDeviceGetRemappedRows", func(f dl.Symbol) Return {
		return Return(f.Call(uintptr(h), uintptr(unsafe.Pointer(&corr)), uintptr(unsafe.Pointer(&unc)),
			uintptr(unsafe.Pointer(&pending)), uintptr(unsafe.Pointer(&failed))))
	}, func() Remap { return Remap{corr, unc, pending != 0, failed != 0} })
	x.RetiredPending = s.flag("nvmlDeviceGetRetiredPagesPendingStatus", h)
	var r repairStatus
	r.version = structVersion(unsafe.Sizeof(r), 1)
	x.Repair = ask(s, "nvmlDeviceGetRepairStatus", func(f dl.Symbol) Return {
		return Return(f.Call(uintptr(h), uintptr(unsafe.Pointer(&r))))
	}, func() Repair { return Repair{r.channelPending != 0, r.tpcPending != 0} })
	var fi fabricInfo
	fi.version = structVersion(unsafe.Sizeof(fi), 2)
	x.Fabric = ask(s, "nvmlDeviceGetGpuFabricInfoV", func(f dl.Symbol) Return {
		return Return(f.Call(uintptr(h), uintptr(unsafe.Pointer(&fi))))
	}, func() Fabric {
		return Fabric{nameOf(uint32(fi.state), fabricStates), Return(fi.status).Name(), fi.healthMask}
	})
	return x
}

// processes asks for a list that can grow between asking its length and its content. The newest suffix that the library has
// is used: _v2 and _v3 share one struct, the unsuffixed call has a shorter one.
func (s *Session) processes(name string, h handle) observe.Value[[]Process] {
	for _, suffix := range []string{"_v3", "_v2"} {
		if s.fn[name+suffix].Present() {
			return list(s, name+suffix, h, fromProcess)
		}
	}
	return list(s, name, h, func(p processInfoV1) Process {
		const why = "the unsuffixed call has no such field"
		return Process{p.pid, usedBytes(p.usedGpuMemory), observe.None[uint32]("", 0, why), observe.None[uint32]("", 0, why)}
	})
}

func fromProcess(p processInfo) Process {
	instance := func(x uint32) observe.Value[uint32] {
		if x == 0xffffffff {
			return observe.None[uint32]("", 0, "no MIG")
		}
		return observe.Got("", x)
	}
	return Process{p.pid, usedBytes(p.usedGpuMemory), instance(p.gpuInstanceID), instance(p.computeInstanceID)}
}

func usedBytes(x uint64) observe.Value[uint64] {
	if x == 1<<64-1 { // NVML_VALUE_NOT_AVAILABLE
		return observe.None[uint64]("", 0, "not available")
	}
	return observe.Got("", x)
}

func list[T any](s *Session, name string, h handle, convert func(T) Process) observe.Value[[]Process] {
	var n uint32
	var infos []T
	call := func(f dl.Symbol) Return {
		code := Return(f.Call(uintptr(h), uintptr(unsafe.Pointer(&n)), 0))
		for try := 0; code == InsufficientSize && try < 4; try++ {
			n = min(n+16, maxProcesses)
			infos = make([]T, n)
			code = Return(f.Call(uintptr(h), uintptr(unsafe.Pointer(&n)), uintptr(unsafe.Pointer(&infos[0]))))
		}
		return code
	}
	return ask(s, name, call, func() []Process {
		found := make([]Process, 0, len(infos))
		for _, p := range infos[:min(int(n), len(infos))] {
			found = append(found, convert(p))
		}
		return found
	})
}

package nvml

import (
	"unsafe"

	"cotenant/internal/dl"
	"cotenant/internal/observe"
)

// maxProfiles is beyond NVML_GPU_INSTANCE_PROFILE_COUNT (18 in nvml.h of CUDA 13.5); an index that a library doesn't know is
// refused by it.
const maxProfiles = 32

// mig asks for mode, devices and profiles. A GPU without MIG answers NOT_SUPPORTED to the mode and isn't asked further.
func (s *Session) mig(h handle) MIG {
	m := MIG{Devices: []MIGDevice{}, Profiles: []Profile{}}
	m.Current, m.Pending = s.flags("nvmlDeviceGetMigMode", h)
	if !m.Current.OK() {
		m.MaxDevices = observe.None[uint32]("", m.Current.Code, m.Current.Reason)
		return m
	}
	m.MaxDevices = s.number("nvmlDeviceGetMaxMigDeviceCount", h)
	if m.Current.Or(false) {
		// Slots have holes: a slot without a device says NOT_FOUND and the next may hold one.
		for slot := 0; slot < min(int(m.MaxDevices.Or(0)), maxSlots); slot++ {
			if d, found := s.migDevice(h, slot); found {
				m.Devices = append(m.Devices, d)
			}
		}
	}
	for i := 0; i < maxProfiles; i++ {
		if p, ok := s.profile(h, i).Get(); ok {
			p.Remaining = s.typed("nvmlDeviceGetGpuInstanceRemainingCapacity", h, uintptr(p.ID))
			p.Placements = s.placements(h, p.ID)
			m.Profiles = append(m.Profiles, p)
		}
	}
	return m
}

func (s *Session) migDevice(parent handle, slot int) (MIGDevice, bool) {
	var h handle
	got := ask(s, "nvmlDeviceGetMigDeviceHandleByIndex", func(f dl.Symbol) Return {
		return Return(f.Call(uintptr(parent), uintptr(slot), uintptr(unsafe.Pointer(&h))))
	}, func() handle { return h })
	if !got.OK() {
		if Return(got.Code) == NotFound || got.Code == 0 {
			return MIGDevice{}, false
		}
		why := observe.None[string](got.Call, got.Code, got.Reason)
		return MIGDevice{Slot: slot, UUID: why}, true
	}
	var a deviceAttributes
	return MIGDevice{
		Slot:            slot,
		UUID:            s.text("nvmlDeviceGetUUID", h),
		Name:            s.text("nvmlDeviceGetName", h),
		GPUInstance:     s.number("nvmlDeviceGetGpuInstanceId", h),
		ComputeInstance: s.number("nvmlDeviceGetComputeInstanceId", h),
		Attributes: ask(s, "nvmlDeviceGetAttributes_v2", func(f dl.Symbol) Return {
			return Return(f.Call(uintptr(h), uintptr(unsafe.Pointer(&a))))
		}, func() Attributes {
			return Attributes{a.multiprocessorCount, a.sharedCopyEngineCount, a.sharedDecoderCount, a.sharedEncoderCount,
				a.sharedJpegCount, a.sharedOfaCount, a.gpuInstanceSliceCount, a.computeInstanceSliceCount, a.memorySizeMB}
		}),
		Memory: s.memory(h),
	}, true
}

// profile asks for one GPU instance profile, in the newest struct version that the library takes.
func (s *Session) profile(h handle, index int) observe.Value[Profile] {
	call := func(p unsafe.Pointer) func(dl.Symbol) Return {
		return func(f dl.Symbol) Return { return Return(f.Call(uintptr(h), uintptr(index), uintptr(p))) }
	}
	const versioned = "nvmlDeviceGetGpuInstanceProfileInfoV"
	p3 := &profileInfoV3{}
	p3.version = structVersion(unsafe.Sizeof(*p3), 3)
	v := ask(s, versioned, call(unsafe.Pointer(p3)), func() Profile {
		return Profile{Index: index, ID: p3.id, Name: clean(p3.name[:]), Slices: p3.sliceCount, Instances: p3.instanceCount,
			SMs: p3.multiprocessorCount, CopyEngines: p3.copyEngineCount, Decoders: p3.decoderCount, Encoders: p3.encoderCount,
			JPEGs: p3.jpegCount, OFAs: p3.ofaCount, MemoryMiB: p3.memorySizeMB}
	})
	if Return(v.Code) == ArgumentVersionMismatch {
		p2 := &profileInfoV2{}
		p2.version = structVersion(unsafe.Sizeof(*p2), 2)
		v = ask(s, versioned, call(unsafe.Pointer(p2)), func() Profile {
			return Profile{Index: index, ID: p2.id, Name: clean(p2.name[:]), Slices: p2.sliceCount, Instances: p2.instanceCount,
				SMs: p2.multiprocessorCount, CopyEngines: p2.copyEngineCount, Decoders: p2.decoderCount, Encoders: p2.encoderCount,
				JPEGs: p2.jpegCount, OFAs: p2.ofaCount, MemoryMiB: p2.memorySizeMB}
		})
	}
	if v.Reason != notExported {
		return v
	}
	p1 := &profileInfoV1{}
	return ask(s, "nvmlDeviceGetGpuInstanceProfileInfo", call(unsafe.Pointer(p1)), func() Profile {
		return Profile{Index: index, ID: p1.id, Slices: p1.sliceCount, Instances: p1.instanceCount, SMs: p1.multiprocessorCount,
			CopyEngines: p1.copyEngineCount, Decoders: p1.decoderCount, Encoders: p1.encoderCount, JPEGs: p1.jpegCount,
			OFAs: p1.ofaCount, MemoryMiB: p1.memorySizeMB}
	})
}

// placements returns where an instance of the profile may lie; empty where the library doesn't say.
func (s *Session) placements(h handle, profile uint32) []Placement {
	const name = "nvmlDeviceGetGpuInstancePossiblePlacements_v2"
	var n uint32
	ask(s, name, func(f dl.Symbol) Return {
		return Return(f.Call(uintptr(h), uintptr(profile), 0, uintptr(unsafe.Pointer(&n))))
	}, func() bool { return true })
	if n == 0 || n > maxSlots {
		return []Placement{}
	}
	raw := make([]placement, n)
	return ask(s, name, func(f dl.Symbol) Return {
		return Return(f.Call(uintptr(h), uintptr(profile), uintptr(unsafe.Pointer(&raw[0])), uintptr(unsafe.Pointer(&n))))
	}, func() []Placement {
		found := make([]Placement, 0, len(raw))
		for _, p := range raw[:min(int(n), len(raw))] {
			found = append(found, Placement{p.start, p.size})
		}
		return found
	}).Or([]Placement{})
}

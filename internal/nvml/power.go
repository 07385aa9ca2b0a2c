package nvml

import (
	"unsafe"

	"cotenant/internal/dl"
	"cotenant/internal/observe"
)

// throttleNames are the bits of nvmlClocksEventReason… in nvml.h.
var throttleNames = []string{"gpu_idle", "applications_clocks_setting", "sw_power_cap", "hw_slowdown", "sync_boost",
	"sw_thermal_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown", "display_clock_setting", "board_limit", "reliability"}

func (s *Session) power(h handle) Power {
	const clockSM, clockMemory = 1, 2
	var u utilization
	busy := ask(s, "nvmlDeviceGetUtilizationRates", func(f dl.Symbol) Return {
		return Return(f.Call(uintptr(h), uintptr(unsafe.Pointer(&u))))
	}, func() utilization { return u })
	return Power{
		PowerMW:      s.number("nvmlDeviceGetPowerUsage", h),
		LimitMW:      s.number("nvmlDeviceGetEnforcedPowerLimit", h),
		EnergyMJ:     s.wide("nvmlDeviceGetTotalEnergyConsumption", h),
		TemperatureC: s.temperature(h),
		SMMHz:        s.typed("nvmlDeviceGetClockInfo", h, clockSM),
		MemoryMHz:    s.typed("nvmlDeviceGetClockInfo", h, clockMemory),
		MaxSMMHz:     s.typed("nvmlDeviceGetMaxClockInfo", h, clockSM),
		MaxMemoryMHz: s.typed("nvmlDeviceGetMaxClockInfo", h, clockMemory),
		PState:       s.number("nvmlDeviceGetPerformanceState", h),
		Throttle:     s.throttle(h),
		GPUPercent:   convert(busy, func(u utilization) uint32 { return u.gpu }),
		MemPercent:   convert(busy, func(u utilization) uint32 { return u.memory }),
	}
}

// throttle names the reasons; a bit without a name here is "bit n". The call was renamed in R535.
func (s *Session) throttle(h handle) observe.Value[[]string] {
	mask := s.wide("nvmlDeviceGetCurrentClocksEventReasons", h)
	if mask.Reason == notExported {
		mask = s.wide("nvmlDeviceGetCurrentClocksThrottleReasons", h)
	}
	return convert(mask, func(m uint64) []string {
		reasons := []string{}
		for bit := 0; bit < 64; bit++ {
			if m>>bit&1 != 0 {
				reasons = append(reasons, throttleName(bit))
			}
		}
		return reasons
	})
}

func throttleName(bit int) string {
	if bit < len(throttleNames) {
		return throttleNames[bit]
	}
	return "bit " + string(rune('0'+bit/10)) + string(rune('0'+bit%10))
}

// temperature is the die's. Version 1 of the newer call replaces the deprecated one.
func (s *Session) temperature(h handle) observe.Value[int32] {
	t := temperature{}
	t.version = structVersion(unsafe.Sizeof(t), 1)
	v := ask(s, "nvmlDeviceGetTemperatureV", func(f dl.Symbol) Return {
		return Return(f.Call(uintptr(h), uintptr(unsafe.Pointer(&t))))
	}, func() int32 { return t.temperature })
	if v.OK() {
		return v
	}
	const sensorGPU = 0
	return convert(s.typed("nvmlDeviceGetTemperature", h, sensorGPU), func(x uint32) int32 { return int32(x) })
}

// Sample is what changes while a GPU works.
type Sample struct {
	UUID         string
	PowerMW      observe.Value[uint32]
	EnergyMJ     observe.Value[uint64]
	TemperatureC observe.Value[int32]
	SMMHz        observe.Value[uint32]
	MemoryMHz    observe.Value[uint32]
	Throttle     observe.Value[[]string]
	GPUPercent   observe.Value[uint32]
	Memory       observe.Value[Memory]
}

// Power asks the GPU with this UUID for power, clocks and temperature. It returns a Return where NVML doesn't know the UUID.
func (s *Session) Power(uuid string) (Power, error) {
	h, err := s.handleByUUID(uuid)
	if err != nil {
		return Power{}, err
	}
	return s.power(h), nil
}

func (s *Session) handleByUUID(uuid string) (handle, error) {
	var h handle
	text := append([]byte(uuid), 0)
	got := ask(s, "nvmlDeviceGetHandleByUUID", func(f dl.Symbol) Return {
		return Return(f.Call(uintptr(unsafe.Pointer(&text[0])), uintptr(unsafe.Pointer(&h))))
	}, func() handle { return h })
	if !got.OK() {
		return 0, Return(got.Code)
	}
	return h, nil
}

// Sample asks the GPU with this UUID for what changes. It returns a Return where NVML doesn't know the UUID.
func (s *Session) Sample(uuid string) (Sample, error) {
	h, err := s.handleByUUID(uuid)
	if err != nil {
		return Sample{}, err
	}
	p := s.power(h)
	return Sample{UUID: uuid, PowerMW: p.PowerMW, EnergyMJ: p.EnergyMJ, TemperatureC: p.TemperatureC, SMMHz: p.SMMHz,
		MemoryMHz: p.MemoryMHz, Throttle: p.Throttle, GPUPercent: p.GPUPercent, Memory: s.memory(h)}, nil
}

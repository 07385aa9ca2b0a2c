package nvml

import (
	"unsafe"

	"cotenant/internal/dl"
	"cotenant/internal/observe"
)

// Pulse is what tells that a GPU is alive, that its display still is, and who has its memory. It takes few calls, so that it can be
// asked ten times a second.
type Pulse struct {
	// Handle is absent with GPU_IS_LOST or RESET_REQUIRED where the GPU is gone.
	Handle          observe.Value[bool]   `json:"handle"`
	DisplayAttached observe.Value[bool]   `json:"display_attached"`
	DisplayActive   observe.Value[bool]   `json:"display_active"`
	Memory          observe.Value[Memory] `json:"memory"`
	// Processes hold contexts of any kind, as the host's pids; one that is listed twice is there once.
	Processes observe.Value[[]uint32] `json:"processes"`
}

// Pulse asks the GPU with this UUID.
func (s *Session) Pulse(uuid string) Pulse {
	var h handle
	text := append([]byte(uuid), 0)
	got := ask(s, "nvmlDeviceGetHandleByUUID", func(f dl.Symbol) Return {
		return Return(f.Call(uintptr(unsafe.Pointer(&text[0])), uintptr(unsafe.Pointer(&h))))
	}, func() handle { return h })
	p := Pulse{Handle: convert(got, func(handle) bool { return true })}
	if !got.OK() {
		why := func() (string, int32, string) { return got.Call, got.Code, got.Reason }
		p.DisplayAttached, p.DisplayActive = observe.None[bool](why()), observe.None[bool](why())
		p.Memory, p.Processes = observe.None[Memory](why()), observe.None[[]uint32](why())
		return p
	}
	p.DisplayAttached = s.flag("nvmlDeviceGetDisplayMode", h)
	p.DisplayActive = s.flag("nvmlDeviceGetDisplayActive", h)
	p.Memory = s.memory(h)
	p.Processes = s.pids(h)
	return p
}

func (s *Session) pids(h handle) observe.Value[[]uint32] {
	seen := make(map[uint32]bool)
	pids := []uint32{}
	var first observe.Value[[]Process]
	for _, name := range []string{"nvmlDeviceGetComputeRunningProcesses", "nvmlDeviceGetGraphicsRunningProcesses", "nvmlDeviceGetMPSComputeRunningProcesses"} {
		v := s.processes(name, h)
		if first.Call == "" {
			first = v
		}
		for _, p := range v.Or(nil) {
			if !seen[p.PID] {
				seen[p.PID] = true
				pids = append(pids, p.PID)
			}
		}
	}
	return convert(first, func([]Process) []uint32 { return pids })
}

// Package query reads what the CUDA driver library says of a host and its GPUs, and can change nothing: it creates no context,
// allocates nothing and can call only the functions of its allow-lists (callable, runtimeCallable).
//
// cuInit alone makes a running MPS control daemon start a server, so every call happens in a child process whose MPS pipe
// folder is private and empty. The child has a deadline; one that hangs is killed and never waited for, one that crashes
// leaves what it had reported.
package query

import (
	"cotenant/internal/bounded"
	"cotenant/internal/observe"
)

// Driver floors, as the integer of cuDriverGetVersion.
const (
	FloorGreenContext     = 12040 // cuDeviceGetDevResource, cuGreenCtxCreate
	FloorGreenStream      = 12050 // cuGreenCtxStreamCreate
	FloorResourceLimits   = 13000 // minimum partition and alignment in the SM resource
	FloorWorkqueue        = 13010 // workqueue resources, cuDevSmResourceSplit
	FloorLocalityDomain   = 13040
	FloorMPSStaticControl = 13010 // version of the control binary, not of the driver
)

// Report is what libcuda said.
type Report struct {
	// Status is supported_proven where cuInit succeeded and everything asked was answered.
	Status observe.Status `json:"status"`
	// Reason says why Status is what it is; empty for supported_proven.
	Reason string `json:"reason,omitempty"`
	// Attempts are the child processes that were run, the one reported last. A second one is run where the first met a stub,
	// compatibility or foreign library and another libcuda exists.
	Attempts []Attempt `json:"attempts"`
	// MPSBypassed says that an MPS daemon, if any, was hidden from the library: counts are those of a process without MPS.
	MPSBypassed bool `json:"mps_bypassed"`
	// SideEffects lists what asking may have done to the machine.
	SideEffects []string `json:"side_effects"`
	Answer
}

// Attempt is one child process.
type Attempt struct {
	// Asked are the names given to the loader.
	Asked   []string        `json:"asked"`
	Path    string          `json:"path,omitempty"` // of the library that was opened
	Init    *Call           `json:"init,omitempty"`
	Outcome bounded.Outcome `json:"outcome"`
	WallUS  int64           `json:"wall_us"`
	// Calling is the call during which the child hung or crashed.
	Calling string `json:"calling,omitempty"`
	// State is the process state at the deadline, "D" for uninterruptible.
	State string `json:"state,omitempty"`
	// Noise is what the library printed, clipped.
	Noise string `json:"noise,omitempty"`
}

// Answer is what one child reported. Where the child hung or crashed it holds the parts that came before.
type Answer struct {
	Library *Library `json:"library,omitempty"`
	// Symbols maps each driver symbol that matters for sharing to whether the library exports it. Presence proves nothing.
	Symbols map[string]bool `json:"symbols,omitempty"`
	Init    *Call           `json:"init,omitempty"`
	// DriverVersion is cuDriverGetVersion's integer, such as 13000. It needs no cuInit.
	DriverVersion observe.Value[int] `json:"driver_version"`
	DeviceCount   observe.Value[int] `json:"device_count"`
	Devices       []Device           `json:"devices"`
}

// Library is what is known of the file that was opened.
type Library struct {
	Name string `json:"name"`           // as asked
	Path string `json:"path,omitempty"` // links resolved
	// Stub: a toolkit's stub for linking. Compat: a CUDA forward-compatibility package. WSL: the shim of WSL2.
	Stub   bool `json:"stub,omitempty"`
	Compat bool `json:"compat,omitempty"`
	WSL    bool `json:"wsl,omitempty"`
	// Preload is LD_PRELOAD as the child saw it; Mapped are the files in the child's memory that may interpose on the driver.
	Preload string   `json:"preload,omitempty"`
	Mapped  []string `json:"mapped,omitempty"`
}

// Call is a call and its result.
type Call struct {
	Name   string `json:"name"`
	Code   int32  `json:"code"`
	Symbol string `json:"symbol"` // the code's name
	WallUS int64  `json:"wall_us"`
}

// Device is one GPU, or one MIG instance, as the driver enumerates it in PCI order.
type Device struct {
	Ordinal int `json:"ordinal"`
	// UUID is 8-4-4-4-12 hexadecimal without the prefix GPU- or MIG-, which the driver's 16 bytes don't hold. In MIG mode it is
	// the instance's.
	UUID observe.Value[string] `json:"uuid"`
	Name observe.Value[string] `json:"name"`
	// PCI is the driver's text, such as 0000:06:00.0.
	PCI               observe.Value[string] `json:"pci"`
	ComputeCapability observe.Value[string] `json:"compute_capability"` // "9.0"
	SMCount           observe.Value[int64]  `json:"sm_count"`
	MemoryBytes       observe.Value[uint64] `json:"memory_bytes"`
	// Attributes are device attributes by cuda.h's name in lower case without its prefix.
	Attributes map[string]observe.Value[int64] `json:"attributes"`
	SM         observe.Value[SMResource]       `json:"sm_resource"`
	// WorkqueueConfig and Workqueue need a driver of CUDA 13.1.
	WorkqueueConfig observe.Value[WorkqueueConfig] `json:"workqueue_config"`
	Workqueue       observe.Value[Workqueue]       `json:"workqueue"`
}

// SMResource is the SM resource of a device. What a driver is too old to report is absent, not 0.
type SMResource struct {
	Count          uint32                `json:"count"`
	MinPartition   observe.Value[uint32] `json:"min_partition"`
	Alignment      observe.Value[uint32] `json:"alignment"`
	Flags          observe.Value[uint32] `json:"flags"`
	LocalityDomain observe.Value[uint32] `json:"locality_domain"`
	// Raw is the hexadecimal of the 48 bytes from offset 96.
	Raw string `json:"raw"`
}

// WorkqueueConfig is a device's workqueue configuration resource.
type WorkqueueConfig struct {
	Device           int32  `json:"device"`
	ConcurrencyLimit uint32 `json:"concurrency_limit"`
	SharingScope     uint32 `json:"sharing_scope"` // 0 device context, 1 green context balanced
	Raw              string `json:"raw"`
}

// Workqueue is a device's workqueue resource, whose content is the driver's own.
type Workqueue struct {
	Raw string `json:"raw"` // hexadecimal of its 40 bytes
}

// StatusOf says what a result of cuInit means for this source.
func StatusOf(c Code) observe.Status {
	switch c {
	case Success:
		return observe.SupportedProven
	case NoDevice:
		return observe.Unavailable
	case DeviceUnavailable:
		return observe.Busy
	case NotPermitted:
		return observe.PermissionDenied
	case SystemNotReady:
		return observe.BlockedByDeviceState
	case StubLibrary, SystemDriverMismatch, CompatNotSupportedOnDevice, OperatingSystem:
		return observe.BlockedByEnvironment
	case MPSConnectionFailed, MPSRpcFailure, MPSServerNotReady:
		return observe.BlockedByMode
	}
	return observe.Unknown
}

// Package nvml reads NVIDIA's management library: the driver, GPUs, MIG, processes, power and health. It calls only functions
// of its allow-list (callable), which get and never set. Inspect asks in a child process with a deadline; Session asks in this
// process, for samples.
package nvml

import (
	"cotenant/internal/bounded"
	"cotenant/internal/observe"
)

// Report is what NVML said.
type Report struct {
	// Status is supported_proven where initialisation succeeded and the child finished.
	Status      observe.Status `json:"status"`
	Reason      string         `json:"reason,omitempty"`
	SideEffects []string       `json:"side_effects"`
	Attempts    []Attempt      `json:"attempts"`
	Answer
}

// Attempt is one child process.
type Attempt struct {
	Asked   []string        `json:"asked"`
	Path    string          `json:"path,omitempty"`
	Init    *Call           `json:"init,omitempty"`
	Outcome bounded.Outcome `json:"outcome"`
	WallUS  int64           `json:"wall_us"`
	Calling string          `json:"calling,omitempty"` // during which it hung or crashed
	State   string          `json:"state,omitempty"`   // process state at the deadline
	Noise   string          `json:"noise,omitempty"`
}

// Answer is what one child reported, as far as it came.
type Answer struct {
	Library     *Library           `json:"library,omitempty"`
	Init        *Call              `json:"init,omitempty"`
	System      *System            `json:"system,omitempty"`
	DeviceCount observe.Value[int] `json:"device_count"`
	Devices     []Device           `json:"devices"`
}

// Library is the file that was opened.
type Library struct {
	Name string `json:"name"`
	Path string `json:"path,omitempty"`
}

// Call is a call and its result.
type Call struct {
	Name   string `json:"name"`
	Code   int32  `json:"code"`
	Symbol string `json:"symbol"`
	WallUS int64  `json:"wall_us"`
}

// System is what NVML says beyond devices.
type System struct {
	DriverVersion observe.Value[string] `json:"driver_version"` // "580.159.04"
	NVMLVersion   observe.Value[string] `json:"nvml_version"`   // "13.580.159.04"
	CUDAVersion   observe.Value[int]    `json:"cuda_version"`   // 13000
	// ConfidentialCompute is the feature state: 0 disabled, 1 enabled, 2 bare metal.
	ConfidentialCompute observe.Value[uint32] `json:"confidential_compute"`
}

// Device is one GPU. Index is NVML's, in PCI order.
type Device struct {
	Index int `json:"index"`
	// Handle is the result of asking for the device; absent with GPU_IS_LOST or RESET_REQUIRED for a broken one.
	Handle            observe.Value[bool]   `json:"handle"`
	UUID              observe.Value[string] `json:"uuid"` // "GPU-…"
	Name              observe.Value[string] `json:"name"`
	PCI               observe.Value[PCI]    `json:"pci"`
	Minor             observe.Value[uint32] `json:"minor"` // of /dev/nvidia<minor>
	ComputeCapability observe.Value[string] `json:"compute_capability"`
	Architecture      observe.Value[string] `json:"architecture"`
	Cores             observe.Value[uint32] `json:"cores"`
	Memory            observe.Value[Memory] `json:"memory"`
	ComputeMode       observe.Value[string] `json:"compute_mode"` // default, prohibited, exclusive_process, exclusive_thread
	Persistence       observe.Value[bool]   `json:"persistence_mode"`
	DisplayAttached   observe.Value[bool]   `json:"display_attached"`
	DisplayActive     observe.Value[bool]   `json:"display_active"`
	Virtualization    observe.Value[string] `json:"virtualization"`  // none, passthrough, vgpu_guest, vgpu_host, vsga_host
	HostVGPUMode      observe.Value[string] `json:"host_vgpu_mode"`  // non_sriov, sriov
	AddressingMode    observe.Value[string] `json:"addressing_mode"` // none, hmm, ats
	MIG               MIG                   `json:"mig"`
	Processes         Processes             `json:"processes"`
	Power             Power                 `json:"power"`
	Health            Health                `json:"health"`
}

// PCI is a device's place. BusID is NVML's text "00000000:06:00.0"; the domain may be other than 0.
type PCI struct {
	BusID    string `json:"bus_id"`
	Domain   uint32 `json:"domain"`
	Bus      uint32 `json:"bus"`
	Device   uint32 `json:"device"`
	DeviceID uint32 `json:"device_id"` // device << 16 | vendor
	Subsys   uint32 `json:"subsystem_id"`
}

// Memory is in bytes. Reserved is absent where only version 1 of the call exists, whose Used includes it.
type Memory struct {
	TotalBytes    uint64                `json:"total_bytes"`
	FreeBytes     uint64                `json:"free_bytes"`
	UsedBytes     uint64                `json:"used_bytes"`
	ReservedBytes observe.Value[uint64] `json:"reserved_bytes"`
}

// MIG is the multi-instance state of one GPU.
type MIG struct {
	Current observe.Value[bool] `json:"current"`
	Pending observe.Value[bool] `json:"pending"`
	// MaxDevices is how many MIG device slots are scanned; holes are normal.
	MaxDevices observe.Value[uint32] `json:"max_devices"`
	Devices    []MIGDevice           `json:"devices"`
	Profiles   []Profile             `json:"profiles"`
}

// MIGDevice is one MIG device: a compute instance in a GPU instance.
type MIGDevice struct {
	Slot            int                       `json:"slot"`
	UUID            observe.Value[string]     `json:"uuid"` // "MIG-…"
	Name            observe.Value[string]     `json:"name"`
	GPUInstance     observe.Value[uint32]     `json:"gpu_instance"`
	ComputeInstance observe.Value[uint32]     `json:"compute_instance"`
	Attributes      observe.Value[Attributes] `json:"attributes"`
	Memory          observe.Value[Memory]     `json:"memory"`
}

// Attributes are what a MIG device has of its GPU.
type Attributes struct {
	SMs           uint32 `json:"sms"`
	CopyEngines   uint32 `json:"copy_engines"`
	Decoders      uint32 `json:"decoders"`
	Encoders      uint32 `json:"encoders"`
	JPEGs         uint32 `json:"jpegs"`
	OFAs          uint32 `json:"ofas"`
	GPUSlices     uint32 `json:"gpu_slices"`
	ComputeSlices uint32 `json:"compute_slices"`
	MemoryMiB     uint64 `json:"memory_mib"`
}

// Profile is a GPU instance profile that the device offers.
type Profile struct {
	// Index is NVML's enumeration index; ID is the profile's id on this device.
	Index       int                   `json:"index"`
	ID          uint32                `json:"id"`
	Name        string                `json:"name,omitempty"` // "1g.10gb", where the call's version has it
	Slices      uint32                `json:"slices"`
	Instances   uint32                `json:"instances"` // how many fit an empty GPU
	SMs         uint32                `json:"sms"`
	CopyEngines uint32                `json:"copy_engines"`
	Decoders    uint32                `json:"decoders"`
	Encoders    uint32                `json:"encoders"`
	JPEGs       uint32                `json:"jpegs"`
	OFAs        uint32                `json:"ofas"`
	MemoryMiB   uint64                `json:"memory_mib"`
	Remaining   observe.Value[uint32] `json:"remaining"` // how many more could be made
	Placements  []Placement           `json:"placements"`
}

// Placement is a possible place of an instance, in memory slices.
type Placement struct {
	Start uint32 `json:"start"`
	Size  uint32 `json:"size"`
}

// Processes are those that hold contexts on one GPU, by kind.
type Processes struct {
	Compute  observe.Value[[]Process] `json:"compute"`
	Graphics observe.Value[[]Process] `json:"graphics"`
	MPS      observe.Value[[]Process] `json:"mps"`
}

// Process is one process. PID belongs to the host's namespace.
type Process struct {
	PID             uint32                `json:"pid"`
	UsedBytes       observe.Value[uint64] `json:"used_bytes"` // absent where the driver doesn't manage memory (WDDM)
	GPUInstance     observe.Value[uint32] `json:"gpu_instance"`
	ComputeInstance observe.Value[uint32] `json:"compute_instance"`
}

// Power holds power, clocks and temperature.
type Power struct {
	PowerMW      observe.Value[uint32]   `json:"power_mw"`
	LimitMW      observe.Value[uint32]   `json:"limit_mw"` // enforced
	EnergyMJ     observe.Value[uint64]   `json:"energy_mj"`
	TemperatureC observe.Value[int32]    `json:"temperature_c"`
	SMMHz        observe.Value[uint32]   `json:"sm_mhz"`
	MemoryMHz    observe.Value[uint32]   `json:"memory_mhz"`
	MaxSMMHz     observe.Value[uint32]   `json:"max_sm_mhz"`
	MaxMemoryMHz observe.Value[uint32]   `json:"max_memory_mhz"`
	PState       observe.Value[uint32]   `json:"pstate"`
	Throttle     observe.Value[[]string] `json:"throttle"` // reasons by name; empty: none
	GPUPercent   observe.Value[uint32]   `json:"gpu_percent"`
	MemPercent   observe.Value[uint32]   `json:"memory_percent"`
}

// Health holds what tells a broken GPU.
type Health struct {
	ECCCurrent           observe.Value[bool]   `json:"ecc_current"`
	ECCPending           observe.Value[bool]   `json:"ecc_pending"`
	UncorrectedVolatile  observe.Value[uint64] `json:"ecc_uncorrected_volatile"`
	UncorrectedAggregate observe.Value[uint64] `json:"ecc_uncorrected_aggregate"`
	Remapped             observe.Value[Remap]  `json:"remapped_rows"`
	RetiredPending       observe.Value[bool]   `json:"retired_pages_pending"`
	Repair               observe.Value[Repair] `json:"repair"`
	Fabric               observe.Value[Fabric] `json:"fabric"`
}

// Remap is the state of row remapping.
type Remap struct {
	Correctable   uint32 `json:"correctable"`
	Uncorrectable uint32 `json:"uncorrectable"`
	Pending       bool   `json:"pending"` // a reset is needed to finish
	Failed        bool   `json:"failed"`
}

// Repair says whether a channel or TPC repair awaits a reset.
type Repair struct {
	ChannelPending bool `json:"channel_pending"`
	TPCPending     bool `json:"tpc_pending"`
}

// Fabric is the NVLink fabric's state for one GPU.
type Fabric struct {
	State  string `json:"state"`  // not_supported, not_started, in_progress, completed
	Status string `json:"status"` // nvmlReturn_t, of meaning where State is completed
	Health uint32 `json:"health"` // mask of nvml.h
}

// StatusOf says what a result of initialising NVML means for this source.
func StatusOf(r Return) observe.Status {
	switch r {
	case Success:
		return observe.SupportedProven
	case NoPermission:
		return observe.PermissionDenied
	case DriverNotLoaded, GPUNotFound, LibraryNotFound:
		return observe.Unavailable
	case LibRMVersionMismatch, OperatingSystem:
		return observe.BlockedByEnvironment
	case GPUIsLost, ResetRequired:
		return observe.BlockedByDeviceState
	case InUse:
		return observe.Busy
	case Timeout:
		return observe.Hung
	}
	return observe.Unknown
}

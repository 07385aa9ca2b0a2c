package inspect

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"

	"cotenant/internal/cuda/query"
	mps "cotenant/internal/mps/query"
	"cotenant/internal/nvml"
	"cotenant/internal/observe"
	"cotenant/internal/topology"
)

// SchemaVersion and Operation mark a report.
const (
	SchemaVersion = 1
	Operation     = "gpu_sharing_inspect"
)

// Report is what `cotenant inspect --json` prints, with sorted keys. Two runs on an unchanged host print the same bytes, unless
// what is volatile was asked for.
type Report struct {
	SchemaVersion int    `json:"schema_version"`
	Operation     string `json:"operation"`
	MutatedState  bool   `json:"mutated_state"` // always false
	// ObservedRoot is set where a test played another host.
	ObservedRoot string            `json:"observed_root,omitempty"`
	Program      Program           `json:"program"`
	Host         Host              `json:"host"`
	GPUs         []GPU             `json:"gpus"`
	Sources      map[string]Source `json:"sources"`
	// Findings are what somebody should know or do, beyond the verdicts.
	Findings []Finding `json:"findings"`
	// Disagreements are fields on which two sources differ.
	Disagreements []Disagreement    `json:"disagreements"`
	Topology      *topology.Binding `json:"topology,omitempty"`
	// Proves and ProvesNot bound the claim.
	Proves    []string `json:"proves"`
	ProvesNot []string `json:"proves_not"`
}

// Host is the machine, or the container, that was inspected.
type Host struct {
	OS            string              `json:"os"`
	KernelRelease string              `json:"kernel_release,omitempty"`
	Platform      string              `json:"platform"` // native, wsl2, tegra, windows, darwin, other
	Sandbox       string              `json:"sandbox"`  // none, gvisor
	Container     string              `json:"container"`
	UserNamespace observe.Value[bool] `json:"user_namespace"`
	PIDNamespace  string              `json:"pid_namespace"`
	Environment   map[string]string   `json:"environment"`
	Driver        Driver              `json:"driver"`
	CUDA          CUDA                `json:"cuda"`
	MPS           MPS                 `json:"mps"`
	Docker        *DockerHost         `json:"docker,omitempty"`
	CDI           []CDISpec           `json:"cdi"`
	Toolkit       *ToolkitHost        `json:"container_toolkit,omitempty"`
	Toolkits      []CUDAToolkit       `json:"cuda_toolkits"`
	NVCC          string              `json:"nvcc,omitempty"`
	Packages      []Package           `json:"python_packages"`
	WSLFiles      []string            `json:"wsl_files,omitempty"`
	TegraRelease  string              `json:"tegra_release,omitempty"`
	TegraModel    string              `json:"tegra_model,omitempty"`
}

// Driver is the driver's version by each that knows it.
type Driver struct {
	KernelModule string                `json:"kernel_module,omitempty"`
	Open         bool                  `json:"open_kernel_module"`
	NVML         observe.Value[string] `json:"nvml"`
	SMI          observe.Value[string] `json:"nvidia_smi"`
	Devices      []string              `json:"device_nodes"`
}

// CUDA is CUDA's version by each that knows it, as the integer of cuDriverGetVersion, and the libraries.
type CUDA struct {
	Driver      observe.Value[int] `json:"driver"`
	NVML        observe.Value[int] `json:"nvml"`
	Runtime     observe.Value[int] `json:"runtime"`
	Library     *query.Library     `json:"library,omitempty"`
	Symbols     map[string]bool    `json:"driver_symbols,omitempty"`
	RuntimePath string             `json:"runtime_library,omitempty"`
	RuntimeSyms map[string]bool    `json:"runtime_symbols,omitempty"`
	// MPSBypassed says that libcuda was asked where it could not reach an MPS daemon.
	MPSBypassed bool `json:"mps_bypassed"`
}

// MPS is the Multi-Process Service on this host.
type MPS struct {
	Control    string                         `json:"control,omitempty"`
	Version    observe.Value[int]             `json:"control_version"`
	Daemons    []MPSDaemon                    `json:"daemons"`
	Servers    int                            `json:"servers"`
	Folders    []MPSFolder                    `json:"folders"`
	Partitions observe.Value[[]mps.Partition] `json:"partitions"`
}

// MPSDaemon is a control daemon seen in /proc.
type MPSDaemon struct {
	UID              observe.Value[int]    `json:"uid"`
	Mode             mps.Mode              `json:"mode"`
	Pipe             observe.Value[string] `json:"pipe"`
	VisibleDevices   observe.Value[string] `json:"visible_devices"`
	ActivePercentage observe.Value[string] `json:"active_thread_percentage"`
	PID              int                   `json:"pid,omitempty"`   // volatile
	State            string                `json:"state,omitempty"` // of proc(5), volatile
}

// MPSFolder is a pipe folder and what its daemon answers.
type MPSFolder struct {
	Path     string             `json:"path"`
	Why      string             `json:"why"`
	Exists   bool               `json:"exists"`
	Denied   bool               `json:"denied"`
	Owner    observe.Value[int] `json:"owner"`
	Socket   bool               `json:"socket"`
	PIDState mps.PIDState       `json:"pid_state"`
	TooLong  bool               `json:"too_long"`
	// Answer is what get_server_list, or `server list` of protocol 3, meant; empty where it was not asked.
	Answer mps.Kind `json:"answer,omitempty"`
}

// DockerHost is the engine.
type DockerHost struct {
	Version    string   `json:"version"`
	APIVersion string   `json:"api_version"`
	OS         string   `json:"os"`
	Runtimes   []string `json:"runtimes"`
	Default    string   `json:"default_runtime"`
	CDIFolders []string `json:"cdi_folders"`
	Discovered []string `json:"cdi_devices"`
	Security   []string `json:"security_options"`
}

// ToolkitHost is NVIDIA's container toolkit.
type ToolkitHost struct {
	Version  string            `json:"version,omitempty"`
	Mode     string            `json:"mode,omitempty"`
	Programs map[string]string `json:"programs"`
}

// GPU is one GPU and its verdicts. Its identity is the UUID; index and ordinal are observations that change between boots.
type GPU struct {
	UUID              string                          `json:"uuid"` // empty where nobody could tell it
	State             string                          `json:"state"`
	SeenBy            []string                        `json:"seen_by"`
	Roles             []string                        `json:"roles"`
	Index             observe.Value[int]              `json:"index"`        // NVML's
	Ordinal           observe.Value[int]              `json:"cuda_ordinal"` // in PCI order
	Name              observe.Value[string]           `json:"name"`
	PCI               observe.Value[string]           `json:"pci"`
	KernelDriver      observe.Value[string]           `json:"kernel_driver"`
	ComputeCapability observe.Value[string]           `json:"compute_capability"`
	Architecture      observe.Value[string]           `json:"architecture"`
	SMCount           observe.Value[int64]            `json:"sm_count"`
	SMResource        observe.Value[SMResource]       `json:"sm_resource"`
	MemoryBytes       observe.Value[uint64]           `json:"memory_bytes"`
	MemoryUnified     observe.Value[bool]             `json:"memory_unified"`
	ComputeMode       observe.Value[string]           `json:"compute_mode"`
	Persistence       observe.Value[bool]             `json:"persistence_mode"`
	DisplayAttached   observe.Value[bool]             `json:"display_attached"`
	DisplayActive     observe.Value[bool]             `json:"display_active"`
	Virtualization    observe.Value[string]           `json:"virtualization"`
	AddressingMode    observe.Value[string]           `json:"addressing_mode"`
	MIG               nvml.MIG                        `json:"mig"`
	Instances         []Instance                      `json:"cuda_instances"`
	Processes         observe.Value[[]HeldBy]         `json:"processes"`
	Power             map[string]any                  `json:"power"`
	Health            nvml.Health                     `json:"health"`
	Memory            *observe.Value[nvml.Memory]     `json:"memory,omitempty"` // volatile
	Attributes        map[string]observe.Value[int64] `json:"attributes"`
	Mechanisms        map[string]Verdict              `json:"mechanisms"`
}

// Instance is a MIG device as CUDA enumerates it.
type Instance struct {
	UUID       string                    `json:"uuid"`
	SMCount    observe.Value[int64]      `json:"sm_count"`
	SMResource observe.Value[SMResource] `json:"sm_resource"`
}

// SMResource is what cuDeviceGetDevResource says of SMs, and where a driver is too old to tell, the documented table.
type SMResource struct {
	Count uint32 `json:"count"`
	// MinPartition and Alignment are the driver's; absent before CUDA 13.0.
	MinPartition observe.Value[uint32] `json:"min_partition"`
	Alignment    observe.Value[uint32] `json:"alignment"`
}

// HeldBy is a group of processes that hold the GPU with the same executable in the same way.
type HeldBy struct {
	Executable observe.Value[string] `json:"executable"`
	// Deleted: the executable's file was unlinked while it runs, as after an upgrade.
	Deleted bool     `json:"deleted"`
	Kinds   []string `json:"kinds"` // compute, graphics, mps, mps_server
	Count   int      `json:"count"`
	PIDs    []uint32 `json:"pids,omitempty"` // volatile
}

// Verdict is whether one mechanism works on one GPU.
type Verdict struct {
	Status   observe.Status `json:"status"`
	Reason   string         `json:"reason"`
	Evidence []Evidence     `json:"evidence"`
	// Floor is the least version or hardware that was applied.
	Floor string `json:"floor"`
	// Limitation is what the verdict doesn't say, or what the mechanism doesn't give.
	Limitation string `json:"limitation"`
	// Next is what to do; empty where the mechanism is supported.
	Next string `json:"next,omitempty"`
}

// Finding is something about the host that explains verdicts or needs somebody.
type Finding struct {
	ID       string     `json:"id"`
	Text     string     `json:"text"`
	Evidence []Evidence `json:"evidence"`
	Next     string     `json:"next,omitempty"`
	GPU      string     `json:"gpu,omitempty"` // UUID or PCI id
}

// Disagreement is a field on which sources differ.
type Disagreement struct {
	Field string            `json:"field"`
	GPU   string            `json:"gpu,omitempty"` // UUID or PCI id
	Said  map[string]string `json:"said"`          // by source
}

// WriteJSON writes the report with sorted keys, indented.
func (r *Report) WriteJSON(w io.Writer) error {
	data, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("encoding the report: %w", err)
	}
	// Maps are written with sorted keys, structs are not.
	var generic any
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.UseNumber()
	if err := dec.Decode(&generic); err != nil {
		return fmt.Errorf("encoding the report: %w", err)
	}
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	enc.SetEscapeHTML(false)
	if err := enc.Encode(generic); err != nil {
		return fmt.Errorf("writing the report: %w", err)
	}
	return nil
}

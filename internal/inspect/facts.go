package inspect

import (
	"cotenant/internal/cuda/query"
	mps "cotenant/internal/mps/query"
	"cotenant/internal/nvml"
	"cotenant/internal/observe"
)

// Facts is what every source said. A source that did not answer is in it with its status and reason.
type Facts struct {
	Program Program
	Root    string
	OS      string
	// UserID is who asked; -1 where there are no user ids.
	UserID int

	Environment Environment
	Kernel      Kernel
	Container   Container
	WSL         WSL
	Tegra       Tegra
	PCI         PCI
	Driver      DriverFiles
	NVML        nvml.Report
	SMI         SMI
	CUDA        query.Report
	Runtime     query.RuntimeReport
	MPS         mps.Report
	Processes   Processes
	Docker      Docker
	CDI         CDI
	Toolkit     ContainerToolkit
	NVCC        NVCC
	Frameworks  Frameworks

	// Volatile is Options.Volatile.
	Volatile bool
	// WallUS is how long each source took; left out of a report unless asked for.
	WallUS map[string]int64
}

// Program is this program.
type Program struct {
	Version string `json:"version"`
	OS      string `json:"os"`
	Arch    string `json:"arch"`
	// Libraries says why this build can't open shared libraries; empty where it can.
	Libraries string `json:"libraries,omitempty"`
}

// Source is how a source answered. supported_proven means that it did.
type Source struct {
	Status      observe.Status `json:"status"`
	Reason      string         `json:"reason,omitempty"`
	Evidence    []Evidence     `json:"evidence"`
	SideEffects []string       `json:"side_effects"`
	WallUS      int64          `json:"wall_us,omitempty"`
}

// Evidence is one thing that was asked and what came back.
type Evidence struct {
	// Call is a function, a command line, a request or a file.
	Call string `json:"call"`
	// Code is what it returned; absent where calls of this kind return none.
	Code *int32 `json:"code,omitempty"`
	// Text is what it said, at most observe.MaxText bytes.
	Text string `json:"text,omitempty"`
}

func said(call, text string) Evidence { return Evidence{Call: call, Text: observe.Clip(text)} }

func returned(call string, code int32, text string) Evidence {
	return Evidence{Call: call, Code: &code, Text: observe.Clip(text)}
}

func (s *Source) add(e ...Evidence) { s.Evidence = append(s.Evidence, e...) }

func (s *Source) end(status observe.Status, reason string) {
	s.Status, s.Reason = status, observe.Clip(reason)
}

// Environment is what this process's environment says about GPUs. Only variables of a closed list are kept.
type Environment struct {
	Variables map[string]string `json:"variables"`
}

// Kernel is the operating system.
type Kernel struct {
	Source
	Release string // uname -r
	Version string // /proc/version
	// GVisor says that this kernel is gVisor's sandbox.
	GVisor bool
	// PIDNamespace is host, own or unknown: NVML's pids are the host's.
	PIDNamespace string
	MemTotal     observe.Value[uint64] // bytes
}

// Container is whether this process runs in one.
type Container struct {
	Source
	// Kind is none, docker, podman, containerd, kubernetes, lxc, systemd-nspawn, apptainer, other or unknown.
	Kind string
	// UserNamespace says that user ids are mapped.
	UserNamespace observe.Value[bool]
}

// WSL is the Windows Subsystem for Linux.
type WSL struct {
	Source
	Present bool
	DXG     bool     // /dev/dxg
	Files   []string // names under /usr/lib/wsl/lib
}

// Tegra is an integrated GPU's board.
type Tegra struct {
	Source
	Present bool
	Release string // first line of /etc/nv_tegra_release
	Model   string // of the device tree
}

// PCI lists NVIDIA's display controllers on the bus.
type PCI struct {
	Source
	Devices []PCIDevice
}

// PCIDevice is one of them.
type PCIDevice struct {
	BusID  string // 0000:06:00.0
	Device string // 0x2330
	Class  string // 0x030200
	Driver string // kernel driver; empty for none
	// Runtime is the power state: active, suspended; empty where it isn't told.
	Runtime string
	// VirtualOf is the physical function that this virtual one belongs to.
	VirtualOf string
}

// DriverFiles is /proc/driver/nvidia, /sys/module/nvidia and /dev.
type DriverFiles struct {
	Source
	Version string // kernel module
	Open    bool   // the open kernel module
	Loaded  bool   // /sys/module/nvidia
	GPUs    []DriverGPU
	Devices []string // /dev/nvidia*
}

// DriverGPU is a folder of /proc/driver/nvidia/gpus.
type DriverGPU struct {
	BusID, Model, UUID string
	Excluded           bool
}

// Processes are those that hold GPUs, by NVML's pid.
type Processes struct {
	Source
	ByPID map[uint32]Process
}

// Process is what /proc says of one.
type Process struct {
	Executable observe.Value[string] // as its link says, without " (deleted)"
	Deleted    bool
}

// CDI are the Container Device Interface specifications that name NVIDIA.
type CDI struct {
	Source
	Specs []CDISpec
}

// CDISpec is one file.
type CDISpec struct {
	Path    string   `json:"path"`
	Kind    string   `json:"kind,omitempty"`
	Version string   `json:"version,omitempty"`
	Devices []string `json:"devices"` // names, sorted
	Reason  string   `json:"reason,omitempty"`
}

// Docker is the engine behind the local socket.
type Docker struct {
	Source
	Version     string
	APIVersion  string
	OS          string // "Docker Desktop", "Ubuntu 24.04.4 LTS"
	Runtimes    []string
	Default     string
	CDIFolders  []string
	Discovered  []string // devices by CDI
	SecurityOpt []string
}

// ContainerToolkit is NVIDIA's container toolkit.
type ContainerToolkit struct {
	Source
	Programs map[string]string // name → path
	Version  string            // of nvidia-ctk
	Mode     string            // of its configuration: auto, legacy, cdi, csv
}

// NVCC is CUDA toolkits.
type NVCC struct {
	Source
	Version  string // of nvcc on PATH or in the first toolkit
	Toolkits []CUDAToolkit
}

// CUDAToolkit is a toolkit's folder.
type CUDAToolkit struct {
	Path    string `json:"path"`
	Version string `json:"version"`
}

// Frameworks are Python packages found on disk; no Python is run.
type Frameworks struct {
	Source
	Packages []Package
}

// Package is a Python distribution.
type Package struct {
	Name    string `json:"name"` // torch, flashinfer-python
	Version string `json:"version"`
	Path    string `json:"path"` // the folder that holds it
	// CUDA is the toolkit that it was built for, as its files say.
	CUDA string `json:"cuda,omitempty"`
	// GreenContexts says whether its files hold the module for Green Contexts. Presence proves nothing about whether it works.
	GreenContexts bool `json:"green_contexts"`
}

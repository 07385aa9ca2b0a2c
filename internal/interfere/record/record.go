// Package record is the folder that an interference run leaves behind: its documents, the one function that turns rows into a
// ledger (Compute), advice from a ledger (Recommend), and the rules that hold them against each other. docs/formats/interfere.md
// describes the files for others, docs/metrics.md every number.
//
//	plan.json       the matrix, its workloads, sizes and the seed of its order: written before anything is measured
//	segments.jsonl  one line a segment: a process that measured, on what, with which kernels, what it could and couldn't make
//	rows.jsonl      one line a block of victim launches, in the order in which they were taken, each launch a number in it
//	ledger.json     what Compute makes of the three
//	guard/N/        the evidence of segment N's guard: gates, journal, cleanup (package probe/evidence)
//
// Every number is an integer with its unit in its name. An absent number is null, never 0.
package record

import (
	"cotenant/internal/observe"
)

// SchemaVersion of every document.
const SchemaVersion = 1

// Operations.
const (
	PlanOperation           = "interference_plan"
	LedgerOperation         = "interference_ledger"
	RecommendationOperation = "interference_recommendation"
	PublishedOperation      = "interference_published"
)

// Names in the folder.
const (
	PlanFile     = "plan.json"
	SegmentsFile = "segments.jsonl"
	RowsFile     = "rows.jsonl"
	LedgerFile   = "ledger.json"
	GuardFolder  = "guard"
)

// Kinds of workloads.
const (
	Decode     = "decode"     // a chain of matrix-vector products as one CUDA graph
	Critical   = "critical"   // one short kernel of arithmetic on few blocks
	GEMM       = "gemm"       // one bf16 matrix product: prefill
	FMA        = "fma"        // arithmetic on every SM
	HBM        = "hbm"        // reads and writes memory beyond any cache
	L2         = "l2"         // reads what fits in the L2 again and again
	Copy       = "copy"       // the copy engines, both ways at once, from and to pinned host memory
	Tiny       = "tiny"       // many launches of an empty kernel
	Persistent = "persistent" // a kernel that fills every SM and stays
)

// Resources whose ceiling is measured, and the unit of a workload's work.
const (
	HBMBytes  = "hbm_bytes"
	L2Bytes   = "l2_bytes"
	LinkBytes = "link_bytes"
	BF16Ops   = "bf16_ops"
	FMAOps    = "fma_ops"
	Launches  = "launches"
	BusyNS    = "block_ns" // time for which blocks held their place on an SM
)

// Workload is a victim or an aggressor. Work is what one launch of a victim, or one unit of an aggressor, does of Resource.
type Workload struct {
	ID       string `json:"id"`
	Kind     string `json:"kind"`
	Resource string `json:"resource"`
	Work     int64  `json:"work"`
	// GEMV are rows and columns of the matrices of one layer, Layers how many layers one launch has. Decode.
	GEMV   [][2]int64 `json:"gemv,omitempty"`
	Layers int64      `json:"layers,omitempty"`
	// M, N, K are the sizes of a matrix product. GEMM.
	M int64 `json:"m,omitempty"`
	N int64 `json:"n,omitempty"`
	K int64 `json:"k,omitempty"`
	// Blocks and Threads are the grid. Blocks is the whole grid for Critical, a number per SM of the GPU for FMA, and per SM of the
	// allocation for Persistent.
	Blocks  int64 `json:"blocks,omitempty"`
	Threads int64 `json:"threads,omitempty"`
	// Rounds of arithmetic a thread, FMA and Critical; tickets a block of the whole GPU, Persistent.
	Rounds int64 `json:"rounds,omitempty"`
	// Bytes of the buffer, Passes over it a unit. HBM, L2, Copy.
	Bytes  int64 `json:"bytes,omitempty"`
	Passes int64 `json:"passes,omitempty"`
	// Launches a unit. Tiny.
	Launches int64 `json:"launches,omitempty"`
	// SpinUS is how long a block works on one ticket. Persistent.
	SpinUS int64 `json:"spin_us,omitempty"`
	// Depth is how many units an aggressor keeps submitted.
	Depth int64 `json:"depth,omitempty"`
	// L2State says what of the L2 a victim's launch finds: "kept" (whatever the launch before left) or "beyond" (its own data is
	// larger than the L2, so that each launch reads memory).
	L2State string `json:"l2_state,omitempty"`
}

// Kinds of mechanisms.
const (
	Whole      = "whole"        // nothing is divided: for workloads alone
	Sequential = "sequential"   // one stream: a victim's launch stands behind one unit of the aggressor
	Streams    = "streams"      // two streams of one context, equal priority
	Priority   = "priority"     // two streams, the victim's of the greatest priority, the aggressor's of the least
	Green      = "green"        // two Green Contexts on disjoint SMs
	Processes  = "processes"    // two processes, time-sliced by the driver
	MPS        = "mps"          // two clients of one MPS daemon
	MPSPercent = "mps_percent"  // the same, each with a share of the SMs
	MPSBelow   = "mps_priority" // the same, the aggressor of priority below normal
	MPSStatic  = "mps_static"   // the same, in static partitions
	MIG        = "mig"          // two MIG devices
)

// Mechanism is a way of sharing. ID is its kind and, where it has one, ":" and the victim's SMs,
// percent or chunks.
type Mechanism struct {
	ID        string `json:"id"`
	Kind      string `json:"kind"`
	VictimSMs int64  `json:"victim_sms,omitempty"` // asked for. Green
	Percent   int64  `json:"percent,omitempty"`    // of the SMs, for the victim; the aggressor has the rest. MPSPercent
	Chunks    int64  `json:"chunks,omitempty"`     // of the GPU, for the victim; the aggressor has the others. MPSStatic
	// Verdict is `cotenant inspect`'s before the run; where it isn't supported, Reason says why and no cell of it is planned.
	Verdict observe.Status `json:"verdict"`
	Reason  string         `json:"reason"`
}

// Cell is one combination. Victim is empty for an aggressor alone, Aggressor for a victim alone. Twin marks the second of two equal
// cells of a victim alone on the whole GPU: their difference is the noise floor.
type Cell struct {
	ID        string `json:"id"` // victim/aggressor/mechanism, "-" for none; a twin ends in "/again"
	Victim    string `json:"victim"`
	Aggressor string `json:"aggressor"`
	Mechanism string `json:"mechanism"`
	Twin      bool   `json:"twin,omitempty"`
}

// Sampling says how much is measured of each cell.
type Sampling struct {
	Repeats int64 `json:"repeats"` // blocks a cell
	// A block ends when it has Launches and has lasted MinMS, or when it has lasted MaxMS, or has MaxLaunches, whichever is first.
	Launches    int64 `json:"launches"`
	MaxLaunches int64 `json:"max_launches"`
	MinMS       int64 `json:"min_ms"`
	MaxMS       int64 `json:"max_ms"`
	// AloneMS is how long a block of an aggressor alone lasts: its rate and energy are what others are held against.
	AloneMS int64 `json:"alone_ms"`
	// Dropped launches begin each block and aren't in its rows.
	Dropped int64 `json:"dropped"`
}

// Plan is plan.json.
type Plan struct {
	SchemaVersion int         `json:"schema_version"`
	Operation     string      `json:"operation"`
	RunID         string      `json:"run_id"`
	Created       string      `json:"created"` // RFC 3339, UTC
	Name          string      `json:"name"`    // quick, full, or a file's
	GPUUUID       string      `json:"gpu_uuid"`
	GPUName       string      `json:"gpu_name"`
	SMs           int64       `json:"sms"`
	Seed          int64       `json:"seed"` // of the order: see Order
	Sampling      Sampling    `json:"sampling"`
	Victims       []Workload  `json:"victims"`
	Aggressors    []Workload  `json:"aggressors"`
	Mechanisms    []Mechanism `json:"mechanisms"`
	Cells         []Cell      `json:"cells"`
}

// Check is one kernel whose output a segment compared with a plain reference before it timed anything.
type Check struct {
	Kernel string `json:"kernel"`
	Result string `json:"result"` // pass, fail
	Detail string `json:"detail"`
}

// Module is a PTX module that a segment loaded.
type Module struct {
	Name   string `json:"name"`
	SHA256 string `json:"sha256"`
}

// Made is what a segment made of a mechanism.
type Made struct {
	Mechanism string `json:"mechanism"`
	// VictimSMs and AggressorSMs were granted, as the driver says; 0 where it doesn't.
	VictimSMs    int64 `json:"victim_sms"`
	AggressorSMs int64 `json:"aggressor_sms"`
	// Failure says why it could not be made; empty.
	Failure string `json:"failure"`
}

// Segment is a line of segments.jsonl: one supervised process that measured blocks.
type Segment struct {
	Segment  int64    `json:"segment"` // from 1
	RunID    string   `json:"run_id"`  // of its guard
	Started  string   `json:"started"` // RFC 3339, UTC; times in rows count from here
	Program  string   `json:"program"` // version
	Driver   string   `json:"driver"`  // release
	CUDA     string   `json:"cuda"`    // version that the driver supports
	GPUUUID  string   `json:"gpu_uuid"`
	GPUName  string   `json:"gpu_name"`
	SMs      int64    `json:"sms"`
	MaxMHz   *int64   `json:"max_sm_mhz"`
	LimitMW  *int64   `json:"power_limit_mw"`
	Modules  []Module `json:"modules"`
	Checks   []Check  `json:"checks"`
	Made     []Made   `json:"made"`
	Priority [2]int64 `json:"stream_priorities"` // least and greatest
	// LaunchHostNS and LaunchEventNS are the medians of an empty kernel, alone: what measuring itself costs.
	LaunchHostNS  int64 `json:"launch_host_ns"`
	LaunchEventNS int64 `json:"launch_event_ns"`
	// SubmitNS is the median of the launch call alone.
	SubmitNS int64 `json:"submit_ns"`
}

// Clocks is what NVML's samples of a block say. Absent where NVML doesn't tell.
type Clocks struct {
	Samples    int64    `json:"samples"`
	SMMHz      []int64  `json:"sm_mhz"` // least, median, greatest; empty
	MemoryMHz  []int64  `json:"memory_mhz"`
	MaxPowerMW *int64   `json:"max_power_mw"`
	MaxTempC   *int64   `json:"max_temperature_c"`
	Throttle   []string `json:"throttle"` // reasons seen in any sample, but gpu_idle
	// EnergyMJ is what the GPU's counter grew by in EnergyUS, read at the block's ends.
	EnergyMJ *int64 `json:"energy_mj"`
	EnergyUS *int64 `json:"energy_us"`
}

// Row is a line of rows.jsonl: one block. HostNS and EventNS have one number a launch, in order: from before the launch call until
// its end was seen, by the host's monotonic clock; and between device events around it.
type Row struct {
	Segment int64  `json:"segment"`
	Block   int64  `json:"block"` // place in Order, from 0
	Cell    string `json:"cell"`
	Repeat  int64  `json:"repeat"` // from 0
	BeganUS int64  `json:"began_us"`
	EndedUS int64  `json:"ended_us"`
	Dropped int64  `json:"dropped"`
	HostNS  Series `json:"host_ns"`
	EventNS Series `json:"event_ns"`
	// Units that the aggressor ended in UnitsUS, which is the part of the block in which the victim was measured, or the block.
	Units   int64  `json:"units"`
	UnitsUS int64  `json:"units_us"`
	Clocks  Clocks `json:"clocks"`
	// Failure says why the block has no launches; empty.
	Failure string `json:"failure,omitempty"`
}

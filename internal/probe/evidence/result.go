package evidence

import (
	"cotenant/internal/observe"
	"cotenant/internal/partition"
)

// Results of a check.
const (
	Pass = "pass"
	Fail = "fail"
)

// Check is one statement that a result makes, with its figures.
type Check struct {
	ID     string `json:"id"`
	Result string `json:"result"` // pass, fail, not_applicable
	Detail string `json:"detail"`
}

// CreateRequest is what was asked of a create probe.
type CreateRequest struct {
	Plan   partition.Plan `json:"plan"`
	Cycles int            `json:"cycles"`
	Map    bool           `json:"map"`
	SpinUS int64          `json:"spin_us"` // how long each block of the witness stays
}

// CreateResult is result.json of `cotenant probe create`.
type CreateResult struct {
	SchemaVersion   int    `json:"schema_version"`
	Operation       string `json:"operation"`
	RunID           string `json:"run_id"`
	MutatedState    bool   `json:"mutated_state"`
	CleanupComplete bool   `json:"cleanup_complete"`
	Outcome         string `json:"outcome"`
	// Failure is the step that failed and why; empty where none did.
	Failure       string          `json:"failure"`
	FailureCode   int32           `json:"failure_code"` // CUresult; 0 for none
	GPUUUID       string          `json:"gpu_uuid"`
	GPUName       string          `json:"gpu_name"`
	DriverVersion string          `json:"driver_version"` // CUDA version of libcuda, 13.0
	DriverRelease string          `json:"driver_release"`
	Runtime       *string         `json:"runtime_version"` // libcudart's, null where none was found: none is used
	RuntimeReason string          `json:"runtime_reason,omitempty"`
	Request       CreateRequest   `json:"request"`
	Visible       int             `json:"visible_devices"` // that the worker saw
	Witness       Witness         `json:"witness"`
	Resources     Resources       `json:"resources"`
	Overlap       Overlap         `json:"overlap"`
	TooMuch       *TooMuch        `json:"asked_too_much"`
	Features      Features        `json:"features"`
	Map           []partition.Row `json:"map"` // empty unless asked for
	Cycles        *Cycles         `json:"cycles"`
	Health        Health          `json:"health"`
	Cleanup       Cleanup         `json:"cleanup"`
	Checks        []Check         `json:"checks"`
	Warnings      []string        `json:"warnings"`
}

// Witness says what the kernel witness was given.
type Witness struct {
	Module  string `json:"module"`
	SHA256  string `json:"sha256"`
	Seed    uint32 `json:"seed"` // partition i has seed + i
	Rounds  uint32 `json:"rounds"`
	Threads uint32 `json:"threads"`
	SpinNS  uint64 `json:"spin_ns"`
}

// Resources are the GPU's SMs and the partitions made of them.
type Resources struct {
	TotalSMs  int `json:"total_sms"`
	Minimum   int `json:"minimum"`
	Alignment int `json:"alignment"`
	// LimitsReported: the driver said so; else minimum and alignment are the programming guide's.
	LimitsReported bool        `json:"limits_reported"`
	Method         string      `json:"method"` // of splitting: see partition.Set
	LeftSMs        int         `json:"remainder_sms"`
	Partitions     []Partition `json:"partitions"`
}

// Partition is one Green Context: what was asked, what the driver's queries say, and where its kernel ran.
type Partition struct {
	Index     int      `json:"index"`
	Requested int      `json:"requested_sms"` // -1: the rest
	Granted   int      `json:"granted_sms"`
	Flags     []string `json:"flags"`
	// GreenSMs, ContextSMs and StreamSMs are what cuGreenCtxGetDevResource, cuCtxGetDevResource and cuStreamGetDevResource say.
	GreenSMs   observe.Value[int]    `json:"green_context_sms"`
	ContextSMs observe.Value[int]    `json:"context_sms"`
	StreamSMs  observe.Value[int]    `json:"stream_sms"`
	ID         observe.Value[uint64] `json:"green_context_id"`
	// StreamOwned: cuStreamGetGreenCtx of the stream is this Green Context.
	StreamOwned observe.Value[bool] `json:"stream_owned"`

	Blocks int `json:"blocks"`
	// SMIDs are the %smid values that its blocks saw, ascending.
	SMIDs         []int  `json:"smids"`
	LeastBlocks   int    `json:"least_blocks_per_sm"`
	MostBlocks    int    `json:"most_blocks_per_sm"`
	OutputSHA256  string `json:"output_sha256"` // of the values, little endian
	OutputCorrect bool   `json:"output_correct"`
	// BeganNS and EndedNS are of %globaltimer, from the first block of any partition.
	BeganNS int64 `json:"began_ns"`
	EndedNS int64 `json:"ended_ns"`
}

// Overlap are the SMs that more than one partition ran on.
type Overlap struct {
	SMIDs    []int `json:"smids"`
	Disjoint bool  `json:"disjoint"`
	// TogetherNS is how long all partitions had kernels at once, by %globaltimer; disjoint partitions may still be serialised.
	TogetherNS int64 `json:"together_ns"`
}

// TooMuch is a split of more SMs than there are.
type TooMuch struct {
	Requested int    `json:"requested_sms"`
	Code      int32  `json:"code"`
	Symbol    string `json:"symbol"`
}

// Feature is something that newer drivers have.
type Feature struct {
	Status observe.Status `json:"status"`
	Reason string         `json:"reason"`
}

// Features are those tried beyond the partitions themselves.
type Features struct {
	Heterogeneous  Feature `json:"heterogeneous_split"`
	Workqueues     Feature `json:"workqueue_resources"`
	StreamResource Feature `json:"stream_resource_query"`
}

// Cycle is one creation and destruction of all partitions.
type Cycle struct {
	Cycle     int    `json:"cycle"` // from 1
	CreateUS  int64  `json:"create_us"`
	DestroyUS int64  `json:"destroy_us"`
	FreeBytes uint64 `json:"free_bytes"` // device memory after it, as the process sees it
}

// Cycles are repeated creations in one process.
type Cycles struct {
	Asked    int     `json:"asked"`
	Contexts int     `json:"contexts_per_cycle"` // Green Contexts, helpers of splitting among them
	Rows     []Cycle `json:"rows"`
	// FreeBefore is before the first. KeptPerContext is (FreeBefore − last row's) / (rows × contexts).
	FreeBefore     uint64 `json:"free_bytes_before"`
	KeptPerContext int64  `json:"kept_bytes_per_context"`
	CreateP50US    int64  `json:"create_p50_us"`
	CreateMaxUS    int64  `json:"create_max_us"`
	DestroyP50US   int64  `json:"destroy_p50_us"`
	DestroyMaxUS   int64  `json:"destroy_max_us"`
}

// Health is what was watched while the worker ran.
type Health struct {
	PeriodMS int64 `json:"period_ms"`
	Samples  int   `json:"samples"`
	// Display, GPU and Xid say whether each could be watched.
	GPU     Feature  `json:"gpu"`
	Display Feature  `json:"display"`
	Xid     Feature  `json:"xid"`
	Lost    string   `json:"lost"` // what was lost; empty
	Xids    []string `json:"xids"` // lines of the kernel log
}

// Verdicts on memory.
const (
	Returned    = "returned"
	Kept        = "kept"
	NotReturned = "not_returned"
)

// Cleanup has two verdicts, since success of every call and return of all memory are two things, and a third: the process is gone.
type Cleanup struct {
	Complete bool          `json:"complete"` // API complete, process gone, memory returned as seen from outside
	API      APICleanup    `json:"api"`
	Memory   MemoryCleanup `json:"memory"`
	Process  Gone          `json:"process"`
	// Left are things of ours that are still there.
	Left []string `json:"left"`
}

// APICleanup is what the calls said. Where the worker was killed its end is the cleanup, and Verdict is by_process_end.
type APICleanup struct {
	Verdict   string   `json:"verdict"` // complete, incomplete, by_process_end, nothing_made
	Created   int      `json:"created"`
	Destroyed int      `json:"destroyed"`
	Failures  []string `json:"failures"`
	// PrimaryGone: after the release the primary context didn't exist any more.
	PrimaryGone observe.Value[bool] `json:"primary_context_gone"`
}

// MemoryCleanup is what memory said.
type MemoryCleanup struct {
	// InProcess is by cuMemGetInfo, before creation and after destruction of the first set.
	InProcess InProcess `json:"in_process"`
	// Outside is by NVML from the supervisor: before the worker, and after its end.
	Outside Outside `json:"outside"`
}

// InProcess memory.
type InProcess struct {
	Verdict    string `json:"verdict"` // returned, kept, unknown
	FreeBefore uint64 `json:"free_bytes_before"`
	FreeAfter  uint64 `json:"free_bytes_after"`
	KeptBytes  int64  `json:"kept_bytes"`
	Contexts   int    `json:"contexts"` // Green Contexts made in between
}

// Outside memory.
type Outside struct {
	Verdict    string                `json:"verdict"` // returned, not_returned, unknown
	Before     observe.Value[uint64] `json:"used_bytes_before"`
	Most       observe.Value[uint64] `json:"used_bytes_most"`
	After      observe.Value[uint64] `json:"used_bytes_after"`
	WaitedMS   int64                 `json:"waited_ms"` // until it was back, or until nobody waited any more
	Tolerance  uint64                `json:"tolerance_bytes"`
	Attributed bool                  `json:"attributed"` // nobody else used the GPU
}

// Gone is whether the worker is.
type Gone struct {
	Ended bool `json:"ended"`
	// Listed: NVML still lists more processes on the GPU than before.
	Listed observe.Value[bool] `json:"still_listed"`
}

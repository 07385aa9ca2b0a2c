package ledger

// Resource is one line of resources.jsonl: a sample. The first is taken before the first request of a segment, the last
// after its last row.
type Resource struct {
	TUS          int64           `json:"t_us"`
	Segment      int64           `json:"segment"`
	Client       ClientUsage     `json:"client"`
	Server       *ServerUsage    `json:"server"`        // null: see ServerReason
	ServerReason string          `json:"server_reason"` // why Server is null, else empty
	Host         HostUsage       `json:"host"`
	Series       []SeriesReading `json:"series"` // every canonical name, exposed or not, in the order of SeriesNames; empty where no metrics were asked for
	ScrapeError  string          `json:"scrape_error"`
	GPUs         []GPUUsage      `json:"gpus"`       // in the order of their source
	GPUReason    string          `json:"gpu_reason"` // why there are none, or why some were not read this time
}

// GPUUsage is what one GPU does, all of its board: other processes' share is in it.
type GPUUsage struct {
	GPU              string `json:"gpu"`                // Commit(place_secret, "gpu", its UUID as the source writes it)
	Source           string `json:"source"`             // one of GPUSources
	MemoryUsedBytes  Opt    `json:"memory_used_bytes"`  // as the source counts: NVML's second version leaves the driver's reserve out
	MemoryTotalBytes Opt    `json:"memory_total_bytes"` //
	PowerMW          Opt    `json:"power_mw"`           // averaged by the board over about a second, or of a moment: boards differ
	EnergyMJ         Opt    `json:"energy_mj"`          // since the driver was loaded, cumulative
	BusyPPM          Opt    `json:"busy_ppm"`           // share of the board's last sampling interval (1/6 s to 1 s) in which a kernel ran
	SMMHz            Opt    `json:"sm_mhz"`             // clock of the SMs
	Xid              Opt    `json:"xid"`                // the last Xid error, 0 for none; dcgm alone has it
}

// Sources of GPU readings.
const (
	GPUByNVML = "nvml"
	GPUBySMI  = "nvidia-smi"
	GPUByDCGM = "dcgm" // a dcgm-exporter
)

// GPUSources lists them.
func GPUSources() []string { return []string{GPUByNVML, GPUBySMI, GPUByDCGM} }

// MaxGPUs bounds Resource.GPUs.
const MaxGPUs = 64

// ClientUsage is what the soaking process uses. Cumulative fields count from its start.
type ClientUsage struct {
	RSSBytes     Opt   `json:"rss_bytes"` // VmRSS
	HWMBytes     Opt   `json:"hwm_bytes"` // VmHWM
	CPUUS        Opt   `json:"cpu_us"`    // utime + stime, cumulative
	FDs          Opt   `json:"fds"`
	HeapBytes    int64 `json:"heap_bytes"` // live Go heap
	Goroutines   int64 `json:"goroutines"`
	InFlight     int64 `json:"in_flight"`      // attempts between sent and end
	InFlightPeak int64 `json:"in_flight_peak"` // its high-water mark in this segment
	SchedLagUS   int64 `json:"sched_lag_us"`   // p99 of goroutine scheduling latency since the last sample, upper bucket bound
	GCPauseUS    int64 `json:"gc_pause_us"`    // longest stop-the-world pause since the last sample, upper bucket bound
}

// ServerUsage is what the server's process tree uses, as /proc shows it, and what its /debug/vars says.
type ServerUsage struct {
	RSSBytes    Opt `json:"rss_bytes"`
	HWMBytes    Opt `json:"hwm_bytes"`
	CPUUS       Opt `json:"cpu_us"`   // cumulative
	StartUS     Opt `json:"start_us"` // since boot: tells a restart and a reused pid
	Processes   Opt `json:"processes"`
	HeapBytes   Opt `json:"heap_bytes"`   // memstats.HeapAlloc
	SysBytes    Opt `json:"sys_bytes"`    // memstats.Sys
	RunningSelf Opt `json:"running_self"` // requests that the server itself counts as running
}

// HostUsage is the machine that the client runs on.
type HostUsage struct {
	BusyUS         Opt `json:"busy_us"` // CPU time of all processes, cumulative
	AvailableBytes Opt `json:"available_bytes"`
}

// States of a series.
const (
	SeriesValue      = "value"
	SeriesNaN        = "nan"         // exposed, and not a number
	SeriesNotExposed = "not_exposed" // the server has no such series
	SeriesError      = "error"       // could not be read this time
)

// SeriesReading is one scraped series under its canonical name.
type SeriesReading struct {
	Name   string `json:"name"`   // one of SeriesNames
	Source string `json:"source"` // the series as the server names it, empty if not exposed
	State  string `json:"state"`
	Value  Opt    `json:"value"` // in the unit that the canonical name ends in
}

// Canonical names of the series that a run asks a server for. What a name does not end in a unit for is a count.
const (
	SeriesRunning          = "requests_running"
	SeriesWaiting          = "requests_waiting"
	SeriesQueueOldestAge   = "queue_oldest_age_us"
	SeriesQueueWaitCount   = "queue_wait_total"
	SeriesQueueWaitSum     = "queue_wait_total_us"
	SeriesKVUsage          = "kv_usage_ppm"
	SeriesKVPagesUsed      = "kv_pages_used"
	SeriesKVPagesFree      = "kv_pages_free"
	SeriesKVPagesCached    = "kv_pages_cached"
	SeriesKVSlots          = "kv_slots"
	SeriesKVCapacityTokens = "kv_capacity_tokens"
	SeriesServerMemory     = "server_memory_bytes"
	SeriesDeviceMemory     = "device_memory_bytes"
	SeriesPrefixQueries    = "prefix_query_tokens_total"
	SeriesPrefixHits       = "prefix_hit_tokens_total"
	SeriesPromptTokens     = "prompt_tokens_total"
	SeriesOutputTokens     = "completion_tokens_total"
	SeriesRequests         = "requests_total"
	SeriesPreemptions      = "preemptions_total"
	SeriesAborted          = "requests_aborted_total"
	SeriesServerStart      = "server_start_us" // since 1970: another value is another process
)

// SeriesNames lists the canonical names in the order in which a sample holds them.
func SeriesNames() []string {
	return []string{SeriesRunning, SeriesWaiting, SeriesQueueOldestAge, SeriesQueueWaitCount, SeriesQueueWaitSum, SeriesKVUsage,
		SeriesKVPagesUsed, SeriesKVPagesFree, SeriesKVPagesCached, SeriesKVSlots, SeriesKVCapacityTokens, SeriesServerMemory,
		SeriesDeviceMemory, SeriesPrefixQueries, SeriesPrefixHits, SeriesPromptTokens, SeriesOutputTokens, SeriesRequests,
		SeriesPreemptions, SeriesAborted, SeriesServerStart}
}

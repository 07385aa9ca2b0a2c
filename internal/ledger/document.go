package ledger

import "slices"

// Ledger is ledger.json: what a run establishes, what it does not, and why. All of it is computed by Summarize from
// config.json, rows.jsonl, resources.jsonl and events.jsonl, so that anybody who has these can compute it again.
// It names no address, key, prompt or answer.
type Ledger struct {
	SchemaVersion int64  `json:"schema_version"`
	Operation     string `json:"operation"` // "soak"
	Document      string `json:"document"`  // "ledger"

	RunID         string `json:"run_id"`
	RunOrdinal    int64  `json:"run_ordinal"`
	Nonce         string `json:"nonce"`
	ConfigSHA256  string `json:"config_sha256"`
	StartedWallUS int64  `json:"started_wall_us"`
	EndedWallUS   Opt    `json:"ended_wall_us"` // of the last end event
	Status        string `json:"status"`        // StatusFinished, StatusInterrupted or StatusFailed
	StatusDetail  string `json:"status_detail"`

	Contract           string   `json:"contract"`
	Contexts           int64    `json:"contexts"` // planned
	TurnsPerContext    int64    `json:"turns_per_context"`
	Workers            int64    `json:"workers"`
	Segments           int64    `json:"segments"`
	Shared             bool     `json:"shared"` // segments are of processes that ran at the same time
	Model              string   `json:"model"`
	EndpointScope      string   `json:"endpoint_scope"`
	EndpointCommitment string   `json:"endpoint_commitment"`
	InProcess          bool     `json:"in_process"`
	Workload           Workload `json:"workload"`
	Base               string   `json:"base"` // the fingerprint that all rows carry; empty where nothing is shared
	MaxTokens          int64    `json:"max_tokens"`
	Client             Build    `json:"client"`

	Files     []File `json:"files"`      // config, rows, resources, events in this order
	FilesRoot string `json:"files_root"` // Merkle root over Files

	Counts  Counts  `json:"counts"`
	Tokens  Tokens  `json:"tokens"`
	WallUS  int64   `json:"wall_us" ledger:"signed"`
	Rates   Rates   `json:"rates"`
	Times   Times   `json:"times"`
	Peaks   Peaks   `json:"peaks"`
	Oracle  Oracle  `json:"oracle"`
	Samples Samples `json:"samples"`

	GPUs           []GPUSummary     `json:"gpus"` // in the order in which samples show them
	Series         []SeriesSummary  `json:"series"`
	Reconciliation []Reconciliation `json:"reconciliation"`
	Controlled     *Controlled      `json:"controlled"` // null unless the contract is controlled
	Load           *Load            `json:"load"`       // null without a load plan

	Definitions Defs        `json:"definitions"`
	Claims      []Claim     `json:"claims"`
	NonClaims   []Statement `json:"non_claims"`
	NotExposed  []Statement `json:"not_exposed"`
	Admission   Admission   `json:"admission"`
}

// File binds one file. Hashes are lower-case hex.
type File struct {
	Name       string `json:"name"`
	Bytes      int64  `json:"bytes"`
	Lines      int64  `json:"lines"` // line feeds; config.json has none
	SHA256     string `json:"sha256"`
	MerkleRoot string `json:"merkle_root"` // over its lines without line feed (config.json: one leaf), RFC 6962
}

// Counts of contexts, turns, attempts. A turn's result is its last attempt.
type Counts struct {
	Submitted      int64          `json:"submitted"` // contexts with at least one attempt
	Completed      int64          `json:"completed"` // contexts whose every turn's result is ok
	Failed         int64          `json:"failed"`    // submitted and not completed
	Turns          int64          `json:"turns"`     // turns whose result is ok
	UsageResponses int64          `json:"usage_responses"`
	UsageMissing   int64          `json:"usage_missing"` // results that are ok in all but usage
	Attempts       int64          `json:"attempts"`
	Retries        int64          `json:"retries"` // attempts beyond a turn's first
	Reconnects     int64          `json:"reconnects"`
	ConnReused     int64          `json:"conn_reused"`
	NotDone        int64          `json:"not_done"`      // results without [DONE]
	NotFinished    int64          `json:"not_finished"`  // results without finish_reason
	LengthCapped   int64          `json:"length_capped"` // results with finish_reason length
	TTFTMissing    int64          `json:"ttft_missing"`  // results without a first token's time
	Buffered       int64          `json:"buffered"`
	Quirky         int64          `json:"quirky"`     // attempts with any quirk
	Quirks         int64          `json:"quirks"`     // all rows' quirks, or-ed
	Duplicates     int64          `json:"duplicates"` // attempts after a turn's result
	Strays         int64          `json:"strays"`     // attempts of contexts or turns that weren't planned, or of a turn before the one before it had its result
	Resent         int64          `json:"resent"`     // attempts that were open when a segment was killed, left no row and were sent again
	Outcomes       []OutcomeCount `json:"outcomes"`   // of attempts, those that occur, in the order of Outcomes
}

// OutcomeCount is how many attempts ended so.
type OutcomeCount struct {
	Outcome Outcome `json:"outcome"`
	Count   int64   `json:"count"`
}

// Tokens are sums over the rows that are results, from usage, beside what was seen.
type Tokens struct {
	Prompt          int64 `json:"prompt"`
	Completion      int64 `json:"completion"`
	Cached          Opt   `json:"cached"` // null: no response exposed it
	CachedResponses int64 `json:"cached_responses"`
	Deltas          int64 `json:"deltas"`
	TextBytes       int64 `json:"text_bytes"`
	RowsEqual       int64 `json:"rows_equal"`        // results with as many deltas as completion tokens
	RowsFewerDeltas int64 `json:"rows_fewer_deltas"` // several tokens a delta, or tokens without text, beyond rows_eos_counted
	RowsMoreDeltas  int64 `json:"rows_more_deltas"`
	RowsEOSCounted  int64 `json:"rows_eos_counted"` // results with finish_reason stop and one delta fewer than completion tokens: the end-of-sequence token, which has no text
	Wasted          int64 `json:"wasted"`           // of attempts that are not results
	Spent           int64 `json:"spent"`            // prompt + completion over all attempts that exposed usage
}

// Rates over WallUS, in whole numbers per 10^6 seconds. Null where the wall is 0.
type Rates struct {
	ResultsPer1e6s     Opt `json:"results_per_1e6s"` // nonempty, usage-bearing results
	PromptPer1e6s      Opt `json:"prompt_tokens_per_1e6s"`
	CompletionPer1e6s  Opt `json:"completion_tokens_per_1e6s"`
	WarmResults        Opt `json:"warm_results"`                 // results after the first Workers of them
	WarmWallUS         Opt `json:"warm_wall_us" ledger:"signed"` // from the end of the Workers-th result to the end of the last; null with several segments
	WarmResultsPer1e6s Opt `json:"warm_results_per_1e6s"`        // without the cost of filling caches
}

// Times are distributions over results, but for those of the queue, which are over submitted contexts.
type Times struct {
	TTFT         Distribution `json:"ttft"`
	FirstContent Distribution `json:"first_content"`
	Latency      Distribution `json:"latency"`
	LastToken    Distribution `json:"last_token"`
	LatencyFull  Distribution `json:"latency_from_picked"`
	InterToken   Distribution `json:"inter_token"`
	Adjusted     Distribution `json:"latency_adjusted"` // over all submitted turns, a failure as plus infinity
	TTFTAdjusted Distribution `json:"ttft_adjusted"`    // the same of ttft; a result without a first token is infinite too

	// In an open loop, over all submitted turns, from when the schedule wanted them sent, a failure as plus infinity.
	LatencySchedule Distribution `json:"latency_from_schedule"`
	TTFTSchedule    Distribution `json:"ttft_from_schedule"` // a result without a first token is infinite too
	QueueAge        Distribution `json:"queue_age"`
	SendLag         Distribution `json:"send_lag"`
	SlotLag         Distribution `json:"slot_lag"` // what the client takes between an answer and the next request
}

// Distribution of n times in µs.
type Distribution struct {
	N     int64    `json:"n"`
	MinUS Opt      `json:"min_us" ledger:"signed"`
	P50   Quantile `json:"p50"`
	P90   Quantile `json:"p90"`
	P95   Quantile `json:"p95"`
	P99   Quantile `json:"p99"`
	P999  Quantile `json:"p999"`
	MaxUS Opt      `json:"max_us" ledger:"signed"`
	SumUS Opt      `json:"sum_us" ledger:"signed"` // null if it has an infinite member
}

// Quantile is one order statistic and how much it says. ValueUS describes the sample; LowerUS and UpperUS, each by itself, bound the
// percentile that the sample was drawn from, see Defs.Bound; together they are an interval of 98 % at least.
type Quantile struct {
	ValueUS  Opt    `json:"value_us" ledger:"signed"`
	LowerUS  Opt    `json:"lower_us" ledger:"signed"` // null: the sample has none, or, where the value is infinite, it may be infinite
	UpperUS  Opt    `json:"upper_us" ledger:"signed"`
	Evidence string `json:"evidence"`
}

// Values of Quantile.Evidence.
const (
	EvidenceBound    = "bound_99"    // UpperUS is an order statistic below the maximum
	EvidenceMaximum  = "maximum"     // UpperUS is the maximum: the sample gives no smaller bound
	EvidenceSample   = "sample_only" // the sample is too small for any bound
	EvidenceInfinite = "infinite"    // the value or its bound falls on failures; whichever is null is infinite
	EvidenceNone     = "none"        // n is 0
)

// Peaks are the largest values seen. In_flight is exact; those of memory are the largest sample.
type Peaks struct {
	InFlight         int64 `json:"in_flight"`          // by sweep over rows, the largest of any segment
	InFlightObserved Opt   `json:"in_flight_observed"` // by the client's own counter, from peak events
	ClientRSSBytes   Opt   `json:"client_rss_bytes"`
	ClientHWMBytes   Opt   `json:"client_hwm_bytes"`
	ClientHeapBytes  Opt   `json:"client_heap_bytes"`
	ClientFDs        Opt   `json:"client_fds"`
	Goroutines       Opt   `json:"client_goroutines"`
	SchedLagUS       Opt   `json:"client_sched_lag_us"`
	GCPauseUS        Opt   `json:"client_gc_pause_us"`
	ServerRSSBytes   Opt   `json:"server_rss_bytes"`
	ServerHWMBytes   Opt   `json:"server_hwm_bytes"`
	ServerHeapBytes  Opt   `json:"server_heap_bytes"`
	ServerRunning    Opt   `json:"server_requests_running"` // what the endpoint itself said, its gauge's largest reading
}

// Oracle is the score of the tasks, over results, apart from transport. Rates are in parts per million.
type Oracle struct {
	Checked       int64       `json:"checked"`
	Passed        int64       `json:"passed"`
	Failed        int64       `json:"failed"`
	None          int64       `json:"none"`
	PassRatePPM   Opt         `json:"pass_rate_ppm"` // of checked, rounded down
	WilsonLowPPM  Opt         `json:"wilson_low_ppm"`
	WilsonHighPPM Opt         `json:"wilson_high_ppm"`
	ByTask        []TaskScore `json:"by_task"` // by name
	ConfidencePPM int64       `json:"confidence_ppm"`
}

// TaskScore is the score of one kind of task.
type TaskScore struct {
	Task    string `json:"task"`
	Checked int64  `json:"checked"`
	Passed  int64  `json:"passed"`
}

// Samples is how the resource trace covers the run.
type Samples struct {
	Count          int64 `json:"count"`
	SpanUS         int64 `json:"span_us" ledger:"signed"` // sum over segments, first to last
	PeriodUS       int64 `json:"period_us"`
	MaxGapUS       Opt   `json:"max_gap_us" ledger:"signed"` // between two samples of one segment; the limit is max(3 periods, 3 s)
	Covered        bool  `json:"covered"`                    // each segment's samples reach from before its first request to after its last end
	ScrapeErrors   int64 `json:"scrape_errors"`
	ServerSamples  int64 `json:"server_samples"`
	ServerRestarts int64 `json:"server_restarts"`
	ClientCPUUS    Opt   `json:"client_cpu_us" ledger:"signed"` // last minus first, summed over segments
	ServerCPUUS    Opt   `json:"server_cpu_us" ledger:"signed"`
	HostBusyUS     Opt   `json:"host_busy_us" ledger:"signed"`
	OtherCPUUS     Opt   `json:"other_cpu_us"`     // host_busy less client and server, 0 at least: everything else on the machine; null where one of them is
	ClientSharePPM Opt   `json:"client_share_ppm"` // of the CPU time that the host's cores had; null in process
}

// SeriesSummary is one scraped series over the run.
type SeriesSummary struct {
	Name       string `json:"name"`
	Source     string `json:"source"` // as first exposed
	Values     int64  `json:"values"`
	NaN        int64  `json:"nan"`
	NotExposed int64  `json:"not_exposed"`
	Errors     int64  `json:"errors"`
	First      Opt    `json:"first"`
	Last       Opt    `json:"last"`
	Min        Opt    `json:"min"`
	Max        Opt    `json:"max"`
	Resets     int64  `json:"resets"` // a *_total series that fell
}

// Reconciliation sets what the server counted against what the client did.
type Reconciliation struct {
	Quantity string `json:"quantity"`                     // a series name
	Client   int64  `json:"client"`                       // over all rows
	Outside  int64  `json:"outside"`                      // the client's own requests outside the rows that fall into the samples' span (canary)
	Server   int64  `json:"server"`                       // last minus first
	Residual int64  `json:"residual" ledger:"signed"`     // server - client; servers differ in what they count, see docs/metrics.md
	Low      int64  `json:"residual_low" ledger:"signed"` // its declared bounds: what attempts that were cut can have left on the server
	High     int64  `json:"residual_high" ledger:"signed"`
}

// Controlled is what the contract's terms came to.
type Controlled struct {
	Canaries         int64        `json:"canaries"`        // bases that were asked
	CanariesFailed   int64        `json:"canaries_failed"` // of them, those with fewer right answers than needed
	Rollbacks        int64        `json:"rollbacks"`
	Faults           []FaultCount `json:"faults"`             // by kind, in the order of the plan's list
	FaultContexts    int64        `json:"fault_contexts"`     // contexts that met one
	FaultSharePPM    int64        `json:"fault_share_ppm"`    // of contexts, rounded down
	FaultsRecovered  int64        `json:"faults_recovered"`   // faults whose attempt ended as it had to and whose turn has a result
	FaultsWithoutRow int64        `json:"faults_without_row"` // done when their segment was killed: the attempt left no row
	Parked           int64        `json:"parked"`             // turns whose conversation was written to the disk
	Restored         int64        `json:"restored"`           // of them, those that came back equal in the next turn's result
	RestoredAcross   int64        `json:"restored_across"`    // of those, by another process
	QuietPoints      int64        `json:"quiet_points"`
	QuietReturned    int64        `json:"quiet_returned"` // those at which the server's gauges came back
	QuietMaxUS       Opt          `json:"quiet_max_us"`   // the longest that they took
}

// FaultCount is what became of one kind of fault.
type FaultCount struct {
	Kind      string `json:"kind"`
	Planned   int64  `json:"planned"`
	Done      int64  `json:"done"`
	Recovered int64  `json:"recovered"`
}

// Claim is something that the run establishes. Its value stands in the ledger at Evidence.
type Claim struct {
	ID        string `json:"id"`
	Statement string `json:"statement"`
	Value     int64  `json:"value"`
	Unit      string `json:"unit"`
	Evidence  string `json:"evidence"` // JSON pointer into this document
	Bound     string `json:"bound"`    // what the claim does not go beyond
}

// Statement is something that the run does not establish, or that was not exposed, and why.
type Statement struct {
	ID     string `json:"id"`
	Reason string `json:"reason"`
}

// Admission says whether the run counts at its rung.
type Admission struct {
	Rung     Opt      `json:"rung"` // null: not a rung
	Admitted bool     `json:"admitted"`
	Why      []string `json:"why"` // codes of what stands against it, in the order of AdmissionCodes; empty if admitted
}

// Codes of Admission.Why.
const (
	WhyNotARung     = "not_a_rung"
	WhyNotFinished  = "not_finished"
	WhyIncomplete   = "incomplete" // contexts missing or not submitted
	WhyFailed       = "failed"
	WhyUsage        = "usage_missing"
	WhyWorkers      = "workers_unbounded"
	WhyPeak         = "peak_out_of_bounds"
	WhySamples      = "resource_samples" // too few, with gaps, or not covering the run
	WhyResources    = "resource_evidence"
	WhyTokens       = "tokens_implausible"
	WhySharedBase   = "base_differs"
	WhyServerChange = "server_restarted"
	WhyTerms        = "contract_terms" // what the config registers is less than the contract demands
	WhyCanary       = "canary"         // the bad base didn't fail, the good one did, or there was no rollback
	WhyFaults       = "faults"         // a planned fault wasn't done, didn't show, or wasn't recovered from
	WhyParking      = "parking"        // a conversation wasn't parked, or came back another
	WhyQuiet        = "not_quiet"      // the server's gauges didn't come back
	WhyReconcile    = "counters"       // a counter of the server lies outside its declared bounds, or isn't there where the contract needs it
	WhyTasks        = "tasks_wrong"    // a result that no oracle has found right
	WhyMemory       = "client_memory"  // the client's memory isn't known, isn't its own, or isn't below MaxClientBytes
	WhyConnections  = "connections"    // more connections than workers need
)

// AdmissionCodes lists them in their order.
func AdmissionCodes() []string {
	return []string{WhyNotARung, WhyNotFinished, WhyIncomplete, WhyFailed, WhyUsage, WhyWorkers, WhyPeak, WhySamples,
		WhyResources, WhyTokens, WhySharedBase, WhyServerChange, WhyTerms, WhyCanary, WhyFaults, WhyParking, WhyQuiet, WhyReconcile,
		WhyTasks, WhyMemory, WhyConnections}
}

// Rungs are the only numbers of contexts that can be admitted.
func Rungs() []int64 { return []int64{100, 1_000, 10_000, 100_000, 1_000_000} }

// IsRung reports whether contexts is a rung.
func IsRung(contexts int64) bool { return slices.Contains(Rungs(), contexts) }

// LowestRung is the first rung that a run under contract can be admitted at.
func LowestRung(contract string) int64 {
	switch contract {
	case ContractControlled:
		return ControlledRung
	case ContractOrchestration:
		return OrchestrationRung
	}
	return Rungs()[0]
}

// IsRungOf reports whether contexts is a rung that a run under contract can be admitted at.
func IsRungOf(contract string, contexts int64) bool {
	return IsRung(contexts) && contexts >= LowestRung(contract)
}

package ledger

// Load is what became of a load plan.
type Load struct {
	Plan       LoadPlan     `json:"plan"`
	WorkersOut int64        `json:"workers_out"` // arrivals of an open loop that found no worker free: the worker that took it up was at another context when it was due
	StartLag   Distribution `json:"start_lag"`   // of an open loop: when it was due to when a worker took it up
	Stages     []StageSum   `json:"stages"`
	Answer     *Answer      `json:"answer"` // null without objectives
	Tenants    []TenantSum  `json:"tenants"`
	ServiceUS  Opt          `json:"service_us"` // how long all tenants had contexts left, see Defs.Service; null with several segments, or where they never did
	JainPPM    Opt          `json:"jain_ppm"`   // rounded down; null without service_us or without service
	Paired     *PairedSum   `json:"paired"`     // null unless contexts are pairs
}

// StageSum is what one stage of a plan came to. Times of an open loop are from the schedule, of a closed one from sent, failures and
// results without a first token's time as plus infinity.
type StageSum struct {
	Level          Opt          `json:"level"` // arrivals per 10^6 s, or workers; null of a trace, and of a step that never began
	Contexts       int64        `json:"contexts"`
	Results        int64        `json:"results"`
	Failed         int64        `json:"failed"` // submitted without a result
	WorkersOut     int64        `json:"workers_out"`
	WallUS         int64        `json:"wall_us" ledger:"signed"` // sum over segments, first picked to last end
	ResultsPer1e6s Opt          `json:"results_per_1e6s"`
	TTFT           Distribution `json:"ttft"`
	Latency        Distribution `json:"latency"`
	Verdict        string       `json:"verdict"` // one of Verdicts; empty without objectives
}

// Values of a verdict.
const (
	VerdictKept           = "kept"
	VerdictBroken         = "broken"
	VerdictNotEstablished = "not_established"
)

// Verdicts lists them.
func Verdicts() []string { return []string{VerdictKept, VerdictBroken, VerdictNotEstablished} }

// Answer is what stages say of objectives. Stages of one level are taken together.
type Answer struct {
	Level    Opt   `json:"level"`     // the highest level that keeps all objectives; null: not established
	Results  int64 `json:"results"`   // submitted contexts at that level
	BrokenAt Opt   `json:"broken_at"` // the lowest level above it that breaks one; null: none is known to
	Levels   int64 `json:"levels"`    // how many were tried
}

// TenantSum is what one tenant got.
type TenantSum struct {
	Name     string       `json:"name"`
	Contexts int64        `json:"contexts"` // submitted
	Results  int64        `json:"results"`
	Failed   int64        `json:"failed"`
	Tokens   int64        `json:"tokens"`    // prompt and completion of its results, by usage
	Service  int64        `json:"service"`   // of them, those of Defs.Service
	SharePPM Opt          `json:"share_ppm"` // of all tenants' service, rounded down
	ClaimPPM int64        `json:"claim_ppm"` // its weight's part of all weights, rounded down
	Wait     Distribution `json:"wait"`      // to sent, from queued in an open loop, from picked in a closed one; of first attempts
	TTFT     Distribution `json:"ttft"`      // as of stages
	Latency  Distribution `json:"latency"`
}

// PairedSum sets the arms of paired contexts against each other.
type PairedSum struct {
	Pairs       int64        `json:"pairs"` // both have a result
	Shared      ArmSum       `json:"shared"`
	Unique      ArmSum       `json:"unique"`
	TTFTDiff    Distribution `json:"ttft_difference"` // unique - shared, from sent
	LatencyDiff Distribution `json:"latency_difference"`
}

// ArmSum is one arm of paired contexts, over all its results.
type ArmSum struct {
	Results int64        `json:"results"`
	Failed  int64        `json:"failed"`
	Prompt  int64        `json:"prompt_tokens"`
	Cached  Opt          `json:"cached_tokens"` // null: no response said
	TTFT    Distribution `json:"ttft"`          // from sent
	Latency Distribution `json:"latency"`
}

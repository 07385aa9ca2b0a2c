package ledger

// Contracts of a soak.
const (
	ContractPlain         = "plain"         // one turn, no faults: the closed loop that peers are compared on
	ContractControlled    = "controlled"    // canary, rollback, faults, parked turns: see ControlPlan
	ContractOrchestration = "orchestration" // one turn, against an endpoint that computes nothing: about the client alone
)

// Contracts lists them.
func Contracts() []string { return []string{ContractPlain, ContractControlled, ContractOrchestration} }

// Scopes of an endpoint's address.
const (
	ScopeLoopback = "loopback"
	ScopePrivate  = "private" // RFC 1918, link-local, unique local
	ScopePublic   = "public"
)

// TokenSourceUsage is the only source of token numbers: the provider's usage object, never what was asked for.
const TokenSourceUsage = "usage"

// Config is config.json: all that decides a run, written and hashed before the first request. It is private (mode 0600):
// it alone holds the endpoint in clear and the secrets behind the commitments. Its hash is that of its public form (see Public), so
// that a published run can be held to it.
type Config struct {
	SchemaVersion int64  `json:"schema_version"`
	Operation     string `json:"operation"` // "soak"
	Document      string `json:"document"`  // "config"

	RunID         string `json:"run_id"`        // 32 hex digits, random
	RunOrdinal    int64  `json:"run_ordinal"`   // 1 for the first run that this folder's parent has seen, and so on: lost runs show as gaps
	Nonce         string `json:"nonce"`         // a challenge of whoever will verify, which every prompt begins with; empty if none
	Secret        string `json:"secret"`        // 64 hex digits, random, of this run alone: the key of commitments to what was sent and came
	SecretSHA256  string `json:"secret_sha256"` // of its digits
	PlaceSecret   string `json:"place_secret"`  // the like: the key of commitments to where the run was, endpoint and GPUs
	PlaceSHA256   string `json:"place_sha256"`
	StartedWallUS int64  `json:"started_wall_us"` // UTC, µs since 1970; the only wall time beside that of events

	Contract        string `json:"contract"` // one of Contracts
	Contexts        int64  `json:"contexts"`
	TurnsPerContext int64  `json:"turns_per_context"`
	Workers         int64  `json:"workers"`
	MaxAttempts     int64  `json:"max_attempts"` // per turn, the first included

	Endpoint           string   `json:"endpoint"`            // base URL as given
	EndpointScope      string   `json:"endpoint_scope"`      // ScopeLoopback, ScopePrivate or ScopePublic
	EndpointCommitment string   `json:"endpoint_commitment"` // Commit(place_secret, "endpoint", endpoint)
	API                string   `json:"api"`                 // "chat.completions"
	InProcess          bool     `json:"in_process"`          // client and server are one process: their memory and CPU are not separable
	Model              string   `json:"model"`               // as asked for
	HeaderNames        []string `json:"header_names"`        // extra request headers, names alone
	ConnectionPolicy   string   `json:"connection_policy"`   // "keepalive": one connection a worker, reused while the server keeps it

	Workload     Workload `json:"workload"`
	BaseSHA256   string   `json:"base_sha256"` // of the shared base's bytes; empty where nothing is shared
	Sampling     Sampling `json:"sampling"`
	Timeouts     Timeouts `json:"timeouts"`
	MetricsURL   string   `json:"metrics_url"`        // empty if none; in clear, as the endpoint
	MetricsHash  string   `json:"metrics_commitment"` // Commit(place_secret, "metrics", metrics_url); empty if none
	ServerPID    Opt      `json:"server_pid"`
	MaxSpend     Opt      `json:"max_spend_tokens"`
	ResourceUS   int64    `json:"resource_period_us"` // intended distance of two samples; the limit is max(3 periods, 3 s)
	TokenSource  string   `json:"token_source"`       // TokenSourceUsage
	Definitions  Defs     `json:"definitions"`
	Client       Build    `json:"client"`
	RulesVersion int64    `json:"rules_version"` // of package verify, as pre-registered

	Shared bool `json:"shared"` // several processes make the run, each in a segment of its own, at the same time

	Controlled *ControlPlan `json:"controlled"` // null unless the contract is controlled
	Load       *LoadPlan    `json:"load"`       // null: a closed loop of all workers
	Declared   Declared     `json:"declared"`
}

// Declared is what the user says that is measured. Nobody checks it; a comparison of two runs needs it.
type Declared struct {
	Server   string `json:"server"`   // program, version and settings; empty: not said
	Hardware string `json:"hardware"` // the machine; empty: not said
	Split    string `json:"split"`    // the server's share of the GPU; empty: not said
}

// ControlPlan is what a controlled run is going to do to itself and to its server.
type ControlPlan struct {
	FaultSeed     string `json:"fault_seed"`      // with fault_block it determines every fault: see docs/formats/run.md
	FaultBlock    int64  `json:"fault_block"`     // one context of each whole block of so many meets a fault
	StallIdleUS   int64  `json:"stall_idle_us"`   // how long a stalled stream is waited for: less than timeouts.idle_us, so that the run doesn't stand still
	CanaryAsked   int64  `json:"canary_asked"`    // questions to a base
	CanaryNeeded  int64  `json:"canary_needed"`   // right answers without which a base is rolled back
	BadBaseCommit string `json:"bad_base_commit"` // Commit(secret, "base", the base that has to fail)
	QuietPoints   int64  `json:"quiet_points"`    // times at which nothing is sent until the server's gauges are back, the end among them
	QuietLimitUS  int64  `json:"quiet_limit_us"`  // how long they may take
}

// Terms of the contract controlled.
const (
	ControlledRung        = 10_000 // the lowest rung that it can be admitted at
	ControlledMinTurns    = 2
	ControlledMaxAttempts = 3
	ControlledMaxBlock    = 100 // contexts of which one meets a fault: 1 % at least
	MaxTurns              = 64
)

// Terms of the contract orchestration.
const (
	OrchestrationRung = 10_000      // the lowest rung that it can be admitted at
	MaxClientBytes    = 256_000_000 // the client's resident memory stays below
)

// BaseOf is the commitment that a context's rows carry: that of the shared base, but for a context with a base of its own.
func (c *Config) BaseOf(context int64) string {
	if c.Load != nil && c.Load.Paired && UniqueArm(c.Workload.Seed, context) {
		return ""
	}
	return c.Workload.BaseCommit
}

// Workload is what the contexts ask.
type Workload struct {
	Name       string `json:"name"` // loadgen's Source.Name
	SHA256     string `json:"sha256"`
	Seed       string `json:"seed"`        // decimal, unsigned 64 bits; empty where the work is not generated
	BaseTokens Opt    `json:"base_tokens"` // intended, not measured
	BaseCommit string `json:"base_commit"` // Commit(secret, "base", the shared base's bytes): what every row's base must equal
	BaseBytes  int64  `json:"base_bytes"`
	Unique     bool   `json:"unique_prompts"` // no two contexts send the same bytes
}

// Sampling is how answers are asked for. Fractions are in millionths. Null means not sent.
type Sampling struct {
	MaxTokens       int64  `json:"max_tokens"`
	TemperatureE6   Opt    `json:"temperature_e6"`
	TopPE6          Opt    `json:"top_p_e6"`
	Seed            Opt    `json:"seed" ledger:"signed"`
	Stream          bool   `json:"stream"`
	IncludeUsage    bool   `json:"include_usage"`
	ExtraBody       string `json:"extra_body"` // further members of the request body as sent, empty if none
	MaxTokensMember string `json:"max_tokens_member"`
}

// Timeouts of one attempt. Zero means none.
type Timeouts struct {
	HeadersUS int64 `json:"headers_us"` // from sent to the response's headers
	IdleUS    int64 `json:"idle_us"`    // between two reads
	TotalUS   int64 `json:"total_us"`
}

// Build is the program that made the run.
type Build struct {
	Version      string `json:"version"`
	Revision     string `json:"revision"` // VCS commit, empty if not stamped
	Dirty        bool   `json:"dirty"`
	Go           string `json:"go"`
	OS           string `json:"os"`
	Arch         string `json:"arch"`
	CPUs         int64  `json:"cpus"`
	BinarySHA256 string `json:"binary_sha256"`
}

// Defs names the choice made wherever load tools disagree. Values are fixed by SchemaVersion; see Definitions.
type Defs struct {
	Clock        string `json:"clock"`
	TTFT         string `json:"ttft"`
	FirstContent string `json:"first_content"`
	Latency      string `json:"latency"`
	LastToken    string `json:"last_token"`
	LatencyFull  string `json:"latency_from_picked"`
	InterToken   string `json:"inter_token"`
	QueueAge     string `json:"queue_age"`
	SendLag      string `json:"send_lag"`
	SlotLag      string `json:"slot_lag"`
	Wall         string `json:"wall"`
	Rate         string `json:"rate"`
	Tokens       string `json:"tokens"`
	Percentile   string `json:"percentile"`
	Bound        string `json:"bound"`
	Adjusted     string `json:"adjusted"`
	Schedule     string `json:"from_schedule"`
	Service      string `json:"service"`
	Fairness     string `json:"jain"`
	Verdict      string `json:"verdict"`
	Pairs        string `json:"paired"`
	InFlight     string `json:"in_flight"`
	Result       string `json:"result"`
	Buffered     string `json:"buffered"`
	Oracle       string `json:"oracle"`
	Commitment   string `json:"commitment"`
}

// Definitions are those of this SchemaVersion.
func Definitions() Defs {
	return Defs{
		Clock:        "one monotonic clock a segment, integer microseconds since the segment's start event",
		TTFT:         "sent to the first event with non-empty content, reasoning or tool text, or with usage.completion_tokens above 0 if earlier; null, never latency, where there was none",
		FirstContent: "sent to the first event with non-empty content",
		Latency:      "sent to end, of the attempt that is the result",
		LastToken:    "sent to the last event that ttft's definition counts",
		InterToken:   "(last_token - first_token) / (text_tokens - 1), rounded down, of results with at least two text tokens that aren't buffered",
		LatencyFull:  "picked of a turn's first attempt to end of its last: connecting, waiting and retries included",
		QueueAge:     "queued to sent of a turn's first attempt: a turn is queued when the turn before it has ended, one that was left by an earlier segment and every first one when its segment starts",
		SendLag:      "picked to sent of a turn's first attempt: connecting and the client's own delay",
		SlotLag:      "max(0, sent - the later of queued and the end of the row before it of the same worker and segment) of a turn's first attempt that was sent and has such a row: what the client itself takes between an answer and the next request. Waits at quiet points are in it",
		Wall:         "sum over segments of the first picked to the last end",
		Rate:         "count over wall, rounded down to a whole number per 10^6 seconds",
		Tokens:       "the provider's usage object; null where none came; never the requested number. text_tokens: completion_tokens, less one where finish_reason is stop and exactly one delta fewer came, which is the end-of-sequence token",
		Percentile:   "nearest-rank order statistic: the ceil(p*n)-th smallest of n; no interpolation",
		Bound:        "one-sided 99 % upper bound of the percentile: the (t+1)-th largest with the largest t for which P(Bin(n,1-p) <= t) <= 1/100; evidence maximum where t is 0, null where there is none; the lower bound likewise, with p, from the smallest",
		Adjusted:     "latency or ttft over all turns, one that failed counted as plus infinity, shown as null with evidence infinite; so is a result whose first token wasn't seen, for ttft",
		Schedule:     "in an open loop, queued to first token and to end of the result: queued is when the schedule wanted the turn sent, in the segment that sent it; failures are infinite",
		Service:      "prompt and completion tokens by usage of a tenant's results that ended while every tenant had contexts left to be taken: from the latest of the tenants' first sent to the earliest of their last first attempts' picked",
		Fairness:     "Jain's index of x = service / weight over tenants: (sum x)^2 / (n * sum x^2)",
		Verdict:      "kept: the percentile's 99 % upper bound is at most the limit; broken: its 99 % lower bound is above; else not established, and so for ttft where more than 5 % of results came in one piece",
		Pairs:        "unique minus shared, of pairs of which both contexts have a result; the median's bounds are those of the sign test",
		InFlight:     "largest number of attempts with sent <= t < end, by sweep over rows; an end comes before a start of the same microsecond",
		Result:       "outcome ok: HTTP 200, every event parsed, no error object, non-empty text, the end marked by a finish_reason or [DONE]; it is usage-bearing where prompt and completion tokens came too",
		Buffered:     "text_tokens > 1 and either last_token = first_token (one read brought them all) or last_token - first_token < max(1 % of latency, 50 us * (deltas - 1))",
		Oracle:       "exact answer of a generated task after the normalisation that loadgen documents; apart from transport",
		Commitment:   "first 16 bytes of HMAC-SHA-256 under the run's secret over label, 0x00, bytes; under its place_secret for endpoint, metrics and gpu",
	}
}

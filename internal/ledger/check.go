package ledger

import (
	"fmt"
	"slices"
)

// The limits of free text.
const (
	MaxText   = 200 // bytes of details and errors
	MaxFinish = 32
	MaxName   = 256 // bytes of names and sources
)

// Check reports whether a config can be worked with. Whether it should count is a rule of package verify.
func (c *Config) Check() error {
	switch {
	case c.SchemaVersion != SchemaVersion:
		return fmt.Errorf("schema_version %d: this program reads %d", c.SchemaVersion, SchemaVersion)
	case c.Operation != Operation || c.Document != "config":
		return fmt.Errorf("operation %q, document %q: want %q, %q", c.Operation, c.Document, Operation, "config")
	case !slices.Contains(Contracts(), c.Contract):
		return fmt.Errorf("contract %q isn't known", c.Contract)
	case (c.Contract == ContractControlled) != (c.Controlled != nil):
		return fmt.Errorf("controlled goes with the contract %s, and this is %s", ContractControlled, c.Contract)
	case !isHex(c.RunID, 32):
		return fmt.Errorf("run_id %q isn't 32 hexadecimal digits", c.RunID)
	case c.Secret != "" && !isHex(c.Secret, 64) || c.PlaceSecret != "" && !isHex(c.PlaceSecret, 64):
		return fmt.Errorf("secret or place_secret isn't 64 hexadecimal digits")
	case !isHex(c.SecretSHA256, 64) || !isHex(c.PlaceSHA256, 64):
		return fmt.Errorf("secret_sha256 or place_sha256 isn't 64 hexadecimal digits")
	case c.MetricsHash != "" && !isHex(c.MetricsHash, 32):
		return fmt.Errorf("metrics_commitment %q isn't 32 hexadecimal digits", c.MetricsHash)
	case len(c.Nonce) > MaxNonce:
		return fmt.Errorf("nonce has %d bytes: the limit is %d", len(c.Nonce), MaxNonce)
	case c.Contexts < 1 || c.Contexts > MaxContexts:
		return fmt.Errorf("contexts %d: want 1 to %d", c.Contexts, MaxContexts)
	case c.Contract != ContractControlled && c.TurnsPerContext != 1:
		return fmt.Errorf("turns_per_context %d: the contract %s has 1", c.TurnsPerContext, c.Contract)
	case c.TurnsPerContext < 1 || c.TurnsPerContext > MaxTurns:
		return fmt.Errorf("turns_per_context %d: want 1 to %d", c.TurnsPerContext, MaxTurns)
	case c.Workers < 1 || c.Workers > MaxWorkers:
		return fmt.Errorf("workers %d: want 1 to %d", c.Workers, MaxWorkers)
	case c.MaxAttempts < 1 || c.MaxAttempts > 100:
		return fmt.Errorf("max_attempts %d: want 1 to 100", c.MaxAttempts)
	case !isHex(c.EndpointCommitment, 32):
		return fmt.Errorf("endpoint_commitment %q isn't 32 hexadecimal digits", c.EndpointCommitment)
	case !slices.Contains([]string{ScopeLoopback, ScopePrivate, ScopePublic}, c.EndpointScope):
		return fmt.Errorf("endpoint_scope %q isn't known", c.EndpointScope)
	case c.TokenSource != TokenSourceUsage:
		return fmt.Errorf("token_source %q isn't known", c.TokenSource)
	case c.ResourceUS < 1:
		return fmt.Errorf("resource_period_us %d: want at least 1", c.ResourceUS)
	}
	for _, text := range []string{c.Declared.Server, c.Declared.Hardware, c.Declared.Split} {
		if len(text) > MaxText {
			return fmt.Errorf("declared text of %d bytes: the limit is %d", len(text), MaxText)
		}
	}
	if err := c.CheckLoad(); err != nil {
		return err
	}
	if c.Controlled != nil {
		return c.Controlled.check()
	}
	return nil
}

// CheckLoad holds the load plan, where there is one, against contract, contexts and workers.
func (c *Config) CheckLoad() error {
	if c.Load == nil {
		return nil
	}
	return c.Load.check(c)
}

func (p *ControlPlan) check() error {
	switch {
	case p.FaultBlock < 1:
		return fmt.Errorf("fault_block %d: want at least 1", p.FaultBlock)
	case len(p.FaultSeed) > MaxText:
		return fmt.Errorf("fault_seed has %d bytes: the limit is %d", len(p.FaultSeed), MaxText)
	case !isHex(p.BadBaseCommit, 32):
		return fmt.Errorf("bad_base_commit %q isn't 32 hexadecimal digits", p.BadBaseCommit)
	}
	return nil
}

// Bounds of a run, so that a config can't size an allocation by itself.
const (
	MaxContexts = 10_000_000
	MaxWorkers  = 100_000
	MaxNonce    = 128 // bytes
)

// Check reports whether a row is well formed. Whether its values can be true is a rule of package verify.
func (r *Row) Check() error {
	switch {
	case r.Attempt < 1:
		return fmt.Errorf("attempt %d: they count from 1", r.Attempt)
	case !slices.Contains(outcomes, r.Outcome):
		return fmt.Errorf("outcome %q isn't in the list", r.Outcome)
	case r.Oracle != OraclePass && r.Oracle != OracleFail && r.Oracle != OracleNone:
		return fmt.Errorf("oracle %q isn't in the list", r.Oracle)
	case r.Base != "" && !isHex(r.Base, 32):
		return fmt.Errorf("base %q isn't 32 hexadecimal digits", r.Base)
	case !isHex(r.PromptCommit, 32):
		return fmt.Errorf("prompt_commit %q isn't 32 hexadecimal digits", r.PromptCommit)
	case r.OutputCommit != "" && !isHex(r.OutputCommit, 32):
		return fmt.Errorf("output_commit %q isn't 32 hexadecimal digits", r.OutputCommit)
	case r.Parked != "" && !isHex(r.Parked, 32) || r.Restored != "" && !isHex(r.Restored, 32):
		return fmt.Errorf("parked %q or restored %q isn't 32 hexadecimal digits", r.Parked, r.Restored)
	case len(r.FinishReason) > MaxFinish:
		return fmt.Errorf("finish_reason has %d bytes: the limit is %d", len(r.FinishReason), MaxFinish)
	case len(r.Error) > MaxText:
		return fmt.Errorf("error has %d bytes: the limit is %d", len(r.Error), MaxText)
	case len(r.Task) > MaxFinish:
		return fmt.Errorf("task has %d bytes: the limit is %d", len(r.Task), MaxFinish)
	case r.Segment >= maxSegments:
		return fmt.Errorf("segment %d: the limit is %d", r.Segment, maxSegments)
	}
	for _, t := range []int64{r.QueuedUS, r.PickedUS, r.SentUS.V, r.HeadersUS.V, r.FirstEventUS.V, r.FirstTokenUS.V, r.FirstContentUS.V,
		r.LastTokenUS.V, r.EndUS, r.BackoffUS, r.RetryAfterUS.V} {
		if t > maxTime {
			return fmt.Errorf("time of %d us: the limit is %d", t, maxTime)
		}
	}
	for _, n := range []int64{r.PromptTokens.V, r.CompletionTokens.V, r.CachedTokens.V, r.Events, r.Deltas, r.Bytes, r.TextBytes,
		r.WastedTokens, r.Reconnects} {
		if n > maxCount {
			return fmt.Errorf("count of %d: the limit is %d", n, maxCount)
		}
	}
	return nil
}

// Limits that keep sums over a run within 63 bits.
const (
	maxSegments = 1 << 16
	maxTime     = 1 << 46 // µs: two years
	maxCount    = 1 << 32
)

var (
	outcomes    = Outcomes()
	seriesNames = SeriesNames()
	eventKinds  = EventKinds()
)

// Check reports whether a sample is well formed.
func (r *Resource) Check() error {
	if (r.Server == nil) == (r.ServerReason == "") {
		return fmt.Errorf("want either server or server_reason")
	}
	if len(r.ServerReason) > MaxText || len(r.ScrapeError) > MaxText {
		return fmt.Errorf("server_reason or scrape_error is longer than %d bytes", MaxText)
	}
	if r.Segment >= maxSegments || r.TUS > maxTime {
		return fmt.Errorf("segment %d at %d us: the limits are %d and %d", r.Segment, r.TUS, maxSegments, maxTime)
	}
	if err := r.checkGPUs(); err != nil || len(r.Series) == 0 {
		return err
	}
	if len(r.Series) != len(seriesNames) {
		return fmt.Errorf("%d series: want none, or all %d canonical names", len(r.Series), len(seriesNames))
	}
	for i := range r.Series {
		s := &r.Series[i]
		switch {
		case s.Name != seriesNames[i]:
			return fmt.Errorf("series %d is %q: want %q", i, s.Name, seriesNames[i])
		case !slices.Contains([]string{SeriesValue, SeriesNaN, SeriesNotExposed, SeriesError}, s.State):
			return fmt.Errorf("series %s: state %q isn't in the list", s.Name, s.State)
		case s.Value.OK != (s.State == SeriesValue):
			return fmt.Errorf("series %s: a value stands only beside the state %q", s.Name, SeriesValue)
		case len(s.Source) > MaxName:
			return fmt.Errorf("series %s: source has %d bytes: the limit is %d", s.Name, len(s.Source), MaxName)
		}
	}
	return nil
}

func (r *Resource) checkGPUs() error {
	switch {
	case len(r.GPUs) == 0 && r.GPUReason == "":
		return fmt.Errorf("want gpus or gpu_reason")
	case len(r.GPUs) > MaxGPUs || len(r.GPUReason) > MaxText:
		return fmt.Errorf("%d gpus and %d bytes of gpu_reason: the limits are %d and %d", len(r.GPUs), len(r.GPUReason), MaxGPUs, MaxText)
	}
	for i := range r.GPUs {
		g := &r.GPUs[i]
		switch {
		case !isHex(g.GPU, 32):
			return fmt.Errorf("gpu %d: %q isn't 32 hexadecimal digits", i, g.GPU)
		case !slices.Contains(GPUSources(), g.Source):
			return fmt.Errorf("gpu %d: source %q isn't in the list", i, g.Source)
		case g.BusyPPM.Or(0) > 1_000_000:
			return fmt.Errorf("gpu %d: busy_ppm is %d", i, g.BusyPPM.V)
		}
		for _, x := range r.GPUs[:i] {
			if x.GPU == g.GPU {
				return fmt.Errorf("gpu %d is there twice", i)
			}
		}
	}
	return nil
}

// Check reports whether an event is well formed.
func (e *Event) Check() error {
	switch {
	case !slices.Contains(eventKinds, e.Kind):
		return fmt.Errorf("kind %q isn't in the list", e.Kind)
	case e.Kind == EventStart && !isHex(e.ConfigSHA256, 64):
		return fmt.Errorf("config_sha256 %q isn't 64 hexadecimal digits", e.ConfigSHA256)
	case e.Kind != EventStart && e.ConfigSHA256 != "":
		return fmt.Errorf("config_sha256 stands only in start events")
	case e.Kind == EventEnd && e.Detail != StatusFinished && e.Detail != StatusInterrupted && e.Detail != StatusFailed:
		return fmt.Errorf("detail %q of an end event isn't in the list", e.Detail)
	case len(e.Detail) > MaxText:
		return fmt.Errorf("detail has %d bytes: the limit is %d", len(e.Detail), MaxText)
	}
	return nil
}

// isHex reports whether s is n lower-case hexadecimal digits.
func isHex(s string, n int) bool {
	if len(s) != n {
		return false
	}
	for i := range len(s) {
		if ch := s[i]; (ch < '0' || ch > '9') && (ch < 'a' || ch > 'f') {
			return false
		}
	}
	return true
}

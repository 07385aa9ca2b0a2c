// Package compare sets two verified runs of a soak against each other, where they are alike in all but one declared thing, and refuses
// where they aren't.
package compare

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/big"
	"slices"
	"strings"

	"cotenant/internal/ledger"
	"cotenant/internal/verify"
)

// Axes are what two runs may differ in, one at a time.
func Axes() []string { return []string{"server", "hardware", "model", "split"} }

// Report is the document of a comparison.
type Report struct {
	SchemaVersion int64              `json:"schema_version"`
	Operation     string             `json:"operation"` // "compare"
	Vary          string             `json:"vary"`
	Runs          []Run              `json:"runs"`
	Alike         bool               `json:"alike"`
	Conditions    []Condition        `json:"conditions"`
	Ratios        []Ratio            `json:"ratios"` // empty unless alike
	NotCompared   []ledger.Statement `json:"not_compared"`
	NonClaims     []ledger.Statement `json:"non_claims"`
}

// Run names one of the two.
type Run struct {
	Path      string `json:"path"`
	RunID     string `json:"run_id"`
	FilesRoot string `json:"files_root"`
	Value     string `json:"value"` // of the axis
}

// Condition is one thing in which the runs have to be equal, or, of the axis, to differ.
type Condition struct {
	Name  string `json:"name"`
	Holds bool   `json:"holds"`
	A     string `json:"a"`
	B     string `json:"b"`
	Why   string `json:"why"` // empty if it holds
}

// Ratio is a number of the second run over that of the first, in millionths. Low and High are an interval of the given confidence, rounded
// outwards; null where one run each carries none.
type Ratio struct {
	Name          string  `json:"name"`
	Unit          string  `json:"unit"`
	A             int64   `json:"a"`
	B             int64   `json:"b"`
	RatioE6       int64   `json:"ratio_e6"` // rounded down
	LowE6         *int64  `json:"low_e6"`
	HighE6        *int64  `json:"high_e6"`
	ConfidencePPM int64   `json:"confidence_ppm"` // at least; 0 without an interval
	Verdict       Verdict `json:"verdict"`
}

// Verdict says on which side of 1 a ratio's interval lies.
type Verdict string

// The verdicts.
const (
	Higher         Verdict = "higher"
	Lower          Verdict = "lower"
	NotEstablished Verdict = "not_established" // 1 lies within, or there is no interval
)

// ErrNotVerified says that a run can't be compared because it doesn't hold by itself.
var ErrNotVerified = errors.New("not verified")

// side is one run, read and verified.
type side struct {
	path   string
	config ledger.Config
	ledger ledger.Ledger
}

// Folders compares the run folders a and b. An error wraps ErrNotVerified where a rule of package verify fails, or a folder can't be
// read; runs that aren't alike are a report.
func Folders(a, b, vary string, opts verify.Options) (*Report, error) {
	if !slices.Contains(Axes(), vary) {
		return nil, fmt.Errorf("axis %q: want one of %s", vary, strings.Join(Axes(), ", "))
	}
	sides := [2]*side{}
	for i, path := range []string{a, b} {
		var err error
		if sides[i], err = open(path, opts); err != nil {
			return nil, err
		}
	}
	return compare(sides[0], sides[1], vary), nil
}

func open(path string, opts verify.Options) (*side, error) {
	report, err := verify.Dir(path, opts)
	if err != nil {
		return nil, fmt.Errorf("%s: %w: %w", path, ErrNotVerified, err)
	}
	if report.Grade != verify.GradeRecomputed {
		return nil, fmt.Errorf("%s: %w: its grade is %s, and a comparison needs all rows", path, ErrNotVerified, report.Grade)
	}
	if failed := report.Failed(); len(failed) > 0 {
		return nil, fmt.Errorf("%s: %w: %s: %s", path, ErrNotVerified, failed[0].Rule, failed[0].Detail)
	}
	folder, err := ledger.OpenFolder(path)
	if err != nil {
		return nil, fmt.Errorf("%s: %w: %w", path, ErrNotVerified, err)
	}
	data, err := folder.ReadFile(ledger.LedgerFile)
	if err != nil {
		return nil, fmt.Errorf("%s: %w: %w", path, ErrNotVerified, err)
	}
	l, err := ledger.ReadLedger(data)
	if err != nil {
		return nil, fmt.Errorf("%s: %w: %w", path, ErrNotVerified, err)
	}
	return &side{path, folder.Config, l}, nil
}

func compare(a, b *side, vary string) *Report {
	r := &Report{SchemaVersion: 1, Operation: "compare", Vary: vary, Alike: true, Ratios: []Ratio{}, NotCompared: []ledger.Statement{}, NonClaims: []ledger.Statement{}}
	for _, s := range []*side{a, b} {
		r.Runs = append(r.Runs, Run{s.path, s.ledger.RunID, s.ledger.FilesRoot, s.axis(vary)})
	}
	r.Conditions = conditions(a, b, vary)
	for _, c := range r.Conditions {
		r.Alike = r.Alike && c.Holds
	}
	if !r.Alike {
		return r
	}
	r.ratios(a, b)
	r.NonClaims = nonClaims(a, vary)
	return r
}

// axis is what a run says of an axis.
func (s *side) axis(name string) string {
	switch name {
	case "server":
		return s.config.Declared.Server
	case "hardware":
		return s.config.Declared.Hardware
	case "split":
		return s.config.Declared.Split
	}
	return s.config.Model
}

// text shows a value of a config.
func text(v any) string {
	if s, ok := v.(string); ok {
		return s
	}
	b, err := json.Marshal(v)
	if err != nil {
		return fmt.Sprint(v)
	}
	return string(b)
}

// conditions lists what has to be equal, and the axes.
func conditions(a, b *side, vary string) []Condition {
	var out []Condition
	equal := func(name string, x, y any) {
		c := Condition{Name: name, A: text(x), B: text(y)}
		if c.Holds = c.A == c.B; !c.Holds {
			c.Why = "the runs differ in it"
		}
		out = append(out, c)
	}
	x, y := &a.config, &b.config
	equal("workload", x.Workload.SHA256, y.Workload.SHA256)
	equal("contract", x.Contract, y.Contract)
	equal("contexts", x.Contexts, y.Contexts)
	equal("turns_per_context", x.TurnsPerContext, y.TurnsPerContext)
	equal("workers", x.Workers, y.Workers)
	equal("max_attempts", x.MaxAttempts, y.MaxAttempts)
	equal("load", x.Load, y.Load)
	equal("controlled", terms(x), terms(y))
	equal("sampling", x.Sampling, y.Sampling)
	equal("token_source", x.TokenSource, y.TokenSource)
	equal("timeouts", x.Timeouts, y.Timeouts)
	equal("api", x.API, y.API)
	equal("connection_policy", x.ConnectionPolicy, y.ConnectionPolicy)
	equal("endpoint_scope", x.EndpointScope, y.EndpointScope)
	equal("in_process", x.InProcess, y.InProcess)
	equal("resource_period_us", x.ResourceUS, y.ResourceUS)
	equal("nonce_bytes", len(x.Nonce), len(y.Nonce))
	equal("segments", a.ledger.Segments, b.ledger.Segments)
	equal("definitions", x.Definitions, y.Definitions)
	equal("rules_version", x.RulesVersion, y.RulesVersion)
	equal("client", build(x, vary), build(y, vary))
	for _, axis := range Axes() {
		out = append(out, axisCondition(axis, a.axis(axis), b.axis(axis), axis == vary))
	}
	return append(out, apart(a, b, vary))
}

// terms are what a controlled run registers, but for what is random in each.
func terms(c *ledger.Config) any {
	if c.Controlled == nil {
		return nil
	}
	p := *c.Controlled
	p.FaultSeed, p.BadBaseCommit = "", ""
	return p
}

// build is the client's. On the server's machine its cores are the hardware's.
func build(c *ledger.Config, vary string) ledger.Build {
	out := c.Client
	if vary == "hardware" && c.EndpointScope == ledger.ScopeLoopback {
		out.CPUs = 0
	}
	return out
}

func axisCondition(name, a, b string, varied bool) Condition {
	c := Condition{Name: name, A: a, B: b}
	switch {
	case varied && (a == "" || b == ""):
		c.Why = "it is to vary, and a run doesn't say what it was: soak --declare " + name + "=…"
	case varied && a == b:
		c.Why = "it is to vary, and is the same"
	case !varied && a != b:
		c.Why = "the runs differ in it, and it isn't what is to vary"
	case !varied && a == "" && name != "split":
		c.Why = "neither run says what it was, so that nobody knows whether it is the same: soak --declare " + name + "=…"
	}
	c.Holds = c.Why == ""
	return c
}

// apart holds that the runs are two, and that neither disturbed the other.
func apart(a, b *side, vary string) Condition {
	show := func(s *side) string {
		return fmt.Sprintf("%s, from %d to %d us", s.ledger.RunID, s.ledger.StartedWallUS, s.ledger.EndedWallUS.Or(0))
	}
	c := Condition{Name: "apart", A: show(a), B: show(b)}
	overlap := a.ledger.StartedWallUS < b.ledger.EndedWallUS.Or(0) && b.ledger.StartedWallUS < a.ledger.EndedWallUS.Or(0)
	switch {
	case a.ledger.RunID == b.ledger.RunID:
		c.Why = "it is one run"
	case overlap && vary != "hardware":
		c.Why = "the runs went on at the same time on the same hardware"
	}
	c.Holds = c.Why == ""
	return c
}

// ratios compares what both runs claim.
func (r *Report) ratios(a, b *side) {
	claimed := func(s *side, id string) bool {
		return slices.ContainsFunc(s.ledger.Claims, func(c ledger.Claim) bool { return c.ID == id })
	}
	both := func(id string) bool {
		if claimed(a, id) && claimed(b, id) {
			return true
		}
		r.NotCompared = append(r.NotCompared, ledger.Statement{ID: id, Reason: "not both runs claim it; verify says why"})
		return false
	}
	rate := func(id, unit string, of func(*ledger.Rates) ledger.Opt) {
		if both(id) {
			r.add(Ratio{Name: id, Unit: unit}, of(&a.ledger.Rates), of(&b.ledger.Rates), nil)
		}
	}
	rate("result_rate", "per 10^6 s", func(x *ledger.Rates) ledger.Opt { return x.ResultsPer1e6s })
	rate("completion_rate", "tokens per 10^6 s", func(x *ledger.Rates) ledger.Opt { return x.CompletionPer1e6s })
	for _, d := range []struct {
		claim, name string
		of          func(*ledger.Times) *ledger.Distribution
	}{{ledger.ClaimTTFT, "ttft", func(t *ledger.Times) *ledger.Distribution { return &t.TTFT }},
		{"latency_p50", "latency", func(t *ledger.Times) *ledger.Distribution { return &t.Latency }}} {
		if both(d.claim) {
			x, y := d.of(&a.ledger.Times), d.of(&b.ledger.Times)
			r.quantile(d.name+"_p50", x.P50, y.P50)
			r.quantile(d.name+"_p95", x.P95, y.P95)
		}
	}
	if a.config.Load.Open() && both("latency_from_schedule_p50") {
		x, y := &a.ledger.Times, &b.ledger.Times
		r.quantile("latency_from_schedule_p50", x.LatencySchedule.P50, y.LatencySchedule.P50)
		r.quantile("latency_from_schedule_p95", x.LatencySchedule.P95, y.LatencySchedule.P95)
	}
	if both("tasks_right") {
		x, y := &a.ledger.Oracle, &b.ledger.Oracle
		r.add(Ratio{Name: "tasks_right", Unit: "ppm", ConfidencePPM: 900_000}, x.PassRatePPM, y.PassRatePPM,
			&[4]ledger.Opt{x.WilsonLowPPM, x.WilsonHighPPM, y.WilsonLowPPM, y.WilsonHighPPM})
	}
}

// quantile compares a percentile. Each of its four bounds is wrong with at most 1 %, so that the ratio's interval is with at most 4 %.
func (r *Report) quantile(name string, a, b ledger.Quantile) {
	r.add(Ratio{Name: name, Unit: "us", ConfidencePPM: 960_000}, a.ValueUS, b.ValueUS, &[4]ledger.Opt{a.LowerUS, a.UpperUS, b.LowerUS, b.UpperUS})
}

// add completes a ratio of b over a. Bounds are those of a, then those of b; nil: there are none.
func (r *Report) add(x Ratio, a, b ledger.Opt, bounds *[4]ledger.Opt) {
	if !a.OK || !b.OK || a.V <= 0 {
		r.NotCompared = append(r.NotCompared, ledger.Statement{ID: x.Name, Reason: "a run has no such number, or the first has 0"})
		return
	}
	x.A, x.B, x.Verdict = a.V, b.V, NotEstablished
	x.RatioE6 = scaled(b.V, a.V, false)
	if bounds == nil || slices.ContainsFunc(bounds[:], func(o ledger.Opt) bool { return !o.OK }) || bounds[0].V <= 0 || bounds[1].V <= 0 {
		x.ConfidencePPM = 0
	} else {
		low, high := scaled(bounds[2].V, bounds[1].V, false), scaled(bounds[3].V, bounds[0].V, true)
		x.LowE6, x.HighE6 = &low, &high
		switch {
		case low > 1_000_000:
			x.Verdict = Higher
		case high < 1_000_000:
			x.Verdict = Lower
		}
	}
	r.Ratios = append(r.Ratios, x)
}

// scaled is 10^6·n/d, rounded down or up; n isn't below 0, d above.
func scaled(n, d int64, up bool) int64 {
	x := new(big.Int).Mul(big.NewInt(n), big.NewInt(1_000_000))
	q, rest := x.QuoRem(x, big.NewInt(d), new(big.Int))
	if up && rest.Sign() > 0 {
		q.Add(q, big.NewInt(1))
	}
	if !q.IsInt64() {
		return ledger.MaxInt
	}
	return min(q.Int64(), ledger.MaxInt)
}

func nonClaims(a *side, vary string) []ledger.Statement {
	out := []ledger.Statement{
		{ID: "between_runs", Reason: "one run of each was compared: how much two runs of the same would differ is in no interval; repeat them, in turns"},
		{ID: "declared", Reason: "what server, hardware and split were is what the user said before the runs; nothing here has checked it"},
		{ID: "independence", Reason: "intervals take a run's results as independent draws; results that shared a batch or a queue aren't"},
		{ID: "rates_interval", Reason: "a rate is a count over one wall time, and has no interval"},
	}
	if vary == "model" {
		out = append(out, ledger.Statement{ID: "tokens_alike", Reason: "models with different vocabularies cut the same text into different tokens: compare results, not tokens"})
	}
	if a.config.Declared.Split == "" && vary != "split" {
		out = append(out, ledger.Statement{ID: "split", Reason: "neither run says how the GPU was shared"})
	}
	return out
}

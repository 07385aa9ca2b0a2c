package verify

import (
	"cmp"
	"encoding/json"
	"fmt"
	"math/big"

	"cotenant/internal/ledger"
)

// mismatch compares pairs of the ledger's number, as computed, and this package's own, and names the first that differ.
func mismatch(pairs ...any) string {
	for i := 0; i < len(pairs); i += 3 {
		if pairs[i+1] != pairs[i+2] {
			return fmt.Sprintf("%v: one computation gives %v, another %v", pairs[i], pairs[i+1], pairs[i+2])
		}
	}
	return ""
}

func counts(e *evidence) (string, string) {
	f, c := e.facts, &e.computed.Counts
	var submitted, completed, turns, usage, twice int64
	for _, x := range f.contexts {
		if x.any {
			submitted++
		}
		if int64(x.turns) == e.config.TurnsPerContext {
			completed++
		}
		turns += int64(x.turns)
		usage += int64(x.usage)
		twice += int64(x.twice)
	}
	own := mismatch("/counts/submitted", c.Submitted, submitted, "/counts/completed", c.Completed, completed, "/counts/turns", c.Turns, turns,
		"/counts/failed", c.Failed, submitted-completed, "/counts/usage_responses", c.UsageResponses, usage,
		"/counts/usage_missing", c.UsageMissing, turns-usage, "/counts/attempts", c.Attempts, f.rows, "/counts/retries", c.Retries, f.retries,
		"/counts/strays", c.Strays, f.strays, "/counts/duplicates", c.Duplicates, twice, "/counts/resent", c.Resent, int64(len(f.resent)))
	for _, o := range c.Outcomes {
		own = cmp.Or(own, mismatch("/counts/outcomes "+string(o.Outcome), o.Count, f.outcomes[o.Outcome]))
	}
	own = cmp.Or(own, mismatch("/counts/outcomes", len(c.Outcomes), len(f.outcomes)))
	return cmp.Or(own, difference("/counts", e.claimed.Counts, *c)), ""
}

func tokenSums(e *evidence) (string, string) {
	s, c := &e.facts.tokens, &e.computed.Tokens
	own := mismatch("/tokens/prompt", c.Prompt, s.prompt, "/tokens/completion", c.Completion, s.completion, "/tokens/cached", c.Cached.Or(0), s.cached,
		"/tokens/deltas", c.Deltas, s.deltas, "/tokens/text_bytes", c.TextBytes, s.text, "/tokens/spent", c.Spent, s.spent,
		"/tokens/wasted", c.Wasted, s.wasted, "/tokens rows", c.RowsEqual+c.RowsEOSCounted+c.RowsFewerDeltas+c.RowsMoreDeltas, e.computed.Counts.UsageResponses,
		"/tokens/rows_eos_counted", c.RowsEOSCounted, s.eos)
	return cmp.Or(own, difference("/tokens", e.claimed.Tokens, *c)), ""
}

// percentiles of a distribution in thousandths.
var percentiles = []struct {
	name  string
	milli int64
	of    func(*ledger.Distribution) ledger.Quantile
}{
	{"p50", 500, func(d *ledger.Distribution) ledger.Quantile { return d.P50 }},
	{"p90", 900, func(d *ledger.Distribution) ledger.Quantile { return d.P90 }},
	{"p95", 950, func(d *ledger.Distribution) ledger.Quantile { return d.P95 }},
	{"p99", 990, func(d *ledger.Distribution) ledger.Quantile { return d.P99 }},
	{"p999", 999, func(d *ledger.Distribution) ledger.Quantile { return d.P999 }},
}

func distributions(e *evidence) (string, string) {
	t := &e.computed.Times
	failed := e.computed.Counts.Failed
	untimed := failed + e.computed.Counts.TTFTMissing
	scheduled, unscheduled := failed, untimed
	if !e.config.Load.Open() {
		scheduled, unscheduled = 0, 0
	}
	for _, d := range []struct {
		name     string
		from     string
		dist     *ledger.Distribution
		infinite int64
	}{{"ttft", "ttft", &t.TTFT, 0}, {"first_content", "first_content", &t.FirstContent, 0}, {"latency", "latency", &t.Latency, 0},
		{"last_token", "last_token", &t.LastToken, 0}, {"latency_from_picked", "latency_from_picked", &t.LatencyFull, 0},
		{"inter_token", "inter_token", &t.InterToken, 0}, {"latency_adjusted", "latency", &t.Adjusted, failed},
		{"ttft_adjusted", "ttft", &t.TTFTAdjusted, untimed}, {"latency_from_schedule", "latency_from_schedule", &t.LatencySchedule, scheduled},
		{"ttft_from_schedule", "ttft_from_schedule", &t.TTFTSchedule, unscheduled},
		{"queue_age", "queue_age", &t.QueueAge, 0}, {"send_lag", "send_lag", &t.SendLag, 0}, {"slot_lag", "slot_lag", &t.SlotLag, 0}} {
		if own := ownDistribution("/times/"+d.name, d.dist, sorted(e.facts.series[d.from]), d.infinite); own != "" {
			return own, ""
		}
	}
	return difference("/times", e.claimed.Times, *t), ""
}

// ownDistribution takes the order statistics of values, which ascend, and of infinite failures again.
func ownDistribution(at string, d *ledger.Distribution, values []int64, infinite int64) string {
	n := int64(len(values)) + infinite
	if d.N != n {
		return mismatch(at+"/n", d.N, n)
	}
	if n == 0 {
		return ""
	}
	total := int64(0)
	for _, v := range values {
		total += v
	}
	if infinite == 0 {
		if own := mismatch(at+"/min_us", d.MinUS.V, values[0], at+"/max_us", d.MaxUS.V, values[n-1], at+"/sum_us", d.SumUS.Or(total), total); own != "" {
			return own
		}
	}
	for _, p := range percentiles {
		rank := (n*p.milli + 999) / 1000
		want := ledger.Opt{}
		if rank <= int64(len(values)) {
			want = ledger.Some(values[rank-1])
		}
		q := p.of(d)
		if own := mismatch(at+"/"+p.name+"/value_us", q.ValueUS, want); own != "" {
			return own
		}
		if q.LowerUS.OK && want.OK && q.LowerUS.V > want.V {
			return fmt.Sprintf("%s/%s: the lower bound %d lies above the value %d", at, p.name, q.LowerUS.V, want.V)
		}
		if q.UpperUS.OK && want.OK && q.UpperUS.V < want.V {
			return fmt.Sprintf("%s/%s: the upper bound %d lies below the value %d", at, p.name, q.UpperUS.V, want.V)
		}
	}
	return ""
}

func wallAndRates(e *evidence) (string, string) {
	f, c := e.facts, &e.computed
	wall := int64(0)
	for _, w := range f.walls {
		wall += w.to - w.from
	}
	usage := c.Counts.UsageResponses
	own := mismatch("/wall_us", c.WallUS, wall, "/rates/results_per_1e6s", c.Rates.ResultsPer1e6s, per1e6s(usage, wall),
		"/rates/prompt_tokens_per_1e6s", c.Rates.PromptPer1e6s, per1e6s(f.tokens.prompt, wall),
		"/rates/completion_tokens_per_1e6s", c.Rates.CompletionPer1e6s, per1e6s(f.tokens.completion, wall))
	if n, skip := f.lastEnds.Len(), e.config.Workers; len(f.walls) == 1 && n > skip {
		ends := sorted(&f.lastEnds)
		span := ends[n-1] - ends[skip-1]
		own = cmp.Or(own, mismatch("/rates/warm_wall_us", c.Rates.WarmWallUS, ledger.Some(span),
			"/rates/warm_results_per_1e6s", c.Rates.WarmResultsPer1e6s, per1e6s(n-skip, span)))
	}
	if own == "" && e.claimed.WallUS != c.WallUS {
		own = fmt.Sprintf("/wall_us is %d, the files give %d", e.claimed.WallUS, c.WallUS)
	}
	return cmp.Or(own, difference("/rates", e.claimed.Rates, c.Rates)), ""
}

// per1e6s is the rate in whole numbers per 10^6 seconds, in integers of any size.
func per1e6s(count, us int64) ledger.Opt {
	if us <= 0 || count < 0 {
		return ledger.Opt{}
	}
	x := new(big.Int).Mul(big.NewInt(count), big.NewInt(1_000_000_000_000))
	if x.Quo(x, big.NewInt(us)); x.Cmp(big.NewInt(ledger.MaxInt)) > 0 {
		return ledger.Opt{}
	}
	return ledger.Some(x.Int64())
}

func oracle(e *evidence) (string, string) {
	f, c := e.facts, &e.computed.Oracle
	own := mismatch("/oracle/passed", c.Passed, f.oracle.passed, "/oracle/failed", c.Failed, f.oracle.failed, "/oracle/checked", c.Checked, f.oracle.passed+f.oracle.failed)
	return cmp.Or(own, difference("/oracle", e.claimed.Oracle, *c)), ""
}

func sampleSums(e *evidence) (string, string) {
	a, c := e.claimed.Peaks, e.computed.Peaks
	a.InFlight, a.InFlightObserved = c.InFlight, c.InFlightObserved // R-PEAK-01's
	n := int64(0)
	for _, g := range e.facts.trace {
		n += g.n
	}
	return cmp.Or(mismatch("/samples/count", e.computed.Samples.Count, n), difference("/peaks", a, c),
		difference("/samples", e.claimed.Samples, e.computed.Samples),
		listDifference("/series", e.claimed.Series, e.computed.Series),
		listDifference("/reconciliation", e.claimed.Reconciliation, e.computed.Reconciliation)), ""
}

// listDifference compares two lists of documents.
func listDifference[T any](at string, claimed, computed []T) string {
	if len(claimed) != len(computed) {
		return fmt.Sprintf("%s has %d members, the files give %d", at, len(claimed), len(computed))
	}
	for i := range claimed {
		if d := difference(fmt.Sprintf("%s/%d", at, i), claimed[i], computed[i]); d != "" {
			return d
		}
	}
	return ""
}

func samplesCover(e *evidence) (string, string) {
	n := int64(0)
	for _, g := range e.facts.trace {
		n += g.n
	}
	if n < 2 {
		return fmt.Sprintf("%d samples: want 2 at least", n), ""
	}
	for _, s := range inOrder(e.facts.walls) {
		w, g := e.facts.walls[s], e.facts.trace[s]
		slack := int64(0)
		if !e.facts.ended[s] {
			slack = 3 * e.config.ResourceUS // the segment was killed: its last sample may be older than its last row
		}
		switch {
		case g == nil:
			return fmt.Sprintf("segment %d has rows and no sample", s), ""
		case g.first > w.from:
			return fmt.Sprintf("segment %d: the first sample is of %d us, the first request of %d us", s, g.first, w.from), ""
		case g.last < w.to-slack:
			return fmt.Sprintf("segment %d: the last sample is of %d us, the last end of %d us", s, g.last, w.to), ""
		}
	}
	return "", ""
}

func sampleGaps(e *evidence) (string, string) {
	for _, s := range inOrder(e.facts.trace) {
		if g := e.facts.trace[s]; g.maxGap > 3*e.config.ResourceUS && g.maxGap > 3_000_000 {
			return fmt.Sprintf("segment %d: %d us between two samples; the period is %d us", s, g.maxGap, e.config.ResourceUS), ""
		}
	}
	return "", ""
}

func memoryThere(e *evidence) (string, string) {
	if v := &e.facts.badMemory; v.count > 0 {
		return v.String(), ""
	}
	return "", ""
}

func seriesStated(e *evidence) (string, string) {
	if e.facts.statedSeries == 0 {
		return "no sample says anything about KV pages, slots, queue or prefix cache, not even that they aren't exposed", ""
	}
	return "", ""
}

func claimValues(e *evidence) (string, string) {
	doc := generic(e.ledgerBytes)
	for _, c := range e.claimed.Claims {
		v, ok := at(doc, c.Evidence)
		if n, isNumber := v.(json.Number); !ok || !isNumber || n.String() != fmt.Sprint(c.Value) {
			return fmt.Sprintf("claim %s is %d; %s holds %s", c.ID, c.Value, c.Evidence, show(v)), ""
		}
	}
	return "", ""
}

func claimList(e *evidence) (string, string) {
	// Values are R-CLAIM-01's, and whether a time to first token may be claimed is R-TTFT-01's.
	strip := func(claims []ledger.Claim) []ledger.Claim {
		out := []ledger.Claim{}
		for _, c := range claims {
			if c.ID != ledger.ClaimTTFT {
				c.Value = 0
				out = append(out, c)
			}
		}
		return out
	}
	return cmp.Or(listDifference("/claims", strip(e.claimed.Claims), strip(e.computed.Claims)),
		listDifference("/non_claims", e.claimed.NonClaims, e.computed.NonClaims),
		listDifference("/not_exposed", e.claimed.NotExposed, e.computed.NotExposed)), ""
}

func ttftClaim(e *evidence) (string, string) {
	claims := func(l *ledger.Ledger) []ledger.Claim {
		var out []ledger.Claim
		for _, c := range l.Claims {
			if c.ID == ledger.ClaimTTFT {
				c.Value = 0
				out = append(out, c)
			}
		}
		return out
	}
	claimed := claims(&e.claimed)
	results, inOnePiece := e.computed.Counts.Turns, e.computed.Counts.Buffered
	missing := results - e.facts.timed("ttft")
	if len(claimed) > 0 && (missing > 0 || inOnePiece*20 > results) {
		return fmt.Sprintf("a time to first token is claimed, though of %d results %d came in one piece and %d have none", results, inOnePiece, missing), ""
	}
	return listDifference("/claims (time to first token)", claimed, claims(&e.computed)), ""
}

func admission(e *evidence) (string, string) {
	return difference("/admission", e.claimed.Admission, e.computed.Admission), ""
}

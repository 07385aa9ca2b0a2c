package verify

import (
	"cmp"
	"fmt"
	"slices"

	"cotenant/internal/ledger"
	"cotenant/internal/stats"
)

// LedgerFile judges ledger.json alone, given its bytes, where the rest of its run isn't there. Nothing can be computed again: what is
// left is its form and whether its numbers fit each other, so that such a report establishes nothing. An error wraps
// ErrUnreadable.
func LedgerFile(data []byte, opts Options) (*Report, error) {
	claimed, err := ledger.ReadLedger(data)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrUnreadable, err)
	}
	e := &evidence{opts: opts, ledgerBytes: data, claimed: claimed, config: &ledger.Config{Contract: claimed.Contract, Contexts: claimed.Contexts}}
	r := &Report{SchemaVersion: 1, Operation: "verify", RunID: claimed.RunID, Contract: claimed.Contract, Contexts: claimed.Contexts, RulesVersion: RulesVersion,
		Grade: GradeIntegrity, Holds: true, Establishes: []ledger.Claim{}, States: []ledger.Claim{}, NotExposed: claimed.NotExposed}
	r.judge(e, IntegrityRules())
	if !r.Holds {
		r.refuse()
		return r, nil
	}
	r.States = claimed.Claims
	r.DoesNot = append([]ledger.Statement{{ID: "what_it_states", Reason: "rows, samples and events aren't here, so that nothing can be computed again; the folder of the run would establish it"}}, claimed.NonClaims...)
	return r, nil
}

// IntegrityRules lists what a lone ledger is held to.
func IntegrityRules() []Rule {
	return []Rule{
		{ID: "I-FORM-01", Title: "ledger.json is in canonical form", Explain: "One ledger has one sequence of bytes (RFC 8785, integers only).", check: canonicalLedger},
		{ID: "I-FILE-01", Title: "the files' root binds files[]", Explain: "files_root is the Merkle root over the canonical entries of files[].", check: filesRoot},
		{ID: "I-DEF-01", Title: "definitions are those of this schema", Explain: "The choices of schema_version are written out in the ledger, and are no others.",
			check: func(e *evidence) (string, string) {
				return difference("/definitions", e.claimed.Definitions, ledger.Definitions()), ""
			}},
		{ID: "I-RUNG-01", Title: "the number of contexts is a rung", Explain: "100, 1,000, 10,000, 100,000 or 1,000,000.", check: rung},
		{ID: "I-COUNT-01", Title: "counts add up", Explain: "submitted = completed + failed, results with and without usage are the turns, outcomes are the attempts.",
			check: claimedSums(countSums)},
		{ID: "I-TOK-01", Title: "tokens add up", Explain: "Results by deltas are those with usage; what was spent covers what results used.", check: claimedSums(tokenCrossSums)},
		{ID: "I-RATE-01", Title: "rates are counts over wall time", Explain: "Results, prompt and completion tokens over wall_us, and the warm rate.", check: claimedSums(rateCrossSums)},
		{ID: "I-LAT-01", Title: "distributions are in order", Explain: "Percentiles don't fall, bounds aren't below them, sums fit n, and n fits the counts.", check: claimedSums(timesInOrder)},
		{ID: "I-ORA-01", Title: "the oracle's score adds up", Explain: "Checked = passed + failed, over all tasks too; rate and interval are those of the counts.", check: claimedSums(oracleCrossSums)},
		{ID: "I-PEAK-01", Title: "the peak lies within workers", Explain: "No more in flight than workers, and the client's counter no higher.", check: claimedSums(peakWithin)},
		{ID: "I-ADM-01", Title: "admission fits the numbers", Explain: "The rung, and each reason against admission that the ledger's own numbers decide.", check: claimedSums(admissionFits)},
		{ID: "I-LOAD-01", Title: "what a load plan came to adds up", Explain: "Stages and tenants add up to the run, their distributions are in order, verdicts and the answer fit them.", check: claimedSums(loadCrossSums)},
		{ID: "I-CLAIM-01", Title: "a claim's value stands where it points", Explain: "Each claim points into the ledger; the value there is the claim's.", check: claimValues},
		{ID: "I-CLAIM-02", Title: "claims and non-claims follow from the numbers", Explain: "They are computed again from the ledger's other members.",
			check: func(e *evidence) (string, string) {
				claims, non := ledger.Restate(&e.claimed)
				zero := func(list []ledger.Claim) []ledger.Claim { // values are I-CLAIM-01's
					list = slices.Clone(list)
					for i := range list {
						list[i].Value = 0
					}
					return list
				}
				return cmp.Or(listDifference("/claims", zero(e.claimed.Claims), zero(claims)), listDifference("/non_claims", e.claimed.NonClaims, non)), ""
			}},
		{ID: "I-SIGN-01", Title: "no signature is asked for", Explain: "A signature is over all files of a run; with a key, verify needs the folder.",
			check: func(e *evidence) (string, string) {
				if len(e.opts.Keys) > 0 {
					return "a key was given, but a lone ledger has no signature: name the run's folder", ""
				}
				return "", ""
			}},
	}
}

// claimedSums makes a check of one that reads the ledger alone.
func claimedSums(check func(l *ledger.Ledger) string) func(*evidence) (string, string) {
	return func(e *evidence) (string, string) { return check(&e.claimed), "" }
}

func countSums(l *ledger.Ledger) string {
	c := &l.Counts
	outcomes := int64(0)
	for _, o := range c.Outcomes {
		outcomes += o.Count
	}
	return mismatch("/counts/submitted", c.Submitted, c.Completed+c.Failed, "/counts/turns", c.Turns, c.UsageResponses+c.UsageMissing,
		"/counts/turns cover completed contexts", c.Turns >= c.Completed*l.TurnsPerContext && c.Turns <= c.Completed*l.TurnsPerContext+c.Failed*(l.TurnsPerContext-1), true,
		"/counts/attempts", c.Attempts, outcomes, "/counts/submitted within contexts", c.Submitted <= l.Contexts, true, "/counts/retries within attempts", c.Retries <= c.Attempts, true)
}

func tokenCrossSums(l *ledger.Ledger) string {
	t := &l.Tokens
	return mismatch("/tokens rows", t.RowsEqual+t.RowsEOSCounted+t.RowsFewerDeltas+t.RowsMoreDeltas, l.Counts.UsageResponses,
		"/tokens/spent covers results", t.Spent >= t.Prompt+t.Completion, true, "/tokens/cached is there where a response says it", t.Cached.OK, t.CachedResponses > 0,
		"/tokens/cached_responses within turns", t.CachedResponses <= l.Counts.Turns, true)
}

func rateCrossSums(l *ledger.Ledger) string {
	r := &l.Rates
	own := mismatch("/rates/results_per_1e6s", r.ResultsPer1e6s, per1e6s(l.Counts.UsageResponses, l.WallUS), "/rates/prompt_tokens_per_1e6s", r.PromptPer1e6s, per1e6s(l.Tokens.Prompt, l.WallUS),
		"/rates/completion_tokens_per_1e6s", r.CompletionPer1e6s, per1e6s(l.Tokens.Completion, l.WallUS))
	if !r.WarmResults.OK {
		return own
	}
	return cmp.Or(own, mismatch("/rates/warm_results", r.WarmResults.V, l.Counts.UsageResponses-l.Workers, "/rates/warm_results_per_1e6s", r.WarmResultsPer1e6s, per1e6s(r.WarmResults.V, r.WarmWallUS.V)))
}

// distributionsOf lists a ledger's distributions by name, with how many values each must have: -1 where the counts don't say.
func distributionsOf(l *ledger.Ledger) []struct {
	name string
	d    *ledger.Distribution
	n    int64
} {
	t, c := &l.Times, &l.Counts
	queued := c.Submitted
	if l.TurnsPerContext > 1 {
		queued = -1
	}
	return []struct {
		name string
		d    *ledger.Distribution
		n    int64
	}{{"ttft", &t.TTFT, c.Turns - c.TTFTMissing}, {"first_content", &t.FirstContent, -1}, {"latency", &t.Latency, -1}, {"last_token", &t.LastToken, -1}, {"latency_from_picked", &t.LatencyFull, -1},
		{"inter_token", &t.InterToken, -1}, {"latency_adjusted", &t.Adjusted, t.Latency.N + c.Failed}, {"ttft_adjusted", &t.TTFTAdjusted, c.Turns + c.Failed},
		{"latency_from_schedule", &t.LatencySchedule, -1}, {"ttft_from_schedule", &t.TTFTSchedule, -1}, {"queue_age", &t.QueueAge, queued}, {"send_lag", &t.SendLag, -1}, {"slot_lag", &t.SlotLag, -1}}
}

func timesInOrder(l *ledger.Ledger) string {
	for _, x := range distributionsOf(l) {
		at, d := "/times/"+x.name, x.d
		if x.n >= 0 && d.N != x.n {
			return mismatch(at+"/n", d.N, x.n)
		}
		if why := inItself(at, d); why != "" {
			return why
		}
	}
	return ""
}

// inItself says what can't be true of a distribution by itself, empty if all can.
func inItself(at string, d *ledger.Distribution) string {
	last := d.MinUS
	for _, p := range percentiles {
		q := p.of(d)
		switch {
		case q.ValueUS.OK && last.OK && q.ValueUS.V < last.V:
			return fmt.Sprintf("%s/%s is %d, below %d before it", at, p.name, q.ValueUS.V, last.V)
		case q.ValueUS.OK && q.LowerUS.OK && q.LowerUS.V > q.ValueUS.V:
			return fmt.Sprintf("%s/%s: the lower bound %d lies above the value %d", at, p.name, q.LowerUS.V, q.ValueUS.V)
		case q.ValueUS.OK && q.UpperUS.OK && q.UpperUS.V < q.ValueUS.V:
			return fmt.Sprintf("%s/%s: the upper bound %d lies below the value %d", at, p.name, q.UpperUS.V, q.ValueUS.V)
		}
		last = q.ValueUS
	}
	if d.MaxUS.OK && last.OK && d.MaxUS.V < last.V {
		return fmt.Sprintf("%s/max_us is %d, below a percentile, %d", at, d.MaxUS.V, last.V)
	}
	if d.N > 0 && d.SumUS.OK && d.MinUS.OK && d.MaxUS.OK {
		if mean := d.SumUS.V / d.N; mean < d.MinUS.V-1 || mean > d.MaxUS.V {
			return fmt.Sprintf("%s: a sum of %d over %d values gives a mean outside %d to %d", at, d.SumUS.V, d.N, d.MinUS.V, d.MaxUS.V)
		}
	}
	return ""
}

func oracleCrossSums(l *ledger.Ledger) string {
	o := &l.Oracle
	checked, passed := int64(0), int64(0)
	for _, t := range o.ByTask {
		checked, passed = checked+t.Checked, passed+t.Passed
	}
	own := mismatch("/oracle/checked", o.Checked, o.Passed+o.Failed, "/oracle/by_task checked", checked, o.Checked, "/oracle/by_task passed", passed, o.Passed, "/oracle with none", o.Checked+o.None, l.Counts.Turns)
	if own != "" || o.Checked < 1 || o.Passed < 0 || o.Passed > o.Checked || o.Checked > ledger.MaxContexts {
		return own
	}
	low, high := stats.Wilson(o.Passed, o.Checked)
	return mismatch("/oracle/pass_rate_ppm", o.PassRatePPM, ledger.Some(o.Passed*1_000_000/o.Checked), "/oracle/wilson_low_ppm", o.WilsonLowPPM, ledger.Some(low), "/oracle/wilson_high_ppm", o.WilsonHighPPM, ledger.Some(high))
}

func peakWithin(l *ledger.Ledger) string {
	p := &l.Peaks
	if p.InFlight < 0 || p.InFlight > l.Workers || p.InFlightObserved.Or(0) > p.InFlight {
		return fmt.Sprintf("%d were in flight (counted %s) on %d workers", p.InFlight, opt(p.InFlightObserved), l.Workers)
	}
	return ""
}

// admissionFits compares the reasons that need no rows.
func admissionFits(l *ledger.Ledger) string {
	a, c, m := &l.Admission, &l.Counts, &l.Samples
	if isRung := ledger.IsRungOf(l.Contract, l.Contexts); a.Rung.OK != isRung || isRung && a.Rung.V != l.Contexts {
		return fmt.Sprintf("/admission/rung is %s at %d contexts", opt(a.Rung), l.Contexts)
	}
	if a.Admitted != (len(a.Why) == 0) {
		return fmt.Sprintf("/admission/admitted is %t with %d reasons against it", a.Admitted, len(a.Why))
	}
	for _, code := range a.Why {
		if !slices.Contains(ledger.AdmissionCodes(), code) {
			return fmt.Sprintf("/admission/why has %q, which isn't in the list", code)
		}
	}
	for code, stands := range map[string]bool{
		ledger.WhyNotARung: !a.Rung.OK, ledger.WhyNotFinished: l.Status != ledger.StatusFinished, ledger.WhyFailed: c.Failed > 0, ledger.WhyUsage: c.UsageMissing > 0,
		ledger.WhyIncomplete: c.Submitted != l.Contexts || c.Duplicates > 0 || c.Strays > 0, ledger.WhyServerChange: m.ServerRestarts > 0,
		ledger.WhySamples: m.Count < 2 || !m.Covered || m.MaxGapUS.Or(0) > 3*m.PeriodUS && m.MaxGapUS.Or(0) > 3_000_000,
	} {
		if slices.Contains(a.Why, code) != stands {
			return fmt.Sprintf("/admission/why has %s: %t; the numbers say %t", code, !stands, stands)
		}
	}
	return ""
}

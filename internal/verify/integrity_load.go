package verify

import (
	"cmp"
	"fmt"

	"cotenant/internal/ledger"
)

// loadCrossSums holds a load plan's numbers against each other and the run's.
func loadCrossSums(l *ledger.Ledger) string {
	d := l.Load
	if d == nil {
		return ""
	}
	if n := int64(len(d.Stages)); n != d.Plan.Stages() {
		return mismatch("/load/stages", n, d.Plan.Stages())
	}
	var contexts, results, failed, out int64
	for i := range d.Stages {
		s, at := &d.Stages[i], fmt.Sprintf("/load/stages/%d", i)
		contexts, results, failed, out = contexts+s.Contexts, results+s.Results, failed+s.Failed, out+s.WorkersOut
		if why := cmp.Or(groupFits(at, s.Contexts, s.Results, s.Failed, &s.TTFT, &s.Latency),
			mismatch(at+"/results_per_1e6s", s.ResultsPer1e6s, per1e6s(s.Results, s.WallUS))); why != "" {
			return why
		}
	}
	why := mismatch("/load/stages contexts", contexts, l.Counts.Submitted, "/load/stages results", results, l.Counts.Turns, "/load/stages failed", failed, l.Counts.Failed,
		"/load/workers_out", d.WorkersOut, out, "/load/tenants", len(d.Tenants), len(d.Plan.Tenants))
	return cmp.Or(why, inItself("/load/start_lag", &d.StartLag), verdictsFit(d), answerFits(d), tenantsFit(d))
}

// groupFits holds the numbers of a stage or tenant against each other.
func groupFits(at string, contexts, results, failed int64, ttft, latency *ledger.Distribution) string {
	return cmp.Or(mismatch(at+"/contexts", contexts, results+failed, at+"/ttft/n", ttft.N, contexts, at+"/latency/n", latency.N, contexts),
		inItself(at+"/ttft", ttft), inItself(at+"/latency", latency))
}

// verdictsFit holds what stages say of objectives against their distributions.
func verdictsFit(l *ledger.Load) string {
	for i := range l.Stages {
		s := &l.Stages[i]
		kept, broken := len(l.Plan.Objectives) > 0, false
		for _, o := range l.Plan.Objectives {
			d := &s.Latency
			if o.Metric == ledger.MetricTTFT {
				d = &s.TTFT
			}
			for _, p := range percentiles {
				if q := p.of(d); p.milli == o.Percentile {
					kept = kept && q.UpperUS.OK && q.UpperUS.V <= o.LimitUS
					broken = broken || q.LowerUS.OK && q.LowerUS.V > o.LimitUS || !q.LowerUS.OK && !q.ValueUS.OK && d.N > 0
				}
			}
		}
		if s.Verdict == ledger.VerdictKept && !kept || s.Verdict == ledger.VerdictBroken && !broken || (s.Verdict == "") != (len(l.Plan.Objectives) == 0) {
			return fmt.Sprintf("/load/stages/%d: the verdict is %q, its distributions say kept %t, broken %t", i, s.Verdict, kept, broken)
		}
	}
	return ""
}

// answerFits: the answer's level is that of stages that were run.
func answerFits(l *ledger.Load) string {
	a := l.Answer
	if a == nil {
		if len(l.Plan.Objectives) > 0 {
			return "/load/answer is null, and there are objectives"
		}
		return ""
	}
	levels, at := map[int64]bool{}, int64(0)
	for i := range l.Stages {
		if s := &l.Stages[i]; s.Level.OK && s.Contexts > 0 {
			levels[s.Level.V] = true
			if s.Level == a.Level {
				at += s.Contexts
			}
		}
	}
	if a.BrokenAt.OK && (!levels[a.BrokenAt.V] || a.BrokenAt.V <= a.Level.Or(0)) {
		return fmt.Sprintf("/load/answer/broken_at %d is no level above %s that was tried", a.BrokenAt.V, opt(a.Level))
	}
	return mismatch("/load/answer/levels", a.Levels, int64(len(levels)), "/load/answer/results", a.Results, at, "/load/answer/level was tried", !a.Level.OK || levels[a.Level.V], true)
}

func tenantsFit(l *ledger.Load) string {
	total, weights := int64(0), int64(0)
	for i := range l.Tenants {
		total, weights = total+l.Tenants[i].Service, weights+l.Plan.Tenants[i].Weight
	}
	for i := range l.Tenants {
		t, p, at := &l.Tenants[i], &l.Plan.Tenants[i], fmt.Sprintf("/load/tenants/%d", i)
		share := ledger.Opt{}
		if l.ServiceUS.OK && total > 0 {
			share = ledger.Some(int64(float64(t.Service) / float64(total) * 1e6))
		}
		if d := t.SharePPM.V - share.V; t.SharePPM.OK != share.OK || d < -1 || d > 1 {
			return fmt.Sprintf("%s/share_ppm is %s; %d of %d tokens are %s", at, opt(t.SharePPM), t.Service, total, opt(share))
		}
		if why := cmp.Or(mismatch(at+"/name", t.Name, p.Name, at+"/claim_ppm", t.ClaimPPM, p.Weight*1_000_000/max(1, weights), at+"/service within tokens", t.Service <= t.Tokens, true),
			groupFits(at, t.Contexts, t.Results, t.Failed, &t.TTFT, &t.Latency), inItself(at+"/wait", &t.Wait)); why != "" {
			return why
		}
	}
	if l.JainPPM.OK && (l.JainPPM.V > 1_000_000 || l.JainPPM.V < 1_000_000/max(1, int64(len(l.Tenants)))-1) {
		return fmt.Sprintf("/load/jain_ppm is %d for %d tenants", l.JainPPM.V, len(l.Tenants))
	}
	return ""
}

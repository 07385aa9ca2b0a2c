package ledger

import "fmt"

// claimLoad claims what a load plan's stages, tenants and arms came to.
func claimLoad(l *Ledger, claim func(id, statement string, v Opt, unit, evidence, bound string)) {
	d := l.Load
	if d.Plan.Open() {
		claim("latency_from_schedule_p50", "median time from when the schedule wanted a context sent to its end", l.Times.LatencySchedule.P50.ValueUS, "us",
			"/times/latency_from_schedule/p50/value_us", "failures counted as infinite; "+scheduleBound(d))
		claim("latency_from_schedule_p95_upper", "95th percentile of the time from when the schedule wanted a context sent to its end, 99 % upper bound",
			boundOf(l.Times.LatencySchedule.P95), "us", "/times/latency_from_schedule/p95/upper_us", "failures counted as infinite; if contexts are independent draws; "+scheduleBound(d))
	}
	if a := d.Answer; a != nil {
		unit := "arrivals per 10^6 s"
		if !d.Plan.Open() {
			unit = "workers"
		}
		claim("objective_level", "highest tried level of load at which all objectives were kept", a.Level, unit, "/load/answer/level",
			fmt.Sprintf("%s; by the 99 %% upper bound of %d contexts at that level, one of %d levels tried, so that some level is wrong with at most %d %%; if contexts are independent draws",
				objectives(&d.Plan), a.Results, a.Levels, a.Levels*int64(len(d.Plan.Objectives))))
	}
	if d.JainPPM.OK {
		claim("jain_index", "Jain's index of service over weight among tenants", d.JainPPM, "ppm", "/load/jain_ppm",
			fmt.Sprintf("tokens by usage of %d tenants, while all had contexts left: %d us of this run", len(d.Tenants), d.ServiceUS.V))
	}
	if noBenefit(l) == "" {
		q := d.Paired.TTFTDiff.P50
		claim("prefix_cache_benefit", "median time to first token that a base of its own cost beyond the shared one, of pairs that ask the same", q.ValueUS, "us",
			"/load/paired/ttft_difference/p50/value_us", fmt.Sprintf("98 %% interval %d to %d us by the sign test, %d pairs; for this server, base and load", q.LowerUS.V, q.UpperUS.Or(0), d.Paired.TTFTDiff.N))
	}
}

func scheduleBound(d *Load) string {
	return fmt.Sprintf("%d arrivals found no worker free", d.WorkersOut)
}

func objectives(p *LoadPlan) string {
	out := ""
	for i, o := range p.Objectives {
		if i > 0 {
			out += ", "
		}
		out += o.String()
	}
	return out
}

// noBenefit says why a run shows no benefit of a prefix cache, empty if it shows one.
func noBenefit(l *Ledger) string {
	if l.Load == nil || l.Load.Paired == nil {
		return "needs a second arm with unique prompts"
	}
	d := &l.Load.Paired.TTFTDiff
	switch q := d.P50; {
	case !TTFTClaimable(&l.Counts, &l.Times.TTFT):
		return "answers came in one piece or without a first token's time"
	case !q.LowerUS.OK || !q.UpperUS.OK:
		return fmt.Sprintf("%d pairs are too few for an interval of the median difference", d.N)
	case q.LowerUS.V <= 0:
		return fmt.Sprintf("the median difference of %d pairs lies between %d and %d us: no benefit is established", d.N, q.LowerUS.V, q.UpperUS.V)
	}
	return ""
}

// noFairness says why a run says nothing of fairness, empty if it does.
func noFairness(l *Ledger) string {
	switch {
	case l.Load == nil || len(l.Load.Tenants) == 0:
		return "all contexts belong to one tenant"
	case !l.Load.JainPPM.OK:
		return "at no time had all tenants contexts left and results, in one segment"
	}
	return ""
}

func loadNonClaims(d *Load, add func(id, format string, args ...any)) {
	if d.WorkersOut > 0 {
		add("open_loop", "%d arrivals found no worker free and waited for one: from there on the load was a closed loop of the workers, and what was sent later counts from the schedule alone", d.WorkersOut)
	}
	if d.Answer != nil && !d.Answer.Level.OK {
		add("objective_level", "at none of %d levels do the samples establish that the objectives are kept", d.Answer.Levels)
	}
	if len(d.Tenants) > 0 {
		add("tenants_known", "the server was told of tenants by the request's member user, and may not look at it")
	}
}

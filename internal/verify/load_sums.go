package verify

import (
	"cmp"
	"fmt"
	"math/big"
	"slices"

	"cotenant/internal/ledger"
	"cotenant/internal/loadgen"
)

func loadSums(e *evidence) (string, string) {
	a, c := e.claimed.Load, e.computed.Load
	if (a == nil) != (c == nil) {
		return fmt.Sprintf("load is there: %t; the config has a plan: %t", a != nil, e.config.Load != nil), ""
	}
	if c == nil {
		return "", noPlan
	}
	own := e.facts.load.sums(c)
	return cmp.Or(own, difference("/load", *a, *c)), ""
}

// sums takes the plan's numbers again.
func (f *loadFacts) sums(l *ledger.Load) string {
	f.sortByPicked()
	type group struct {
		results, failed int64
		ttft, latency   []int64
		noToken         int64
	}
	groups := make([]group, f.plan.Stages())
	ends, done := map[lane]int64{}, map[int64]bool{}
	for i := range f.rows {
		if f.rows[i].ok {
			done[f.rows[i].Context] = true
		}
	}
	var lags []int64
	out := int64(0)
	for i := range f.rows {
		r := &f.rows[i]
		g, k := &groups[f.stage(r.Context)], lane{r.Segment, r.Worker}
		end, before := ends[k]
		ends[k] = r.EndUS
		if r.first {
			if !done[r.Context] {
				g.failed++
			}
			if f.plan.Open() {
				lags = append(lags, r.PickedUS-r.QueuedUS)
				if before && end > r.QueuedUS {
					out++
				}
			}
		}
		if !r.ok {
			continue
		}
		from := r.SentUS.V
		if f.plan.Open() {
			from = r.QueuedUS
		}
		g.results++
		g.latency = append(g.latency, r.EndUS-from)
		if r.FirstTokenUS.OK {
			g.ttft = append(g.ttft, r.FirstTokenUS.V-from)
		} else {
			g.noToken++
		}
	}
	slices.Sort(lags)
	own := cmp.Or(mismatch("/load/workers_out", l.WorkersOut, out), ownDistribution("/load/start_lag", &l.StartLag, lags, 0))
	for i := range groups {
		g, at := &groups[i], fmt.Sprintf("/load/stages/%d", i)
		slices.Sort(g.ttft)
		slices.Sort(g.latency)
		own = cmp.Or(own, mismatch(at+"/results", l.Stages[i].Results, g.results, at+"/failed", l.Stages[i].Failed, g.failed),
			ownDistribution(at+"/latency", &l.Stages[i].Latency, g.latency, g.failed), ownDistribution(at+"/ttft", &l.Stages[i].TTFT, g.ttft, g.failed+g.noToken))
	}
	return cmp.Or(own, f.tenantSums(l), f.pairSums(l), verdictsFit(l))
}

// sortByPicked brings rows of one worker into the order in which it made them.
func (f *loadFacts) sortByPicked() {
	slices.SortStableFunc(f.rows, func(a, b loadRow) int {
		return cmp.Or(cmp.Compare(a.Segment, b.Segment), cmp.Compare(a.PickedUS, b.PickedUS))
	})
}

// tenantSums takes service and fairness again.
func (f *loadFacts) tenantSums(l *ledger.Load) string {
	if len(f.plan.Tenants) == 0 || !l.ServiceUS.OK {
		return ""
	}
	pattern, n := f.plan.Pattern(), len(f.plan.Tenants)
	sent, picked := make([]ledger.Opt, n), make([]int64, n)
	of := func(r *loadRow) int { return tenantOf(pattern, r.Context) }
	for i := range f.rows {
		r := &f.rows[i]
		if t := of(r); r.first {
			picked[t] = max(picked[t], r.PickedUS)
			if r.SentUS.OK && (!sent[t].OK || r.SentUS.V < sent[t].V) {
				sent[t] = r.SentUS
			}
		}
	}
	from, to := int64(0), slices.Min(picked)
	for _, s := range sent {
		from = max(from, s.V)
	}
	service := make([]int64, n)
	for i := range f.rows {
		if r := &f.rows[i]; r.ok && r.EndUS > from && r.EndUS <= to {
			service[of(r)] += r.tokens
		}
	}
	own := mismatch("/load/service_us", l.ServiceUS.V, to-from)
	// Jain's index over whole numbers: service times the other tenants' weights.
	sum, squares := new(big.Int), new(big.Int)
	for i := range service {
		own = cmp.Or(own, mismatch(fmt.Sprintf("/load/tenants/%d/service", i), l.Tenants[i].Service, service[i]))
		x := big.NewInt(service[i])
		for j, t := range f.plan.Tenants {
			if j != i {
				x.Mul(x, big.NewInt(t.Weight))
			}
		}
		sum.Add(sum, x)
		squares.Add(squares, x.Mul(x, x))
	}
	if !l.JainPPM.OK || squares.Sign() == 0 {
		return own
	}
	sum.Mul(sum, sum).Mul(sum, big.NewInt(1_000_000))
	return cmp.Or(own, mismatch("/load/jain_ppm", l.JainPPM.V, sum.Quo(sum, squares.Mul(squares, big.NewInt(int64(n)))).Int64()))
}

// pairSums takes the differences of pairs again.
func (f *loadFacts) pairSums(l *ledger.Load) string {
	if !f.plan.Paired {
		return ""
	}
	results := map[int64]*loadRow{}
	for i := range f.rows {
		if f.rows[i].ok {
			results[f.rows[i].Context] = &f.rows[i]
		}
	}
	var ttft, latency []int64
	for c := int64(0); c+1 < f.cfg.Contexts; c += 2 {
		a, b := results[c], results[c+1]
		if a == nil || b == nil {
			continue
		}
		sign := int64(1) // b is the unique one
		if loadgen.UniqueArm(f.cfg.Workload.Seed, c) {
			sign = -1
		}
		latency = append(latency, sign*((b.EndUS-b.SentUS.V)-(a.EndUS-a.SentUS.V)))
		if a.FirstTokenUS.OK && b.FirstTokenUS.OK {
			ttft = append(ttft, sign*((b.FirstTokenUS.V-b.SentUS.V)-(a.FirstTokenUS.V-a.SentUS.V)))
		}
	}
	slices.Sort(ttft)
	slices.Sort(latency)
	return cmp.Or(mismatch("/load/paired/pairs", l.Paired.Pairs, int64(len(latency))), ownDistribution("/load/paired/ttft_difference", &l.Paired.TTFTDiff, ttft, 0),
		ownDistribution("/load/paired/latency_difference", &l.Paired.LatencyDiff, latency, 0))
}

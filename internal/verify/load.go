package verify

import (
	"cmp"
	"fmt"
	"math/big"
	"slices"

	"cotenant/internal/ledger"
	"cotenant/internal/loadgen"
)

// loadFacts is what a load plan's rules need of the rows. It holds some of each row: runs with a plan are read for their times.
type loadFacts struct {
	cfg    *ledger.Config
	plan   *ledger.LoadPlan
	events []ledger.Event // stages
	rows   []ledger.Row   // attempts of planned turns up to their result, without their texts
}

func newLoadFacts(cfg *ledger.Config) *loadFacts { return &loadFacts{cfg: cfg, plan: cfg.Load} }

func (f *loadFacts) event(e *ledger.Event) {
	if e.Kind == ledger.EventStage {
		f.events = append(f.events, *e)
	}
}

func (f *loadFacts) row(r *ledger.Row) {
	f.rows = append(f.rows, ledger.Row{Context: r.Context, Attempt: r.Attempt, Worker: r.Worker, Segment: r.Segment, QueuedUS: r.QueuedUS, PickedUS: r.PickedUS,
		SentUS: r.SentUS, FirstTokenUS: r.FirstTokenUS, EndUS: r.EndUS, Outcome: r.Outcome, Buffered: r.Buffered, PromptTokens: r.PromptTokens,
		CompletionTokens: r.CompletionTokens, CachedTokens: r.CachedTokens, PromptCommit: r.PromptCommit})
}

// stage is a context's.
func (f *loadFacts) stage(context int64) int64 { return f.plan.Stage(context, f.cfg.Contexts) }

// begun finds the event that began a stage in a segment; stage -1: the segment's first.
func (f *loadFacts) begun(segment, stage int64) (ledger.Event, bool) {
	for _, e := range f.events {
		if e.Segment == segment && (stage < 0 || f.stage(e.Context.Or(0)) == stage) {
			return e, true
		}
	}
	return ledger.Event{}, false
}

const noPlan = "the run has no load plan"

// stageEvents checks what the other rules read them by.
func (f *loadFacts) stageEvents() string {
	for _, e := range f.events {
		c, ok := e.Context.Get()
		switch {
		case !ok || c >= f.cfg.Contexts:
			return fmt.Sprintf("a stage event of segment %d names context %s of %d", e.Segment, opt(e.Context), f.cfg.Contexts)
		case e.Value.OK == (f.plan.Arrival == ledger.ArrivalTrace):
			return fmt.Sprintf("stage %d has level %s with arrivals by %s", f.stage(c), opt(e.Value), f.plan.Arrival)
		case f.plan.Open() && e.Value.OK && (e.Value.V < loadgen.MinRate || e.Value.V > loadgen.MaxRate):
			return fmt.Sprintf("stage %d has a rate of %d per 10^6 s", f.stage(c), e.Value.V)
		}
	}
	return ""
}

func arrivals(e *evidence) (string, string) {
	f := e.facts.load
	if f == nil {
		return "", noPlan
	}
	if !f.plan.Open() {
		return "", "in a closed loop contexts have no time of their own"
	}
	schedule, why := e.schedule()
	if why == "" {
		why = f.stageEvents()
	}
	if why != "" {
		return why, ""
	}
	passed := f.passed(schedule)
	var bad violation
	for i := range f.rows {
		r := &f.rows[i]
		stage := int64(-1)
		if f.plan.Search != nil {
			stage = f.stage(r.Context)
		}
		at, ok := f.begun(r.Segment, stage)
		if !ok || at.Context.V > r.Context {
			bad.add("context %d was sent in segment %d before a stage began with it", r.Context, r.Segment)
			continue
		}
		gone := passed[r.Context+1] - passed[at.Context.V]
		if want := at.TUS + gone/loadgen.PicosPerMicro; r.QueuedUS != want {
			bad.add("context %d was due at %d us by the plan, its row says %d us", r.Context, want, r.QueuedUS)
		}
	}
	if bad.count > 0 {
		return bad.String(), ""
	}
	return "", ""
}

// passed sums the plan's gaps: the n-th entry is the sum of those of the first n contexts, in ps.
func (f *loadFacts) passed(schedule []int64) []int64 {
	levels := slices.Clone(f.plan.Levels)
	if f.plan.Search != nil {
		levels = make([]int64, f.plan.Stages())
		for i := range levels {
			levels[i] = f.plan.Search.Low
		}
		for _, e := range f.events {
			levels[f.stage(e.Context.V)] = e.Value.V
		}
	}
	out := make([]int64, f.cfg.Contexts+1)
	for c := range f.cfg.Contexts {
		level := int64(0)
		if len(levels) > 0 {
			level = levels[f.stage(c)]
		}
		out[c+1] = out[c] + f.plan.Gap(c, level, schedule)
	}
	return out
}

// schedule reads a trace's times, nil where there is no trace.
func (e *evidence) schedule() (out []int64, why string) {
	p := e.config.Load
	if p.Arrival != ledger.ArrivalTrace {
		return nil, ""
	}
	lines, sum, err := e.folder.Schedule()
	if err != nil {
		return nil, err.Error()
	}
	if sum != p.ScheduleSHA256 || int64(len(lines)) != e.config.Contexts {
		return nil, fmt.Sprintf("%s has %d lines and SHA-256 %s; the config registered %d contexts and %s", ledger.ScheduleFile, len(lines), sum, e.config.Contexts, p.ScheduleSHA256)
	}
	last := int64(0)
	for i, l := range lines {
		if l.AtUS < last || l.AtUS > loadgen.MaxTraceUS {
			return nil, fmt.Sprintf("%s, line %d: %d us after %d us", ledger.ScheduleFile, i+1, l.AtUS, last)
		}
		last = l.AtUS
		out = append(out, l.AtUS)
	}
	return out, ""
}

func stages(e *evidence) (string, string) {
	f := e.facts.load
	if f == nil {
		return "", noPlan
	}
	if why := f.stageEvents(); why != "" {
		return why, ""
	}
	var bad violation
	lastEnd := map[[2]int64]int64{} // by segment and stage
	for i := range f.rows {
		r := &f.rows[i]
		k := [2]int64{r.Segment, f.stage(r.Context)}
		lastEnd[k] = max(lastEnd[k], r.EndUS)
		at, ok := f.begun(r.Segment, k[1])
		switch {
		case !ok || r.PickedUS < at.TUS:
			bad.add("context %d of stage %d was picked before that stage began", r.Context, k[1])
		case !f.plan.Open() && r.Worker >= at.Value.V:
			bad.add("context %d of stage %d ran on worker %d; the stage has %d", r.Context, k[1], r.Worker, at.Value.V)
		}
	}
	for _, at := range f.events {
		stage := f.stage(at.Context.V)
		if len(f.plan.Levels) > 0 && at.Value.V != f.plan.Levels[stage] {
			bad.add("stage %d began with level %d, the plan has %d", stage, at.Value.V, f.plan.Levels[stage])
		}
		if f.plan.Search != nil && stage > 0 && at.TUS < lastEnd[[2]int64{at.Segment, stage - 1}] {
			bad.add("step %d of the search began at %d us, before the one before it had ended", stage, at.TUS)
		}
	}
	if f.plan.Search != nil && bad.count == 0 {
		f.searched(&bad)
	}
	if bad.count > 0 {
		return bad.String(), ""
	}
	return "", ""
}

// searched follows a search through the rows.
func (f *loadFacts) searched(bad *violation) {
	search := ledger.NewSearch(f.plan)
	per := f.cfg.Contexts / f.plan.Stages()
	byStage := make([][]int, f.plan.Stages())
	for i := range f.rows {
		stage := f.stage(f.rows[i].Context)
		byStage[stage] = append(byStage[stage], i)
	}
	for stage, rows := range byStage {
		want, n := search.Next(), int64(0)
		for _, e := range f.events {
			if f.stage(e.Context.V) == int64(stage) {
				if n++; e.Value.V != want {
					bad.add("step %d of the search was of level %d; what came before it gives %d", stage, e.Value.V, want)
				}
			}
		}
		if n == 0 {
			return
		}
		done := map[int64]bool{}
		for _, i := range rows {
			if r := &f.rows[i]; r.Outcome == ledger.OK {
				done[r.Context] = true
				search.Result(r)
			}
		}
		for c := int64(stage) * per; c < int64(stage+1)*per; c++ {
			if !done[c] {
				search.Failed()
			}
		}
		search.End(want)
	}
}

func tenantLanes(e *evidence) (string, string) {
	f := e.facts.load
	if f == nil || len(f.plan.Tenants) == 0 || f.plan.Open() {
		return "", "workers belong to tenants in a closed loop with tenants"
	}
	pattern := f.plan.Pattern()
	n := int64(len(pattern))
	var bad violation
	for i := range f.rows {
		r := &f.rows[i]
		if a, b := tenantOf(pattern, r.Context), pattern[r.Worker%n]; a != b {
			bad.add("context %d of tenant %s ran on worker %d, which is of tenant %s", r.Context, f.plan.Tenants[a].Name, r.Worker, f.plan.Tenants[b].Name)
		}
	}
	if bad.count > 0 {
		return bad.String(), ""
	}
	return "", ""
}

// tenantOf is ledger's rule written once more.
func tenantOf(pattern []int, context int64) int {
	turned := context / int64(4*len(pattern))
	return pattern[int((context+turned)%int64(len(pattern)))]
}

func pairsDiffer(e *evidence) (string, string) {
	f := e.facts.load
	if f == nil || !f.plan.Paired {
		return "", "contexts aren't pairs"
	}
	var bad violation
	sent := map[string]int64{}
	for i := range f.rows {
		r := &f.rows[i]
		if !loadgen.UniqueArm(f.cfg.Workload.Seed, r.Context) {
			continue
		}
		if other, ok := sent[r.PromptCommit]; ok && other != r.Context {
			bad.add("context %d, which has a base of its own, sent the prompt of context %d", r.Context, other)
		}
		sent[r.PromptCommit] = r.Context
	}
	for i := range f.rows {
		r := &f.rows[i]
		if other, ok := sent[r.PromptCommit]; ok && other != r.Context {
			bad.add("context %d sent the prompt of context %d, which has a base of its own", r.Context, other)
		}
	}
	if bad.count > 0 {
		return bad.String(), ""
	}
	return "", ""
}

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
		results, failed, out int64
		ttft, latency        []int64
		noToken              int64
	}
	groups := make([]group, f.plan.Stages())
	ends, done := map[lane]int64{}, map[int64]bool{}
	for i := range f.rows {
		if f.rows[i].Outcome == ledger.OK {
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
		if r.Attempt == 1 {
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
		if r.Outcome != ledger.OK {
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
	return cmp.Or(own, f.tenantSums(l), f.pairSums(l), f.verdicts(l))
}

// verdicts holds what stages say of objectives against their distributions.
func (f *loadFacts) verdicts(l *ledger.Load) string {
	for i := range l.Stages {
		s := &l.Stages[i]
		kept, broken := len(f.plan.Objectives) > 0, false
		for _, o := range f.plan.Objectives {
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
		if s.Verdict == ledger.VerdictKept && !kept || s.Verdict == ledger.VerdictBroken && !broken {
			return fmt.Sprintf("/load/stages/%d: the verdict is %s, its distributions say kept %t, broken %t", i, s.Verdict, kept, broken)
		}
	}
	return ""
}

// sortByPicked brings rows of one worker into the order in which it made them.
func (f *loadFacts) sortByPicked() {
	slices.SortStableFunc(f.rows, func(a, b ledger.Row) int {
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
	of := func(r *ledger.Row) int { return tenantOf(pattern, r.Context) }
	for i := range f.rows {
		r := &f.rows[i]
		if t := of(r); r.Attempt == 1 {
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
		if r := &f.rows[i]; r.Outcome == ledger.OK && r.EndUS > from && r.EndUS <= to {
			service[of(r)] += r.PromptTokens.Or(0) + r.CompletionTokens.Or(0)
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
	results := map[int64]*ledger.Row{}
	for i := range f.rows {
		if f.rows[i].Outcome == ledger.OK {
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

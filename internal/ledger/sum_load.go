package ledger

import (
	"math/big"
)

// loadSum folds rows into what became of a load plan.
type loadSum struct {
	cfg  *Config
	plan *LoadPlan
	open bool

	levels   []Opt // of stages, from their first events
	stages   []stageState
	out      int64
	startLag times
	segments map[int64]bool

	pattern []int
	tenants []tenantState
	arms    *armState
}

type stageState struct {
	sum   StageSum
	step  step
	walls map[int64]*rowSegment
}

type tenantState struct {
	sum        TenantSum
	step       step
	wait       times
	firstSent  Opt
	lastPicked int64
	ends       []tokensAt
}

// tokensAt is a result's end and tokens.
type tokensAt struct{ end, tokens int64 }

func newLoadSum(cfg *Config) *loadSum {
	p := cfg.Load
	s := &loadSum{cfg: cfg, plan: p, open: p.Open(), levels: make([]Opt, p.Stages()), stages: make([]stageState, p.Stages()),
		segments: map[int64]bool{}}
	for i := range s.stages {
		s.stages[i].walls = map[int64]*rowSegment{}
	}
	if len(p.Tenants) > 0 {
		s.pattern, s.tenants = p.Pattern(), make([]tenantState, len(p.Tenants))
	}
	if p.Paired {
		s.arms = newArmState(cfg)
	}
	return s
}

func (s *loadSum) event(e *Event) {
	if c := e.Context.Or(-1); e.Kind == EventStage && c >= 0 && c < s.cfg.Contexts && s.plan.Arrival != ArrivalTrace {
		if stage := s.plan.Stage(c, s.cfg.Contexts); !s.levels[stage].OK {
			s.levels[stage] = e.Value
		}
	}
}

// place takes any attempt, before the others take it.
func (s *loadSum) place(r *Row) {
	s.segments[r.Segment] = true
	if r.Context >= s.cfg.Contexts {
		return
	}
	st := &s.stages[s.plan.Stage(r.Context, s.cfg.Contexts)]
	g := st.walls[r.Segment]
	if g == nil {
		g = &rowSegment{firstPicked: r.PickedUS, lastEnd: r.EndUS}
		st.walls[r.Segment] = g
	}
	g.firstPicked, g.lastEnd = min(g.firstPicked, r.PickedUS), max(g.lastEnd, r.EndUS)
}

// first takes a context's first attempt; free is when the row before it on its worker ended, where busy says that there is one.
func (s *loadSum) first(r *Row, free int64, busy bool) {
	st := &s.stages[s.plan.Stage(r.Context, s.cfg.Contexts)]
	st.sum.Contexts++
	if s.open {
		s.startLag.add(r.PickedUS - r.QueuedUS)
		if busy && free > r.QueuedUS {
			s.out++
			st.sum.WorkersOut++
		}
	}
	if s.tenants == nil {
		return
	}
	t := s.tenant(r.Context)
	t.sum.Contexts++
	t.lastPicked = max(t.lastPicked, r.PickedUS)
	if s.open {
		t.wait.between(Some(r.QueuedUS), r.SentUS)
	} else {
		t.wait.between(Some(r.PickedUS), r.SentUS)
	}
	if r.SentUS.OK && r.SentUS.V < t.firstSent.Or(maxTime+1) {
		t.firstSent = r.SentUS
	}
}

func (s *loadSum) tenant(context int64) *tenantState {
	return &s.tenants[TenantOf(s.pattern, context)]
}

// result takes an attempt that is a context's result.
func (s *loadSum) result(r *Row) {
	st := &s.stages[s.plan.Stage(r.Context, s.cfg.Contexts)]
	st.sum.Results++
	st.step.result(r, s.open)
	if s.tenants != nil {
		t := s.tenant(r.Context)
		tokens := r.PromptTokens.Or(0) + r.CompletionTokens.Or(0)
		t.sum.Results++
		t.sum.Tokens += tokens
		t.step.result(r, s.open)
		t.ends = append(t.ends, tokensAt{r.EndUS, tokens})
	}
	if s.arms != nil {
		s.arms.result(r)
	}
}

// failed takes a context that was submitted and has no result.
func (s *loadSum) failed(context int64) {
	st := &s.stages[s.plan.Stage(context, s.cfg.Contexts)]
	st.sum.Failed++
	st.step.failed()
	if s.tenants != nil {
		t := s.tenant(context)
		t.sum.Failed++
		t.step.failed()
	}
	if s.arms != nil {
		s.arms.of(context).sum.Failed++
	}
}

func (s *loadSum) into(l *Ledger) {
	out := &Load{Plan: *s.plan, WorkersOut: s.out, StartLag: s.startLag.distribution(0), Stages: []StageSum{}, Tenants: []TenantSum{}}
	search := NewSearch(s.plan)
	for i := range s.stages {
		st := &s.stages[i]
		st.sum.Level = s.levels[i]
		for _, g := range st.walls {
			st.sum.WallUS += g.lastEnd - g.firstPicked
		}
		st.sum.ResultsPer1e6s = Per1e6s(st.sum.Results, st.sum.WallUS)
		st.sum.TTFT, st.sum.Latency = st.step.distributions()
		if len(s.plan.Objectives) > 0 {
			st.sum.Verdict = st.step.verdict(s.plan.Objectives)
			if st.sum.Level.OK && st.step.n() > 0 {
				search.now.join(&st.step)
				search.End(st.sum.Level.V)
			}
		}
		out.Stages = append(out.Stages, st.sum)
	}
	if len(s.plan.Objectives) > 0 {
		out.Answer = search.answer()
	}
	s.tenantsInto(out)
	if s.arms != nil {
		out.Paired = s.arms.sums()
	}
	l.Load = out
}

func (s *loadSum) tenantsInto(out *Load) {
	if s.tenants == nil {
		return
	}
	out.ServiceUS = s.service()
	total, weights := int64(0), int64(0)
	var served []int64
	for i := range s.tenants {
		total += s.tenants[i].sum.Service
		weights += s.plan.Tenants[i].Weight
		served = append(served, s.tenants[i].sum.Service)
	}
	for i := range s.tenants {
		t := &s.tenants[i]
		t.sum.Name, t.sum.ClaimPPM = s.plan.Tenants[i].Name, s.plan.Tenants[i].Weight*1_000_000/weights
		if out.ServiceUS.OK && total > 0 {
			t.sum.SharePPM = Some(ppm(t.sum.Service, total))
		}
		t.sum.Wait = t.wait.distribution(0)
		t.sum.TTFT, t.sum.Latency = t.step.distributions()
		out.Tenants = append(out.Tenants, t.sum)
	}
	if out.ServiceUS.OK && total > 0 {
		out.JainPPM = Some(jain(served, s.plan.Tenants))
	}
}

// ppm is part of whole in millionths, rounded down; whole is above 0.
func ppm(part, whole int64) int64 {
	x := new(big.Int).Mul(big.NewInt(part), big.NewInt(1_000_000))
	return x.Quo(x, big.NewInt(whole)).Int64()
}

// service counts what each tenant got while all of them had contexts left, and returns how long that was.
func (s *loadSum) service() Opt {
	from, to := int64(0), int64(maxTime)
	for i := range s.tenants {
		t := &s.tenants[i]
		if !t.firstSent.OK {
			return Opt{}
		}
		from, to = max(from, t.firstSent.V), min(to, t.lastPicked)
	}
	if len(s.segments) != 1 || to <= from {
		return Opt{}
	}
	for i := range s.tenants {
		t := &s.tenants[i]
		for _, e := range t.ends {
			if e.end > from && e.end <= to {
				t.sum.Service += e.tokens
			}
		}
	}
	return Some(to - from)
}

// jain is Jain's index of service over weight, in millionths, rounded down (R. Jain, D. Chiu, W. Hawe, DEC-TR-301, 1984). It wants
// some service.
func jain(service []int64, tenants []Tenant) int64 {
	sum, squares := new(big.Rat), new(big.Rat)
	for i, v := range service {
		x := big.NewRat(v, tenants[i].Weight)
		sum.Add(sum, x)
		squares.Add(squares, new(big.Rat).Mul(x, x))
	}
	index := new(big.Rat).Mul(sum, sum)
	index.Quo(index, squares.Mul(squares, big.NewRat(int64(len(service)), 1)))
	index.Mul(index, big.NewRat(1_000_000, 1))
	return new(big.Int).Quo(index.Num(), index.Denom()).Int64()
}

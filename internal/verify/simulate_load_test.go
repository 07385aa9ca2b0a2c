package verify

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"testing"

	"cotenant/internal/ledger"
	"cotenant/internal/loadgen"
)

// loadPlans are plans of each kind for a hundred contexts on four workers; those of rates are far below and above what these serve.
var loadPlans = map[string]ledger.LoadPlan{
	"open": {Arrival: ledger.ArrivalPoisson, Seed: "7", Levels: []int64{2_000_000, 40_000_000},
		Objectives: []ledger.Objective{{Metric: ledger.MetricTTFT, Percentile: 500, LimitUS: 2_000_000}}},
	"search": {Arrival: ledger.ArrivalClosed, Search: &ledger.SearchPlan{Low: 1, High: 4, Steps: 4},
		Objectives: []ledger.Objective{{Metric: ledger.MetricLatency, Percentile: 500, LimitUS: 2_000_000}}},
	"tenants": {Arrival: ledger.ArrivalClosed, Levels: []int64{4}, Tenants: []ledger.Tenant{{Name: "quiet", Weight: 1, Share: 1}, {Name: "noisy", Weight: 1, Share: 3}}},
	"paired":  {Arrival: ledger.ArrivalClosed, Levels: []int64{4}, Paired: true},
}

// simulateLoad plays a plan in virtual time.
func simulateLoad(t testing.TB, kind string) *run {
	t.Helper()
	const base = "You keep this register and answer one question at a time."
	s := &simulation{rng: newRand(100), used: map[int64]bool{}}
	s.cfg = simulate(t, 100).cfg
	plan := loadPlans[kind]
	plan.Levels = append([]int64{}, plan.Levels...)
	if plan.Objectives == nil {
		plan.Objectives = []ledger.Objective{}
	}
	if plan.Tenants == nil {
		plan.Tenants = []ledger.Tenant{}
	}
	s.cfg.Load, s.cfg.Workload.Unique = &plan, false
	var err error
	if s.commit, err = ledger.NewCommitter(s.cfg.Secret); err != nil {
		t.Fatal(err)
	}
	begun := s.play(base)
	slices.SortStableFunc(s.rows, func(a, b ledger.Row) int { return cmp.Compare(a.EndUS, b.EndUS) })
	s.sample()
	s.log()
	s.events = slices.Insert(s.events, 2, begun...)
	return &s.run
}

// play makes the rows and returns the stages' events.
func (s *simulation) play(base string) (begun []ledger.Event) {
	p := s.cfg.Load
	per := s.cfg.Contexts / p.Stages()
	free := make([]int64, s.cfg.Workers)
	for w := range free {
		free[w] = 2_000 + int64(w)*150
	}
	search, picos, origin := ledger.NewSearch(p), int64(0), int64(0)
	for stage := range p.Stages() {
		level, now := int64(0), slices.Min(free)
		if p.Search != nil {
			level, now = search.Next(), slices.Max(free)
		} else {
			level = p.Levels[stage]
		}
		if stage == 0 {
			origin = now
		} else if p.Open() {
			now = origin + picos/loadgen.PicosPerMicro
		}
		begun = append(begun, ledger.Event{TUS: now, Kind: ledger.EventStage, Context: ledger.Some(stage * per), Value: ledger.Some(level)})
		for c := stage * per; c < (stage+1)*per; c++ {
			due := int64(0)
			if p.Open() {
				picos += p.Gap(c, level, nil)
				due = origin + picos/loadgen.PicosPerMicro
			}
			w := s.eligible(c, level, free)
			r := s.attempt(c, w, 1, max(free[w], due, now)+s.between(20, 90), base)
			r.QueuedUS, r.Base = due, s.cfg.BaseOf(c)
			s.answer(&r)
			if p.Search != nil {
				search.Result(&r)
			}
			s.rows = append(s.rows, r)
			free[w] = r.EndUS
			s.end = max(s.end, r.EndUS)
		}
		search.End(level)
	}
	return begun
}

// eligible is the worker that is free first of those that may take a context.
func (s *simulation) eligible(c, level int64, free []int64) int64 {
	p, best := s.cfg.Load, int64(-1)
	pattern := p.Pattern()
	for w := range s.cfg.Workers {
		switch n := int64(len(pattern)); {
		case !p.Open() && w >= level:
		case n > 0 && !p.Open() && pattern[w%n] != ledger.TenantOf(pattern, c):
		case best < 0 || free[w] < free[best]:
			best = w
		}
	}
	return best
}

// TestLoadPlans: a run under each kind of plan holds, and establishes what the plan is about.
func TestLoadPlans(t *testing.T) {
	claims := map[string][]string{"open": {"latency_from_schedule_p50", "latency_from_schedule_p95_upper", "objective_level"}, "search": {"objective_level"}, "tenants": {"jain_index"}, "paired": nil}
	for kind := range loadPlans {
		dir := t.TempDir()
		simulateLoad(t, kind).write(t, dir, nil)
		report, err := Dir(dir, Options{})
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range report.Failed() {
			t.Errorf("%s: %s: %s", kind, f.Rule, f.Detail)
		}
		for _, id := range claims[kind] {
			if !slices.ContainsFunc(report.Establishes, func(c ledger.Claim) bool { return c.ID == id }) {
				t.Errorf("%s: %s isn't established", kind, id)
			}
		}
	}
}

// TestOverload: the open loop's second stage asks for more than four workers can do, and the run says so.
func TestOverload(t *testing.T) {
	dir := t.TempDir()
	simulateLoad(t, "open").write(t, dir, nil)
	l := summarize(t, dir)
	if l.Load.WorkersOut == 0 || l.Load.Stages[0].WorkersOut >= l.Load.Stages[1].WorkersOut {
		t.Errorf("%d arrivals found no worker, %d of the first stage", l.Load.WorkersOut, l.Load.Stages[0].WorkersOut)
	}
	if a := l.Load.Answer; a.Level != ledger.Some(2_000_000) || a.BrokenAt != ledger.Some(40_000_000) {
		t.Errorf("answer %+v, stages %+v", a, l.Load.Stages)
	}
	if s, c := l.Times.LatencySchedule.P95.ValueUS.V, l.Times.Latency.P95.ValueUS.V; s < 2*c {
		t.Errorf("p95 of the latency is %d us from the schedule and %d us from sent: the wait is hidden", s, c)
	}
	if !slices.ContainsFunc(l.NonClaims, func(s ledger.Statement) bool { return s.ID == "open_loop" }) {
		t.Error("that workers ran out isn't among what the run doesn't establish")
	}
}

// moveTo gives an attempt to another worker, behind all that this one did.
func (r *run) moveTo(x *ledger.Row, worker int64) {
	last := int64(0)
	for i := range r.rows {
		if y := &r.rows[i]; y != x && y.Worker == worker {
			last = max(last, y.EndUS)
		}
	}
	x.Worker = worker
	if shift := last + 1 - x.PickedUS; shift > 0 {
		for _, at := range []*int64{&x.PickedUS, &x.SentUS.V, &x.HeadersUS.V, &x.FirstEventUS.V, &x.FirstTokenUS.V, &x.FirstContentUS.V, &x.LastTokenUS.V, &x.EndUS} {
			*at += shift
		}
	}
}

// TestStageRules: each way of leaving the plan's stages is seen.
func TestStageRules(t *testing.T) {
	stage := func(r *run, context int64) *ledger.Event {
		for i := range r.events {
			if e := &r.events[i]; e.Kind == ledger.EventStage && e.Context.V == context {
				return e
			}
		}
		panic("no such stage")
	}
	for name, c := range map[string]struct {
		kind, want string
		change     func(r *run)
	}{
		"a stage without its event": {"open", "R-LOAD-01 R-LOAD-02", func(r *run) {
			r.events = slices.DeleteFunc(r.events, func(e ledger.Event) bool { return e.Kind == ledger.EventStage })
		}},
		"another rate than planned":        {"open", "R-LOAD-02", func(r *run) { stage(r, 50).Value.V++ }},
		"a context that isn't there":       {"open", "R-LOAD-01 R-LOAD-02", func(r *run) { stage(r, 50).Context.V = 100 }},
		"no level":                         {"search", "R-LOAD-02", func(r *run) { stage(r, 25).Value = ledger.Opt{} }},
		"a rate that can't be":             {"open", "R-LOAD-01 R-LOAD-02", func(r *run) { stage(r, 50).Value.V = 0 }},
		"a stage after its contexts":       {"search", "R-LOAD-02", func(r *run) { stage(r, 25).TUS += 3_000_000 }},
		"a step before the last one ended": {"search", "R-LOAD-02", func(r *run) { stage(r, 50).TUS -= 1_000_000 }},
		"more workers than the stage has": {"search", "R-LOAD-02", func(r *run) {
			for i := range r.rows {
				if r.rows[i].Context == 10 {
					r.rows[i].Worker = 1
				}
			}
		}},
	} {
		r, dir := simulateLoad(t, c.kind), t.TempDir()
		c.change(r)
		r.write(t, dir, nil)
		report, err := Dir(dir, Options{})
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		var failed []string
		for _, f := range report.Failed() {
			failed = append(failed, f.Rule)
		}
		if got := strings.Join(failed, " "); got != c.want {
			t.Errorf("%s: %s fail, want %s", name, got, c.want)
		}
	}
}

// TestHostileLoadRuns: whatever rows and events of a plan's run say, a report comes.
func TestHostileLoadRuns(t *testing.T) {
	rng := newRand(3)
	for kind := range loadPlans {
		for range 25 {
			r, dir := simulateLoad(t, kind), t.TempDir()
			for range 1 + rng.IntN(4) {
				x := &r.rows[rng.IntN(len(r.rows))]
				e := &r.events[rng.IntN(len(r.events))]
				n := rng.Int64N(1 << uint(1+rng.IntN(45)))
				switch rng.IntN(12) {
				case 0:
					x.Context = n
				case 1:
					x.QueuedUS = n
				case 2:
					x.Worker = n
				case 3:
					x.SentUS = ledger.Opt{}
				case 4:
					x.FirstTokenUS = ledger.Some(n)
				case 5:
					x.EndUS = n
				case 6:
					x.Segment = n % 3
				case 7:
					x.Outcome = ledger.HTTP5xx
				case 8:
					e.Context = ledger.Some(n)
				case 9:
					e.Value = ledger.Some(n)
				case 10:
					e.Segment = n % 3
				default:
					x.PromptTokens = ledger.Some(n % (1 << 31))
				}
			}
			r.writeFiles(t, dir)
			f, err := ledger.OpenFolder(dir)
			if err != nil {
				t.Fatal(err)
			}
			l, err := f.Summarize()
			if err != nil {
				continue
			}
			write(t, dir+"/"+ledger.LedgerFile, marshal(t, l))
			if _, err := Dir(dir, Options{}); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// TestAnyNumberOfAPlanChangedIsRefused: of what the ledger says of a load plan nothing can be changed.
func TestAnyNumberOfAPlanChangedIsRefused(t *testing.T) {
	for kind := range loadPlans {
		dir := t.TempDir()
		simulateLoad(t, kind).write(t, dir, nil)
		e, err := load(dir, Options{})
		if err != nil {
			t.Fatal(err)
		}
		b := read(t, dir+"/"+ledger.LedgerFile)
		from := strings.Index(string(b), `"load":{`)
		to := strings.Index(string(b), `"max_tokens":`)
		n := 0
		for _, span := range numbers(t, b) {
			if span[0] < from || span[1] > to {
				continue
			}
			n++
			d := int64(1 - n%2*2)
			refuse(t, e, step(t, b, span, d), fmt.Sprintf("%s: …%s with %+d", kind, b[max(0, span[0]-40):span[1]], d))
		}
		if n < 30 {
			t.Errorf("%s: only %d numbers", kind, n)
		}
	}
}

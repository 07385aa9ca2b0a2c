package verify

import (
	"encoding/hex"
	"fmt"
	"slices"

	"cotenant/internal/ledger"
	"cotenant/internal/loadgen"
)

// loadFacts is what a load plan's rules need of the rows: some of each, 130 bytes a row.
type loadFacts struct {
	cfg    *ledger.Config
	plan   *ledger.LoadPlan
	events []ledger.Event // stages
	rows   []loadRow      // attempts of planned turns up to their result
}

func newLoadFacts(cfg *ledger.Config) *loadFacts { return &loadFacts{cfg: cfg, plan: cfg.Load} }

func (f *loadFacts) event(e *ledger.Event) {
	if e.Kind == ledger.EventStage {
		f.events = append(f.events, *e)
	}
}

// loadRow is what is kept of a row.
type loadRow struct {
	Context, Worker, Segment  int64
	QueuedUS, PickedUS, EndUS int64
	SentUS, FirstTokenUS      ledger.Opt
	tokens                    int64
	first, ok, buffered       bool // the context's first attempt; a result; in one piece
	prompt                    [16]byte
}

func (f *loadFacts) row(r *ledger.Row) {
	x := loadRow{Context: r.Context, Worker: r.Worker, Segment: r.Segment, QueuedUS: r.QueuedUS, PickedUS: r.PickedUS, EndUS: r.EndUS, SentUS: r.SentUS,
		FirstTokenUS: r.FirstTokenUS, tokens: r.PromptTokens.Or(0) + r.CompletionTokens.Or(0), first: r.Attempt == 1, ok: r.Outcome == ledger.OK, buffered: r.Buffered}
	if _, err := hex.Decode(x.prompt[:], []byte(r.PromptCommit)); err != nil { // rows' commitments have so many digits, by their form
		return
	}
	f.rows = append(f.rows, x)
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
			if r := &f.rows[i]; r.ok {
				done[r.Context] = true
				search.Result(&ledger.Row{QueuedUS: r.QueuedUS, SentUS: r.SentUS, FirstTokenUS: r.FirstTokenUS, EndUS: r.EndUS, Buffered: r.buffered})
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
	sent := map[[16]byte]int64{}
	for i := range f.rows {
		r := &f.rows[i]
		if !loadgen.UniqueArm(f.cfg.Workload.Seed, r.Context) {
			continue
		}
		if other, ok := sent[r.prompt]; ok && other != r.Context {
			bad.add("context %d, which has a base of its own, sent the prompt of context %d", r.Context, other)
		}
		sent[r.prompt] = r.Context
	}
	for i := range f.rows {
		r := &f.rows[i]
		if other, ok := sent[r.prompt]; ok && other != r.Context {
			bad.add("context %d sent the prompt of context %d, which has a base of its own", r.Context, other)
		}
	}
	if bad.count > 0 {
		return bad.String(), ""
	}
	return "", ""
}

package ledger

import (
	"cmp"
	"fmt"
	"math/bits"
	"slices"

	"cotenant/internal/stats"
)

// maxTaskKinds bounds what foreign rows can make a ledger hold.
const maxTaskKinds = 64

// rowSum folds rows into a ledger's numbers. Beside what exact percentiles need (some 20 bytes a result), it keeps four
// bytes a context.
type rowSum struct {
	cfg      *Config
	contexts []contextSum
	retried  map[int64]firsts // of contexts whose present turn's first attempt was no result
	segments map[int64]*rowSegment

	counts   Counts
	outcomes map[Outcome]int64
	tokens   Tokens
	oracle   Oracle
	tasks    map[string]*TaskScore

	ttft, firstContent, latency, lastToken, latencyFull, interToken, queueAge, sendLag, slotLag times

	resultEnds                   stats.Column // of usage-bearing results
	endedPeak                    int64        // in flight, over segments that ended
	baseDiffers                  bool
	tokensBad                    bool
	workersBad                   bool
	promptAll, outAll, cachedAll int64 // over all attempts that say it
	sentAll                      int64
	cachedKnown                  bool

	cut     map[int64]cutTurn // of contexts whose present turn has attempts that were cut
	bounds  bounds
	control *controlSum // nil unless the contract is controlled
	load    *loadSum    // nil without a load plan

	ttftSchedule, latencySchedule times // of an open loop
}

type firsts struct{ segment, picked int64 }

// contextSum is where a context stands.
type contextSum struct {
	turns uint16 // turns with a result
	any   bool   // it has an attempt
	tried bool   // its present turn has one
}

type rowSegment struct {
	firstPicked, lastEnd int64
	free                 map[int64]int64 // the end of each worker's last row
	starts, ends         stats.Column    // of attempts that were sent
}

func newRowSum(cfg *Config) *rowSum {
	return &rowSum{cfg: cfg, contexts: make([]contextSum, cfg.Contexts), retried: map[int64]firsts{}, segments: map[int64]*rowSegment{},
		outcomes: map[Outcome]int64{}, tasks: map[string]*TaskScore{}, cut: map[int64]cutTurn{}}
}

func (s *rowSum) add(r *Row) error {
	s.counts.Attempts++
	s.outcomes[r.Outcome]++
	s.counts.Reconnects += r.Reconnects
	s.counts.Quirks |= r.Quirks
	if r.Quirks != 0 {
		s.counts.Quirky++
	}
	if r.ConnReused {
		s.counts.ConnReused++
	}
	if r.Attempt > 1 {
		s.counts.Retries++
	}
	if r.Base != s.cfg.BaseOf(r.Context) {
		s.baseDiffers = true
	}
	if r.Worker >= s.cfg.Workers {
		s.workersBad = true
	}
	s.spend(r)
	free, busy := s.place(r)
	if s.load != nil {
		s.load.place(r)
	}
	if r.Context >= s.cfg.Contexts || r.Turn >= s.cfg.TurnsPerContext {
		s.counts.Strays++
		return nil
	}
	c := &s.contexts[r.Context]
	switch turns := int64(c.turns); {
	case r.Turn < turns:
		s.counts.Duplicates++
		return nil
	case r.Turn > turns:
		s.counts.Strays++
		return nil
	}
	if !c.any {
		c.any = true
		s.counts.Submitted++
	}
	if !c.tried {
		c.tried = true
		s.queueAge.between(Some(r.QueuedUS), r.SentUS)
		s.sendLag.between(Some(r.PickedUS), r.SentUS)
		if busy && r.SentUS.OK {
			s.slotLag.add(max(0, r.SentUS.V-max(free, r.QueuedUS)))
		}
		if s.load != nil {
			s.load.first(r, free, busy)
		}
		if r.Outcome != OK {
			s.retried[r.Context] = firsts{r.Segment, r.PickedUS}
		}
	}
	if s.control != nil {
		s.control.row(r)
	}
	s.reach(r)
	if r.Outcome != OK {
		return nil
	}
	c.turns++
	c.tried = false
	if int64(c.turns) == s.cfg.TurnsPerContext {
		s.counts.Completed++
	}
	return s.result(r)
}

// spend counts tokens of any attempt.
func (s *rowSum) spend(r *Row) {
	s.promptAll += r.PromptTokens.Or(0)
	s.outAll += r.CompletionTokens.Or(0)
	s.cachedAll += r.CachedTokens.Or(0)
	s.cachedKnown = s.cachedKnown || r.CachedTokens.OK
	s.tokens.Wasted += r.WastedTokens
	if r.SentUS.OK {
		s.sentAll++
	}
}

// place puts an attempt onto its segment's time line. It returns the end of the row before it of its worker, if there is one.
func (s *rowSum) place(r *Row) (free int64, busy bool) {
	g := s.segments[r.Segment]
	if g == nil {
		g = &rowSegment{firstPicked: r.PickedUS, lastEnd: r.EndUS, free: map[int64]int64{}}
		s.segments[r.Segment] = g
	}
	g.firstPicked, g.lastEnd = min(g.firstPicked, r.PickedUS), max(g.lastEnd, r.EndUS)
	if r.SentUS.OK {
		g.starts.Add(r.SentUS.V)
		g.ends.Add(r.EndUS)
	}
	if r.Worker < s.cfg.Workers {
		free, busy = g.free[r.Worker]
		g.free[r.Worker] = r.EndUS
	}
	return free, busy
}

// result takes an attempt that is its turn's result.
func (s *rowSum) result(r *Row) error {
	c := &s.counts
	c.Turns++
	if !r.Done {
		c.NotDone++
	}
	switch r.FinishReason {
	case "":
		c.NotFinished++
	case "length":
		c.LengthCapped++
	}
	if r.Buffered {
		c.Buffered++
	}
	end := Some(r.EndUS)
	s.ttft.between(r.SentUS, r.FirstTokenUS)
	if !r.SentUS.OK || !r.FirstTokenUS.OK {
		c.TTFTMissing++
	}
	s.firstContent.between(r.SentUS, r.FirstContentUS)
	s.lastToken.between(r.SentUS, r.LastTokenUS)
	s.latency.between(r.SentUS, end)
	if first, ok := s.retried[r.Context]; !ok {
		s.latencyFull.add(r.EndUS - r.PickedUS)
	} else {
		delete(s.retried, r.Context)
		if first.segment == r.Segment {
			s.latencyFull.add(r.EndUS - first.picked)
		}
	}
	if s.load != nil {
		s.load.result(r)
	}
	if s.cfg.Load.Open() {
		s.latencySchedule.add(r.EndUS - r.QueuedUS)
		s.ttftSchedule.between(Some(r.QueuedUS), r.FirstTokenUS)
	}
	s.resultTokens(r)
	return s.score(r)
}

func (s *rowSum) resultTokens(r *Row) {
	t := &s.tokens
	t.Deltas += r.Deltas
	t.TextBytes += r.TextBytes
	if r.CachedTokens.OK {
		t.Cached = Some(t.Cached.Or(0) + r.CachedTokens.V)
		t.CachedResponses++
	}
	if !r.PromptTokens.OK || !r.CompletionTokens.OK {
		s.counts.UsageMissing++
		return
	}
	prompt, completion := r.PromptTokens.V, r.CompletionTokens.V
	s.counts.UsageResponses++
	s.resultEnds.Add(r.EndUS)
	t.Prompt += prompt
	t.Completion += completion
	switch {
	case r.Deltas == completion:
		t.RowsEqual++
	case r.EOSCounted():
		t.RowsEOSCounted++
	case r.Deltas < completion:
		t.RowsFewerDeltas++
	default:
		t.RowsMoreDeltas++
	}
	if !PlausibleTokens(r, s.cfg.Sampling.MaxTokens) {
		s.tokensBad = true
	}
	if n := r.TextTokens(); n > 1 && !r.Buffered && r.FirstTokenUS.OK && r.LastTokenUS.OK {
		s.interToken.add((r.LastTokenUS.V - r.FirstTokenUS.V) / (n - 1))
	}
}

// PlausibleTokens reports whether a result's usage can be true: a prompt, at least one token but no more than were allowed
// (maxTokens 0: any number), no more deltas than tokens, no more cached tokens than prompt.
func PlausibleTokens(r *Row, maxTokens int64) bool {
	completion := r.CompletionTokens.V
	return r.PromptTokens.V >= 1 && completion >= 1 && (maxTokens == 0 || completion <= maxTokens) && r.Deltas <= completion &&
		r.CachedTokens.Or(0) <= r.PromptTokens.V
}

func (s *rowSum) score(r *Row) error {
	task := s.tasks[r.Task]
	if task == nil {
		if len(s.tasks) == maxTaskKinds {
			return fmt.Errorf("more than %d kinds of task", maxTaskKinds)
		}
		task = &TaskScore{Task: r.Task}
		s.tasks[r.Task] = task
	}
	switch r.Oracle {
	case OraclePass:
		s.oracle.Passed++
		task.Passed++
	case OracleFail:
		s.oracle.Failed++
	default:
		s.oracle.None++
		return nil
	}
	task.Checked++
	s.oracle.Checked++
	return nil
}

// into writes what the rows say into l, given which segments have ended.
func (s *rowSum) into(l *Ledger, ended map[int64]bool) {
	s.counts.Failed = s.counts.Submitted - s.counts.Completed
	s.counts.Outcomes = []OutcomeCount{}
	for _, o := range outcomes {
		if n := s.outcomes[o]; n > 0 {
			s.counts.Outcomes = append(s.counts.Outcomes, OutcomeCount{o, n})
		}
	}
	l.Counts = s.counts
	s.tokens.Spent = s.promptAll + s.outAll
	l.Tokens = s.tokens
	for k, g := range s.segments {
		l.WallUS += g.lastEnd - g.firstPicked
		peak := stats.Peak(&g.starts, &g.ends)
		l.Peaks.InFlight = max(l.Peaks.InFlight, peak)
		if ended[k] {
			s.endedPeak = max(s.endedPeak, peak)
		}
	}
	l.Rates = s.rates(l.WallUS)
	infinite := s.counts.Failed + s.counts.TTFTMissing
	l.Times = Times{TTFT: s.ttft.distribution(0), FirstContent: s.firstContent.distribution(0), Latency: s.latency.distribution(0),
		LastToken: s.lastToken.distribution(0), LatencyFull: s.latencyFull.distribution(0), InterToken: s.interToken.distribution(0),
		Adjusted: s.latency.distribution(s.counts.Failed), TTFTAdjusted: s.ttft.distribution(infinite), QueueAge: s.queueAge.distribution(0), SendLag: s.sendLag.distribution(0), SlotLag: s.slotLag.distribution(0)}
	if s.cfg.Load.Open() {
		l.Times.LatencySchedule, l.Times.TTFTSchedule = s.latencySchedule.distribution(s.counts.Failed), s.ttftSchedule.distribution(infinite)
	} else {
		l.Times.LatencySchedule, l.Times.TTFTSchedule = s.latencySchedule.distribution(0), s.ttftSchedule.distribution(0)
	}
	l.Oracle = s.score0()
	if s.load != nil {
		for context, c := range s.contexts {
			if c.any && int64(c.turns) < s.cfg.TurnsPerContext {
				s.load.failed(int64(context))
			}
		}
		s.load.into(l)
	}
}

func (s *rowSum) score0() Oracle {
	o := s.oracle
	o.ConfidencePPM = stats.WilsonConfidencePPM
	o.ByTask = []TaskScore{}
	for _, t := range s.tasks {
		o.ByTask = append(o.ByTask, *t)
	}
	slices.SortFunc(o.ByTask, func(a, b TaskScore) int { return cmp.Compare(a.Task, b.Task) })
	if o.Checked > 0 {
		low, high := stats.Wilson(o.Passed, o.Checked)
		o.PassRatePPM, o.WilsonLowPPM, o.WilsonHighPPM = Some(o.Passed*1_000_000/o.Checked), Some(low), Some(high)
	}
	return o
}

func (s *rowSum) rates(wall int64) Rates {
	r := Rates{
		ResultsPer1e6s:    Per1e6s(s.counts.UsageResponses, wall),
		PromptPer1e6s:     Per1e6s(s.tokens.Prompt, wall),
		CompletionPer1e6s: Per1e6s(s.tokens.Completion, wall),
	}
	n, skip := s.resultEnds.Len(), s.cfg.Workers
	if len(s.segments) == 1 && n > skip {
		span := s.resultEnds.Max() - s.resultEnds.Order(skip)[0]
		r.WarmResults, r.WarmWallUS, r.WarmResultsPer1e6s = Some(n-skip), Some(span), Per1e6s(n-skip, span)
	}
	return r
}

// Per1e6s is count over us microseconds in whole numbers per 10^6 seconds, rounded down; absent where us isn't positive or
// the result leaves the integers that a document can hold.
func Per1e6s(count, us int64) Opt {
	if us <= 0 || count < 0 {
		return Opt{}
	}
	hi, lo := bits.Mul64(uint64(count), 1_000_000_000_000)
	if hi >= uint64(us) {
		return Opt{}
	}
	q, _ := bits.Div64(hi, lo, uint64(us))
	if q > MaxInt {
		return Opt{}
	}
	return Some(int64(q))
}

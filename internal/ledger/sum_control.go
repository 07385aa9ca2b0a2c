package ledger

import "cotenant/internal/loadgen"

// FaultPlan is the plan that a config registers; the contract must be controlled.
func (c *Config) FaultPlan() loadgen.FaultPlan {
	return loadgen.FaultPlan{Seed: c.Controlled.FaultSeed, Contexts: c.Contexts, Turns: c.TurnsPerContext, Block: c.Controlled.FaultBlock}
}

// FaultShows reports whether an attempt ended as a fault of a kind makes it end.
func FaultShows(kind loadgen.FaultKind, r *Row) bool {
	token := r.FirstTokenUS.OK
	switch kind {
	case loadgen.ResetBeforeHeaders:
		return r.Outcome == TransportBefore
	case loadgen.HTTP503:
		return r.Outcome == HTTP5xx && r.HTTPStatus == Some(503)
	case loadgen.HTTP429:
		return r.Outcome == HTTP429 && r.RetryAfterUS.OK
	case loadgen.ResetAfterFirstToken, loadgen.ResetMidStream:
		return r.Outcome == TransportMid && token
	case loadgen.StallMidStream:
		return r.Outcome == TimeoutIdle && token
	case loadgen.TruncatedMidStream:
		return r.Outcome == Truncated && token
	case loadgen.CancelBeforeHeaders:
		return r.Outcome == CancelledInject && !token
	case loadgen.CancelAfterFirstToken:
		return r.Outcome == CancelledInject && token
	}
	return false
}

// KeptFromServer reports whether a request that meets such a fault never reaches the server.
func KeptFromServer(kind loadgen.FaultKind) bool {
	return kind == loadgen.ResetBeforeHeaders || kind == loadgen.HTTP503 || kind == loadgen.HTTP429
}

// controlSum folds what the contract controlled is about.
type controlSum struct {
	cfg    *Config
	plan   loadgen.FaultPlan
	sum    Controlled
	count  map[loadgen.FaultKind]*FaultCount
	done   map[int64]*doneFault // by context
	stray  bool                 // a fault that the plan doesn't have, or one twice
	parked []parkedTurn         // of each context, by the last result
	broken bool                 // a conversation wasn't parked or came back another

	failed     bool           // the bad base was the last that was asked, and failed
	rolledBack bool           // that was followed by a rollback to the base of the rows
	ready      map[int64]bool // by segment: the base of the rows was the last that was asked, and passed
	unready    bool           // there are rows of a segment that wasn't
}

type doneFault struct {
	turn, attempt, segment int64
	kind                   loadgen.FaultKind
	shown, recovered       bool
}

type parkedTurn struct {
	commit  string
	segment int64
}

func newControlSum(cfg *Config) *controlSum {
	s := &controlSum{cfg: cfg, plan: cfg.FaultPlan(), count: map[loadgen.FaultKind]*FaultCount{}, done: map[int64]*doneFault{},
		parked: make([]parkedTurn, cfg.Contexts), ready: map[int64]bool{}}
	for _, k := range loadgen.FaultKinds() {
		s.count[k] = &FaultCount{Kind: string(k)}
	}
	for b := range s.plan.Len() {
		s.count[s.plan.At(b).Kind].Planned++
	}
	return s
}

func (s *controlSum) event(e *Event) {
	p, c := s.cfg.Controlled, &s.sum
	switch e.Kind {
	case EventCanaryBase:
		c.Canaries++
		passed := e.Value.Or(0) >= p.CanaryNeeded
		if !passed {
			c.CanariesFailed++
		}
		s.failed = !passed && e.Detail == p.BadBaseCommit
		s.ready[e.Segment] = passed && e.Detail == s.cfg.Workload.BaseCommit
	case EventRollback:
		c.Rollbacks++
		s.rolledBack = s.rolledBack || s.failed && e.Detail == s.cfg.Workload.BaseCommit
		s.failed = false
	case EventFault:
		s.fault(e)
	case EventQuiet:
		c.QuietPoints++
		if e.Value.OK {
			c.QuietReturned++
			atLeast(&c.QuietMaxUS, e.Value)
		}
	}
}

func (s *controlSum) fault(e *Event) {
	f, ok := s.plan.Of(e.Context.Or(-1), e.Turn.Or(-1))
	if !ok || string(f.Kind) != e.Detail || s.done[f.Context] != nil {
		s.stray = true
		return
	}
	s.count[f.Kind].Done++
	s.sum.FaultContexts++
	s.done[f.Context] = &doneFault{turn: f.Turn, attempt: e.Attempt.Or(0), segment: e.Segment, kind: f.Kind}
}

// of is the fault that was done to an attempt, nil if none was.
func (s *controlSum) of(r *Row) *doneFault {
	f := s.done[r.Context]
	if f == nil || f.turn != r.Turn || f.attempt != r.Attempt || f.segment != r.Segment {
		return nil
	}
	return f
}

// kept reports whether a fault kept the attempt from the server.
func (s *controlSum) kept(r *Row) bool {
	f := s.of(r)
	return f != nil && KeptFromServer(f.kind)
}

// row takes an attempt of a context's present turn.
func (s *controlSum) row(r *Row) {
	if f := s.of(r); f != nil {
		f.shown = FaultShows(f.kind, r)
	} else if r.Outcome == CancelledInject {
		s.stray = true
	}
	if !s.ready[r.Segment] {
		s.unready = true
	}
	p := &s.parked[r.Context]
	if r.Turn > 0 && (r.Restored == "" || r.Restored != p.commit) || r.Turn == 0 && r.Restored != "" {
		s.broken = true
	}
	if r.Outcome != OK {
		s.broken = s.broken || r.Parked != ""
		return
	}
	if f := s.done[r.Context]; f != nil && f.turn == r.Turn && f.shown {
		f.recovered = true
		s.count[f.kind].Recovered++
		s.sum.FaultsRecovered++
	}
	if r.Turn > 0 && r.Restored == p.commit {
		s.sum.Restored++
		if r.Segment != p.segment {
			s.sum.RestoredAcross++
		}
	}
	if last := r.Turn == s.cfg.TurnsPerContext-1; last != (r.Parked == "") {
		s.broken = true
	}
	if r.Parked != "" {
		s.sum.Parked++
	}
	*p = parkedTurn{r.Parked, r.Segment}
}

// into writes the sums into l, given which segments have ended.
func (s *controlSum) into(l *Ledger, ended map[int64]bool) {
	c := &s.sum
	c.Faults = []FaultCount{}
	for _, k := range loadgen.FaultKinds() {
		c.Faults = append(c.Faults, *s.count[k])
	}
	c.FaultSharePPM = c.FaultContexts * 1_000_000 / s.cfg.Contexts
	for _, f := range s.done {
		if !f.shown && !ended[f.segment] {
			c.FaultsWithoutRow++
		}
	}
	l.Controlled = c
}

// against notes what the contract has against a run.
func (s *controlSum) against(l *Ledger, against map[string]bool) {
	c := l.Controlled
	against[WhyTerms] = s.cfg.ControlledTerms() != ""
	against[WhyCanary] = !s.rolledBack || s.unready
	against[WhyFaults] = s.stray || c.FaultContexts != s.plan.Len() || c.FaultsRecovered+c.FaultsWithoutRow < c.FaultContexts ||
		c.FaultContexts*ControlledMaxBlock < s.cfg.Contexts
	against[WhyParking] = s.broken
	against[WhyQuiet] = c.QuietPoints < 1 || hasGauge(l) && c.QuietReturned < c.QuietPoints
	for i := range l.Reconciliation {
		against[WhyReconcile] = against[WhyReconcile] || !l.Reconciliation[i].Within()
	}
}

// Gauges lists the series that have to come back where nothing is open.
func Gauges() []string {
	return []string{SeriesRunning, SeriesWaiting, SeriesKVUsage, SeriesKVPagesUsed, SeriesKVSlots}
}

// hasGauge reports whether the server exposed any.
func hasGauge(l *Ledger) bool {
	for _, s := range l.Series {
		for _, name := range Gauges() {
			if s.Name == name && s.Values > 0 {
				return true
			}
		}
	}
	return false
}

// ControlledTerms says which of the registered terms is less than the contract controlled demands; empty if none is.
func (c *Config) ControlledTerms() string {
	p := c.Controlled
	switch {
	case c.TurnsPerContext < ControlledMinTurns:
		return "contexts have one turn"
	case c.MaxAttempts > ControlledMaxAttempts:
		return "more attempts are allowed than three"
	case p.FaultBlock > ControlledMaxBlock:
		return "fewer than one context of a hundred meet a fault"
	case p.CanaryAsked < 1 || p.CanaryNeeded < 1 || p.CanaryNeeded > p.CanaryAsked:
		return "the canary can't tell a base"
	case p.BadBaseCommit == c.Workload.BaseCommit || c.Workload.BaseCommit == "":
		return "the bad base is the good one, or there is none"
	case p.QuietPoints < 1 || p.QuietLimitUS < 1:
		return "the server's gauges aren't waited for"
	}
	return ""
}

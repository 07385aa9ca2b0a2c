package ledger

import (
	"math"
	"math/bits"
)

// step collects what objectives are about: times of results, and those that failed.
type step struct {
	ttft, latency        times
	noToken, fails       int64 // results without a first token's time, contexts without a result
	results, inOnePieces int64
}

// result adds one; from is queued in an open loop, sent in a closed one.
func (s *step) result(r *Row, open bool) {
	s.results++
	if r.Buffered {
		s.inOnePieces++
	}
	from := r.SentUS.V
	if open {
		from = r.QueuedUS
	}
	s.latency.add(r.EndUS - from)
	if r.FirstTokenUS.OK {
		s.ttft.add(r.FirstTokenUS.V - from)
	} else {
		s.noToken++
	}
}

func (s *step) failed() { s.fails++ }

func (s *step) join(o *step) {
	s.results, s.inOnePieces = s.results+o.results, s.inOnePieces+o.inOnePieces
	s.noToken, s.fails = s.noToken+o.noToken, s.fails+o.fails
	for v := range o.ttft.finite.All() {
		s.ttft.add(v)
	}
	for v := range o.latency.finite.All() {
		s.latency.add(v)
	}
}

// n is how many contexts it knows of.
func (s *step) n() int64 { return s.results + s.fails }

// distributions are those of ttft and latency with what is infinite.
func (s *step) distributions() (ttft, latency Distribution) {
	return s.ttft.distribution(s.fails + s.noToken), s.latency.distribution(s.fails)
}

// verdict holds a step against objectives, see Defs.Verdict.
func (s *step) verdict(objectives []Objective) string {
	ttft, latency := s.distributions()
	out := VerdictKept
	for _, o := range objectives {
		d := &latency
		if o.Metric == MetricTTFT {
			d = &ttft
		}
		switch d.verdict(o) {
		case VerdictBroken:
			return VerdictBroken
		case VerdictNotEstablished:
			out = VerdictNotEstablished
		}
		if o.Metric == MetricTTFT && s.inOnePieces*1_000_000 > MaxBufferedPPM*s.results {
			out = VerdictNotEstablished
		}
	}
	return out
}

// verdict holds a distribution, infinite values counted in it, against an objective.
func (d *Distribution) verdict(o Objective) string {
	p, _ := percentileOf(o.Percentile)
	for _, q := range d.quantiles() {
		if q.p != p || d.N == 0 {
			continue
		}
		bounded := p.LowerRank(d.N) > 0
		switch {
		case q.into.UpperUS.OK && q.into.UpperUS.V <= o.LimitUS:
			return VerdictKept
		case bounded && (!q.into.LowerUS.OK || q.into.LowerUS.V > o.LimitUS): // absent: infinite
			return VerdictBroken
		}
	}
	return VerdictNotEstablished
}

// Search follows a plan's steps, each of which is held against the objectives when it is over. It is a pure function of what it is
// told, so that whoever has the rows knows which level each step had to have.
type Search struct {
	plan   *LoadPlan
	levels map[int64]*step
	now    step
	began  int64 // steps
}

// NewSearch begins a plan's search.
func NewSearch(plan *LoadPlan) *Search { return &Search{plan: plan, levels: map[int64]*step{}} }

// Result tells of a context's result in the present step.
func (s *Search) Result(r *Row) { s.now.result(r, s.plan.Open()) }

// Failed tells of a context without a result in the present step.
func (s *Search) Failed() { s.now.failed() }

// End ends the present step, which was of level.
func (s *Search) End(level int64) {
	if s.levels[level] == nil {
		s.levels[level] = &step{}
	}
	s.levels[level].join(&s.now)
	s.now = step{}
	s.began++
}

// Next is the level of the step that comes next, given all that are over. It begins at low and doubles while the objectives are kept, up
// to high; then it halves the distance between the highest level that kept them and the lowest above that didn't, for workers by their
// mean, for rates by their geometric mean, both rounded down. Where nothing lies between (for rates: less than a twentieth) it repeats
// the highest that kept them, and where none did, low: what is left of the steps makes the answer surer. A level that was neither
// kept nor broken counts as not kept.
func (s *Search) Next() int64 {
	p := s.plan.Search
	lo, hi := s.bracket()
	switch {
	case lo == 0:
		return p.Low
	case hi == 0 && lo >= p.High:
		return p.High
	case hi == 0:
		return min(2*lo, p.High)
	}
	mid := (lo + hi) / 2
	if s.plan.Open() {
		if mid = geometricMean(lo, hi); hi-lo <= lo/20 {
			return lo
		}
	}
	if mid <= lo {
		return lo
	}
	return mid
}

// bracket is the highest level that kept the objectives and the lowest above it that didn't, 0 where there is none.
func (s *Search) bracket() (lo, hi int64) {
	for level, st := range s.levels {
		if st.verdict(s.plan.Objectives) == VerdictKept {
			lo = max(lo, level)
		}
	}
	for level, st := range s.levels {
		if level > lo && st.verdict(s.plan.Objectives) != VerdictKept && (hi == 0 || level < hi) {
			hi = level
		}
	}
	return lo, hi
}

// answer is what all levels together say.
func (s *Search) answer() *Answer {
	a := &Answer{Levels: int64(len(s.levels))}
	lo, _ := s.bracket()
	if lo > 0 {
		a.Level, a.Results = Some(lo), s.levels[lo].n()
	}
	for level, st := range s.levels {
		if level > lo && st.verdict(s.plan.Objectives) == VerdictBroken && level < a.BrokenAt.Or(math.MaxInt64) {
			a.BrokenAt = Some(level)
		}
	}
	return a
}

// geometricMean is the square root of a·b, rounded down.
func geometricMean(a, b int64) int64 {
	lo, hi := min(a, b), max(a, b)
	for lo < hi { // the largest x with x² ≤ a·b; both are at most 10^12: in 128 bits
		mid := lo + (hi-lo+1)/2
		if wideLess(a, b, mid) {
			hi = mid - 1
		} else {
			lo = mid
		}
	}
	return lo
}

// wideLess reports whether a·b < x².
func wideLess(a, b, x int64) bool {
	h1, l1 := bits.Mul64(uint64(a), uint64(b))
	h2, l2 := bits.Mul64(uint64(x), uint64(x))
	return h1 < h2 || h1 == h2 && l1 < l2
}

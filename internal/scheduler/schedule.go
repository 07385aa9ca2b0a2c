package scheduler

import (
	"time"

	"cotenant/internal/kvcache"
)

// Plan is the work of one step, in the shape that backend.Batch has. It is the scheduler's and valid until the second Schedule
// after it; block tables in it are valid until the next Commit.
type Plan struct {
	Tokens    []int32 // [rows]
	Positions []int32 // [rows] position in the sequence
	Slots     []int32 // [rows] KV slot that receives the row
	Work      []Work  // consecutive, covering all rows
	Outputs   []int32 // rows whose logits are wanted, ascending

	Started []*Sequence // those that left the queue with this plan

	advanced bool
}

// Work is one sequence's rows in a Plan.
type Work struct {
	Seq       *Sequence
	Row, Rows int     // first row, number of rows
	Past      int     // tokens already computed
	Pages     []int32 // block table
	// Its rows of logits are Outputs[Output : Output+Prompts] for the prompt (the k-th predicts prompt token
	// PromptFrom+k), then, where Sample is set, one more to sample from.
	Output, Prompts int
	PromptFrom      int
	Sample          bool
	Last            bool // after this step every known token is computed

	kv *kvcache.Seq // what held the pages
}

// Schedule plans a step, nil where there is nothing to compute. After it comes Commit, also where sequences ended in
// between; or Advance, and then one more Schedule before the first plan's Commit.
func (s *Scheduler) Schedule(now time.Duration) *Plan {
	if s.uncommitted == len(s.plans) || s.uncommitted > 0 && !s.plan.advanced {
		panic("scheduler: Schedule before Commit or Advance")
	}
	s.last = (s.last + 1) % len(s.plans)
	s.plan = &s.plans[s.last]
	p := s.plan
	p.advanced = false
	p.Tokens, p.Positions, p.Slots, p.Outputs = p.Tokens[:0], p.Positions[:0], p.Slots[:0], p.Outputs[:0]
	clear(p.Work)
	clear(p.Started)
	p.Work, p.Started = p.Work[:0], p.Started[:0]
	for len(s.active) < s.cfg.MaxSeqs && s.waiting.n > 0 {
		q := s.waiting.head
		s.waiting.remove(q)
		s.stats.WaitingTokens -= q.prompt
		q.state = active
		s.active = append(s.active, q)
	}
	if len(s.active) == 0 {
		return s.drop()
	}
	s.step++
	s.restoreOrder()
	s.growDecodes()
	for _, q := range s.active {
		if q.kv != nil && q.need() == 1 {
			s.put(q, 1)
		}
	}
	s.prefill(now)
	if len(p.Work) == 0 {
		s.step--
		return s.drop()
	}
	s.uncommitted++
	return p
}

// drop takes back the plan that was being made: nothing is to be computed.
func (s *Scheduler) drop() *Plan {
	s.last = (s.last + len(s.plans) - 1) % len(s.plans)
	s.plan = &s.plans[s.last]
	return nil
}

// restoreOrder takes pages from later sequences where an earlier one can't be started without. That later ones were started
// first happens through deferral only.
func (s *Scheduler) restoreOrder() {
	for i, q := range s.active {
		if q.kv != nil || s.deferred(q) {
			continue
		}
		for !s.canStart(q) {
			if !s.preemptAfter(i) {
				break
			}
		}
		return
	}
}

// growDecodes gives each decoding sequence room for its token.
func (s *Scheduler) growDecodes() {
	for i, q := range s.active {
		if q.kv == nil || q.need() != 1 {
			continue
		}
		for !s.cache.CanGrow(q.kv, len(q.Tokens)) {
			if !s.preemptAfter(i) {
				s.preempt(q)
				break
			}
		}
		if q.kv != nil {
			s.grow(q)
		}
	}
}

func (s *Scheduler) grow(q *Sequence) {
	if err := s.cache.Grow(q.kv, len(q.Tokens)); err != nil {
		panic("scheduler: internal error: " + err.Error())
	}
}

// preemptAfter preempts the latest started sequence that came after active[i]; false where there is none.
func (s *Scheduler) preemptAfter(i int) bool {
	for j := len(s.active) - 1; j > i; j-- {
		if s.active[j].kv != nil {
			s.preempt(s.active[j])
			return true
		}
	}
	return false
}

// preempt takes a sequence's pages. It keeps its place and its tokens, and is computed again.
func (s *Scheduler) preempt(q *Sequence) {
	s.cache.Close(q.kv)
	q.kv, q.computed = nil, 0
	s.stats.Preemptions++
}

// prefill fills what is left of the step's budget with prompts, in order of arrival.
func (s *Scheduler) prefill(now time.Duration) {
	blocked := false
	for _, q := range s.active {
		if len(s.plan.Tokens) >= s.cfg.MaxTokens || len(s.plan.Outputs) >= s.cfg.MaxOutputs {
			return
		}
		if q.planned == s.step || q.kv != nil && q.need() == 0 {
			continue
		}
		if q.kv == nil {
			if blocked || s.deferred(q) {
				continue
			}
			if !s.canStart(q) {
				blocked = true
				continue
			}
			s.start(q, now)
		}
		n := min(q.need(), s.cfg.MaxTokens-len(s.plan.Tokens))
		if first := s.firstOutput(q); q.PromptOutputs && q.computed+n > first {
			n = min(n, max(first-q.computed, 0)+s.cfg.MaxOutputs-len(s.plan.Outputs))
		}
		s.put(q, n)
	}
}

// canStart reports whether there are pages for all of q's tokens, and one more for each sequence that may need one in the
// steps to come: starting what must be preempted at once is wasted work.
func (s *Scheduler) canStart(q *Sequence) bool {
	started := 0
	for _, o := range s.active {
		if o.kv != nil {
			started++
		}
	}
	var m kvcache.Match
	if q.reuse() {
		m = s.cache.Lookup(q.Salt, q.Tokens)
	}
	return s.cache.CanOpen(m, len(q.Tokens), started)
}

func (s *Scheduler) start(q *Sequence, now time.Duration) {
	kv, err := s.cache.Open(q.Salt, q.Tokens, q.reuse())
	if err != nil {
		panic("scheduler: internal error: " + err.Error())
	}
	q.kv, q.computed, q.other = kv, kv.Cached(), nil
	if q.everStarted {
		return
	}
	q.everStarted = true
	q.wait = now - q.added
	q.cached = kv.Cached()
	s.plan.Started = append(s.plan.Started, q)
}

// deferred reports whether a started sequence is about to compute tokens that q could then reuse.
func (s *Scheduler) deferred(q *Sequence) bool {
	if !q.reuse() {
		return false
	}
	if o := q.other; o != nil && o.kv != nil && o.computed < q.until {
		return true
	}
	q.other = nil
	have, size := -1, s.cache.PageSize()
	for _, o := range s.active {
		// One whose prompt logits are wanted computes few rows a step: waiting for it can take longer than computing.
		if o == q || o.kv == nil || o.PromptOutputs || o.Salt != q.Salt {
			continue
		}
		until := min(len(q.Tokens)-1, len(o.Tokens))
		if until-until%size <= o.computed {
			continue // the usual case: o is decoding
		}
		until = min(until, commonPrefix(q.Tokens, o.Tokens))
		until -= until % size
		if until <= o.computed {
			continue
		}
		if have < 0 {
			have = s.cache.Lookup(q.Salt, q.Tokens).Tokens
		}
		if until > have {
			q.other, q.until = o, until
			return true
		}
	}
	return false
}

func commonPrefix(a, b []int32) int {
	n := min(len(a), len(b))
	for i := range n {
		if a[i] != b[i] {
			return i
		}
	}
	return n
}

// firstOutput returns the first position at which q's prompt logits are still wanted.
func (s *Scheduler) firstOutput(q *Sequence) int {
	if !q.PromptOutputs {
		return q.prompt - 1
	}
	return q.outputDone
}

// put adds the next n rows of q to the plan.
func (s *Scheduler) put(q *Sequence, n int) {
	p := s.plan
	w := Work{Seq: q, Row: len(p.Tokens), Rows: n, Past: q.computed, Pages: q.kv.Pages(), Output: len(p.Outputs), kv: q.kv}
	first := s.firstOutput(q)
	w.PromptFrom = max(first, q.computed) + 1
	for i := range n {
		pos := q.computed + i
		if pos >= first && pos < q.prompt-1 {
			p.Outputs = append(p.Outputs, int32(len(p.Tokens)))
			w.Prompts++
		}
		p.Tokens = append(p.Tokens, q.Tokens[pos])
		p.Positions = append(p.Positions, int32(pos))
		p.Slots = append(p.Slots, s.cache.Slot(q.kv, pos))
	}
	w.Last = q.computed+n == len(q.Tokens)
	if w.Last && !q.NoSample {
		w.Sample = true
		p.Outputs = append(p.Outputs, int32(len(p.Tokens)-1))
	}
	q.planned = s.step
	p.Work = append(p.Work, w)
}

// Advance says that the latest plan's rows will have been computed before those of any later plan: the next one goes on from there,
// and Append may give its sequences tokens that are to be replaced in Sequence.Tokens before the plan's Commit. Other sequences
// don't find the rows before that.
func (s *Scheduler) Advance() {
	p := s.plan
	if s.uncommitted == 0 || p.advanced {
		panic("scheduler: Advance without a plan")
	}
	p.advanced = true
	for i := range p.Work {
		w := &p.Work[i]
		q := w.Seq
		if q.kv != w.kv {
			continue // ended or preempted
		}
		q.computed += w.Rows
		if q.PromptOutputs {
			q.outputDone = max(q.outputDone, min(q.computed, q.prompt-1))
		}
	}
}

// Commit says that the rows of the earliest plan without a Commit were computed: keys and values are written, logits delivered.
func (s *Scheduler) Commit() {
	if s.uncommitted == 0 {
		return // nothing was planned
	}
	p := &s.plans[(s.last+len(s.plans)-s.uncommitted+1)%len(s.plans)]
	if !p.advanced {
		s.Advance()
	}
	s.uncommitted--
	for i := range p.Work {
		if w := &p.Work[i]; w.Seq.kv != nil && w.Seq.kv == w.kv {
			s.cache.Commit(w.kv, w.Seq.Tokens[:w.Past+w.Rows])
		}
	}
	p.Work = p.Work[:0]
}

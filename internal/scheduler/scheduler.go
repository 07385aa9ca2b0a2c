// Package scheduler decides what each step of a model computes: continuous batching, chunked prefill, prefix reuse and
// preemption over a kvcache.Cache. It is pure: no device, no goroutine, and the time is handed in.
//
// A step is Schedule (what to compute), then the model's forward pass, then Commit (it was computed), then Append for
// each sequence that got a token, or Finish. Where the model computes steps in order without being waited for, Advance and
// Append of tokens that aren't known yet come before Commit, and the next step is planned meanwhile.
//
// Rules, checked in tests for whole timelines:
//
//  1. A step computes at most MaxTokens rows. Sequences that need one row (decoding) come first, prompts share the rest,
//     both in order of arrival; so a long prompt never stalls those that answer already.
//  2. First come, first served: sequences enter the active set in order of arrival, and at most MaxSeqs are in it. An active
//     sequence is started (it holds pages for every token that is known) or it isn't yet. None is started while an earlier
//     one can't be for want of pages.
//  3. Deferral is the one exception: an active sequence whose next tokens are being computed by another one right now, as
//     part of a prefix that both share, is not started until they are there. It keeps its place. Choices of one request
//     and workers with one base prompt thus compute the base once.
//  4. Where pages run out, the latest started sequence gives its pages back (preemption) and is computed again later, its
//     answer so far included; what of it is still cached is reused. An earlier sequence never waits for a later one's pages.
//  5. So the earliest sequence always makes progress, every sequence ends, and no sequence is started that the memory
//     can't hold alone: Add refuses it.
//
// A Scheduler is not safe for concurrent use.
package scheduler

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"cotenant/internal/kvcache"
)

// What Add can refuse with.
var (
	ErrQueueFull = errors.New("queue is full")
	ErrTooLong   = errors.New("sequence is longer than the KV memory")
)

// Config is the limits of a Scheduler.
type Config struct {
	MaxSeqs    int // active sequences
	MaxTokens  int // rows in a step; at least MaxSeqs
	MaxOutputs int // rows in a step whose logits are wanted; at least MaxSeqs
	// What may wait beyond MaxSeqs: sequences, and tokens of their prompts. Sequences that find a free place are always
	// taken, however long.
	QueueSeqs, QueueTokens int
}

// Scheduler owns all sequences between Add and their end.
type Scheduler struct {
	cfg     Config
	cache   *kvcache.Cache
	waiting queue
	active  []*Sequence // in order of arrival
	arrived uint64
	step    uint64
	// Two plans may wait for their Commit; plan is the latest, plans[last].
	plans             [2]Plan
	plan              *Plan
	last, uncommitted int
	stats             Stats
}

// Stats counts since New, and describes the present.
type Stats struct {
	Waiting       int           // in the queue
	WaitingTokens int           // tokens of their prompts
	Active        int           // in the active set
	Started       int           // of these, hold pages
	OldestAge     time.Duration // of the sequence that has waited longest for its first start; 0: none waits

	Preemptions uint64
	Steps       uint64
}

// New makes a scheduler that owns cache.
func New(cfg Config, cache *kvcache.Cache) (*Scheduler, error) {
	switch {
	case cfg.MaxSeqs < 1:
		return nil, fmt.Errorf("at most %d sequences at once: want at least 1", cfg.MaxSeqs)
	case cfg.MaxTokens < cfg.MaxSeqs:
		return nil, fmt.Errorf("%d tokens a step for %d sequences: want at least one each", cfg.MaxTokens, cfg.MaxSeqs)
	case cfg.MaxOutputs < cfg.MaxSeqs:
		return nil, fmt.Errorf("%d rows of logits a step for %d sequences: want at least one each", cfg.MaxOutputs, cfg.MaxSeqs)
	case cfg.QueueSeqs < 0 || cfg.QueueTokens < 0:
		return nil, fmt.Errorf("queue bounds of %d sequences, %d tokens: want 0 or more", cfg.QueueSeqs, cfg.QueueTokens)
	}
	s := &Scheduler{cfg: cfg, cache: cache}
	s.plan = &s.plans[0]
	return s, nil
}

// CanAdd reports, as an error, why sequences of these sizes can't be taken together. It changes nothing.
func (s *Scheduler) CanAdd(seqs ...*Sequence) error {
	tokens := 0
	for _, q := range seqs {
		if len(q.Tokens) == 0 || q.MaxLen < len(q.Tokens) || q.state != idle {
			panic("scheduler: a sequence needs a prompt, room for it, and is added once")
		}
		if s.cache.PagesFor(q.MaxLen) > s.cache.Pages() {
			return fmt.Errorf("%w: %d tokens, memory for %d", ErrTooLong, q.MaxLen, s.cache.Pages()*s.cache.PageSize())
		}
		tokens += len(q.Tokens)
	}
	total := len(s.active) + s.waiting.n + len(seqs)
	if total <= s.cfg.MaxSeqs || len(s.active)+s.waiting.n == 0 {
		return nil
	}
	if total > s.cfg.MaxSeqs+s.cfg.QueueSeqs {
		return fmt.Errorf("%w: %d sequences wait", ErrQueueFull, s.waiting.n)
	}
	if s.stats.WaitingTokens+tokens > s.cfg.QueueTokens {
		return fmt.Errorf("%w: %d tokens wait", ErrQueueFull, s.stats.WaitingTokens)
	}
	return nil
}

// Add queues sequences, all or none; they are the scheduler's until they end. Errors: ErrQueueFull, ErrTooLong.
func (s *Scheduler) Add(now time.Duration, seqs ...*Sequence) error {
	if err := s.CanAdd(seqs...); err != nil {
		return err
	}
	for _, q := range seqs {
		s.arrived++
		q.arrival, q.added, q.prompt = s.arrived, now, len(q.Tokens)
		q.state = waiting
		s.waiting.push(q)
		s.stats.WaitingTokens += q.prompt
	}
	return nil
}

// Append gives a started sequence, all of whose tokens are computed, its next token.
func (s *Scheduler) Append(q *Sequence, token int32) {
	if q.kv == nil || q.computed != len(q.Tokens) || len(q.Tokens) >= q.MaxLen {
		panic("scheduler: Append to a sequence that can't take a token")
	}
	q.Tokens = append(q.Tokens, token)
}

// Finish ends a sequence, in whatever state it is, and frees its pages; complete ones stay reusable. Between Schedule and
// Commit the rows of the plan are as if they had not been computed. Finishing again does nothing.
func (s *Scheduler) Finish(q *Sequence) { s.end(q, s.cache.Close) }

// Quarantine ends a sequence whose keys and values can't be trusted: none of its pages is reused. Call it before Commit.
func (s *Scheduler) Quarantine(q *Sequence) { s.end(q, s.cache.Quarantine) }

func (s *Scheduler) end(q *Sequence, free func(*kvcache.Seq)) {
	switch q.state {
	case waiting:
		s.waiting.remove(q)
		s.stats.WaitingTokens -= q.prompt
	case active:
		i := slices.Index(s.active, q)
		s.active = slices.Delete(s.active, i, i+1)
	default:
		return
	}
	q.state = ended
	if q.kv != nil {
		free(q.kv)
		q.kv = nil
	}
}

// Idle reports whether there is nothing to compute.
func (s *Scheduler) Idle() bool { return len(s.active) == 0 && s.waiting.n == 0 }

// Stats returns the counts.
func (s *Scheduler) Stats(now time.Duration) Stats {
	st := s.stats
	st.Steps = s.step
	st.Waiting, st.Active = s.waiting.n, len(s.active)
	oldest := s.waiting.head
	for i := len(s.active) - 1; i >= 0; i-- {
		if s.active[i].kv != nil {
			st.Started++
		}
		if !s.active[i].everStarted {
			oldest = s.active[i]
		}
	}
	if oldest != nil {
		st.OldestAge = now - oldest.added
	}
	return st
}

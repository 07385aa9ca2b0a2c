package scheduler

import (
	"time"

	"cotenant/internal/kvcache"
)

// Sequence is one prompt and its answer. The caller sets the exported fields before Add and only reads them afterwards.
type Sequence struct {
	Tokens []int32 // prompt, then what was appended
	MaxLen int     // the most tokens that it can come to
	Salt   string  // prefixes are shared only within a salt
	// PromptOutputs asks for the logits of every row that predicts a prompt token. Such a sequence reuses no prefix: there
	// would be no logits for it.
	PromptOutputs bool
	NoSample      bool // the last row's logits are not wanted: the prompt is all there is to compute
	Data          any  // the caller's

	arrival     uint64
	added       time.Duration
	wait        time.Duration
	prompt      int
	state       state
	everStarted bool
	kv          *kvcache.Seq // nil: not started
	computed    int          // leading tokens whose keys and values are there
	cached      int          // of the prompt, at the first start
	outputDone  int          // prompt rows whose logits were delivered
	planned     uint64       // step that computes rows of it
	// What a deferred sequence waits for: that other computes its tokens up to until.
	other *Sequence
	until int

	prev, next *Sequence // in the queue
}

type state uint8

const (
	idle state = iota
	waiting
	active
	ended
)

// Cached returns how many prompt tokens were found in the prefix cache when it was first started.
func (q *Sequence) Cached() int { return q.cached }

// Wait returns the time from Add to its first start.
func (q *Sequence) Wait() time.Duration { return q.wait }

// Started reports whether it holds pages.
func (q *Sequence) Started() bool { return q.kv != nil }

// Ended reports whether it was finished or quarantined.
func (q *Sequence) Ended() bool { return q.state == ended }

// need returns how many known tokens are not computed.
func (q *Sequence) need() int { return len(q.Tokens) - q.computed }

func (q *Sequence) reuse() bool { return !q.PromptOutputs }

// queue is the waiting sequences in order of arrival.
type queue struct {
	head, tail *Sequence
	n          int
}

func (l *queue) push(q *Sequence) {
	q.prev, q.next = l.tail, nil
	if l.tail == nil {
		l.head = q
	} else {
		l.tail.next = q
	}
	l.tail = q
	l.n++
}

func (l *queue) remove(q *Sequence) {
	if q.prev == nil {
		l.head = q.next
	} else {
		q.prev.next = q.next
	}
	if q.next == nil {
		l.tail = q.prev
	} else {
		q.next.prev = q.prev
	}
	q.prev, q.next = nil, nil
	l.n--
}

package soak

import (
	"context"
	"encoding/hex"
	"fmt"
	"iter"
	"sync"

	"cotenant/internal/ledger"
)

// record is all that is kept of a logical context: it is not a goroutine and holds no prompt, so that memory grows with workers. A
// context with another turn has a parkedRef beside it and a place in the queue.
type record struct {
	attempts uint16 // rows written of the present turn
	turn     uint16
	tries    uint8 // of attempts, those that count against the limit: all but interrupted ones
	state    uint8
}

// States of a record.
const (
	waiting uint8 = iota // to be sent, or sent again
	taken                // with a worker
	retired              // its last attempt is made: ok, or failed for good
	lost                 // of a shared run: another process has it
)

// records hands out turns of contexts, each to one worker: first those that wait when the segment starts, in the contexts' order, then
// those that become ready, first in, first out.
type records struct {
	turns int64 // of a context

	mu    sync.Mutex
	moved sync.Cond // something was put, or a pause is over
	list  []record
	next  int64
	left  int64 // contexts that are not retired
	out   int64 // turns with workers

	queue      []int32 // ring of contexts that are ready again; made where there is more than one turn
	head, size int

	given   int64   // turns handed out in this segment
	pauses  []int64 // numbers of turns after which handing out pauses until none is with a worker
	pausing bool
	inPause bool // a worker is in the pause's function
}

func newRecords(contexts, turns int64) *records {
	r := &records{turns: turns, list: make([]record, contexts), left: contexts}
	r.moved.L = &r.mu
	if turns > 1 {
		r.queue = make([]int32, contexts)
	}
	return r
}

// pauseAt divides what this segment has to do into n parts of about the same size and pauses between them.
func (r *records) pauseAt(n int64) {
	todo := int64(0)
	for _, rec := range r.list {
		if rec.state != retired {
			todo += r.turns - int64(rec.turn)
		}
	}
	for k := int64(1); k < n; k++ {
		if at := todo * k / n; at > 0 && (len(r.pauses) == 0 || at > r.pauses[len(r.pauses)-1]) {
			r.pauses = append(r.pauses, at)
		}
	}
}

// take gives a worker the next turn that is ready, and waits where one may become so. It returns false when nothing is left or ctx has
// ended. Where a pause is due, one worker calls pause once nothing is with any of them, and the others wait.
func (r *records) take(ctx context.Context, pause func()) (context int64, rec record, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for ctx.Err() == nil {
		switch {
		case r.inPause || r.pausing && r.out > 0:
			r.moved.Wait()
			continue
		case r.pausing:
			r.inPause = true
			r.mu.Unlock()
			pause()
			r.mu.Lock()
			r.inPause, r.pausing = false, false
			r.moved.Broadcast()
			continue
		case len(r.pauses) > 0 && r.given >= r.pauses[0]:
			r.pauses, r.pausing = r.pauses[1:], true
			continue
		}
		if n, ok := r.ready(); ok {
			r.list[n].state = taken
			r.given++
			r.out++
			return n, r.list[n], true
		}
		if r.turns == 1 || r.out == 0 {
			return 0, record{}, false
		}
		r.moved.Wait()
	}
	return 0, record{}, false
}

// ready finds the next context that waits.
func (r *records) ready() (int64, bool) {
	for ; r.next < int64(len(r.list)); r.next++ {
		if r.list[r.next].state == waiting {
			r.next++
			return r.next - 1, true
		}
	}
	if r.size == 0 {
		return 0, false
	}
	n := int64(r.queue[r.head])
	r.head = (r.head + 1) % len(r.queue)
	r.size--
	return n, true
}

// put stores what a worker knows of its context. One that waits for its next turn queues up.
func (r *records) put(context int64, rec record) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.store(context, rec)
	r.out--
	if rec.state == waiting && r.turns > 1 {
		r.queue[(r.head+r.size)%len(r.queue)] = int32(context)
		r.size++
	}
	r.moved.Broadcast()
}

func (r *records) store(context int64, rec record) {
	if rec.state == retired && r.list[context].state != retired {
		r.left--
	}
	r.list[context] = rec
}

// wake makes workers that wait look at their context again.
func (r *records) wake() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.moved.Broadcast()
}

func (r *records) remaining() int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.left
}

// drop gives the records' memory back: nothing is asked of them any more.
func (r *records) drop() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.list, r.queue = nil, nil
}

// note adds a row to a record; retry says whether its outcome may be tried again.
func (rec *record) note(row *ledger.Row, retry bool, maxAttempts, turns int64) {
	if rec.attempts < 1<<16-1 {
		rec.attempts++
	}
	if row.Outcome == ledger.Interrupted {
		return
	}
	if row.Outcome == ledger.OK && row.Turn < turns-1 {
		*rec = record{turn: rec.turn + 1, state: waiting}
		return
	}
	if rec.tries++; row.Outcome == ledger.OK || !retry || int64(rec.tries) >= maxAttempts {
		rec.state = retired
	}
}

// past is what the rows of earlier segments come to.
type past struct {
	spent                        int64 // tokens, by usage
	submitted, completed, failed int64 // contexts; completed and failed ones are retired
	parked                       []parkedRef
}

// replay brings the records to where the rows of earlier segments left them.
func (r *records) replay(rows iter.Seq2[ledger.Row, error], maxAttempts int64) (past, error) {
	var p past
	if r.turns > 1 {
		p.parked = make([]parkedRef, len(r.list))
	}
	for row, err := range rows {
		if err != nil {
			return p, err
		}
		if row.Context >= int64(len(r.list)) {
			return p, fmt.Errorf("a row is of context %d, the run has %d", row.Context, len(r.list))
		}
		p.spent += row.PromptTokens.Or(0) + row.CompletionTokens.Or(0)
		rec := r.list[row.Context]
		if rec.state == retired || row.Turn != int64(rec.turn) {
			continue
		}
		if rec.attempts == 0 && rec.turn == 0 {
			p.submitted++
		}
		// The code of an in-band error isn't in the row; such a context is tried again, within its limit.
		rec.note(&row, row.Outcome.Retryable(), maxAttempts, r.turns)
		r.store(row.Context, rec)
		if row.Parked != "" && row.Outcome == ledger.OK && p.parked != nil {
			ref := &p.parked[row.Context]
			if _, err := hex.Decode(ref.digest[:], []byte(row.Parked)); err != nil {
				return p, err
			}
		}
		if rec.state == retired {
			if row.Outcome == ledger.OK {
				p.completed++
			} else {
				p.failed++
			}
		}
	}
	return p, nil
}

// isOpen reports whether an attempt is one that its context would make next: it left no row.
func (r *records) isOpen(id attemptID) bool {
	if id.context >= int64(len(r.list)) {
		return false
	}
	rec := r.list[id.context]
	return rec.state != retired && int64(rec.turn) == id.turn && int64(rec.attempts)+1 == id.attempt
}

// lastTurn is the turn that a context that isn't retired has parked last, -1 if none.
func (r *records) lastTurn(context int64) int64 {
	if rec := r.list[context]; rec.state != retired {
		return int64(rec.turn) - 1
	}
	return -1
}

package soak

import (
	"fmt"
	"iter"
	"sync"

	"cotenant/internal/ledger"
)

// record is all that is kept of a logical context: it is not a goroutine and holds no prompt, so that memory grows with workers.
type record struct {
	attempts uint16 // rows written
	tries    uint8  // of them, those that count against the limit: all but interrupted ones
	state    uint8
}

// States of a record.
const (
	waiting uint8 = iota // to be sent, or sent again
	taken                // with a worker
	retired              // its last attempt is made: ok, or failed for good
)

// records hands out contexts in their order, each to one worker.
type records struct {
	mu   sync.Mutex
	list []record
	next int64
	left int64 // not retired
}

func newRecords(contexts int64) *records {
	return &records{list: make([]record, contexts), left: contexts}
}

// take gives a worker the next context that waits, and what is known of it.
func (r *records) take() (context int64, rec record, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for ; r.next < int64(len(r.list)); r.next++ {
		if e := &r.list[r.next]; e.state == waiting {
			e.state = taken
			r.next++
			return r.next - 1, *e, true
		}
	}
	return 0, record{}, false
}

// put stores what a worker knows of its context.
func (r *records) put(context int64, rec record) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if rec.state == retired && r.list[context].state != retired {
		r.left--
	}
	r.list[context] = rec
}

func (r *records) remaining() int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.left
}

// note adds a row to a record; retry says whether its outcome may be tried again.
func (rec *record) note(row *ledger.Row, retry bool, maxAttempts int64) {
	if rec.attempts < 1<<16-1 {
		rec.attempts++
	}
	if row.Outcome == ledger.Interrupted {
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
}

// replay brings the records to where the rows of earlier segments left them.
func (r *records) replay(rows iter.Seq2[ledger.Row, error], maxAttempts int64) (past, error) {
	var p past
	for row, err := range rows {
		if err != nil {
			return p, err
		}
		if row.Context >= int64(len(r.list)) {
			return p, fmt.Errorf("a row is of context %d, the run has %d", row.Context, len(r.list))
		}
		p.spent += row.PromptTokens.Or(0) + row.CompletionTokens.Or(0)
		rec := r.list[row.Context]
		if rec.state == retired {
			continue
		}
		if rec.attempts == 0 {
			p.submitted++
		}
		// The code of an in-band error isn't in the row; such a context is tried again, within its limit.
		rec.note(&row, row.Outcome.Retryable(), maxAttempts)
		r.put(row.Context, rec)
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

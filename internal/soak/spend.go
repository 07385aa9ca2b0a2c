package soak

import (
	"sync"

	"cotenant/internal/ledger"
)

// budget guards a run's spending. Attempts hold an estimate while they are open, so that a limit isn't passed by what is in flight;
// what an attempt really took is counted by its usage. The estimate is for this guard alone and appears in no document.
type budget struct {
	mu    sync.Mutex
	limit int64 // 0: none
	spent int64
	held  int64
}

// hold reserves for an attempt of so many body bytes and at most maxTokens of answer; false where the limit doesn't allow it.
func (b *budget) hold(estimate int64) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.limit > 0 && b.spent+b.held+estimate > b.limit {
		return false
	}
	b.held += estimate
	return true
}

// estimate is tokens for a request: text has about 4 bytes a token in usual vocabularies, 3 is on the safe side.
func estimate(bodyBytes int, maxTokens int64) int64 { return int64(bodyBytes)/3 + maxTokens }

// settle replaces a reservation by what the attempt took. One that was sent and said nothing is counted as it was estimated.
func (b *budget) settle(estimate int64, row *ledger.Row) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.held -= estimate
	switch {
	case row.PromptTokens.OK || row.CompletionTokens.OK:
		b.spent += row.PromptTokens.Or(0) + row.CompletionTokens.Or(0)
	case row.SentUS.OK && row.Outcome != ledger.HTTP429 && row.Outcome != ledger.HTTP4xx:
		b.spent += estimate
	}
}

// add counts an attempt that held nothing.
func (b *budget) add(row *ledger.Row) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.spent += row.PromptTokens.Or(0) + row.CompletionTokens.Or(0)
}

func (b *budget) total() int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.spent
}

package cpu

import (
	"fmt"

	"cotenant/internal/backend"
)

// batch is the backend's copy of a step's Batch, kept between steps so that a step allocates nothing.
type batch struct {
	tokens, positions, slots, outputs []int32
	seqs                              []backend.Seq
	pages                             []int32 // of all seqs, end to end
}

// set copies in, refusing what could not be computed without reading outside memory or that leaves rows without a
// sequence. Tokens and slots are checked by the operations that know their bounds.
func (b *batch) set(in *backend.Batch) error {
	rows := len(in.Tokens)
	if rows == 0 {
		return fmt.Errorf("a batch without rows")
	}
	if len(in.Positions) != rows || len(in.Slots) != rows {
		return fmt.Errorf("%d tokens, %d positions, %d slots", rows, len(in.Positions), len(in.Slots))
	}
	next := 0
	for i, s := range in.Seqs {
		if s.Row != next || s.Rows < 1 || s.Past < 0 {
			return fmt.Errorf("sequence %d: rows %d+%d after %d, past %d", i, s.Row, s.Rows, next, s.Past)
		}
		next += s.Rows
	}
	if next != rows {
		return fmt.Errorf("sequences cover %d of %d rows", next, rows)
	}
	last := int32(-1)
	for _, r := range in.Outputs {
		if r <= last || int(r) >= rows {
			return fmt.Errorf("output row %d after %d, of %d rows", r, last, rows)
		}
		last = r
	}
	b.tokens = append(b.tokens[:0], in.Tokens...)
	b.positions = append(b.positions[:0], in.Positions...)
	b.slots = append(b.slots[:0], in.Slots...)
	b.outputs = append(b.outputs[:0], in.Outputs...)
	n := 0
	for _, s := range in.Seqs {
		n += len(s.Pages)
	}
	if cap(b.pages) < n {
		b.pages = make([]int32, 0, n+n/4)
	}
	b.seqs, b.pages = b.seqs[:0], b.pages[:0]
	for _, s := range in.Seqs {
		at := len(b.pages)
		b.pages = append(b.pages, s.Pages...)
		s.Pages = b.pages[at:len(b.pages):len(b.pages)]
		b.seqs = append(b.seqs, s)
	}
	return nil
}

func (b *batch) rows() int { return len(b.tokens) }

func (b *batch) bytes() int64 {
	return 4*int64(cap(b.tokens)+cap(b.positions)+cap(b.slots)+cap(b.outputs)+cap(b.pages)) + 48*int64(cap(b.seqs))
}

package kvcache

import (
	"hash/fnv"
	"math/rand/v2"
	"slices"
	"testing"
)

// world drives a cache with open sequences and keeps, per slot, what a device would have written there: a hash of the
// whole history that led to the token (salt included). Reading a history back must give what a lone run would give.
type world struct {
	t       testing.TB
	c       *Cache
	slots   []uint64
	open    []*life
	closed  []*life
	written int
}

type life struct {
	seq     *Seq
	salt    string
	tokens  []int32
	written int
}

func history(salt string, tokens []int32) uint64 {
	h := fnv.New64a()
	h.Write([]byte(salt))
	for _, t := range tokens {
		h.Write([]byte{0xff, byte(t), byte(t >> 8), byte(t >> 16), byte(t >> 24)})
	}
	return h.Sum64()
}

// step takes one operation, chosen by the numbers that next returns.
func (w *world) step(next func(n int) int) {
	c := w.c
	switch op := next(16); {
	case op < 5:
		w.add(next)
	case len(w.open) == 0:
	case op < 12: // write some tokens, commit them, maybe continue the sequence
		l := w.open[next(len(w.open))]
		to := min(l.written+1+next(3*c.size), len(l.tokens))
		for pos := l.written; pos < to; pos++ {
			w.slots[c.Slot(l.seq, pos)] = history(l.salt, l.tokens[:pos+1])
			w.written++
		}
		l.written = to
		if next(4) > 0 {
			c.Commit(l.seq, l.tokens[:to])
		}
		if to == len(l.tokens) && c.CanGrow(l.seq, to+1) {
			l.tokens = append(l.tokens, int32(next(3)))
			if err := c.Grow(l.seq, to+1); err != nil {
				w.t.Fatal(err)
			}
		}
		w.verify(l)
	case op < 15:
		w.remove(next(len(w.open)), c.Close)
	case next(4) == 0:
		w.remove(next(len(w.open)), c.Quarantine)
	case next(8) == 0:
		c.Flush()
	}
}

// add opens a sequence: tokens of a tiny alphabet, so that prefixes meet often, sometimes going on from an old one.
func (w *world) add(next func(n int) int) {
	l := &life{salt: []string{"", "a", "b"}[next(3)]}
	if len(w.closed) > 0 && next(3) > 0 {
		from := w.closed[next(len(w.closed))]
		l.salt = from.salt
		l.tokens = slices.Clone(from.tokens[:next(len(from.tokens))+1])
	}
	for n := next(4 * w.c.size); n > 0 || len(l.tokens) == 0; n-- {
		l.tokens = append(l.tokens, int32(next(2)))
	}
	reuse := next(8) > 0
	var m Match
	if reuse {
		m = w.c.Lookup(l.salt, l.tokens)
	}
	can := w.c.CanOpen(m, len(l.tokens), 0)
	seq, err := w.c.Open(l.salt, l.tokens, reuse)
	if can != (err == nil) {
		w.t.Fatalf("CanOpen said %v, Open: %v", can, err)
	}
	if err != nil {
		return
	}
	if seq.Cached() != m.Tokens || seq.Cached() >= len(l.tokens) {
		w.t.Fatalf("Open reuses %d of %d tokens, Lookup found %d", seq.Cached(), len(l.tokens), m.Tokens)
	}
	l.seq, l.written = seq, seq.Cached()
	w.open = append(w.open, l)
	w.verify(l)
}

// verify reads a sequence back through its block table.
func (w *world) verify(l *life) {
	for pos := range l.tokens[:l.written] {
		if w.slots[w.c.Slot(l.seq, pos)] != history(l.salt, l.tokens[:pos+1]) {
			w.t.Fatalf("position %d of %d doesn't hold its own history", pos, l.written)
		}
	}
}

func (w *world) remove(i int, how func(*Seq)) {
	l := w.open[i]
	how(l.seq)
	w.open = slices.Delete(w.open, i, i+1)
	if w.closed = append(w.closed, l); len(w.closed) > 8 {
		w.closed = w.closed[1:]
	}
}

func (w *world) end() {
	for len(w.open) > 0 {
		w.remove(0, w.c.Close)
	}
	if err := w.c.CheckInvariants(); err != nil {
		w.t.Fatal(err)
	}
	w.c.Flush()
	if s := w.c.Stats(); s.Free != w.c.Pages() || s.Seqs != 0 || len(w.c.roots) != 0 || len(w.c.index) != 0 {
		w.t.Fatalf("after everything was closed and flushed: %+v, %d roots, %d index entries", s, len(w.c.roots), len(w.c.index))
	}
}

func newWorld(t testing.TB, pages, size int) *world {
	return &world{t: t, c: newCache(t, pages, size), slots: make([]uint64, pages*size)}
}

func TestRandomTimelines(t *testing.T) {
	var evicted, shared uint64
	for seed := range uint64(60) {
		r := rand.New(rand.NewPCG(seed, 1))
		w := newWorld(t, 3+r.IntN(40), 1+r.IntN(5))
		for range 700 {
			w.step(r.IntN)
			if err := w.c.CheckInvariants(); err != nil {
				t.Fatalf("seed %d: %v", seed, err)
			}
			for _, l := range w.open {
				w.verify(l)
			}
		}
		evicted += w.c.Stats().Evictions
		shared += w.c.Stats().Deduplicated
		w.end()
	}
	if evicted == 0 || shared == 0 {
		t.Errorf("the timelines saw %d evictions and %d equal pages: too tame to prove anything", evicted, shared)
	}
}

func FuzzOperations(f *testing.F) {
	f.Add([]byte{0, 0, 3, 5, 1, 0, 1, 5, 0, 2, 1, 0, 0, 0, 6, 1, 12, 0, 15, 0})
	r := rand.New(rand.NewPCG(1, 2))
	for range 4 {
		long := make([]byte, 600)
		for i := range long {
			long[i] = byte(r.Uint32())
		}
		f.Add(long)
	}
	f.Fuzz(func(t *testing.T, ops []byte) {
		w := newWorld(t, 12, 3)
		next := func(n int) int {
			if len(ops) == 0 {
				return 0
			}
			v := int(ops[0]) % n
			ops = ops[1:]
			return v
		}
		for range 300 {
			if len(ops) == 0 {
				break
			}
			w.step(next)
			if err := w.c.CheckInvariants(); err != nil {
				t.Fatal(err)
			}
		}
		w.end()
	})
}

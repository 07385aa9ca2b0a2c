package tokenizer

import "slices"

// symbol is a node of the linked list of a long word's tokens. A symbol that was merged away has id -1.
type symbol struct{ id, prev, next int32 }

// mergeLong merges a word of any length in about linear time.
//
// Pairs wait in a queue by rank. An entry whose pair has changed since is recognised by its rank, which belongs to one
// pair alone. As a rule a merge brings only pairs of higher rank, and each rank's positions can be worked off in one
// sweep. Where a pair of lower rank appears (Llama 3 has merges of parts that only later merges make), a heap takes
// over, which gives the order of every single merge.
func (b *bpe) mergeLong(w *worker, out []int32, word string) []int32 {
	sym := w.symbols[:0]
	if cap(sym) < len(word) {
		sym = make([]symbol, 0, len(word))
	}
	for i := range len(word) {
		if id := b.byteIDs[word[i]]; id >= 0 {
			n := int32(len(sym))
			sym = append(sym, symbol{id, n - 1, n + 1})
		}
	}
	w.symbols = sym
	if len(sym) == 0 {
		return out
	}
	sym[len(sym)-1].next = -1
	if !b.sweep(w, sym) {
		b.mergeByHeap(w, sym)
	}
	for i := int32(0); i >= 0; i = sym[i].next {
		out = append(out, sym[i].id)
	}
	return out
}

// sweep merges rank by rank. It stops with false at the first pair of lower rank than the one at work, and leaves in
// w.heap what is still to be done.
func (b *bpe) sweep(w *worker, sym []symbol) bool {
	q := &w.queue
	q.reset()
	for i := range sym[:len(sym)-1] {
		if rank, _ := b.merges.find(sym[i].id, sym[i+1].id); rank != noRank {
			q.push(rank, int32(i))
		}
	}
	for {
		rank, positions := q.pop()
		if rank == noRank {
			return true
		}
		// The leftmost goes first: it decides how a run of one token is paired up.
		if !slices.IsSorted(positions) {
			slices.Sort(positions)
		}
		for k, i := range positions {
			w.steps++
			if !b.mergeAt(sym, i, rank) {
				continue
			}
			left, right := b.ranksAround(sym, i)
			if right != noRank {
				q.push(right, i)
			}
			if left != noRank {
				q.push(left, sym[i].prev)
			}
			if left < rank || right < rank {
				w.heap = q.drain(w.heap[:0], rank, positions[k+1:])
				return false
			}
		}
	}
}

// mergeByHeap merges one pair at a time, as w.heap has them.
func (b *bpe) mergeByHeap(w *worker, sym []symbol) {
	h := w.heap
	h.init()
	for len(h) > 0 {
		rank, i := h.pop()
		w.steps++
		if !b.mergeAt(sym, i, rank) {
			continue
		}
		left, right := b.ranksAround(sym, i)
		if right != noRank {
			h.push(heapEntry(right, i))
		}
		if left != noRank {
			h.push(heapEntry(left, sym[i].prev))
		}
	}
	w.heap = h
}

// mergeAt merges symbol i with the next one if that pair still has the rank.
func (b *bpe) mergeAt(sym []symbol, i, rank int32) bool {
	s := &sym[i]
	if s.id < 0 || s.next < 0 {
		return false
	}
	r, id := b.merges.find(s.id, sym[s.next].id)
	if r != rank {
		return false
	}
	gone := &sym[s.next]
	s.id, s.next = id, gone.next
	gone.id = -1
	if s.next >= 0 {
		sym[s.next].prev = i
	}
	return true
}

// ranksAround returns the ranks of symbol i with its neighbours.
func (b *bpe) ranksAround(sym []symbol, i int32) (left, right int32) {
	left, right = noRank, noRank
	s := &sym[i]
	if s.prev >= 0 {
		left, _ = b.merges.find(sym[s.prev].id, s.id)
	}
	if s.next >= 0 {
		right, _ = b.merges.find(s.id, sym[s.next].id)
	}
	return left, right
}

// rankQueue holds positions by rank, each rank's in a list of its own.
type rankQueue struct {
	lists [][]int32
	used  int
	index map[int32]int32 // rank to list
	ranks rankHeap        // rank<<32 | list
	last  int32           // the rank pushed last, and its list: most pushes go on with it
	list  int32
}

func (q *rankQueue) reset() {
	if q.index == nil {
		q.index = map[int32]int32{}
	}
	q.used, q.last = 0, noRank
}

func (q *rankQueue) push(rank, pos int32) {
	if rank != q.last {
		n, ok := q.index[rank]
		if !ok {
			n = int32(q.used)
			if q.used == len(q.lists) {
				q.lists = append(q.lists, nil)
			}
			q.used++
			q.lists[n] = q.lists[n][:0]
			q.index[rank] = n
			q.ranks.push(heapEntry(rank, n))
		}
		q.last, q.list = rank, n
	}
	q.lists[q.list] = append(q.lists[q.list], pos)
}

// pop returns the lowest rank and its positions, which stay valid until reset; noRank at the end.
func (q *rankQueue) pop() (rank int32, positions []int32) {
	if len(q.ranks) == 0 {
		return noRank, nil
	}
	rank, n := q.ranks.pop()
	delete(q.index, rank)
	if q.last == rank {
		q.last = noRank
	}
	return rank, q.lists[n]
}

// drain empties the queue into a heap, which isn't in order yet, along with the rest of a rank at work.
func (q *rankQueue) drain(h rankHeap, rank int32, rest []int32) rankHeap {
	for ; rank != noRank; rank, rest = q.pop() {
		for _, i := range rest {
			h = append(h, heapEntry(rank, i))
		}
	}
	return h
}

// rankHeap is a binary min-heap of entries rank<<32 | position.
type rankHeap []uint64

func heapEntry(rank, pos int32) uint64 { return uint64(rank)<<32 | uint64(uint32(pos)) }

func (h rankHeap) init() {
	for i := len(h)/2 - 1; i >= 0; i-- {
		h.down(i)
	}
}

func (h *rankHeap) push(e uint64) {
	s := append(*h, e)
	i := len(s) - 1
	for i > 0 {
		parent := (i - 1) / 2
		if s[parent] <= e {
			break
		}
		s[i] = s[parent]
		i = parent
	}
	s[i] = e
	*h = s
}

func (h *rankHeap) pop() (rank, pos int32) {
	s := *h
	top := s[0]
	last := len(s) - 1
	s[0] = s[last]
	*h = s[:last]
	h.down(0)
	return int32(top >> 32), int32(uint32(top))
}

func (h rankHeap) down(i int) {
	if i >= len(h) {
		return
	}
	e := h[i]
	for {
		child := 2*i + 1
		if child >= len(h) {
			break
		}
		if child+1 < len(h) && h[child+1] < h[child] {
			child++
		}
		if e <= h[child] {
			break
		}
		h[i] = h[child]
		i = child
	}
	h[i] = e
}

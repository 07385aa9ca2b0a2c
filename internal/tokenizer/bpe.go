package tokenizer

import (
	"hash/maphash"
	"math/rand/v2"
	"sync"
	"sync/atomic"
)

// bpe merges the bytes of a word into tokens: always the pair of lowest rank, of equals the leftmost.
type bpe struct {
	byteIDs [256]int32       // token of each byte, -1 where the vocabulary lacks it
	words   map[string]int32 // whole words to look up before merging (ignore_merges); nil where that isn't asked for
	longest int              // bytes of the longest token, at least 1
	merges  pairTable
	cache   wordCache
	pool    sync.Pool
}

// shortWord is the length in bytes up to which scanning for the lowest rank beats a heap.
const shortWord = 24

// worker is the scratch space of one encoding.
type worker struct {
	ids, ranks [shortWord]int32
	symbols    []symbol
	heap       rankHeap
	queue      rankQueue
	steps      int // merges tried, for tests of cost
}

func (b *bpe) worker() *worker {
	if w, ok := b.pool.Get().(*worker); ok {
		return w
	}
	return new(worker)
}

// release takes scratch space back, but not what one huge word has made of it.
func (b *bpe) release(w *worker) {
	const keep = 1 << 16
	if cap(w.symbols) > keep {
		w = new(worker)
	}
	b.pool.Put(w)
}

// fewest returns how many tokens a word has at the least.
func (b *bpe) fewest(word string) int {
	bytes := 0
	for i := range len(word) {
		if b.byteIDs[word[i]] >= 0 {
			bytes++
		}
	}
	return (bytes + b.longest - 1) / b.longest
}

// encodeWord appends the tokens of one pre-token.
func (b *bpe) encodeWord(w *worker, out []int32, word string) []int32 {
	if len(word) == 1 {
		if id := b.byteIDs[word[0]]; id >= 0 {
			out = append(out, id)
		}
		return out
	}
	if b.words != nil {
		if id, ok := b.words[word]; ok {
			return append(out, id)
		}
	}
	if len(word) > shortWord {
		return b.mergeLong(w, out, word)
	}
	slot := b.cache.slot(word)
	if e := slot.Load(); e != nil && e.word == word {
		return append(out, e.ids...)
	}
	start := len(out)
	out = b.mergeShort(w, out, word)
	slot.Store(newCached(word, out[start:]))
	return out
}

// mergeShort keeps the rank of each pair beside its left token and rescans after each merge.
func (b *bpe) mergeShort(w *worker, out []int32, word string) []int32 {
	n := 0
	for i := range len(word) {
		if id := b.byteIDs[word[i]]; id >= 0 {
			w.ids[n] = id
			n++
		}
	}
	for i := 0; i+1 < n; i++ {
		w.ranks[i], _ = b.merges.find(w.ids[i], w.ids[i+1])
	}
	for n > 1 {
		best := 0
		for i := 1; i < n-1; i++ {
			if w.ranks[i] < w.ranks[best] {
				best = i
			}
		}
		if w.ranks[best] == noRank {
			break
		}
		w.steps++
		_, w.ids[best] = b.merges.find(w.ids[best], w.ids[best+1])
		copy(w.ids[best+1:n-1], w.ids[best+2:n])
		copy(w.ranks[best+1:n-1], w.ranks[best+2:n])
		n--
		if best+1 < n {
			w.ranks[best], _ = b.merges.find(w.ids[best], w.ids[best+1])
		}
		if best > 0 {
			w.ranks[best-1], _ = b.merges.find(w.ids[best-1], w.ids[best])
		}
	}
	return append(out, w.ids[:n]...)
}

// noRank is the rank of a pair that doesn't merge.
const noRank = 1<<31 - 1

// pairTable maps a pair of tokens to its rank and to the token that it merges into: open addressing, at most half full.
type pairTable struct {
	slots []pairSlot
	odd   uint64 // random, so that no file can choose pairs that collide
	shift uint
}

type pairSlot struct {
	left, right int32 // left is -1 in an empty slot
	rank, id    int32
}

func newPairTable(n int) pairTable {
	bits := uint(1)
	for 1<<bits < 2*n {
		bits++
	}
	t := pairTable{make([]pairSlot, 1<<bits), rand.Uint64() | 1, 64 - bits}
	for i := range t.slots {
		t.slots[i].left = -1
	}
	return t
}

// at returns the pair's slot, or the empty one where it belongs.
func (t *pairTable) at(left, right int32) *pairSlot {
	key := uint64(uint32(left))<<32 | uint64(uint32(right))
	i := key * t.odd >> t.shift
	for {
		s := &t.slots[i]
		if s.left == left && s.right == right || s.left < 0 {
			return s
		}
		i = (i + 1) & uint64(len(t.slots)-1)
	}
}

func (t *pairTable) set(left, right, rank, id int32) {
	*t.at(left, right) = pairSlot{left, right, rank, id}
}

// find returns noRank for a pair that doesn't merge.
func (t *pairTable) find(left, right int32) (rank, id int32) {
	if s := t.at(left, right); s.left >= 0 {
		return s.rank, s.id
	}
	return noRank, -1
}

// wordCache remembers the tokens of short words. A word has one slot and replaces whatever was there, so the size is
// bounded and a lookup takes no lock.
type wordCache struct {
	seed  maphash.Seed
	slots []atomic.Pointer[cachedWord]
}

const cacheSlots = 1 << 14

type cachedWord struct {
	word string
	ids  []int32
}

func newWordCache() wordCache {
	return wordCache{maphash.MakeSeed(), make([]atomic.Pointer[cachedWord], cacheSlots)}
}

func (c *wordCache) slot(word string) *atomic.Pointer[cachedWord] {
	return &c.slots[maphash.String(c.seed, word)%cacheSlots]
}

// newCached copies both, since a word is part of a text that shouldn't stay in memory because of it.
func newCached(word string, ids []int32) *cachedWord {
	return &cachedWord{string(append([]byte(nil), word...)), append([]int32(nil), ids...)}
}

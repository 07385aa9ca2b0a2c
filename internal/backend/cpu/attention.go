package cpu

import (
	"fmt"

	"cotenant/internal/backend"
)

// Attention's order of sums. The keys of a sequence are cut into blocks of about keyBlock, at multiples of the block from
// the sequence's start. Within a block: scores, softmax with the block's own largest score, weighted values in order of
// position. Blocks are then merged in order, each rescaled to the largest score so far. None of it depends on which rows
// are computed together, so that a prompt gives the same result in chunks of any size and a block can have its own thread.
const (
	keyBlock = 256
	tileRows = 24 // (row, query head) pairs that share the loaded keys and values
)

// attnTask is one thread's piece: rows of a sequence and the query heads of one key head, over all key blocks, or over
// block alone with the result left in partial.
type attnTask struct {
	seq, head   int
	first, rows int // rows of the sequence
	block       int // -1: all
	partial     int // offset in attention.partial
}

// attention is the plan of a step's attention, the same for all layers.
type attention struct {
	a        backend.Attention
	c        backend.KVConfig
	valid    bool
	tasks    []attnTask
	merges   []attnTask // split tasks: block is their number of blocks
	partial  []float32  // [top, sum, weighted values] for each (row, head) of each split task
	keyBlock int
}

// Attention implements backend.Backend. A page outside the memory, or missing for a row's position, is an error of the
// step.
func (b *cpuBackend) Attention(dst, qkv backend.Buffer, a backend.Attention, memory backend.KV, layer int) {
	const op = "Attention"
	b.ops.attn = attnRun{plan: &b.plan, k: b.k, scratch: b.scratch, batch: &b.batch, m: kvOf(memory, a, layer, op), layer: layer,
		out: data(dst, op), x: data(qkv, op)}
	r := &b.ops.attn
	fits(op, b.batch.rows(), a.QKVWidth(), r.x)
	fits(op, b.batch.rows(), a.Heads*a.HeadDim, r.out)
	p := &b.plan
	if !p.valid || p.a != a || p.c != r.m.c {
		if err := p.make(&b.batch, a, r.m.c, b.pool.threads); err != nil {
			b.fail(fmt.Errorf("cpu backend: attention: %w", err))
			return
		}
	}
	b.pool.run(len(p.tasks), r)
	for i := range p.merges {
		r.merge(&p.merges[i])
	}
}

// make plans a step: tiles of rows, and where a sequence has only one tile, its blocks apart.
func (p *attention) make(b *batch, a backend.Attention, c backend.KVConfig, threads int) error {
	p.valid, p.a, p.c = false, a, c
	p.tasks, p.merges = p.tasks[:0], p.merges[:0]
	p.keyBlock = max(1, keyBlock/c.PageSize) * c.PageSize
	group := a.Heads / a.KVHeads
	tile := max(1, tileRows/group)
	partial := 0
	for si, s := range b.seqs {
		end := s.Past + s.Rows
		if (end-1)/c.PageSize >= len(s.Pages) {
			return fmt.Errorf("sequence %d: %d pages of %d hold no token %d", si, len(s.Pages), c.PageSize, end-1)
		}
		for _, page := range s.Pages[:(end-1)/c.PageSize+1] {
			if page < 0 || int(page) >= c.Pages {
				return fmt.Errorf("sequence %d: page %d of %d", si, page, c.Pages)
			}
		}
		blocks := (end + p.keyBlock - 1) / p.keyBlock
		split := threads > 1 && s.Rows <= tile && blocks > 1
		for head := range a.KVHeads {
			if split {
				t := attnTask{seq: si, head: head, rows: s.Rows, partial: partial}
				for t.block = range blocks {
					p.tasks = append(p.tasks, t)
					t.partial += s.Rows * group * (2 + a.HeadDim)
				}
				p.merges = append(p.merges, attnTask{seq: si, head: head, rows: s.Rows, block: blocks, partial: partial})
				partial = t.partial
				continue
			}
			for last := s.Rows; last > 0; last -= min(tile, last) { // the longest first
				n := min(tile, last)
				p.tasks = append(p.tasks, attnTask{seq: si, head: head, first: last - n, rows: n, block: -1})
			}
		}
	}
	p.partial = grow(&p.partial, partial)
	p.valid = true
	return nil
}

// attnRun is the job of one layer's attention.
type attnRun struct {
	plan    *attention
	k       *kernels
	scratch []*scratch
	batch   *batch
	m       *kv
	layer   int
	out, x  []float32
}

// tile is a task's working memory: n pairs of row and query head, in this order.
type tile struct {
	group, n, d int
	q, acc      []float32 // [n, d]
	top, sum    []float32 // [n] the largest score, the sum of exp(score-top); acc is the sum of exp(score-top)*value
	scores      []float32 // [n, ld]
	ld          int       // at least keyBlock, a multiple of maxLanes
	block       struct{ top, sum, acc []float32 }
	many        *[maxTogether][]float32 // for wide
}

func (r *attnRun) tile(s *scratch, rows int) tile {
	a := r.plan.a
	t := tile{group: a.Heads / a.KVHeads, d: a.HeadDim, many: &s.many}
	t.n = rows * t.group
	t.ld = (r.plan.keyBlock + maxLanes - 1) / maxLanes * maxLanes
	mem := grow(&s.attn, t.n*(3*t.d+4+t.ld))
	take := func(n int) []float32 {
		v := mem[:n:n]
		mem = mem[n:]
		return v
	}
	t.q, t.acc, t.block.acc = take(t.n*t.d), take(t.n*t.d), take(t.n*t.d)
	t.scores = take(t.n * t.ld)
	t.top, t.sum, t.block.top, t.block.sum = take(t.n), take(t.n), take(t.n), take(t.n)
	return t
}

func (r *attnRun) do(thread, i int) {
	t := &r.plan.tasks[i]
	a, seq := r.plan.a, &r.batch.seqs[t.seq]
	w := r.tile(r.scratch[thread], t.rows)
	span := w.group * w.d
	for i := range t.rows {
		row := r.x[(seq.Row+t.first+i)*a.QKVWidth():]
		copy(w.q[i*span:(i+1)*span], row[t.head*span:(t.head+1)*span])
	}
	if t.block >= 0 {
		skip := r.block(&w, seq, t, t.block)
		p := r.plan.partial[t.partial:]
		for i := skip; i < w.n; i++ {
			at := p[i*(2+w.d) : (i+1)*(2+w.d)]
			at[0], at[1] = w.block.top[i], w.block.sum[i]
			copy(at[2:], w.block.acc[i*w.d:(i+1)*w.d])
		}
		return
	}
	blocks := (seq.Past + t.first + t.rows + r.plan.keyBlock - 1) / r.plan.keyBlock
	for b := range blocks {
		skip := r.block(&w, seq, t, b)
		for i := skip; i < w.n; i++ {
			acc := w.block.acc[i*w.d : (i+1)*w.d]
			r.k.join(&w.top[i], &w.sum[i], w.acc[i*w.d:(i+1)*w.d], w.block.top[i], w.block.sum[i], acc, b == 0)
		}
	}
	for i := range w.n {
		r.write(seq, t, i, w.sum[i], w.acc[i*w.d:(i+1)*w.d])
	}
}

// block computes top, sum and acc of a block of keys for the tile's pairs, but for the first skip pairs, whose rows come
// before the block.
func (r *attnRun) block(w *tile, seq *backend.Seq, t *attnTask, block int) (skip int) {
	size, kb := r.m.c.PageSize, r.plan.keyBlock
	start := block * kb
	keys := func(i int) int { return min(kb, seq.Past+t.first+i/w.group+1-start) } // that pair i sees
	for keys(skip) <= 0 {
		skip += w.group
	}
	most, least := keys(w.n-1), keys(skip)
	n, d := w.n-skip, w.d
	page := func(k int) int { return int(seq.Pages[(start+k)/size]) }
	for k := 0; k < most; {
		scores, q := w.scores[skip*w.ld+k:], w.q[skip*d:]
		if many := r.k.together; many > 0 && size == 16 && k+(many-1)*size < most {
			for i := range many {
				w.many[i] = r.m.keys(r.layer, page(k+i*size), t.head)
			}
			r.k.wide(scores, w.ld, q, d, w.many, size, n, d, false)
			k += many * size
			continue
		}
		r.k.tile(scores, w.ld, q, d, r.m.keys(r.layer, page(k), t.head), size, n, size, d, false)
		k += size
	}
	for i := skip; i < w.n; i++ {
		w.block.top[i], w.block.sum[i] = r.k.softmax(w.scores[i*w.ld:i*w.ld+keys(i)], r.plan.a.Scale)
	}
	// Values of positions that a row doesn't see are left alone, not weighted with 0: they may be anything, NaN included.
	for k := 0; k < least; k += size {
		r.weigh(w, skip, n, k, r.m.values(r.layer, page(k), t.head), min(size, least-k), k > 0)
	}
	for i := skip; i < w.n; i += w.group {
		for k := least; k < keys(i); {
			at := k % size
			m := min(size-at, keys(i)-k)
			r.weigh(w, i, w.group, k, r.m.values(r.layer, page(k), t.head)[at*d:], m, true)
			k += m
		}
	}
	return skip
}

// weigh adds m values v, weighted with the scores from k on, to the block's sums of n pairs from first on.
func (r *attnRun) weigh(w *tile, first, n, k int, v []float32, m int, add bool) {
	d, acc, scores := w.d, w.block.acc[first*w.d:], w.scores[first*w.ld+k:]
	step := 16 * r.k.together
	j := 0
	for ; step > 0 && j+step <= d; j += step {
		for i := range r.k.together {
			w.many[i] = v[j+16*i:]
		}
		r.k.wide(acc[j:], d, scores, w.ld, w.many, d, n, m, add)
	}
	if j < d {
		r.k.tile(acc[j:], d, scores, w.ld, v[j:], d, n, d-j, m, add)
	}
}

// join adds a block's result to top, sum and acc; first: there is nothing yet.
func (k *kernels) join(top, sum *float32, acc []float32, blockTop, blockSum float32, blockAcc []float32, first bool) {
	if first {
		*top, *sum = blockTop, blockSum
		copy(acc, blockAcc)
		return
	}
	largest := *top
	if blockTop > largest {
		largest = blockTop
	}
	f, g := exp(*top-largest), exp(blockTop-largest)
	*top, *sum = largest, *sum*f+blockSum*g
	k.blend(acc, blockAcc, f, g)
}

// write finishes pair i of a task.
func (r *attnRun) write(seq *backend.Seq, t *attnTask, i int, sum float32, acc []float32) {
	a := r.plan.a
	group := a.Heads / a.KVHeads
	at := ((seq.Row+t.first+i/group)*a.Heads + t.head*group + i%group) * a.HeadDim
	out := r.out[at : at+len(acc)]
	inv := 1 / sum
	for j, v := range acc {
		out[j] = v * inv
	}
}

// merge joins the blocks of a split task.
func (r *attnRun) merge(t *attnTask) {
	seq, d := &r.batch.seqs[t.seq], r.plan.a.HeadDim
	group := r.plan.a.Heads / r.plan.a.KVHeads
	n := t.rows * group
	for i := range n {
		var at []float32
		for b := range t.block {
			if b*r.plan.keyBlock > seq.Past+t.first+i/group {
				break
			}
			p := r.plan.partial[t.partial+(b*n+i)*(2+d):][:2+d]
			if b == 0 {
				at = p
				continue
			}
			r.k.join(&at[0], &at[1], at[2:], p[0], p[1], p[2:], false)
		}
		r.write(seq, t, i, at[1], at[2:])
	}
}

package cpu

import (
	"fmt"
	"math"
	"testing"

	"cotenant/internal/backend"
)

// ropeTables are real ones: base 10,000.
func ropeTables(positions, dim int, interleaved bool) backend.RoPE {
	r := backend.RoPE{Dim: dim, Interleaved: interleaved}
	for p := range positions {
		for i := range dim / 2 {
			a := float64(p) * math.Pow(10000, -2*float64(i)/float64(dim))
			r.Cos = append(r.Cos, float32(math.Cos(a)))
			r.Sin = append(r.Sin, float32(math.Sin(a)))
		}
	}
	return r
}

// rotated is a copy of a qkv row with RoPE applied in float64.
func rotated(row []float32, a backend.Attention, r backend.RoPE, pos int) []float64 {
	out := make([]float64, len(row))
	for i, v := range row {
		out[i] = float64(v)
	}
	half := r.Dim / 2
	for h := range a.Heads + a.KVHeads {
		for i := range half {
			u, v := h*a.HeadDim+i, h*a.HeadDim+i+half
			if r.Interleaved {
				u, v = h*a.HeadDim+2*i, h*a.HeadDim+2*i+1
			}
			c, s := float64(r.Cos[pos*half+i]), float64(r.Sin[pos*half+i])
			out[u], out[v] = out[u]*c-out[v]*s, out[u]*s+out[v]*c
		}
	}
	return out
}

// attend is the attention of the last row of h in float64.
func attend(h [][]float64, a backend.Attention) []float64 {
	out := make([]float64, a.Heads*a.HeadDim)
	q := h[len(h)-1]
	for head := range a.Heads {
		kv := head / (a.Heads / a.KVHeads)
		s := make([]float64, len(h))
		top := math.Inf(-1)
		for t, row := range h {
			k := row[(a.Heads+kv)*a.HeadDim:]
			for i := range a.HeadDim {
				s[t] += q[head*a.HeadDim+i] * k[i]
			}
			s[t] *= float64(a.Scale)
			top = max(top, s[t])
		}
		var sum float64
		for t := range s {
			s[t] = math.Exp(s[t] - top)
			sum += s[t]
		}
		for t, row := range h {
			v := row[(a.Heads+a.KVHeads+kv)*a.HeadDim:]
			for i := range a.HeadDim {
				out[head*a.HeadDim+i] += s[t] / sum * v[i]
			}
		}
	}
	return out
}

var attentionShapes = []struct {
	a    backend.Attention
	page int
	rope int
	pair bool
}{
	{backend.Attention{Heads: 9, KVHeads: 3, HeadDim: 64, Scale: 0.125}, 16, 64, true},
	{backend.Attention{Heads: 3, KVHeads: 1, HeadDim: 32, Scale: 0.2}, 32, 32, false},
	{backend.Attention{Heads: 4, KVHeads: 1, HeadDim: 24, Scale: 0.2}, 5, 16, false}, // no multiples of a vector
	{backend.Attention{Heads: 28, KVHeads: 1, HeadDim: 16, Scale: 0.25}, 300, 16, false},
}

// TestAttention checks RoPEStore and Attention against float64 for a prompt in one piece at every batch size.
func TestAttention(t *testing.T) {
	const most = 65
	for _, s := range attentionShapes {
		w, ow := s.a.QKVWidth(), s.a.Heads*s.a.HeadDim
		tables := ropeTables(most, s.rope, s.pair)
		x := gaussian(random(uint64(w)), most*w)
		var h [][]float64
		var want []float64
		for i := range most {
			h = append(h, rotated(x[i*w:(i+1)*w], s.a, tables, i))
			want = append(want, attend(h, s.a)...)
		}
		eachPath(t, func(t *testing.T, b *cpuBackend) {
			rope := must(b.RoPE(tables))(t)
			for _, rows := range rowCounts {
				m := must(b.KV(backend.KVConfig{Layers: 2, KVHeads: s.a.KVHeads, HeadDim: s.a.HeadDim, PageSize: s.page, Pages: rows/s.page + 1}))(t)
				spoil(m)
				begin(t, b, rowsBatch(rows, s.page))
				qkv, dst := upload(t, b, x[:rows*w]), nans(t, b, rows*ow)
				b.RoPEStore(qkv, s.a, rope, m, 1)
				b.Attention(dst, qkv, s.a, m, 1)
				end(t, b)
				near(t, fmt.Sprintf("%+v, %d rows", s.a, rows), dst.v, want[:rows*ow], 2e-6)
			}
		})
	}
}

// spoil fills KV memory with NaN: nothing that was not stored may be used.
func spoil(m backend.KV) {
	v := m.(*kv).v
	for i := range v {
		v[i] = float32(math.NaN())
	}
}

// TestAttentionBatches runs three sequences in steps of mixed chunks and decodes, and alone one token at a time: results
// are equal bit for bit, and right.
func TestAttentionBatches(t *testing.T) {
	eachPath(t, func(t *testing.T, b *cpuBackend) {
		s := attentionShapes[1]
		const total, most = 600, 3
		cfg := backend.KVConfig{Layers: 1, KVHeads: s.a.KVHeads, HeadDim: s.a.HeadDim, PageSize: s.page, Pages: most * (total/s.page + 1)}
		tables := ropeTables(total, s.rope, s.pair)
		rope := must(b.RoPE(tables))(t)
		w, ow := s.a.QKVWidth(), s.a.Heads*s.a.HeadDim
		var x [most][]float32
		for i := range x {
			x[i] = gaussian(random(uint64(i)), total*w)
		}
		run := func(steps [][most]int) [most][]float32 {
			m := must(b.KV(cfg))(t)
			spoil(m)
			var done [most]int
			var out [most][]float32
			for _, step := range steps {
				var seqs [][2]int
				var in []float32
				for i, n := range step {
					seqs = append(seqs, [2]int{done[i], n})
					in = append(in, x[i][done[i]*w:(done[i]+n)*w]...)
				}
				batch := fixedBatch(seqs, s.page, total/s.page+1)
				begin(t, b, batch)
				qkv, dst := upload(t, b, in), nans(t, b, len(in)/w*ow)
				b.RoPEStore(qkv, s.a, rope, m, 0)
				b.Attention(dst, qkv, s.a, m, 0)
				end(t, b)
				for i, q := range batch.Seqs {
					out[indexOf(step, i)] = append(out[indexOf(step, i)], dst.v[q.Row*ow:(q.Row+q.Rows)*ow]...)
					done[indexOf(step, i)] += q.Rows
				}
			}
			return out
		}
		mixed := run([][most]int{{40, 1, 0}, {1, 300, 7}, {255, 1, 1}, {1, 1, 90}, {9, 63, 1}, {64, 2, 256}, {1, 0, 1}, {1, 1, 8}})
		for i := range x {
			n := len(mixed[i]) / ow
			var one [][most]int
			for range n {
				var step [most]int
				step[i] = 1
				one = append(one, step)
			}
			same(t, fmt.Sprint("sequence ", i), mixed[i], run(one)[i])
			var h [][]float64
			for p := range n {
				h = append(h, rotated(x[i][p*w:(p+1)*w], s.a, tables, p))
			}
			for _, p := range []int{0, 1, n / 2, n - 1} {
				near(t, fmt.Sprint("sequence ", i, " row ", p), mixed[i][p*ow:(p+1)*ow], attend(h[:p+1], s.a), 2e-6)
			}
		}
	})
}

// indexOf returns which sequence is the n-th that has rows in a step.
func indexOf(step [3]int, n int) int {
	for i, rows := range step {
		if rows > 0 {
			if n == 0 {
				return i
			}
			n--
		}
	}
	panic("no such sequence")
}

// fixedBatch has sequences of {past, rows}, each on its own pages; those without rows are left out.
func fixedBatch(seqs [][2]int, pageSize, pages int) *backend.Batch {
	b := &backend.Batch{}
	for i, s := range seqs {
		if s[1] == 0 {
			continue
		}
		q := backend.Seq{Row: len(b.Tokens), Rows: s[1], Past: s[0]}
		for p := range pages {
			q.Pages = append(q.Pages, int32(p*len(seqs)+i))
		}
		b.Seqs = append(b.Seqs, q)
		for j := range s[1] {
			pos := s[0] + j
			b.Tokens = append(b.Tokens, 0)
			b.Positions = append(b.Positions, int32(pos))
			b.Slots = append(b.Slots, q.Pages[pos/pageSize]*int32(pageSize)+int32(pos%pageSize))
		}
	}
	return b
}

// TestAttentionNaN checks that a NaN in a row's query reaches that row alone, and one in a key reaches no earlier row.
func TestAttentionNaN(t *testing.T) {
	eachPath(t, func(t *testing.T, b *cpuBackend) {
		s := attentionShapes[0]
		const rows, bad = 40, 21
		w, ow := s.a.QKVWidth(), s.a.Heads*s.a.HeadDim
		for _, at := range []int{3 * 64, (9 + 1) * 64, (9 + 3 + 1) * 64} { // a query's, a key's, a value's element; key head 1
			m := must(b.KV(backend.KVConfig{Layers: 1, KVHeads: 3, HeadDim: 64, PageSize: 16, Pages: 3}))(t)
			spoil(m)
			rope := must(b.RoPE(ropeTables(rows, s.rope, s.pair)))(t)
			x := gaussian(random(5), rows*w)
			x[bad*w+at] = float32(math.NaN())
			begin(t, b, rowsBatch(rows, 16))
			qkv, dst := upload(t, b, x), nans(t, b, rows*ow)
			b.RoPEStore(qkv, s.a, rope, m, 0)
			b.Attention(dst, qkv, s.a, m, 0)
			end(t, b)
			for i := range rows {
				v := dst.v[i*ow+3*64 : i*ow+6*64] // the query heads of key head 1
				hit := false
				for _, f := range v {
					hit = hit || f != f
				}
				if want := i == bad || i > bad && at != 3*64; hit != want {
					t.Errorf("NaN in element %d of row %d: row %d has NaN: %v", at, bad, i, hit)
				}
			}
		}
	})
}

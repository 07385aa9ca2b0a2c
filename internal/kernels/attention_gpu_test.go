package kernels

import (
	"fmt"
	"math"
	"math/bits"
	"math/rand/v2"
	"slices"
	"testing"

	"cotenant/internal/cuda"
)

// seqRows is a sequence of a step: how many rows, and how many tokens before them.
type seqRows struct{ rows, past int }

// attention is a step on the host and on the device. Pages that no token is in, and the rest of a sequence's last page, hold NaN.
type attention struct {
	g                               *device
	h                               Heads
	page, maxPages, pages           int // tokens of a page; pages of a table; of the cache
	seqs                            []seqRows
	first                           []int32
	total                           int
	qkv, cache                      []uint16
	tables                          []int32
	dqkv, dcache, dtables           cuda.Pointer
	drow, drows, dpast, part, count cuda.Pointer
}

func newAttention(g *device, r *rand.Rand, h Heads, page int, seqs []seqRows) *attention {
	a := &attention{g: g, h: h, page: page, seqs: seqs}
	pages := 0
	var rows, past []int32
	for _, s := range seqs {
		a.first = append(a.first, int32(a.total))
		rows, past = append(rows, int32(s.rows)), append(past, int32(s.past))
		a.total += s.rows
		n := ceil(s.past+s.rows, page)
		pages += n
		a.maxPages = max(a.maxPages, n)
	}
	a.qkv = normalBF16(r, a.total*(h.Heads+2*h.KVHeads)*h.Dim, 1)
	a.pages = pages + 3
	order := r.Perm(a.pages)
	a.cache = make([]uint16, a.pages*h.KVHeads*2*page*h.Dim)
	for i := range a.cache {
		a.cache[i] = 0x7fc0
	}
	a.tables = make([]int32, len(seqs)*a.maxPages)
	for i := range a.tables {
		a.tables[i] = -1 << 20 // to be read by nobody
	}
	next := 0
	for i, s := range seqs {
		for p := range ceil(s.past+s.rows, page) {
			a.tables[i*a.maxPages+p] = int32(order[next])
			next++
		}
		for token := range s.past + s.rows {
			for head := range h.KVHeads {
				for part := range 2 {
					at := a.at(i, head, token, part)
					copy(a.cache[at:at+h.Dim], normalBF16(r, h.Dim, 1))
				}
			}
		}
	}
	a.dqkv, a.dcache, a.dtables = upload(g, a.qkv, 0), upload(g, a.cache, 0), upload(g, a.tables, 0)
	a.drow, a.drows, a.dpast = upload(g, a.first, 0), upload(g, rows, 0), upload(g, past, 0)
	a.part = g.alloc(int(DecodePartial(h, len(seqs))))
	a.count = upload(g, make([]byte, DecodeArrived(h, len(seqs))), 0)
	return a
}

// at is the index in cache of a token's key (part 0) or value (1).
func (a *attention) at(seq, head, token, part int) int {
	page := int(a.tables[seq*a.maxPages+token/a.page])
	return (((page*a.h.KVHeads+head)*2+part)*a.page + token%a.page) * a.h.Dim
}

func (a *attention) longest() (tokens, rows int) {
	for _, s := range a.seqs {
		tokens, rows = max(tokens, s.past+s.rows), max(rows, s.rows)
	}
	return tokens, rows
}

func (a *attention) launches(gpu GPU, out cuda.Pointer, dependent bool) []*cuda.Launch {
	scale := float32(1 / math.Sqrt(float64(a.h.Dim)))
	tokens, rows := a.longest()
	args := []any{a.dqkv, out, a.dcache, a.dtables, a.drow, a.drows, a.dpast, a.maxPages, a.h.Heads, a.h.KVHeads, bits.Len(uint(a.page)) - 1, scale}
	var all []*cuda.Launch
	if slices.ContainsFunc(a.seqs, func(s seqRows) bool { return s.rows == 1 }) {
		p := DecodeAttention(gpu, a.h, len(a.seqs), tokens)
		all = append(all, a.g.launch(p, dependent, append(args, a.part, a.count, p.Parts, p.Ring)...))
	}
	if rows > 1 {
		p := PrefillAttention(gpu, a.h, len(a.seqs), rows)
		if p.Maps {
			args = append(args, a.g.tensorMap(a.g.d.EncodeKVBF16(a.dcache, a.pages*a.h.KVHeads*2*a.page, a.h.Dim)), len(a.seqs), rows)
		}
		all = append(all, a.g.launch(p, dependent, args...))
	}
	return all
}

// compute runs the kernels twice, and returns out of the second time.
func (a *attention) compute(gpu GPU) []uint16 {
	a.g.t.Helper()
	n := a.total * a.h.Heads * a.h.Dim
	out := a.g.alloc(2*n + 4096)
	for range 2 {
		for _, l := range a.launches(gpu, out, false) {
			a.g.run(l)
		}
	}
	got := download[uint16](a.g, out, n+2048)
	for _, b := range got[n:] {
		if b != 0xffff {
			a.g.t.Fatal("wrote behind out")
		}
	}
	return got[:n]
}

// want returns a row's output for a head in float64.
func (a *attention) want(seq, row, head int) []float64 {
	D := a.h.Dim
	q := a.qkv[((int(a.first[seq])+row)*(a.h.Heads+2*a.h.KVHeads)+head)*D:][:D]
	kv := head / (a.h.Heads / a.h.KVHeads)
	scores := make([]float64, a.seqs[seq].past+row+1)
	top := math.Inf(-1)
	for token := range scores {
		at := a.at(seq, kv, token, 0)
		for d := range D {
			scores[token] += fromBF16(q[d]) * fromBF16(a.cache[at+d])
		}
		scores[token] /= math.Sqrt(float64(D))
		top = max(top, scores[token])
	}
	out, total := make([]float64, D), 0.0
	for token, s := range scores {
		p := math.Exp(s - top)
		total += p
		at := a.at(seq, kv, token, 1)
		for d := range D {
			out[d] += p * fromBF16(a.cache[at+d])
		}
	}
	for d := range out {
		out[d] /= total
	}
	return out
}

var attentionCases = []struct {
	h    Heads
	page int
	seqs []seqRows
}{
	{Heads{14, 2, 64}, 16, []seqRows{{1, 0}, {1, 1}, {1, 15}, {1, 16}, {1, 31}, {1, 255}, {1, 256}, {1, 711}, {1, 4095}, {1, 4096}, {1, 9000}}},
	{Heads{32, 8, 128}, 16, []seqRows{{1, 0}, {1, 30}, {1, 256}, {1, 711}, {1, 5000}}},
	{Heads{9, 3, 64}, 32, []seqRows{{1, 100}, {5, 0}, {1, 300}, {2, 63}, {130, 64}}},
	{Heads{4, 2, 64}, 16, []seqRows{{704, 0}, {3, 700}, {1, 703}}},
	{Heads{14, 2, 64}, 64, []seqRows{{65, 0}, {64, 1}, {63, 1000}, {1, 2}}},
	{Heads{32, 8, 128}, 128, []seqRows{{200, 0}, {64, 64}, {2, 0}}},
	{Heads{40, 4, 128}, 16, []seqRows{{1, 500}, {20, 500}}},
	{Heads{16, 1, 64}, 16, []seqRows{{1, 333}}},
	{Heads{32, 8, 128}, 16, []seqRows{{704, 0}, {1, 3}, {300, 4000}}}, // more items than blocks
}

// The kernels against float64. The weights of values are rounded to bf16, 2^-9 of a mean of |v| of about 1.
func TestAttentionOnGPU(t *testing.T) {
	g := openDevice(t)
	r := rand.New(rand.NewPCG(7, 8))
	for _, c := range attentionCases {
		a := newAttention(g, r, c.h, c.page, c.seqs)
		for _, gpu := range []GPU{{80, g.gpu.SMs}, g.gpu, {80, 1}, {g.gpu.Capability, 1}} {
			out := a.compute(gpu)
			for range 400 {
				seq := r.IntN(len(c.seqs))
				row, head := r.IntN(c.seqs[seq].rows), r.IntN(c.h.Heads)
				want := a.want(seq, row, head)
				at := ((int(a.first[seq])+row)*c.h.Heads + head) * c.h.Dim
				for d, w := range want {
					if got := fromBF16(out[at+d]); !(math.Abs(got-w) <= 0x1p-8*math.Abs(w)+0x1p-8) {
						t.Fatalf("%v page %d on %d: sequence %v row %d head %d element %d is %g, want %g", c.h, c.page, gpu.Capability, c.seqs[seq], row, head, d, got, w)
					}
				}
			}
		}
	}
}

// A row's attention is the same to the bit alone and among other sequences, and however a prompt is cut into steps of more than one
// row; what is not finite stays in its sequence.
func TestAttentionRowsAreIndependent(t *testing.T) {
	g := openDevice(t)
	r := rand.New(rand.NewPCG(9, 10))
	h := Heads{14, 2, 64}
	seqs := []seqRows{{1, 711}, {300, 0}, {1, 20}, {64, 130}, {1, 5000}}
	a := newAttention(g, r, h, 16, seqs)
	all := a.compute(g.gpu)
	W := (h.Heads + 2*h.KVHeads) * h.Dim
	part := func(seq, from, rows int) []uint16 {
		b := *a
		b.seqs = []seqRows{{rows, seqs[seq].past + from}}
		b.first, b.total = []int32{0}, rows
		at := (int(a.first[seq]) + from) * W
		b.dqkv = upload(g, a.qkv[at:at+rows*W], 0)
		b.dtables = upload(g, a.tables[seq*a.maxPages:(seq+1)*a.maxPages], 0)
		b.drow, b.drows, b.dpast = upload(g, []int32{0}, 0), upload(g, []int32{int32(rows)}, 0), upload(g, []int32{int32(seqs[seq].past + from)}, 0)
		return b.compute(g.gpu)
	}
	for _, c := range [][3]int{{0, 0, 1}, {2, 0, 1}, {4, 0, 1}, {1, 0, 300}, {1, 0, 100}, {1, 37, 200}, {1, 298, 2}, {3, 0, 64}, {3, 31, 33}} {
		at := (int(a.first[c[0]]) + c[1]) * h.Heads * h.Dim
		if got := part(c[0], c[1], c[2]); !slices.Equal(got, all[at:at+len(got)]) {
			t.Errorf("rows %d to %d of sequence %v are others alone", c[1], c[1]+c[2], seqs[c[0]])
		}
	}
	bad := slices.Clone(a.cache)
	for _, seq := range []int{1, 2} {
		at := a.at(seq, 0, 3, 0)
		bad[at], bad[at+a.page*h.Dim] = 0x7fc0, 0x7f80
	}
	g.must(g.d.ToDevice(a.dcache, raw(bad)))
	got := a.compute(g.gpu)
	for seq := range seqs {
		from := int(a.first[seq]) * h.Heads * h.Dim
		to := from + seqs[seq].rows*h.Heads*h.Dim
		if same := slices.Equal(got[from:to], all[from:to]); same == (seq == 1 || seq == 2) {
			t.Errorf("sequence %d: unchanged %v", seq, same)
		}
	}
}

// Decoding that rotates and stores: against float64 on rows that were rotated and stored here, and its cache against theirs.
func TestDecodeAttentionRoPEOnGPU(t *testing.T) {
	g := openDevice(t)
	r := rand.New(rand.NewPCG(15, 16))
	for _, c := range attentionCases {
		for interleaved := range 2 {
			a := newAttention(g, r, c.h, c.page, c.seqs)
			tokens, _ := a.longest()
			D := c.h.Dim
			cos, sin := make([]float32, tokens*D/2), make([]float32, tokens*D/2)
			for i := range cos {
				s, c := math.Sincos(float64(i/(D/2)) * math.Pow(10000, -float64(i%(D/2))/float64(D/2)))
				cos[i], sin[i] = float32(c), float32(s)
			}
			dcos, dsin := upload(g, cos, 0), upload(g, sin, 0)
			// The device's cache has NaN where the rows' keys and values belong; the host's gets them.
			empty := slices.Clone(a.cache)
			for seq, s := range c.seqs {
				if s.rows != 1 {
					continue
				}
				row := a.qkv[int(a.first[seq])*(c.h.Heads+2*c.h.KVHeads)*D:][:(c.h.Heads+2*c.h.KVHeads)*D]
				for head := range c.h.Heads + c.h.KVHeads {
					h := row[head*D:][:D]
					for i := range D / 2 {
						x, y := i, i+D/2
						if interleaved == 1 {
							x, y = 2*i, 2*i+1
						}
						c, s := float64(cos[s.past*D/2+i]), float64(sin[s.past*D/2+i])
						h[x], h[y] = toBF16(float32(fromBF16(h[x])*c-fromBF16(h[y])*s)), toBF16(float32(fromBF16(h[y])*c+fromBF16(h[x])*s))
					}
				}
				for head := range c.h.KVHeads {
					for part := range 2 {
						at := a.at(seq, head, s.past, part)
						copy(a.cache[at:at+D], row[(c.h.Heads+head+part*c.h.KVHeads)*D:][:D])
						for d := range D {
							empty[at+d] = 0x7fc0
						}
					}
				}
			}
			for _, gpu := range []GPU{{80, g.gpu.SMs}, g.gpu, {80, 1}, {g.gpu.Capability, 1}} {
				g.must(g.d.ToDevice(a.dcache, raw(empty)))
				n := a.total * c.h.Heads * D
				out := g.alloc(2 * n)
				p := DecodeAttentionRoPE(gpu, c.h, len(c.seqs), tokens)
				for range 2 { // what is stored is stored again
					g.run(g.launch(p, false, a.dqkv, out, a.dcache, a.dtables, a.drow, a.drows, a.dpast, a.maxPages, c.h.Heads, c.h.KVHeads,
						bits.Len(uint(c.page))-1, float32(1/math.Sqrt(float64(D))), a.part, a.count, dcos, dsin, interleaved, p.Parts, p.Ring))
				}
				cache, got := download[uint16](g, a.dcache, len(a.cache)), download[uint16](g, out, n)
				if !slices.Equal(got, a.rotateFirst(gpu, empty, dcos, dsin, interleaved, n, tokens)) || !slices.Equal(cache, download[uint16](g, a.dcache, len(a.cache))) {
					t.Errorf("%v page %d on %d interleaved %d: rotating first has other results", c.h, c.page, gpu.Capability, interleaved)
				}
				for i, v := range cache {
					if want := a.cache[i]; v != want && !(math.Abs(fromBF16(v)-fromBF16(want)) <= 0x1p-7*math.Abs(fromBF16(want))+1e-6) {
						t.Fatalf("%v page %d on %d interleaved %d: element %d of the cache is %x, want %x", c.h, c.page, gpu.Capability, interleaved, i, v, want)
					}
				}
				for seq, s := range c.seqs {
					if s.rows != 1 {
						continue
					}
					head := r.IntN(c.h.Heads)
					for d, w := range a.want(seq, 0, head) {
						if v := fromBF16(got[(int(a.first[seq])*c.h.Heads+head)*D+d]); !(math.Abs(v-w) <= 0x1p-7*math.Abs(w)+0x1p-7) {
							t.Fatalf("%v page %d on %d: sequence %v head %d element %d is %g, want %g", c.h, c.page, gpu.Capability, s, head, d, v, w)
						}
					}
				}
			}
		}
	}
}

// rotateFirst does the same by rope_store of rows of sequences that have one, and DecodeAttention.
func (a *attention) rotateFirst(gpu GPU, cache []uint16, cos, sin cuda.Pointer, interleaved, n, tokens int) []uint16 {
	g, h := a.g, a.h
	g.must(g.d.ToDevice(a.dcache, raw(cache)))
	positions, slots := make([]int32, a.total), make([]int32, a.total)
	for i := range slots {
		slots[i] = -1
	}
	for seq, s := range a.seqs {
		if s.rows == 1 {
			page := a.tables[seq*a.maxPages+s.past/a.page]
			positions[a.first[seq]], slots[a.first[seq]] = int32(s.past), page*int32(a.page)+int32(s.past%a.page)
		}
	}
	width := (h.Heads + 2*h.KVHeads) * h.Dim
	qkv := g.alloc(2 * a.total * width)
	g.must(g.d.CopyAsync(qkv, a.dqkv, int64(2*a.total*width), g.stream))
	rope := Plan{Module: module(gpu, "engine"), Kernel: fmt.Sprintf("rope_store_%d", h.Dim), Grid: [3]uint32{uint32(ceil(a.total*width/16, 256)), 1, 1}, Block: [3]uint32{256, 1, 1}}
	none := cuda.Pointer(0)
	g.run(g.launch(rope, false, qkv, a.dcache, cos, sin, none, none, upload(g, positions, 0), upload(g, slots, 0), float32(0), h.Heads, h.KVHeads, a.total, interleaved, a.page))
	out := g.alloc(2 * n)
	p := DecodeAttention(gpu, h, len(a.seqs), tokens)
	g.run(g.launch(p, false, qkv, out, a.dcache, a.dtables, a.drow, a.drows, a.dpast, a.maxPages, h.Heads, h.KVHeads,
		bits.Len(uint(a.page))-1, float32(1/math.Sqrt(float64(h.Dim))), a.part, a.count, p.Parts, p.Ring))
	return download[uint16](g, out, n)
}

// Decoding and prefill of models of 0.5B and 8B.
func BenchmarkAttention(b *testing.B) {
	g := openDevice(b)
	r := rand.New(rand.NewPCG(11, 12))
	for _, h := range []Heads{{14, 2, 64}, {32, 8, 128}} {
		for _, c := range [][2]int{{1, 711}, {8, 711}, {64, 711}, {256, 711}, {1, 8000}} {
			benchDecode(g, r, h, c[0], c[1])
		}
		for _, c := range []struct {
			seqs int
			s    seqRows
		}{{1, seqRows{704, 0}}, {5, seqRows{704, 0}}, {1, seqRows{2048, 0}}, {1, seqRows{512, 4096}}, {64, seqRows{14, 688}}} {
			a := benchAttention(g, r, h, c.seqs, 1, c.s)
			out := g.alloc(a.total * h.Heads * h.Dim * 2)
			time := func(gpu GPU, dependent bool) float64 {
				var launches []*cuda.Launch
				for range 10 {
					launches = append(launches, a.launches(gpu, out, dependent)...)
				}
				return g.microseconds(launches, 5)
			}
			us, dependent, mma := time(g.gpu, false), time(g.gpu, true), time(GPU{80, g.gpu.SMs}, false)
			flop := 0.0
			for i := range c.s.rows {
				flop += 4 * float64(c.seqs*h.Heads*h.Dim*(c.s.past+i+1))
			}
			fmt.Printf("attention %v seqs %d %+v: us %.2f dependent %.2f TFLOP/s %.1f, as on sm_80 us %.2f\n", h, c.seqs, c.s, us, dependent, flop/dependent/1e6, mma)
		}
	}
}

// benchDecode times the ways of decode attention beside each other, * the one that is planned, alone and with the rotation, each
// behind the one before and begun early. Keys and values are in turn those of as many steps as L2 doesn't hold.
func benchDecode(g *device, r *rand.Rand, h Heads, seqs, past int) {
	bytes := seqs * (past + 1) * h.KVHeads * h.Dim * 4
	turns := min(1+200<<20/bytes, 256)
	n := max(turns, 8)
	a := benchAttention(g, r, h, seqs, turns, seqRows{1, past})
	out, angles := g.alloc(a.total*h.Heads*h.Dim*2), upload(g, make([]float32, (past+1)*h.Dim/2), 0)
	parts := min(ceil(past+1, decodeSplit), decodeSplits)
	plans := []Plan{DecodeAttention(g.gpu, h, seqs, past+1)}
	add := func(teams, ring, per int, cluster bool) {
		if p := decodePlan(g.gpu, h, seqs, parts, teams, ring, per, cluster); p != plans[0] {
			plans = append(plans, p)
		}
	}
	ring := 256 / h.Dim
	add(1, ring, 1, false)
	add(1, ring, 4, false)
	if g.gpu.Hopper() && parts <= 8 {
		add(1, ring, 1, true)
	}
	if g.gpu.Hopper() && h.Dim == 64 {
		add(3, 2, 6, false)
	}
	for i, p := range plans {
		var us [4]float64
		for k := range us {
			p, args := p, []any{a.part, a.count}
			if k >= 2 {
				p, args = p.rotating(), append(args, angles, angles, 0)
			}
			var launches []*cuda.Launch
			for j := range n {
				tables := a.dtables + cuda.Pointer(4*(j%turns)*seqs*a.maxPages)
				launches = append(launches, g.launch(p, k%2 == 1, append([]any{a.dqkv, out, a.dcache, tables, a.drow, a.drows, a.dpast, a.maxPages, h.Heads, h.KVHeads,
					bits.Len(uint(a.page)) - 1, float32(0.1)}, append(args, p.Parts, p.Ring)...)...))
			}
			us[k] = g.microseconds(launches, 5)
		}
		mark := ' '
		if i == 0 {
			mark = '*'
		}
		fmt.Printf("attention %v seqs %d behind %d %c %-18s grid %v: us %.2f dependent %.2f, with RoPE %.2f dependent %.2f, TB/s %.2f\n", h, seqs, past, mark, p.Kernel, p.Grid,
			us[0], us[1], us[2], us[3], float64(bytes)/us[1]/1e6)
	}
}

// benchAttention is newAttention with keys and values that repeat, so that it is made quickly, and with pages and tables of as many
// steps as turns says.
func benchAttention(g *device, r *rand.Rand, h Heads, seqs, turns int, s seqRows) *attention {
	const page = 16
	per := ceil(s.past+s.rows, page)
	a := &attention{g: g, h: h, page: page, maxPages: per, pages: seqs * per, total: seqs * s.rows}
	var row, rows, past []int32
	for i := range seqs {
		a.seqs = append(a.seqs, s)
		row, rows, past = append(row, int32(i*s.rows)), append(rows, int32(s.rows)), append(past, int32(s.past))
	}
	for turn := range turns {
		for i := range seqs {
			for p := range per {
				a.tables = append(a.tables, int32((turn*per+p)*seqs+i))
			}
		}
	}
	noise := normalBF16(r, 1<<20, 1)
	fill := func(n int) cuda.Pointer {
		p := g.alloc(2 * n)
		for at := 0; at < n; at += len(noise) {
			g.must(g.d.ToDevice(p+cuda.Pointer(2*at), raw(noise[:min(len(noise), n-at)])))
		}
		return p
	}
	a.dqkv, a.dcache, a.dtables = fill(a.total*(h.Heads+2*h.KVHeads)*h.Dim), fill(turns*seqs*per*h.KVHeads*2*page*h.Dim), upload(g, a.tables, 0)
	a.drow, a.drows, a.dpast = upload(g, row, 0), upload(g, rows, 0), upload(g, past, 0)
	a.part, a.count = g.alloc(int(DecodePartial(h, seqs))), upload(g, make([]byte, DecodeArrived(h, seqs)), 0)
	return a
}

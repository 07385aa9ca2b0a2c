package cuda

import (
	"strings"
	"testing"

	"cotenant/internal/backend"
	driver "cotenant/internal/cuda"
)

// planned builds what a decode step of a model launches, and runs nothing: weights have an address, not their memory.
func planned(t *testing.T, g *gpu, s shape, layers, rows int) []string {
	t.Helper()
	a := backend.Attention{Heads: s.heads, KVHeads: s.kvHeads, HeadDim: s.dim, Scale: 1}
	buffer := func(width int) backend.Buffer {
		b, err := g.Buffer(rows * width)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	x, normed, qkv, heads := buffer(s.hidden), buffer(s.hidden), buffer(a.QKVWidth()), buffer(s.heads*s.dim)
	gateUp, ffn, logits := buffer(2*s.ffn), buffer(s.ffn), buffer(s.vocab)
	outX, outHeads := buffer(s.hidden), buffer(s.heads*s.dim)
	memory, err := g.KV(backend.KVConfig{Layers: layers, KVHeads: s.kvHeads, HeadDim: s.dim, PageSize: 16, Pages: 45})
	if err != nil {
		t.Fatal(err)
	}
	turn := &rope{cos: 256, sin: 512, positions: 1024, dim: s.dim}
	norm := &vector{p: 1024, n: s.hidden}
	var bias backend.Vector
	if s.bias {
		bias = &vector{p: 2048, n: a.QKVWidth()}
	}
	matrixOf := func(rows, cols int) *matrix { return &matrix{p: bufferOf(x, "x").p, rows: rows, cols: cols} }
	head := matrixOf(s.vocab, s.hidden)

	b := &backend.Batch{}
	pages := make([]int32, 45) // 711 tokens of 16 a page
	for i := range rows {
		b.Tokens, b.Positions, b.Slots = append(b.Tokens, 1), append(b.Positions, 711), append(b.Slots, 0)
		b.Seqs, b.Outputs = append(b.Seqs, backend.Seq{Row: i, Rows: 1, Past: 711, Pages: pages}), append(b.Outputs, int32(i))
	}
	if err := g.Begin(b); err != nil {
		t.Fatal(err)
	}
	g.Embed(x, head)
	for i := range layers {
		x, heads := x, heads
		g.RMSNorm(normed, x, rows, norm, 1e-6)
		g.MatMul(qkv, normed, rows, matrixOf(a.QKVWidth(), s.hidden), bias, false)
		g.RoPEStore(qkv, a, turn, memory, i)
		g.Attention(heads, qkv, a, memory, i)
		if i == layers-1 { // as internal/model ends
			g.Gather(outX, x, s.hidden, 0, rows)
			g.Gather(outHeads, heads, s.heads*s.dim, 0, rows)
			x, heads = outX, outHeads
		}
		g.MatMul(x, heads, rows, matrixOf(s.hidden, s.heads*s.dim), nil, true)
		g.RMSNorm(normed, x, rows, norm, 1e-6)
		g.MatMul(gateUp, normed, rows, matrixOf(2*s.ffn, s.hidden), nil, false)
		g.SwiGLU(ffn, gateUp, rows, s.ffn)
		g.MatMul(x, ffn, rows, matrixOf(s.hidden, s.ffn), nil, true)
	}
	g.RMSNorm(normed, outX, rows, norm, 1e-6)
	g.MatMul(logits, normed, rows, head, nil, false)
	g.wide(bufferOf(logits, "logits"))
	g.record(op{kind: opSample, src: bufferOf(logits, "logits"), rows: g.padded(rows), n: s.vocab, first: s.vocab})
	if g.err != nil {
		t.Fatal(g.err)
	}
	p := &program{}
	if err := g.build(p, g.step.ops); err != nil {
		t.Fatal(err)
	}
	g.step.ops = nil
	return p.names[:p.used]
}

// What a token launches, so that a change of it is seen where there is no GPU: in all, and in a layer.
func TestLaunches(t *testing.T) {
	small := shape{heads: 14, kvHeads: 2, dim: 64, hidden: 896, ffn: 4864, vocab: 151936, bias: true}
	large := shape{heads: 32, kvHeads: 8, dim: 128, hidden: 4096, ffn: 14336, vocab: 128256}
	for _, c := range []struct {
		name         string
		s            shape
		layers, rows int
		total        int
		layer        string
	}{
		{"0.5B", small, 24, 1, 173, "rms_norm_1 skinny1_4 attend_rope_cluster_64 skinny1_4 rms_norm_1 sliced_64x16 skinny1_8"},
		{"0.5B", small, 24, 2, 173, "rms_norm_1 skinny1_4 attend_rope_cluster_64 skinny1_4 rms_norm_1 sliced_64x16 skinny1_8"},
		{"0.5B", small, 24, 8, 173, "rms_norm_1 skinny1_4 attend_rope_cluster_64 skinny1_4 rms_norm_1 sliced_64x16 cluster_64x16"},
		{"0.5B", small, 24, 64, 173, "rms_norm_1 sliced_64x32 attend_rope_teams_64 sliced_64x32 rms_norm_1 sliced_128x64 cluster_64x64"},
		{"8B", large, 32, 1, 165, "skinny_norm_8 attend_rope_cluster_128 skinny1_8 skinny_norm_8 skinny1_8"},
		{"8B", large, 32, 2, 165, "skinny_norm_8 attend_rope_cluster_128 skinny1_8 skinny_norm_8 skinny1_8"},
		{"8B", large, 32, 8, 229, "rms_norm_4 skinny1_8 attend_rope_cluster_128 skinny1_8 rms_norm_4 skinny1_8 skinny1_8"},
		{"8B", large, 32, 64, 229, "rms_norm_4 sliced_64x32 attend_rope_128 sliced_64x32 rms_norm_4 sliced_128x64 cluster_64x64"},
	} {
		names := planned(t, open(t, Options{Rows: 64}), c.s, c.layers, c.rows)
		each := (len(names) - 5) / c.layers // besides: embed, norm, head, 2 of the sampler
		if got := strings.Join(names[1:1+each], " "); len(names) != c.total || got != c.layer {
			t.Errorf("%s, %d rows: %d launches, want %d; a layer's %q, want %q; the last %q", c.name, c.rows, len(names), c.total, got, c.layer, names[len(names)-8:])
		}
	}
}

// Copies that a decode step does without are made where they, or what they were made of, are read.
func TestGatherIsRead(t *testing.T) {
	s := shapes["qwen2"]
	g := open(t, Options{Rows: 8})
	l := newLayer(t, g, s, 16, 20)
	q := newSequences(20, s.vocab)
	read := func(b *backend.Batch, which backend.Buffer) []float32 {
		must := func(err error) {
			t.Helper()
			if err != nil {
				t.Fatal(err)
			}
		}
		must(g.Begin(b))
		rows := len(b.Tokens)
		g.Embed(l.x, l.embed)
		g.Gather(l.heads, l.x, l.hidden, 0, rows)
		g.RMSNorm(l.normed, l.heads, rows, l.norm, 1e-5)
		g.MatMul(l.heads, l.normed, rows, l.out, nil, true)
		out := make([]float32, rows*l.hidden)
		must(g.Read(out, which))
		must(g.End())
		return out
	}
	b := q.batch([2]int{0, 1}, [2]int{1, 1})
	x, sum := read(b, l.x), read(b, l.heads)
	same := 0
	for i, v := range x {
		row := b.Tokens[i/l.hidden]
		if want := g.embedded(t, l.embed, int(row), i%l.hidden); v != want {
			t.Fatalf("element %d of what was gathered from is %g, want %g", i, v, want)
		}
		if sum[i] == v {
			same++
		}
	}
	if same > len(x)/100 {
		t.Errorf("%d of %d elements of what was gathered are as before the product", same, len(x))
	}
}

// embedded returns an element of a table on the device.
func (g *gpu) embedded(t *testing.T, m backend.Matrix, row, at int) float32 {
	t.Helper()
	var b [2]byte
	w := m.(*matrix)
	if err := g.d.ToHost(b[:], w.p+driver.Pointer(2*(row*w.cols+at))); err != nil {
		t.Fatal(err)
	}
	var v [1]float32
	widen(v[:], b[:])
	return v[0]
}

package cuda

import (
	"math"
	"math/rand/v2"
	"os"
	"runtime"
	"testing"

	"cotenant/internal/backend"
	"cotenant/internal/backend/cpu"
	"cotenant/internal/gputest"
	"cotenant/internal/testenv"
	"cotenant/internal/weights"
	"cotenant/internal/weights/weightstest"
)

func TestMain(m *testing.M) {
	code := m.Run()
	gputest.Cleanup()
	os.Exit(code)
}

const uuid = "GPU-11111111-2222-3333-4444-555555555555"

// open makes a backend on a fake driver, or under COTENANT_REQUIRE_GPU=1 on the machine's own.
func open(t testing.TB, o Options, faults ...gputest.Fault) *gpu {
	t.Helper()
	runtime.LockOSThread()
	t.Cleanup(runtime.UnlockOSThread)
	if playsDriver() {
		o.Library = fake(t, faults...)
	} else if len(faults) > 0 {
		t.Skip("faults are the fake driver's")
	}
	be, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := be.Close(); err != nil && len(faults) == 0 {
			t.Error(err)
		}
	})
	g := be.(*gpu)
	if !playsDriver() {
		for _, m := range g.kernels.loaded {
			t.Logf("module %s %s", m.Name, m.SHA256) // for the record of bench/h200/check-gpu.sh
		}
	}
	return g
}

// playsDriver reports whether the driver is a fake: under COTENANT_REQUIRE_GPU=1 it is the machine's own.
func playsDriver() bool { return !testenv.RequireGPU() }

// fake returns a libcuda of its own with an H200's data.
func fake(t testing.TB, faults ...gputest.Fault) string {
	t.Helper()
	m := gputest.Start(t, gputest.Host{CUDA: []gputest.CUDA{{Version: 13000}}, Faults: faults,
		GPUs: []gputest.GPU{{UUID: uuid, Name: "NVIDIA H200", Bus: "00000000:06:00.0", CC: "9.0", SMs: 132, Memory: 150754820096}}})
	return m.Path("/usr/lib/x86_64-linux-gnu/libcuda.so.1")
}

// tensor makes rows × cols random numbers that bf16 holds exactly.
func tensor(rng *rand.Rand, rows, cols int, spread float64) weights.Tensor {
	data := make([]byte, 2*rows*cols)
	for i := range rows * cols {
		v := weights.F32ToBF16(float32(rng.NormFloat64() * spread))
		data[2*i], data[2*i+1] = byte(v), byte(v>>8)
	}
	return weights.Tensor{Name: "random", Type: weights.BF16, Shape: []int{rows, cols}, Data: data}
}

func vectorTensor(rng *rand.Rand, n int) weights.Tensor {
	v := make([]float32, n)
	for i := range v {
		v[i] = float32(1 + 0.3*rng.NormFloat64())
	}
	return weights.Tensor{Name: "random vector", Type: weights.F32, Shape: []int{n}, Data: append([]byte(nil), bytesOf(v)...)}
}

// layer is one decoder layer of random weights on a backend, with an embedding whose rows are the inputs.
type layer struct {
	be               backend.Backend
	a                backend.Attention
	hidden, ffn      int
	embed, qkv, out  backend.Matrix
	gateUp, down     backend.Matrix
	norm, qn, kn     backend.Vector
	bias             backend.Vector
	rope             backend.RoPEHandle
	kv               backend.KV
	x, normed, q     backend.Buffer
	heads, gu, f, lo backend.Buffer
}

type shape struct {
	heads, kvHeads, dim, hidden, ffn, vocab int
	bias, norms, interleaved                bool
	ropeDim                                 int
	// formats of the matrices: the first of the embedding and of all but the last rows of others, which have the last; none: bf16.
	formats []weights.DType
}

// parts makes a matrix's tensors; tail is how many rows are a part of their own.
func (s *shape) parts(rng *rand.Rand, rows, cols, tail int, spread float64) []weights.Tensor {
	if len(s.formats) == 0 {
		return []weights.Tensor{tensor(rng, rows, cols, spread)}
	}
	one := func(rows int, t weights.DType) weights.Tensor {
		v := make([]float32, rows*cols)
		for i := range v {
			v[i] = float32(rng.NormFloat64() * spread)
		}
		return weightstest.Float32("random", t, v, rows, cols)
	}
	all := []weights.Tensor{one(rows-tail, s.formats[0])}
	if tail > 0 {
		all = append(all, one(tail, s.formats[len(s.formats)-1]))
	}
	return all
}

func newLayer(t testing.TB, be backend.Backend, s shape, rows, pages int) *layer {
	t.Helper()
	rng := rand.New(rand.NewPCG(3, uint64(s.hidden*s.ffn+s.heads)))
	l := &layer{be: be, hidden: s.hidden, ffn: s.ffn, a: backend.Attention{Heads: s.heads, KVHeads: s.kvHeads, HeadDim: s.dim,
		Scale: float32(1 / math.Sqrt(float64(s.dim)))}}
	check := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	matrix := func(rows, cols, tail int) backend.Matrix {
		m, err := be.Matrix(s.parts(rng, rows, cols, tail, 1/math.Sqrt(float64(cols)))...)
		check(err)
		return m
	}
	vec := func(n int) backend.Vector {
		v, err := be.Vector(vectorTensor(rng, n))
		check(err)
		return v
	}
	var err error
	l.embed, err = be.Matrix(s.parts(rng, s.vocab, s.hidden, 0, 1)...)
	check(err)
	l.qkv, l.out = matrix(l.a.QKVWidth(), s.hidden, s.kvHeads*s.dim), matrix(s.hidden, s.heads*s.dim, 0)
	l.gateUp, l.down = matrix(2*s.ffn, s.hidden, s.ffn), matrix(s.hidden, s.ffn, 8)
	l.norm = vec(s.hidden)
	if s.bias {
		l.bias = vec(l.a.QKVWidth())
	}
	if s.norms {
		l.qn, l.kn = vec(s.dim), vec(s.dim)
	}
	const positions = 512
	table := backend.RoPE{Dim: s.ropeDim, Interleaved: s.interleaved}
	for p := range positions {
		for i := range s.ropeDim / 2 {
			sin, cos := math.Sincos(float64(p) * math.Pow(10000, -2*float64(i)/float64(s.ropeDim)))
			table.Cos, table.Sin = append(table.Cos, float32(cos)), append(table.Sin, float32(sin))
		}
	}
	l.rope, err = be.RoPE(table)
	check(err)
	l.kv, err = be.KV(backend.KVConfig{Layers: 2, KVHeads: s.kvHeads, HeadDim: s.dim, PageSize: 16, Pages: pages})
	check(err)
	for _, b := range []struct {
		to    *backend.Buffer
		width int
	}{{&l.x, s.hidden}, {&l.normed, s.hidden}, {&l.q, l.a.QKVWidth()}, {&l.heads, s.heads * s.dim}, {&l.gu, 2 * s.ffn}, {&l.f, s.ffn}, {&l.lo, s.vocab}} {
		*b.to, err = be.Buffer(rows * b.width)
		check(err)
	}
	return l
}

// step runs the layer on a batch, up to logits by the embedding, for all outputs.
func (l *layer) step(b *backend.Batch) {
	rows := len(b.Tokens)
	l.be.Embed(l.x, l.embed)
	l.be.RMSNorm(l.normed, l.x, rows, l.norm, 1e-5)
	l.be.MatMul(l.q, l.normed, rows, l.qkv, l.bias, false)
	if l.qn != nil {
		l.be.HeadNorm(l.q, l.a, l.qn, l.kn, 1e-5)
	}
	l.be.RoPEStore(l.q, l.a, l.rope, l.kv, 1)
	l.be.Attention(l.heads, l.q, l.a, l.kv, 1)
	l.be.MatMul(l.x, l.heads, rows, l.out, nil, true)
	l.be.RMSNorm(l.normed, l.x, rows, l.norm, 1e-5)
	l.be.MatMul(l.gu, l.normed, rows, l.gateUp, nil, false)
	l.be.SwiGLU(l.f, l.gu, rows, l.ffn)
	l.be.MatMul(l.x, l.f, rows, l.down, nil, true)
	l.be.Gather(l.heads, l.x, l.hidden, 0, len(b.Outputs)) // heads serves as memory
	l.be.RMSNorm(l.normed, l.heads, len(b.Outputs), l.norm, 1e-5)
	l.be.MatMul(l.lo, l.normed, len(b.Outputs), l.embed, nil, false)
}

// logits runs a batch and returns its logits.
func (l *layer) logits(t testing.TB, b *backend.Batch) []float32 {
	t.Helper()
	if err := l.be.Begin(b); err != nil {
		t.Fatal(err)
	}
	l.step(b)
	out := make([]float32, len(b.Outputs)*l.embed.Rows())
	if err := l.be.Read(out, l.lo); err != nil {
		t.Fatal(err)
	}
	if err := l.be.End(); err != nil {
		t.Fatal(err)
	}
	return out
}

// sequences plays an engine: it makes batches of pieces of sequences whose pages are scattered.
type sequences struct {
	rng   *rand.Rand
	free  []int32
	pages map[int][]int32
	past  map[int]int
	vocab int
}

func newSequences(pages, vocab int) *sequences {
	s := &sequences{rng: rand.New(rand.NewPCG(1, 2)), pages: map[int][]int32{}, past: map[int]int{}, vocab: vocab}
	for _, p := range s.rng.Perm(pages) {
		s.free = append(s.free, int32(p))
	}
	return s
}

// batch adds n tokens to each sequence: pairs of id and n. The last row of each is an output.
func (s *sequences) batch(pairs ...[2]int) *backend.Batch {
	b := &backend.Batch{}
	for _, p := range pairs {
		id, n := p[0], p[1]
		row := len(b.Tokens)
		for i := range n {
			at := s.past[id] + i
			if at%16 == 0 {
				s.pages[id] = append(s.pages[id], s.free[0])
				s.free = s.free[1:]
			}
			b.Tokens = append(b.Tokens, int32(s.rng.IntN(s.vocab)))
			b.Positions = append(b.Positions, int32(at))
			b.Slots = append(b.Slots, s.pages[id][at/16]*16+int32(at%16))
		}
		b.Seqs = append(b.Seqs, backend.Seq{Row: row, Rows: n, Past: s.past[id], Pages: s.pages[id]})
		b.Outputs = append(b.Outputs, int32(len(b.Tokens)-1))
		s.past[id] += n
	}
	return b
}

// difference is the largest difference over want's largest magnitude.
func difference(got, want []float32) float64 {
	var d, largest float64
	for i, w := range want {
		e := math.Abs(float64(got[i]) - float64(w))
		if math.IsNaN(e) {
			return math.Inf(1)
		}
		d, largest = max(d, e), max(largest, math.Abs(float64(w)))
	}
	return d / largest
}

var shapes = map[string]shape{
	"qwen2":     {heads: 6, kvHeads: 2, dim: 64, hidden: 384, ffn: 512, vocab: 1000, bias: true, ropeDim: 64},
	"qwen3":     {heads: 4, kvHeads: 2, dim: 128, hidden: 256, ffn: 768, vocab: 999, norms: true, ropeDim: 128},
	"llama":     {heads: 9, kvHeads: 3, dim: 64, hidden: 576, ffn: 1536, vocab: 5000, interleaved: true, ropeDim: 64},
	"odd":       {heads: 4, kvHeads: 2, dim: 12, hidden: 50, ffn: 90, vocab: 311, norms: true, bias: true, interleaved: true, ropeDim: 8},
	"one group": {heads: 4, kvHeads: 4, dim: 32, hidden: 128, ffn: 256, vocab: 512, ropeDim: 32},
}

// A prompt in chunks, decodes by graph with rows that come and go, and mixed steps give what the CPU's float32 gives, but for
// bf16's rounding.
func TestLayer(t *testing.T) {
	for name, s := range shapes {
		t.Run(name, func(t *testing.T) {
			reference, err := cpu.New(cpu.Options{})
			if err != nil {
				t.Fatal(err)
			}
			defer reference.Close()
			const rows, pages = 200, 120
			want, got := newLayer(t, reference, s, rows, pages), newLayer(t, open(t, Options{Rows: 24}), s, rows, pages)
			q := newSequences(pages, s.vocab)
			plan := [][][2]int{{{0, 70}}, {{0, 31}, {1, 17}, {2, 1}}, {{0, 1}, {1, 1}, {2, 1}, {3, 40}}}
			for range 4 { // the same bucket again: a graph from the second time on
				plan = append(plan, [][2]int{{0, 1}, {1, 1}, {2, 1}, {3, 1}})
			}
			plan = append(plan, [][2]int{{0, 1}, {2, 1}, {3, 1}}, [][2]int{{3, 60}}, [][2]int{{3, 1}}, [][2]int{{3, 1}}, [][2]int{{3, 1}})
			many := [][2]int{}
			for i := range 20 {
				many = append(many, [2]int{10 + i, 1})
			}
			for range 3 {
				plan = append(plan, many)
			}
			for i, p := range plan {
				b := q.batch(p...)
				w, g := want.logits(t, b), got.logits(t, b)
				if d := difference(g, w); !(d < 0.03) {
					t.Errorf("step %d, %v: off by %.3g of the largest logit", i, p, d)
				}
			}
			if len(got.be.(*gpu).graphs.programs) == 0 {
				t.Error("no graph was made")
			}
		})
	}
}

// A row's logits are the same, bit for bit, however many rows decode beside it and whether prompts do too.
func TestRowsAreIndependent(t *testing.T) {
	s := shapes["qwen2"]
	t.Run("bf16", func(t *testing.T) { rowsAreIndependent(t, s) })
	for _, f := range []weights.DType{weights.Q8_0, weights.Q4_1} {
		s.formats = []weights.DType{f}
		t.Run(f.String(), func(t *testing.T) { rowsAreIndependent(t, s) })
	}
	s = shapes["qwen3"]
	s.formats = []weights.DType{weights.Q4K, weights.Q6K}
	t.Run("Q4_K and Q6_K", func(t *testing.T) { rowsAreIndependent(t, s) })
}

func rowsAreIndependent(t *testing.T, s shape) {
	const rows, pages = 140, 200
	g := open(t, Options{Rows: 128})
	l := newLayer(t, g, s, rows, pages)
	q := newSequences(pages, s.vocab)
	var fill [][2]int
	for i := range 66 {
		fill = append(fill, [2]int{i, 1 + i%2})
	}
	l.logits(t, q.batch(fill...))
	var want []float32
	counts := []int{1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 23, 24, 31, 32, 33, 40, 47, 48, 63, 64, 65}
	for _, n := range counts {
		// The same token at the same place of sequence 0 each time, beside n-1 others.
		b := &backend.Batch{}
		for i := range n {
			at := q.past[i]
			b.Tokens = append(b.Tokens, int32(17*i%s.vocab))
			b.Positions = append(b.Positions, int32(at))
			b.Slots = append(b.Slots, q.pages[i][at/16]*16+int32(at%16))
			b.Seqs = append(b.Seqs, backend.Seq{Row: i, Rows: 1, Past: at, Pages: q.pages[i]})
			b.Outputs = append(b.Outputs, int32(i))
		}
		if n%3 == 0 { // a prompt besides
			row := len(b.Tokens)
			for r := range 20 {
				b.Tokens = append(b.Tokens, int32(r))
				b.Positions = append(b.Positions, int32(r))
				b.Slots = append(b.Slots, q.free[r/16]*16+int32(r%16))
			}
			b.Seqs = append(b.Seqs, backend.Seq{Row: row, Rows: 20, Pages: q.free[:2]})
		}
		got := l.logits(t, b)[:s.vocab]
		if want == nil {
			want = got
		}
		for i := range want {
			if got[i] != want[i] {
				t.Errorf("beside %d rows logit %d is %v, alone %v", n-1, i, got[i], want[i])
				break
			}
		}
	}
}

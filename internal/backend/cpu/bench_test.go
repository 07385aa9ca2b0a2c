package cpu

import (
	"fmt"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"cotenant/internal/backend"
	"cotenant/internal/weights"
)

// The shapes of SmolLM2-135M as its Q4_1 GGUF has them.
const (
	benchLayers = 30
	benchWidth  = 576
	benchFFN    = 1536
	benchVocab  = 49152
)

var benchAttention = backend.Attention{Heads: 9, KVHeads: 3, HeadDim: 64, Scale: 0.125}

// benchPaths are the paths to measure: those that New chooses, or what COTENANT_BENCH_PATH names (Info.Features, or plain,
// avx2).
func benchPaths(b *testing.B) []*kernels {
	name := os.Getenv("COTENANT_BENCH_PATH")
	var out []*kernels
	for _, k := range paths(b) {
		if k.name == name || strings.HasPrefix(k.name, name+"+fma") || name == "" && k.lanes == chooseKernels(Options{}).lanes {
			out = append(out, k)
		}
	}
	return out
}

func BenchmarkMatMul(b *testing.B) {
	for _, k := range benchPaths(b) {
		c := open(b, k, runtime.GOMAXPROCS(0))
		for _, s := range []struct {
			name       string
			dt         weights.DType
			rows, cols int
		}{
			{"qkv", weights.Q4_1, 960, 576}, {"gate_up", weights.Q4_1, 3072, 576}, {"down", weights.Q4_1, 576, 1536},
			{"head", weights.Q8_0, benchVocab, 576}, {"q4k", weights.Q4K, 2048, 2048}, {"f32", weights.F32, 2048, 2048},
		} {
			// As many copies as a model has layers: a decode step finds its weights in memory, not in a cache.
			var ms []backend.Matrix
			bytes := s.rows * s.dt.RowBytes(s.cols)
			for range max(1, min(benchLayers, (64<<20)/bytes)) {
				ms = append(ms, must(c.Matrix(tensor(random(1), s.dt, s.rows, s.cols)))(b))
			}
			for _, rows := range []int{1, 4, 64, 512} {
				if rows > 64 && s.rows > 10000 {
					continue
				}
				b.Run(fmt.Sprintf("%s/%s/%d", k.name, s.name, rows), func(b *testing.B) {
					x, dst := upload(b, c, gaussian(random(2), rows*s.cols)), upload(b, c, make([]float32, rows*s.rows))
					i := 0
					for b.Loop() {
						c.MatMul(dst, x, rows, ms[i%len(ms)], nil, false)
						i++
					}
					sec := b.Elapsed().Seconds() / float64(b.N)
					b.ReportMetric(float64(bytes)/sec/1e9, "GB/s")
					b.ReportMetric(2*float64(rows)*float64(s.rows)*float64(s.cols)/sec/1e9, "GFLOP/s")
				})
			}
		}
	}
}

// BenchmarkAttention is one layer's attention at SmolLM2's shape: the last chunk of a prompt of 704, and decode steps after it.
func BenchmarkAttention(b *testing.B) {
	a := benchAttention
	for _, k := range benchPaths(b) {
		c := open(b, k, runtime.GOMAXPROCS(0))
		for _, s := range []struct {
			name string
			seqs [][2]int
		}{
			{"chunk/128", [][2]int{{576, 128}}},
			{"decode/1", [][2]int{{704, 1}}},
			{"decode/4", [][2]int{{704, 1}, {704, 1}, {704, 1}, {704, 1}}},
		} {
			batch := fixedBatch(s.seqs, 16, 64)
			rows := len(batch.Tokens)
			// Layers enough that a step finds its keys in memory, not in a cache.
			m := must(c.KV(backend.KVConfig{Layers: benchLayers, KVHeads: a.KVHeads, HeadDim: a.HeadDim, PageSize: 16, Pages: 64 * len(s.seqs)}))(b)
			clear(m.(*kv).v)
			qkv, dst := upload(b, c, gaussian(random(1), rows*a.QKVWidth())), upload(b, c, make([]float32, rows*a.Heads*a.HeadDim))
			var scores int
			for _, q := range s.seqs {
				for i := range q[1] {
					scores += a.Heads * (q[0] + i + 1)
				}
			}
			b.Run(k.name+"/"+s.name, func(b *testing.B) {
				begin(b, c, batch)
				layer := 0
				for b.Loop() {
					c.Attention(dst, qkv, a, m, layer)
					layer = (layer + 1) % benchLayers
				}
				end(b, c)
				sec := b.Elapsed().Seconds() / float64(b.N)
				b.ReportMetric(4*float64(scores*a.HeadDim)/sec/1e9, "GFLOP/s")
				b.ReportMetric(float64(len(s.seqs)*704*2*4*a.KVHeads*a.HeadDim)/sec/1e9, "GB/s")
			})
		}
	}
}

// stack is SmolLM2's layers with random weights.
type stack struct {
	b             *cpuBackend
	embed         backend.Matrix
	layers        []stackLayer
	norm          backend.Vector
	kv            backend.KV
	rope          backend.RoPEHandle
	x, h, qkv, at backend.Buffer
	gateUp, act   backend.Buffer
	logits        backend.Buffer
}

type stackLayer struct {
	qkv, o, gateUp, down backend.Matrix
	norm1, norm2         backend.Vector
}

func newStack(t testing.TB, b *cpuBackend, rows, ctx int) *stack {
	a := benchAttention
	r := random(1)
	m := func(dt weights.DType, rows, cols int) backend.Matrix {
		w := tensor(r, dt, rows, cols)
		return must(b.Matrix(w))(t)
	}
	ones := make([]float32, benchWidth)
	for i := range ones {
		ones[i] = 0.05 // keeps the random layers' activations small
	}
	v := func() backend.Vector { return must(b.Vector(f32Tensor(ones)))(t) }
	s := &stack{b: b, embed: m(weights.Q8_0, benchVocab, benchWidth), norm: v()}
	for range benchLayers {
		s.layers = append(s.layers, stackLayer{
			qkv: m(weights.Q4_1, a.QKVWidth(), benchWidth), o: m(weights.Q4_1, benchWidth, a.Heads*a.HeadDim),
			gateUp: m(weights.Q4_1, 2*benchFFN, benchWidth), down: m(weights.Q4_1, benchWidth, benchFFN), norm1: v(), norm2: v(),
		})
	}
	s.kv = must(b.KV(backend.KVConfig{Layers: benchLayers, KVHeads: a.KVHeads, HeadDim: a.HeadDim, PageSize: 16, Pages: 8 * ctx / 16}))(t)
	s.rope = must(b.RoPE(ropeTables(ctx, a.HeadDim, true)))(t)
	buf := func(n int) backend.Buffer { return must(b.Buffer(n))(t) }
	s.x, s.h, s.qkv, s.at = buf(rows*benchWidth), buf(rows*benchWidth), buf(rows*a.QKVWidth()), buf(rows*a.Heads*a.HeadDim)
	s.gateUp, s.act, s.logits = buf(rows*2*benchFFN), buf(rows*benchFFN), buf(8*benchVocab)
	return s
}

// step runs the model for a batch; logits are those of the batch's outputs.
func (s *stack) step(t testing.TB, batch *backend.Batch) {
	b, a, rows := s.b, benchAttention, len(batch.Tokens)
	begin(t, b, batch)
	b.Embed(s.x, s.embed)
	for l, w := range s.layers {
		b.RMSNorm(s.h, s.x, rows, w.norm1, 1e-5)
		b.MatMul(s.qkv, s.h, rows, w.qkv, nil, false)
		b.RoPEStore(s.qkv, a, s.rope, s.kv, l)
		b.Attention(s.at, s.qkv, a, s.kv, l)
		b.MatMul(s.x, s.at, rows, w.o, nil, true)
		b.RMSNorm(s.h, s.x, rows, w.norm2, 1e-5)
		b.MatMul(s.gateUp, s.h, rows, w.gateUp, nil, false)
		b.SwiGLU(s.act, s.gateUp, rows, benchFFN)
		b.MatMul(s.x, s.act, rows, w.down, nil, true)
	}
	b.Gather(s.h, s.x, benchWidth, 0, len(batch.Outputs))
	b.RMSNorm(s.h, s.h, len(batch.Outputs), s.norm, 1e-5)
	b.MatMul(s.logits, s.h, len(batch.Outputs), s.embed, nil, false)
	end(t, b)
}

// BenchmarkStack is the whole model at SmolLM2's shapes: a prompt of 704 tokens at once, in chunks of 128, and decode steps
// after it for one sequence and for four.
func BenchmarkStack(b *testing.B) {
	const prompt, ctx = 704, 1024
	for _, k := range benchPaths(b) {
		c := open(b, k, runtime.GOMAXPROCS(0))
		s := newStack(b, c, 4*prompt, ctx)
		for _, chunk := range []int{704, 128} {
			b.Run(fmt.Sprintf("%s/prefill/%d", k.name, chunk), func(b *testing.B) {
				tokensPerSecond(b, prompt, func() {
					for past := 0; past < prompt; past += chunk {
						s.step(b, fixedOutputs(fixedBatch([][2]int{{past, min(chunk, prompt-past)}}, 16, ctx/16)))
					}
				})
			})
		}
		for _, streams := range []int{1, 2, 4, 8} {
			for _, past := range []int{8, prompt} {
				b.Run(fmt.Sprintf("%s/decode/%d/after%d", k.name, streams, past), func(b *testing.B) {
					seqs := make([][2]int, streams)
					for i := range seqs {
						seqs[i] = [2]int{past, 1}
					}
					batch := fixedOutputs(fixedBatch(seqs, 16, ctx/16))
					tokensPerSecond(b, streams, func() { s.step(b, batch) })
				})
			}
		}
	}
}

// tokensPerSecond reports the mean and the best of the iterations: other work on the machine only ever slows one down.
func tokensPerSecond(b *testing.B, tokens int, f func()) {
	best := time.Duration(1 << 62)
	for b.Loop() {
		start := time.Now()
		f()
		best = min(best, time.Since(start))
	}
	b.ReportMetric(float64(tokens)*float64(b.N)/b.Elapsed().Seconds(), "tok/s")
	b.ReportMetric(float64(tokens)/best.Seconds(), "best-tok/s")
}

func fixedOutputs(b *backend.Batch) *backend.Batch {
	for _, s := range b.Seqs {
		b.Outputs = append(b.Outputs, int32(s.Row+s.Rows-1))
	}
	return b
}

// BenchmarkBandwidth is the floor of a decode step: reading memory on all threads.
func BenchmarkBandwidth(b *testing.B) {
	c := open(b, plainKernels(), runtime.GOMAXPROCS(0))
	mem, _, err := lazyFloats(64 << 20)
	if err != nil {
		b.Fatal(err)
	}
	clear(mem)
	fast := paths(b)
	k := fast[len(fast)-1]
	if k.lanes == 1 {
		b.Skip("the plain path cannot read as fast as memory")
	}
	start := time.Now()
	zero := make([]float32, 4096)
	var out [1024][4]float32
	n := 0
	for b.Loop() {
		c.pool.run(1024, jobFunc(func(_, i int) {
			v := mem[i*(64<<10) : (i+1)*(64<<10)]
			for ; len(v) > 0; v = v[16384:] {
				k.dot4(out[i][:], 4, zero, 1, 4096, v, zeros[:], false)
			}
		}))
		n++
	}
	b.ReportMetric(float64(n)*256*(1<<20)/time.Since(start).Seconds()/1e9, "GB/s")
}

// BenchmarkKernels is the inner loops on data in the first-level cache: floors that do not depend on memory.
func BenchmarkKernels(b *testing.B) {
	const cols, n = 576, 64
	for _, k := range benchPaths(b) {
		for _, dt := range []weights.DType{weights.Q4_1, weights.Q8_0, weights.F16, weights.Q4_0} {
			w, rb := tensor(random(1), dt, n, cols), dt.RowBytes(cols)
			x, dst, panel := gaussian(random(1), n*cols), make([]float32, n*n), alignedFloats(n*cols)
			measure := func(name string, macs int, f func()) {
				b.Run(fmt.Sprintf("%s/%v/%s", k.name, dt, name), func(b *testing.B) {
					for b.Loop() {
						f()
					}
					b.ReportMetric(2*float64(macs)*float64(b.N)/b.Elapsed().Seconds()/1e9, "GFLOP/s")
				})
			}
			each := func(f func(r int, w []byte)) {
				for r := 0; r < n; r += group {
					f(r, w.Data[r*rb:(r+group)*rb])
				}
			}
			measure("expand", n*cols, func() { k.expand[dt](panel, w.Data) })
			if k.gemv4[dt] != nil {
				measure("gemv", n*cols, func() {
					each(func(r int, w []byte) { k.gemv4[dt](dst[r:], x[:cols], w, rb, zeros[:], false) })
				})
			}
			for _, rows := range []int{2, 4, 8} {
				if k.few4[dt] != nil {
					measure(fmt.Sprint("few/", rows), rows*n*cols, func() {
						each(func(r int, w []byte) { k.few4[dt](dst[r:], n, x[:rows*cols], rows, w, rb, zeros[:], false) })
					})
				}
			}
			measure("dot/64", n*n*cols, func() {
				each(func(r int, _ []byte) { k.dot4(dst[r:], n, x, n, cols, panel[r*cols:], zeros[:], false) })
			})
		}
	}
}

package kernels

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"cotenant/internal/cuda"
	"cotenant/internal/weights"
	"cotenant/internal/weights/weightstest"
)

var quantizedTypes = []weights.DType{weights.Q8_0, weights.Q4_0, weights.Q4_1, weights.Q5_0, weights.Q5_1, weights.Q4K, weights.Q5K, weights.Q6K}

// packed is a random matrix of a format: on the device as it stays, and what it stands for.
type packed struct {
	t      weights.DType
	N, K   int
	w      cuda.Pointer
	values []float32
}

func newPacked(g *device, r *rand.Rand, gpu GPU, t weights.DType, N, K int) *packed {
	g.t.Helper()
	v := make([]float32, N*K)
	for i := range v {
		v[i] = float32(r.NormFloat64())
	}
	file := weightstest.Quantize(t, v)
	weights.Dequantize(v, t, file)
	bytes, ok := QuantizedBytes(t, N, K)
	if !ok {
		g.t.Fatalf("%v can't stay at %d × %d", t, N, K)
	}
	const guard = 4096
	q := &packed{t: t, N: N, K: K, w: g.alloc(int(bytes) + guard), values: v}
	// In two pieces, as a file comes.
	for _, part := range [][2]int{{0, N / 16 * 8}, {N / 16 * 8, N}} {
		rows := part[1] - part[0]
		if rows == 0 {
			continue
		}
		from := upload(g, file[part[0]*t.RowBytes(K):part[1]*t.RowBytes(K)], 0)
		g.run(g.launch(q.plan(gpu, "repack", 3), false, q.w, from, part[0], rows, N, K))
	}
	for _, b := range download[byte](g, q.w+cuda.Pointer(bytes), guard) {
		if b != 0xff {
			g.t.Fatalf("%v %d × %d: repacking wrote behind its segment", t, N, K)
		}
	}
	return q
}

// plan is of a kernel that takes any grid.
func (q *packed) plan(gpu GPU, kind string, blocks uint32) Plan {
	module, suffix := QuantizedModule(gpu, q.t)
	return Plan{Module: module, Kernel: kind + "_" + suffix, Grid: [3]uint32{blocks, 1, 1}, Block: [3]uint32{256, 1, 1}}
}

// gpus are those whose kernels of a format are tested: on Hopper, for two formats, sm_80's too, as the driver takes seconds to compile each.
func gpus(g *device, f weights.DType) []GPU {
	if g.gpu.Hopper() && (f == weights.Q8_0 || f == weights.Q4K) {
		return []GPU{{80, g.gpu.SMs}, g.gpu}
	}
	return []GPU{g.gpu}
}

// Every format, put on the device and expanded or looked up there, is what weights.Dequantize says, rounded to bf16.
func TestQuantizedOnGPU(t *testing.T) {
	g := openDevice(t)
	r := rand.New(rand.NewPCG(11, 12))
	for _, f := range quantizedTypes {
		for _, gpu := range gpus(g, f) {
			for _, s := range [][2]int{{8, 1}, {16, 3}, {72, 5}, {200, 9}} {
				q := newPacked(g, r, gpu, f, s[0], s[1]*f.BlockSize())
				to := g.alloc(2 * q.N * q.K)
				g.run(g.launch(q.plan(gpu, "expand", 5), false, to, q.w, q.N, q.K))
				tokens := []int32{int32(q.N - 1), 0, ^int32(1), 5}
				rows := g.alloc(4 * len(tokens) * q.K)
				p := q.plan(gpu, "embed", uint32(len(tokens)))
				p.Block[0] = 128
				g.run(g.launch(p, false, rows, q.w, upload(g, tokens, 0), upload(g, []int32{3, 7}, 0), q.N, q.K))
				expanded, embedded := download[uint16](g, to, q.N*q.K), download[float32](g, rows, len(tokens)*q.K)
				for i, v := range q.values {
					if fromBF16(expanded[i]) != fromBF16(toBF16(v)) {
						t.Fatalf("%v %d × %d: element %d is %g, want %g", f, q.N, q.K, i, fromBF16(expanded[i]), v)
					}
				}
				for i, row := range []int{q.N - 1, 0, 7, 5} {
					for k := range q.K {
						if got, want := float64(embedded[i*q.K+k]), fromBF16(toBF16(q.values[row*q.K+k])); got != want {
							t.Fatalf("%v %d × %d: row %d, column %d is %g, want %g", f, q.N, q.K, row, k, got, want)
						}
					}
				}
			}
		}
	}
}

// A product of quantised weights is that of the expanded ones to the bit, in every mode and for any number of rows; columns of c beyond
// the segment's are left alone. Against float64 it is as near as those are.
func TestQuantizedProductOnGPU(t *testing.T) {
	g := openDevice(t)
	r := rand.New(rand.NewPCG(13, 14))
	for _, f := range quantizedTypes {
		for _, s := range [][2]int{{80, 1}, {144, 3}, {208, 9}, {8, 2}} {
			N, K := s[0], s[1]*max(f.BlockSize(), 256)
			for _, gpu := range gpus(g, f) {
				q := newPacked(g, r, gpu, f, N, K)
				o := newOperands(g, r, 130, N, K)
				o.w = make([]uint16, N*K)
				for i, v := range q.values {
					o.w[i] = toBF16(v)
				}
				g.must(g.d.ToDevice(o.dw, raw(o.w)))
				for _, M := range []int{1, 2, 7, 8, 9, 16, 17, 31, 32, 33, 48, 63, 64, 65, 130} {
					for _, mode := range []Mode{StoreBF16, StoreF32, AddF32, SwiGLU} {
						if mode == SwiGLU && N%16 != 0 {
							continue
						}
						want := o.product(Product(gpu, Sliced, M, N, K, mode), M, mode, true)
						if e, where := o.check(r, want, M, mode, true); !(e <= 1) {
							t.Errorf("%v %d rows of %d × %d: %g of what is allowed: %s", f, M, N, K, e, where)
						}
						if got := q.product(g, o, gpu, M, mode); !slices.Equal(got, want) {
							t.Errorf("%v, sm_%d, %d rows of %d × %d, mode %d: other bits than the expanded weights'", f, gpu.Capability, M, N, K, mode)
						}
					}
				}
			}
		}
	}
}

// product computes rows of o.x into a c that is wider by a guard, and returns c without it.
func (q *packed) product(g *device, o *operands, gpu GPU, M int, mode Mode) []byte {
	g.t.Helper()
	n, size := width(mode, q.N)
	stride := n + 24
	c := g.alloc(M * stride * size)
	if mode == AddF32 {
		wide := make([]float32, M*stride)
		for m := range M {
			copy(wide[m*stride:], o.c0[m*n:(m+1)*n])
			for i := n; i < stride; i++ {
				wide[m*stride+i] = float32(math.NaN())
			}
		}
		g.must(g.d.ToDevice(c, raw(wide)))
	}
	p := QuantizedAll(gpu, q.t, M, q.N, q.K)
	g.run(g.launch(p, false, o.dx, q.w, c, o.dbias, M, q.N, q.K, mode, stride))
	all := download[byte](g, c, M*stride*size)
	var out []byte
	for m := range M {
		row := all[m*stride*size : (m+1)*stride*size]
		out = append(out, row[:n*size]...)
		for at := n * size; at < stride*size; at += size {
			if size == 2 && (row[at] != 0xff || row[at+1] != 0xff) || size == 4 && !math.IsNaN(float64(float32sOf(row[at : at+4])[0])) {
				g.t.Fatalf("%s wrote behind its columns", p.Kernel)
			}
		}
	}
	return out
}

// Products of quantised weights beside bf16's, for the layers and heads of models of 0.5B and 8B: microseconds, bytes of weights a second,
// and what share that is of the rate at which weights came from memory at best when it was measured. Then what expanding costs, which
// prompts pay for each product.
func BenchmarkQuantizedProduct(b *testing.B) {
	g := openDevice(b)
	shapes := []struct {
		N, K int
		mode Mode
	}{{1152, 896, StoreBF16}, {896, 896, AddF32}, {9728, 896, SwiGLU}, {896, 4864, AddF32}, {151936, 896, StoreF32},
		{6144, 4096, StoreBF16}, {4096, 4096, AddF32}, {28672, 4096, SwiGLU}, {4096, 14336, AddF32}, {128256, 4096, StoreF32}}
	line := func(f weights.DType, what string, N, K int, bytes int64, us float64) {
		rate := float64(bytes) / us / 1e3 // bytes a nanosecond
		fmt.Printf("quantized %v %s N %d K %d us %.2f TB/s %.2f of the ceiling %.2f\n", f, what, N, K, us, rate/1e3, rate/bandwidth)
	}
	for _, s := range shapes {
		plain := newBenchWeights(g, s.N, s.K)
		for _, M := range benchRows {
			if s.N > 1<<16 && M > 64 {
				continue
			}
			_, us := plain.time(M, s.N, s.K, s.mode, Product(g.gpu, Sliced, M, s.N, s.K, s.mode))
			line(weights.BF16, fmt.Sprintf("M %d", M), s.N, s.K, 2*int64(s.N)*int64(s.K), us)
		}
		plain.free(0)
		for _, f := range quantizedTypes {
			bytes, ok := QuantizedBytes(f, s.N, s.K)
			if !ok {
				continue // as files have another format where K is no multiple of 256
			}
			set := newQuantizedBench(g, bytes)
			for _, M := range benchRows {
				line(f, fmt.Sprintf("M %d", M), s.N, s.K, bytes, set.time(QuantizedAll(g.gpu, f, M, s.N, s.K), M, s.N, s.K, s.mode))
			}
			if s.N <= 1<<16 {
				line(f, "expand", s.N, s.K, bytes+2*int64(s.N)*int64(s.K), set.expand(f, s.N, s.K))
			}
			set.free(0)
		}
	}
}

var benchRows = []int{1, 2, 4, 8, 16, 32, 64, 128, 256}

// quantizedBench is copies of one weight, more than L2 holds. Their bytes are noise, which costs what weights cost.
type quantizedBench struct{ *benchWeights }

func newQuantizedBench(g *device, bytes int64) quantizedBench {
	b := quantizedBench{&benchWeights{g: g, noise: raw(normalBF16(rand.New(rand.NewPCG(5, 6)), 2<<20, 1))}}
	for range min(max(300<<20/bytes, 1), 24) {
		b.w = append(b.w, b.alloc(int(bytes)))
	}
	return b
}

func (b quantizedBench) time(p Plan, M, N, K int, mode Mode) float64 {
	defer b.free(len(b.owned))
	n, size := width(mode, N)
	x, c := b.alloc(M*K*2), b.alloc(M*n*size)
	var launches []*cuda.Launch
	for i := range max(len(b.w), 8) {
		launches = append(launches, b.g.launch(p, b.g.gpu.Hopper(), x, b.w[i%len(b.w)], c, cuda.Pointer(0), M, N, K, mode, n))
	}
	return b.g.microseconds(launches, 5)
}

func (b quantizedBench) expand(f weights.DType, N, K int) float64 {
	defer b.free(len(b.owned))
	to := b.alloc(2 * N * K)
	q := packed{t: f}
	var launches []*cuda.Launch
	for i := range max(len(b.w), 8) {
		launches = append(launches, b.g.launch(q.plan(b.g.gpu, "expand", uint32(min(N/8*ceil(K, 64)/8+1, 16*b.g.gpu.SMs))), false, to, b.w[i%len(b.w)], N, K))
	}
	return b.g.microseconds(launches, 5)
}

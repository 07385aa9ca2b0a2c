package kernels

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"cotenant/internal/cuda"
)

const normEps = 1e-6

// normed runs the norm of o's rows of x, which are float32, into o.dx.
func (o *operands) normed(gpu GPU, dx, dnorm cuda.Pointer, rows int) {
	o.g.run(o.g.launch(Norm(gpu, rows, o.K), false, o.dx, dx, dnorm, o.K, float32(normEps)))
}

// RMSNorm against float64, and within a product to the bit what it is in front of one, whatever the product's plan.
func TestProductNormOnGPU(t *testing.T) {
	g := openDevice(t)
	r := rand.New(rand.NewPCG(9, 10))
	gpus := []GPU{{80, g.gpu.SMs}}
	if g.gpu.Hopper() {
		gpus = append(gpus, g.gpu)
	}
	for _, s := range [][3]int{{1, 16, 8}, {1, 1152, 896}, {3, 80, 72}, {8, 192, 576}, {5, 1536, 200}, {2, 144, 4096}, {1, 64, 8192}, {2, 48, 2056}, {4, 96, 1536}, {8, 9728, 896}, {1, 8, 1000}} {
		M, N, K := s[0], s[1], s[2]
		o := newOperands(g, r, M, N, K)
		x, norm := normalF32(r, M*K), normalF32(r, K)
		for i := range x {
			x[i] *= float32(1 + i/K) // rows of another size each
		}
		dx, dnorm := upload(g, x, 4*K), upload(g, norm, 0)
		for _, gpu := range gpus {
			o.normed(gpu, dx, dnorm, M)
			o.x = download[uint16](g, o.dx, M*K)
			for m := range M {
				square := 0.0
				for _, v := range x[m*K : (m+1)*K] {
					square += float64(v) * float64(v)
				}
				scale := 1 / math.Sqrt(square/float64(K)+normEps)
				for k := range K {
					want := float64(x[m*K+k]) * scale * float64(norm[k])
					if got := fromBF16(o.x[m*K+k]); !(math.Abs(got-want) <= math.Abs(want)*0x1.02p-8) {
						t.Fatalf("%v on %d: row %d element %d is %g, want %g", s, gpu.Capability, m, k, got, want)
					}
				}
			}
			p, _ := ProductNorm(gpu, M, N, K, StoreBF16)
			if p.Kernel == "" {
				t.Fatalf("no plan for %v", s)
			}
			grids := []uint32{1, p.Grid[0]} // a block that takes all tiles, too
			for _, mode := range []Mode{StoreBF16, StoreF32, AddF32, SwiGLU} {
				if mode == SwiGLU && N%16 != 0 {
					continue
				}
				for _, bias := range []bool{false, true} {
					want := o.product(Product(gpu, Sliced, M, N, K, mode), M, mode, bias)
					if e, where := o.check(r, want, M, mode, bias); !(e <= 1) {
						t.Errorf("%v mode %d bias %v: %g of what is allowed: %s", s, mode, bias, e, where)
					}
					for _, grid := range grids {
						p.Grid[0] = grid
						if got := o.productNorm(p, dx, dnorm, mode, bias); !slices.Equal(got, want) {
							t.Errorf("%s on %d blocks, %v on %d, mode %d bias %v: other results than norm and product", p.Kernel, grid, s, gpu.Capability, mode, bias)
						}
					}
				}
			}
		}
	}
}

// productNorm is product for a plan that norms.
func (o *operands) productNorm(p Plan, dx, dnorm cuda.Pointer, mode Mode, bias bool) []byte {
	o.g.t.Helper()
	n, size := width(mode, o.N)
	const guard = 4096
	c, b := o.g.alloc(o.M*n*size+guard), cuda.Pointer(0)
	if mode == AddF32 {
		o.g.must(o.g.d.ToDevice(c, raw(o.c0)))
	}
	if bias {
		b = o.dbias
	}
	o.g.run(o.g.launch(p, false, dx, o.dw, c, b, o.M, o.N, o.K, mode, dnorm, float32(normEps)))
	out := download[byte](o.g, c, o.M*n*size+guard)
	for _, v := range out[o.M*n*size:] {
		if v != 0xff {
			o.g.t.Fatalf("%s wrote behind c", p.Kernel)
		}
	}
	return out[:o.M*n*size]
}

// The norm and the product behind it as two launches and as one; * is what ProductNorm would choose.
func BenchmarkProductNorm(b *testing.B) {
	g := openDevice(b)
	for _, s := range []struct {
		N, K int
		mode Mode
	}{{1152, 896, StoreBF16}, {9728, 896, SwiGLU}, {151936, 896, StoreF32}, {6144, 4096, StoreBF16}, {28672, 4096, SwiGLU}} {
		b.Run(fmt.Sprintf("N%d_K%d", s.N, s.K), func(b *testing.B) {
			g.enter(b)
			weights := newBenchWeights(g, s.N, s.K)
			defer weights.free(0)
			for _, M := range []int{1, 2, 4, 8} {
				one, better := ProductNorm(g.gpu, M, s.N, s.K, s.mode)
				if one.Kernel == "" {
					continue
				}
				b.Run(fmt.Sprintf("M%d", M), func(b *testing.B) {
					g.enter(b)
					for b.Loop() {
						two, fused := weights.timeNorm(M, s.N, s.K, s.mode, Plan{}), weights.timeNorm(M, s.N, s.K, s.mode, one)
						mark := " "
						if better {
							mark = "*"
						}
						fmt.Printf("norm M %d N %d K %d mode %d: two launches %.2f us, one %s%.2f us, %s\n", M, s.N, s.K, s.mode, two, mark, fused, ofCeiling(M, s.N, s.K, fused))
					}
				})
			}
		})
	}
}

// timeNorm returns microseconds of a norm and a product, by the plan or, where it is empty, as two launches.
func (b *benchWeights) timeNorm(M, N, K int, mode Mode, p Plan) float64 {
	defer b.free(len(b.owned))
	n, size := width(mode, N)
	x, normed, norm, c := b.alloc(M*K*4), b.alloc(M*K*2), b.alloc(K*4), b.alloc(M*n*size)
	none := cuda.Pointer(0)
	var launches []*cuda.Launch
	count := max(len(b.w), 8)
	for i := range count {
		w := b.w[i%len(b.w)]
		if p.Kernel != "" {
			launches = append(launches, b.g.launch(p, true, x, w, c, none, M, N, K, mode, norm, float32(normEps)))
			continue
		}
		launches = append(launches, b.g.launch(Norm(b.g.gpu, M, K), true, normed, x, norm, K, float32(normEps)))
		plan, in := Product(b.g.gpu, Sliced, M, N, K, mode), normed
		if plan.Maps {
			in = b.encode(b.g.d.EncodeBF16(normed, M, K, K, plan.BoxRows, 64))
			if w = b.maps[0][i%len(b.w)]; mode == SwiGLU {
				w = b.maps[1][i%len(b.w)]
			}
		}
		launches = append(launches, b.g.launch(plan, true, in, w, c, none, M, N, K, mode))
	}
	return b.g.microseconds(launches, 5) * float64(len(launches)) / float64(count)
}

// What an H200 reaches: reading memory, and cuBLAS's product of 8192³ bf16.
const mostBytes, mostFLOP = 4300, 684e3 // a nanosecond

// ofCeiling says how near a product that takes so many microseconds comes to what the hardware reaches.
func ofCeiling(M, N, K int, us float64) string {
	bytes, flop := 2*float64(N)*float64(K), 2*float64(M)*float64(N)*float64(K)
	return fmt.Sprintf("%.2f TB/s, %.0f TFLOP/s, %.2f of the ceiling", bytes/us/1e6, flop/us/1e6, max(bytes/mostBytes, flop/mostFLOP)/us/1e3)
}

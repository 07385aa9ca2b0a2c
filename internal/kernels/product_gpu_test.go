package kernels

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"cotenant/internal/cuda"
)

// operands are a product's inputs on the host and on the device. x has two rows more than M, of NaN.
type operands struct {
	g        *device
	M, N, K  int
	x, w     []uint16
	bias, c0 []float32
	dx, dw   cuda.Pointer
	dbias    cuda.Pointer
	maps     map[int]cuda.Pointer // of x by rows of a box; -1: of w, -2: of w as gate and up
}

func newOperands(g *device, r *rand.Rand, M, N, K int) *operands {
	o := &operands{g: g, M: M, N: N, K: K, x: normalBF16(r, M*K, 1), w: normalBF16(r, N*K, 1), bias: normalF32(r, N), c0: normalF32(r, M*N), maps: map[int]cuda.Pointer{}}
	o.dx, o.dw, o.dbias = upload(g, o.x, 4*K), upload(g, o.w, 0), upload(g, o.bias, 0)
	return o
}

func (o *operands) mapped(key int) cuda.Pointer {
	if p, ok := o.maps[key]; ok {
		return p
	}
	var m *cuda.TensorMap
	var err error
	switch key {
	case -1:
		m, err = o.g.d.EncodeBF16(o.dw, o.N, o.K, o.K, 64, 64)
	case -2:
		m, err = o.g.d.EncodeGateUpBF16(o.dw, o.N, o.K)
	default:
		m, err = o.g.d.EncodeBF16(o.dx, o.M+2, o.K, o.K, key, 64)
	}
	o.maps[key] = o.g.tensorMap(m, err)
	return o.maps[key]
}

// launch returns a launch of a plan for the first rows of x.
func (o *operands) launch(p Plan, rows int, mode Mode, bias bool, c cuda.Pointer, dependent bool) *cuda.Launch {
	x, w, b := o.dx, o.dw, cuda.Pointer(0)
	if p.Maps {
		x, w = o.mapped(p.BoxRows), o.mapped(-1)
		if mode == SwiGLU {
			w = o.mapped(-2)
		}
	}
	if bias {
		b = o.dbias
	}
	return o.g.launch(p, dependent, x, w, c, b, rows, o.N, o.K, mode)
}

func width(mode Mode, N int) (elements, size int) {
	switch mode {
	case StoreBF16:
		return N, 2
	case SwiGLU:
		return N / 2, 2
	}
	return N, 4
}

// product runs a plan and returns the bytes of c; what lies behind c must not have been touched.
func (o *operands) product(p Plan, rows int, mode Mode, bias bool) []byte {
	o.g.t.Helper()
	n, size := width(mode, o.N)
	const guard = 4096
	c := o.g.alloc(rows*n*size + guard)
	if mode == AddF32 {
		o.g.must(o.g.d.ToDevice(c, raw(o.c0[:rows*n])))
	}
	o.g.run(o.launch(p, rows, mode, bias, c, false))
	out := download[byte](o.g, c, rows*n*size+guard)
	for _, b := range out[rows*n*size:] {
		if b != 0xff {
			o.g.t.Fatalf("%s wrote behind c", p.Kernel)
		}
	}
	return out[:rows*n*size]
}

// want returns the exact sum for row m and column n with its bias, and the sum of the absolute values.
func (o *operands) want(m, n int, bias bool) (sum, size float64) {
	for k := range o.K {
		v := fromBF16(o.x[m*o.K+k]) * fromBF16(o.w[n*o.K+k])
		sum += v
		size += math.Abs(v)
	}
	if bias {
		sum += float64(o.bias[n])
	}
	return sum, size
}

// check compares a sample of c with float64; it returns the largest error over what is allowed.
func (o *operands) check(r *rand.Rand, out []byte, rows int, mode Mode, bias bool) (worst float64, where string) {
	n, size := width(mode, o.N)
	samples := min(rows*n, 600)
	for s := range samples {
		m, i := r.IntN(rows), r.IntN(n)
		if rows*n <= 600 {
			m, i = s/n, s%n
		} else if s < 8 { // the corners
			m, i = (s&1)*(rows-1), (s>>1&1)*(n-1)
		}
		v, sum := o.want(m, i, bias)
		allowed := 3e-6*sum + 1e-6
		switch mode {
		case AddF32:
			v += float64(o.c0[m*n+i])
		case SwiGLU:
			u, usum := o.want(m, o.N/2+i, bias)
			silu := v / (1 + math.Exp(-v))
			// Gate and up are rounded to bf16 first, 2^-9 each.
			allowed = (math.Abs(u)+usum*3e-6)*(1.1*(math.Abs(v)*0x1p-8+3e-6*sum)) + math.Abs(silu)*(math.Abs(u)*0x1p-8+3e-6*usum) + math.Abs(silu*u)*0x1p-8
			v = silu * u
		case StoreBF16:
			allowed += math.Abs(v) * 0x1p-8
		}
		var got float64
		if size == 2 {
			got = fromBF16(uint16(out[2*(m*n+i)]) | uint16(out[2*(m*n+i)+1])<<8)
		} else {
			got = float64(float32sOf(out[4*(m*n+i) : 4*(m*n+i)+4])[0])
		}
		if e := math.Abs(got-v) / allowed; !(e <= worst) {
			worst, where = e, fmt.Sprintf("[%d,%d] is %g, want %g", m, i, got, v)
		}
	}
	return worst, where
}

// Every kernel of the family against float64, at shapes with tails of every kind.
func TestProductOnGPU(t *testing.T) {
	g := openDevice(t)
	r := rand.New(rand.NewPCG(1, 2))
	shapes := [][3]int{{1, 16, 8}, {1, 1152, 896}, {3, 80, 72}, {7, 896, 4864}, {8, 576, 576}, {9, 1536, 576}, {16, 256, 704}, {17, 272, 264}, {33, 896, 896},
		{63, 208, 1536}, {64, 9728, 896}, {65, 1152, 2048}, {100, 1408, 256}, {129, 640, 2056}, {177, 400, 896}, {300, 1152, 896}, {704, 512, 1024}}
	if testing.Short() { // as under compute-sanitizer
		shapes = [][3]int{{1, 16, 8}, {7, 144, 328}, {17, 272, 264}, {65, 80, 72}, {190, 400, 2056}}
	}
	const few = 4
	gpus := []GPU{{80, g.gpu.SMs}}
	if g.gpu.Hopper() {
		gpus = append(gpus, g.gpu, GPU{90, few}) // on few, blocks for many rows take more than one tile
	}
	for _, s := range shapes {
		o := newOperands(g, r, s[0], s[1], s[2])
		for _, gpu := range gpus {
			for _, order := range []Order{Sliced, Ordered} {
				if gpu.SMs == few && order == Sliced {
					continue
				}
				for _, mode := range []Mode{StoreBF16, StoreF32, AddF32, SwiGLU} {
					for _, p := range plansOf(gpu, order, s[0], s[1], s[2], mode) {
						for _, bias := range []bool{false, true} {
							out := o.product(p, s[0], mode, bias)
							if e, where := o.check(r, out, s[0], mode, bias); !(e <= 1) {
								t.Errorf("%s %v mode %d bias %v: %g of what is allowed: %s", p.Kernel, s, mode, bias, e, where)
							}
						}
					}
				}
			}
		}
	}
}

// A row's result is the same to the bit alone and among others, whatever they hold, and by whichever kernel of its order.
func TestProductRowsAreIndependent(t *testing.T) {
	g := openDevice(t)
	r := rand.New(rand.NewPCG(3, 4))
	for _, s := range [][2]int{{1152, 896}, {896, 4864}, {576, 576}, {4096, 4096}} {
		N, K := s[0], s[1]
		o := newOperands(g, r, 300, N, K)
		for _, gpu := range []GPU{{80, g.gpu.SMs}, g.gpu, {g.gpu.Capability, 4}} {
			for _, order := range []Order{Sliced, Ordered} {
				var all []byte
				for _, M := range []int{300, 1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 32, 33, 48, 63, 64, 65, 127, 128, 129, 200} {
					for _, p := range plansOf(gpu, order, M, N, K, StoreF32) {
						out := o.product(p, M, StoreF32, true)
						if all == nil {
							all = out
						}
						if !slices.Equal(out, all[:len(out)]) {
							differ := 0
							for i := range len(out) / 4 {
								if !slices.Equal(out[4*i:4*i+4], all[4*i:4*i+4]) {
									differ++
								}
							}
							t.Errorf("%d×%d, %v, order %d: %d rows by %s differ from 300 rows in %d of %d sums", N, K, gpu, order, M, p.Kernel, differ, len(out)/4)
						}
					}
				}
			}
		}
		// NaN and infinity stay in their row.
		x := slices.Clone(o.x)
		for k := range K {
			x[3*K+k], x[40*K+k] = 0x7fc0, 0x7f80
		}
		clean := o.product(Product(g.gpu, Sliced, 64, N, K, StoreF32), 64, StoreF32, false)
		g.must(g.d.ToDevice(o.dx, raw(x)))
		for _, gpu := range []GPU{{80, g.gpu.SMs}, g.gpu} {
			for _, p := range plansOf(gpu, Sliced, 64, N, K, StoreF32) {
				out := o.product(p, 64, StoreF32, false)
				for m := range 64 {
					row := out[m*N*4 : (m+1)*N*4]
					if m != 3 && m != 40 && !slices.Equal(row, clean[m*N*4:(m+1)*N*4]) {
						t.Errorf("%s: row %d changed with rows 3 and 40", p.Kernel, m)
					}
					if v := float32sOf(row[:4])[0]; (m == 3 || m == 40) && !math.IsNaN(float64(v)) && !math.IsInf(float64(v), 0) {
						t.Errorf("%s: row %d is %g", p.Kernel, m, v)
					}
				}
			}
		}
	}
}

// The products of a layer and the head of models of 0.5B and 8B. Weights are taken in turn from more memory than L2 holds.
func BenchmarkProduct(b *testing.B) {
	g := openDevice(b)
	type shape struct {
		N, K int
		mode Mode
	}
	shapes := []shape{{1152, 896, StoreBF16}, {896, 896, AddF32}, {9728, 896, SwiGLU}, {896, 4864, AddF32}, {151936, 896, StoreF32},
		{6144, 4096, StoreBF16}, {4096, 4096, AddF32}, {28672, 4096, SwiGLU}, {4096, 14336, AddF32}}
	for _, s := range shapes {
		b.Run(fmt.Sprintf("N%d_K%d", s.N, s.K), func(b *testing.B) {
			g.enter(b)
			weights := newBenchWeights(g, s.N, s.K)
			defer weights.free(0)
			for _, M := range []int{1, 8, 16, 32, 64, 256, 704, 2048, 3520} {
				if s.N == 151936 && M > 64 {
					continue
				}
				b.Run(fmt.Sprintf("M%d", M), func(b *testing.B) {
					g.enter(b)
					for b.Loop() {
						weights.compare(M, s.N, s.K, s.mode)
					}
				})
			}
		})
	}
}

// compare prints the times of every plan for a product.
func (b *benchWeights) compare(M, N, K int, mode Mode) {
	g := b.g
	orders := []Order{Sliced}
	switch {
	case M > 2048:
		orders = []Order{Ordered}
	case M > 64:
		orders = []Order{Ordered, Sliced}
	}
	for _, order := range orders {
		chosen := Product(g.gpu, order, M, N, K, mode)
		seen := map[string]bool{}
		for _, p := range plansOf(g.gpu, order, M, N, K, mode) {
			name := fmt.Sprintf("%s/%d", p.Kernel, p.Cluster)
			if seen[name] || order == Sliced && M > 64 && (p.Cluster > 0 || p.BoxRows < 64) {
				continue
			}
			seen[name] = true
			mark := " "
			if p.Kernel == chosen.Kernel && p.Cluster == chosen.Cluster {
				mark = "*"
			}
			us, early := b.time(M, N, K, mode, p)
			fmt.Printf("product M %d N %d K %d mode %d %s%s us %.2f dependent %.2f: %s\n", M, N, K, mode, mark, name, us, early, ofCeiling(M, N, K, early))
		}
	}
}

// benchWeights are copies of one weight, and their tensor maps, for as long as its shape is measured.
type benchWeights struct {
	g     *device
	owned []cuda.Pointer
	w     []cuda.Pointer
	maps  [2][]cuda.Pointer // plain, and as gate and up
	noise []byte
}

func (b *benchWeights) alloc(bytes int) cuda.Pointer {
	p, err := b.g.d.Alloc(int64(bytes))
	b.g.must(err)
	b.owned = append(b.owned, p)
	for at := 0; at < bytes; at += len(b.noise) {
		b.g.must(b.g.d.ToDevice(p+cuda.Pointer(at), b.noise[:min(len(b.noise), bytes-at)]))
	}
	return p
}

func (b *benchWeights) encode(m *cuda.TensorMap, err error) cuda.Pointer {
	b.g.must(err)
	at := b.alloc(128)
	b.g.must(b.g.d.ToDevice(at, m.Bytes()))
	return at
}

func newBenchWeights(g *device, N, K int) *benchWeights {
	b := &benchWeights{g: g, noise: raw(normalBF16(rand.New(rand.NewPCG(5, 6)), 2<<20, 1))}
	for range min(max(600<<20/(2*N*K), 2), 24) { // many times what L2 holds
		w := b.alloc(N * K * 2)
		b.w = append(b.w, w)
		if g.gpu.Hopper() {
			b.maps[0] = append(b.maps[0], b.encode(g.d.EncodeBF16(w, N, K, K, 64, 64)))
			b.maps[1] = append(b.maps[1], b.encode(g.d.EncodeGateUpBF16(w, N, K)))
		}
	}
	return b
}

func (b *benchWeights) free(keep int) {
	b.g.must(b.g.d.Synchronize())
	for _, p := range b.owned[keep:] {
		_ = b.g.d.Free(p)
	}
	b.owned = b.owned[:keep]
}

// time returns microseconds a launch, one after the other and each begun early.
func (b *benchWeights) time(M, N, K int, mode Mode, p Plan) (us, early float64) {
	defer b.free(len(b.owned))
	n, size := width(mode, N)
	x, c, w := b.alloc(M*K*2), b.alloc(M*n*size), b.w
	if p.Maps {
		x, w = b.encode(b.g.d.EncodeBF16(x, M, K, K, p.BoxRows, 64)), b.maps[0]
		if mode == SwiGLU {
			w = b.maps[1]
		}
	}
	var plain, dependent []*cuda.Launch
	for i := range max(len(w), 8) {
		w := w[i%len(w)]
		plain = append(plain, b.g.launch(p, false, x, w, c, cuda.Pointer(0), M, N, K, mode))
		dependent = append(dependent, b.g.launch(p, true, x, w, c, cuda.Pointer(0), M, N, K, mode))
	}
	return b.g.microseconds(plain, 5), b.g.microseconds(dependent, 5)
}

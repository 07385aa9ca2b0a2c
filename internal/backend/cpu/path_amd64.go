package cpu

import (
	"math"
	"unsafe"

	"github.com/klauspost/cpuid/v2"

	"cotenant/internal/weights"
)

func deviceName() string { return cpuid.CPU.BrandName }

// fastKernels returns the paths, beside the plain one, that this processor can run; the best last, but one with tiles after
// it.
func fastKernels() []*kernels {
	var out []*kernels
	c := cpuid.CPU
	if !c.Supports(cpuid.AVX2, cpuid.FMA3, cpuid.F16C) {
		return nil
	}
	out = append(out, avx2.kernels("avx2+fma+f16c", 8, plainKernels()))
	if c.Supports(cpuid.AVX512F, cpuid.AVX512DQ, cpuid.AVX512VL, cpuid.AVX512BW) {
		out = append(out, avx512.kernels("avx512", 16, out[0]))
		if u := amxUnit(); u != nil {
			k := avx512.kernels("avx512+amx", 16, out[0])
			k.tiles = u
			out = append(out, k)
		}
	}
	return out
}

func chooseKernels(o Options) *kernels {
	fast := fastKernels()
	for i := len(fast) - 1; i >= 0 && !o.Plain; i-- {
		if o.Tiles || fast[i].tiles == nil {
			return fast[i]
		}
	}
	return plainKernels()
}

// assembly is what tools/asm generates for an instruction set.
type assembly struct {
	expand [types]expandFunc
	gemv4  [types]gemvFunc
	few4   [types]fewFunc
	dot4   func(dst *float32, ldd int, x *float32, rows, cols int, w, bias *float32, add bool)
	// wide takes together matrices.
	together int
	tile16   func(c *float32, ldc int, a *float32, lda int, b *float32, ldb, m, k int, add bool)
	wide     func(c *float32, ldc int, a *float32, lda int, b *[maxTogether][]float32, ldb, m, k int, add bool)
	softmax  func(s *float32, n int, scale float32) (top, sum float32)
	swiglu   func(dst, gate, up *float32, n int)
	squares  func(x *float32, n int) float32
	scaled   func(dst, x, w *float32, n int, r float32)
	blend    func(y, x *float32, n int, f, g float32)
}

type (
	expandFunc func(dst *float32, src *byte, n int)
	gemvFunc   func(dst, x *float32, w *byte, rowBytes, n int, bias *float32, add bool)
	fewFunc    func(dst *float32, ldd int, x *float32, rows int, w *byte, rowBytes, n int, bias *float32, add bool)
)

var avx2 = assembly{
	expand: [types]expandFunc{
		weights.F16: expandF16AVX2, weights.BF16: expandBF16AVX2, weights.Q8_0: expandQ8_0AVX2,
		weights.Q4_0: expandQ4_0AVX2, weights.Q4_1: expandQ4_1AVX2, weights.Q5_0: expandQ5_0AVX2,
		weights.Q5_1: expandQ5_1AVX2,
	},
	gemv4: [types]gemvFunc{
		weights.F32: gemv4F32AVX2, weights.F16: gemv4F16AVX2, weights.BF16: gemv4BF16AVX2, weights.Q8_0: gemv4Q8_0AVX2,
		weights.Q4_0: gemv4Q4_0AVX2, weights.Q4_1: gemv4Q4_1AVX2,
	},
	few4: [types]fewFunc{
		weights.F16: few4F16AVX2, weights.BF16: few4BF16AVX2, weights.Q8_0: few4Q8_0AVX2, weights.Q4_0: few4Q4_0AVX2,
		weights.Q4_1: few4Q4_1AVX2,
	},
	dot4: dot4AVX2, tile16: tile16AVX2, together: 2, wide: wideTwo, softmax: softmaxAVX2, swiglu: swigluAVX2, squares: squaresAVX2,
	scaled: scaledAVX2, blend: blendAVX2,
}

var avx512 = assembly{
	expand: [types]expandFunc{
		weights.F16: expandF16AVX512, weights.BF16: expandBF16AVX512, weights.Q8_0: expandQ8_0AVX512,
		weights.Q4_0: expandQ4_0AVX512, weights.Q4_1: expandQ4_1AVX512,
	},
	gemv4: [types]gemvFunc{
		weights.F32: gemv4F32AVX512, weights.F16: gemv4F16AVX512, weights.BF16: gemv4BF16AVX512,
		weights.Q8_0: gemv4Q8_0AVX512, weights.Q4_0: gemv4Q4_0AVX512, weights.Q4_1: gemv4Q4_1AVX512,
	},
	few4: [types]fewFunc{
		weights.F16: few4F16AVX512, weights.BF16: few4BF16AVX512, weights.Q8_0: few4Q8_0AVX512, weights.Q4_0: few4Q4_0AVX512,
		weights.Q4_1: few4Q4_1AVX512,
	},
	dot4: dot4AVX512, tile16: tile16AVX512, together: 4, wide: wideFour, softmax: softmaxAVX512, swiglu: swigluAVX512, squares: squaresAVX512,
	scaled: scaledAVX512, blend: blendAVX512,
}

// kernels wraps the assembly: bounds are checked here, since it checks none.
func (a *assembly) kernels(name string, lanes int, narrower *kernels) *kernels {
	k := &kernels{name: name, lanes: lanes, narrower: narrower, expand: narrower.expand}
	for t, f := range a.expand {
		if f != nil {
			k.expand[t] = a.expander(weights.DType(t), lanes)
		}
	}
	if k.rotate = narrower.rotate; narrower.lanes == 1 {
		kQuants(k)
		k.rotate = rotateAVX2
	}
	k.expand[weights.F32] = func(dst []float32, src []byte) {
		copy(unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(dst))), 4*len(dst)), src)
	}
	for t, f := range a.gemv4 {
		if f == nil {
			continue
		}
		elems := max(lanes, weights.DType(t).BlockSize())
		k.gemv4[t] = func(dst, x []float32, w []byte, rowBytes int, bias []float32, add bool) {
			_, _, _ = dst[3], w[4*rowBytes-1], bias[3]
			f(&dst[0], &x[0], &w[0], rowBytes, len(x)/elems, &bias[0], add)
		}
	}
	for t, f := range a.few4 {
		if f == nil {
			continue
		}
		elems := max(lanes, weights.DType(t).BlockSize())
		k.few4[t] = func(dst []float32, ldd int, x []float32, rows int, w []byte, rowBytes int, bias []float32, add bool) {
			_, _, _ = dst[(rows-1)*ldd+3], w[4*rowBytes-1], bias[3]
			f(&dst[0], ldd, &x[0], rows, &w[0], rowBytes, len(x)/rows/elems, &bias[0], add)
		}
	}
	k.dot4 = func(dst []float32, ldd int, x []float32, rows, cols int, w, bias []float32, add bool) {
		_, _, _, _ = dst[(rows-1)*ldd+3], x[rows*cols-1], w[4*cols-1], bias[3]
		a.dot4(&dst[0], ldd, &x[0], rows, cols, &w[0], &bias[0], add)
	}
	k.tile = func(c []float32, ldc int, x []float32, lda int, b []float32, ldb, m, n, kk int, add bool) {
		if n%16 != 0 {
			tilePlain(c, ldc, x, lda, b, ldb, m, n, kk, add)
			return
		}
		_, _, _ = c[(m-1)*ldc+n-1], x[(m-1)*lda+kk-1], b[(kk-1)*ldb+n-1]
		for j := 0; j < n; j += 16 {
			a.tile16(&c[j], ldc, &x[0], lda, &b[j], ldb, m, kk, add)
		}
	}
	k.together = a.together
	k.wide = func(c []float32, ldc int, x []float32, lda int, b *[maxTogether][]float32, ldb, m, kk int, add bool) {
		_, _ = c[(m-1)*ldc+16*a.together-1], x[(m-1)*lda+kk-1]
		for i := range a.together {
			_ = b[i][(kk-1)*ldb+15]
		}
		a.wide(&c[0], ldc, &x[0], lda, b, ldb, m, kk, add)
	}
	k.softmax = func(s []float32, scale float32) (top, sum float32) {
		n := (len(s) + lanes - 1) / lanes
		s2 := s[:n*lanes]
		for i := len(s); i < len(s2); i++ {
			s2[i] = float32(math.Inf(-1))
		}
		return a.softmax(&s2[0], n, scale)
	}
	a.elementwise(k)
	return k
}

func wideTwo(c *float32, ldc int, a *float32, lda int, b *[maxTogether][]float32, ldb, m, k int, add bool) {
	wideAVX2(c, ldc, a, lda, &b[0][0], &b[1][0], ldb, m, k, add)
}

func wideFour(c *float32, ldc int, a *float32, lda int, b *[maxTogether][]float32, ldb, m, k int, add bool) {
	wideAVX512(c, ldc, a, lda, &b[0][0], &b[1][0], &b[2][0], &b[3][0], ldb, m, k, add)
}

// expander is expand for one format. A rest that fills no vector goes the plain way, which gives the same weights.
func (a *assembly) expander(t weights.DType, lanes int) func(dst []float32, src []byte) {
	f, elems := a.expand[t], max(lanes, t.BlockSize())
	return func(dst []float32, src []byte) {
		n := len(dst) / elems
		at := t.RowBytes(n * elems)
		if n > 0 {
			_ = src[at-1]
			f(&dst[0], &src[0], n)
		}
		if n*elems < len(dst) {
			weights.Dequantize(dst[n*elems:], t, src[at:])
		}
	}
}

func (a *assembly) elementwise(k *kernels) {
	lanes := k.lanes
	k.swiglu = func(dst, gate, up []float32) {
		n := len(gate) / lanes
		dst, up = dst[:len(gate)], up[:len(gate)]
		if n > 0 {
			a.swiglu(&dst[0], &gate[0], &up[0], n)
		}
		swigluPlain(dst[n*lanes:], gate[n*lanes:], up[n*lanes:])
	}
	k.norm = func(dst, x, w []float32, eps float32) {
		n := len(x) / lanes
		_, _ = dst[len(x)-1], w[len(x)-1]
		r := float32(1 / math.Sqrt(float64(a.squares(&x[0], n)/float32(len(x))+eps)))
		a.scaled(&dst[0], &x[0], &w[0], n, r)
	}
	k.blend = func(y, x []float32, f, g float32) {
		n := len(y) / lanes
		x = x[:len(y)]
		if n > 0 {
			a.blend(&y[0], &x[0], n, f, g)
		}
		blendPlain(y[n*lanes:], x[n*lanes:], f, g)
	}
}

// rotateAVX2 is rotate; what is no multiple of a vector goes the plain way.
func rotateAVX2(x, cos, sin []float32, interleaved bool) {
	half, lanes := len(cos), 8
	sin, x = sin[:half], x[:2*half]
	switch {
	case interleaved && half%4 == 0:
		rotatePairsAVX2(&x[0], &cos[0], &sin[0], half/4)
	case !interleaved && half%lanes == 0:
		rotateHalvesAVX2(&x[0], &x[half], &cos[0], &sin[0], half/lanes)
	default:
		rotatePlain(x, cos, sin, interleaved)
	}
}

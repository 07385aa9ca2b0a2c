package cpu

import "cotenant/internal/weights"

// types is the number of weight formats, weights.DType counting from 0.
const types = int(weights.Q6K) + 1

// kernels is one code path: the inner loops that operations are made of. All of a path's kernels sum in the same order,
// so that it doesn't matter which of them an operation picks. A path does vectors of lanes elements; for widths that are no
// multiple of that there is the narrower path (see of).
type kernels struct {
	name     string
	lanes    int
	narrower *kernels
	tiles    *tileUnit // nil: none

	// expand, by weights.DType, writes len(dst) weights, whole blocks, as float32.
	expand [types]func(dst []float32, src []byte)

	// dot4 computes dst[i*ldd+j] = x[i]·w[j] + bias[j] for i < rows, j < 4, where x is [rows, cols] and w [4, cols]; with
	// add it adds that to dst.
	dot4 func(dst []float32, ldd int, x []float32, rows, cols int, w, bias []float32, add bool)

	// gemv4, by weights.DType, does the same for one row of x and four rows of weights; nil: expand and dot4 do.
	gemv4 [types]func(dst, x []float32, w []byte, rowBytes int, bias []float32, add bool)

	// few4 does the same for 2 to mostFew rows of x.
	few4 [types]func(dst []float32, ldd int, x []float32, rows int, w []byte, rowBytes int, bias []float32, add bool)

	// tile computes c [m, n] = a [m, k]·b [k, n], rows lda, ldb and ldc apart; with add it adds that to c.
	tile func(c []float32, ldc int, a []float32, lda int, b []float32, ldb int, m, n, k int, add bool)

	// wide is tile for together matrices b of 16 columns each, whose products lie side by side in c; together is 0 where a
	// path has none. It sums like tile.
	wide     func(c []float32, ldc int, a []float32, lda int, b *[maxTogether][]float32, ldb, m, k int, add bool)
	together int

	// softmax replaces s by exp(scale*s - top), where top is the largest scale*s, and returns top and the sum. Memory
	// behind s may be overwritten up to the next multiple of maxLanes elements.
	softmax func(s []float32, scale float32) (top, sum float32)

	// swiglu writes silu(gate)*up.
	swiglu func(dst, gate, up []float32)

	// norm writes x/sqrt(mean(x²)+eps)*w.
	norm func(dst, x, w []float32, eps float32)

	// rotate turns the pairs of x by the angles of cos and sin: neighbours where interleaved, else elements len(cos) apart.
	rotate func(x, cos, sin []float32, interleaved bool)

	// blend writes y*f + x*g to y.
	blend func(y, x []float32, f, g float32)
}

// mostFew is the most rows that few4 takes.
const mostFew = 8

// maxTogether is the most matrices that wide takes.
const maxTogether = 4

// maxLanes is the widest path's vector.
const maxLanes = 16

// of returns the path for width elements.
func (k *kernels) of(width int) *kernels {
	for width%k.lanes != 0 {
		k = k.narrower
	}
	return k
}

func plainKernels() *kernels {
	k := &kernels{
		name:    "plain",
		lanes:   1,
		dot4:    dot4Plain,
		tile:    tilePlain,
		softmax: softmaxPlain,
		swiglu:  swigluPlain,
		norm:    normPlain,
		rotate:  rotatePlain,
		blend:   blendPlain,
	}
	for t := range k.expand {
		k.expand[t] = func(dst []float32, src []byte) { weights.Dequantize(dst, weights.DType(t), src) }
	}
	return k
}

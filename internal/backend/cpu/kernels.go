package cpu

// kernels is one code path: the inner loops that operations are made of. All of a path's kernels sum in the same order,
// so that it doesn't matter which of them an operation picks.
type kernels struct {
	name string

	// expand, by weights.DType, writes len(dst) weights, whole blocks, as float32.
	expand [len(dequantPlain)]func(dst []float32, src []byte)

	// dot4 computes dst[i*ldd+j] = x[i]·w[j] + bias[j] for i < rows, j < 4, where x is [rows, cols] and w [4, cols]; with
	// add it adds that to dst.
	dot4 func(dst []float32, ldd int, x []float32, rows, cols int, w []float32, bias *[4]float32, add bool)

	// gemv4 does the same for one row of x and four rows of quantised weights; nil: expand and dot4 do.
	gemv4 [len(dequantPlain)]func(dst, x []float32, w []byte, rowBytes int, bias *[4]float32, add bool)

	// tile computes c [m, n] = a [m, k]·b [k, n], rows lda, ldb and ldc apart; with add it adds that to c.
	tile func(c []float32, ldc int, a []float32, lda int, b []float32, ldb int, m, n, k int, add bool)

	// softmax replaces s by exp(scale*s - top), where top is the largest scale*s, and returns top and the sum.
	softmax func(s []float32, scale float32) (top, sum float32)

	// swiglu writes silu(gate)*up.
	swiglu func(dst, gate, up []float32)

	// norm writes x/sqrt(mean(x²)+eps)*w.
	norm func(dst, x, w []float32, eps float32)
}

func plainKernels() *kernels {
	return &kernels{
		name:    "plain",
		expand:  dequantPlain,
		dot4:    dot4Plain,
		tile:    tilePlain,
		softmax: softmaxPlain,
		swiglu:  swigluPlain,
		norm:    normPlain,
	}
}

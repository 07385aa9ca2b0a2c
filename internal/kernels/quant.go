package kernels

import (
	"strconv"
	"strings"

	"cotenant/internal/weights"
)

// quantized describes a format that stays quantised: bytes of a unit's codes and high bits, and of a row's scales for 64 and for 256
// columns, as quant.cuh lays them out.
type quantized struct{ codes, high, scales, blocks int }

var quantizedFormats = map[weights.DType]quantized{
	weights.Q8_0: {16, 0, 4, 0}, weights.Q4_0: {8, 0, 4, 0}, weights.Q4_1: {8, 0, 8, 0}, weights.Q5_0: {8, 2, 4, 0}, weights.Q5_1: {8, 2, 8, 0},
	weights.Q4K: {8, 0, 4, 4}, weights.Q5K: {8, 2, 4, 4}, weights.Q6K: {8, 4, 4, 2},
}

// QuantizedBytes returns the bytes of device memory that rows × cols of a format take as it stays, laid out as quant.cuh says. ok is
// false where they can't: another format, rows that are no multiple of 8, or columns that are none of its block.
func QuantizedBytes(t weights.DType, rows, cols int) (bytes int64, ok bool) {
	q, ok := quantizedFormats[t]
	if !ok || rows < 8 || rows%8 != 0 || cols < 1 || cols%t.BlockSize() != 0 {
		return 0, false
	}
	wide := int64(ceil(cols, 64))
	return int64(rows/8) * (wide*int64(32*(q.codes+q.high)+8*q.scales) + (wide+3)/4*int64(8*q.blocks)), true
}

// QuantizedModule names the module of a format's kernels, and its suffix: for Q4_K on Hopper quant_q4_k_sm90a and q4_k. Besides those that
// QuantizedProduct plans it has
//
//	repack_SUFFIX: w u64, blocks as the file has them u64, first row i32, rows i32 (multiples of 8), N i32, K i32; any grid of 256
//	expand_SUFFIX: bf16 [N, K] u64, w u64, N i32, K i32; any grid of 256
//	embed_SUFFIX: dst float32 [tokens, K] u64, w u64, tokens u64, sampled u64, N i32, K i32; grid of tokens, 128 threads
func QuantizedModule(g GPU, t weights.DType) (name, suffix string) {
	suffix = strings.ToLower(t.String())
	return module(g, "quant_"+suffix), suffix
}

// mostDirect is the most rows that are computed from quantised weights, or of a matrix that is never expanded at a time: on an H200
// expanding first takes less time with 64 rows, or no more than 4 % more, for all formats and shapes of models of 0.5B and 8B, and so do two
// pieces of 32.
const mostDirect = 32

// QuantizedProduct plans c = x·wᵀ + bias with a segment of N rows of a format; parameters as Product's, then stride i32, the columns of c
// (elements from one row to the next). ok is false where the weights are to be expanded and Product does it: for many rows, and for
// Ordered where that is another order. Results are those of Product on expanded weights, to the bit.
func QuantizedProduct(g GPU, t weights.DType, order Order, M, N, K int) (p Plan, ok bool) {
	if M > mostDirect || order == Ordered && g.Hopper() {
		return Plan{}, false
	}
	return quantizedRows(g, t, M, N, K), true
}

// QuantizedAll is QuantizedProduct for any number of rows, 32 at a time: for a matrix that there is no room to expand. Its order is
// Sliced.
func QuantizedAll(g GPU, t weights.DType, M, N, K int) Plan { return quantizedRows(g, t, M, N, K) }

func quantizedRows(g GPU, t weights.DType, M, N, K int) Plan {
	rows, tiles := 8, 1
	for rows < min(M, mostDirect) {
		rows *= 2
	}
	if rows >= 32 {
		tiles = 2 // of a warp
	}
	name, suffix := QuantizedModule(g, t)
	return Plan{Module: name, Kernel: "direct_" + suffix + "_" + strconv.Itoa(rows), Block: [3]uint32{256, 1, 1},
		Grid: [3]uint32{uint32(ceil(N, 16*tiles*8/Slices(K))), uint32(ceil(M, rows)), 1}}
}

// Package weights reads model files (GGUF, safetensors) by mmap and describes their tensors without copying them.
package weights

import "fmt"

// DType is the number format of a tensor's elements. Block formats are those of ggml (ggml-common.h), little endian.
type DType uint8

// The formats that this package reads.
const (
	F32 DType = iota
	F16
	BF16
	Q8_0
	Q4_0
	Q4_1
	Q5_0
	Q5_1
	Q4K
	Q5K
	Q6K
)

var dtypes = [...]struct {
	name         string
	block, bytes int
}{
	F32:  {"F32", 1, 4},
	F16:  {"F16", 1, 2},
	BF16: {"BF16", 1, 2},
	Q8_0: {"Q8_0", 32, 34},
	Q4_0: {"Q4_0", 32, 18},
	Q4_1: {"Q4_1", 32, 20},
	Q5_0: {"Q5_0", 32, 22},
	Q5_1: {"Q5_1", 32, 24},
	Q4K:  {"Q4_K", 256, 144},
	Q5K:  {"Q5_K", 256, 176},
	Q6K:  {"Q6_K", 256, 210},
}

// String returns ggml's name of the format.
func (t DType) String() string {
	if int(t) < len(dtypes) {
		return dtypes[t].name
	}
	return fmt.Sprintf("DType(%d)", uint8(t))
}

// BlockSize returns the number of elements in a block; 1 for formats without blocks.
func (t DType) BlockSize() int { return dtypes[t].block }

// BlockBytes returns the number of bytes in a block.
func (t DType) BlockBytes() int { return dtypes[t].bytes }

// RowBytes returns the bytes of n elements; n is a multiple of BlockSize.
func (t DType) RowBytes(n int) int { return n / dtypes[t].block * dtypes[t].bytes }

// Tensor is one named array. Shape is row-major, outermost dimension first: a matrix is [rows, cols] and a row's
// elements (whole blocks) are contiguous. Data is borrowed from the file's mapping: read-only, valid until the file is
// closed, of exactly the bytes that Type and Shape demand, and aligned as the file has it (maybe not at all).
type Tensor struct {
	Name  string
	Type  DType
	Shape []int
	Data  []byte
}

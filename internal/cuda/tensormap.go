package cuda

import (
	"fmt"
	"unsafe"
)

// TensorMap is a CUtensorMap: how the tensor memory accelerator of compute capability 9.0 and later copies boxes of a tensor.
// The driver wants its 128 bytes at a multiple of 64.
type TensorMap struct{ room [24]uint64 }

func (m *TensorMap) pointer() unsafe.Pointer {
	p := unsafe.Pointer(&m.room)
	return unsafe.Add(p, -uintptr(p)&63)
}

// Values of cuda.h's enumerations for tensor maps.
const (
	tensorBF16       = 9 // CU_TENSOR_MAP_DATA_TYPE_BFLOAT16
	tensorSwizzle128 = 3
	tensorL2256      = 3
)

// EncodeBF16 describes a matrix of bfloat16 in device memory, rows of cols elements that lie stride elements apart, to be copied in
// boxes of boxRows × boxCols with the 128-byte swizzle (boxCols is 64 then); elements outside read as zero. base is a multiple of
// 16 bytes, and so is a row's stride.
func (d *Driver) EncodeBF16(base Pointer, rows, cols, stride, boxRows, boxCols int) (*TensorMap, error) {
	size, pitch := [2]uint64{uint64(cols), uint64(rows)}, [1]uint64{uint64(stride) * 2}
	return d.encodeBF16(base, size[:], pitch[:], []uint32{uint32(boxCols), uint32(boxRows)})
}

// EncodeGateUpBF16 describes a matrix of bfloat16 in device memory whose rows are those of a gate followed by as many, a multiple
// of 8, of an up projection, as a tensor of rank 4: cols, 8 rows, gate or up, groups of 8 rows. A box is 64 columns × 64 rows, 8 of
// the gate and 8 of the up in turns.
func (d *Driver) EncodeGateUpBF16(base Pointer, rows, cols int) (*TensorMap, error) {
	row := uint64(cols) * 2
	size := []uint64{uint64(cols), 8, 2, uint64(rows) / 16}
	pitch := []uint64{row, uint64(rows/2) * row, 8 * row}
	return d.encodeBF16(base, size, pitch, []uint32{64, 8, 2, 4})
}

// EncodeKVBF16 describes rows of dim bfloat16, a multiple of 64, that lie beside each other in device memory, as a tensor of rank 4: 64
// columns, 8 rows, groups of columns, groups of 8 rows. A box is 16 whole rows: 8 of them by 64 columns at a time.
func (d *Driver) EncodeKVBF16(base Pointer, rows, dim int) (*TensorMap, error) {
	row := uint64(dim) * 2
	size := []uint64{64, 8, uint64(dim) / 64, uint64(rows) / 8}
	return d.encodeBF16(base, size, []uint64{row, 128, 8 * row}, []uint32{64, 8, uint32(dim) / 64, 2})
}

func (d *Driver) encodeBF16(base Pointer, size, pitch []uint64, box []uint32) (*TensorMap, error) {
	m := &TensorMap{}
	step := []uint32{1, 1, 1, 1}
	// cuTensorMapEncodeTiled(map, type, rank, address, sizes, strides, box, steps, interleave, swizzle, promotion, fill).
	err := d.call("cuTensorMapEncodeTiled", uintptr(m.pointer()), tensorBF16, uintptr(len(size)), uintptr(base), uintptr(unsafe.Pointer(&size[0])),
		uintptr(unsafe.Pointer(&pitch[0])), uintptr(unsafe.Pointer(&box[0])), uintptr(unsafe.Pointer(&step[0])), 0, tensorSwizzle128, tensorL2256, 0)
	if err != nil {
		return nil, fmt.Errorf("tensor map of %v in boxes of %v: %w", size, box, err)
	}
	return m, nil
}

// Bytes returns the map's 128 bytes. Kernels may read a map from device memory too, at a multiple of 64.
func (m *TensorMap) Bytes() []byte { return unsafe.Slice((*byte)(m.pointer()), 128) }

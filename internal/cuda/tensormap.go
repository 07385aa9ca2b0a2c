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
	m := &TensorMap{}
	size := [2]uint64{uint64(cols), uint64(rows)}
	pitch := [1]uint64{uint64(stride) * 2}
	box := [2]uint32{uint32(boxCols), uint32(boxRows)}
	step := [2]uint32{1, 1}
	// cuTensorMapEncodeTiled(map, type, rank, address, sizes, strides, box, steps, interleave, swizzle, promotion, fill).
	err := d.call("cuTensorMapEncodeTiled", uintptr(m.pointer()), tensorBF16, 2, uintptr(base), uintptr(unsafe.Pointer(&size)),
		uintptr(unsafe.Pointer(&pitch)), uintptr(unsafe.Pointer(&box)), uintptr(unsafe.Pointer(&step)), 0, tensorSwizzle128, tensorL2256, 0)
	if err != nil {
		return nil, fmt.Errorf("tensor map of %d × %d in boxes of %d × %d: %w", rows, cols, boxRows, boxCols, err)
	}
	return m, nil
}

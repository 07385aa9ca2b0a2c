package cpu

import "unsafe"

// alignedFloats makes n float32 that start on a cache line.
func alignedFloats(n int) []float32 {
	v := make([]float32, n+16)
	skip := 0
	if r := uintptr(unsafe.Pointer(&v[0])) & 63; r != 0 {
		skip = int(64-r) / 4
	}
	return v[skip : skip+n : skip+n]
}

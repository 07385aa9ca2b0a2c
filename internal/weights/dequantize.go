package weights

import (
	"encoding/binary"
	"fmt"
	"math"
)

// Dequantize writes the float32 values of src, elements of format t, to dst. It is the definition that faster paths are
// tested against: for finite scales its results are those of ggml's dequantize_row functions (ggml-quants.c) bit for bit. It
// panics unless len(dst) is a multiple of t's block and src has exactly t.RowBytes(len(dst)) bytes, which holds for every
// Tensor's Data and for whole rows of it.
//
// Products are rounded to float32 before a sum, by conversion: the compiler may otherwise fuse them on some processors.
func Dequantize(dst []float32, t DType, src []byte) {
	if len(dst)%t.BlockSize() != 0 || len(src) != t.RowBytes(len(dst)) {
		panic(fmt.Sprintf("weights: dequantize %d bytes of %s into %d elements", len(src), t, len(dst)))
	}
	block, size := t.BlockSize(), t.BlockBytes()
	switch t {
	case F32:
		for i := range dst {
			dst[i] = math.Float32frombits(binary.LittleEndian.Uint32(src[4*i:]))
		}
		return
	case F16:
		for i := range dst {
			dst[i] = f16(src[2*i:])
		}
		return
	case BF16:
		for i := range dst {
			dst[i] = BF16ToF32(binary.LittleEndian.Uint16(src[2*i:]))
		}
		return
	}
	one := dequantizers[t]
	for len(dst) > 0 {
		one(dst[:block], src[:size])
		dst, src = dst[block:], src[size:]
	}
}

// dequantizers holds the block formats: one block of src to dst.
var dequantizers = [...]func(dst []float32, src []byte){
	Q8_0: blockQ8_0, Q4_0: blockQ4_0, Q4_1: blockQ4_1, Q5_0: blockQ5_0, Q5_1: blockQ5_1,
	Q4K: blockQ4K, Q5K: blockQ5K, Q6K: blockQ6K,
}

func f16(b []byte) float32 { return F16ToF32(binary.LittleEndian.Uint16(b)) }

// Block layouts below are those of ggml-common.h. d is the scale, m the offset, both binary16; qs are packed quants.

// Q8_0: d, int8 qs[32].
func blockQ8_0(dst []float32, src []byte) {
	d := f16(src)
	for i, q := range src[2:34] {
		dst[i] = float32(int8(q)) * d
	}
}

// Q4_0: d, qs[16]; the low nibbles are elements 0 to 15, the high ones 16 to 31; 8 stands for zero.
func blockQ4_0(dst []float32, src []byte) {
	d := f16(src)
	for i, q := range src[2:18] {
		dst[i] = float32(int(q&15)-8) * d
		dst[i+16] = float32(int(q>>4)-8) * d
	}
}

// Q4_1: d, m, qs[16], as Q4_0 with an offset.
func blockQ4_1(dst []float32, src []byte) {
	d, m := f16(src), f16(src[2:])
	for i, q := range src[4:20] {
		dst[i] = float32(float32(q&15)*d) + m
		dst[i+16] = float32(float32(q>>4)*d) + m
	}
}

// Q5_0: d, the 32 fifth bits, qs[16]; 16 stands for zero.
func blockQ5_0(dst []float32, src []byte) {
	d, high := f16(src), binary.LittleEndian.Uint32(src[2:])
	for i, q := range src[6:22] {
		dst[i] = float32(int(q&15)+int(high>>i&1)<<4-16) * d
		dst[i+16] = float32(int(q>>4)+int(high>>(i+16)&1)<<4-16) * d
	}
}

// Q5_1: d, m, the 32 fifth bits, qs[16].
func blockQ5_1(dst []float32, src []byte) {
	d, m, high := f16(src), f16(src[2:]), binary.LittleEndian.Uint32(src[4:])
	for i, q := range src[8:24] {
		dst[i] = float32(float32(int(q&15)+int(high>>i&1)<<4)*d) + m
		dst[i+16] = float32(float32(int(q>>4)+int(high>>(i+16)&1)<<4)*d) + m
	}
}

// scalesK unpacks the eight 6-bit scales and the eight 6-bit offsets of a Q4_K or Q5_K block from their 12 bytes. The first
// four of each have a byte's low six bits; the others a nibble, and their upper two bits in the first eight bytes' rest.
func scalesK(s []byte) (scale, offset [8]float32) {
	for i := range 4 {
		scale[i] = float32(s[i] & 63)
		offset[i] = float32(s[i+4] & 63)
		scale[i+4] = float32(s[i+8]&15 | s[i]>>6<<4)
		offset[i+4] = float32(s[i+8]>>4 | s[i+4]>>6<<4)
	}
	return scale, offset
}

// Q4_K: 256 elements in 8 groups of 32: d, dmin, scales[12], qs[128]. Groups 2k and 2k+1 share 32 bytes, low and high
// nibbles. An element is d·scale·q − dmin·offset.
func blockQ4K(dst []float32, src []byte) {
	d, dmin := f16(src), f16(src[2:])
	scale, offset := scalesK(src[4:16])
	for g := range 8 {
		ds, ms := d*scale[g], dmin*offset[g]
		shift := g % 2 * 4
		out := dst[32*g : 32*g+32]
		for i, q := range src[16+g/2*32 : 48+g/2*32] {
			out[i] = float32(ds*float32(q>>shift&15)) - ms
		}
	}
}

// Q5_K: as Q4_K, with 32 bytes of fifth bits between scales and qs: bit g of byte i belongs to element i of group g.
func blockQ5K(dst []float32, src []byte) {
	d, dmin := f16(src), f16(src[2:])
	scale, offset := scalesK(src[4:16])
	high := src[16:48]
	for g := range 8 {
		ds, ms := d*scale[g], dmin*offset[g]
		shift := g % 2 * 4
		out := dst[32*g : 32*g+32]
		for i, q := range src[48+g/2*32 : 80+g/2*32] {
			out[i] = float32(ds*float32(q>>shift&15|high[i]>>g&1<<4)) - ms
		}
	}
}

// Q6_K: 256 elements in 16 groups of 16: low nibbles ql[128], upper two bits qh[64], int8 scales[16], d; 32 stands for
// zero. In each half of 128, group of 32 number k takes its nibbles from ql (k odd: the second 32 bytes; k ≥ 2: the high
// nibbles) and bits 2k, 2k+1 of the half's 32 bytes of qh.
func blockQ6K(dst []float32, src []byte) {
	d := f16(src[208:])
	for half := range 2 {
		ql, qh, scales := src[64*half:64*half+64], src[128+32*half:160+32*half], src[192+8*half:200+8*half]
		for k := range 4 {
			out := dst[128*half+32*k : 128*half+32*k+32]
			for i := range out {
				q := ql[k%2*32+i]>>(k/2*4)&15 | qh[i]>>(2*k)&3<<4
				out[i] = d * float32(int8(scales[2*k+i/16])) * float32(int(q)-32)
			}
		}
	}
}

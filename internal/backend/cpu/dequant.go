package cpu

import (
	"encoding/binary"
	"math"

	"cotenant/internal/weights"
)

// dequantPlain expands whole blocks of each format (layouts: ggml-common.h) to float32; len(dst) elements. Every product
// of scale and quant fits in float32's 24 bits, so an element is rounded once at most, fused or not: all code paths get
// the same weights.
var dequantPlain = [...]func(dst []float32, src []byte){
	weights.F32:  dequantF32,
	weights.F16:  dequantF16,
	weights.BF16: dequantBF16,
	weights.Q8_0: dequantQ8_0,
	weights.Q4_0: dequantQ4_0,
	weights.Q4_1: dequantQ4_1,
	weights.Q5_0: dequantQ5_0,
	weights.Q5_1: dequantQ5_1,
	weights.Q4K:  dequantQ4K,
	weights.Q5K:  dequantQ5K,
	weights.Q6K:  dequantQ6K,
}

// halfToFloat converts IEEE 754 binary16.
func halfToFloat(h uint16) float32 {
	sign := uint32(h&0x8000) << 16
	bits := uint32(h&0x7fff) << 13
	switch {
	case h&0x7c00 == 0x7c00: // infinity, NaN
		return math.Float32frombits(sign | bits | 0x7f800000)
	case h&0x7c00 == 0: // zero, subnormal: bits·2^-149 is too small by the difference of the biases
		return math.Float32frombits(sign | math.Float32bits(float32(h&0x3ff)*(1.0/(1<<24))))
	}
	return math.Float32frombits(sign | bits + (127-15)<<23)
}

func half(b []byte) float32 { return halfToFloat(binary.LittleEndian.Uint16(b)) }

func dequantF32(dst []float32, src []byte) {
	src = src[:4*len(dst)]
	for i := range dst {
		dst[i] = math.Float32frombits(binary.LittleEndian.Uint32(src[4*i:]))
	}
}

func dequantF16(dst []float32, src []byte) {
	src = src[:2*len(dst)]
	for i := range dst {
		dst[i] = half(src[2*i:])
	}
}

func dequantBF16(dst []float32, src []byte) {
	src = src[:2*len(dst)]
	for i := range dst {
		dst[i] = math.Float32frombits(uint32(binary.LittleEndian.Uint16(src[2*i:])) << 16)
	}
}

func dequantQ8_0(dst []float32, src []byte) {
	for ; len(dst) >= 32; dst, src = dst[32:], src[34:] {
		d, q, y := half(src), src[2:34], dst[:32]
		for i, v := range q {
			y[i] = d * float32(int8(v))
		}
	}
}

func dequantQ4_0(dst []float32, src []byte) {
	for ; len(dst) >= 32; dst, src = dst[32:], src[18:] {
		d, q, lo, hi := half(src), src[2:18], dst[:16], dst[16:32]
		for i, v := range q {
			lo[i] = d * float32(int(v&15)-8)
			hi[i] = d * float32(int(v>>4)-8)
		}
	}
}

func dequantQ4_1(dst []float32, src []byte) {
	for ; len(dst) >= 32; dst, src = dst[32:], src[20:] {
		d, m, q, lo, hi := half(src), half(src[2:]), src[4:20], dst[:16], dst[16:32]
		for i, v := range q {
			lo[i] = d*float32(v&15) + m
			hi[i] = d*float32(v>>4) + m
		}
	}
}

func dequantQ5_0(dst []float32, src []byte) {
	for ; len(dst) >= 32; dst, src = dst[32:], src[22:] {
		d, h, q, lo, hi := half(src), binary.LittleEndian.Uint32(src[2:]), src[6:22], dst[:16], dst[16:32]
		for i, v := range q {
			lo[i] = d * float32(int(v&15|byte(h>>i&1)<<4)-16)
			hi[i] = d * float32(int(v>>4|byte(h>>(i+16)&1)<<4)-16)
		}
	}
}

func dequantQ5_1(dst []float32, src []byte) {
	for ; len(dst) >= 32; dst, src = dst[32:], src[24:] {
		d, m, h, q := half(src), half(src[2:]), binary.LittleEndian.Uint32(src[4:]), src[8:24]
		lo, hi := dst[:16], dst[16:32]
		for i, v := range q {
			lo[i] = d*float32(v&15|byte(h>>i&1)<<4) + m
			hi[i] = d*float32(v>>4|byte(h>>(i+16)&1)<<4) + m
		}
	}
}

// scaleMinK unpacks the i-th of eight pairs of 6-bit scale and minimum of Q4_K and Q5_K.
func scaleMinK(i int, s []byte) (scale, minimum byte) {
	if i < 4 {
		return s[i] & 63, s[i+4] & 63
	}
	return s[i+4]&15 | s[i-4]>>6<<4, s[i+4]>>4 | s[i]>>6<<4
}

func dequantQ4K(dst []float32, src []byte) {
	for ; len(dst) >= 256; dst, src = dst[256:], src[144:] {
		d, dmin, scales, q := half(src), half(src[2:]), src[4:16], src[16:144]
		for j := range 4 { // 64 elements: 32 low nibbles, 32 high ones
			s0, m0 := scaleMinK(2*j, scales)
			s1, m1 := scaleMinK(2*j+1, scales)
			d0, o0, d1, o1 := d*float32(s0), dmin*float32(m0), d*float32(s1), dmin*float32(m1)
			lo, hi := dst[64*j:64*j+32], dst[64*j+32:64*j+64]
			for i, v := range q[32*j : 32*j+32] {
				lo[i] = d0*float32(v&15) - o0
				hi[i] = d1*float32(v>>4) - o1
			}
		}
	}
}

func dequantQ5K(dst []float32, src []byte) {
	for ; len(dst) >= 256; dst, src = dst[256:], src[176:] {
		d, dmin, scales, high, q := half(src), half(src[2:]), src[4:16], src[16:48], src[48:176]
		for j := range 4 {
			s0, m0 := scaleMinK(2*j, scales)
			s1, m1 := scaleMinK(2*j+1, scales)
			d0, o0, d1, o1 := d*float32(s0), dmin*float32(m0), d*float32(s1), dmin*float32(m1)
			lo, hi := dst[64*j:64*j+32], dst[64*j+32:64*j+64]
			for i, v := range q[32*j : 32*j+32] {
				lo[i] = d0*float32(v&15|high[i]>>(2*j)&1<<4) - o0
				hi[i] = d1*float32(v>>4|high[i]>>(2*j+1)&1<<4) - o1
			}
		}
	}
}

func dequantQ6K(dst []float32, src []byte) {
	for ; len(dst) >= 256; dst, src = dst[256:], src[210:] {
		d := half(src[208:])
		for n := range 2 { // 128 elements: four runs of 32
			low, high, scales, y := src[64*n:64*n+64], src[128+32*n:160+32*n], src[192+8*n:200+8*n], dst[128*n:128*n+128]
			for i := range 32 {
				h := high[i]
				q := [4]byte{
					low[i]&15 | h&3<<4, low[i+32]&15 | h>>2&3<<4,
					low[i]>>4 | h>>4&3<<4, low[i+32]>>4 | h>>6<<4,
				}
				for r, v := range q {
					y[32*r+i] = d * float32(int8(scales[2*r+i/16])) * float32(int(v)-32)
				}
			}
		}
	}
}

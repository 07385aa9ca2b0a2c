package cpu

import (
	"encoding/binary"

	"cotenant/internal/weights"
)

// kQuants sets the formats whose blocks of 256 have packed scales: those are unpacked here, the weights in assembly.
func kQuants(k *kernels) {
	k.expand[weights.Q4K] = blocks(weights.Q4K, func(dst []float32, src []byte) {
		scale := scalesK(src)
		expandQ4_KAVX2(&dst[0], &src[0], &scale[0])
	})
	k.expand[weights.Q5K] = blocks(weights.Q5K, func(dst []float32, src []byte) {
		scale := scalesK(src)
		expandQ5_KAVX2(&dst[0], &src[0], &scale[0])
	})
	k.expand[weights.Q6K] = blocks(weights.Q6K, func(dst []float32, src []byte) {
		var scale [16]float32
		d := weights.F16ToF32(binary.LittleEndian.Uint16(src[208:]))
		for i, s := range src[192:208] {
			scale[i] = d * float32(int8(s))
		}
		expandQ6_KAVX2(&dst[0], &src[0], &scale[0])
	})
}

// blocks calls one for each block of dst.
func blocks(t weights.DType, one func(dst []float32, src []byte)) func(dst []float32, src []byte) {
	n, size := t.BlockSize(), t.BlockBytes()
	return func(dst []float32, src []byte) {
		for ; len(dst) > 0; dst, src = dst[n:], src[size:] {
			one(dst[:n], src[:size])
		}
	}
}

// scalesK unpacks the eight groups' scales and offsets of a Q4_K or Q5_K block, multiplied with the block's own.
func scalesK(src []byte) (out [16]float32) {
	d, m := weights.F16ToF32(binary.LittleEndian.Uint16(src)), weights.F16ToF32(binary.LittleEndian.Uint16(src[2:]))
	s := src[4:16]
	for i := range 4 {
		out[i] = d * float32(s[i]&63)
		out[i+4] = d * float32(s[i+8]&15|s[i]>>6<<4)
		out[i+8] = m * float32(s[i+4]&63)
		out[i+12] = m * float32(s[i+8]>>4|s[i+4]>>6<<4)
	}
	return out
}

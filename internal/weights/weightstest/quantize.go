package weightstest

import (
	"encoding/binary"
	"fmt"
	"math"

	"cotenant/internal/weights"
)

// Quantize packs src into the format t. F32, F16, BF16, Q8_0 and the Q4 and Q5 formats of 32 give the bytes that ggml's
// reference quantisers give (ggml-quants.c, quantize_row_*_ref); the K formats take each group's range, where ggml searches
// for the best scale. It panics where len(src) isn't a multiple of the block or a value isn't finite.
func Quantize(t weights.DType, src []float32) []byte {
	if len(src)%t.BlockSize() != 0 {
		panic(fmt.Sprintf("weightstest: %d values aren't whole blocks of %s", len(src), t))
	}
	for _, v := range src {
		if !finite(v) {
			panic(fmt.Sprintf("weightstest: %v can't be quantised", v))
		}
	}
	out := make([]byte, 0, t.RowBytes(len(src)))
	for n := t.BlockSize(); len(src) > 0; src = src[n:] {
		x := src[:n]
		switch t {
		case weights.F32:
			out = binary.LittleEndian.AppendUint32(out, math.Float32bits(x[0]))
		case weights.F16:
			out = appendF16(out, x[0])
		case weights.BF16:
			out = binary.LittleEndian.AppendUint16(out, weights.F32ToBF16(x[0]))
		case weights.Q8_0:
			out = appendQ8(out, x)
		case weights.Q4_0:
			out = appendSymmetric(out, x, 4)
		case weights.Q5_0:
			out = appendSymmetric(out, x, 5)
		case weights.Q4_1:
			out = appendOffset(out, x, 4)
		case weights.Q5_1:
			out = appendOffset(out, x, 5)
		case weights.Q4K:
			out = appendK(out, x, 4)
		case weights.Q5K:
			out = appendK(out, x, 5)
		case weights.Q6K:
			out = appendQ6K(out, x)
		}
	}
	return out
}

func appendF16(b []byte, v float32) []byte {
	return binary.LittleEndian.AppendUint16(b, weights.F32ToF16(v))
}

func inverse(d float32) float32 {
	if d == 0 {
		return 0
	}
	return 1 / d
}

// largest returns the value of x that is farthest from zero, with its sign; the first of equals.
func largest(x []float32) float32 {
	m := x[0] // not 0: ggml keeps the sign of a zero
	for _, v := range x[1:] {
		if abs(v) > abs(m) {
			m = v
		}
	}
	return m
}

func abs(v float32) float32 { return float32(math.Abs(float64(v))) }

func bounds(x []float32) (lo, hi float32) {
	lo, hi = x[0], x[0]
	for _, v := range x[1:] {
		lo, hi = min(lo, v), max(hi, v)
	}
	return lo, hi
}

func appendQ8(b []byte, x []float32) []byte {
	d := abs(largest(x)) / 127
	inv := inverse(d)
	b = appendF16(b, d)
	for _, v := range x {
		b = append(b, byte(int8(math.Round(float64(v*inv)))))
	}
	return b
}

// appendSymmetric packs 32 values as Q4_0 or Q5_0.
func appendSymmetric(b []byte, x []float32, width int) []byte {
	half := float32(int(1) << (width - 1))
	d := largest(x) / -half
	inv := inverse(d)
	var q [32]byte
	for i, v := range x {
		q[i] = byte(min(int(float32(v*inv)+(half+0.5)), 1<<width-1))
	}
	return appendPacked(appendF16(b, d), q, width)
}

// appendOffset packs 32 values as Q4_1 or Q5_1.
func appendOffset(b []byte, x []float32, width int) []byte {
	lo, hi := bounds(x)
	top := 1<<width - 1
	d := (hi - lo) / float32(top)
	inv := inverse(d)
	var q [32]byte
	for i, v := range x {
		q[i] = byte(min(int(float32((v-lo)*inv)+0.5), top))
	}
	return appendPacked(appendF16(appendF16(b, d), lo), q, width)
}

// appendPacked appends the fifth bits, where there are any, and the nibbles.
func appendPacked(b []byte, q [32]byte, width int) []byte {
	if width == 5 {
		var high uint32
		for i, v := range q {
			high |= uint32(v>>4&1) << i
		}
		b = binary.LittleEndian.AppendUint32(b, high)
	}
	for i := range 16 {
		b = append(b, q[i]&15|q[i+16]<<4)
	}
	return b
}

// nearest rounds v to an integer from lo to hi.
func nearest(v float32, lo, hi int) int {
	return min(max(int(math.RoundToEven(float64(v))), lo), hi)
}

// appendK packs 256 values as Q4_K or Q5_K.
func appendK(b []byte, x []float32, width int) []byte {
	top := 1<<width - 1
	var scale, offset [8]float32
	for g := range 8 {
		lo, hi := bounds(x[32*g : 32*g+32])
		lo, hi = min(lo, 0), max(hi, 0) // the offset can't be negative
		scale[g], offset[g] = (hi-lo)/float32(top), -lo
	}
	_, maxScale := bounds(scale[:])
	_, maxOffset := bounds(offset[:])
	d, dmin := weights.F32ToF16(maxScale/63), weights.F32ToF16(maxOffset/63)
	df, mf := weights.F16ToF32(d), weights.F16ToF32(dmin)
	var sc, mn [8]byte
	var q [256]byte
	for g := range 8 {
		sc[g], mn[g] = byte(nearest(scale[g]*inverse(df), 0, 63)), byte(nearest(offset[g]*inverse(mf), 0, 63))
		inv := inverse(df * float32(sc[g]))
		for i := range 32 {
			q[32*g+i] = byte(nearest((x[32*g+i]+mf*float32(mn[g]))*inv, 0, top))
		}
	}
	b = binary.LittleEndian.AppendUint16(binary.LittleEndian.AppendUint16(b, d), dmin)
	for i := range 4 {
		b = append(b, sc[i]|sc[i+4]>>4<<6)
	}
	for i := range 4 {
		b = append(b, mn[i]|mn[i+4]>>4<<6)
	}
	for i := range 4 {
		b = append(b, sc[i+4]&15|mn[i+4]<<4)
	}
	if width == 5 {
		for i := range 32 {
			var high byte
			for g := range 8 {
				high |= q[32*g+i] >> 4 << g
			}
			b = append(b, high)
		}
	}
	for pair := range 4 {
		for i := range 32 {
			b = append(b, q[64*pair+i]&15|q[64*pair+32+i]<<4)
		}
	}
	return b
}

func appendQ6K(b []byte, x []float32) []byte {
	var scale [16]float32
	for g := range 16 {
		scale[g] = largest(x[16*g:16*g+16]) / -32
	}
	d := weights.F32ToF16(abs(largest(scale[:])) / 127)
	df := weights.F16ToF32(d)
	var sc [16]int
	var q [256]byte
	for g := range 16 {
		sc[g] = nearest(scale[g]*inverse(df), -127, 127)
		inv := inverse(df * float32(sc[g]))
		for i := range 16 {
			q[16*g+i] = byte(nearest(x[16*g+i]*inv, -32, 31) + 32)
		}
	}
	for half := range 2 {
		for i := range 64 { // elements i of the first two groups of 32 share bytes with those of the last two
			b = append(b, q[128*half+i]&15|q[128*half+64+i]<<4)
		}
	}
	for half := range 2 {
		for i := range 32 {
			var high byte
			for k := range 4 {
				high |= q[128*half+32*k+i] >> 4 << (2 * k)
			}
			b = append(b, high)
		}
	}
	for _, s := range sc {
		b = append(b, byte(int8(s)))
	}
	return binary.LittleEndian.AppendUint16(b, d)
}

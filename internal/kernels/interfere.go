package kernels

import "math"

// InterfereModule holds the kernels of `cotenant interfere` but for matrix products: arithmetic, stream, reread, tiny, tickets and
// scatter. It is for sm_80. Products are those of Product, which serve models too.
const InterfereModule = "interfere_sm80"

// ArithmeticValue is what the kernel arithmetic adds to its block's number.
func ArithmeticValue(block, threads, rounds uint32) uint32 {
	const s = float32(0.015625)
	var sum uint32
	for t := range threads {
		var x, y [4]float32
		for i := range x {
			x[i] = 1 + float32(t&31)*0.03125 + float32(i)
			y[i] = float32(block&63)*0.015625 - float32(i)
		}
		for range rounds {
			for i := range x {
				x[i] = fma32(y[i], s, x[i])
				y[i] = fma32(x[i], -s, y[i])
			}
		}
		for i := range x {
			sum += math.Float32bits(x[i]) ^ math.Float32bits(y[i])
		}
	}
	return sum
}

// fma32 is a*b+c rounded once to float32. The product is exact in float64; its sum with c is rounded to odd there, so that rounding it
// again to float32 is as if there had been one rounding (Boldo and Melquiond, IEEE Trans. Computers 57, 2008).
func fma32(a, b, c float32) float32 {
	p, q := float64(a)*float64(b), float64(c)
	s := p + q
	// Knuth's TwoSum: s + e = p + q exactly.
	t := s - p
	e := (p - (s - t)) + (q - t)
	if bits := math.Float64bits(s); e != 0 && bits&1 == 0 {
		if (e > 0) == (s > 0) {
			bits++
		} else {
			bits--
		}
		s = math.Float64frombits(bits)
	}
	return float32(s)
}

// ScatterValue is the number that the kernel scatter puts at place i: a multiple of 1/64 of at most 1/8, which bf16 holds exactly. Sums
// of up to 2^18 products of two of them are exact in float32 in any order.
func ScatterValue(i uint64) float32 {
	h := uint32(i) * 2654435761
	h ^= h >> 15
	return float32(int32(h%17)-8) * 0.015625
}

// BF16 rounds to nearest even, for finite numbers.
func BF16(f float32) uint16 {
	b := math.Float32bits(f)
	return uint16((b + 0x7fff + b>>16&1) >> 16)
}

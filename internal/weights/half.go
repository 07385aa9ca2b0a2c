package weights

import (
	"math"
	"math/bits"
)

// F16ToF32 widens an IEEE 754 binary16 value. It is exact; a NaN keeps its payload and stays as quiet as it was.
func F16ToF32(h uint16) float32 {
	sign, exp, frac := uint32(h&0x8000)<<16, uint32(h>>10&0x1f), uint32(h&0x3ff)
	switch {
	case exp == 0x1f: // infinity or NaN
		return math.Float32frombits(sign | 0x7f800000 | frac<<13)
	case exp == 0 && frac == 0:
		return math.Float32frombits(sign)
	case exp == 0: // subnormal: binary32 has the exponent for it
		shift := uint32(bits.LeadingZeros32(frac)) - 21
		return math.Float32frombits(sign | (113-shift)<<23 | frac<<shift&0x3ff<<13)
	}
	return math.Float32frombits(sign | (exp+112)<<23 | frac<<13)
}

// F32ToF16 narrows to the nearest IEEE 754 binary16 value, ties to even; what is too large becomes an infinity. A NaN stays
// one and is made quiet.
func F32ToF16(f float32) uint16 {
	b := math.Float32bits(f)
	sign := uint16(b >> 16 & 0x8000)
	b &= 0x7fffffff
	switch {
	case b > 0x7f800000:
		return sign | 0x7e00 | uint16(b>>13&0x3ff)
	case b >= 0x477ff000: // 65520, halfway between the largest value and the one after
		return sign | 0x7c00
	case b < 0x38800000: // below 2^-14: subnormal; adding 0.5 leaves the rounded multiple of 2^-24 in the low bits
		return sign | uint16(math.Float32bits(math.Float32frombits(b)+0.5)-0x3f000000)
	}
	return sign | uint16((b-0x38000000+0xfff+b>>13&1)>>13)
}

// BF16ToF32 widens a bfloat16 value, the upper half of a binary32. It is exact.
func BF16ToF32(h uint16) float32 { return math.Float32frombits(uint32(h) << 16) }

// F32ToBF16 narrows to the nearest bfloat16 value, ties to even. A NaN stays one and is made quiet.
func F32ToBF16(f float32) uint16 {
	b := math.Float32bits(f)
	if b&0x7fffffff > 0x7f800000 {
		return uint16(b>>16) | 0x40
	}
	return uint16((b + 0x7fff + b>>16&1) >> 16)
}

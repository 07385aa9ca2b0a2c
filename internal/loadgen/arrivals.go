package loadgen

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"math/bits"
)

// Picoseconds in a microsecond: gaps are added up in the finer unit, so that a rate doesn't drift by rounding.
const PicosPerMicro = 1_000_000

// MaxRate and MinRate bound a rate, in arrivals per 10^6 seconds: a million and a thousandth a second.
const (
	MaxRate = 1_000_000_000_000
	MinRate = 1_000
)

// ConstantGap is the time between two arrivals at a rate per 10^6 seconds, in ps, rounded down.
func ConstantGap(rate int64) int64 {
	const picos = 1_000_000_000_000_000_000 // in 10^6 s
	return picos / rate
}

// ln2e62 is ln 2 in units of 2^-62, rounded down.
const ln2e62 = 3196577161300663914

// PoissonGap is the time before arrival n of a Poisson process of a rate per 10^6 seconds, in ps. It is a pure function of its
// arguments in integer arithmetic, so that any machine and any language gives the same schedule: u is the first 8 bytes of
// SHA-256("cotenant-arrivals-1", line feed, seed, line feed, n in decimal digits), big-endian, with its lowest bit set; the gap is
// -ln(u / 2^64) times ConstantGap. The logarithm to base 2 is taken to 40 binary digits by repeated squaring (D. E. Knuth, The Art of
// Computer Programming, 1.2.2), each square cut to 63 bits behind the point.
func PoissonGap(seed string, n, rate int64) int64 {
	h := sha256.Sum256(fmt.Appendf(nil, "cotenant-arrivals-1\n%s\n%d", seed, n))
	u := binary.BigEndian.Uint64(h[:8]) | 1
	minus := 64<<40 - log2(u)                             // -log2(u/2^64), in units of 2^-40
	nats, low := bits.Mul64(minus, ln2e62)                // times ln 2: 2^-102 as a whole, 2^-38 in the high word
	nats = nats<<2 | low>>62                              // 2^-40
	hi, lo := bits.Mul64(nats, uint64(ConstantGap(rate))) // ps in units of 2^-40
	return int64(hi<<24 | lo>>40)
}

// log2 is the logarithm to base 2 of u, which isn't 0, in units of 2^-40, rounded down but for the cut squares.
func log2(u uint64) uint64 {
	whole := uint64(bits.Len64(u) - 1)
	x := u << (63 - whole) // 1 ≤ x < 2 with 63 bits behind the point
	out := whole
	for range 40 {
		hi, lo := bits.Mul64(x, x) // 126 bits behind the point
		out <<= 1
		if hi >= 1<<63 { // 2 or more
			out |= 1
			x = hi
		} else {
			x = hi<<1 | lo>>63
		}
	}
	return out
}

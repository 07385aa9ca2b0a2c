package engine

import "math/bits"

// philox is Philox4x32-10 (Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3", SC'11): a keyed function from a
// counter to 128 random bits. A draw depends on nothing but its own key and counter, so what else is in a batch, and in
// which order, can't change it.
func philox(counter [4]uint32, key [2]uint32) [4]uint32 {
	const (
		m0, m1 = 0xD2511F53, 0xCD9E8D57
		w0, w1 = 0x9E3779B9, 0xBB67AE85
	)
	c := counter
	for range 10 {
		hi0, lo0 := bits.Mul32(m0, c[0])
		hi1, lo1 := bits.Mul32(m1, c[2])
		c = [4]uint32{hi1 ^ c[1] ^ key[0], lo1, hi0 ^ c[3] ^ key[1], lo0}
		key[0] += w0
		key[1] += w1
	}
	return c
}

// uniform returns the number in [0, 1), with 53 bits, that belongs to the position-th token of a choice under seed.
func uniform(seed uint64, choice, position int) float64 {
	c := philox([4]uint32{uint32(position), uint32(uint64(position) >> 32), uint32(choice), 0},
		[2]uint32{uint32(seed), uint32(seed >> 32)})
	return float64((uint64(c[0])<<32|uint64(c[1]))>>11) / (1 << 53)
}

package engine

import (
	"math"
	"slices"
)

// argmax returns the index of the largest element of x, the lowest where several are equal, and whether all elements are
// finite. x has at least one element.
func argmax(x []float32) (best int, finite bool) {
	// Four chains: the processor compares one element of each at once. v-v is 0 for a finite v, else NaN.
	var top [4]float32
	var at [4]int
	var rest [4]float32
	for l := range top {
		top[l] = float32(math.Inf(-1))
	}
	n := len(x) &^ 3
	t0, t1, t2, t3 := top[0], top[1], top[2], top[3]
	i0, i1, i2, i3 := 0, 0, 0, 0
	r0, r1, r2, r3 := rest[0], rest[1], rest[2], rest[3]
	for i := 0; i < n; i += 4 {
		q := x[i : i+4 : i+4]
		a, b, c, d := q[0], q[1], q[2], q[3]
		r0 += a - a
		r1 += b - b
		r2 += c - c
		r3 += d - d
		if a > t0 {
			t0, i0 = a, i
		}
		if b > t1 {
			t1, i1 = b, i+1
		}
		if c > t2 {
			t2, i2 = c, i+2
		}
		if d > t3 {
			t3, i3 = d, i+3
		}
	}
	for i := n; i < len(x); i++ {
		v := x[i]
		r0 += v - v
		if v > t0 {
			t0, i0 = v, i
		}
	}
	top, at = [4]float32{t0, t1, t2, t3}, [4]int{i0, i1, i2, i3}
	l := 0
	for k := 1; k < 4; k++ {
		if top[k] > top[l] || top[k] == top[l] && at[k] < at[l] {
			l = k
		}
	}
	return at[l], r0+r1+r2+r3 == 0
}

// expAll writes e^((x-top)*scale) to dst, of the same length, and returns the sum. top is the largest of x, scale is positive.
// The relative error is below 2e-7; what is below e^-87 becomes 0. It is several times faster than math.Exp, and the whole
// vocabulary goes through it for each sampled token.
func expAll(dst, x []float32, top, scale float32) float64 {
	const (
		round      = 3 << 22 // adding it rounds to an integer, which is then in the low bits
		ln2Hi      = 0.693359375
		ln2Lo      = -2.12194440e-4
		inverseLn2 = 1.44269504
	)
	var sum float64
	dst = dst[:len(x)]
	for i, v := range x {
		v = (v - top) * scale
		if !(v >= -87) { // -Inf too
			dst[i] = 0
			continue
		}
		t := v*inverseLn2 + round
		n := t - round
		r := v - n*ln2Hi
		r -= n * ln2Lo
		// Minimax polynomial of e^r on [-ln2/2, ln2/2] (Cephes, expf).
		p := float32(1.9875691500e-4)
		p = p*r + 1.3981999507e-3
		p = p*r + 8.3334519073e-3
		p = p*r + 4.1665795894e-2
		p = p*r + 1.6666665459e-1
		p = p*r + 5.0000001201e-1
		p = p*r*r + r + 1
		// t's low bits are n: 127+n is the exponent of 2^n.
		e := p * math.Float32frombits((math.Float32bits(t)+127)<<23)
		dst[i] = e
		sum += float64(e)
	}
	return sum
}

// candidate is a token and its weight (a probability, not normalised, or a logit).
type candidate struct {
	weight float32
	id     int32
}

// before is the order of candidates: heavier first, lower id where equal.
func (a candidate) before(b candidate) bool {
	return a.weight > b.weight || a.weight == b.weight && a.id < b.id
}

// largest appends the n first of x in the order of candidates, sorted, to dst[:0].
func largest(dst []candidate, x []float32, n int) []candidate {
	dst = dst[:0]
	for i, v := range x {
		if len(dst) == n && !(v > dst[n-1].weight) { // a later id comes after an equal weight
			continue
		}
		c := candidate{v, int32(i)}
		at := len(dst)
		if at < n {
			dst = append(dst, c)
		} else {
			at--
		}
		for ; at > 0 && c.before(dst[at-1]); at-- {
			dst[at] = dst[at-1]
		}
		dst[at] = c
	}
	return dst
}

// partition moves a pivot's betters in front of it and returns its index. c has at least two elements.
func partition(c []candidate) int {
	mid, last := len(c)/2, len(c)-1
	// The median of three goes to the end.
	if c[mid].before(c[0]) {
		c[0], c[mid] = c[mid], c[0]
	}
	if c[last].before(c[0]) {
		c[0], c[last] = c[last], c[0]
	}
	if c[mid].before(c[last]) {
		c[mid], c[last] = c[last], c[mid]
	}
	pivot, at := c[last], 0
	for i := range c[:last] {
		if c[i].before(pivot) {
			c[i], c[at] = c[at], c[i]
			at++
		}
	}
	c[at], c[last] = c[last], c[at]
	return at
}

// sortBelow is the size at which selecting further costs more than sorting.
const sortBelow = 24

// topCount returns the k first of c, in no order. It reorders c, in linear time.
func topCount(c []candidate, k int) []candidate {
	lo, hi := 0, len(c)
	for depth := 0; k > lo && k < hi; depth++ {
		if hi-lo <= sortBelow || depth > 64 {
			sortCandidates(c[lo:hi])
			break
		}
		p := lo + partition(c[lo:hi])
		switch {
		case p+1 <= k:
			lo = p + 1
		default:
			hi = p
		}
	}
	return c[:min(k, len(c))]
}

// topMass returns the shortest start of c, in the order of candidates, whose weights sum to at least mass, in no order; all of
// c where it has less. It reorders c, in linear time.
func topMass(c []candidate, mass float64) []candidate {
	lo, hi := 0, len(c)
	for depth := 0; hi-lo > sortBelow && depth <= 64; depth++ {
		p := lo + partition(c[lo:hi])
		var front float64
		for _, v := range c[lo : p+1] {
			front += float64(v.weight)
		}
		if front >= mass {
			if front-float64(c[p].weight) < mass {
				return c[:p+1]
			}
			hi = p
		} else {
			mass -= front
			lo = p + 1
		}
	}
	sortCandidates(c[lo:hi])
	for lo < hi && mass > 0 {
		mass -= float64(c[lo].weight)
		lo++
	}
	return c[:max(lo, 1)]
}

func sortCandidates(c []candidate) {
	slices.SortFunc(c, func(a, b candidate) int {
		if a.before(b) {
			return -1
		}
		return 1
	})
}

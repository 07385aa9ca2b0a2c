// Package stats has the few statistics that evidence needs, each with one definition, computed the same on every machine.
package stats

import (
	"math"
	"math/big"
)

// Percentile p as a fraction num/den, exact, so that rank arithmetic has no rounding.
type Percentile struct{ Num, Den int64 }

// The percentiles of a distribution.
var (
	P50  = Percentile{1, 2}
	P90  = Percentile{9, 10}
	P95  = Percentile{19, 20}
	P99  = Percentile{99, 100}
	P999 = Percentile{999, 1000}
)

// Rank returns the nearest rank ceil(p*n), counted from 1, of n values; 1 at least. It wants n ≥ 1.
func (p Percentile) Rank(n int64) int64 {
	hi := n / p.Den * p.Num // n = q*Den + r, so p*n = q*Num + r*Num/Den and nothing overflows
	r := n % p.Den * p.Num
	return max(1, hi+(r+p.Den-1)/p.Den)
}

// Of returns the nearest-rank order statistic of ascending values: values[Rank-1]. It wants at least one value.
func (p Percentile) Of(ascending []int64) int64 { return ascending[p.Rank(int64(len(ascending)))-1] }

// Droppable returns t: how many of the largest of n values may be left out so that the largest remaining one still is an
// upper bound of the percentile with confidence 99 %: the largest t with P(Bin(n, 1-p) ≤ t) ≤ 1/100. It returns -1 where
// not even the maximum is such a bound, which is where p^n > 1/100.
//
// The (t+1)-th largest value lies below the percentile only if at most t values lie above it, and each does with
// probability 1-p, whatever the distribution (David and Nagaraja, Order Statistics, 7.1).
func (p Percentile) Droppable(n int64) int64 {
	if n < 1 {
		return -1
	}
	logP := math.Log(float64(p.Num) / float64(p.Den))
	logQ := math.Log(float64(p.Den-p.Num) / float64(p.Den))
	mean := float64(n) * float64(p.Den-p.Num) / float64(p.Den)
	sd := math.Sqrt(mean * float64(p.Num) / float64(p.Den))
	// Terms more than 12 deviations below the mean add less than 1e-30.
	k := max(0, int64(mean-12*sd)-1)
	lg := func(x int64) float64 { v, _ := math.Lgamma(float64(x) + 1); return v }
	term := lg(n) - lg(k) - lg(n-k) + float64(k)*logQ + float64(n-k)*logP // log P(Bin = k)
	sum := math.Exp(term)
	if sum > confidenceTail {
		return k - 1
	}
	for ; k < n; k++ {
		term += math.Log(float64(n-k)/float64(k+1)) + logQ - logP
		sum += math.Exp(term)
		if sum > confidenceTail {
			return k
		}
	}
	return n
}

// confidenceTail is 1/100, and what rounding may add to a sum that is just that.
const confidenceTail = 0.01 * (1 + 1e-12)

// LowerRank is the rank, counted from 1, of the largest order statistic of n values that is a lower bound of the percentile with
// confidence 99 %, 0 where there is none. It mirrors Droppable: the r-th smallest value lies above the percentile only if fewer than r
// values lie below it.
func (p Percentile) LowerRank(n int64) int64 {
	return 1 + Percentile{p.Den - p.Num, p.Den}.Droppable(n)
}

// wilsonZ is the two-sided 95 % point of the normal distribution.
const wilsonZ = "1.959963984540054"

// WilsonConfidencePPM is the confidence of Wilson's interval.
const WilsonConfidencePPM = 950_000

// Wilson returns Wilson's score interval at 95 % for passed of n, in parts per million, rounded outwards. It wants
// 0 ≤ passed ≤ n and n ≥ 1. Arithmetic is that of math/big at 200 bits: no machine's floating point shows in a ledger.
// (E. B. Wilson, J. Am. Stat. Assoc. 22, 1927.)
func Wilson(passed, n int64) (low, high int64) {
	f := func(x int64) *big.Float { return new(big.Float).SetPrec(200).SetInt64(x) }
	mul := func(a, b *big.Float) *big.Float { return new(big.Float).SetPrec(200).Mul(a, b) }
	quo := func(a, b *big.Float) *big.Float { return new(big.Float).SetPrec(200).Quo(a, b) }
	add := func(a, b *big.Float) *big.Float { return new(big.Float).SetPrec(200).Add(a, b) }
	sub := func(a, b *big.Float) *big.Float { return new(big.Float).SetPrec(200).Sub(a, b) }
	z, _, err := big.ParseFloat(wilsonZ, 10, 200, big.ToNearestEven)
	if err != nil {
		panic("internal error: " + err.Error())
	}
	// (x + z²/2 ± z·sqrt(x(n-x)/n + z²/4)) / (n + z²)
	z2 := mul(z, z)
	root := new(big.Float).SetPrec(200).Sqrt(add(quo(mul(f(passed), f(n-passed)), f(n)), quo(z2, f(4))))
	centre, half, den := add(f(passed), quo(z2, f(2))), mul(z, root), add(f(n), z2)
	million := f(1_000_000)
	low, _ = mul(quo(sub(centre, half), den), million).Int64()
	up := mul(quo(add(centre, half), den), million)
	high, acc := up.Int64()
	if acc == big.Below {
		high++
	}
	return max(0, low), min(1_000_000, high)
}

// Peak returns the largest number of intervals [start, end) that hold one point, given all starts and all ends. An interval that ends
// where another starts doesn't overlap it.
func Peak(starts, ends *Column) int64 {
	open, peak := int64(0), int64(0)
	in, out := starts.Ascending(), ends.Ascending()
	end, more := out.Next()
	for {
		start, ok := in.Next()
		if !ok {
			return peak
		}
		for more && end <= start {
			open--
			end, more = out.Next()
		}
		open++
		peak = max(peak, open)
	}
}

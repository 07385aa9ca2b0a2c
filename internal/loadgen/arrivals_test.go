package loadgen

import (
	"math"
	"math/big"
	"testing"
)

// TestLog2 holds the integer logarithm against the library's.
func TestLog2(t *testing.T) {
	for _, u := range []uint64{1, 2, 3, 5, 1 << 31, 1<<32 + 1, 0xdeadbeefcafe, 1<<63 + 1, math.MaxUint64} {
		want := math.Log2(float64(u))
		if got := float64(log2(u)) / (1 << 40); math.Abs(got-want) > 1e-11 {
			t.Errorf("log2(%d) = %.12f, want %.12f", u, got, want)
		}
	}
}

// TestPoissonGap: the gaps are what their documentation says, worked out a second time, and have the mean, the deviation and the
// distribution of an exponential variate. The tests of distribution use one fixed seed: they can't fail by chance.
func TestPoissonGap(t *testing.T) {
	if got := PoissonGap("7", 0, 1_000_000); got != firstGap {
		t.Errorf("the first gap of seed 7 at one a second is %d ps, docs/formats/run.md says %d", got, int64(firstGap))
	}
	const n, rate = 20_000, 250_000_000 // 250 a second
	mean := float64(ConstantGap(rate))
	sum, squares := 0.0, 0.0
	below := map[float64]int{0.5: 0, 1: 0, 2: 0, 4: 0}
	for i := range int64(n) {
		g := float64(PoissonGap("seed", i, rate)) / mean
		sum, squares = sum+g, squares+g*g
		for at := range below {
			if g < at {
				below[at]++
			}
		}
	}
	if m := sum / n; math.Abs(m-1) > 0.03 {
		t.Errorf("mean gap %.4f of what it should be", m)
	}
	if v := squares/n - sum*sum/n/n; math.Abs(v-1) > 0.06 {
		t.Errorf("variance %.4f of what it should be", v)
	}
	for at, count := range below {
		if want := 1 - math.Exp(-at); math.Abs(float64(count)/n-want) > 0.012 {
			t.Errorf("%d of %d gaps below %g means, want %.3f", count, n, at, want)
		}
	}
	// Extremes don't overflow: the rarest draw at the lowest rate.
	if g := new(big.Int).Mul(big.NewInt(ConstantGap(MinRate)), big.NewInt(45)); !g.IsInt64() {
		t.Errorf("the longest gap isn't an int64: %v", g)
	}
	if a, b := PoissonGap("seed", 5, rate), PoissonGap("seed", 5, 2*rate); a/b != 2 && a/b != 1 || a < 0 || b < 0 {
		t.Errorf("twice the rate makes %d of %d", b, a)
	}
}

const firstGap = 255_033_003_674

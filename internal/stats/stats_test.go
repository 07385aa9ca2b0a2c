package stats

import (
	"math/big"
	"math/rand/v2"
	"testing"
)

func TestRank(t *testing.T) {
	for _, c := range []struct {
		p       Percentile
		n, want int64
	}{
		{P50, 1, 1}, {P50, 2, 1}, {P50, 3, 2}, {P50, 100, 50}, {P95, 1, 1}, {P95, 19, 19}, {P95, 20, 19}, {P95, 21, 20},
		{P95, 100, 95}, {P99, 100, 99}, {P99, 101, 100}, {P999, 1000, 999}, {P999, 1001, 1000}, {P999, 999, 999},
		{P999, 1 << 60, 1<<60 - 1<<60/1000},
	} {
		if got := c.p.Rank(c.n); got != c.want {
			t.Errorf("rank of %v in %d = %d, want %d", c.p, c.n, got, c.want)
		}
	}
	if got := P90.Of([]int64{10, 20, 30, 40, 50, 60, 70, 80, 90, 100}); got != 90 {
		t.Errorf("p90 = %d, want 90", got)
	}
}

// The table was computed apart from this code; facts/streaming.md B.4 and mlcommons/endpoints have the same figures.
func TestDroppable(t *testing.T) {
	for _, c := range []struct {
		p       Percentile
		n, want int64
	}{
		{P50, 100, 37}, {P90, 100, 3}, {P95, 100, 0}, {P99, 100, -1},
		{P50, 1000, 462}, {P95, 1000, 34}, {P99, 1000, 2}, {P999, 1000, -1},
		{P95, 10_000, 449}, {P99, 10_000, 77}, {P999, 10_000, 2},
		{P99, 1_000_000, 9768}, {P999, 1_000_000, 926},
		// The smallest n that leaves one value to drop.
		{P50, 10, 0}, {P50, 11, 1}, {P90, 63, 0}, {P90, 64, 1}, {P95, 129, 0}, {P95, 130, 1}, {P99, 661, 0}, {P99, 662, 1},
		{P999, 6635, 0}, {P999, 6636, 1}, {P50, 0, -1}, {P50, 6, -1}, {P50, 7, 0},
	} {
		if got := c.p.Droppable(c.n); got != c.want {
			t.Errorf("of %d values %v lets %d be dropped, want %d", c.n, c.p, got, c.want)
		}
	}
}

// TestDroppableExact sums the binomial distribution in whole numbers.
func TestDroppableExact(t *testing.T) {
	for _, p := range []Percentile{P50, P90, P95, P99} {
		for n := int64(1); n <= 160; n++ {
			if got, want := p.Droppable(n), exactDroppable(p, n); got != want {
				t.Fatalf("of %d values %v lets %d be dropped, want %d", n, p, got, want)
			}
		}
	}
}

func exactDroppable(p Percentile, n int64) int64 {
	limit := new(big.Int).Exp(big.NewInt(p.Den), big.NewInt(n), nil) // times 100 below
	sum, term := new(big.Int), new(big.Int)
	for k := int64(0); k <= n; k++ {
		term.Binomial(n, k)
		term.Mul(term, new(big.Int).Exp(big.NewInt(p.Den-p.Num), big.NewInt(k), nil))
		term.Mul(term, new(big.Int).Exp(big.NewInt(p.Num), big.NewInt(n-k), nil))
		sum.Add(sum, term)
		if new(big.Int).Mul(sum, big.NewInt(100)).Cmp(limit) > 0 {
			return k - 1
		}
	}
	return n
}

// TestLowerRank sums the binomial distribution in whole numbers: the rank's value lies above the percentile with at most 1 %, the next
// one's with more.
func TestLowerRank(t *testing.T) {
	for _, p := range []Percentile{P50, P90, P95, P99, P999} {
		for _, n := range []int64{0, 1, 2, 3, 4, 6, 7, 11, 25, 90, 125} {
			limit := new(big.Int).Exp(big.NewInt(p.Den), big.NewInt(n), nil)
			sum, want := new(big.Int), int64(0)
			for k := int64(0); k < n; k++ { // k values lie below
				term := new(big.Int).Binomial(n, k)
				term.Mul(term, new(big.Int).Exp(big.NewInt(p.Num), big.NewInt(k), nil))
				term.Mul(term, new(big.Int).Exp(big.NewInt(p.Den-p.Num), big.NewInt(n-k), nil))
				if sum.Add(sum, term); new(big.Int).Mul(sum, big.NewInt(100)).Cmp(limit) > 0 {
					break
				}
				want = k + 1
			}
			if got := p.LowerRank(n); got != want {
				t.Errorf("of %d values the %d-th is a lower bound of %v, want the %d-th", n, got, p, want)
			}
		}
	}
}

func TestWilson(t *testing.T) {
	for _, c := range []struct{ passed, n, low, high int64 }{
		// Computed apart, in double precision: 793450.69, 206549.31, 236593.09 and 763406.91, and so on.
		{0, 1, 0, 793451}, {1, 1, 206549, 1000000}, {5, 10, 236593, 763407}, {95, 100, 888249, 978457}, {100, 100, 963006, 1000000},
		{900, 1000, 879848, 917091},
	} {
		low, high := Wilson(c.passed, c.n)
		if low != c.low || high != c.high {
			t.Errorf("interval of %d in %d = [%d, %d], want [%d, %d]", c.passed, c.n, low, high, c.low, c.high)
		}
	}
	for n := int64(1); n < 60; n++ {
		for k := int64(0); k <= n; k++ {
			low, high := Wilson(k, n)
			if rate := k * 1_000_000 / n; low > rate || high < rate || low < 0 || high > 1_000_000 {
				t.Fatalf("interval of %d in %d = [%d, %d] doesn't hold %d", k, n, low, high, rate)
			}
		}
	}
}

func TestPeak(t *testing.T) {
	if got := Peak(&Column{}, &Column{}); got != 0 {
		t.Errorf("peak of nothing = %d", got)
	}
	if got := Peak(column(0, 10), column(10, 20)); got != 1 {
		t.Errorf("touching intervals: peak %d, want 1", got)
	}
	r := rand.New(rand.NewPCG(1, 2))
	for range 200 {
		n := 1 + r.IntN(30)
		var starts, ends []int64
		for range n {
			s := r.Int64N(50)
			starts, ends = append(starts, s), append(ends, s+1+r.Int64N(10))
		}
		want := int64(0)
		for at := range int64(70) {
			open := int64(0)
			for i := range starts {
				if starts[i] <= at && at < ends[i] {
					open++
				}
			}
			want = max(want, open)
		}
		if got := Peak(column(starts...), column(ends...)); got != want {
			t.Fatalf("peak of %v, %v = %d, want %d", starts, ends, got, want)
		}
	}
}

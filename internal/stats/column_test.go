package stats

import (
	"math/rand/v2"
	"slices"
	"testing"
)

func column(values ...int64) *Column {
	c := &Column{}
	for _, v := range values {
		c.Add(v)
	}
	return c
}

func ascending(c *Column) (out []int64) {
	for a := c.Ascending(); ; {
		v, ok := a.Next()
		if !ok {
			return out
		}
		out = append(out, v)
	}
}

func TestColumn(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	// Many alike and a few far away, so that intervals are split again and again; one value that is too frequent for a batch.
	skewed := make([]int64, 200_000)
	for i := range skewed {
		switch {
		case i%3 == 0:
			skewed[i] = 412
		case i%1000 == 1:
			skewed[i] = 1<<52 - r.Int64N(9)
		default:
			skewed[i] = 400 + r.Int64N(40)
		}
	}
	uniform := make([]int64, 150_000)
	for i := range uniform {
		uniform[i] = r.Int64N(100_000_000)
	}
	for name, values := range map[string][]int64{
		"empty": nil, "one": {7}, "negative": {5, -3, 0, -1 << 52, 1 << 52, -3}, "equal": slices.Repeat([]int64{9}, 70_000), "skewed": skewed, "uniform": uniform,
	} {
		c := column(values...)
		if got := slices.Collect(c.All()); !slices.Equal(got, values) {
			t.Errorf("%s: not the values that were added", name)
		}
		sorted := slices.Sorted(slices.Values(values))
		if got := ascending(c); !slices.Equal(got, sorted) {
			t.Errorf("%s: the walk isn't the sorted values", name)
		}
		n := int64(len(values))
		if c.Len() != n {
			t.Errorf("%s: %d values, want %d", name, c.Len(), n)
		}
		if n == 0 {
			continue
		}
		if c.Min() != sorted[0] || c.Max() != sorted[n-1] {
			t.Errorf("%s: %d to %d, want %d to %d", name, c.Min(), c.Max(), sorted[0], sorted[n-1])
		}
		ranks := []int64{1, P50.Rank(n), P50.Rank(n), P99.Rank(n), n}
		for i, v := range c.Order(ranks...) {
			if v != sorted[ranks[i]-1] {
				t.Errorf("%s: rank %d is %d, want %d", name, ranks[i], v, sorted[ranks[i]-1])
			}
		}
	}
}

// A column of a run's times stays small: that is what it is for.
func TestColumnIsSmall(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	c, at := &Column{}, int64(0)
	const n = 1_000_000
	for range n {
		at += r.Int64N(200)
		c.Add(at + r.Int64N(2000))
	}
	size := 0
	for _, b := range c.chunks {
		size += cap(b)
	}
	if size > 3*n {
		t.Errorf("%d values take %d bytes", n, size)
	}
}

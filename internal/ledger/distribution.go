package ledger

import (
	"slices"

	"cotenant/internal/stats"
)

// times collects the values of one distribution.
type times struct{ finite stats.Column }

func (t *times) add(v int64) { t.finite.Add(v) }

// between adds to - from where both are known.
func (t *times) between(from, to Opt) {
	if from.OK && to.OK {
		t.add(to.V - from.V)
	}
}

// distribution counts infinite values beside the finite ones, as the largest.
func (t *times) distribution(infinite int64) Distribution {
	finite := t.finite.Len()
	n := finite + infinite
	d := Distribution{N: n}
	if n == 0 {
		for _, q := range d.quantiles() {
			*q.into = Quantile{Evidence: EvidenceNone}
		}
		return d
	}
	var ranks []int64
	for _, q := range d.quantiles() {
		ranks = append(ranks, q.p.Rank(n), n-max(0, q.p.Droppable(n)), max(1, q.p.LowerRank(n)))
	}
	values := orderStatistics(&t.finite, ranks)
	for i, q := range d.quantiles() {
		*q.into = quantile(values[3*i], values[3*i+1], q.p.Droppable(n))
		if q.p.LowerRank(n) > 0 {
			q.into.LowerUS = values[3*i+2]
		}
	}
	if finite > 0 {
		d.MinUS = Some(t.finite.Min())
	}
	if infinite == 0 {
		d.MaxUS = Some(t.finite.Max())
		d.SumUS = sum(&t.finite)
	}
	return d
}

type percentileInto struct {
	p    stats.Percentile
	into *Quantile
}

func (d *Distribution) quantiles() []percentileInto {
	return []percentileInto{{stats.P50, &d.P50}, {stats.P90, &d.P90}, {stats.P95, &d.P95}, {stats.P99, &d.P99}, {stats.P999, &d.P999}}
}

// orderStatistics are those of the ranks, in their order; absent where a rank lies beyond the finite values.
func orderStatistics(c *stats.Column, ranks []int64) []Opt {
	finite := slices.DeleteFunc(slices.Sorted(slices.Values(ranks)), func(rank int64) bool { return rank > c.Len() })
	values := c.Order(finite...)
	out := make([]Opt, len(ranks))
	for i, rank := range ranks {
		if at, ok := slices.BinarySearch(finite, rank); ok {
			out[i] = Some(values[at])
		}
	}
	return out
}

// quantile is made of a percentile's value and of the value that is left as the largest when drop of them are left out.
func quantile(value, upper Opt, drop int64) Quantile {
	q := Quantile{ValueUS: value, Evidence: EvidenceSample}
	if drop >= 0 {
		q.UpperUS = upper
		q.Evidence = EvidenceBound
		if drop == 0 {
			q.Evidence = EvidenceMaximum
		}
		if !q.UpperUS.OK {
			q.Evidence = EvidenceInfinite
		}
	}
	if !q.ValueUS.OK {
		q.Evidence = EvidenceInfinite
	}
	return q
}

// sum is absent where it would leave the integers that a document can hold.
func sum(c *stats.Column) Opt {
	total := int64(0)
	for v := range c.All() {
		if v < -MaxInt || v > MaxInt || total+v > MaxInt || total+v < -MaxInt {
			return Opt{}
		}
		total += v
	}
	return Some(total)
}

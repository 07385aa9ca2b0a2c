package ledger

import (
	"slices"

	"cotenant/internal/stats"
)

// times collects the values of one distribution.
type times struct {
	finite   []int64
	infinite int64
}

func (t *times) add(v int64) { t.finite = append(t.finite, v) }

// between adds to - from where both are known.
func (t *times) between(from, to Opt) {
	if from.OK && to.OK {
		t.add(to.V - from.V)
	}
}

func (t *times) distribution() Distribution {
	slices.Sort(t.finite)
	n := int64(len(t.finite)) + t.infinite
	d := Distribution{N: n}
	for _, q := range []struct {
		p    stats.Percentile
		into *Quantile
	}{{stats.P50, &d.P50}, {stats.P90, &d.P90}, {stats.P95, &d.P95}, {stats.P99, &d.P99}, {stats.P999, &d.P999}} {
		*q.into = t.quantile(q.p, n)
	}
	if len(t.finite) > 0 {
		d.MinUS = Some(t.finite[0])
	}
	if n > 0 && t.infinite == 0 {
		d.MaxUS = Some(t.finite[n-1])
		d.SumUS = sum(t.finite)
	}
	return d
}

// quantile wants t.finite ascending.
func (t *times) quantile(p stats.Percentile, n int64) Quantile {
	if n == 0 {
		return Quantile{Evidence: EvidenceNone}
	}
	at := func(rank int64) Opt { // from 1; infinite values come last
		if rank > int64(len(t.finite)) {
			return Opt{}
		}
		return Some(t.finite[rank-1])
	}
	q := Quantile{ValueUS: at(p.Rank(n)), Evidence: EvidenceSample}
	if drop := p.Droppable(n); drop >= 0 {
		q.UpperUS = at(n - drop)
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
func sum(values []int64) Opt {
	total := int64(0)
	for _, v := range values {
		if total += v; total > MaxInt || total < 0 {
			return Opt{}
		}
	}
	return Some(total)
}

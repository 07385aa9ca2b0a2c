package verify

import (
	"cmp"
	"maps"
	"slices"

	"cotenant/internal/ledger"
	"cotenant/internal/stats"
)

// lane is one worker of one segment.
type lane struct{ segment, worker int64 }

// span is one attempt on its lane, or a whole segment.
type span struct {
	from, to int64
	context  int64
}

// laneSpans are a lane's spans, packed: there are as many as rows.
type laneSpans struct {
	from, length, context stats.Column
	last                  int64 // end of the last one
}

func (l *laneSpans) add(s span) {
	l.from.Add(s.from)
	l.length.Add(s.to - s.from)
	l.context.Add(s.context)
	l.last = s.to
}

// all unpacks them, in the file's order.
func (l *laneSpans) all() []span {
	out := make([]span, 0, l.from.Len())
	for from := range l.from.All() {
		out = append(out, span{from: from})
	}
	i := 0
	for n := range l.length.All() {
		out[i].to = out[i].from + n
		i++
	}
	i = 0
	for c := range l.context.All() {
		out[i].context = c
		i++
	}
	return out
}

// placement puts the attempt onto its worker's lane and its segment's time line. It returns the end of the lane's attempt before it, if
// there is one.
func (f *facts) placement(r *ledger.Row) (free int64, busy bool) {
	if r.Worker < f.cfg.Workers { // others are R-WORK-01's
		k := lane{r.Segment, r.Worker}
		if f.lanes[k] == nil {
			f.lanes[k] = &laneSpans{}
		}
		free, busy = f.lanes[k].last, f.lanes[k].from.Len() > 0
		f.lanes[k].add(span{r.PickedUS, r.EndUS, r.Context})
	}
	if r.SentUS.OK {
		if f.edges[r.Segment] == nil {
			f.edges[r.Segment] = &stats.Column{}
		}
		f.edges[r.Segment].Add(edge(r.SentUS.V, true))
		f.edges[r.Segment].Add(edge(r.EndUS, false))
	}
	w, ok := f.walls[r.Segment]
	if !ok {
		w = span{from: r.PickedUS, to: r.EndUS}
	}
	f.walls[r.Segment] = span{from: min(w.from, r.PickedUS), to: max(w.to, r.EndUS)}
	return free, busy
}

// edge is a start or an end of an interval as one number, which sorts by time, ends before starts of the same time.
func edge(t int64, start bool) int64 {
	if start {
		return t<<1 | 1
	}
	return t << 1
}

// peak sweeps a segment's edges.
func (f *facts) peak(segment int64) int64 {
	column := f.edges[segment]
	if column == nil {
		return 0
	}
	if most, ok := f.sweeps[segment]; ok {
		return most
	}
	open, most := int64(0), int64(0)
	for _, e := range sorted(column) {
		open += e&1*2 - 1
		most = max(most, open)
	}
	f.sweeps[segment] = most
	return most
}

// sorted unpacks a column. It doesn't use the column's own walk in order: that is what the ledger's sums are made with.
func sorted(c *stats.Column) []int64 {
	if c == nil {
		return nil
	}
	out := make([]int64, 0, c.Len())
	for v := range c.All() {
		out = append(out, v)
	}
	slices.Sort(out)
	return out
}

// overlaps finds two attempts of one worker that overlap.
func (f *facts) overlaps() string {
	var v violation
	keys := slices.SortedFunc(maps.Keys(f.lanes), func(a, b lane) int {
		return cmp.Or(cmp.Compare(a.segment, b.segment), cmp.Compare(a.worker, b.worker))
	})
	for _, k := range keys {
		spans := f.lanes[k].all()
		slices.SortFunc(spans, func(a, b span) int { return cmp.Or(cmp.Compare(a.from, b.from), cmp.Compare(a.to, b.to)) })
		for i := 1; i < len(spans); i++ {
			if a, b := spans[i-1], spans[i]; b.from < a.to {
				v.add("worker %d of segment %d held context %d until %d us and picked context %d at %d us", k.worker, k.segment, a.context, a.to, b.context, b.from)
			}
		}
	}
	if v.count == 0 {
		return ""
	}
	return v.String()
}

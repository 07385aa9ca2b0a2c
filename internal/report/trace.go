package report

import (
	"cmp"
	"fmt"
	"slices"

	"cotenant/internal/ledger"
	"cotenant/internal/report/plot"
	"cotenant/internal/stats"
)

// trace is what a soak's charts are drawn from: rows and samples, read once. Times over the run are µs since its first segment began, the
// segments put end to end without the time between them.
type trace struct {
	ttft, latency, interToken []int64 // of results, ascending
	inFlight, backlog         []plot.Point
	starts                    []float64 // of segments
	end                       float64
	samples                   []ledger.Resource // their TUS moved as above
}

// segmentTrace is one segment's part of it.
type segmentTrace struct {
	length         int64
	sends, ends    []int64
	queued, leaves []int64 // of turns' first attempts: ready; sent, or given up
}

// readTrace reads the folder's rows and samples and holds what it found against l: charts of other numbers than the ledger's can't be drawn.
func readTrace(f *ledger.Folder, l *ledger.Ledger) (*trace, error) {
	t := &trace{}
	segments := map[int64]*segmentTrace{}
	at := func(k int64) *segmentTrace {
		if segments[k] == nil {
			segments[k] = &segmentTrace{}
		}
		return segments[k]
	}
	results := make([]int64, l.Contexts) // turns with a result, a context
	for r, err := range f.Rows() {
		if err != nil {
			return nil, err
		}
		at(r.Segment).add(&r)
		if r.Outcome != ledger.OK || r.Context >= l.Contexts || r.Turn != results[r.Context] || r.Turn >= l.TurnsPerContext {
			continue
		}
		results[r.Context]++
		t.result(&r)
	}
	for r, err := range f.Resources() {
		if err != nil {
			return nil, err
		}
		s := at(r.Segment)
		s.length = max(s.length, r.TUS)
		t.samples = append(t.samples, r)
	}
	slices.Sort(t.ttft)
	slices.Sort(t.latency)
	slices.Sort(t.interToken)
	t.join(segments)
	return t, t.fits(l)
}

func (s *segmentTrace) add(r *ledger.Row) {
	s.length = max(s.length, r.EndUS)
	leaves := r.EndUS
	if r.SentUS.OK {
		leaves = r.SentUS.V
		s.sends, s.ends = append(s.sends, r.SentUS.V), append(s.ends, r.EndUS)
	}
	if r.Attempt == 1 && leaves > r.QueuedUS {
		s.queued, s.leaves = append(s.queued, r.QueuedUS), append(s.leaves, leaves)
	}
}

func (t *trace) result(r *ledger.Row) {
	if r.SentUS.OK {
		t.latency = append(t.latency, r.EndUS-r.SentUS.V)
		if r.FirstTokenUS.OK {
			t.ttft = append(t.ttft, r.FirstTokenUS.V-r.SentUS.V)
		}
	}
	usage := r.PromptTokens.OK && r.CompletionTokens.OK
	if n := r.TextTokens(); usage && n > 1 && !r.Buffered && r.FirstTokenUS.OK && r.LastTokenUS.OK {
		t.interToken = append(t.interToken, (r.LastTokenUS.V-r.FirstTokenUS.V)/(n-1))
	}
}

// join puts the segments end to end.
func (t *trace) join(segments map[int64]*segmentTrace) {
	keys := make([]int64, 0, len(segments))
	for k := range segments {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	offsets := map[int64]int64{}
	offset := int64(0)
	for _, k := range keys {
		s := segments[k]
		offsets[k] = offset
		t.starts = append(t.starts, float64(offset))
		t.inFlight = append(t.inFlight, level(s.sends, s.ends, offset)...)
		t.backlog = append(t.backlog, level(s.queued, s.leaves, offset)...)
		offset += s.length
	}
	t.end = float64(offset)
	for i := range t.samples {
		t.samples[i].TUS += offsets[t.samples[i].Segment]
	}
	slices.SortStableFunc(t.samples, func(a, b ledger.Resource) int { return cmp.Compare(a.TUS, b.TUS) })
}

// level is how many of [from, to) are open over time, an end coming before a start of the same moment.
func level(from, to []int64, offset int64) []plot.Point {
	slices.Sort(from)
	slices.Sort(to)
	points := []plot.Point{{X: float64(offset)}}
	open, j := 0.0, 0
	for _, start := range from {
		for ; j < len(to) && to[j] <= start; j++ {
			open--
			points = append(points, plot.Point{X: float64(to[j] + offset), Y: open})
		}
		open++
		points = append(points, plot.Point{X: float64(start + offset), Y: open})
	}
	for ; j < len(to); j++ {
		open--
		points = append(points, plot.Point{X: float64(to[j] + offset), Y: open})
	}
	return points
}

// fits reports what in the trace isn't what the ledger has.
func (t *trace) fits(l *ledger.Ledger) error {
	for _, d := range []struct {
		name   string
		values []int64
		want   *ledger.Distribution
	}{{"ttft", t.ttft, &l.Times.TTFT}, {"latency", t.latency, &l.Times.Latency}, {"inter_token", t.interToken, &l.Times.InterToken}} {
		if err := sameDistribution(d.values, d.want); err != nil {
			return fmt.Errorf("rows and ledger differ in %s: %w", d.name, err)
		}
	}
	peak := 0.0
	for _, p := range t.inFlight {
		peak = max(peak, p.Y)
	}
	if int64(peak) != l.Peaks.InFlight {
		return fmt.Errorf("rows have %.0f requests in flight at most, the ledger %d", peak, l.Peaks.InFlight)
	}
	for i, s := range l.Series {
		var n int64
		var least, most ledger.Opt
		for _, r := range t.samples {
			if i >= len(r.Series) || !r.Series[i].Value.OK {
				continue
			}
			v := r.Series[i].Value
			if n++; !least.OK || v.V < least.V {
				least = v
			}
			if !most.OK || v.V > most.V {
				most = v
			}
		}
		if n != s.Values || least != s.Min || most != s.Max {
			return fmt.Errorf("samples and ledger differ in %s", s.Name)
		}
	}
	return nil
}

func sameDistribution(sorted []int64, want *ledger.Distribution) error {
	n := int64(len(sorted))
	if n != want.N {
		return fmt.Errorf("%d values, the ledger has %d", n, want.N)
	}
	if n == 0 {
		return nil
	}
	for _, q := range []struct {
		p    stats.Percentile
		want ledger.Quantile
	}{{stats.P50, want.P50}, {stats.P90, want.P90}, {stats.P95, want.P95}, {stats.P99, want.P99}, {stats.P999, want.P999}} {
		if v := sorted[q.p.Rank(n)-1]; ledger.Some(v) != q.want.ValueUS {
			return fmt.Errorf("a percentile is %d µs, the ledger has %d", v, q.want.ValueUS.V)
		}
	}
	if ledger.Some(sorted[0]) != want.MinUS || ledger.Some(sorted[n-1]) != want.MaxUS {
		return fmt.Errorf("they lie between %d and %d µs, the ledger has %d and %d", sorted[0], sorted[n-1], want.MinUS.V, want.MaxUS.V)
	}
	return nil
}

// thin keeps at most about n points of a step line: of each stretch its first, its least and its largest, in their order.
func thin(points []plot.Point, n int) []plot.Point {
	if len(points) <= n {
		return points
	}
	out := make([]plot.Point, 0, n+3)
	each := (len(points)*3 + n - 1) / n
	for stretch := range slices.Chunk(points, each) {
		low, high := 0, 0
		for i, p := range stretch {
			if p.Y < stretch[low].Y {
				low = i
			}
			if p.Y > stretch[high].Y {
				high = i
			}
		}
		keep := []int{0, low, high}
		slices.Sort(keep)
		for _, i := range slices.Compact(keep) {
			out = append(out, stretch[i])
		}
	}
	return append(out, points[len(points)-1])
}

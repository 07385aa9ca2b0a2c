package report

import (
	"fmt"
	"html/template"
	"slices"
	"strings"

	"cotenant/internal/ledger"
	"cotenant/internal/report/plot"
)

// wide is how many points a line over time keeps: more than a screen has room for.
const wide = 1200

// soakFigures draws a run.
func soakFigures(r *run) (map[string]figure, error) {
	v := &view{docs: documents{"a": r.doc}}
	s := &soakCharts{view: v, run: r, x: plot.Seconds(r.trace.end, 5)}
	figures := map[string]figure{}
	for _, f := range []figure{
		s.histogram("ttft", "Time to first token", "/times/ttft", r.trace.ttft, "s1"),
		s.histogram("latency", "Latency", "/times/latency", r.trace.latency, "s2"),
		s.histogram("inter", "Time between tokens", "/times/inter_token", r.trace.interToken, "s3"),
		s.tail(), s.inFlight(), s.backlog(), s.queue(), s.memory(), s.pages(), s.prefix(), s.gpuMemory(), s.gpuPower(), s.levels(),
	} {
		figures[f.ID] = f
	}
	return figures, nil
}

// soakCharts draws one run's charts over its time.
type soakCharts struct {
	*view
	*run
	x  plot.Axis // over the run's time
	of string    // where a page has several runs, this one's letter
}

const µs = 1000 // in ns, in which time axes count

// span is the smallest and the largest of sorted lists in ns.
func span(lists ...[]int64) (lo, hi float64) {
	for _, l := range lists {
		if len(l) == 0 {
			continue
		}
		if first := float64(max(l[0], 1)) * µs; lo == 0 || first < lo {
			lo = first
		}
		hi = max(hi, float64(l[len(l)-1])*µs)
	}
	return lo, hi
}

// histogram shows where values lie, twelve bars a decade, with its percentiles.
func (s *soakCharts) histogram(id, title, place string, sorted []int64, class string) figure {
	f := figure{ID: id, Title: title}
	if len(sorted) == 0 {
		f.Reason = "Not established: no result has this time."
		return f
	}
	// Time to first token and latency share an axis, so that they can be held against each other.
	lo, hi := span(s.trace.ttft, s.trace.latency)
	if id == "inter" {
		lo, hi = span(sorted)
	}
	c := plot.Chart{ID: id, Title: title + ", histogram", Height: 150, X: plot.LogTime(lo, hi),
		Desc: "Bars count results over time on a logarithmic axis. Upright lines are percentiles; the table below has them all."}
	bars, most := plot.LogBars(c.X, sorted, µs, 12, class)
	c.Y = plot.Counts(float64(most), 3)
	c.Y.Max = max(c.Y.Max, float64(most)) * 1.75
	for _, b := range bars {
		c.Marks = append(c.Marks, b)
	}
	for i, q := range []string{"p50", "p95", "p99"} {
		at, err := s.whole(place + "/" + q + "/value_us")
		if err != nil {
			continue
		}
		weak := ""
		if evidence, _ := s.raw(place + "/" + q + "/evidence"); evidence == ledger.EvidenceSample {
			weak = " weak"
		}
		c.Marks = append(c.Marks, plot.Rule{At: float64(at) * µs, Upright: true, Class: "mark" + weak, Row: i, Label: s.label(q, place+"/"+q+"/value_us", unitUS)})
	}
	f.SVG = c.SVG()
	return f
}

// tail shows each percentile on an axis that gives every nine the same room.
func (s *soakCharts) tail() figure {
	f := figure{ID: "tail", Title: "The tail"}
	t := s.trace
	if len(t.latency) == 0 {
		f.Reason = "Not established: there is no result."
		return f
	}
	lo, hi := span(t.ttft, t.latency)
	c := plot.Chart{ID: "tail", Title: "Percentiles of time to first token and latency", Height: 280,
		X: plot.Tail(int64(len(t.latency))), Y: plot.LogTime(lo, hi),
		Desc: "Percentiles from the median to the maximum, each further nine as wide as the one before, over time on a logarithmic axis. " +
			"Whiskers are upper bounds with 99 % confidence. The table below has the numbers."}
	c.Marks = append(c.Marks, tailMarks(t.ttft, 0, &s.ledger.Times.TTFT, "s1", "time to first token")...)
	c.Marks = append(c.Marks, tailMarks(t.latency, 0, &s.ledger.Times.Latency, "s2", "latency")...)
	f.SVG = c.SVG()
	return f
}

// tailMarks are a line through all values, with a dot at each named percentile and a whisker up to its bound.
func tailMarks(sorted []int64, infinite int64, d *ledger.Distribution, class, label string) []plot.Mark {
	points := plot.Ranks(sorted, infinite)
	for i := range points {
		points[i].Y *= µs
	}
	marks := []plot.Mark{plot.Line{Points: points, Step: true, Class: class, Label: template.HTML(label)}}
	for _, q := range []struct {
		p float64
		q ledger.Quantile
	}{{0.5, d.P50}, {0.9, d.P90}, {0.95, d.P95}, {0.99, d.P99}, {0.999, d.P999}} {
		if !q.q.ValueUS.OK || plot.Nines(q.p) > plot.Tail(d.N).Max {
			continue
		}
		at := plot.Point{X: plot.Nines(q.p), Y: float64(q.q.ValueUS.V) * µs}
		if q.q.UpperUS.OK {
			marks = append(marks, plot.Span{At: at, Up: float64(q.q.UpperUS.V) * µs, Class: class})
		}
		marks = append(marks, plot.Dot{At: at, Class: class, Hollow: !q.q.UpperUS.OK})
	}
	return marks
}

// overTime is an empty chart over the run's time, with a line where a segment begins.
func (s *soakCharts) overTime(id, title string, height int, y plot.Axis) *plot.Chart {
	c := &plot.Chart{ID: id, Title: title + " over time", Height: height, X: s.x, Y: y, Desc: title + " over the run's time; the table below has the extremes."}
	for _, at := range s.trace.starts[min(1, len(s.trace.starts)):] {
		c.Marks = append(c.Marks, plot.Rule{At: at, Upright: true, Class: "segment", Label: "another segment"})
	}
	return c
}

func (s *soakCharts) inFlight() figure {
	f := figure{ID: "inflight" + s.of, Title: strings.TrimSpace("Requests in flight " + strings.ToUpper(s.of))}
	gauge := s.series(ledger.SeriesRunning)
	c := s.overTime(f.ID, f.Title, 150, plot.Counts(float64(max(s.ledger.Workers, s.ledger.Peaks.InFlight))*1.15, 4))
	points := thin(s.trace.inFlight, wide)
	c.Marks = append(c.Marks, plot.Area{Points: points, Class: "s1"}, plot.Line{Points: points, Step: true, Class: "s1"},
		plot.Rule{At: float64(s.ledger.Workers), Class: "limit", Label: s.label("workers:", "/workers", unitCount)})
	c.Marks = append(c.Marks, lines(gauge, "s2 dashed", true, "the server's gauge")...)
	f.Lead = "The area is what this client had open, from its rows. "
	if len(gauge) > 0 {
		f.Lead += "The dashed line is what the server said of itself when it was asked."
	}
	f.SVG = c.SVG()
	return f
}

func (s *soakCharts) backlog() figure {
	f := figure{ID: "backlog", Title: "Ready and not sent yet, at the client"}
	if len(s.trace.starts) > 1 {
		f.Reason = "Not established: contexts that a killed segment never picked up have no row in it."
		return f
	}
	most := 0.0
	for _, p := range s.trace.backlog {
		most = max(most, p.Y)
	}
	c := s.overTime(f.ID, f.Title, 110, plot.Counts(most, 3))
	points := thin(s.trace.backlog, wide)
	c.Marks = append(c.Marks, plot.Area{Points: points, Class: "s4"}, plot.Line{Points: points, Step: true, Class: "s4"})
	f.SVG = c.SVG()
	f.Lead = "Turns that could have run and waited for a worker."
	return f
}

func (s *soakCharts) queue() figure {
	f := figure{ID: "queue", Title: "Queue at the server"}
	runs := s.series(ledger.SeriesWaiting)
	if len(runs) == 0 {
		f.Reason = s.reason(ledger.SeriesWaiting)
		return f
	}
	c := s.overTime(f.ID, f.Title, 110, plot.Counts(max(top(runs), 3), 3))
	c.Marks = append(c.Marks, lines(runs, "s2", true, "waiting")...)
	f.SVG = c.SVG()
	f.Lead = "What the server said of itself, sampled."
	return f
}

// track is one line of a chart of samples.
type track struct {
	name, class string
	runs        [][]plot.Point
}

// draw adds tracks to a chart and leaves out those without a value; it reports whether there was any.
func draw(c *plot.Chart, tracks []track, step bool) bool {
	any := false
	for _, t := range tracks {
		any = any || len(t.runs) > 0
		c.Marks = append(c.Marks, lines(t.runs, t.class, step, t.name)...)
	}
	return any
}

func highest(tracks []track) float64 {
	most := 0.0
	for _, t := range tracks {
		most = max(most, top(t.runs))
	}
	return most
}

func (s *soakCharts) memory() figure {
	f := figure{ID: "memory", Title: "Memory"}
	client := "client, resident"
	if s.ledger.InProcess {
		client = "the one process, resident"
	}
	tracks := []track{
		{client, "s1", s.sampled(func(r *ledger.Resource) ledger.Opt { return r.Client.RSSBytes })},
		{"server, resident", "s2", s.sampled(func(r *ledger.Resource) ledger.Opt {
			if r.Server == nil {
				return ledger.Opt{}
			}
			return r.Server.RSSBytes
		})},
		{"server, by its metrics", "s3 dashed", s.series(ledger.SeriesServerMemory)},
		{"device, by its metrics", "s4", s.series(ledger.SeriesDeviceMemory)},
	}
	c := s.overTime(f.ID, f.Title, 190, plot.Bytes(highest(tracks)*1.1, 4))
	if !draw(c, tracks, false) {
		f.Reason = "Not exposed: no sample holds the memory of client or server."
		return f
	}
	f.Lead = "Resident memory by /proc; what the server's metrics say of themselves is dashed."
	f.SVG = c.SVG()
	return f
}

// gpuMemory is only shown where a sample holds it.
func (s *soakCharts) gpuMemory() figure {
	f := figure{ID: "gpumemory", Title: "GPU memory in use", Lead: "Of the whole board, with whatever else ran on it."}
	var tracks []track
	for i := range s.ledger.GPUs {
		tracks = append(tracks, track{s.gpuName(i), "s3", s.gpu(i, func(g *ledger.GPUUsage) ledger.Opt { return g.MemoryUsedBytes })})
	}
	c := s.overTime(f.ID, f.Title, 150, plot.Bytes(highest(tracks)*1.15, 4))
	if draw(c, tracks, false) {
		f.SVG = c.SVG()
	}
	return f
}

// gpuPower is only shown where a sample holds one.
func (s *soakCharts) gpuPower() figure {
	f := figure{ID: "power", Title: "GPU power", Lead: "Of the whole board, with whatever else ran on it."}
	var tracks []track
	for i := range s.ledger.GPUs {
		tracks = append(tracks, track{s.gpuName(i), "s4", s.gpu(i, func(g *ledger.GPUUsage) ledger.Opt { return g.PowerMW })})
	}
	c := s.overTime(f.ID, f.Title, 150, plot.Linear(highest(tracks)*1.15, 4, func(mw float64) string { return plot.Count(mw/1000) + " W" }))
	if draw(c, tracks, false) {
		f.SVG = c.SVG()
	}
	return f
}

// gpuName tells a run's GPUs apart, by their order.
func (s *soakCharts) gpuName(i int) string {
	if len(s.ledger.GPUs) == 1 {
		return "GPU"
	}
	return fmt.Sprintf("GPU #%d", i)
}

// gpu are the samples of the ledger's i-th GPU.
func (s *soakCharts) gpu(i int, value func(*ledger.GPUUsage) ledger.Opt) [][]plot.Point {
	name := s.ledger.GPUs[i].GPU
	return s.sampled(func(r *ledger.Resource) ledger.Opt {
		for k := range r.GPUs {
			if r.GPUs[k].GPU == name {
				return value(&r.GPUs[k])
			}
		}
		return ledger.Opt{}
	})
}

func (s *soakCharts) pages() figure {
	f := figure{ID: "kv", Title: "KV cache"}
	tracks := []track{{"pages in use", "s1", s.series(ledger.SeriesKVPagesUsed)}, {"cached, in use by none", "s3", s.series(ledger.SeriesKVPagesCached)}}
	y := plot.Counts(highest(tracks)*1.15, 4)
	f.Lead = "Pages of key and value memory, as the server counts them."
	if highest(tracks) == 0 {
		tracks = []track{{"in use", "s1", s.series(ledger.SeriesKVUsage)}}
		y = plot.Linear(1e6, 4, func(v float64) string { return fmt.Sprintf("%.0f %%", v/1e4) })
		f.Lead = "The share of key and value memory that the server says is in use."
	}
	c := s.overTime(f.ID, f.Title, 150, y)
	if !draw(c, tracks, true) {
		f.Lead, f.Reason = "", s.reason(ledger.SeriesKVPagesUsed)
		return f
	}
	f.SVG = c.SVG()
	return f
}

func (s *soakCharts) prefix() figure {
	f := figure{ID: "prefix", Title: "Prefix cache"}
	tracks := []track{{"prompt tokens looked up", "s2", s.series(ledger.SeriesPrefixQueries)}, {"found", "s1", s.series(ledger.SeriesPrefixHits)}}
	if len(tracks[1].runs) == 0 {
		f.Reason = s.reason(ledger.SeriesPrefixHits)
		return f
	}
	for i := range tracks {
		fromZero(tracks[i].runs)
	}
	c := s.overTime(f.ID, f.Title, 150, plot.Counts(highest(tracks)*1.15, 4))
	draw(c, tracks, false)
	f.Lead = "Prompt tokens since the first sample, by the server's counters: where the lines lie on each other, all of it was found."
	f.SVG = c.SVG()
	return f
}

// fromZero moves a counter's lines so that the first begins at 0.
func fromZero(runs [][]plot.Point) {
	if len(runs) == 0 || len(runs[0]) == 0 {
		return
	}
	first := runs[0][0].Y
	for _, r := range runs {
		for i := range r {
			r[i].Y -= first
		}
	}
}

// reason is why a series isn't there, as the ledger has it.
func (s *soakCharts) reason(name string) template.HTML {
	for i, e := range s.ledger.NotExposed {
		if e.ID == name {
			if shown, err := s.text(fmt.Sprintf("/not_exposed/%d/reason", i)); err == nil {
				return "Not exposed: " + shown + "."
			}
		}
	}
	return "Not exposed."
}

// series are the values of a canonical name, as lines that are broken where a sample has none and where a segment ends.
func (s *soakCharts) series(name string) [][]plot.Point {
	i := slices.Index(ledger.SeriesNames(), name)
	return s.sampled(func(r *ledger.Resource) ledger.Opt {
		if i < 0 || i >= len(r.Series) {
			return ledger.Opt{}
		}
		return r.Series[i].Value
	})
}

func (s *soakCharts) sampled(value func(*ledger.Resource) ledger.Opt) [][]plot.Point {
	var runs [][]plot.Point
	open := false
	segment := int64(-1)
	for i := range s.trace.samples {
		r := &s.trace.samples[i]
		v := value(r)
		if !v.OK || r.Segment != segment {
			open = false
		}
		segment = r.Segment
		if !v.OK {
			continue
		}
		if !open {
			runs = append(runs, nil)
			open = true
		}
		last := &runs[len(runs)-1]
		*last = append(*last, plot.Point{X: float64(r.TUS), Y: float64(v.V)})
	}
	return runs
}

func top(runs [][]plot.Point) float64 {
	most := 0.0
	for _, r := range runs {
		for _, p := range r {
			most = max(most, p.Y)
		}
	}
	return most
}

// lines are a track's marks; the last of them carries its name.
func lines(runs [][]plot.Point, class string, step bool, name string) []plot.Mark {
	var marks []plot.Mark
	for i, r := range runs {
		l := plot.Line{Points: thin(r, wide), Step: step, Class: class}
		if i == len(runs)-1 {
			l.Label = template.HTML(template.HTMLEscapeString(name))
		}
		marks = append(marks, l)
	}
	return marks
}

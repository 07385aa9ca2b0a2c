package report

import (
	"fmt"

	"cotenant/internal/ledger"
	"cotenant/internal/report/plot"
)

// levels shows a load plan's stages: how the tail of each time grows with the level, against what was asked for.
func (s *soakCharts) levels() figure {
	f := figure{ID: "levels", Title: "The tail by level"}
	load := s.ledger.Load
	if load == nil {
		return f
	}
	thousandths := int64(950)
	if len(load.Plan.Objectives) > 0 {
		thousandths = load.Plan.Objectives[0].Percentile
	}
	unit := 1.0 // of a level
	if load.Plan.Arrival != ledger.ArrivalClosed {
		unit = 1e6
	}
	latency := plot.Line{Class: "s2", Label: "latency"}
	ttft := plot.Line{Class: "s1", Label: "time to first token"}
	var marks []plot.Mark
	lo, hi, least, most := 0.0, 0.0, 0.0, 0.0
	include := func(y float64) {
		if lo == 0 || y < lo {
			lo = y
		}
		hi = max(hi, y)
	}
	seen := map[int64]bool{}
	for _, stage := range load.Stages {
		if !stage.Level.OK || seen[stage.Level.V] { // a search may come back to a level: its table has each
			continue
		}
		seen[stage.Level.V] = true
		x := float64(stage.Level.V) / unit
		if least == 0 || x < least {
			least = x
		}
		most = max(most, x)
		for _, one := range []struct {
			d    *ledger.Distribution
			line *plot.Line
		}{{&stage.Latency, &latency}, {&stage.TTFT, &ttft}} {
			q := percentileOf(one.d, thousandths)
			if !q.ValueUS.OK {
				continue
			}
			at := plot.Point{X: x, Y: float64(q.ValueUS.V) * µs}
			include(at.Y)
			one.line.Points = insert(one.line.Points, at)
			if q.UpperUS.OK {
				include(float64(q.UpperUS.V) * µs)
				marks = append(marks, plot.Span{At: at, Up: float64(q.UpperUS.V) * µs, Class: one.line.Class})
			}
			marks = append(marks, plot.Dot{At: at, Class: one.line.Class, Hollow: stage.Verdict != ledger.VerdictKept})
		}
	}
	if len(seen) < 2 || lo == 0 {
		return f
	}
	c := plot.Chart{ID: f.ID, Title: f.Title, Height: 230, X: plot.Log(least, most),
		Desc: "A percentile of latency and of the time to first token over the level of load, both axes logarithmic, with upper bounds. Dotted lines are the objectives. The table below has the numbers."}
	for i, o := range load.Plan.Objectives {
		include(float64(o.LimitUS) * µs)
		metric := "limit of latency:"
		if o.Metric != "latency" {
			metric = "limit of time to first token:"
		}
		c.Marks = append(c.Marks, plot.Rule{At: float64(o.LimitUS) * µs, Class: "limit", Label: s.label(metric, fmt.Sprintf("/load/plan/objectives/%d/limit_us", i), unitUS)})
	}
	c.Y = plot.LogTime(lo, hi)
	c.Marks = append(append(c.Marks, latency, ttft), marks...)
	over := "arrivals a second"
	if unit == 1 {
		over = "workers"
	}
	f.Lead = "Over " + over + ". Filled dots keep all objectives."
	f.SVG = c.SVG()
	return f
}

// insert keeps points in the order of X.
func insert(points []plot.Point, p plot.Point) []plot.Point {
	i := len(points)
	for i > 0 && points[i-1].X > p.X {
		i--
	}
	return append(points[:i], append([]plot.Point{p}, points[i:]...)...)
}

// percentileOf is a distribution's percentile, in thousandths.
func percentileOf(d *ledger.Distribution, thousandths int64) ledger.Quantile {
	switch thousandths {
	case 500:
		return d.P50
	case 900:
		return d.P90
	case 990:
		return d.P99
	case 999:
		return d.P999
	}
	return d.P95
}

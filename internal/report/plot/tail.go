package plot

import "math"

// Tail is an axis of percentiles on which every further nine takes as much room as the one before: 90, 99, 99.9. n is the number
// of values: beyond 1 - 1/n only the largest of them stands.
func Tail(n int64) Axis {
	a := Axis{Max: max(math.Log10(float64(max(n, 1))), 1) + 0.3}
	for _, t := range []struct {
		p    float64
		name string
	}{{0, "0"}, {0.5, "p50"}, {0.9, "p90"}, {0.99, "p99"}, {0.999, "p99.9"}, {0.9999, "p99.99"}, {0.99999, "p99.999"}} {
		if at := nines(t.p); at <= a.Max {
			a.Ticks = append(a.Ticks, Tick{At: at, Label: t.name})
		}
	}
	return a
}

// nines is the place of percentile p, 0 to 1, on a Tail axis.
func nines(p float64) float64 {
	if p >= 1 {
		return math.Inf(1)
	}
	return -math.Log10(1 - p)
}

// Nines is where percentile p of 0 to 1 stands on a Tail axis.
func Nines(p float64) float64 { return nines(p) }

// Ranks draws ascending values over a Tail axis: the i-th of n holds from (i-1)/n to i/n, as nearest-rank percentiles do. infinite
// values follow them and are not drawn. At most about 600 points are kept, evenly over the axis.
func Ranks(sorted []int64, infinite int64) []Point {
	n := float64(len(sorted)) + float64(infinite)
	if len(sorted) == 0 {
		return nil
	}
	const kept = 600
	end := max(math.Log10(n), 1) + 0.3
	points := []Point{{0, float64(sorted[0])}}
	last := 0.0
	for i := 1; i < len(sorted); i++ {
		x := nines(float64(i) / n)
		if len(sorted) > kept && x-last < end/kept && i < len(sorted)-kept/10 {
			continue
		}
		last = x
		points = append(points, Point{x, float64(sorted[i])})
	}
	if infinite == 0 {
		points = append(points, Point{end, float64(sorted[len(sorted)-1])})
	} else {
		points = append(points, Point{nines(float64(len(sorted)) / n), float64(sorted[len(sorted)-1])})
	}
	return points
}

// LogBars counts ascending values times unit into bars of equal width on a log axis, so many a decade, and says how high the highest is.
func LogBars(x Axis, sorted []int64, unit float64, decade int, class string) ([]Bar, int) {
	var bars []Bar
	most := 0
	index := func(v float64) int { return int(math.Floor(math.Log10(max(v, x.Min)) * float64(decade))) }
	for i := 0; i < len(sorted); {
		k := index(float64(sorted[i]) * unit)
		j := i
		for j < len(sorted) && index(float64(sorted[j])*unit) == k {
			j++
		}
		from := math.Pow(10, float64(k)/float64(decade))
		bars = append(bars, Bar{From: from, To: from * math.Pow(10, 1/float64(decade)), Y: float64(j - i), Class: class})
		most = max(most, j-i)
		i = j
	}
	return bars, most
}

package plot

import (
	"math"
	"strconv"
)

// Axis maps values to shares of a length. A log axis wants Min above 0.
type Axis struct {
	Log      bool
	Min, Max float64
	Ticks    []Tick
}

// Tick is a grid line; without a label it is only a line.
type Tick struct {
	At    float64
	Label string
	Minor bool
}

// share is where v stands: 0 at Min, 1 at Max, clipped.
func (a Axis) share(v float64) float64 {
	lo, hi := a.Min, a.Max
	if a.Log {
		v, lo, hi = math.Log10(max(v, lo)), math.Log10(lo), math.Log10(hi)
	}
	if hi <= lo || math.IsNaN(v) {
		return 0
	}
	return min(max((v-lo)/(hi-lo), 0), 1)
}

// LogTime is a log axis over lo to hi nanoseconds, a thousandth at least apart from 0, with a tick at each decade and lines at
// the digits between them. A range below two decades has labels at 2 and 5 too.
func LogTime(lo, hi float64) Axis {
	lo, hi = max(lo, 1), max(hi, lo, 1)
	if hi < lo*2 {
		lo, hi = lo/1.5, hi*1.5
	} else {
		lo, hi = lo/1.12, hi*1.12
	}
	a := Axis{Log: true, Min: lo, Max: hi}
	narrow := math.Log10(hi/lo) < 2
	labels := 0
	for e := math.Floor(math.Log10(lo)); e <= math.Ceil(math.Log10(hi)); e++ {
		for digit := 1.0; digit < 10; digit++ {
			v := digit * math.Pow(10, e)
			if v < lo*0.999 || v > hi*1.001 {
				continue
			}
			t := Tick{At: v, Minor: digit != 1}
			if digit == 1 || narrow && (digit == 2 || digit == 5) {
				t.Label = timeLabel(v)
			}
			if t.Label != "" {
				labels++
			}
			a.Ticks = append(a.Ticks, t)
		}
	}
	if labels < 2 { // less than an octave: every digit has its name
		for i := range a.Ticks {
			a.Ticks[i].Label = timeLabel(a.Ticks[i].At)
		}
	}
	return a
}

// timeLabel writes nanoseconds of one leading digit.
func timeLabel(ns float64) string {
	for _, u := range []struct {
		size float64
		name string
	}{{1e9, " s"}, {1e6, " ms"}, {1e3, " µs"}} {
		if ns >= u.size*0.999 {
			return short(ns/u.size) + u.name
		}
	}
	return short(ns) + " ns"
}

// Log is a log axis over numbers without a unit.
func Log(lo, hi float64) Axis {
	a := LogTime(lo*1e9, hi*1e9)
	a.Min, a.Max = a.Min/1e9, a.Max/1e9
	for i := range a.Ticks {
		t := &a.Ticks[i]
		t.At /= 1e9
		if t.Label != "" {
			t.Label = short(t.At)
		}
	}
	return a
}

// Linear is an axis from 0 to at least hi with about n ticks at round numbers; each label is written by write.
func Linear(hi float64, n int, write func(float64) string) Axis {
	if hi <= 0 {
		hi = 1
	}
	step := nice(hi / float64(n))
	a := Axis{Max: math.Ceil(hi/step-1e-9) * step}
	for i := 0; float64(i)*step <= a.Max*1.0001; i++ {
		v := float64(i) * step
		a.Ticks = append(a.Ticks, Tick{At: v, Label: write(v)})
	}
	return a
}

// Counts is an axis of whole numbers.
func Counts(hi float64, n int) Axis { return Linear(max(hi, 1), min(n, max(int(hi), 1)), Count) }

// nice is the smallest of 1, 2, 5 times a power of ten that isn't below v.
func nice(v float64) float64 {
	base := math.Pow(10, math.Floor(math.Log10(v)))
	for _, m := range []float64{1, 2, 5} {
		if m*base >= v*0.9999 {
			return m * base
		}
	}
	return 10 * base
}

// Count writes a whole number shortly: 1,200 as 1.2 k.
func Count(v float64) string {
	for _, u := range []struct {
		size float64
		name string
	}{{1e9, " G"}, {1e6, " M"}, {1e3, " k"}} {
		if v >= u.size {
			return short(v/u.size) + u.name
		}
	}
	return short(v)
}

// Bytes is an axis in powers of two.
func Bytes(hi float64, n int) Axis {
	size, name := 1.0, " B"
	for _, u := range []string{" KiB", " MiB", " GiB", " TiB"} {
		if hi < size*1024 {
			break
		}
		size, name = size*1024, u
	}
	a := Linear(hi/size, n, func(v float64) string { return short(v) + name })
	a.Max *= size
	for i := range a.Ticks {
		a.Ticks[i].At *= size
	}
	return a
}

// Seconds is an axis over time from 0 to hi µs.
func Seconds(hi float64, n int) Axis {
	size, name := 1e6, " s"
	switch {
	case hi >= 3*3600e6:
		size, name = 3600e6, " h"
	case hi >= 300e6:
		size, name = 60e6, " min"
	case hi < 1e6:
		size, name = 1e3, " ms"
	}
	a := Linear(hi/size, n, func(v float64) string { return short(v) + name })
	a.Max = max(hi, 1)
	ticks := a.Ticks
	a.Ticks = nil
	for _, t := range ticks {
		if t.At *= size; t.At <= a.Max {
			a.Ticks = append(a.Ticks, t)
		}
	}
	return a
}

// short writes v with at most three significant digits.
func short(v float64) string { return strconv.FormatFloat(mustRound(v), 'f', -1, 64) }

func mustRound(v float64) float64 {
	r, err := strconv.ParseFloat(strconv.FormatFloat(v, 'g', 3, 64), 64)
	if err != nil {
		return v
	}
	return r
}

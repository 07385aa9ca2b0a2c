package plot

import (
	"encoding/xml"
	"math"
	"strings"
	"testing"
)

func TestLogTimeHasTicks(t *testing.T) {
	for _, r := range [][2]float64{{1, 1}, {1e3, 1e3}, {250e6, 3.3e9}, {18e3, 7.9e6}, {1, 1e12}, {0, 0}} {
		a := LogTime(r[0], r[1])
		labels := 0
		for _, tick := range a.Ticks {
			if tick.At < a.Min*0.99 || tick.At > a.Max*1.01 {
				t.Errorf("%v: a tick at %v lies outside %v to %v", r, tick.At, a.Min, a.Max)
			}
			if tick.Label != "" {
				labels++
			}
		}
		if labels == 0 || labels > 14 {
			t.Errorf("%v: %d labels", r, labels)
		}
	}
}

// On a tail axis the curve passes through each nearest-rank percentile.
func TestRanksAreNearestRank(t *testing.T) {
	sorted := make([]int64, 250)
	for i := range sorted {
		sorted[i] = int64(i * i)
	}
	points := Ranks(sorted, 0)
	at := func(p float64) float64 { // the step line's value just below percentile p
		y := points[0].Y
		for _, q := range points {
			if q.X < Nines(p)-1e-9 {
				y = q.Y
			}
		}
		return y
	}
	for _, p := range []float64{0.5, 0.9, 0.95, 0.99} {
		if want := float64(sorted[int(math.Ceil(p*250))-1]); at(p) != want {
			t.Errorf("p%v is %v, want %v", p*100, at(p), want)
		}
	}
}

func TestRanksKeepExtremes(t *testing.T) {
	sorted := make([]int64, 100_000)
	for i := range sorted {
		sorted[i] = int64(i)
	}
	points := Ranks(sorted, 0)
	if len(points) > 800 || points[0].Y != 0 || points[len(points)-1].Y != 99_999 {
		t.Errorf("%d points from %v to %v", len(points), points[0].Y, points[len(points)-1].Y)
	}
}

// A chart is well-formed XML whatever its words are, and its labels don't lie on each other.
func TestChart(t *testing.T) {
	c := Chart{ID: "x", Title: `a "<b>`, Desc: "&", Height: 100, X: Seconds(10e6, 5), Y: Linear(10, 4, Count)}
	for _, y := range []float64{0.1, 0.2, 0.3} {
		c.Marks = append(c.Marks, Line{Points: []Point{{0, y}, {10e6, y}}, Class: "s1", Label: "label"})
	}
	c.Marks = append(c.Marks, Rule{At: 5, Label: "r"}, Rule{At: 3e6, Upright: true, Label: "u"}, Dot{At: Point{1e6, 1}, Title: "<"}, Span{At: Point{1e6, 1}, Up: 2}, Bar{From: 1e6, To: 2e6, Y: 3},
		Area{Points: []Point{{0, 1}, {1e6, 2}}})
	svg := string(c.SVG())
	dec := xml.NewDecoder(strings.NewReader(svg))
	ys := map[string]bool{}
	for {
		token, err := dec.Token()
		if token == nil {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if e, ok := token.(xml.StartElement); ok && e.Name.Local == "text" {
			var class, y string
			for _, a := range e.Attr {
				switch a.Name.Local {
				case "class":
					class = a.Value
				case "y":
					y = a.Value
				}
			}
			if class == "label s1" {
				if ys[y] {
					t.Errorf("two labels at %s", y)
				}
				ys[y] = true
			}
		}
	}
	if len(ys) != 3 {
		t.Errorf("%d labels, want 3", len(ys))
	}
}

package plot

import (
	"fmt"
	"html/template"
	"math"
	"slices"
	"strings"
)

// Strip is a distribution in one row of a table, over an axis that the rows share: how dense values lie, the median as a dot, a tail
// percentile as a tick, the largest as a ring, and a reference as a line. Absent marks are 0.
type Strip struct {
	X                       Axis
	Bars                    []Bar // Y is a share of the highest, 0 to 1
	Median, Tail, Most, Ref float64
	Class                   string
}

// stripHeight is in px.
const stripHeight = 22

// SVG is the strip as an svg element, hidden from those who hear the numbers beside it.
func (s Strip) SVG() template.HTML {
	var b strings.Builder
	fmt.Fprintf(&b, `<svg class="ridge %s" width="100%%" height="%d" aria-hidden="true"><line class="floor" x1="0" x2="100%%" y1="11" y2="11"/>`, s.Class, stripHeight)
	for _, bar := range s.Bars {
		from, to := s.X.share(bar.From), s.X.share(bar.To)
		fmt.Fprintf(&b, `<rect x="%s" y="3" width="%s" height="16" fill-opacity="%s"/>`, pc(from), pc(max(to-from, 0.002)), trim(fmt.Sprintf("%.2f", 0.12+0.6*bar.Y)))
	}
	if s.Ref > 0 {
		x := pc(s.X.share(s.Ref))
		fmt.Fprintf(&b, `<line class="ref" x1="%s" x2="%s" y1="0" y2="%d"/>`, x, x, stripHeight)
	}
	if s.Most > 0 {
		fmt.Fprintf(&b, `<circle class="most" cx="%s" cy="11" r="3.5"/>`, pc(s.X.share(s.Most)))
	}
	if s.Tail > 0 {
		x := pc(s.X.share(s.Tail))
		fmt.Fprintf(&b, `<line class="tail" x1="%s" x2="%s" y1="2" y2="20"/>`, x, x)
	}
	if s.Median > 0 {
		fmt.Fprintf(&b, `<circle class="median" cx="%s" cy="11" r="4"/>`, pc(s.X.share(s.Median)))
	}
	b.WriteString(`</svg>`)
	return template.HTML(b.String())
}

// StripAxis is the axis above strips.
func StripAxis(x Axis) template.HTML {
	var b strings.Builder
	b.WriteString(`<svg class="ridge" width="100%" height="18" aria-hidden="true"><g class="axis">`)
	var taken []float64
	for _, minor := range []bool{false, true} { // decades first: what is too near one of them stays without a label
		for _, t := range x.Ticks {
			at := x.share(t.At)
			if t.Label == "" || t.Minor != minor || slices.ContainsFunc(taken, func(o float64) bool { return math.Abs(o-at) < 0.17 }) {
				continue
			}
			taken = append(taken, at)
			anchor := "middle"
			switch {
			case at > 0.9:
				anchor = "end"
			case at < 0.08:
				anchor = "start"
			}
			fmt.Fprintf(&b, `<text x="%s" y="12" text-anchor="%s">%s</text>`, pc(at), anchor, template.HTMLEscapeString(t.Label))
		}
	}
	b.WriteString(`</g></svg>`)
	return template.HTML(b.String())
}

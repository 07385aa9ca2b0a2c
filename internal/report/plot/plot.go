// Package plot draws charts as inline SVG that needs no script and no font of its own. Text keeps its size at every width: the
// plot area takes the width it is given, curves are stretched with it, and labels stand at shares of it. Colours are left to
// the page's style sheet, which gives classes s1 to s5 a colour a scheme.
package plot

import (
	"cmp"
	"fmt"
	"html"
	"html/template"
	"math"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"
)

// Chart is one plot area with its axes. The page has to leave room for tick labels: 56 px at the left, 34 px below.
type Chart struct {
	ID     string // unique on its page: letters, digits, hyphens
	Title  string // its accessible name
	Desc   string // what somebody who can't see it should know
	Height int    // of the plot area, px
	X, Y   Axis
	Marks  []Mark // drawn in their order
}

// Mark is something that a chart shows.
type Mark interface{ draw(*canvas) }

// Point is a place in the units of the axes.
type Point struct{ X, Y float64 }

// Line joins points; a step line keeps a value until the next point.
type Line struct {
	Points []Point
	Step   bool
	Class  string        // of the style sheet: s1 to s5, with words like dashed
	Label  template.HTML // stands at its end; SVG text content
}

// Area fills between a step line and the axis.
type Area struct {
	Points []Point
	Class  string
}

// Bar is a filled box from Y 0 of its axis (the bottom) to Y.
type Bar struct {
	From, To, Y float64
	Class       string
}

// Rule is a line across the whole area at At, upright or level.
type Rule struct {
	At      float64
	Upright bool
	Class   string
	Label   template.HTML
	Row     int // of an upright rule's label, counted from the top, so that neighbours don't overlap
}

// Dot is one point with a text beside it.
type Dot struct {
	At     Point
	Class  string
	Hollow bool
	Title  string        // shown by a browser that hovers over it
	Label  template.HTML // beside it; empty: none
}

// Span is an upright whisker from At to Up, with a cap there: a value and its upper bound.
type Span struct {
	At    Point
	Up    float64
	Class string
}

// canvas is a chart that is being drawn.
type canvas struct {
	*Chart
	curves strings.Builder // in the stretched coordinates of 1000 by 1000
	over   strings.Builder // in px and shares
	labels []label
}

// label is a text that gives way to others: it stands above top, or else below bottom.
type label struct {
	x           float64 // share of the width
	top, bottom float64 // px: what it must not cover
	end         bool    // anchored at its end
	class       string
	text        template.HTML
}

// SVG is the chart as an svg element.
func (c *Chart) SVG() template.HTML {
	k := &canvas{Chart: c}
	for _, m := range c.Marks {
		m.draw(k)
	}
	var b strings.Builder
	fmt.Fprintf(&b, `<svg class="chart" width="100%%" height="%d" role="img" aria-labelledby="%s-t %s-d"><title id="%s-t">%s</title><desc id="%s-d">%s</desc>`,
		c.Height, c.ID, c.ID, c.ID, html.EscapeString(c.Title), c.ID, html.EscapeString(c.Desc))
	c.axes(&b)
	fmt.Fprintf(&b, `<svg width="100%%" height="%d" viewBox="0 0 1000 1000" preserveAspectRatio="none" aria-hidden="true">%s</svg>`, c.Height, k.curves.String())
	b.WriteString(k.over.String())
	k.place(&b)
	b.WriteString(`</svg>`)
	return template.HTML(b.String())
}

// axes writes the grid and its labels.
func (c *Chart) axes(b *strings.Builder) {
	b.WriteString(`<g class="axis" aria-hidden="true">`)
	for _, t := range c.Y.Ticks {
		y := c.y(t.At)
		fmt.Fprintf(b, `<line class="%s" x1="0" x2="100%%" y1="%s" y2="%s"/>`, gridClass(t), px(y), px(y))
		if t.Label != "" {
			fmt.Fprintf(b, `<text x="-8" y="%s" text-anchor="end">%s</text>`, px(y+4), html.EscapeString(t.Label))
		}
	}
	for _, t := range c.X.Ticks {
		x := c.X.share(t.At)
		fmt.Fprintf(b, `<line class="%s" x1="%s" x2="%s" y1="0" y2="%d"/>`, gridClass(t), pc(x), pc(x), c.Height)
		if t.Label == "" {
			continue
		}
		anchor := "middle"
		if x > 0.97 {
			anchor = "end"
		}
		fmt.Fprintf(b, `<text x="%s" y="%d" text-anchor="%s">%s</text>`, pc(x), c.Height+19, anchor, html.EscapeString(t.Label))
	}
	fmt.Fprintf(b, `<line class="base" x1="0" x2="100%%" y1="%d" y2="%d"/></g>`, c.Height, c.Height)
}

func gridClass(t Tick) string {
	if t.Minor {
		return "minor"
	}
	return "grid"
}

// overlaps reports whether two labels would share columns on a phone, where the area is about 270 px wide and a letter 7.
func (l label) overlaps(o label) bool {
	from, to := l.extent()
	from2, to2 := o.extent()
	return from < to2 && from2 < to
}

func (l label) extent() (from, to float64) {
	const letter = 7.0 / 270
	width := float64(utf8.RuneCountInString(tag.ReplaceAllString(html.UnescapeString(string(l.text)), ""))+1) * letter
	if l.end {
		return l.x - width, l.x
	}
	return l.x, l.x + width
}

var tag = regexp.MustCompile("<[^>]*>")

// place writes the labels: each above what it names, or below it where one before it took that place.
func (k *canvas) place(b *strings.Builder) {
	const line = 15
	slices.SortStableFunc(k.labels, func(a, b label) int { return cmp.Compare(a.top, b.top) })
	at := make([]float64, len(k.labels))
	for i, l := range k.labels {
		at[i] = max(l.top-7, 11)
		for j, before := range k.labels[:i] {
			if before.overlaps(l) && math.Abs(at[i]-at[j]) < line {
				at[i] = max(at[j]+line, l.bottom+line)
			}
		}
	}
	for i := len(at) - 1; i >= 0; i-- { // none stands below the area
		at[i] = min(at[i], float64(k.Height)-5)
		for j := i + 1; j < len(at); j++ {
			if k.labels[j].overlaps(k.labels[i]) && math.Abs(at[j]-at[i]) < line {
				at[i] = at[j] - line
			}
		}
	}
	for i, l := range k.labels {
		anchor, shift := "start", 6
		if l.end {
			anchor, shift = "end", -4
		}
		fmt.Fprintf(b, `<text class="label %s" x="%s" dx="%d" y="%s" text-anchor="%s">%s</text>`, l.class, pc(l.x), shift, px(at[i]), anchor, l.text)
	}
}

// y is v's distance from the top in px.
func (c *Chart) y(v float64) float64 { return (1 - c.Y.share(v)) * float64(c.Height) }

func (l Line) draw(k *canvas) {
	if len(l.Points) == 0 {
		return
	}
	var d strings.Builder
	for i, p := range l.Points {
		x, y := k.X.share(p.X)*1000, (1-k.Y.share(p.Y))*1000
		switch {
		case i == 0:
			fmt.Fprintf(&d, "M%s %s", milli(x), milli(y))
		case l.Step:
			fmt.Fprintf(&d, "H%sV%s", milli(x), milli(y))
		default:
			fmt.Fprintf(&d, "L%s %s", milli(x), milli(y))
		}
	}
	fmt.Fprintf(&k.curves, `<path class="line %s" d="%s" vector-effect="non-scaling-stroke"/>`, l.Class, d.String())
	if l.Label != "" {
		k.labels = append(k.labels, l.label(k))
	}
}

// label stands at the line's end, clear of the stretch that it is as wide as.
func (l Line) label(k *canvas) label {
	const width = 0.22
	x := k.X.share(l.Points[len(l.Points)-1].X)
	end := x > 0.5
	first := l.Points[0]
	if !end {
		x = k.X.share(first.X)
	}
	at := label{x: x, top: math.Inf(1), bottom: math.Inf(-1), end: end, class: l.Class, text: l.Label}
	for i, p := range l.Points {
		until := k.X.share(p.X)
		if l.Step && i+1 < len(l.Points) {
			until = k.X.share(l.Points[i+1].X)
		}
		if end && until >= x-width || !end && k.X.share(p.X) <= x+width {
			at.top, at.bottom = min(at.top, k.y(p.Y)), max(at.bottom, k.y(p.Y))
		}
	}
	return at
}

func (a Area) draw(k *canvas) {
	if len(a.Points) == 0 {
		return
	}
	var d strings.Builder
	fmt.Fprintf(&d, "M%s 1000", milli(k.X.share(a.Points[0].X)*1000))
	for i, p := range a.Points {
		if i > 0 {
			fmt.Fprintf(&d, "H%s", milli(k.X.share(p.X)*1000))
		}
		fmt.Fprintf(&d, "V%s", milli((1-k.Y.share(p.Y))*1000))
	}
	fmt.Fprintf(&k.curves, `<path class="area %s" d="%sV1000Z"/>`, a.Class, d.String())
}

func (b Bar) draw(k *canvas) {
	from, to, y := k.X.share(b.From), k.X.share(b.To), k.y(b.Y)
	fmt.Fprintf(&k.over, `<rect class="bar %s" x="%s" y="%s" width="%s" height="%s"/>`, b.Class, pc(from), px(y), pc(max(to-from-0.0015, 0.001)), px(float64(k.Height)-y))
}

func (r Rule) draw(k *canvas) {
	if !r.Upright {
		y := k.y(r.At)
		fmt.Fprintf(&k.over, `<line class="rule %s" x1="0" x2="100%%" y1="%s" y2="%s"/>`, r.Class, px(y), px(y))
		if r.Label != "" {
			k.labels = append(k.labels, label{0, y, y, false, r.Class, r.Label})
		}
		return
	}
	x := k.X.share(r.At)
	fmt.Fprintf(&k.over, `<line class="rule %s" x1="%s" x2="%s" y1="%d" y2="%d"/>`, r.Class, pc(x), pc(x), 2+16*r.Row, k.Height)
	if r.Label == "" {
		return
	}
	anchor, shift := "start", 4
	if x > 0.7 {
		anchor, shift = "end", -4
	}
	fmt.Fprintf(&k.over, `<text class="label %s" x="%s" dx="%d" y="%d" text-anchor="%s">%s</text>`, r.Class, pc(x), shift, 12+16*r.Row, anchor, r.Label)
}

func (d Dot) draw(k *canvas) {
	x, y := k.X.share(d.At.X), k.y(d.At.Y)
	class := d.Class
	if d.Hollow {
		class += " hollow"
	}
	fmt.Fprintf(&k.over, `<circle class="dot %s" cx="%s" cy="%s" r="4.5"><title>%s</title></circle>`, class, pc(x), px(y), html.EscapeString(d.Title))
	if d.Label != "" {
		k.labels = append(k.labels, label{x, y - 3, y + 3, x > 0.6, d.Class, d.Label})
	}
}

func (s Span) draw(k *canvas) {
	x, y, up := k.X.share(s.At.X), k.y(s.At.Y), k.y(s.Up)
	fmt.Fprintf(&k.over, `<line class="span %s" x1="%s" x2="%s" y1="%s" y2="%s"/>`, s.Class, pc(x), pc(x), px(y), px(up))
	fmt.Fprintf(&k.over, `<svg class="cap" x="%s" y="%s" aria-hidden="true"><line class="span %s" x1="-4" x2="4" y1="0" y2="0"/></svg>`, pc(x), px(up), s.Class)
}

func pc(share float64) string { return trim(fmt.Sprintf("%.2f", share*100)) + "%" }
func px(v float64) string     { return trim(fmt.Sprintf("%.1f", v)) }
func milli(v float64) string  { return trim(fmt.Sprintf("%.1f", v)) }

// trim drops a fraction's trailing zeros.
func trim(s string) string {
	s = strings.TrimRight(strings.TrimRight(s, "0"), ".")
	if s == "-0" || s == "" {
		return "0"
	}
	return s
}

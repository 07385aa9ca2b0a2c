package fak

import (
	"fmt"
	"math"
	"strings"
)

// The helpers below return what breaks a condition, empty if nothing does; first takes the first that isn't empty.

func first(broken ...string) string {
	for _, b := range broken {
		if b != "" {
			return b
		}
	}
	return ""
}

// is wants a member to have one of the values.
func is(d doc, name string, want ...string) string {
	got := d.text(name)
	for _, w := range want {
		if got == w {
			return ""
		}
	}
	return fmt.Sprintf("%s is %q: want %q", name, clip(got, 80), strings.Join(want, " or "))
}

// equal wants integers to have a value.
func equal(d doc, want int64, names ...string) string {
	for _, name := range names {
		if got := d.integer(name); got != want {
			return fmt.Sprintf("%s is %d: want %d", name, got, want)
		}
	}
	return ""
}

// same wants integers to equal another.
func same(d doc, as string, names ...string) string {
	for _, name := range names {
		if got, want := d.integer(name), d.integer(as); got != want {
			return fmt.Sprintf("%s is %d, %s is %d", name, got, as, want)
		}
	}
	return ""
}

// within wants an integer between two others, inclusively.
func within(d doc, name string, low, high int64) string {
	if got := d.integer(name); got < low || got > high {
		return fmt.Sprintf("%s is %d: want %d to %d", name, got, low, high)
	}
	return ""
}

// positive wants numbers above 0.
func positive(d doc, names ...string) string {
	for _, name := range names {
		if got := d.number(name); got <= 0 {
			return fmt.Sprintf("%s is %v: want more than 0", name, got)
		}
	}
	return ""
}

// ordered wants numbers that don't fall.
func ordered(d doc, names ...string) string {
	for i := 1; i < len(names); i++ {
		if a, b := d.number(names[i-1]), d.number(names[i]); b < a {
			return fmt.Sprintf("%s is %v, below %s, %v", names[i], b, names[i-1], a)
		}
	}
	return ""
}

// said wants texts that aren't empty.
func said(d doc, names ...string) string {
	for _, name := range names {
		if d.text(name) == "" {
			return name + " is empty"
		}
	}
	return ""
}

// some wants lists that aren't empty.
func some(d doc, names ...string) string {
	for _, name := range names {
		if len(d.list(name)) == 0 {
			return name + " is empty"
		}
	}
	return ""
}

// unless says failure where ok is false.
func unless(ok bool, format string, args ...any) string {
	if ok {
		return ""
	}
	return fmt.Sprintf(format, args...)
}

// rateTolerance covers the last digits of a float64 that was printed and read.
const rateTolerance = 1e-9

// rateFits compares a rate with n over a time that was cut to whole ms: the true time lies between ms and ms + 1.
func rateFits(d doc, name string, n float64, ms int64) string {
	got := d.number(name)
	if ms <= 0 {
		return ""
	}
	low, high := n*1000/float64(ms+1), n*1000/float64(ms)
	if got < low*(1-rateTolerance) || got > high*(1+rateTolerance) {
		return fmt.Sprintf("%s is %v, %v in %d ms gives %.6g to %.6g", name, got, n, ms, low, high)
	}
	return ""
}

// near compares a stored number with what others give, within a part of it.
func near(what string, got, want, part float64) string {
	if math.Abs(got-want) <= part*math.Max(math.Abs(got), math.Abs(want)) {
		return ""
	}
	return fmt.Sprintf("%s is %v, its parts give %.9g", what, got, want)
}

package report

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/big"
	"strconv"
	"strings"
	"time"
	"unicode"
)

// rounding is how the last digit that is shown comes to be.
type rounding int

const (
	nearest  rounding = iota // half away from zero
	upward                   // of upper bounds
	downward                 // of lower bounds
)

// roundingOf splits a unit from its suffix _up or _down.
func roundingOf(unit string) (string, rounding) {
	if base, ok := strings.CutSuffix(unit, "_up"); ok {
		return base, upward
	}
	if base, ok := strings.CutSuffix(unit, "_down"); ok {
		return base, downward
	}
	return unit, nearest
}

// opposite is the rounding of a number whose sign was taken off.
func (r rounding) opposite() rounding {
	switch r {
	case upward:
		return downward
	case downward:
		return upward
	}
	return nearest
}

// Units of a value on a page: how its whole number is written for people. A suffix _up or _down rounds outwards, for bounds.
const (
	unitCount = "count"
	unitUS    = "us"
	unitUSUp  = "us_up"
	unitNS    = "ns"
	unitNSUp  = "ns_up"
	unitBytes = "bytes"
	unitPPM   = "ppm"     // as a percentage
	unitPerE6 = "per1e6s" // as a number a second
	unitWall  = "wall_us" // as a moment, UTC
	unitRatio = "ratio"   // parts per million, as a factor
	unitMW    = "mw"
	unitMJ    = "mj"
	unitMHz   = "mhz"
	unitUJ    = "uj"
	unitByteS = "bytes_per_s"
	unitOpS   = "ops_per_s"
	unitPerS  = "per_s"
	unitNines = "percentile" // thousandths, as p95
	unitText  = "text"
	unitHash  = "hash"
	unitTruth = "truth"
)

// write is the text of value v, a scalar of a document, in unit. Null has words of its own, which the page chooses.
func write(v any, unit string) (string, error) {
	switch unit {
	case unitText, unitHash:
		s, ok := v.(string)
		if !ok {
			return "", fmt.Errorf("%v isn't text", v)
		}
		return visible(s), nil
	case unitTruth:
		switch v {
		case true:
			return "yes", nil
		case false:
			return "no", nil
		}
		return "", fmt.Errorf("%v is neither true nor false", v)
	}
	number, ok := v.(json.Number)
	if !ok {
		return "", fmt.Errorf("%v isn't a number", v)
	}
	n, err := strconv.ParseInt(number.String(), 10, 64)
	if err != nil {
		return "", fmt.Errorf("%s isn't a whole number", number)
	}
	return quantity(n, unit)
}

func quantity(n int64, unit string) (string, error) {
	base, round := roundingOf(unit)
	switch base {
	case unitCount:
		return grouped(n), nil
	case unitUS:
		return duration(n, 1000, round), nil
	case unitNS:
		return duration(n, 1, round), nil
	case unitBytes:
		return size(n), nil
	case unitPPM:
		return significant(n, 10_000, 3, round) + " %", nil
	case unitPerE6:
		return significant(n, 1_000_000, 3, round), nil
	case unitNines:
		return "p" + strings.TrimSuffix(strings.TrimSuffix(withPoint(strconv.FormatInt(n, 10), 1), "0"), "."), nil
	case unitRatio:
		return significant(n, 1_000_000, 3, round) + "×", nil
	case unitMW:
		return significant(n, 1000, 3, round) + " W", nil
	case unitMJ:
		return prefixed(n, 1000, "J"), nil
	case unitUJ:
		return prefixed(n, 1_000_000, "J"), nil
	case unitByteS:
		return prefixed(n, 1, "B/s"), nil
	case unitOpS:
		return prefixed(n, 1, "FLOP/s"), nil
	case unitPerS:
		return prefixed(n, 1, "/s"), nil
	case unitMHz:
		return grouped(n) + " MHz", nil
	case unitWall:
		return time.UnixMicro(n).UTC().Format("2006-01-02 15:04:05 UTC"), nil
	}
	return "", errors.New("no unit " + unit)
}

// grouped writes 1234567 as 1,234,567.
func grouped(n int64) string {
	s := strconv.FormatInt(n, 10)
	sign := ""
	if n < 0 {
		sign, s = "−", s[1:]
	}
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return sign + s
}

// significant writes n / unit with that many significant digits, but every digit before the point, and six after it at most; rounded as
// told.
func significant(n, unit int64, digits int, round rounding) string {
	if n < 0 {
		return "−" + significant(-n, unit, digits, round.opposite())
	}
	if n == 0 {
		return "0"
	}
	decimals := 6
	q := scaled(n, unit, decimals, round)
	for decimals > 0 && len(q) > digits {
		decimals--
		q = scaled(n, unit, decimals, round)
	}
	return withPoint(q, decimals)
}

// scaled is n * 10^decimals / unit as a whole number's digits.
func scaled(n, unit int64, decimals int, round rounding) string {
	v := new(big.Int).Mul(big.NewInt(n), new(big.Int).Exp(big.NewInt(10), big.NewInt(int64(decimals)), nil))
	d := big.NewInt(unit)
	switch round {
	case upward:
		v.Add(v, new(big.Int).Sub(d, big.NewInt(1)))
	case nearest:
		v.Add(v, new(big.Int).Quo(d, big.NewInt(2)))
	}
	return v.Quo(v, d).String()
}

// withPoint puts a point before the last decimals of digits, and commas into what stands before it.
func withPoint(digits string, decimals int) string {
	for len(digits) <= decimals {
		digits = "0" + digits
	}
	whole, fraction := digits[:len(digits)-decimals], digits[len(digits)-decimals:]
	for i := len(whole) - 3; i > 0; i -= 3 {
		whole = whole[:i] + "," + whole[i:]
	}
	if fraction == "" {
		return whole
	}
	return whole + "." + fraction
}

// duration writes n times ns nanoseconds: three significant digits up to ten minutes, then minutes and hours.
func duration(n, ns int64, round rounding) string {
	if n < 0 {
		return "−" + duration(-n, ns, round.opposite())
	}
	if n == 0 {
		return "0 s"
	}
	second := 1_000_000_000 / ns
	if n >= 600*second {
		total, err := strconv.ParseInt(scaled(n, second, 0, round), 10, 64)
		if err != nil {
			return ""
		}
		if total >= 36000 {
			return fmt.Sprintf("%s h %02d min", grouped(total/3600), total%3600/60)
		}
		return fmt.Sprintf("%d min %02d s", total/60, total%60)
	}
	for _, u := range []struct {
		unit int64 // in n's unit
		name string
	}{{second, "s"}, {second / 1000, "ms"}, {second / 1_000_000, "µs"}} {
		if u.unit > 0 && n >= u.unit {
			if u.unit == 1 {
				return grouped(n) + " " + u.name
			}
			return significant(n, u.unit, 3, round) + " " + u.name
		}
	}
	return grouped(n) + " ns"
}

// size writes bytes in powers of two with three significant digits.
func size(n int64) string {
	if n < 0 {
		return "−" + size(-n)
	}
	unit, name := int64(1), "B"
	for _, u := range []string{"KiB", "MiB", "GiB", "TiB", "PiB"} {
		if n < unit*1024 {
			break
		}
		unit, name = unit*1024, u
	}
	if unit == 1 {
		return grouped(n) + " B"
	}
	return significant(n, unit, 3, nearest) + " " + name
}

// prefixed writes n / unit with a decimal prefix.
func prefixed(n, unit int64, name string) string {
	for _, p := range []struct {
		size int64
		name string
	}{{1e15, "P"}, {1e12, "T"}, {1e9, "G"}, {1e6, "M"}, {1e3, "k"}} {
		if unit <= math.MaxInt64/p.size && n >= unit*p.size {
			return significant(n, unit*p.size, 3, nearest) + " " + p.name + name
		}
	}
	for _, p := range []struct {
		parts int64
		name  string
	}{{1, ""}, {1e3, "m"}, {1e6, "µ"}} {
		if unit%p.parts == 0 && (n >= unit/p.parts || n == 0) {
			return significant(n, unit/p.parts, 3, nearest) + " " + p.name + name
		}
	}
	return significant(n, unit, 3, nearest) + " " + name
}

// exact is a number's whole value with its unit, for a title; empty where the text says it already.
func exact(n int64, unit string) string {
	base, _ := roundingOf(unit)
	switch base {
	case unitUS:
		return grouped(n) + " µs"
	case unitNS:
		return grouped(n) + " ns"
	case unitBytes:
		return grouped(n) + " bytes"
	case unitPPM, unitRatio:
		return grouped(n) + " ppm"
	case unitMW:
		return grouped(n) + " mW"
	case unitMJ:
		return grouped(n) + " mJ"
	case unitUJ:
		return grouped(n) + " µJ"
	case unitByteS, unitOpS, unitPerS:
		return grouped(n) + " a second"
	case unitPerE6:
		return grouped(n) + " per 10⁶ s"
	}
	return ""
}

// odd reports whether a rune can't be seen, moves its neighbours, or has no place in XML.
func odd(r rune) bool {
	return unicode.In(r, unicode.Cc, unicode.Cf, unicode.Co, unicode.Zl, unicode.Zp) || r == unicode.ReplacementChar || r == 0xfffe || r == 0xffff
}

// visible writes out what a browser would not show or would let move its neighbours: control and format characters, among them
// those that change the direction of writing, and what XML has no place for.
func visible(s string) string {
	if !strings.ContainsFunc(s, odd) {
		return s
	}
	var b strings.Builder
	for _, r := range s {
		if odd(r) {
			fmt.Fprintf(&b, "\\u%04x", r)
			continue
		}
		b.WriteRune(r)
	}
	return b.String()
}

package chat

import (
	"math"
	"math/bits"
	"strconv"
	"strings"
)

func itoa(n int) string { return strconv.Itoa(n) }

func (st *state) overflow() { st.fail("a number doesn't fit 64 bits") }

// arith is + - * / // % ** on numbers, + on strings and lists, * of a string or list with a number, and % on strings.
func (st *state) arith(op string, a, b value) value {
	if u, ok := a.(undefined); ok {
		st.fail("%s", u.why)
	}
	if u, ok := b.(undefined); ok {
		st.fail("%s", u.why)
	}
	x, okX := integer(a)
	y, okY := integer(b)
	if okX && okY {
		return st.arithInt(op, x, y)
	}
	if f, ok := number(a); ok {
		if g, ok := number(b); ok {
			return st.arithFloat(op, f, g)
		}
	}
	switch {
	case op == "+":
		if v := st.join(a, b); v != nil {
			return v
		}
	case op == "*" && okY:
		return st.repeat(a, y)
	case op == "*" && okX:
		return st.repeat(b, x)
	case op == "%":
		if s, ok := a.(text); ok {
			values, unused := []value{b}, false
			switch b := b.(type) {
			case *list:
				if unused = !b.tuple; b.tuple {
					values = b.items
				}
			case *dict:
				unused = true
			}
			return st.percent(s, values, unused)
		}
	}
	st.fail("%s %s %s isn't possible", typeName(a), op, typeName(b))
	return nil
}

// join is a + b of strings or lists, nil for anything else.
func (st *state) join(a, b value) value {
	switch a := a.(type) {
	case text:
		if b, ok := b.(text); ok {
			st.alloc(len(a.s) + len(b.s) + 16*(len(a.trusted)+len(b.trusted)))
			var out builder
			out.b.Grow(len(a.s) + len(b.s))
			out.add(a)
			out.add(b)
			return out.text()
		}
	case *list:
		if b, ok := b.(*list); ok && a.tuple == b.tuple {
			st.alloc(16 * (len(a.items) + len(b.items)))
			return &list{append(append(make([]value, 0, len(a.items)+len(b.items)), a.items...), b.items...), a.tuple}
		}
	}
	return nil
}

// repeat is v * n.
func (st *state) repeat(v value, n int64) value {
	n = max(n, 0)
	size := func(unit int) {
		hi, lo := bits.Mul64(uint64(unit), uint64(n))
		if hi != 0 || lo > uint64(st.memory()) {
			lo = uint64(st.memory()) + 1
		}
		st.alloc(int(lo))
	}
	switch v := v.(type) {
	case text:
		if v.s == "" {
			return v
		}
		size(len(v.s) + 16*len(v.trusted))
		var b builder
		for range n {
			b.add(v)
		}
		return b.text()
	case *list:
		if len(v.items) == 0 {
			return v
		}
		size(16 * len(v.items))
		out := &list{tuple: v.tuple}
		for range n {
			out.items = append(out.items, v.items...)
		}
		return out
	}
	st.fail("a %s can't be repeated", typeName(v))
	return nil
}

func (st *state) arithInt(op string, x, y int64) value {
	switch op {
	case "+":
		if s := x + y; (s > x) == (y > 0) {
			return s
		}
	case "-":
		if d := x - y; (d < x) == (y > 0) {
			return d
		}
	case "*":
		if x == 0 || y == 0 {
			return int64(0)
		}
		if p := x * y; p/y == x && !(x == -1 && y == math.MinInt64) && !(y == -1 && x == math.MinInt64) {
			return p
		}
	case "/":
		if y == 0 {
			st.fail("division by zero")
		}
		return float64(x) / float64(y)
	case "//", "%":
		if y == 0 {
			st.fail("division by zero")
		}
		if x == math.MinInt64 && y == -1 {
			break
		}
		q, r := x/y, x%y
		if r != 0 && (r < 0) != (y < 0) { // Python rounds down
			q, r = q-1, r+y
		}
		if op == "//" {
			return q
		}
		return r
	case "**":
		if y < 0 {
			return st.arithFloat(op, float64(x), float64(y))
		}
		return st.power(x, y)
	}
	st.overflow()
	return nil
}

func (st *state) power(x, y int64) value {
	if y > 64 && -1 <= x && x <= 1 {
		y = 2 + y%2 // the same result
	}
	p := int64(1)
	for ; y > 0; y-- {
		p = st.arithInt("*", p, x).(int64) // fails once it's too large
	}
	return p
}

func (st *state) arithFloat(op string, x, y float64) value {
	switch op {
	case "+":
		return x + y
	case "-":
		return x - y
	case "*":
		return x * y
	case "**":
		return math.Pow(x, y)
	}
	if y == 0 {
		st.fail("division by zero")
	}
	switch op {
	case "/":
		return x / y
	case "//":
		return math.Floor(x / y)
	}
	r := math.Mod(x, y)
	if r != 0 && (r < 0) != (y < 0) {
		r += y
	}
	return r
}

// percent is Python's old formatting with %s, %d, %i, %% and %r; width and precision aren't supported. unused says that
// values may be left over.
func (st *state) percent(format text, values []value, unused bool) text {
	var out builder
	used := 0
	for i := 0; i < len(format.s); {
		n := strings.IndexByte(format.s[i:], '%')
		if n < 0 {
			n = len(format.s) - i
		}
		st.alloc(n)
		out.add(format.slice(i, i+n))
		if i += n; i == len(format.s) {
			break
		}
		verb := byte(0)
		if i+1 < len(format.s) {
			verb = format.s[i+1]
		}
		if verb == '%' {
			out.add(format.slice(i, i+1))
			i += 2
			continue
		}
		if strings.IndexByte("sdir", verb) < 0 {
			st.fail("the format %%%c isn't supported", verb)
		}
		if used == len(values) {
			st.fail("a format has more places than values")
		}
		t := st.formatted(verb, values[used])
		used++
		st.alloc(len(t.s))
		out.add(t)
		i += 2
	}
	if used < len(values) && !unused {
		st.fail("a format has fewer places than values")
	}
	return out.text()
}

func (st *state) formatted(verb byte, v value) text {
	switch verb {
	case 's':
		return st.str(v)
	case 'r':
		var b strings.Builder
		st.repr(&b, v, 0)
		return foreign(b.String())
	}
	if i, ok := integer(v); ok {
		return foreign(strconv.FormatInt(i, 10))
	}
	f, ok := v.(float64)
	if !ok || math.Abs(f) > 1<<62 {
		st.fail("%%%c of a %s", verb, typeName(v))
	}
	return foreign(strconv.FormatInt(int64(f), 10))
}

package chat

import (
	"fmt"
	"strings"
	"time"
)

// globals are the functions that a template can call by name: transformers' and Jinja's, but for lipsum, cycler and
// joiner.
var globals map[string]*function

func init() {
	globals = map[string]*function{
		"range":           {"range", globalRange},
		"dict":            {"dict", globalDict},
		"namespace":       {"namespace", globalNamespace},
		"raise_exception": {"raise_exception", globalRaise},
		"strftime_now":    {"strftime_now", globalStrftime},
	}
}

func globalRange(st *state, a args) value {
	v := st.bind("range", a, "a", "b", "c")
	bound := func(i int) int64 {
		n, ok := integer(v[i])
		if !ok {
			st.fail("range of a %s", typeName(v[i]))
		}
		return n
	}
	from, to, step := int64(0), bound(0), int64(1)
	if !isAbsent(v[1]) {
		from, to = to, bound(1)
	}
	if !isAbsent(v[2]) {
		step = bound(2)
	}
	if step == 0 {
		st.fail("range by steps of 0")
	}
	out := &list{}
	for i := from; step > 0 && i < to || step < 0 && i > to; {
		if len(out.items) == maxRange {
			st.fail("a range of more than %d numbers", maxRange)
		}
		st.alloc(24)
		out.items = append(out.items, i)
		next := i + step
		if (next > i) != (step > 0) {
			break
		}
		i = next
	}
	return out
}

func globalDict(st *state, a args) value {
	d := newDict(len(a.named))
	for _, p := range a.pos {
		src, ok := p.(*dict)
		if !ok {
			st.fail("dict of a %s isn't supported", typeName(p))
		}
		st.alloc(96 * len(src.keys))
		for i, k := range src.keys {
			d.set(k, src.values[i])
		}
	}
	for i, name := range a.names {
		d.set(literal(name), a.named[i])
	}
	return d
}

func globalNamespace(st *state, a args) value {
	ns := &namespace{map[string]value{}}
	d := globalDict(st, a).(*dict)
	for i, k := range d.keys {
		name, ok := k.(text)
		if !ok {
			st.fail("a namespace has names, not a %s", typeName(k))
		}
		ns.attrs[name.s] = d.values[i]
	}
	return ns
}

func globalRaise(st *state, a args) value {
	v := st.bind("raise_exception", a, "message")
	const limit = 2000 // the text may hold a whole message
	s := []rune(st.str(v[0]).s)
	if len(s) > limit {
		s = append(s[:limit], '…')
	}
	panic(&TemplateError{Message: string(s), Line: st.line, Raised: true})
}

func globalStrftime(st *state, a args) value {
	f := st.textArg("strftime_now", st.bind("strftime_now", a, "format")[0], "").s
	st.alloc(16 * len(f))
	return foreign(st.strftime(f, st.now()))
}

// strftime formats in the C locale (strftime(3)).
func (st *state) strftime(format string, t time.Time) string {
	layouts := map[byte]string{
		'a': "Mon", 'A': "Monday", 'b': "Jan", 'h': "Jan", 'B': "January", 'd': "02", 'e': "_2", 'H': "15", 'I': "03", 'm': "01", 'M': "04",
		'p': "PM", 'S': "05", 'y': "06", 'Y': "2006", 'Z': "MST", 'z': "-0700", 'F': "2006-01-02", 'T': "15:04:05", 'D': "01/02/06",
		'R': "15:04", 'c': "Mon Jan _2 15:04:05 2006", 'x': "01/02/06", 'X': "15:04:05", 'j': "002",
	}
	var b strings.Builder
	for i := 0; i < len(format); i++ {
		if format[i] != '%' || i+1 == len(format) {
			b.WriteByte(format[i])
			continue
		}
		i++
		c, pad := format[i], true
		if c == '-' && i+1 < len(format) { // glibc: no padding
			i++
			c, pad = format[i], false
		}
		var s string
		switch layout, ok := layouts[c]; {
		case ok:
			s = t.Format(layout)
		case c == '%':
			s = "%"
		case c == 'n':
			s = "\n"
		case c == 't':
			s = "\t"
		case c == 'f':
			s = fmt.Sprintf("%06d", t.Nanosecond()/1000)
		case c == 'w':
			s = fmt.Sprint(int(t.Weekday()))
		case c == 'u':
			s = fmt.Sprint((int(t.Weekday())+6)%7 + 1)
		default:
			st.fail("strftime_now: %%%c isn't supported", c)
		}
		if !pad {
			if s = strings.TrimLeft(s, "0 "); s == "" {
				s = "0"
			}
		}
		b.WriteString(s)
	}
	return b.String()
}

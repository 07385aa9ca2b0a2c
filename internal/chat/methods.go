package chat

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// method returns the method of a value, nil if it has none of that name. Methods that change lists or dictionaries
// don't exist: transformers' sandbox forbids them too.
func method(x value, name string) value {
	switch x := x.(type) {
	case text:
		if m := textMethods[name]; m != nil {
			return &function{name, func(st *state, a args) value {
				st.steps(len(x.s) / 64)
				return m(st, x, a)
			}}
		}
	case *list:
		if m := listMethods[name]; m != nil {
			return &function{name, func(st *state, a args) value { return m(st, x, a) }}
		}
	case *dict:
		if m := dictMethods[name]; m != nil {
			return &function{name, func(st *state, a args) value { return m(st, x, a) }}
		}
	}
	return nil
}

type textMethod func(st *state, t text, a args) value

var textMethods map[string]textMethod

func init() {
	textMethods = map[string]textMethod{
		"strip":        stripMethod("strip", true, true),
		"lstrip":       stripMethod("lstrip", true, false),
		"rstrip":       stripMethod("rstrip", false, true),
		"upper":        foldMethod("upper", upper),
		"lower":        foldMethod("lower", lower),
		"casefold":     foldMethod("casefold", lower),
		"capitalize":   foldMethod("capitalize", capitalize),
		"title":        foldMethod("title", title),
		"startswith":   affixMethod("startswith", strings.HasPrefix),
		"endswith":     affixMethod("endswith", strings.HasSuffix),
		"removeprefix": removeprefix,
		"removesuffix": removesuffix,
		"split":        splitMethod("split", false),
		"rsplit":       splitMethod("rsplit", true),
		"splitlines":   splitlines,
		"partition":    partitionMethod("partition", strings.Index, false),
		"rpartition":   partitionMethod("rpartition", strings.LastIndex, true),
		"find":         findMethod("find", strings.Index, false),
		"rfind":        findMethod("rfind", strings.LastIndex, false),
		"index":        findMethod("index", strings.Index, true),
		"rindex":       findMethod("rindex", strings.LastIndex, true),
		"replace":      replaceMethod,
		"join":         joinMethod,
		"count":        countMethod,
		"format":       formatMethod,
		"ljust":        padMethod("ljust", false, true),
		"rjust":        padMethod("rjust", true, false),
		"center":       padMethod("center", true, true),
		"zfill":        zfill,
		"isdigit":      testMethod("isdigit", func(s string) bool { return all(s, unicode.IsDigit) }),
		"isdecimal":    testMethod("isdecimal", func(s string) bool { return all(s, unicode.IsDigit) }),
		"isnumeric":    testMethod("isnumeric", func(s string) bool { return all(s, unicode.IsNumber) }),
		"isalpha":      testMethod("isalpha", func(s string) bool { return all(s, unicode.IsLetter) }),
		"isalnum": testMethod("isalnum", func(s string) bool {
			return all(s, func(r rune) bool { return unicode.IsLetter(r) || unicode.IsNumber(r) })
		}),
		"isspace": testMethod("isspace", func(s string) bool { return all(s, isSpace) }),
		"isascii": testMethod("isascii", isASCII),
		"isupper": testMethod("isupper", func(s string) bool { return cased(s, unicode.IsUpper) }),
		"islower": testMethod("islower", func(s string) bool { return cased(s, unicode.IsLower) }),
	}
}

func stripMethod(name string, left, right bool) textMethod {
	return func(st *state, t text, a args) value {
		v := st.bind(name, a, "chars")
		if v[0] == nil || isAbsent(v[0]) {
			return strip(t, "", false, left, right)
		}
		return strip(t, st.textArg(name, v[0], "").s, true, left, right)
	}
}

func foldMethod(name string, f func(string) string) textMethod {
	return func(st *state, t text, a args) value {
		st.bind(name, a)
		return st.fold(t, f)
	}
}

func testMethod(name string, f func(string) bool) textMethod {
	return func(st *state, t text, a args) value {
		st.bind(name, a)
		return f(t.s)
	}
}

// affixMethod takes one string or a tuple of them, and Python's start and end.
func affixMethod(name string, f func(s, affix string) bool) textMethod {
	return func(st *state, t text, a args) value {
		v := st.bind(name, a, "affix", "start", "end")
		part, _, ok := st.within(name, t, v[1], v[2])
		if !ok {
			return false
		}
		if l, ok := v[0].(*list); ok && l.tuple {
			for _, affix := range l.items {
				if f(part.s, st.textArg(name, affix, "").s) {
					return true
				}
			}
			return false
		}
		if isAbsent(v[0]) {
			st.fail("%s needs an argument", name)
		}
		return f(part.s, st.textArg(name, v[0], "").s)
	}
}

// within returns t[start:end] and the character that it begins at; ok is false if start lies beyond the end.
func (st *state) within(what string, t text, start, end value) (part text, at int, ok bool) {
	n := t.len()
	from, to := st.intArg(what, start, 0), st.intArg(what, end, n)
	if from < 0 {
		from = max(from+n, 0)
	}
	if to < 0 {
		to += n
	}
	to = min(max(to, 0), n)
	if from > to {
		return text{}, 0, false
	}
	a := t.offset(from)
	rest := t.slice(a, len(t.s))
	return rest.slice(0, rest.offset(to-from)), from, true
}

func removeprefix(st *state, t text, a args) value {
	p := st.textArg("removeprefix", st.bind("removeprefix", a, "prefix")[0], "")
	if strings.HasPrefix(t.s, p.s) {
		return t.slice(len(p.s), len(t.s))
	}
	return t
}

func removesuffix(st *state, t text, a args) value {
	p := st.textArg("removesuffix", st.bind("removesuffix", a, "suffix")[0], "")
	if strings.HasSuffix(t.s, p.s) {
		return t.slice(0, len(t.s)-len(p.s))
	}
	return t
}

func splitMethod(name string, fromRight bool) textMethod {
	return func(st *state, t text, a args) value {
		v := st.bind(name, a, "sep", "maxsplit")
		limit := st.intArg(name, v[1], -1)
		if v[0] == nil || isAbsent(v[0]) {
			return &list{items: st.fields(t, limit, fromRight)}
		}
		return &list{items: st.split(t, st.textArg(name, v[0], ""), limit, fromRight)}
	}
}

func splitlines(st *state, t text, a args) value {
	v := st.bind("splitlines", a, "keepends")
	return &list{items: st.lines(t, boolArg(v[0], false))}
}

func partitionMethod(name string, find func(s, sep string) int, fromRight bool) textMethod {
	return func(st *state, t text, a args) value {
		sep := st.textArg(name, st.bind(name, a, "sep")[0], "")
		if sep.s == "" {
			st.fail("%s by an empty str", name)
		}
		i := find(t.s, sep.s)
		switch {
		case i >= 0:
			return &list{[]value{t.slice(0, i), t.slice(i, i+len(sep.s)), t.slice(i+len(sep.s), len(t.s))}, true}
		case fromRight:
			return &list{[]value{text{}, text{}, t}, true}
		}
		return &list{[]value{t, text{}, text{}}, true}
	}
}

func findMethod(name string, find func(s, sub string) int, must bool) textMethod {
	return func(st *state, t text, a args) value {
		v := st.bind(name, a, "sub", "start", "end")
		sub := st.textArg(name, v[0], "")
		if part, at, ok := st.within(name, t, v[1], v[2]); ok {
			if i := find(part.s, sub.s); i >= 0 {
				return int64(at + utf8.RuneCountInString(part.s[:i]))
			}
		}
		if must {
			st.fail("%s: the substring isn't there", name)
		}
		return int64(-1)
	}
}

func replaceMethod(st *state, t text, a args) value {
	v := st.bind("replace", a, "old", "new", "count")
	if isAbsent(v[0]) || isAbsent(v[1]) {
		st.fail("replace needs two arguments")
	}
	return st.replace(t, st.textArg("replace", v[0], ""), st.textArg("replace", v[1], ""), st.intArg("replace", v[2], -1))
}

func joinMethod(st *state, t text, a args) value {
	v := st.bind("join", a, "iterable")
	return st.joinText(t, st.items(v[0]), false)
}

func countMethod(st *state, t text, a args) value {
	v := st.bind("count", a, "sub", "start", "end")
	part, _, ok := st.within("count", t, v[1], v[2])
	if !ok {
		return int64(0)
	}
	return int64(strings.Count(part.s, st.textArg("count", v[0], "").s))
}

// padMethod fills t up to a width.
func padMethod(name string, left, right bool) textMethod {
	return func(st *state, t text, a args) value {
		v := st.bind(name, a, "width", "fillchar")
		width, fill := st.intArg(name, v[0], 0), st.textArg(name, v[1], " ")
		if fill.len() != 1 {
			st.fail("%s needs one character to fill with", name)
		}
		n := max(width-t.len(), 0)
		before := 0
		switch {
		case left && right:
			before = n/2 + n&width&1 // as CPython divides an odd rest
		case left:
			before = n
		}
		pad := func(n int) value { return st.repeat(fill, int64(n)) }
		return st.join(st.join(pad(before), t), pad(n-before))
	}
}

// zfill puts zeros between sign and digits.
func zfill(st *state, t text, a args) value {
	n := max(st.intArg("zfill", st.bind("zfill", a, "width")[0], 0)-t.len(), 0)
	sign := 0
	if strings.HasPrefix(t.s, "-") || strings.HasPrefix(t.s, "+") {
		sign = 1
	}
	zeros := st.repeat(literal("0"), int64(n))
	return st.join(st.join(t.slice(0, sign), zeros), t.slice(sign, len(t.s)))
}

// formatMethod is str.format with {}, {0} and {name}; attributes, conversions and format specifications aren't
// supported.
func formatMethod(st *state, t text, a args) value {
	var out builder
	next := 0
	for i := 0; i < len(t.s); {
		n := strings.IndexAny(t.s[i:], "{}")
		if n < 0 {
			n = len(t.s) - i
		}
		st.alloc(n)
		out.add(t.slice(i, i+n))
		if i += n; i == len(t.s) {
			break
		}
		if strings.HasPrefix(t.s[i:], "{{") || strings.HasPrefix(t.s[i:], "}}") {
			out.add(t.slice(i, i+1))
			i += 2
			continue
		}
		end := strings.IndexByte(t.s[i:], '}')
		if t.s[i] == '}' || end < 0 {
			st.fail("format: a single brace")
		}
		v := st.str(st.formatField(t.s[i+1:i+end], a, &next))
		st.alloc(len(v.s))
		out.add(v)
		i += end + 1
	}
	return out.text()
}

func (st *state) formatField(field string, a args, next *int) value {
	if field == "" {
		field = itoa(*next)
		*next++
	}
	for i, name := range a.names {
		if name == field {
			return a.named[i]
		}
	}
	for i, v := range a.pos {
		if itoa(i) == field {
			return v
		}
	}
	st.fail("format: the field %s isn't given or isn't supported", quote(field))
	return nil
}

type listMethod func(st *state, l *list, a args) value

var listMethods = map[string]listMethod{
	"index": func(st *state, l *list, a args) value {
		v := st.bind("index", a, "value")
		for i, x := range l.items {
			if st.equal(x, v[0], 0) {
				return int64(i)
			}
		}
		st.fail("index: the value isn't in the list")
		return nil
	},
	"count": func(st *state, l *list, a args) value {
		v := st.bind("count", a, "value")
		n := int64(0)
		for _, x := range l.items {
			if st.equal(x, v[0], 0) {
				n++
			}
		}
		return n
	},
	"copy": func(st *state, l *list, a args) value {
		st.bind("copy", a)
		return l
	},
}

type dictMethod func(st *state, d *dict, a args) value

var dictMethods = map[string]dictMethod{
	"get": func(st *state, d *dict, a args) value {
		v := st.bind("get", a, "key", "default")
		if x, ok := d.get(v[0]); ok {
			return x
		}
		if isAbsent(v[1]) {
			return nil
		}
		return v[1]
	},
	"keys": func(st *state, d *dict, a args) value {
		st.bind("keys", a)
		return &list{items: d.keys}
	},
	"values": func(st *state, d *dict, a args) value {
		st.bind("values", a)
		return &list{items: d.values}
	},
	"items": func(st *state, d *dict, a args) value {
		st.bind("items", a)
		return &list{items: st.pairs(d)}
	},
	"copy": func(st *state, d *dict, a args) value {
		st.bind("copy", a)
		return d
	},
}

// pairs returns the (key, value) tuples of d.
func (st *state) pairs(d *dict) []value {
	st.alloc(64 * len(d.keys))
	out := make([]value, len(d.keys))
	for i, k := range d.keys {
		out[i] = &list{[]value{k, d.values[i]}, true}
	}
	return out
}

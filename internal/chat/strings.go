package chat

import (
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/text/cases"
	"golang.org/x/text/language"
)

// Python's operations on strings. Each says nothing of trust that isn't certain.

// strip removes characters from the sides: those in chars, white space without chars.
func strip(t text, chars string, hasChars, left, right bool) text {
	cut := isSpace
	if hasChars {
		cut = func(r rune) bool { return strings.ContainsRune(chars, r) }
	}
	start, end := 0, len(t.s)
	if left {
		start = len(t.s) - len(strings.TrimLeftFunc(t.s, cut))
	}
	if right {
		end = max(start, len(strings.TrimRightFunc(t.s, cut)))
	}
	return t.slice(start, end)
}

// fold applies a change of case.
func (st *state) fold(t text, f func(string) string) text {
	st.alloc(3 * len(t.s))
	out := f(t.s)
	if t.whole() || len(t.trusted) == 0 {
		return t.like(out)
	}
	// Where the parts change as the whole does, each keeps its trust.
	var b builder
	for _, s := range t.segments() {
		p := foreign(f(s.Text))
		if s.Trusted {
			p = literal(p.s)
		}
		b.add(p)
	}
	if parts := b.text(); parts.s == out {
		return parts
	}
	return foreign(out)
}

func upper(s string) string {
	if isASCII(s) {
		return strings.ToUpper(s)
	}
	return cases.Upper(language.Und).String(s)
}

func lower(s string) string {
	if isASCII(s) {
		return strings.ToLower(s)
	}
	return cases.Lower(language.Und).String(s)
}

func isASCII(s string) bool {
	for i := range len(s) {
		if s[i] >= utf8.RuneSelf {
			return false
		}
	}
	return true
}

// capitalize makes the first character upper case and the others lower case.
func capitalize(s string) string {
	_, n := utf8.DecodeRuneInString(s)
	return upper(s[:n]) + lower(s[n:])
}

// title is Python's str.title: a letter after one that has no case is upper case.
func title(s string) string {
	var b strings.Builder
	inWord := false
	for _, r := range s {
		if inWord {
			b.WriteRune(unicode.ToLower(r))
		} else {
			b.WriteRune(unicode.ToTitle(r))
		}
		inWord = unicode.IsUpper(r) || unicode.IsLower(r) || unicode.IsTitle(r)
	}
	return b.String()
}

// titleWords is Jinja's filter title: words end at white space, hyphens and opening brackets.
func titleWords(s string) string {
	ends := func(r rune) bool { return isSpace(r) || strings.ContainsRune("-({[<", r) }
	var b strings.Builder
	for s != "" {
		n := strings.IndexFunc(s, ends)
		if n < 0 {
			n = len(s)
		}
		b.WriteString(capitalize(s[:n]))
		m := len(s) - n - len(strings.TrimLeftFunc(s[n:], ends))
		b.WriteString(s[n : n+m])
		s = s[n+m:]
	}
	return b.String()
}

// replace is str.replace; count < 0 means all.
func (st *state) replace(t, old, new text, count int) text {
	n := strings.Count(t.s, old.s)
	if count >= 0 {
		n = min(n, count)
	}
	st.alloc(len(t.s) + n*(len(new.s)+16*len(new.trusted)+16))
	var b builder
	at := 0
	for range n {
		i := at
		if old.s != "" {
			i += strings.Index(t.s[at:], old.s)
		}
		b.add(t.slice(at, i))
		b.add(new)
		at = i + len(old.s)
		if old.s == "" && at < len(t.s) { // between all characters
			_, m := utf8.DecodeRuneInString(t.s[at:])
			b.add(t.slice(at, at+m))
			at += m
		}
	}
	b.add(t.slice(at, len(t.s)))
	return b.text()
}

// split is str.split with a separator, or rsplit; limit < 0 means none.
func (st *state) split(t, sep text, limit int, fromRight bool) []value {
	if sep.s == "" {
		st.fail("split by an empty str")
	}
	st.alloc(len(t.s) + 48*(1+strings.Count(t.s, sep.s)))
	var out []value
	if !fromRight {
		at := 0
		for ; limit != 0; limit-- {
			n := strings.Index(t.s[at:], sep.s)
			if n < 0 {
				break
			}
			out = append(out, t.slice(at, at+n))
			at += n + len(sep.s)
		}
		return append(out, t.slice(at, len(t.s)))
	}
	end := len(t.s)
	for ; limit != 0; limit-- {
		n := strings.LastIndex(t.s[:end], sep.s)
		if n < 0 {
			break
		}
		out = append(out, t.slice(n+len(sep.s), end))
		end = n
	}
	return reversed(append(out, t.slice(0, end)))
}

// fields is str.split without a separator, or rsplit.
func (st *state) fields(t text, limit int, fromRight bool) []value {
	st.alloc(25 * len(t.s))
	var out []value
	if fromRight {
		end := len(strings.TrimRightFunc(t.s, isSpace))
		for ; end > 0; limit-- {
			start := strings.LastIndexFunc(t.s[:end], isSpace)
			if limit == 0 {
				start = -1
			}
			_, n := utf8.DecodeRuneInString(t.s[max(start, 0):])
			if start < 0 {
				n = 0
				start = 0
			}
			out = append(out, t.slice(start+n, end))
			if limit == 0 {
				break
			}
			end = len(strings.TrimRightFunc(t.s[:start], isSpace))
		}
		return reversed(out)
	}
	at := len(t.s) - len(strings.TrimLeftFunc(t.s, isSpace))
	for ; at < len(t.s); limit-- {
		n := strings.IndexFunc(t.s[at:], isSpace)
		if n < 0 || limit == 0 {
			out = append(out, t.slice(at, len(t.s)))
			break
		}
		out = append(out, t.slice(at, at+n))
		at += n
		at += len(t.s[at:]) - len(strings.TrimLeftFunc(t.s[at:], isSpace))
	}
	return out
}

func reversed(v []value) []value {
	out := make([]value, len(v))
	for i := range v {
		out[len(v)-1-i] = v[i]
	}
	return out
}

// lines is str.splitlines.
func (st *state) lines(t text, keepEnds bool) []value {
	st.alloc(25 * len(t.s))
	var out []value
	start := 0
	for i := 0; i < len(t.s); {
		r, n := utf8.DecodeRuneInString(t.s[i:])
		end := i
		i += n
		switch r {
		case '\r':
			if i < len(t.s) && t.s[i] == '\n' {
				i++
			}
		case '\n', '\v', '\f', 0x1c, 0x1d, 0x1e, 0x85, 0x2028, 0x2029:
		default:
			continue
		}
		if keepEnds {
			end = i
		}
		out = append(out, t.slice(start, end))
		start = i
	}
	if start < len(t.s) {
		out = append(out, t.slice(start, len(t.s)))
	}
	return out
}

// joinText joins the strings of items with sep between.
func (st *state) joinText(sep text, items []value, convert bool) text {
	var b builder
	for i, v := range items {
		t, ok := v.(text)
		if !ok {
			if !convert {
				st.fail("join of a %s; only str can be joined", typeName(v))
			}
			t = st.str(v)
		}
		st.alloc(len(sep.s) + len(t.s) + 16*(1+len(sep.trusted)+len(t.trusted)))
		if i > 0 {
			b.add(sep)
		}
		b.add(t)
	}
	return b.text()
}

// all reports whether s isn't empty and f holds for all its characters.
func all(s string, f func(rune) bool) bool {
	for _, r := range s {
		if !f(r) {
			return false
		}
	}
	return s != ""
}

// cased reports whether s has letters with case, and all of them pass f.
func cased(s string, f func(rune) bool) bool {
	some := false
	for _, r := range s {
		if unicode.IsUpper(r) || unicode.IsLower(r) || unicode.IsTitle(r) {
			if !f(r) {
				return false
			}
			some = true
		}
	}
	return some
}

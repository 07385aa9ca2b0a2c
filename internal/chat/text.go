package chat

import (
	"strings"
	"unicode/utf8"
)

// text is a string that knows which of its bytes come from the template's own source: trusted are ascending spans that
// don't touch. Operations keep the knowledge where it is certain and drop it where it isn't, so what is trusted is
// always the template's.
type text struct {
	s       string
	trusted []span
}

// span is s[start:end].
type span struct{ start, end int }

// literal is text from a template's source.
func literal(s string) text {
	if s == "" {
		return text{}
	}
	return text{s, []span{{0, len(s)}}}
}

// foreign is text from anywhere else.
func foreign(s string) text { return text{s: s} }

// whole reports whether all of t is trusted.
func (t text) whole() bool {
	return t.s == "" || len(t.trusted) == 1 && t.trusted[0] == span{0, len(t.s)}
}

// slice returns t[start:end], by bytes.
func (t text) slice(start, end int) text {
	out := text{s: t.s[start:end]}
	for _, p := range t.trusted {
		if a, b := max(p.start, start), min(p.end, end); a < b {
			out.trusted = append(out.trusted, span{a - start, b - start})
		}
	}
	return out
}

// like returns a changed form of t: trusted if all of t is.
func (t text) like(s string) text {
	if t.whole() {
		return literal(s)
	}
	return foreign(s)
}

// len is the number of characters, which is what Python counts.
func (t text) len() int { return utf8.RuneCountInString(t.s) }

// chars returns the characters.
func (t text) chars() []value {
	out := make([]value, 0, len(t.s))
	for i := 0; i < len(t.s); {
		_, n := utf8.DecodeRuneInString(t.s[i:])
		if t.trusted == nil {
			out = append(out, text{s: t.s[i : i+n]})
		} else {
			out = append(out, t.slice(i, i+n))
		}
		i += n
	}
	return out
}

// offset returns the byte offset of character i, 0 ≤ i ≤ t.len().
func (t text) offset(i int) int {
	at := 0
	for ; i > 0; i-- {
		_, n := utf8.DecodeRuneInString(t.s[at:])
		at += n
	}
	return at
}

// builder joins text.
type builder struct {
	b       strings.Builder
	trusted []span
}

func (b *builder) add(t text) {
	start := b.b.Len()
	b.b.WriteString(t.s)
	for _, p := range t.trusted {
		p.start += start
		p.end += start
		if last := len(b.trusted) - 1; last >= 0 && b.trusted[last].end == p.start {
			b.trusted[last].end = p.end
		} else {
			b.trusted = append(b.trusted, p)
		}
	}
}

func (b *builder) text() text { return text{b.b.String(), b.trusted} }

// segments cuts t where trust changes. Empty text has none.
func (t text) segments() []Segment {
	var out []Segment
	at := 0
	for _, p := range t.trusted {
		if at < p.start {
			out = append(out, Segment{t.s[at:p.start], false})
		}
		out = append(out, Segment{t.s[p.start:p.end], true})
		at = p.end
	}
	if at < len(t.s) {
		out = append(out, Segment{t.s[at:], false})
	}
	return out
}

package tokenizer

import (
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/text/unicode/norm"
)

// joiner is what x/text/unicode/norm puts into runs of more than 30 combining marks (UAX #15, stream-safe text).
// Hugging Face doesn't, and it would add a character that nobody wrote.
const joiner = "\u034f"

// recent lists the combining marks that came after Unicode 9. The normaliser of Hugging Face's tokenizers knows no
// combining class of theirs and takes them for letters.
var recent = &unicode.RangeTable{
	R16: []unicode.Range16{
		{0x07fd, 0x07fd, 1}, {0x0898, 0x089f, 1}, {0x08ca, 0x08d3, 1}, {0x09fe, 0x09fe, 1}, {0x0c3c, 0x0c3c, 1}, {0x0d3b, 0x0d3c, 1},
		{0x0eba, 0x0eba, 1}, {0x1715, 0x1715, 1}, {0x1abf, 0x1ace, 1}, {0x1df6, 0x1dfa, 1}, {0xa82c, 0xa82c, 1},
	},
	R32: []unicode.Range32{
		{0x10d24, 0x10d27, 1}, {0x10eab, 0x10eac, 1}, {0x10efd, 0x10eff, 1}, {0x10f46, 0x10f50, 1}, {0x10f82, 0x10f85, 1},
		{0x11070, 0x11070, 1}, {0x1133b, 0x1133b, 1}, {0x1145e, 0x1145e, 1}, {0x11839, 0x1183a, 1}, {0x11938, 0x11938, 1},
		{0x1193d, 0x1193e, 1}, {0x11943, 0x11943, 1}, {0x119e0, 0x119e0, 1}, {0x11a34, 0x11a34, 1}, {0x11a47, 0x11a47, 1},
		{0x11a99, 0x11a99, 1}, {0x11d42, 0x11d42, 1}, {0x11d44, 0x11d45, 1}, {0x11d97, 0x11d97, 1}, {0x11f41, 0x11f42, 1},
		{0x16ff0, 0x16ff1, 1}, {0x1e08f, 0x1e08f, 1}, {0x1e130, 0x1e136, 1}, {0x1e2ae, 0x1e2ae, 1}, {0x1e2ec, 0x1e2ef, 1},
		{0x1e4ec, 0x1e4ef, 1},
	},
}

// diveO is the one character after Unicode 9 that two others compose to.
const diveO = 0x11938

func isRecent(r rune) bool { return r >= 0x7fd && unicode.Is(recent, r) }

// toC returns s in Unicode's normal form C. Invalid bytes stay as they are.
func toC(s string) string {
	start := norm.NFC.QuickSpanString(s)
	if start == len(s) {
		return s
	}
	if strings.IndexFunc(s, isRecent) >= 0 {
		return compose(s)
	}
	out := norm.NFC.String(s)
	if strings.Count(out, joiner) == strings.Count(s, joiner) {
		return out
	}
	return compose(s)
}

// toCSpans is toC for text with ascending spans; it returns where these lie in the result. A character counts as inside
// a span only if all that it was made from does.
func toCSpans(s string, spans []span) (string, []span) {
	if norm.NFC.QuickSpanString(s) == len(s) {
		return s, spans
	}
	if len(spans) == 0 || len(spans) == 1 && spans[0] == (span{0, len(s)}) {
		c := toC(s)
		if len(spans) == 0 {
			return c, nil
		}
		return c, []span{{0, len(c)}}
	}
	var out strings.Builder
	var moved []span
	open := false // the last of moved came from spans[0]
	for i := 0; i < len(s); {
		n := boundary(s[i:])
		for len(spans) > 0 && spans[0].end <= i {
			spans, open = spans[1:], false
		}
		start := out.Len()
		out.WriteString(toC(s[i : i+n]))
		i += n
		if len(spans) == 0 || i-n < spans[0].start || spans[0].end < i {
			continue
		}
		if open {
			moved[len(moved)-1].end = out.Len()
		} else {
			moved, open = append(moved, span{start, out.Len()}), true
		}
	}
	return out.String(), moved
}

// boundary returns the length of the first stretch of s that normalises independently of the rest; an invalid byte is
// one.
func boundary(s string) int {
	r, n := utf8.DecodeRuneInString(s)
	if r == utf8.RuneError && n == 1 {
		return 1
	}
	for n < len(s) && !norm.NFC.PropertiesString(s[n:]).BoundaryBefore() {
		_, m := utf8.DecodeRuneInString(s[n:])
		n += m
	}
	return n
}

// compose is form C without a limit on combining marks and as of Unicode 9 (UAX #15: decompose, order by combining
// class, compose).
func compose(s string) string {
	var out strings.Builder
	out.Grow(len(s))
	for i := 0; i < len(s); {
		n := boundary(s[i:])
		if part := s[i : i+n]; n > 1 {
			composeRun(&out, part)
		} else {
			out.WriteString(part)
		}
		i += n
	}
	return out.String()
}

type mark struct {
	r   rune
	ccc uint8
}

// composeRun writes one independent stretch in form C.
func composeRun(out *strings.Builder, s string) {
	var marks []mark
	for _, r := range s {
		if isRecent(r) {
			marks = append(marks, mark{r, 0})
			continue
		}
		for _, d := range norm.NFD.String(string(r)) {
			marks = append(marks, mark{d, norm.NFD.PropertiesString(string(d)).CCC()})
		}
	}
	for i := 0; i < len(marks); {
		j := i
		for j < len(marks) && marks[j].ccc != 0 {
			j++
		}
		orderMarks(marks[i:j])
		i = j + 1
	}
	starter := -1
	last := uint8(0) // combining class of the last mark kept after the starter
	kept := marks[:0]
	for _, m := range marks {
		if starter >= 0 && (last < m.ccc || last == 0 && len(kept) == starter+1) {
			if c, ok := composite(kept[starter].r, m.r); ok {
				kept[starter].r = c
				continue
			}
		}
		if m.ccc == 0 {
			starter, last = len(kept), 0
		} else {
			last = m.ccc
		}
		kept = append(kept, m)
	}
	for _, m := range kept {
		out.WriteRune(m.r)
	}
}

// orderMarks sorts by combining class and keeps the order of equals, in linear time.
func orderMarks(marks []mark) {
	if len(marks) < 2 {
		return
	}
	var start [257]int
	for _, m := range marks {
		start[int(m.ccc)+1]++
	}
	for i := 1; i < len(start); i++ {
		start[i] += start[i-1]
	}
	sorted := make([]mark, len(marks))
	for _, m := range marks {
		sorted[start[m.ccc]] = m
		start[m.ccc]++
	}
	copy(marks, sorted)
}

// composite returns the character that a and b compose to.
func composite(a, b rune) (rune, bool) {
	c := norm.NFC.String(string(a) + string(b))
	r, n := utf8.DecodeRuneInString(c)
	return r, n == len(c) && r != diveO
}

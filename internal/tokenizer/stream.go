package tokenizer

import "unicode/utf8"

// Stream turns tokens into text as they come. A character can be spread over several tokens, so the bytes of an
// incomplete one (at most 3) are held until it is whole. Bytes that can't become a character are replaced by U+FFFD,
// one for each maximal part of a character (Unicode chapter 3, "U+FFFD Substitution of Maximal Subparts"; what Python
// and Rust do too): the concatenated text doesn't depend on how the bytes were spread over tokens. A Stream belongs to
// one goroutine.
type Stream struct {
	t    *Tokenizer
	held []byte
}

// Stream returns a decoder for one answer.
func (t *Tokenizer) Stream() *Stream { return &Stream{t: t} }

// Push takes one token and returns the text that it completes, "" if none.
func (s *Stream) Push(id int32) string {
	s.held = append(s.held, s.t.TokenBytes(id)...)
	text, rest := appendText(nil, s.held, false)
	s.held = append(s.held[:0], rest...)
	return string(text)
}

// Flush ends the answer: what is held becomes one U+FFFD.
func (s *Stream) Flush() string {
	text, _ := appendText(nil, s.held, true)
	s.held = s.held[:0]
	return string(text)
}

// Held returns how many bytes wait for the rest of their character.
func (s *Stream) Held() int { return len(s.held) }

// ToText is Decode with invalid bytes replaced as Stream does.
func (t *Tokenizer) ToText(ids []int32) string {
	text, _ := appendText(nil, t.Decode(ids), true)
	return string(text)
}

// appendText appends b as valid UTF-8. Unless b is final, the bytes of an incomplete last character are returned
// instead.
func appendText(dst, b []byte, final bool) (text, rest []byte) {
	for len(b) > 0 {
		r, n := utf8.DecodeRune(b)
		if r == utf8.RuneError && n <= 1 {
			var more bool
			n, more = subpart(b)
			if more && !final {
				return dst, b
			}
		}
		dst = utf8.AppendRune(dst, r)
		b = b[n:]
	}
	return dst, nil
}

// subpart returns the length of the longest start of b that could begin a character, at least 1, and whether more bytes
// could complete it. b doesn't begin with a valid character.
func subpart(b []byte) (n int, more bool) {
	lo, hi := byte(0x80), byte(0xbf) // what may follow (Unicode table 3-7)
	var need int
	switch c := b[0]; {
	case 0xc2 <= c && c <= 0xdf:
		need = 2
	case 0xe0 <= c && c <= 0xef:
		need = 3
		if c == 0xe0 {
			lo = 0xa0
		} else if c == 0xed {
			hi = 0x9f
		}
	case 0xf0 <= c && c <= 0xf4:
		need = 4
		if c == 0xf0 {
			lo = 0x90
		} else if c == 0xf4 {
			hi = 0x8f
		}
	default:
		return 1, false
	}
	for n = 1; n < need; n++ {
		if n == len(b) {
			return n, true
		}
		if b[n] < lo || hi < b[n] {
			return n, false
		}
		lo, hi = 0x80, 0xbf
	}
	return n, false
}

package openai

import (
	"math"
	"strconv"
	"unicode/utf8"
)

const hexDigits = "0123456789abcdef"

// appendString appends s as a JSON string with its quotes.
func appendString(dst []byte, s string) []byte {
	dst = append(dst, '"')
	dst = appendEscaped(dst, s)
	return append(dst, '"')
}

// appendEscaped appends s as the inside of a JSON string. Beyond what RFC 8259 asks for it escapes DEL, NEL, LS and PS: clients
// are seen that split event streams where Unicode breaks lines, and would tear an event there. Invalid UTF-8 becomes U+FFFD.
func appendEscaped(dst []byte, s string) []byte {
	from := 0
	for i := 0; i < len(s); {
		b := s[i]
		if b < utf8.RuneSelf {
			if b >= ' ' && b != '"' && b != '\\' && b != 0x7f {
				i++
				continue
			}
			dst = append(dst, s[from:i]...)
			dst = appendControl(dst, b)
			i++
			from = i
			continue
		}
		r, size := utf8.DecodeRuneInString(s[i:])
		var esc string
		switch {
		case r == utf8.RuneError && size == 1:
			esc = "\ufffd"
		case r == '\u0085':
			esc = `\u0085`
		case r == '\u2028':
			esc = `\u2028`
		case r == '\u2029':
			esc = `\u2029`
		default:
			i += size
			continue
		}
		dst = append(dst, s[from:i]...)
		dst = append(dst, esc...)
		i += size
		from = i
	}
	return append(dst, s[from:]...)
}

func appendControl(dst []byte, b byte) []byte {
	switch b {
	case '"', '\\':
		return append(dst, '\\', b)
	case '\n':
		return append(dst, '\\', 'n')
	case '\r':
		return append(dst, '\\', 'r')
	case '\t':
		return append(dst, '\\', 't')
	}
	return append(dst, '\\', 'u', '0', '0', hexDigits[b>>4], hexDigits[b&15])
}

// appendOptional appends s, or null when it is empty.
func appendOptional(dst []byte, s string) []byte {
	if s == "" {
		return append(dst, "null"...)
	}
	return appendString(dst, s)
}

func appendInt(dst []byte, n int) []byte { return strconv.AppendInt(dst, int64(n), 10) }

// minLogprob stands for log-probabilities that JSON can't hold: minus infinity and NaN are no JSON numbers.
const minLogprob = -9999

func appendLogprob(dst []byte, v float32) []byte {
	if math.IsNaN(float64(v)) || v < minLogprob {
		v = minLogprob
	}
	if v > 0 {
		v = 0
	}
	return strconv.AppendFloat(dst, float64(v), 'g', -1, 32)
}

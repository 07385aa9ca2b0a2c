package openai

import (
	"errors"
	"unicode/utf16"
	"unicode/utf8"
)

var (
	errJSON      = errors.New("not valid JSON")
	errJSONDepth = errors.New("JSON nested deeper than 512 levels")
)

const maxJSONDepth = 512

// jsonCursor walks one JSON text (RFC 8259) without building values. A client under load decodes a chunk for every token, and a
// decoder for foreign streams must be strict about the grammar and lenient about types, which encoding/json is not. After the
// first error every method does nothing and reports false.
type jsonCursor struct {
	b           []byte
	i           int
	depth       int
	err         error
	invalidUTF8 bool
	scratch     []byte
}

func (c *jsonCursor) fail(err error) {
	if c.err == nil {
		c.err = err
	}
	c.i = len(c.b)
}

// peek skips white space and returns the next byte, 0 at the end.
func (c *jsonCursor) peek() byte {
	for c.i < len(c.b) {
		switch ch := c.b[c.i]; ch {
		case ' ', '\t', '\n', '\r':
			c.i++
		default:
			return ch
		}
	}
	return 0
}

// end fails unless only white space is left.
func (c *jsonCursor) end() {
	if c.err == nil && (c.peek() != 0 || c.i != len(c.b)) {
		c.fail(errJSON)
	}
}

// open enters an object or array when the next value is one; else it skips the value and reports false.
func (c *jsonCursor) open(bracket byte) bool {
	if c.peek() != bracket || c.err != nil {
		c.skip()
		return false
	}
	c.i++
	if c.depth++; c.depth > maxJSONDepth {
		c.fail(errJSONDepth)
		return false
	}
	return true
}

// key steps to the next member of an object and returns its name, valid until the next call on c; false after the last.
func (c *jsonCursor) key(first *bool) ([]byte, bool) {
	if !c.step('}', first) {
		return nil, false
	}
	if c.peek() != '"' {
		c.fail(errJSON)
		return nil, false
	}
	c.scratch = c.text(c.scratch[:0])
	if c.peek() != ':' {
		c.fail(errJSON)
		return nil, false
	}
	c.i++
	return c.scratch, c.err == nil
}

// element steps to the next element of an array; false after the last.
func (c *jsonCursor) element(first *bool) bool { return c.step(']', first) }

func (c *jsonCursor) step(closing byte, first *bool) bool {
	if c.err != nil {
		return false
	}
	switch ch := c.peek(); {
	case ch == closing:
		c.i++
		c.depth--
		return false
	case *first:
		*first = false
		return true
	case ch == ',':
		c.i++
		return true
	default:
		c.fail(errJSON)
		return false
	}
}

// skip passes over one value of any type.
func (c *jsonCursor) skip() {
	if c.err != nil {
		return
	}
	switch ch := c.peek(); {
	case ch == '{':
		if !c.open('{') {
			return
		}
		for first := true; ; {
			if _, ok := c.key(&first); !ok {
				return
			}
			c.skip()
		}
	case ch == '[':
		if !c.open('[') {
			return
		}
		for first := true; c.element(&first); {
			c.skip()
		}
	case ch == '"':
		c.scratch = c.text(c.scratch[:0])
	case ch == 't':
		c.word("true")
	case ch == 'f':
		c.word("false")
	case ch == 'n':
		c.word("null")
	default:
		c.number()
	}
}

func (c *jsonCursor) word(w string) {
	if len(c.b)-c.i < len(w) || string(c.b[c.i:c.i+len(w)]) != w {
		c.fail(errJSON)
		return
	}
	c.i += len(w)
}

// str appends a string's text to dst; for a value of another type it skips and reports false.
func (c *jsonCursor) str(dst []byte) ([]byte, bool) {
	if c.peek() != '"' {
		c.skip()
		return dst, false
	}
	dst = c.text(dst)
	return dst, c.err == nil
}

// count reads a number that is a whole, not negative and below 2^53; for any other value it skips and reports false.
func (c *jsonCursor) count() (int64, bool) {
	ch := c.peek()
	if ch != '-' && (ch < '0' || ch > '9') {
		c.skip()
		return 0, false
	}
	digits, whole := c.number()
	if c.err != nil || !whole || digits[0] == '-' || len(digits) > 15 {
		return 0, false
	}
	var n int64
	for _, d := range digits {
		n = n*10 + int64(d-'0')
	}
	return n, true
}

// number passes over a number and returns its integer part, and whether that is all of its value (8.0 is whole, 8.5 and 8e0
// are not).
func (c *jsonCursor) number() (integer []byte, whole bool) {
	start := c.i
	at := func() byte {
		if c.i < len(c.b) {
			return c.b[c.i]
		}
		return 0
	}
	digits := func() bool {
		from := c.i
		for ch := at(); ch >= '0' && ch <= '9'; ch = at() {
			c.i++
		}
		return c.i > from
	}
	if at() == '-' {
		c.i++
	}
	if at() == '0' {
		c.i++
	} else if !digits() {
		c.fail(errJSON)
		return nil, false
	}
	integer, whole = c.b[start:c.i], true
	if at() == '.' {
		c.i++
		from := c.i
		if !digits() {
			c.fail(errJSON)
			return nil, false
		}
		for _, d := range c.b[from:c.i] {
			whole = whole && d == '0'
		}
	}
	if ch := at(); ch == 'e' || ch == 'E' {
		whole = false
		c.i++
		if ch := at(); ch == '+' || ch == '-' {
			c.i++
		}
		if !digits() {
			c.fail(errJSON)
			return nil, false
		}
	}
	return integer, whole
}

// text appends the string that begins at the cursor's quote. Invalid UTF-8 and lone surrogates become U+FFFD.
func (c *jsonCursor) text(dst []byte) []byte {
	c.i++
	for c.i < len(c.b) {
		from := c.i
		for c.i < len(c.b) && c.b[c.i] >= ' ' && c.b[c.i] != '"' && c.b[c.i] != '\\' && c.b[c.i] < utf8.RuneSelf {
			c.i++
		}
		dst = append(dst, c.b[from:c.i]...)
		if c.i == len(c.b) {
			break
		}
		switch ch := c.b[c.i]; {
		case ch == '"':
			c.i++
			return dst
		case ch == '\\':
			dst = c.escape(dst)
			if c.err != nil {
				return dst
			}
		case ch < ' ':
			c.fail(errJSON)
			return dst
		default:
			r, size := utf8.DecodeRune(c.b[c.i:])
			if r == utf8.RuneError && size == 1 {
				c.invalidUTF8 = true
			}
			dst = utf8.AppendRune(dst, r)
			c.i += size
		}
	}
	c.fail(errJSON)
	return dst
}

func (c *jsonCursor) escape(dst []byte) []byte {
	if c.i+1 >= len(c.b) {
		c.fail(errJSON)
		return dst
	}
	ch := c.b[c.i+1]
	c.i += 2
	switch ch {
	case '"', '\\', '/':
		return append(dst, ch)
	case 'b':
		return append(dst, '\b')
	case 'f':
		return append(dst, '\f')
	case 'n':
		return append(dst, '\n')
	case 'r':
		return append(dst, '\r')
	case 't':
		return append(dst, '\t')
	case 'u':
		r, ok := c.hex4()
		if !ok {
			c.fail(errJSON)
			return dst
		}
		if utf16.IsSurrogate(r) {
			back := c.i
			low := rune(utf8.RuneError)
			if c.i+1 < len(c.b) && c.b[c.i] == '\\' && c.b[c.i+1] == 'u' {
				c.i += 2
				if low, ok = c.hex4(); !ok {
					c.fail(errJSON)
					return dst
				}
			}
			if r = utf16.DecodeRune(r, low); r == utf8.RuneError {
				c.invalidUTF8 = true
				c.i = back
			}
		}
		return utf8.AppendRune(dst, r)
	}
	c.fail(errJSON)
	return dst
}

func (c *jsonCursor) hex4() (rune, bool) {
	if len(c.b)-c.i < 4 {
		return 0, false
	}
	var r rune
	for _, ch := range c.b[c.i : c.i+4] {
		switch {
		case ch >= '0' && ch <= '9':
			ch -= '0'
		case ch >= 'a' && ch <= 'f':
			ch -= 'a' - 10
		case ch >= 'A' && ch <= 'F':
			ch -= 'A' - 10
		default:
			return 0, false
		}
		r = r<<4 | rune(ch)
	}
	c.i += 4
	return r, true
}

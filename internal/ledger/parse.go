package ledger

import (
	"bytes"
	"errors"
	"fmt"
	"reflect"
	"unicode/utf16"
	"unicode/utf8"
)

// Unmarshal reads one JSON value into v, a pointer, strictly: every member of v's type must be there once and no other,
// integers have no fraction, exponent, sign of zero or leading zero and stay within 2^53-1, strings are valid UTF-8 and
// surrogates come in pairs, null stands only where v's type knows absence. Depth is bounded by v's type. White space and
// the order of members are free; see UnmarshalCanonical. On failure *v is unspecified.
func Unmarshal(data []byte, v any) error {
	p := parser{b: data}
	if err := p.value(codecOf(reflect.TypeOf(v).Elem()), reflect.ValueOf(v).Elem()); err != nil {
		return fmt.Errorf("byte %d: %w", p.i, err)
	}
	p.space()
	if p.i != len(p.b) {
		return fmt.Errorf("byte %d: data after the value", p.i)
	}
	return nil
}

var errNotCanonical = errors.New("isn't in canonical form (RFC 8785)")

// UnmarshalCanonical is Unmarshal for data that must be in canonical form. scratch is overwritten and may be nil; it is
// returned, grown, to be handed in again.
func UnmarshalCanonical(data []byte, v any, scratch []byte) ([]byte, error) {
	if err := Unmarshal(data, v); err != nil {
		return scratch, err
	}
	again, err := Append(scratch[:0], v)
	if err != nil {
		return scratch, err
	}
	if !bytes.Equal(again, data) {
		return again, errNotCanonical
	}
	return again, nil
}

type parser struct {
	b []byte
	i int
}

func (p *parser) space() {
	for p.i < len(p.b) {
		switch p.b[p.i] {
		case ' ', '\t', '\n', '\r':
			p.i++
		default:
			return
		}
	}
}

// peek skips white space and returns the next byte, 0 at the end.
func (p *parser) peek() byte {
	p.space()
	if p.i == len(p.b) {
		return 0
	}
	return p.b[p.i]
}

func (p *parser) expect(ch byte) error {
	if got := p.peek(); got != ch {
		if p.i == len(p.b) {
			return fmt.Errorf("want %q, but the data ends", ch)
		}
		return fmt.Errorf("want %q, got %q", ch, got)
	}
	p.i++
	return nil
}

func (p *parser) word(w string) bool {
	p.space()
	if !bytes.HasPrefix(p.b[p.i:], []byte(w)) {
		return false
	}
	p.i += len(w)
	return true
}

func (p *parser) value(c *codec, v reflect.Value) error {
	switch c.kind {
	case kindInt:
		n, err := p.integer(c)
		v.SetInt(n)
		return err
	case kindOpt:
		if p.word("null") {
			v.SetZero()
			return nil
		}
		n, err := p.integer(c)
		v.Field(0).SetInt(n)
		v.Field(1).SetBool(true)
		return err
	case kindString:
		s, err := p.str()
		v.SetString(s)
		return err
	case kindBool:
		switch {
		case p.word("true"):
			v.SetBool(true)
		case p.word("false"):
			v.SetBool(false)
		default:
			return errors.New("want true or false")
		}
		return nil
	case kindPointer:
		if p.word("null") {
			v.SetZero()
			return nil
		}
		v.Set(reflect.New(c.elem.typ))
		return p.value(c.elem, v.Elem())
	case kindSlice:
		return p.array(c, v)
	}
	return p.object(c, v)
}

func (p *parser) array(c *codec, v reflect.Value) error {
	if err := p.expect('['); err != nil {
		return err
	}
	v.Set(reflect.MakeSlice(c.typ, 0, 0))
	if p.peek() == ']' {
		p.i++
		return nil
	}
	for {
		v.Grow(1)
		v.SetLen(v.Len() + 1)
		e := v.Index(v.Len() - 1)
		e.SetZero()
		if err := p.value(c.elem, e); err != nil {
			return err
		}
		if p.peek() != ',' {
			return p.expect(']')
		}
		p.i++
	}
}

func (p *parser) object(c *codec, v reflect.Value) error {
	if err := p.expect('{'); err != nil {
		return err
	}
	var few [64]bool
	seen := few[:0]
	if len(c.fields) > len(few) {
		seen = make([]bool, 0, len(c.fields))
	}
	seen = seen[:len(c.fields)]
	count, next := 0, 0
	for p.peek() != '}' {
		if count > 0 {
			if err := p.expect(','); err != nil {
				return err
			}
		}
		k, err := p.member(c, next)
		if err != nil {
			return err
		}
		name := c.fields[k].name
		if seen[k] {
			return fmt.Errorf("member %q comes twice", name)
		}
		seen[k] = true
		count, next = count+1, k+1
		if err := p.value(c.fields[k].codec, v.Field(c.fields[k].index)); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	p.i++
	for k, ok := range seen {
		if !ok {
			return fmt.Errorf("member %q is missing", c.fields[k].name)
		}
	}
	return nil
}

// member reads a member's name and colon and returns its field; next is where it will be if members come in order.
func (p *parser) member(c *codec, next int) (int, error) {
	if next < len(c.fields) {
		// The canonical form, read without a copy.
		if prefix := c.fields[next].prefix; len(p.b)-p.i >= len(prefix) && string(p.b[p.i:p.i+len(prefix)]) == prefix {
			p.i += len(prefix)
			return next, nil
		}
	}
	name, err := p.str()
	if err != nil {
		return 0, err
	}
	k := c.find(name, next)
	if k < 0 {
		return 0, fmt.Errorf("unknown member %q", name)
	}
	return k, p.expect(':')
}

// find returns the index of the field called name, -1 if there is none; next is where it will be if members come in order.
func (c *codec) find(name string, next int) int {
	if next < len(c.fields) && c.fields[next].name == name {
		return next
	}
	for k := range c.fields {
		if c.fields[k].name == name {
			return k
		}
	}
	return -1
}

func (p *parser) integer(c *codec) (int64, error) {
	p.peek()
	start := p.i
	negative := p.i < len(p.b) && p.b[p.i] == '-'
	if negative {
		p.i++
	}
	digits := p.i
	n := int64(0)
	for p.i < len(p.b) && p.b[p.i] >= '0' && p.b[p.i] <= '9' {
		if p.i-digits >= 16 { // 2^53 has 16 digits
			return 0, errors.New("integer is beyond 2^53-1")
		}
		n = n*10 + int64(p.b[p.i]-'0')
		p.i++
	}
	switch {
	case p.i == digits:
		return 0, errors.New("want an integer")
	case p.b[digits] == '0' && (p.i-digits > 1 || negative):
		return 0, fmt.Errorf("integer %s has a leading or a signed zero", p.b[start:p.i])
	case p.i < len(p.b) && (p.b[p.i] == '.' || p.b[p.i] == 'e' || p.b[p.i] == 'E'):
		return 0, errors.New("want an integer, got a fraction or an exponent")
	}
	if negative {
		n = -n
	}
	return n, c.checkInt(n)
}

// str reads a string. It returns a part of the input where there is no escape, copied.
func (p *parser) str() (string, error) {
	if err := p.expect('"'); err != nil {
		return "", err
	}
	start := p.i
	var out []byte
	escaped := false
	for p.i < len(p.b) {
		ch := p.b[p.i]
		switch {
		case ch == '"':
			part := p.b[start:p.i]
			p.i++
			if escaped {
				out = append(out, part...)
				part = out
			}
			if !utf8.Valid(part) {
				return "", errors.New("string isn't valid UTF-8")
			}
			return string(part), nil
		case ch < 0x20:
			return "", errors.New("control character in a string")
		case ch == '\\':
			out = append(out, p.b[start:p.i]...)
			escaped = true
			var err error
			if out, err = p.escape(out); err != nil {
				return "", err
			}
			start = p.i
		default:
			p.i++
		}
	}
	return "", errors.New("string doesn't end")
}

func (p *parser) escape(out []byte) ([]byte, error) {
	if p.i+1 >= len(p.b) {
		return nil, errors.New("string doesn't end")
	}
	ch := p.b[p.i+1]
	p.i += 2
	switch ch {
	case '"', '\\', '/':
		return append(out, ch), nil
	case 'b':
		return append(out, '\b'), nil
	case 'f':
		return append(out, '\f'), nil
	case 'n':
		return append(out, '\n'), nil
	case 'r':
		return append(out, '\r'), nil
	case 't':
		return append(out, '\t'), nil
	case 'u':
		r, err := p.hex4()
		if err != nil {
			return nil, err
		}
		if utf16.IsSurrogate(r) {
			if !p.pair() {
				return nil, errors.New("a surrogate without its other half")
			}
			low, err := p.hex4()
			if err != nil {
				return nil, err
			}
			if r = utf16.DecodeRune(r, low); r == utf8.RuneError {
				return nil, errors.New("a surrogate without its other half")
			}
		}
		return utf8.AppendRune(out, r), nil
	}
	return nil, fmt.Errorf("unknown escape \\%c", ch)
}

// pair consumes the backslash and u of a second surrogate.
func (p *parser) pair() bool {
	if p.i+1 < len(p.b) && p.b[p.i] == '\\' && p.b[p.i+1] == 'u' {
		p.i += 2
		return true
	}
	return false
}

func (p *parser) hex4() (rune, error) {
	if p.i+4 > len(p.b) {
		return 0, errors.New("string doesn't end")
	}
	var r rune
	for _, ch := range p.b[p.i : p.i+4] {
		r <<= 4
		switch {
		case ch >= '0' && ch <= '9':
			r |= rune(ch - '0')
		case ch >= 'a' && ch <= 'f':
			r |= rune(ch-'a') + 10
		case ch >= 'A' && ch <= 'F':
			r |= rune(ch-'A') + 10
		default:
			return 0, fmt.Errorf("%q isn't a hexadecimal digit", ch)
		}
	}
	p.i += 4
	return r, nil
}

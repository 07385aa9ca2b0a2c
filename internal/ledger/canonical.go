package ledger

import (
	"fmt"
	"reflect"
	"strconv"
	"unicode/utf8"
)

// Marshal returns v, a document or a line's value, in canonical form (RFC 8785). A nil slice is []. It fails on an
// integer out of range and on a string that isn't UTF-8.
func Marshal(v any) ([]byte, error) { return Append(nil, v) }

// Append appends v's canonical form to b. On failure b's first len(b) bytes are as before and nothing is returned.
func Append(b []byte, v any) ([]byte, error) {
	rv := reflect.ValueOf(v)
	if rv.Kind() == reflect.Pointer {
		rv = rv.Elem()
	}
	return codecOf(rv.Type()).append(b, rv)
}

func (c *codec) append(b []byte, v reflect.Value) ([]byte, error) {
	var err error
	switch c.kind {
	case kindInt:
		if err := c.checkInt(v.Int()); err != nil {
			return nil, err
		}
		return strconv.AppendInt(b, v.Int(), 10), nil
	case kindOpt:
		if !v.Field(1).Bool() {
			return append(b, "null"...), nil
		}
		if err := c.checkInt(v.Field(0).Int()); err != nil {
			return nil, err
		}
		return strconv.AppendInt(b, v.Field(0).Int(), 10), nil
	case kindString:
		return appendString(b, v.String())
	case kindBool:
		return strconv.AppendBool(b, v.Bool()), nil
	case kindPointer:
		if v.IsNil() {
			return append(b, "null"...), nil
		}
		return c.elem.append(b, v.Elem())
	case kindSlice:
		b = append(b, '[')
		for i := range v.Len() {
			if i > 0 {
				b = append(b, ',')
			}
			if b, err = c.elem.append(b, v.Index(i)); err != nil {
				return nil, fmt.Errorf("[%d]: %w", i, err)
			}
		}
		return append(b, ']'), nil
	}
	b = append(b, '{')
	for i := range c.fields {
		f := &c.fields[i]
		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, f.prefix...)
		if b, err = f.codec.append(b, v.Field(f.index)); err != nil {
			return nil, fmt.Errorf("%s: %w", f.name, err)
		}
	}
	return append(b, '}'), nil
}

// appendString writes a string as RFC 8785, 3.2.2.2 has it: the two-character escapes where JSON has one, \u00xx in lower
// case for other control characters, everything else as it is.
func appendString(b []byte, s string) ([]byte, error) {
	if !utf8.ValidString(s) {
		return nil, fmt.Errorf("string %q isn't valid UTF-8", s)
	}
	const hexDigits = "0123456789abcdef"
	b = append(b, '"')
	start := 0
	for i := 0; i < len(s); i++ {
		ch := s[i]
		if ch >= 0x20 && ch != '"' && ch != '\\' {
			continue
		}
		b = append(b, s[start:i]...)
		start = i + 1
		switch ch {
		case '"', '\\':
			b = append(b, '\\', ch)
		case '\b':
			b = append(b, '\\', 'b')
		case '\t':
			b = append(b, '\\', 't')
		case '\n':
			b = append(b, '\\', 'n')
		case '\f':
			b = append(b, '\\', 'f')
		case '\r':
			b = append(b, '\\', 'r')
		default:
			b = append(b, '\\', 'u', '0', '0', hexDigits[ch>>4], hexDigits[ch&15])
		}
	}
	b = append(b, s[start:]...)
	return append(b, '"'), nil
}

package ledger

import (
	"cmp"
	"fmt"
	"reflect"
	"slices"
	"sync"
)

// A codec reads and writes one Go type. The types of this package consist of structs, slices, pointers, strings, bools,
// int64 and Opt, all of it required, so that a small reader and writer of our own does what encoding/json cannot: refuse
// unknown, missing and repeated members and non-integers, and write RFC 8785's form at once. Tests hold the writer
// against gowebpki/jcs.
type codec struct {
	kind   kind
	signed bool // of ints: below 0 allowed
	fields []field
	elem   *codec // of slices and pointers
	typ    reflect.Type
}

type kind int

const (
	kindInt kind = iota
	kindOpt
	kindString
	kindBool
	kindStruct
	kindSlice
	kindPointer
)

// field is a member, in the order of names. Names are ASCII, so bytes sort as UTF-16 units do.
type field struct {
	name   string
	prefix string // `"name":`
	index  int
	codec  *codec
}

var codecs sync.Map // reflect.Type to *codec

func codecOf(t reflect.Type) *codec {
	if c, ok := codecs.Load(t); ok {
		return c.(*codec)
	}
	c := newCodec(t, false)
	codecs.Store(t, c)
	return c
}

// newCodec panics on a type that the format has no place for: a programming error that any test finds.
func newCodec(t reflect.Type, signed bool) *codec {
	c := &codec{typ: t, signed: signed}
	switch {
	case t == reflect.TypeFor[Opt]():
		c.kind = kindOpt
	case t.Kind() == reflect.Int64:
		c.kind = kindInt
	case t.Kind() == reflect.String:
		c.kind = kindString
	case t.Kind() == reflect.Bool:
		c.kind = kindBool
	case t.Kind() == reflect.Slice:
		c.kind, c.elem = kindSlice, newCodec(t.Elem(), false)
	case t.Kind() == reflect.Pointer:
		c.kind, c.elem = kindPointer, newCodec(t.Elem(), false)
	case t.Kind() == reflect.Struct:
		c.kind = kindStruct
		for i := range t.NumField() {
			f := t.Field(i)
			name := f.Tag.Get("json")
			if name == "" || name == "-" {
				panic(fmt.Sprintf("internal error: %s.%s has no JSON name", t, f.Name))
			}
			c.fields = append(c.fields, field{name, `"` + name + `":`, i, newCodec(f.Type, f.Tag.Get("ledger") == "signed")})
		}
		slices.SortFunc(c.fields, func(a, b field) int { return cmp.Compare(a.name, b.name) })
	default:
		panic(fmt.Sprintf("internal error: %s has no place in a document", t))
	}
	return c
}

// checkInt holds an integer against what JSON readers agree on and against its field.
func (c *codec) checkInt(v int64) error {
	if v > MaxInt || v < -MaxInt {
		return fmt.Errorf("integer %d is beyond 2^53-1", v)
	}
	if v < 0 && !c.signed {
		return fmt.Errorf("integer %d is negative", v)
	}
	return nil
}

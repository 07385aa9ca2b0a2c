package chat

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// value is one of: nil (None), undefined, bool, int64, float64, text, *list, *dict, *namespace, *loop, *function. Lists
// and dictionaries don't change once made, and namespaces print without their contents, so no value that can be walked
// contains itself.
type value = any

// undefined is what a name or attribute that isn't there gives: empty text, false, an empty list; anything else fails
// with why.
type undefined struct{ why string }

type list struct {
	items []value
	tuple bool
}

// dict keeps the order of insertion.
type dict struct {
	keys   []value // text, int64, float64, bool or nil, as first given
	values []value
	index  map[any]int // by hashKey
}

type namespace struct{ attrs map[string]value }

// function is a macro, a global function or a method bound to its value.
type function struct {
	name string
	call func(*state, args) value
}

// args are the arguments of a call.
type args struct {
	pos   []value
	names []string
	named []value
}

func newDict(n int) *dict { return &dict{index: make(map[any]int, n)} }

// hashKey brings a key to what Go's maps compare as Python's do; ok is false for values that can't be keys.
func hashKey(v value) (key any, ok bool) {
	switch v := v.(type) {
	case nil:
		return nil, true
	case text:
		return v.s, true
	case bool:
		if v {
			return int64(1), true
		}
		return int64(0), true
	case int64:
		return v, true
	case float64:
		if v == math.Trunc(v) && math.Abs(v) < 1<<62 {
			return int64(v), true
		}
		return v, v == v
	}
	return nil, false
}

// set reports false for a key that can't be one.
func (d *dict) set(key, v value) bool {
	k, ok := hashKey(key)
	if !ok {
		return false
	}
	if i, have := d.index[k]; have {
		d.values[i] = v
		return true
	}
	d.index[k] = len(d.keys)
	d.keys, d.values = append(d.keys, key), append(d.values, v)
	return true
}

func (d *dict) get(key value) (value, bool) {
	if k, ok := hashKey(key); ok {
		if i, have := d.index[k]; have {
			return d.values[i], true
		}
	}
	return nil, false
}

// typeName is Python's name of a value's type.
func typeName(v value) string {
	switch v := v.(type) {
	case nil:
		return "NoneType"
	case undefined:
		return "Undefined"
	case bool:
		return "bool"
	case int64:
		return "int"
	case float64:
		return "float"
	case text:
		return "str"
	case *list:
		if v.tuple {
			return "tuple"
		}
		return "list"
	case *dict:
		return "dict"
	case *namespace:
		return "Namespace"
	case *loop:
		return "LoopContext"
	}
	return "function"
}

func truth(v value) bool {
	switch v := v.(type) {
	case nil, undefined:
		return false
	case bool:
		return v
	case int64:
		return v != 0
	case float64:
		return v != 0
	case text:
		return v.s != ""
	case *list:
		return len(v.items) > 0
	case *dict:
		return len(v.keys) > 0
	}
	return true
}

// str is Python's str(v), for output and for joining.
func (st *state) str(v value) text {
	switch v := v.(type) {
	case text:
		return v
	case undefined:
		return text{}
	}
	var b strings.Builder
	st.repr(&b, v, 0)
	return foreign(b.String())
}

// repr writes Python's repr(v).
func (st *state) repr(b *strings.Builder, v value, depth int) {
	st.step()
	if depth > maxValueDepth {
		st.fail("a value nests more than %d levels", maxValueDepth)
	}
	start := b.Len()
	switch v := v.(type) {
	case nil:
		b.WriteString("None")
	case undefined:
		b.WriteString("Undefined")
	case bool:
		if v {
			b.WriteString("True")
		} else {
			b.WriteString("False")
		}
	case int64:
		b.WriteString(strconv.FormatInt(v, 10))
	case float64:
		b.WriteString(pyFloat(v))
	case text:
		reprString(b, v.s)
	case *list:
		st.reprList(b, v, depth)
		return
	case *dict:
		b.WriteByte('{')
		for i, k := range v.keys {
			if i > 0 {
				b.WriteString(", ")
			}
			st.repr(b, k, depth+1)
			b.WriteString(": ")
			st.repr(b, v.values[i], depth+1)
		}
		b.WriteByte('}')
		return
	default:
		fmt.Fprintf(b, "<%s>", typeName(v))
	}
	st.alloc(b.Len() - start)
}

func (st *state) reprList(b *strings.Builder, l *list, depth int) {
	open, end := byte('['), byte(']')
	if l.tuple {
		open, end = '(', ')'
	}
	b.WriteByte(open)
	for i, item := range l.items {
		if i > 0 {
			b.WriteString(", ")
		}
		st.repr(b, item, depth+1)
	}
	if l.tuple && len(l.items) == 1 {
		b.WriteByte(',')
	}
	b.WriteByte(end)
}

func reprString(b *strings.Builder, s string) {
	quote := byte('\'')
	if strings.IndexByte(s, '\'') >= 0 && strings.IndexByte(s, '"') < 0 {
		quote = '"'
	}
	b.WriteByte(quote)
	for _, r := range s {
		switch {
		case r == rune(quote) || r == '\\':
			b.WriteByte('\\')
			b.WriteRune(r)
		case r == '\n':
			b.WriteString(`\n`)
		case r == '\r':
			b.WriteString(`\r`)
		case r == '\t':
			b.WriteString(`\t`)
		case r == ' ' || strconv.IsPrint(r):
			b.WriteRune(r)
		case r < 0x100:
			fmt.Fprintf(b, `\x%02x`, r)
		case r < 0x10000:
			fmt.Fprintf(b, `\u%04x`, r)
		default:
			fmt.Fprintf(b, `\U%08x`, r)
		}
	}
	b.WriteByte(quote)
}

// pyFloat is Python's repr of a float.
func pyFloat(f float64) string {
	switch {
	case math.IsInf(f, 1):
		return "inf"
	case math.IsInf(f, -1):
		return "-inf"
	case math.IsNaN(f):
		return "nan"
	}
	if a := math.Abs(f); a != 0 && (a < 1e-4 || a >= 1e16) {
		return strconv.FormatFloat(f, 'e', -1, 64)
	}
	s := strconv.FormatFloat(f, 'f', -1, 64)
	if !strings.Contains(s, ".") {
		s += ".0"
	}
	return s
}

// items returns what a loop over v gives.
func (st *state) items(v value) []value {
	switch v := v.(type) {
	case undefined:
		return nil
	case text:
		st.alloc(16 * len(v.s))
		return v.chars()
	case *list:
		return v.items
	case *dict:
		return v.keys
	}
	st.fail("%s can't be iterated over", typeName(v))
	return nil
}

// number returns v as a float and reports whether it is a number at all.
func number(v value) (f float64, ok bool) {
	switch v := v.(type) {
	case bool:
		if v {
			return 1, true
		}
		return 0, true
	case int64:
		return float64(v), true
	case float64:
		return v, true
	}
	return 0, false
}

// integer returns v if it is an int or a bool.
func integer(v value) (int64, bool) {
	switch v := v.(type) {
	case bool:
		if v {
			return 1, true
		}
		return 0, true
	case int64:
		return v, true
	}
	return 0, false
}

// equal is Python's ==.
func (st *state) equal(a, b value, depth int) bool {
	st.step()
	if depth > maxValueDepth {
		st.fail("a value nests more than %d levels", maxValueDepth)
	}
	if x, ok := integer(a); ok {
		if y, ok := integer(b); ok {
			return x == y
		}
	}
	if x, ok := number(a); ok {
		y, ok := number(b)
		return ok && x == y
	}
	switch a := a.(type) {
	case nil:
		return b == nil
	case undefined:
		_, ok := b.(undefined)
		return ok
	case text:
		b, ok := b.(text)
		st.steps(len(a.s) / 64)
		return ok && a.s == b.s
	case *list:
		b, ok := b.(*list)
		if !ok || len(a.items) != len(b.items) || a.tuple != b.tuple {
			return false
		}
		for i := range a.items {
			if !st.equal(a.items[i], b.items[i], depth+1) {
				return false
			}
		}
		return true
	case *dict:
		b, ok := b.(*dict)
		if !ok || len(a.keys) != len(b.keys) {
			return false
		}
		for i, k := range a.keys {
			if v, ok := b.get(k); !ok || !st.equal(a.values[i], v, depth+1) {
				return false
			}
		}
		return true
	}
	return a == b
}

// less is Python's a < b.
func (st *state) less(a, b value, depth int) bool {
	st.step()
	if depth > maxValueDepth {
		st.fail("a value nests more than %d levels", maxValueDepth)
	}
	if x, ok := number(a); ok {
		if y, ok := number(b); ok {
			return x < y
		}
	}
	switch a := a.(type) {
	case text:
		if b, ok := b.(text); ok {
			st.steps(min(len(a.s), len(b.s)) / 64)
			return a.s < b.s // UTF-8 sorts by code point
		}
	case *list:
		if b, ok := b.(*list); ok && a.tuple == b.tuple {
			for i := range min(len(a.items), len(b.items)) {
				if !st.equal(a.items[i], b.items[i], depth+1) {
					return st.less(a.items[i], b.items[i], depth+1)
				}
			}
			return len(a.items) < len(b.items)
		}
	}
	st.fail("%s and %s can't be ordered", typeName(a), typeName(b))
	return false
}

// contains is Python's item in v.
func (st *state) contains(v, item value) bool {
	switch v := v.(type) {
	case undefined:
		return false
	case text:
		s, ok := item.(text)
		if !ok {
			st.fail("%s can't be looked for in a str", typeName(item))
		}
		st.steps(len(v.s) / 64)
		return strings.Contains(v.s, s.s)
	case *list:
		for _, x := range v.items {
			if st.equal(x, item, 0) {
				return true
			}
		}
		return false
	case *dict:
		_, ok := v.get(item)
		return ok
	}
	st.fail("nothing can be looked for in %s", typeName(v))
	return false
}

package weights

import (
	"encoding/binary"
	"errors"
	"fmt"
	"iter"
	"math"
)

// valueType is GGUF's number of a metadata value's type (docs/gguf.md, enum gguf_metadata_value_type).
type valueType uint32

const (
	typeUint8 valueType = iota
	typeInt8
	typeUint16
	typeInt16
	typeUint32
	typeInt32
	typeFloat32
	typeBool
	typeString
	typeArray
	typeUint64
	typeInt64
	typeFloat64
)

// valueTypes gives each type its name and the bytes of a value; 0 bytes mean that the length is in the file.
var valueTypes = [...]struct {
	name  string
	bytes int
}{
	typeUint8: {"UINT8", 1}, typeInt8: {"INT8", 1}, typeUint16: {"UINT16", 2}, typeInt16: {"INT16", 2},
	typeUint32: {"UINT32", 4}, typeInt32: {"INT32", 4}, typeFloat32: {"FLOAT32", 4}, typeBool: {"BOOL", 1},
	typeString: {"STRING", 0}, typeArray: {"ARRAY", 0}, typeUint64: {"UINT64", 8}, typeInt64: {"INT64", 8},
	typeFloat64: {"FLOAT64", 8},
}

// minPairBytes is an empty key, a type and the smallest value.
const minPairBytes = 8 + 4 + 1

// value is one metadata value, where it lies in the file: raw holds a scalar's bytes, a string's without its length, or an
// array's elements.
type value struct {
	kind valueType
	elem valueType // of an array
	n    int       // elements of an array
	raw  []byte
}

func (v value) String() string {
	if v.kind == typeArray {
		return "ARRAY of " + valueTypes[v.elem].name
	}
	return valueTypes[v.kind].name
}

// metadata is a model's key-value pairs. keys is in the file's order.
type metadata struct {
	keys   []string
	values map[string]value
}

func readPairs(c *cursor, count int) (metadata, error) {
	m := metadata{values: make(map[string]value)}
	for i := range count {
		key := string(c.str(maxKeyBytes))
		kind := valueType(c.u32())
		if c.err == nil {
			if _, twice := m.values[key]; twice {
				return m, fmt.Errorf("metadata key %s is there twice", quote(key))
			}
			m.keys = append(m.keys, key)
			m.values[key] = readValue(c, kind)
		}
		if c.err != nil {
			return m, fmt.Errorf("metadata pair %d of %d, key %s: %w", i, count, quote(key), c.err)
		}
	}
	return m, nil
}

// readValue skips over one value and remembers where it is. Failures are c's.
func readValue(c *cursor, kind valueType) value {
	switch {
	case c.err != nil:
	case int64(kind) >= int64(len(valueTypes)):
		c.err = fmt.Errorf("value type %d is unknown", kind)
	case kind == typeString:
		return value{kind: kind, raw: c.str(maxStringBytes)}
	case kind == typeArray:
		return readArray(c)
	default:
		v := value{kind: kind, raw: c.take(uint64(valueTypes[kind].bytes))}
		if kind == typeBool && c.err == nil && v.raw[0] > 1 {
			c.err = fmt.Errorf("a BOOL holds %d", v.raw[0])
		}
		return v
	}
	return value{}
}

func readArray(c *cursor) value {
	elem, n := valueType(c.u32()), c.u64()
	if c.err != nil {
		return value{}
	}
	if int64(elem) >= int64(len(valueTypes)) || elem == typeArray {
		c.err = fmt.Errorf("an array of type %d: arrays of arrays and unknown types aren't read", elem)
		return value{}
	}
	size := valueTypes[elem].bytes
	if elem == typeString {
		size = 8 // at least its length
	}
	if n > maxElements || n > uint64(c.left()/size) {
		c.err = fmt.Errorf("an array claims %d elements of %s in %d bytes; up to %d are read", n, valueTypes[elem].name, c.left(), maxElements)
		return value{}
	}
	start := c.pos
	if elem == typeString {
		for range n {
			if c.str(maxStringBytes); c.err != nil {
				return value{}
			}
		}
	} else {
		c.take(n * uint64(size))
	}
	return value{kind: typeArray, elem: elem, n: int(n), raw: c.data[start:c.pos]}
}

// find returns the value of key and fails where its type isn't the wanted one. Absent is false and no error.
func (m metadata) find(key string, kind, elem valueType) (value, bool, error) {
	v, ok := m.values[key]
	if !ok {
		return value{}, false, nil
	}
	want := value{kind: kind, elem: elem}
	if v.kind != kind || kind == typeArray && v.elem != elem {
		return value{}, true, fmt.Errorf("metadata key %q is %s, want %s", key, v, want)
	}
	return v, true, nil
}

func (m metadata) uint32(key string) (uint32, bool, error) {
	v, ok, err := m.find(key, typeUint32, 0)
	if !ok || err != nil {
		return 0, ok, err
	}
	return binary.LittleEndian.Uint32(v.raw), true, nil
}

func (m metadata) int(key string) (int, bool, error) {
	v, ok := m.values[key]
	if !ok {
		return 0, false, nil
	}
	n, err := integer(v.kind, v.raw)
	if err != nil {
		return 0, true, fmt.Errorf("metadata key %q: %w", key, err)
	}
	return n, true, nil
}

// integer decodes a value of any integer type.
func integer(kind valueType, raw []byte) (int, error) {
	var n int64
	switch kind {
	case typeUint8:
		n = int64(raw[0])
	case typeInt8:
		n = int64(int8(raw[0]))
	case typeUint16:
		n = int64(binary.LittleEndian.Uint16(raw))
	case typeInt16:
		n = int64(int16(binary.LittleEndian.Uint16(raw)))
	case typeUint32:
		n = int64(binary.LittleEndian.Uint32(raw))
	case typeInt32:
		n = int64(int32(binary.LittleEndian.Uint32(raw)))
	case typeUint64, typeInt64:
		u := binary.LittleEndian.Uint64(raw)
		if kind == typeUint64 && u > math.MaxInt64 {
			return 0, fmt.Errorf("%d doesn't fit an int", u)
		}
		n = int64(u)
	default:
		return 0, fmt.Errorf("is %s, want an integer", valueTypes[kind].name)
	}
	if int64(int(n)) != n {
		return 0, fmt.Errorf("%d doesn't fit an int", n)
	}
	return int(n), nil
}

// Keys returns the metadata's keys in the file's order.
func (f *File) Keys() []string { return append([]string(nil), f.meta.keys...) }

// The getters below return a metadata value, whether the key is there, and an error where it is there with another type:
// absent and mistaken are different. A safetensors file has STRING values only (its __metadata__).

// String returns a STRING. Bytes that aren't UTF-8 are returned as they are.
func (f *File) String(key string) (string, bool, error) {
	v, ok, err := f.meta.find(key, typeString, 0)
	return string(v.raw), ok, err
}

// Bool returns a BOOL.
func (f *File) Bool(key string) (v, ok bool, err error) {
	b, ok, err := f.meta.find(key, typeBool, 0)
	if !ok || err != nil {
		return false, ok, err
	}
	return b.raw[0] == 1, true, nil
}

// Uint32 returns a UINT32, and no other integer type.
func (f *File) Uint32(key string) (uint32, bool, error) { return f.meta.uint32(key) }

// Int returns an integer of any of GGUF's eight types; one that doesn't fit an int is an error.
func (f *File) Int(key string) (int, bool, error) { return f.meta.int(key) }

// Float32 returns a FLOAT32.
func (f *File) Float32(key string) (float32, bool, error) {
	v, ok, err := f.meta.find(key, typeFloat32, 0)
	if !ok || err != nil {
		return 0, ok, err
	}
	return math.Float32frombits(binary.LittleEndian.Uint32(v.raw)), true, nil
}

// Ints returns an array of integers of any one of GGUF's eight types, copied.
func (f *File) Ints(key string) ([]int, bool, error) {
	v, ok := f.meta.values[key]
	if !ok {
		return nil, false, nil
	}
	if v.kind != typeArray || v.elem == typeString {
		return nil, true, fmt.Errorf("metadata key %q is %s, want ARRAY of integers", key, v)
	}
	size := valueTypes[v.elem].bytes
	out := make([]int, v.n)
	for i := range out {
		n, err := integer(v.elem, v.raw[i*size:(i+1)*size])
		if err != nil {
			return nil, true, fmt.Errorf("metadata key %q, element %d: %w", key, i, err)
		}
		out[i] = n
	}
	return out, true, nil
}

// Int32s returns an ARRAY of INT32, copied.
func (f *File) Int32s(key string) ([]int32, bool, error) {
	v, ok, err := f.meta.find(key, typeArray, typeInt32)
	if !ok || err != nil {
		return nil, ok, err
	}
	out := make([]int32, v.n)
	for i := range out {
		out[i] = int32(binary.LittleEndian.Uint32(v.raw[4*i:]))
	}
	return out, true, nil
}

// Float32s returns an ARRAY of FLOAT32, copied.
func (f *File) Float32s(key string) ([]float32, bool, error) {
	v, ok, err := f.meta.find(key, typeArray, typeFloat32)
	if !ok || err != nil {
		return nil, ok, err
	}
	out := make([]float32, v.n)
	for i := range out {
		out[i] = math.Float32frombits(binary.LittleEndian.Uint32(v.raw[4*i:]))
	}
	return out, true, nil
}

// Strings returns an ARRAY of STRING. The list reads from the file: it is valid until the file is closed.
func (f *File) Strings(key string) (StringList, bool, error) {
	v, ok, err := f.meta.find(key, typeArray, typeString)
	if !ok || err != nil {
		return StringList{}, ok, err
	}
	l := StringList{raw: v.raw, at: make([]int, 1, v.n+1)}
	c := &cursor{data: v.raw}
	for range v.n {
		c.str(maxStringBytes)
		l.at = append(l.at, c.pos)
	}
	if c.err != nil {
		return StringList{}, true, fmt.Errorf("metadata key %q: %w", key, errors.Join(errors.New("the file changed while it was open"), c.err))
	}
	return l, true, nil
}

// StringList is an array of strings that stay in the file until one is asked for: a vocabulary of 150,000 tokens costs 8
// bytes an entry, not a string each.
type StringList struct {
	raw []byte // length-prefixed strings, as in the file
	at  []int  // where each begins in raw, its length included, and the end: one more than there are strings
}

// Len returns the number of strings.
func (l StringList) Len() int { return max(len(l.at)-1, 0) }

// Bytes returns string i, borrowed from the file: read-only, valid until the file is closed. It panics unless 0 ≤ i < Len.
func (l StringList) Bytes(i int) []byte { return l.raw[l.at[i]+8 : l.at[i+1] : l.at[i+1]] }

// At returns a copy of string i, which stays valid. It panics unless 0 ≤ i < Len.
func (l StringList) At(i int) string { return string(l.Bytes(i)) }

// All yields every index with its string, copied.
func (l StringList) All() iter.Seq2[int, string] {
	return func(yield func(int, string) bool) {
		for i := range l.Len() {
			if !yield(i, l.At(i)) {
				return
			}
		}
	}
}

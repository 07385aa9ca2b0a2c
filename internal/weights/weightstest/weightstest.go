// Package weightstest writes model files, GGUF and safetensors, and quantises, so that tests can make small models of every
// format. For tests only: it holds a whole model in memory, and its K-quants are valid but not as close as ggml's.
package weightstest

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"cotenant/internal/weights"
)

// KV is one pair of GGUF metadata. Value is a bool, a string, a fixed-size integer, a float32, a float64, or a slice of one
// of these; its Go type decides the GGUF type.
type KV struct {
	Key   string
	Value any
}

// alignment is GGUF's default.
const alignment = 32

// ggmlTypes holds ggml's number of each format (ggml.h, enum ggml_type), written down apart from the reader's.
var ggmlTypes = map[weights.DType]uint32{
	weights.F32: 0, weights.F16: 1, weights.Q4_0: 2, weights.Q4_1: 3, weights.Q5_0: 6, weights.Q5_1: 7, weights.Q8_0: 8,
	weights.Q4K: 12, weights.Q5K: 13, weights.Q6K: 14, weights.BF16: 30,
}

// GGUF returns a GGUF v3 file of these pairs and tensors. Alignment is 32 unless a pair general.alignment says otherwise.
func GGUF(pairs []KV, tensors []weights.Tensor) ([]byte, error) {
	b := []byte("GGUF")
	b = binary.LittleEndian.AppendUint32(b, 3)
	b = binary.LittleEndian.AppendUint64(b, uint64(len(tensors)))
	b = binary.LittleEndian.AppendUint64(b, uint64(len(pairs)))
	align := alignment
	for _, p := range pairs {
		b = appendString(b, p.Key)
		var err error
		if b, err = appendValue(b, p.Value); err != nil {
			return nil, fmt.Errorf("metadata key %q: %w", p.Key, err)
		}
		if a, ok := p.Value.(uint32); ok && p.Key == "general.alignment" {
			align = int(a)
		}
	}
	offset := 0
	for _, t := range tensors {
		if err := check(t); err != nil {
			return nil, err
		}
		b = appendString(b, t.Name)
		b = binary.LittleEndian.AppendUint32(b, uint32(len(t.Shape)))
		for _, d := range slices.Backward(t.Shape) {
			b = binary.LittleEndian.AppendUint64(b, uint64(d))
		}
		b = binary.LittleEndian.AppendUint32(b, ggmlTypes[t.Type])
		b = binary.LittleEndian.AppendUint64(b, uint64(offset))
		offset += (len(t.Data) + align - 1) / align * align
	}
	for _, t := range tensors {
		b = append(b, make([]byte, -len(b)&(align-1))...)
		b = append(b, t.Data...)
	}
	return append(b, make([]byte, -len(b)&(align-1))...), nil
}

// WriteGGUF writes a GGUF file of that name into a folder of its own and returns its path. It fails t on an error.
func WriteGGUF(t testing.TB, name string, pairs []KV, tensors []weights.Tensor) string {
	t.Helper()
	data, err := GGUF(pairs, tensors)
	if err != nil {
		t.Fatalf("make %s: %v", name, err)
	}
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, data, 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

func check(t weights.Tensor) error {
	n := 1
	for _, d := range t.Shape {
		n *= d
	}
	if n%t.Type.BlockSize() != 0 || len(t.Data) != t.Type.RowBytes(n) {
		return fmt.Errorf("tensor %q: %d bytes of %s for shape %v", t.Name, len(t.Data), t.Type, t.Shape)
	}
	return nil
}

func appendString(b []byte, s string) []byte {
	return append(binary.LittleEndian.AppendUint64(b, uint64(len(s))), s...)
}

// appendValue appends a value's type and the value.
func appendValue(b []byte, v any) ([]byte, error) {
	const array = 9
	header := func(kind uint32, n int) []byte {
		b = binary.LittleEndian.AppendUint32(b, array)
		b = binary.LittleEndian.AppendUint32(b, kind)
		return binary.LittleEndian.AppendUint64(b, uint64(n))
	}
	if kind, ok := scalarType(v); ok {
		return appendScalar(binary.LittleEndian.AppendUint32(b, kind), v), nil
	}
	switch v := v.(type) {
	case []string:
		return appendAll(header(8, len(v)), v), nil
	case []bool:
		return appendAll(header(7, len(v)), v), nil
	case []uint8:
		return appendAll(header(0, len(v)), v), nil
	case []int8:
		return appendAll(header(1, len(v)), v), nil
	case []uint16:
		return appendAll(header(2, len(v)), v), nil
	case []int16:
		return appendAll(header(3, len(v)), v), nil
	case []uint32:
		return appendAll(header(4, len(v)), v), nil
	case []int32:
		return appendAll(header(5, len(v)), v), nil
	case []float32:
		return appendAll(header(6, len(v)), v), nil
	case []uint64:
		return appendAll(header(10, len(v)), v), nil
	case []int64:
		return appendAll(header(11, len(v)), v), nil
	case []float64:
		return appendAll(header(12, len(v)), v), nil
	}
	return nil, fmt.Errorf("GGUF has no type for %T", v)
}

func appendAll[T any](b []byte, v []T) []byte {
	for _, e := range v {
		b = appendScalar(b, e)
	}
	return b
}

// scalarType returns GGUF's number of a scalar's type.
func scalarType(v any) (uint32, bool) {
	switch v.(type) {
	case uint8:
		return 0, true
	case int8:
		return 1, true
	case uint16:
		return 2, true
	case int16:
		return 3, true
	case uint32:
		return 4, true
	case int32:
		return 5, true
	case float32:
		return 6, true
	case bool:
		return 7, true
	case string:
		return 8, true
	case uint64:
		return 10, true
	case int64:
		return 11, true
	case float64:
		return 12, true
	}
	return 0, false
}

func appendScalar(b []byte, v any) []byte {
	if s, ok := v.(string); ok {
		return appendString(b, s)
	}
	// binary.Append knows every other type of scalarType, so it can't fail.
	out, err := binary.Append(b, binary.LittleEndian, v)
	if err != nil {
		panic(err)
	}
	return out
}

// Safetensors returns a safetensors file of these tensors in this order; meta, where not nil, becomes __metadata__. Only F32,
// F16 and BF16 have a place in it. As the reference writer does, it pads the header with spaces so that the data begins at a
// multiple of 8.
func Safetensors(meta map[string]string, tensors []weights.Tensor) ([]byte, error) {
	header := []byte{'{'}
	field := func(name string, v any) error {
		if len(header) > 1 {
			header = append(header, ',')
		}
		k, err := json.Marshal(name)
		if err != nil {
			return err
		}
		text, err := json.Marshal(v)
		header = append(append(append(header, k...), ':'), text...)
		return err
	}
	if meta != nil {
		if err := field("__metadata__", meta); err != nil {
			return nil, err
		}
	}
	var body []byte
	for _, t := range tensors {
		if err := check(t); err != nil {
			return nil, err
		}
		if t.Type.BlockSize() != 1 {
			return nil, fmt.Errorf("tensor %q: safetensors has no %s", t.Name, t.Type)
		}
		entry := struct {
			Dtype   string `json:"dtype"`
			Shape   []int  `json:"shape"`
			Offsets [2]int `json:"data_offsets"`
		}{t.Type.String(), append([]int{}, t.Shape...), [2]int{len(body), len(body) + len(t.Data)}}
		if err := field(t.Name, entry); err != nil {
			return nil, err
		}
		body = append(body, t.Data...)
	}
	header = append(header, '}')
	header = append(header, bytes.Repeat([]byte{' '}, -len(header)&7)...)
	out := binary.LittleEndian.AppendUint64(nil, uint64(len(header)))
	return append(append(out, header...), body...), nil
}

// Float32 returns a tensor of the given format that holds values, which are in row-major order.
func Float32(name string, t weights.DType, values []float32, shape ...int) weights.Tensor {
	return weights.Tensor{Name: name, Type: t, Shape: shape, Data: Quantize(t, values)}
}

// finite reports whether v can be quantised.
func finite(v float32) bool { return !math.IsNaN(float64(v)) && !math.IsInf(float64(v), 0) }

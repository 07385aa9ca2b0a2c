package weights

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/bits"
	"slices"
)

// GGUF (ggml's docs/gguf.md): magic, version, counts, metadata pairs, tensor descriptions, padding up to a multiple of
// general.alignment, then the tensors' bytes at offsets relative to that point. All integers are little endian here; files of
// big-endian machines are refused.
const (
	ggufMagic        = "GGUF"
	defaultAlignment = 32
	maxAlignment     = 64 << 10
	maxPairs         = 1 << 16
	maxKeyBytes      = 1<<16 - 1 // the specification's own limit
	maxNameBytes     = 1024
	maxStringBytes   = 16 << 20 // a chat template has some 10 KB
	maxElements      = 1 << 22  // a vocabulary has up to 300,000 tokens, its merges up to 500,000
	maxDims          = 4
	minTensorBytes   = 8 + 4 + 8 + 4 + 8 // description of a vector with an empty name
)

// ggmlTypes maps ggml's type numbers (ggml.h, enum ggml_type) to the formats that are read here.
var ggmlTypes = map[uint32]DType{
	0: F32, 1: F16, 2: Q4_0, 3: Q4_1, 6: Q5_0, 7: Q5_1, 8: Q8_0, 12: Q4K, 13: Q5K, 14: Q6K, 30: BF16,
}

// ggmlOther names the formats that ggml has and this package does not read, for messages.
var ggmlOther = map[uint32]string{
	9: "Q8_1", 10: "Q2_K", 11: "Q3_K", 15: "Q8_K", 16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS", 19: "IQ1_S", 20: "IQ4_NL",
	21: "IQ3_S", 22: "IQ2_S", 23: "IQ4_XS", 24: "I8", 25: "I16", 26: "I32", 27: "I64", 28: "F64", 29: "IQ1_M",
	34: "TQ1_0", 35: "TQ2_0", 39: "MXFP4",
}

// cursor reads little-endian values from a byte slice. The first failure sticks; what is read afterwards is zero.
type cursor struct {
	data []byte
	pos  int
	err  error
}

func (c *cursor) left() int { return len(c.data) - c.pos }

// take returns the next n bytes, borrowed, or nil at the end of the file.
func (c *cursor) take(n uint64) []byte {
	if c.err == nil && n > uint64(c.left()) {
		c.err = fmt.Errorf("file ends at byte %d, inside a value of %d bytes at %d", len(c.data), n, c.pos)
	}
	if c.err != nil {
		return nil
	}
	b := c.data[c.pos : c.pos+int(n)]
	c.pos += int(n)
	return b
}

func (c *cursor) u32() uint32 {
	if b := c.take(4); b != nil {
		return binary.LittleEndian.Uint32(b)
	}
	return 0
}

func (c *cursor) u64() uint64 {
	if b := c.take(8); b != nil {
		return binary.LittleEndian.Uint64(b)
	}
	return 0
}

// str returns a length-prefixed string's bytes, at most limit, borrowed.
func (c *cursor) str(limit uint64) []byte {
	n := c.u64()
	if c.err == nil && n > limit {
		c.err = fmt.Errorf("a string of %d bytes at byte %d; up to %d are read", n, c.pos, limit)
	}
	return c.take(n)
}

func parseGGUF(data []byte) (*File, error) {
	c := &cursor{data: data, pos: len(ggufMagic)}
	switch version := c.u32(); {
	case c.err != nil:
		return nil, c.err
	case version == 1:
		return nil, errors.New("is GGUF v1 of 2023, which isn't read: convert the model again with a current converter")
	case bits.ReverseBytes32(version) == 2 || bits.ReverseBytes32(version) == 3:
		return nil, errors.New("is a big-endian GGUF, which isn't read: convert it with gguf_convert_endian.py")
	case version != 2 && version != 3:
		return nil, fmt.Errorf("is GGUF v%d; versions 2 and 3 are read", version)
	}
	tensorCount, pairCount := c.u64(), c.u64()
	switch {
	case c.err != nil:
		return nil, c.err
	case pairCount > maxPairs || pairCount > uint64(c.left()/minPairBytes):
		return nil, fmt.Errorf("claims %d metadata pairs in %d bytes", pairCount, c.left())
	case tensorCount > maxTensors || tensorCount > uint64(c.left()/minTensorBytes):
		return nil, fmt.Errorf("claims %d tensors in %d bytes", tensorCount, c.left())
	}
	meta, err := readPairs(c, int(pairCount))
	if err != nil {
		return nil, err
	}
	if n, ok, err := meta.int("split.count"); err != nil {
		return nil, err
	} else if ok && n > 1 {
		return nil, fmt.Errorf("is one of %d parts of a split GGUF, which aren't joined here: use `llama-gguf-split --merge` first", n)
	}
	tensors, err := readTensors(c, int(tensorCount), meta)
	if err != nil {
		return nil, err
	}
	return newFile(GGUF, tensors, meta)
}

// readTensors reads the tensor descriptions and gives each its bytes.
func readTensors(c *cursor, count int, meta metadata) ([]Tensor, error) {
	alignment, err := ggufAlignment(meta)
	if err != nil {
		return nil, err
	}
	var tensors []Tensor
	var spans []span
	for i := range count {
		t, s, err := readTensor(c)
		if err != nil {
			return nil, fmt.Errorf("tensor %d of %d: %w", i, count, err)
		}
		if s.begin%alignment != 0 {
			return nil, fmt.Errorf("tensor %s begins at offset %d, not a multiple of the alignment %d", quote(t.Name), s.begin, alignment)
		}
		tensors, spans = append(tensors, t), append(spans, s)
	}
	if count == 0 {
		return nil, nil // a vocabulary alone; its padding may be cut off
	}
	start := (uint64(c.pos) + alignment - 1) / alignment * alignment
	if start > uint64(len(c.data)) {
		return nil, fmt.Errorf("file ends at byte %d, before the tensors' data at %d", len(c.data), start)
	}
	body := c.data[start:]
	for i, s := range spans {
		if s.begin > uint64(len(body)) || s.size > uint64(len(body))-s.begin {
			return nil, fmt.Errorf("tensor %s has %d bytes at offset %d, beyond the %d bytes of data: is the file complete?",
				quote(tensors[i].Name), s.size, s.begin, len(body))
		}
		tensors[i].Data = body[s.begin : s.begin+s.size : s.begin+s.size]
	}
	return tensors, disjoint(tensors, spans)
}

// span is a tensor's place, in bytes, relative to the data's start.
type span struct{ begin, size uint64 }

// disjoint fails where two tensors share a byte: no writer does that, and a consumer that writes to a copy of one would
// damage the other's.
func disjoint(tensors []Tensor, spans []span) error {
	order := make([]int, len(spans))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(a, b int) int { return cmp.Compare(spans[a].begin, spans[b].begin) })
	for i := 1; i < len(order); i++ {
		a, b := order[i-1], order[i]
		if spans[b].begin-spans[a].begin < spans[a].size {
			return fmt.Errorf("tensors %s and %s overlap", quote(tensors[a].Name), quote(tensors[b].Name))
		}
	}
	return nil
}

func ggufAlignment(meta metadata) (uint64, error) {
	a, ok, err := meta.uint32("general.alignment")
	switch {
	case err != nil:
		return 0, err
	case !ok:
		return defaultAlignment, nil
	case a == 0 || a&(a-1) != 0 || a > maxAlignment:
		return 0, fmt.Errorf("general.alignment is %d; powers of two up to %d are read", a, maxAlignment)
	}
	return uint64(a), nil
}

// readTensor reads one description: name, dimensions (innermost first), type, offset.
func readTensor(c *cursor) (Tensor, span, error) {
	name := string(c.str(maxNameBytes))
	n := c.u32()
	switch {
	case c.err != nil:
		return Tensor{}, span{}, c.err
	case n < 1 || n > maxDims:
		return Tensor{}, span{}, fmt.Errorf("%s has %d dimensions; 1 to %d are read", quote(name), n, maxDims)
	}
	shape := make([]int, n)
	for i := range shape {
		d := c.u64()
		switch {
		case c.err != nil:
			return Tensor{}, span{}, c.err
		case d == 0:
			return Tensor{}, span{}, fmt.Errorf("%s has a dimension of 0", quote(name))
		case d > math.MaxInt:
			return Tensor{}, span{}, fmt.Errorf("%s has a dimension of %d, more elements than can be addressed", quote(name), d)
		}
		shape[len(shape)-1-i] = int(d)
	}
	number, offset := c.u32(), c.u64()
	if c.err != nil {
		return Tensor{}, span{}, c.err
	}
	dtype, ok := ggmlTypes[number]
	if !ok {
		other := ggmlOther[number]
		if other == "" {
			other = fmt.Sprintf("number %d", number)
		}
		return Tensor{}, span{}, fmt.Errorf("%s has the type %s, which isn't read; these are: %s", quote(name), other, dtypeNames())
	}
	size, err := tensorBytes(dtype, shape)
	if err != nil {
		return Tensor{}, span{}, fmt.Errorf("%s: %w", quote(name), err)
	}
	return Tensor{Name: name, Type: dtype, Shape: shape}, span{offset, size}, nil
}

// tensorBytes returns the bytes of a tensor, and fails where rows aren't whole blocks or the product doesn't fit an int.
func tensorBytes(t DType, shape []int) (uint64, error) {
	row := 1
	if len(shape) > 0 {
		row = shape[len(shape)-1]
	}
	if row%t.BlockSize() != 0 {
		return 0, fmt.Errorf("rows of %d elements aren't whole blocks of %d (%s)", row, t.BlockSize(), t)
	}
	// Every dimension but the last, then the row's blocks, then a block's bytes: nothing is divided after the product.
	size := uint64(1)
	for i, d := range append(slices.Clone(shape), t.BlockBytes()) {
		if i == len(shape)-1 {
			d /= t.BlockSize()
		}
		hi, lo := bits.Mul64(size, uint64(d))
		if hi != 0 || lo > math.MaxInt {
			return 0, fmt.Errorf("shape %v has more elements than can be addressed", shape)
		}
		size = lo
	}
	return size, nil
}

func dtypeNames() string {
	var s string
	for i, d := range dtypes {
		if i > 0 {
			s += ", "
		}
		s += d.name
	}
	return s
}

package weights

import (
	"cmp"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"unicode/utf8"
)

// A safetensors file (huggingface/safetensors, README "Format") is a header's length (uint64, little endian), the header (a
// JSON object: name to dtype, shape and data_offsets, and __metadata__, strings to strings), and the tensors' bytes, which
// the offsets cover without hole or overlap.
const (
	maxHeader        = 100_000_000
	maxHeaderRank    = 16
	metadataEntry    = "__metadata__"
	maxMetadataPairs = 1 << 16
)

var safetensorsTypes = map[string]DType{"F32": F32, "F16": F16, "BF16": BF16}

// parseSafetensors reads one file's header. A tensor's Data begins where the header happens to end, so that it may be
// unaligned even for its element size: a consumer that casts it must look, and copy.
func parseSafetensors(data []byte) (*File, error) {
	if len(data) < 9 {
		return nil, errors.New("ends inside the safetensors header")
	}
	n := binary.LittleEndian.Uint64(data)
	if n > maxHeader || n > uint64(len(data)-8) {
		return nil, fmt.Errorf("claims a safetensors header of %d bytes; it may have %d, and the file goes on for %d",
			n, maxHeader, len(data)-8)
	}
	s := &scanner{data: data[8 : 8+n]}
	tensors, spans, meta, err := readHeader(s)
	if err != nil {
		return nil, fmt.Errorf("safetensors header, byte %d: %w", s.pos, err)
	}
	body := data[8+n:]
	if err := cover(tensors, spans, uint64(len(body))); err != nil {
		return nil, err
	}
	for i, sp := range spans {
		tensors[i].Data = body[sp.begin : sp.begin+sp.size : sp.begin+sp.size]
	}
	return newFile(Safetensors, tensors, meta)
}

// cover checks that the tensors fill the body from its first byte to its last, one after another.
func cover(tensors []Tensor, spans []span, body uint64) error {
	order := make([]int, len(spans))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(a, b int) int {
		return cmp.Or(cmp.Compare(spans[a].begin, spans[b].begin), cmp.Compare(spans[a].size, spans[b].size))
	})
	var end uint64
	for _, i := range order {
		if spans[i].begin != end {
			return fmt.Errorf("tensor %s begins at offset %d, the one before ends at %d", quote(tensors[i].Name), spans[i].begin, end)
		}
		end += spans[i].size
		if end > body {
			return fmt.Errorf("tensor %s ends at offset %d, beyond the %d bytes of data: is the file complete?", quote(tensors[i].Name), end, body)
		}
	}
	if end != body {
		return fmt.Errorf("the tensors end at offset %d, the data at %d", end, body)
	}
	return nil
}

func readHeader(s *scanner) ([]Tensor, []span, metadata, error) {
	var tensors []Tensor
	var spans []span
	meta := metadata{values: map[string]value{}}
	sawMeta := false
	err := s.object(func(name string) error {
		if name == metadataEntry {
			if sawMeta {
				return errors.New("__metadata__ is there twice")
			}
			sawMeta = true
			return readHeaderMetadata(s, &meta)
		}
		if len(tensors) == maxTensors {
			return fmt.Errorf("more than %d tensors", maxTensors)
		}
		t, sp, err := readEntry(s)
		if err != nil {
			return fmt.Errorf("tensor %s: %w", quote(name), err)
		}
		t.Name = name
		tensors, spans = append(tensors, t), append(spans, sp)
		return nil
	})
	if err == nil {
		err = s.end()
	}
	return tensors, spans, meta, err
}

func readHeaderMetadata(s *scanner, meta *metadata) error {
	return s.object(func(key string) error {
		text, err := s.text(maxStringBytes)
		if err != nil {
			return fmt.Errorf("__metadata__ key %s: %w", quote(key), err)
		}
		if _, twice := meta.values[key]; twice {
			return fmt.Errorf("__metadata__ key %s is there twice", quote(key))
		}
		if len(meta.keys) == maxMetadataPairs {
			return fmt.Errorf("more than %d pairs in __metadata__", maxMetadataPairs)
		}
		meta.keys = append(meta.keys, key)
		meta.values[key] = value{kind: typeString, raw: text}
		return nil
	})
}

// readEntry reads one tensor's object. Each of its three members must be there once, and nothing else.
func readEntry(s *scanner) (Tensor, span, error) {
	var t Tensor
	var dtype string
	var offsets []int
	var seen []string
	err := s.object(func(member string) (err error) {
		if slices.Contains(seen, member) {
			return fmt.Errorf("%s is there twice", quote(member))
		}
		seen = append(seen, member)
		switch member {
		case "dtype":
			dtype, err = s.string()
		case "shape":
			t.Shape, err = s.ints(maxHeaderRank)
		case "data_offsets":
			offsets, err = s.ints(2)
		default:
			err = fmt.Errorf("member %s is unknown", quote(member))
		}
		return err
	})
	if err != nil {
		return t, span{}, err
	}
	if len(seen) != 3 || len(offsets) != 2 {
		return t, span{}, errors.New("wants dtype, shape and two data_offsets")
	}
	var ok bool
	if t.Type, ok = safetensorsTypes[dtype]; !ok {
		return t, span{}, fmt.Errorf("has the dtype %s, which isn't read; these are: F32, F16, BF16", quote(dtype))
	}
	size, err := entryBytes(t.Type, t.Shape)
	if err != nil {
		return t, span{}, err
	}
	if offsets[1] < offsets[0] || uint64(offsets[1]-offsets[0]) != size {
		return t, span{}, fmt.Errorf("has data_offsets %v; its %s of shape %v have %d bytes", offsets, t.Type, t.Shape, size)
	}
	return t, span{uint64(offsets[0]), size}, nil
}

// entryBytes is tensorBytes for shapes that may hold a zero: such a tensor is empty, however large the other dimensions.
func entryBytes(t DType, shape []int) (uint64, error) {
	if slices.Contains(shape, 0) {
		return 0, nil
	}
	return tensorBytes(t, shape)
}

// scanner reads the small part of JSON that a header may hold: objects, strings, and arrays of unsigned integers. It never
// looks deeper than the format goes, so nesting costs nothing, and it copies nothing but names.
type scanner struct {
	data []byte
	pos  int
}

// peek skips white space and returns the next byte, 0 at the end.
func (s *scanner) peek() byte {
	for s.pos < len(s.data) {
		switch b := s.data[s.pos]; b {
		case ' ', '\t', '\n', '\r':
			s.pos++
		default:
			return b
		}
	}
	return 0
}

func (s *scanner) expect(b byte) error {
	if got := s.peek(); got != b || s.pos == len(s.data) {
		return fmt.Errorf("wants %q, has %s", b, s.found())
	}
	s.pos++
	return nil
}

func (s *scanner) found() string {
	if s.pos >= len(s.data) {
		return "the end"
	}
	return strconv.QuoteRune(rune(s.data[s.pos]))
}

// end checks that nothing but white space follows.
func (s *scanner) end() error {
	if s.peek(); s.pos != len(s.data) {
		return fmt.Errorf("%s after the object", s.found())
	}
	return nil
}

// object reads an object and calls member, which must read the value, for each key.
func (s *scanner) object(member func(key string) error) error {
	return s.list('{', '}', func() error {
		key, err := s.string()
		if err != nil {
			return err
		}
		if err := s.expect(':'); err != nil {
			return err
		}
		return member(key)
	})
}

// list reads elements between two brackets, separated by commas.
func (s *scanner) list(left, right byte, element func() error) error {
	if err := s.expect(left); err != nil {
		return err
	}
	if s.peek() == right {
		s.pos++
		return nil
	}
	for {
		if err := element(); err != nil {
			return err
		}
		if s.peek() == right {
			s.pos++
			return nil
		}
		if err := s.expect(','); err != nil {
			return err
		}
	}
}

// ints reads an array of at most limit integers from 0 up.
func (s *scanner) ints(limit int) ([]int, error) {
	out := []int{}
	err := s.list('[', ']', func() error {
		if len(out) == limit {
			return fmt.Errorf("more than %d numbers in an array", limit)
		}
		s.peek()
		start := s.pos
		for s.pos < len(s.data) && s.pos-start < 20 && s.data[s.pos] >= '0' && s.data[s.pos] <= '9' {
			s.pos++
		}
		digits := string(s.data[start:s.pos])
		n, err := strconv.ParseUint(digits, 10, 64)
		if errors.Is(err, strconv.ErrRange) || err == nil && n > math.MaxInt {
			return fmt.Errorf("%s elements or bytes are more than can be addressed", digits)
		}
		if err != nil || len(digits) > 1 && digits[0] == '0' {
			return fmt.Errorf("wants an integer from 0 up, has %q before %s", digits, s.found())
		}
		out = append(out, int(n))
		return nil
	})
	return out, err
}

// string reads a name, copied.
func (s *scanner) string() (string, error) {
	text, err := s.text(maxNameBytes)
	return string(text), err
}

// text reads a string of at most limit bytes before its escapes are resolved; borrowed where it has none.
func (s *scanner) text(limit int) ([]byte, error) {
	raw, err := s.rawString()
	if err != nil {
		return nil, err
	}
	if len(raw)-2 > limit {
		return nil, fmt.Errorf("a string of %d bytes; up to %d are read", len(raw)-2, limit)
	}
	return unquote(raw)
}

// rawString returns a string with its quotes, borrowed.
func (s *scanner) rawString() ([]byte, error) {
	if err := s.expect('"'); err != nil {
		return nil, err
	}
	start := s.pos - 1
	for ; s.pos < len(s.data); s.pos++ {
		switch b := s.data[s.pos]; {
		case b == '"':
			s.pos++
			return s.data[start:s.pos], nil
		case b == '\\':
			s.pos++
		case b < ' ':
			return nil, fmt.Errorf("a control character %#x in a string", b)
		}
	}
	return nil, errors.New("ends inside a string")
}

// unquote returns a JSON string's text. Where it has no escapes it is borrowed from raw.
func unquote(raw []byte) ([]byte, error) {
	if !utf8.Valid(raw) {
		return nil, errors.New("a string isn't UTF-8")
	}
	if !slices.Contains(raw, '\\') {
		return raw[1 : len(raw)-1], nil
	}
	var text string
	if err := json.Unmarshal(raw, &text); err != nil {
		return nil, fmt.Errorf("a string: %w", err)
	}
	return []byte(text), nil
}

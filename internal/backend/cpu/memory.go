package cpu

import (
	"fmt"
	"math"

	"cotenant/internal/backend"
	"cotenant/internal/weights"
)

// scratch is one thread's own memory.
type scratch struct {
	panel []float32 // expanded weights
	tail  []float32 // outputs of an incomplete group
	bias  []float32 // and its bias
	acc   []float32 // results of tiles
	sums  []float32 // of one block, see sumMem
	rest  []byte    // weights of an incomplete strip
	args  amxArgs
	many  [maxTogether][]float32
	attn  []float32 // a tile's queries, scores and sums
}

func (s *scratch) bytes() int64 {
	return 4*int64(cap(s.panel)+cap(s.tail)+cap(s.bias)+cap(s.acc)+cap(s.sums)+cap(s.attn)) + int64(cap(s.rest))
}

// grow returns *p with at least n elements, contents undefined.
func grow(p *[]float32, n int) []float32 {
	if cap(*p) < n {
		*p = alignedFloats(n)
	}
	return (*p)[:n]
}

// part is rows of a matrix that share a format.
type part struct {
	dtype    weights.DType
	first    int // its first row's number in the matrix
	rows     int
	rowBytes int
	data     []byte // borrowed from the file's mapping
}

func (p *part) row(i int) []byte { return p.span(i, 1) }
func (p *part) span(i, n int) []byte {
	return p.data[i*p.rowBytes : (i+n)*p.rowBytes : (i+n)*p.rowBytes]
}

type matrix struct {
	parts      []part
	rows, cols int
	pieces     []piece
	few, wide  []piece // for the tile unit: with one tile of x, with more
}

func (m *matrix) Rows() int { return m.rows }
func (m *matrix) Cols() int { return m.cols }
func (m *matrix) Bytes() int64 {
	var n int64
	for i := range m.parts {
		n += int64(m.parts[i].rows) * int64(m.parts[i].rowBytes)
	}
	return n
}

type vector struct{ v []float32 }

func (v *vector) Len() int { return len(v.v) }

type buffer struct{ v []float32 }

func (b *buffer) Len() int { return len(b.v) }

// Matrix implements backend.Backend. The parts' data is used where it is, in the file's mapping.
func (b *cpuBackend) Matrix(parts ...weights.Tensor) (backend.Matrix, error) {
	if len(parts) == 0 {
		return nil, fmt.Errorf("matrix without parts")
	}
	m := &matrix{}
	var bytes int64
	for _, t := range parts {
		if len(t.Shape) != 2 || t.Shape[0] < 1 || t.Shape[1] < 1 {
			return nil, fmt.Errorf("tensor %s: shape %v is not a matrix", t.Name, t.Shape)
		}
		rows, cols := t.Shape[0], t.Shape[1]
		if m.cols == 0 {
			m.cols = cols
		}
		if cols != m.cols {
			return nil, fmt.Errorf("tensor %s: %d columns beside a part of %d", t.Name, cols, m.cols)
		}
		if int(t.Type) >= types || cols%t.Type.BlockSize() != 0 {
			return nil, fmt.Errorf("tensor %s: %d columns of %v cannot be used", t.Name, cols, t.Type)
		}
		rb := t.Type.RowBytes(cols)
		if rows > math.MaxInt/rb || len(t.Data) != rows*rb {
			return nil, fmt.Errorf("tensor %s: %d bytes for %v of %v", t.Name, len(t.Data), t.Shape, t.Type)
		}
		m.parts = append(m.parts, part{dtype: t.Type, first: m.rows, rows: rows, rowBytes: rb, data: t.Data})
		m.rows += rows
		bytes += int64(len(t.Data))
	}
	b.mapped += bytes
	m.pieces = m.cut(pieceRows)
	if b.k.tiles.multiplies(m) {
		m.few, m.wide = m.cut(fewPieceRows), m.cut(tilePieceRows)
	}
	return m, nil
}

// Vector implements backend.Backend; it copies.
func (b *cpuBackend) Vector(parts ...weights.Tensor) (backend.Vector, error) {
	v := &vector{}
	for _, t := range parts {
		n := 1
		for _, d := range t.Shape {
			if d < 1 || n > math.MaxInt32/d {
				return nil, fmt.Errorf("tensor %s: shape %v is not a vector", t.Name, t.Shape)
			}
			n *= d
		}
		if int(t.Type) >= types || n%t.Type.BlockSize() != 0 || len(t.Data) != t.Type.RowBytes(n) {
			return nil, fmt.Errorf("tensor %s: %d bytes for %v of %v", t.Name, len(t.Data), t.Shape, t.Type)
		}
		at := len(v.v)
		v.v = append(v.v, make([]float32, n)...)
		weights.Dequantize(v.v[at:], t.Type, t.Data)
	}
	if len(v.v) == 0 {
		return nil, fmt.Errorf("vector without elements")
	}
	b.weights += 4 * int64(len(v.v))
	return v, nil
}

// Buffer implements backend.Backend.
func (b *cpuBackend) Buffer(n int) (backend.Buffer, error) {
	if n < 1 || n > math.MaxInt32 {
		return nil, fmt.Errorf("cpu backend: buffer of %d elements", n)
	}
	v, err := b.pages(int64(n))
	if err != nil {
		return nil, fmt.Errorf("cpu backend: buffer of %d elements: %w", n, err)
	}
	b.buffers += 4 * int64(n)
	return &buffer{v}, nil
}

// pages allocates n float32 outside Go's heap where the system can: only what is touched becomes resident, and the
// collector's pace does not depend on it.
func (b *cpuBackend) pages(n int64) ([]float32, error) {
	v, free, err := lazyFloats(n)
	if err != nil {
		return nil, err
	}
	if free != nil {
		b.unmap = append(b.unmap, free)
	}
	return v, nil
}

func data(x backend.Buffer, op string) []float32 {
	b, ok := x.(*buffer)
	if !ok {
		misfit(op, "a buffer of another backend (%T)", x)
	}
	return b.v
}

func vec(x backend.Vector, op string) []float32 {
	v, ok := x.(*vector)
	if !ok {
		misfit(op, "a vector of another backend (%T)", x)
	}
	return v.v
}

func matrixOf(x backend.Matrix, op string) *matrix {
	m, ok := x.(*matrix)
	if !ok {
		misfit(op, "a matrix of another backend (%T)", x)
	}
	return m
}

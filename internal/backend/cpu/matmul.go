package cpu

import "cotenant/internal/backend"

// group is how many weight rows a kernel takes at a time.
const group = 4

// MatMul implements backend.Backend. Threads share the weight rows; each piece of work expands its weight rows once and
// uses them for all rows of x.
func (b *cpuBackend) MatMul(dst, x backend.Buffer, rows int, m backend.Matrix, bias backend.Vector, accumulate bool) {
	const op = "MatMul"
	w := matrixOf(m, op)
	b.ops.matmul = matmul{k: b.k.of(w.cols), scratch: b.scratch, w: w, rows: rows, add: accumulate, dst: data(dst, op), x: data(x, op)}
	mul := &b.ops.matmul
	fits(op, rows, w.cols, mul.x)
	fits(op, rows, w.rows, mul.dst)
	if &mul.x[0] == &mul.dst[0] {
		misfit(op, "dst is x")
	}
	if bias != nil {
		if mul.bias = vec(bias, op); len(mul.bias) != w.rows {
			misfit(op, "bias of %d for %d outputs", len(mul.bias), w.rows)
		}
	}
	mul.pieces, mul.blockRows = w.pieces, rows
	if rows >= tilesFrom && w.wide != nil {
		mul.packed, mul.pieces = &b.tiles, w.few
		b.pack(mul.x, rows, w.cols)
		if rows > stripRows {
			mul.pieces, mul.blockRows = w.wide, tilesAtOnce*stripRows
		}
	}
	b.pool.run(len(mul.pieces)*((rows+mul.blockRows-1)/mul.blockRows), mul)
}

// piece is consecutive rows of one part: what one thread does in one go.
type piece struct {
	part  *part
	first int // row in the part
	rows  int
}

// Cache sizes that the matrix product is cut for, in float32: they fit the smallest second-level caches in use, 512 KiB.
const (
	pieceRows  = 32       // at most, for an even split of narrow matrices
	panelFloat = 48 << 10 // expanded weights of a piece
	blockFloat = 32 << 10 // rows of x that go over a panel together
	blockAlign = 12       // a multiple of every path's tile
)

// cut divides a matrix into pieces of at most rows rows.
func (m *matrix) cut(rows int) (out []piece) {
	most := max(group, min(rows, panelFloat/m.cols/group*group))
	for i := range m.parts {
		p := &m.parts[i]
		for r := 0; r < p.rows; r += most {
			out = append(out, piece{part: p, first: r, rows: min(most, p.rows-r)})
		}
	}
	return out
}

var zeros [group]float32

// matmul is the job of a MatMul: pieces by blocks of rows of x, all pieces of a block before the next block.
type matmul struct {
	k         *kernels
	scratch   []*scratch
	w         *matrix
	pieces    []piece
	rows      int
	blockRows int
	add       bool
	dst, x    []float32
	packed    *tileMem  // x for the tile unit
	bias      []float32 // nil: none
}

func (m *matmul) do(thread, i int) {
	s, p := m.scratch[thread], &m.pieces[i%len(m.pieces)]
	from := i / len(m.pieces) * m.blockRows
	end := min(from+m.blockRows, m.rows)
	if m.packed != nil && m.k.tiles.product[p.part.dtype] != nil {
		m.tilePiece(s, p, from, end)
		return
	}
	gemv, few := m.k.gemv4[p.part.dtype], m.k.few4[p.part.dtype]
	whole := p.rows / group * group
	if m.rows == 1 && gemv != nil {
		for r := 0; r < whole; r += group {
			out := p.part.first + p.first + r
			gemv(m.dst[out:out+group], m.x[:m.w.cols], p.part.span(p.first+r, group), p.part.rowBytes, m.biasAt(out), m.add)
		}
	} else if m.rows <= mostFew && few != nil {
		for r := 0; r < whole; r += group {
			out := p.part.first + p.first + r
			few(m.dst[out:], m.w.rows, m.x[:m.rows*m.w.cols], m.rows, p.part.span(p.first+r, group), p.part.rowBytes, m.biasAt(out), m.add)
		}
	} else if m.rows <= 2*mostFew {
		for r := 0; r < whole; r += group { // few rows: the panel stays in the first-level cache
			m.block(s, p, r, group, from, end)
		}
	} else if whole > 0 {
		m.block(s, p, 0, whole, from, end)
	}
	if whole < p.rows {
		m.tail(s, p, whole, from, end)
	}
}

// block multiplies n rows of a piece, from first, whole groups, by rows from to end-1 of x.
func (m *matmul) block(s *scratch, p *piece, first, n, from, end int) {
	cols, ldd, out := m.w.cols, m.w.rows, p.part.first+p.first+first
	panel := grow(&s.panel, n*cols)
	m.k.expand[p.part.dtype](panel, p.part.span(p.first+first, n))
	step := max(1, blockFloat/cols/blockAlign) * blockAlign
	for i := from; i < end; i += step {
		rows := min(step, end-i)
		for r := 0; r < n; r += group {
			m.k.dot4(m.dst[i*ldd+out+r:], ldd, m.x[i*cols:], rows, cols, panel[r*cols:], m.biasAt(out+r), m.add)
		}
	}
}

// biasAt returns the group of biases from output out on.
func (m *matmul) biasAt(out int) []float32 {
	if m.bias == nil {
		return zeros[:]
	}
	return m.bias[out : out+group]
}

// tail does the last rows of a piece, from first, less than a group: as a whole group into scratch, of which they are part.
func (m *matmul) tail(s *scratch, p *piece, first, from, end int) {
	cols, ldd, n := m.w.cols, m.w.rows, p.rows-first
	out := p.part.first + p.first + first
	panel := grow(&s.panel, group*cols)
	m.k.expand[p.part.dtype](panel[:n*cols], p.part.span(p.first+first, n))
	clear(panel[n*cols:])
	bias := grow(&s.bias, group)
	clear(bias)
	if m.bias != nil {
		copy(bias, m.bias[out:out+n])
	}
	tmp := grow(&s.tail, group*(end-from))
	m.k.dot4(tmp, group, m.x[from*cols:], end-from, cols, panel, bias, false)
	for i := range end - from {
		for j := range n {
			if m.add {
				m.dst[(from+i)*ldd+out+j] += tmp[i*group+j]
			} else {
				m.dst[(from+i)*ldd+out+j] = tmp[i*group+j]
			}
		}
	}
}

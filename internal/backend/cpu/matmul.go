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
	b.pool.run(len(w.pieces), mul)
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

// cut divides a matrix into pieces.
func (m *matrix) cut() {
	most := max(group, min(pieceRows, panelFloat/m.cols/group*group))
	for i := range m.parts {
		p := &m.parts[i]
		for r := 0; r < p.rows; r += most {
			m.pieces = append(m.pieces, piece{part: p, first: r, rows: min(most, p.rows-r)})
		}
	}
}

var zeros [group]float32

// matmul is the job of a MatMul.
type matmul struct {
	k       *kernels
	scratch []*scratch
	w       *matrix
	rows    int
	add     bool
	dst, x  []float32
	bias    []float32 // nil: none
}

func (m *matmul) do(thread, i int) {
	s, p := m.scratch[thread], &m.w.pieces[i]
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
			m.block(s, p, r, group)
		}
	} else if whole > 0 {
		m.block(s, p, 0, whole)
	}
	if whole < p.rows {
		m.tail(s, p, whole)
	}
}

// block multiplies n rows of a piece, from first, whole groups, by all rows of x.
func (m *matmul) block(s *scratch, p *piece, first, n int) {
	cols, ldd, out := m.w.cols, m.w.rows, p.part.first+p.first+first
	panel := grow(&s.panel, n*cols)
	m.k.expand[p.part.dtype](panel, p.part.span(p.first+first, n))
	step := max(1, blockFloat/cols/blockAlign) * blockAlign
	for i := 0; i < m.rows; i += step {
		rows := min(step, m.rows-i)
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
func (m *matmul) tail(s *scratch, p *piece, first int) {
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
	tmp := grow(&s.tail, group*m.rows)
	m.k.dot4(tmp, group, m.x, m.rows, cols, panel, bias, false)
	for i := range m.rows {
		for j := range n {
			if m.add {
				m.dst[i*ldd+out+j] += tmp[i*group+j]
			} else {
				m.dst[i*ldd+out+j] = tmp[i*group+j]
			}
		}
	}
}

package cpu

import "cotenant/internal/backend"

// group is how many weight rows a kernel takes at a time.
const group = 4

// MatMul implements backend.Backend. Threads share the weight rows; each piece of work expands its weight rows once and
// uses them for all rows of x.
func (b *cpuBackend) MatMul(dst, x backend.Buffer, rows int, m backend.Matrix, bias backend.Vector, accumulate bool) {
	const op = "MatMul"
	w, ok := m.(*matrix)
	check(ok, op, "a matrix of another backend (%T)", m)
	mul := matmul{k: b.k.of(w.cols), w: w, rows: rows, add: accumulate, dst: data(dst, op), x: data(x, op)}
	check(rows >= 1 && rows*w.cols <= len(mul.x), op, "%d rows of %d in a buffer of %d", rows, w.cols, len(mul.x))
	check(rows*w.rows <= len(mul.dst), op, "%d rows of %d into a buffer of %d", rows, w.rows, len(mul.dst))
	check(&mul.x[0] != &mul.dst[0], op, "dst is x")
	if bias != nil {
		mul.bias = vec(bias, op)
		check(len(mul.bias) == w.rows, op, "bias of %d for %d outputs", len(mul.bias), w.rows)
	}
	b.pool.run(len(w.pieces), func(thread, i int) { mul.piece(b.scratch[thread], &w.pieces[i]) })
}

// piece is consecutive rows of one part: what one thread does in one go.
type piece struct {
	part  *part
	first int // row in the part
	rows  int
}

// pieceRows is a multiple of group, small enough for an even split of the narrowest matrices.
const pieceRows = 32

// cut divides a matrix into pieces.
func (m *matrix) cut() {
	for i := range m.parts {
		p := &m.parts[i]
		for r := 0; r < p.rows; r += pieceRows {
			m.pieces = append(m.pieces, piece{part: p, first: r, rows: min(pieceRows, p.rows-r)})
		}
	}
}

var zeros [group]float32

type matmul struct {
	k      *kernels
	w      *matrix
	rows   int
	add    bool
	dst, x []float32
	bias   []float32 // nil: none
}

func (m *matmul) piece(s *scratch, p *piece) {
	cols, ldd := m.w.cols, m.w.rows
	expand, gemv := m.k.expand[p.part.dtype], m.k.gemv4[p.part.dtype]
	for r := 0; r < p.rows; r += group {
		n := min(group, p.rows-r)
		out := p.part.first + p.first + r
		bias := zeros[:]
		if m.bias != nil && n == group {
			bias = m.bias[out : out+group]
		} else if m.bias != nil {
			bias = grow(&s.bias, group)
			copy(bias, m.bias[out:])
		}
		first := p.first + r
		if n == group && m.rows == 1 && gemv != nil {
			gemv(m.dst[out:out+group], m.x[:cols], p.part.span(first, group), p.part.rowBytes, bias, m.add)
			continue
		}
		panel := grow(&s.panel, group*cols)
		for j := range n {
			expand(panel[j*cols:(j+1)*cols], p.part.row(first+j))
		}
		if n == group {
			m.k.dot4(m.dst[out:], ldd, m.x, m.rows, cols, panel, bias, m.add)
			continue
		}
		m.tail(s, panel, out, n, bias)
	}
}

// tail does the last n < group rows of a part: a whole group into scratch, of which n columns count.
func (m *matmul) tail(s *scratch, panel []float32, out, n int, bias []float32) {
	cols, ldd := m.w.cols, m.w.rows
	clear(panel[n*cols:])
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

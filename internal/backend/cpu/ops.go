package cpu

import (
	"fmt"
	"sort"

	"cotenant/internal/backend"
)

// parallelFrom is how many elements an elementwise operation must have before threads share it.
const parallelFrom = 16 << 10

// overRows calls f for ranges that cover rows 0 to n-1, on several threads where rows of width elements are worth it.
func (b *cpuBackend) overRows(n, width int, f func(first, end int)) {
	if n*width < parallelFrom || b.pool.threads == 1 {
		f(0, n)
		return
	}
	pieces := min(n, 4*b.pool.threads)
	b.pool.run(pieces, func(_, i int) { f(n*i/pieces, n*(i+1)/pieces) })
}

// Embed implements backend.Backend. A token outside the table is an error of the step.
func (b *cpuBackend) Embed(dst backend.Buffer, m backend.Matrix) {
	const op = "Embed"
	w, ok := m.(*matrix)
	check(ok, op, "a matrix of another backend (%T)", m)
	out, rows, cols := data(dst, op), b.batch.rows(), w.cols
	check(rows*cols <= len(out), op, "%d rows of %d into a buffer of %d", rows, cols, len(out))
	for i, t := range b.batch.tokens {
		if t < 0 || int(t) >= w.rows {
			b.fail(fmt.Errorf("cpu backend: embed: token %d of row %d is outside the vocabulary of %d", t, i, w.rows))
			return
		}
	}
	b.overRows(rows, cols, func(first, end int) {
		for i := first; i < end; i++ {
			t := int(b.batch.tokens[i])
			pi := sort.Search(len(w.parts), func(p int) bool { return w.parts[p].first > t }) - 1
			p := &w.parts[pi]
			b.k.expand[p.dtype](out[i*cols:(i+1)*cols], p.row(t-p.first))
		}
	})
}

// RMSNorm implements backend.Backend.
func (b *cpuBackend) RMSNorm(dst, x backend.Buffer, rows int, w backend.Vector, eps float32) {
	const op = "RMSNorm"
	out, in, scale := data(dst, op), data(x, op), vec(w, op)
	n := len(scale)
	check(rows >= 1 && rows*n <= len(in) && rows*n <= len(out), op, "%d rows of %d from a buffer of %d to one of %d", rows, n, len(in), len(out))
	k := b.k.of(n)
	b.overRows(rows, n, func(first, end int) {
		for i := first; i < end; i++ {
			k.norm(out[i*n:(i+1)*n], in[i*n:(i+1)*n], scale, eps)
		}
	})
}

// HeadNorm implements backend.Backend.
func (b *cpuBackend) HeadNorm(qkv backend.Buffer, a backend.Attention, q, k backend.Vector, eps float32) {
	const op = "HeadNorm"
	x, wq, wk := data(qkv, op), vec(q, op), vec(k, op)
	rows, width, d := b.batch.rows(), a.QKVWidth(), a.HeadDim
	check(rows*width <= len(x), op, "%d rows of %d in a buffer of %d", rows, width, len(x))
	check(len(wq) == d && len(wk) == d, op, "weights of %d and %d for heads of %d", len(wq), len(wk), d)
	path := b.k.of(d)
	b.overRows(rows, width, func(first, end int) {
		for i := first; i < end; i++ {
			row := x[i*width : (i+1)*width]
			for h := range a.Heads + a.KVHeads {
				w := wq
				if h >= a.Heads {
					w = wk
				}
				head := row[h*d : (h+1)*d]
				path.norm(head, head, w, eps)
			}
		}
	})
}

// SwiGLU implements backend.Backend.
func (b *cpuBackend) SwiGLU(dst, gateUp backend.Buffer, rows, width int) {
	const op = "SwiGLU"
	out, in := data(dst, op), data(gateUp, op)
	check(rows >= 1 && width >= 1 && 2*rows*width <= len(in) && rows*width <= len(out), op,
		"%d rows of 2*%d from a buffer of %d to one of %d", rows, width, len(in), len(out))
	b.overRows(rows, 4*width, func(first, end int) {
		for i := first; i < end; i++ {
			r := in[2*i*width : 2*(i+1)*width]
			b.k.swiglu(out[i*width:(i+1)*width], r[:width], r[width:])
		}
	})
}

// Gather implements backend.Backend.
func (b *cpuBackend) Gather(dst, x backend.Buffer, width, first, n int) {
	const op = "Gather"
	out, in := data(dst, op), data(x, op)
	check(width >= 1 && first >= 0 && n >= 0 && first+n <= len(b.batch.outputs), op, "outputs %d+%d of %d", first, n, len(b.batch.outputs))
	check(n*width <= len(out), op, "%d rows of %d into a buffer of %d", n, width, len(out))
	check(b.batch.rows()*width <= len(in), op, "%d rows of %d in a buffer of %d", b.batch.rows(), width, len(in))
	for i, r := range b.batch.outputs[first : first+n] {
		copy(out[i*width:(i+1)*width], in[int(r)*width:int(r+1)*width])
	}
}

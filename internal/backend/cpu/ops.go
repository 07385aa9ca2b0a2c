package cpu

import (
	"fmt"
	"sort"

	"cotenant/internal/backend"
)

// ops holds the operation that runs, one field a kind, so that a step allocates nothing.
type ops struct {
	over   overRows
	embed  embedOp
	norm   normOp
	heads  headNormOp
	rope   ropeOp
	swiglu swigluOp
	pack   packOp
	matmul matmul
	attn   attnRun
}

// rowOp is an operation on each row alone.
type rowOp interface{ rows(first, end int) }

// parallelFrom is how many elements a row operation must have before threads share it.
const parallelFrom = 16 << 10

// overRows is the job of a rowOp.
type overRows struct {
	op        rowOp
	n, pieces int
}

func (o *overRows) do(_, i int) { o.op.rows(o.n*i/o.pieces, o.n*(i+1)/o.pieces) }

// eachRow runs op on rows 0 to n-1, on several threads where rows of width elements are worth it.
func (b *cpuBackend) eachRow(op rowOp, n, width int) {
	if n*width < parallelFrom || b.pool.threads == 1 {
		op.rows(0, n)
		return
	}
	b.ops.over = overRows{op: op, n: n, pieces: min(n, 4*b.pool.threads)}
	b.pool.run(b.ops.over.pieces, &b.ops.over)
}

type embedOp struct {
	k      *kernels
	w      *matrix
	tokens []int32
	dst    []float32
}

// Embed implements backend.Backend. A token outside the table is an error of the step.
func (b *cpuBackend) Embed(dst backend.Buffer, m backend.Matrix) {
	const op = "Embed"
	b.ops.embed = embedOp{k: b.k, w: matrixOf(m, op), tokens: b.batch.tokens, dst: data(dst, op)}
	w, rows := b.ops.embed.w, b.batch.rows()
	fits(op, rows, w.cols, b.ops.embed.dst)
	for i, t := range b.batch.tokens {
		if t < 0 || int(t) >= w.rows {
			b.fail(fmt.Errorf("cpu backend: embed: token %d of row %d is outside the vocabulary of %d", t, i, w.rows))
			return
		}
	}
	b.eachRow(&b.ops.embed, rows, w.cols)
}

func (o *embedOp) rows(first, end int) {
	cols, parts := o.w.cols, o.w.parts
	for i := first; i < end; i++ {
		t := int(o.tokens[i])
		p := &parts[sort.Search(len(parts), func(p int) bool { return parts[p].first > t })-1]
		o.k.expand[p.dtype](o.dst[i*cols:(i+1)*cols], p.row(t-p.first))
	}
}

type normOp struct {
	k         *kernels
	dst, x, w []float32
	eps       float32
}

// RMSNorm implements backend.Backend.
func (b *cpuBackend) RMSNorm(dst, x backend.Buffer, rows int, w backend.Vector, eps float32) {
	const op = "RMSNorm"
	b.ops.norm = normOp{dst: data(dst, op), x: data(x, op), w: vec(w, op), eps: eps}
	o := &b.ops.norm
	n := len(o.w)
	fits(op, rows, n, o.x)
	fits(op, rows, n, o.dst)
	o.k = b.k.of(n)
	b.eachRow(o, rows, n)
}

func (o *normOp) rows(first, end int) {
	n := len(o.w)
	for i := first; i < end; i++ {
		o.k.norm(o.dst[i*n:(i+1)*n], o.x[i*n:(i+1)*n], o.w, o.eps)
	}
}

type headNormOp struct {
	k       *kernels
	a       backend.Attention
	x, q, w []float32 // q and w: the weights of queries and keys
	eps     float32
}

// HeadNorm implements backend.Backend.
func (b *cpuBackend) HeadNorm(qkv backend.Buffer, a backend.Attention, q, k backend.Vector, eps float32) {
	const op = "HeadNorm"
	b.ops.heads = headNormOp{k: b.k.of(a.HeadDim), a: a, x: data(qkv, op), q: vec(q, op), w: vec(k, op), eps: eps}
	o := &b.ops.heads
	fits(op, b.batch.rows(), a.QKVWidth(), o.x)
	if len(o.q) != a.HeadDim || len(o.w) != a.HeadDim {
		misfit(op, "weights of %d and %d for heads of %d", len(o.q), len(o.w), a.HeadDim)
	}
	b.eachRow(o, b.batch.rows(), a.QKVWidth())
}

func (o *headNormOp) rows(first, end int) {
	d, width := o.a.HeadDim, o.a.QKVWidth()
	for i := first; i < end; i++ {
		for h := range o.a.Heads + o.a.KVHeads {
			w := o.q
			if h >= o.a.Heads {
				w = o.w
			}
			head := o.x[i*width+h*d : i*width+(h+1)*d]
			o.k.norm(head, head, w, o.eps)
		}
	}
}

type swigluOp struct {
	k       *kernels
	dst, in []float32
	width   int
}

// SwiGLU implements backend.Backend.
func (b *cpuBackend) SwiGLU(dst, gateUp backend.Buffer, rows, width int) {
	const op = "SwiGLU"
	b.ops.swiglu = swigluOp{k: b.k, dst: data(dst, op), in: data(gateUp, op), width: width}
	fits(op, rows, 2*width, b.ops.swiglu.in)
	fits(op, rows, width, b.ops.swiglu.dst)
	b.eachRow(&b.ops.swiglu, rows, 4*width)
}

func (o *swigluOp) rows(first, end int) {
	n := o.width
	for i := first; i < end; i++ {
		r := o.in[2*i*n : 2*(i+1)*n]
		o.k.swiglu(o.dst[i*n:(i+1)*n], r[:n], r[n:])
	}
}

// Gather implements backend.Backend.
func (b *cpuBackend) Gather(dst, x backend.Buffer, width, first, n int) {
	const op = "Gather"
	out, in := data(dst, op), data(x, op)
	if first < 0 || n < 0 || first+n > len(b.batch.outputs) {
		misfit(op, "outputs %d+%d of %d", first, n, len(b.batch.outputs))
	}
	fits(op, max(n, 1), width, out)
	fits(op, b.batch.rows(), width, in)
	for i, r := range b.batch.outputs[first : first+n] {
		copy(out[i*width:(i+1)*width], in[int(r)*width:int(r+1)*width])
	}
}

package cuda

import (
	"fmt"
	"math"

	"cotenant/internal/backend"
	"cotenant/internal/weights"
)

// opKind is an operation of backend.Backend.
type opKind uint8

const (
	opEmbed opKind = iota
	opNorm
	opMatMul
	opHeadNorm
	opRoPE
	opAttention
	opSwiGLU
	opGather
	opSample
)

// op is an operation as recorded. Two steps whose ops are equal are the same work on other input.
type op struct {
	kind       opKind
	accumulate bool
	wide       bool // of opMatMul: the result is float32
	gathered   bool // of opMatMul: of rows that Gather chose
	adjust     bool // of opSample
	kept       bool // of opGather: what it copies is read when the step is done
	srcKind    kind // what src holds
	dst, src   *buffer
	m          *matrix
	v, w       *vector // weights or bias
	kv         *kv
	rope       *rope
	layer      int
	rows       int
	n, first   int // width; of opSample the vocabulary
	eps        float32
	a          backend.Attention
}

// record notes an operation.
func (g *gpu) record(o op) {
	if g.err == nil {
		g.step.ops = append(g.step.ops, o)
	}
}

// padded returns the rows that an operation on all rows computes.
func (g *gpu) padded(rows int) int {
	if g.step.decode && rows == g.step.rows {
		return g.step.l.rows
	}
	return rows
}

// Embed implements backend.Backend. A token outside the table is an error of the step.
func (g *gpu) Embed(dst backend.Buffer, m backend.Matrix) {
	const name = "Embed"
	o := op{kind: opEmbed, dst: bufferOf(dst, name), m: matrixOf(m, name), rows: g.step.l.rows}
	fits(name, o.dst, o.rows, o.m.cols)
	for i, t := range g.step.tokens {
		if int(t) >= o.m.rows || t < 0 && int(^t) >= g.samples.rows {
			g.fail(fmt.Errorf("embed: token %d of row %d is outside the vocabulary of %d", t, i, o.m.rows))
			return
		}
	}
	o.dst.kind = f32
	g.record(o)
}

// RMSNorm implements backend.Backend.
func (g *gpu) RMSNorm(dst, x backend.Buffer, rows int, w backend.Vector, eps float32) {
	const name = "RMSNorm"
	o := op{kind: opNorm, dst: bufferOf(dst, name), src: bufferOf(x, name), rows: g.padded(rows), n: w.Len(), eps: eps}
	o.v = vectorOf(w, name, o.n)
	fits(name, o.src, o.rows, o.n)
	fits(name, o.dst, o.rows, o.n)
	if o.src.kind != f32 {
		misfit(name, "of a buffer that holds bf16")
	}
	if o.dst != o.src {
		o.dst.kind = bf16
	}
	g.record(o)
}

// MatMul implements backend.Backend. What is accumulated is float32, and so is what Read or Sample takes next (see wide); else the
// result is bf16.
func (g *gpu) MatMul(dst, x backend.Buffer, rows int, m backend.Matrix, bias backend.Vector, accumulate bool) {
	const name = "MatMul"
	o := op{kind: opMatMul, dst: bufferOf(dst, name), src: bufferOf(x, name), m: matrixOf(m, name), rows: g.padded(rows), accumulate: accumulate}
	if o.dst == o.src {
		misfit(name, "in place")
	}
	fits(name, o.src, o.rows, o.m.cols)
	fits(name, o.dst, o.rows, o.m.rows)
	o.v, o.srcKind, o.gathered = vectorOf(bias, name, o.m.rows), o.src.kind, g.step.gathered
	if accumulate && o.dst.kind != f32 {
		misfit(name, "accumulates to a buffer that holds bf16")
	}
	if !accumulate {
		o.dst.kind = bf16
	}
	g.record(o)
}

// HeadNorm implements backend.Backend.
func (g *gpu) HeadNorm(qkv backend.Buffer, a backend.Attention, q, k backend.Vector, eps float32) {
	const name = "HeadNorm"
	o := op{kind: opHeadNorm, dst: bufferOf(qkv, name), rows: g.step.l.rows, a: a, eps: eps}
	fits(name, o.dst, o.rows, a.QKVWidth())
	o.v, o.w = vectorOf(q, name, a.HeadDim), vectorOf(k, name, a.HeadDim)
	g.checkHeads(name, o.dst, a)
	g.record(o)
}

func (g *gpu) checkHeads(name string, qkv *buffer, a backend.Attention) {
	if qkv.kind != bf16 {
		misfit(name, "of a buffer that holds float32")
	}
	if a.HeadDim > maxHeadDim {
		misfit(name, "heads of %d", a.HeadDim)
	}
}

// maxHeadDim is what the plain kernels have room for.
const maxHeadDim = 256

// RoPEStore implements backend.Backend. A position beyond the tables or a slot outside the memory is an error of the step.
func (g *gpu) RoPEStore(qkv backend.Buffer, a backend.Attention, r backend.RoPEHandle, memory backend.KV, layer int) {
	const name = "RoPEStore"
	o := op{kind: opRoPE, dst: bufferOf(qkv, name), kv: kvOf(memory, a, layer, name), layer: layer, rows: g.step.l.rows, a: a}
	var ok bool
	if o.rope, ok = r.(*rope); !ok || o.rope.dim > a.HeadDim {
		misfit(name, "tables %T for heads of %d", r, a.HeadDim)
	}
	fits(name, o.dst, o.rows, a.QKVWidth())
	g.checkHeads(name, o.dst, a)
	if s := &g.step; s.stored != o.kv || s.turned != o.rope {
		for i, p := range s.at {
			if slots := o.kv.c.Pages * o.kv.c.PageSize; p < 0 || int(p) >= o.rope.positions || s.slots[i] < 0 || int(s.slots[i]) >= slots {
				g.fail(fmt.Errorf("rotate and store: row %d has position %d of %d and slot %d of %d", i, p, o.rope.positions, s.slots[i], slots))
				return
			}
		}
		s.stored, s.turned = o.kv, o.rope
	}
	g.record(o)
}

// Attention implements backend.Backend. A page outside the memory, or missing for a row's position, is an error of the step.
func (g *gpu) Attention(dst, qkv backend.Buffer, a backend.Attention, memory backend.KV, layer int) {
	const name = "Attention"
	o := op{kind: opAttention, dst: bufferOf(dst, name), src: bufferOf(qkv, name), kv: kvOf(memory, a, layer, name), layer: layer,
		rows: g.step.l.rows, a: a}
	fits(name, o.src, o.rows, a.QKVWidth())
	fits(name, o.dst, o.rows, a.Heads*a.HeadDim)
	g.checkHeads(name, o.src, a)
	if s := &g.step; s.attended != o.kv {
		if err := s.checkPages(o.kv.c); err != nil {
			g.fail(fmt.Errorf("attention: %w", err))
			return
		}
		s.attended = o.kv
	}
	o.dst.kind = bf16
	g.record(o)
}

func (s *step) checkPages(c backend.KVConfig) error {
	for i, q := range s.seqs {
		last := q.Past + q.Rows - 1
		if last/c.PageSize >= len(q.Pages) {
			return fmt.Errorf("sequence %d: %d pages of %d hold no token %d", i, len(q.Pages), c.PageSize, last)
		}
		for _, p := range q.Pages[:last/c.PageSize+1] {
			if p < 0 || int(p) >= c.Pages {
				return fmt.Errorf("sequence %d: page %d of %d", i, p, c.Pages)
			}
		}
		for r := range q.Rows {
			if got := int(s.at[q.Row+r]); got != q.Past+r {
				return fmt.Errorf("sequence %d: row %d has position %d, its place is %d", i, q.Row+r, got, q.Past+r)
			}
		}
	}
	return nil
}

// SwiGLU implements backend.Backend.
func (g *gpu) SwiGLU(dst, gateUp backend.Buffer, rows, width int) {
	const name = "SwiGLU"
	o := op{kind: opSwiGLU, dst: bufferOf(dst, name), src: bufferOf(gateUp, name), rows: g.padded(rows), n: width}
	fits(name, o.src, o.rows, 2*width)
	fits(name, o.dst, o.rows, width)
	if o.src.kind != bf16 {
		misfit(name, "of a buffer that holds float32")
	}
	o.dst.kind = bf16
	g.record(o)
}

// Gather implements backend.Backend.
func (g *gpu) Gather(dst, x backend.Buffer, width, first, n int) {
	const name = "Gather"
	if first < 0 || n < 1 || first+n > g.step.outs {
		misfit(name, "outputs %d+%d of %d", first, n, g.step.outs)
	}
	o := op{kind: opGather, dst: bufferOf(dst, name), src: bufferOf(x, name), rows: g.padded(n), n: width, first: first}
	if o.dst == o.src {
		misfit(name, "in place")
	}
	fits(name, o.src, g.step.l.rows, width)
	fits(name, o.dst, o.rows, width)
	o.srcKind = o.src.kind
	o.dst.kind = o.src.kind
	g.step.gathered = true
	g.record(o)
}

// keep has copies made that a step could do without: from and to a buffer that is read.
func (g *gpu) keep(b *buffer) {
	for i := range g.step.ops {
		if o := &g.step.ops[i]; o.kind == opGather && (o.dst == b || o.src == b) {
			o.kept = true
		}
	}
}

// wide makes a product float32 that only what waits for it will read.
func (g *gpu) wide(b *buffer) {
	for i := len(g.step.ops) - 1; i >= 0; i-- {
		o := &g.step.ops[i]
		if o.src == b {
			return
		}
		if o.dst == b {
			if o.kind == opMatMul && !o.accumulate {
				o.wide, b.kind = true, f32
			}
			return
		}
	}
}

func widen(dst []float32, src []byte) {
	for i := range dst {
		dst[i] = weights.BF16ToF32(uint16(src[2*i]) | uint16(src[2*i+1])<<8)
	}
}

func bits32(f float32) uint64 { return uint64(math.Float32bits(f)) }

package cpu

import (
	"fmt"
	"math"
	"math/bits"

	"cotenant/internal/backend"
)

// kv is paged memory. A layer's page holds, for each key/value head, the keys as [HeadDim, PageSize] (so that scores of
// neighbouring keys come out side by side) and then the values as [PageSize, HeadDim].
type kv struct {
	c backend.KVConfig
	v []float32
}

func (k *kv) Config() backend.KVConfig { return k.c }
func (k *kv) Bytes() int64             { return 4 * int64(len(k.v)) }

// tile is the number of elements of a head's keys, or values, in a page.
func (k *kv) tile() int { return k.c.PageSize * k.c.HeadDim }

// keys and values return a head's tile of a page.
func (k *kv) keys(layer, page, head int) []float32 {
	t := k.tile()
	at := ((layer*k.c.Pages+page)*k.c.KVHeads + head) * 2 * t
	return k.v[at : at+t]
}

func (k *kv) values(layer, page, head int) []float32 {
	t := k.tile()
	at := ((layer*k.c.Pages+page)*k.c.KVHeads+head)*2*t + t
	return k.v[at : at+t]
}

// KVBytes implements backend.Backend; math.MaxInt64 for a configuration that cannot be.
func (b *cpuBackend) KVBytes(c backend.KVConfig) int64 {
	n := int64(8) // key and value
	for _, f := range []int{c.Layers, c.KVHeads, c.HeadDim, c.PageSize, c.Pages} {
		if f < 1 {
			return math.MaxInt64
		}
		hi, lo := bits.Mul64(uint64(n), uint64(f))
		if hi != 0 || lo > math.MaxInt64 {
			return math.MaxInt64
		}
		n = int64(lo)
	}
	return n
}

// KV implements backend.Backend.
func (b *cpuBackend) KV(c backend.KVConfig) (backend.KV, error) {
	bytes := b.KVBytes(c)
	if bytes == math.MaxInt64 || c.Pages > math.MaxInt32/c.PageSize {
		return nil, fmt.Errorf("cpu backend: kv memory of %+v", c)
	}
	v, err := b.pages(bytes / 4)
	if err != nil {
		return nil, fmt.Errorf("cpu backend: kv memory of %d pages: %w", c.Pages, err)
	}
	b.kv += bytes
	return &kv{c: c, v: v}, nil
}

type rope struct{ backend.RoPE }

// Positions implements backend.RoPEHandle.
func (r *rope) Positions() int { return len(r.Cos) / (r.Dim / 2) }

// RoPE implements backend.Backend; it copies the tables.
func (b *cpuBackend) RoPE(r backend.RoPE) (backend.RoPEHandle, error) {
	if r.Dim < 2 || r.Dim%2 != 0 || len(r.Cos) != len(r.Sin) || len(r.Cos) == 0 || len(r.Cos)%(r.Dim/2) != 0 {
		return nil, fmt.Errorf("cpu backend: rope tables of %d and %d elements for %d dimensions", len(r.Cos), len(r.Sin), r.Dim)
	}
	r.Cos = append([]float32(nil), r.Cos...)
	r.Sin = append([]float32(nil), r.Sin...)
	b.rope += 8 * int64(len(r.Cos))
	return &rope{r}, nil
}

type ropeOp struct {
	k      *kernels
	a      backend.Attention
	tables *rope
	batch  *batch
	m      *kv
	layer  int
	x      []float32
}

// RoPEStore implements backend.Backend. A position beyond the tables or a slot beyond the memory is an error of the step.
func (b *cpuBackend) RoPEStore(qkv backend.Buffer, a backend.Attention, r backend.RoPEHandle, memory backend.KV, layer int) {
	const op = "RoPEStore"
	tables, ok := r.(*rope)
	if !ok {
		misfit(op, "tables of another backend (%T)", r)
	}
	b.ops.rope = ropeOp{k: b.k, a: a, tables: tables, batch: &b.batch, m: kvOf(memory, a, layer, op), layer: layer, x: data(qkv, op)}
	o := &b.ops.rope
	fits(op, b.batch.rows(), a.QKVWidth(), o.x)
	if tables.Dim > a.HeadDim {
		misfit(op, "rope over %d of %d dimensions", tables.Dim, a.HeadDim)
	}
	for i, pos := range b.batch.positions {
		if pos < 0 || int(pos) >= tables.Positions() {
			b.fail(fmt.Errorf("cpu backend: position %d of row %d is outside the rope tables of %d", pos, i, tables.Positions()))
			return
		}
		if s := b.batch.slots[i]; s < 0 || int(s) >= o.m.c.Pages*o.m.c.PageSize {
			b.fail(fmt.Errorf("cpu backend: slot %d of row %d is outside %d pages of %d", s, i, o.m.c.Pages, o.m.c.PageSize))
			return
		}
	}
	b.eachRow(o, b.batch.rows(), a.QKVWidth())
}

func (o *ropeOp) rows(first, end int) {
	width, half, d := o.a.QKVWidth(), o.tables.Dim/2, o.a.HeadDim
	for i := first; i < end; i++ {
		row, pos := o.x[i*width:(i+1)*width], int(o.batch.positions[i])
		cos, sin := o.tables.Cos[pos*half:(pos+1)*half], o.tables.Sin[pos*half:(pos+1)*half]
		for h := range o.a.Heads + o.a.KVHeads {
			o.k.rotate(row[h*d:h*d+2*half], cos, sin, o.tables.Interleaved)
		}
		o.m.store(o.layer, int(o.batch.slots[i]), row[o.a.Heads*d:])
	}
}

// store writes a row's keys and values, [KVHeads*HeadDim | KVHeads*HeadDim], to a slot.
func (k *kv) store(layer, slot int, row []float32) {
	page, at, d, size := slot/k.c.PageSize, slot%k.c.PageSize, k.c.HeadDim, k.c.PageSize
	for h := range k.c.KVHeads {
		keys := k.keys(layer, page, h)[at:]
		for i, v := range row[h*d : (h+1)*d] {
			keys[i*size] = v
		}
		copy(k.values(layer, page, h)[at*d:(at+1)*d], row[(k.c.KVHeads+h)*d:])
	}
}

func kvOf(memory backend.KV, a backend.Attention, layer int, op string) *kv {
	m, ok := memory.(*kv)
	if !ok {
		misfit(op, "kv memory of another backend (%T)", memory)
	}
	if m.c.KVHeads != a.KVHeads || m.c.HeadDim != a.HeadDim {
		misfit(op, "attention %+v on kv memory %+v", a, m.c)
	}
	if layer < 0 || layer >= m.c.Layers {
		misfit(op, "layer %d of %d", layer, m.c.Layers)
	}
	if a.KVHeads < 1 || a.Heads%a.KVHeads != 0 {
		misfit(op, "%d heads share %d key heads", a.Heads, a.KVHeads)
	}
	return m
}

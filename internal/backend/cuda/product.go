package cuda

import (
	driver "cotenant/internal/cuda"
)

// Modes of a matrix product: what it does with its result.
const (
	storeBF16 = 0
	storeF32  = 1
	addF32    = 2
)

func (o *op) mode() uint64 {
	switch {
	case o.accumulate:
		return addF32
	case o.wide:
		return storeF32
	}
	return storeBF16
}

// buildMatMul makes a matrix product, behind a conversion where its input isn't bf16.
func (g *gpu) buildMatMul(p *program, o *op) error {
	x := o.src.p
	if o.srcKind == f32 {
		var err error
		if x, err = g.narrow(p, o.src.p, o.rows*o.m.cols); err != nil {
			return err
		}
	}
	l, err := g.add(p, "matmul_any", grid((o.m.rows+7)/8, o.rows), threads(256), 0)
	if err != nil {
		return err
	}
	var bias uint64
	if o.v != nil {
		bias = uint64(o.v.p)
	}
	l.Set(0, uint64(x)).Set(1, uint64(o.m.p)).Set(2, uint64(o.dst.p)).Set(3, bias)
	l.Set(4, uint64(o.rows)).Set(5, uint64(o.m.rows)).Set(6, uint64(o.m.cols)).Set(7, o.mode())
	return nil
}

// narrow makes a copy as bf16, valid until the next one.
func (g *gpu) narrow(p *program, from driver.Pointer, n int) (driver.Pointer, error) {
	to, err := g.narrowed.room(&g.mem, 2*int64(n))
	if err != nil {
		return 0, err
	}
	l, err := g.add(p, "f32_to_bf16", grid(min((n+255)/256, 1024), 1), threads(256), 0)
	if err != nil {
		return 0, err
	}
	l.Set(0, uint64(to)).Set(1, uint64(from)).Set(2, uint64(n))
	return to, nil
}

// buildAttention makes a layer's attention.
func (g *gpu) buildAttention(p *program, o *op) error {
	l, err := g.add(p, "attention_any", grid(o.rows, o.a.Heads), threads(128), 0)
	if err != nil {
		return err
	}
	s := &g.step
	l.Set(0, uint64(o.dst.p)).Set(1, uint64(o.src.p)).Set(2, uint64(o.kv.layer(o.layer))).Set(3, s.word(s.l.tables))
	l.Set(4, s.word(s.l.rowSeq)).Set(5, s.word(s.l.positions)).Set(6, bits(o.a.Scale)).Set(7, uint64(o.a.Heads)).Set(8, uint64(o.a.KVHeads))
	l.Set(9, uint64(o.a.HeadDim)).Set(10, uint64(o.kv.c.PageSize)).Set(11, uint64(s.l.stride))
	return nil
}

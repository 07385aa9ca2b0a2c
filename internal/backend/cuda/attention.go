package cuda

import (
	"math/bits"

	driver "cotenant/internal/cuda"
	"cotenant/internal/kernels"
)

// attending is memory of decode attention.
type attending struct {
	partial scratch
	arrived scratch // counters, zero between launches
	zeroed  int64   // bytes of arrived
}

// buildAttention makes a layer's attention: sequences of one row and those of more have a kernel each, which skips the others'.
// Shapes that neither takes have the plain one.
func (g *gpu) buildAttention(p *program, o *op) error {
	h := headsOf(o)
	if kernels.CheckAttention(h, o.kv.c.PageSize) != nil {
		return g.buildPlainAttention(p, o)
	}
	s := &g.step
	if s.longest() > 0 {
		if err := g.buildDecodeAttention(p, o, nil); err != nil {
			return err
		}
	}
	if most := s.longestRows(); most > 1 {
		return g.buildPrefillAttention(p, o, most)
	}
	return nil
}

func (g *gpu) buildPrefillAttention(p *program, o *op, most int) error {
	s := &g.step
	for from := 0; from < s.l.seqs; from += kernels.PrefillSequences {
		n := min(kernels.PrefillSequences, s.l.seqs-from)
		plan := kernels.PrefillAttention(g.device(), headsOf(o), n, most)
		l, err := g.attend(p, o, plan, 0, 0)
		if err != nil {
			return err
		}
		l.Set(3, s.word(s.l.tables+from*s.l.stride)).Set(4, s.word(s.l.seqRow+from)).Set(5, s.word(s.l.seqRows+from)).Set(6, s.word(s.l.seqPast+from))
		if plan.Maps {
			m, err := g.kvMap(o.kv, o.layer)
			if err != nil {
				return err
			}
			l.Set(12, m).Set(13, uint64(n)).Set(14, uint64(most))
		}
	}
	return nil
}

// kvMap describes a layer's keys and values as rows of a head of a token each.
func (g *gpu) kvMap(k *kv, layer int) (uint64, error) {
	if k.maps == nil {
		k.maps = make([]uint64, k.c.Layers)
	}
	if k.maps[layer] != 0 {
		return k.maps[layer], nil
	}
	t, err := g.d.EncodeKVBF16(k.layer(layer), k.c.Pages*k.c.KVHeads*2*k.c.PageSize, k.c.HeadDim)
	if err == nil {
		k.maps[layer], err = g.maps.keep(g, t)
	}
	return k.maps[layer], err
}

// rotates reports whether the attention that follows operation i, which rotates and stores, does that too: it can where every
// sequence has one row, and whole heads rotate that weren't normed.
func (g *gpu) rotates(ops []op, i int) bool {
	if !g.step.decode || i+1 == len(ops) || i > 0 && ops[i-1].kind == opHeadNorm {
		return false
	}
	r, o := &ops[i], &ops[i+1]
	return o.kind == opAttention && o.src == r.dst && o.kv == r.kv && o.layer == r.layer && o.a == r.a && r.rope.dim == o.a.HeadDim &&
		kernels.CheckAttention(headsOf(o), o.kv.c.PageSize) == nil
}

// device is what the choice of kernels depends on.
func (g *gpu) device() kernels.GPU { return kernels.GPU{Capability: g.sm, SMs: g.sms} }

func headsOf(o *op) kernels.Heads {
	return kernels.Heads{Heads: o.a.Heads, KVHeads: o.a.KVHeads, Dim: o.a.HeadDim}
}

// buildDecodeAttention makes the attention of sequences of one row, with the rotating and storing r unless that is nil.
func (g *gpu) buildDecodeAttention(p *program, o, r *op) error {
	h, device := headsOf(o), g.device()
	s, m := &g.step, &g.attending
	partial, err := m.partial.room(&g.mem, kernels.DecodePartial(h, s.l.seqs))
	if err != nil {
		return err
	}
	arrived, err := m.arrived.room(&g.mem, kernels.DecodeArrived(h, s.l.seqs))
	if err != nil {
		return err
	}
	if m.zeroed != m.arrived.bytes {
		// Before the step's own launches, and never while a graph is captured: programs are built before.
		if err := g.d.SetAsync(arrived, 0, m.arrived.bytes, g.stream); err != nil {
			return err
		}
		m.zeroed = m.arrived.bytes
	}
	longest := s.l.stride * o.kv.c.PageSize // of a graph every step to come
	if !s.decode {
		longest = s.longest()
	}
	plan := kernels.DecodeAttention(device, h, s.l.seqs, longest)
	if r != nil {
		plan = kernels.DecodeAttentionRoPE(device, h, s.l.seqs, longest)
	}
	l, err := g.attend(p, o, plan, uint64(partial), uint64(arrived))
	if err != nil || r == nil {
		return err
	}
	l.Set(14, uint64(r.rope.cos)).Set(15, uint64(r.rope.sin)).Set(16, 0).Set(17, uint64(plan.Parts)).Set(18, uint64(plan.Ring))
	if r.rope.interleaved {
		l.Set(16, 1)
	}
	return nil
}

func (g *gpu) attend(p *program, o *op, plan kernels.Plan, partial, arrived uint64) (*driver.Launch, error) {
	l, err := g.add(p, plan.Kernel, plan.Grid, plan.Block, plan.Shared)
	if err != nil {
		return nil, err
	}
	if plan.Cluster > 0 {
		l.Cluster(plan.Cluster, 1, 1)
	}
	s := &g.step
	l.Set(0, uint64(o.src.p)).Set(1, uint64(o.dst.p)).Set(2, uint64(o.kv.layer(o.layer))).Set(3, s.word(s.l.tables))
	l.Set(4, s.word(s.l.seqRow)).Set(5, s.word(s.l.seqRows)).Set(6, s.word(s.l.seqPast)).Set(7, uint64(s.l.stride))
	l.Set(8, uint64(o.a.Heads)).Set(9, uint64(o.a.KVHeads)).Set(10, uint64(bits.TrailingZeros(uint(o.kv.c.PageSize)))).Set(11, bits32(o.a.Scale))
	return l.Set(12, partial).Set(13, arrived).Set(14, uint64(plan.Parts)).Set(15, uint64(plan.Ring)), nil
}

// longestRows is the most rows of a sequence, longest the most tokens of one with a single row; 0 where there is none.
func (s *step) longestRows() int {
	n := 0
	for i := range s.seqs {
		n = max(n, s.seqs[i].Rows)
	}
	return n
}

// longest is described at longestRows.
func (s *step) longest() int {
	n := 0
	for i := range s.seqs {
		if s.seqs[i].Rows == 1 {
			n = max(n, s.seqs[i].Past+1)
		}
	}
	return n
}

func (g *gpu) buildPlainAttention(p *program, o *op) error {
	l, err := g.add(p, "attention_any", grid(o.rows, o.a.Heads), threads(128), 0)
	if err != nil {
		return err
	}
	s := &g.step
	l.Set(0, uint64(o.dst.p)).Set(1, uint64(o.src.p)).Set(2, uint64(o.kv.layer(o.layer))).Set(3, s.word(s.l.tables))
	l.Set(4, s.word(s.l.rowSeq)).Set(5, s.word(s.l.positions)).Set(6, bits32(o.a.Scale)).Set(7, uint64(o.a.Heads)).Set(8, uint64(o.a.KVHeads))
	l.Set(9, uint64(o.a.HeadDim)).Set(10, uint64(o.kv.c.PageSize)).Set(11, uint64(s.l.stride))
	return nil
}

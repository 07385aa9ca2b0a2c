package cuda

import (
	"fmt"

	driver "cotenant/internal/cuda"
	"cotenant/internal/kernels"
	"cotenant/internal/weights"
)

// segment is rows of a matrix that lie on the device quantised, laid out as internal/kernels' quant.cuh says.
type segment struct {
	format      weights.DType
	p           driver.Pointer
	first, rows int
	suffix      string // of its kernels' names
}

// mostExpanded bounds the rows of a matrix that products of many rows expand. Vocabularies are beyond it: few rows need their logits.
const mostExpanded = 1 << 16

// expansion is memory for one matrix as bf16, shared by all that are quantised: a product of many rows expands its matrix first.
type expansion struct {
	p    driver.Pointer
	room int64 // bytes there
	need int64 // bytes of the largest matrix
}

// quantized reports whether the matrix stays in its file's format.
func (m *matrix) quantized() bool { return len(m.segments) > 0 }

// expands reports whether products of many rows expand it.
func (m *matrix) expands() bool { return m.rows <= mostExpanded }

// segmentsOf returns the segments that a matrix's parts make, neighbours of one format as one; nil where a part can't stay as it is.
func (g *gpu) segmentsOf(parts []weights.Tensor) []segment {
	var all []segment
	rows := 0
	for _, t := range parts {
		_, ok := kernels.QuantizedBytes(t.Type, t.Shape[0], t.Shape[1])
		if !ok || 8*t.Type.RowBytes(t.Shape[1]) > stagingBytes || g.opt.Expand {
			return nil
		}
		if n := len(all); n > 0 && all[n-1].format == t.Type {
			all[n-1].rows += t.Shape[0]
		} else {
			all = append(all, segment{format: t.Type, first: rows, rows: t.Shape[0]})
		}
		rows += t.Shape[0]
	}
	return all
}

// loadSegments makes a matrix of segments.
func (g *gpu) loadSegments(m *matrix, parts []weights.Tensor) error {
	for i := range m.segments {
		s := &m.segments[i]
		var name string
		name, s.suffix = kernels.QuantizedModule(g.device(), s.format)
		if !g.kernels.has("repack_" + s.suffix) {
			n := len(g.kernels.loaded)
			if err := g.kernels.load(g.d, name); err != nil {
				return err
			}
			if err := g.tellUnproven(g.kernels.loaded[n:]); err != nil {
				return err
			}
		}
		bytes, _ := kernels.QuantizedBytes(s.format, s.rows, m.cols) // segmentsOf asked
		var err error
		if s.p, err = g.mem.alloc(quantizedMemory, bytes); err != nil {
			return err
		}
	}
	rows := 0
	for _, t := range parts {
		s := m.segmentAt(rows)
		if err := g.repack(s, rows-s.first, m.cols, t); err != nil {
			return fmt.Errorf("tensor %s: %w", t.Name, err)
		}
		rows += t.Shape[0]
	}
	if m.expands() {
		g.expansion.need = max(g.expansion.need, 2*int64(m.rows)*int64(m.cols))
	}
	return nil
}

// quantizedMemory is the kind of memory of weights that stay quantised.
const quantizedMemory = "weights_quantized"

func (m *matrix) segmentAt(row int) *segment {
	for i := range m.segments {
		if s := &m.segments[i]; row < s.first+s.rows {
			return s
		}
	}
	panic("cuda backend: a row behind a matrix's segments")
}

// repack sends a tensor's blocks to the device as they are, a chunk of whole rows at a time, which puts them where they belong from row
// first of the segment on.
func (g *gpu) repack(s *segment, first, cols int, t weights.Tensor) error {
	rowBytes := t.Type.RowBytes(cols)
	per := stagingBytes / rowBytes &^ 7
	for at := 0; at < t.Shape[0]; at += per {
		rows := min(per, t.Shape[0]-at)
		slot, err := g.slot(true)
		if err != nil {
			return err
		}
		stage := &g.step.staging
		chunk, from := stage.host[slot][:rows*rowBytes], t.Data[at*rowBytes:(at+rows)*rowBytes]
		parallel(len(chunk), func(a, b int) { copy(chunk[a:b], from[a:b]) })
		if err := g.d.ToDeviceAsync(stage.device[slot], chunk, g.stream); err != nil {
			return err
		}
		f, err := g.kernels.function(g.d, "repack_"+s.suffix)
		if err != nil {
			return err
		}
		l, err := g.d.NewLaunch(f, g.units(rows, cols), threads(256), 0)
		if err != nil {
			return err
		}
		l.Set(0, uint64(s.p)).Set(1, uint64(stage.device[slot])).Set(2, uint64(first+at)).Set(3, uint64(rows)).Set(4, uint64(s.rows)).Set(5, uint64(cols))
		if err := l.Run(g.stream); err != nil {
			return err
		}
		if err := g.d.RecordEvent(stage.taken[slot], g.stream); err != nil {
			return err
		}
		stage.pending[slot] = true
	}
	return nil
}

// units is a grid of blocks of 256 for all units of rows × cols.
func (g *gpu) units(rows, cols int) [3]uint32 {
	return grid(min((rows/8*((cols+63)/64)*32+255)/256, 16*g.sms), 1)
}

// makeRoom allocates what products of many rows expand matrices to. What is too small is kept until close: matrices whose products used
// it go on to.
func (g *gpu) makeRoom() error {
	e := &g.expansion
	if e.need <= e.room {
		return nil
	}
	p, err := g.mem.alloc("workspace", e.need)
	if err != nil {
		return fmt.Errorf("room to expand quantised weights for prompts: %w", err)
	}
	e.p, e.room = p, e.need
	return nil
}

// expand makes a matrix bf16 for the product that follows, which must not begin before that is done: it may read weights before it waits.
func (g *gpu) expand(p *program, m *matrix) error {
	if m.p == 0 {
		m.p = g.expansion.p
	}
	for i := range m.segments {
		s := &m.segments[i]
		l, err := g.add(p, "expand_"+s.suffix, g.units(s.rows, m.cols), threads(256), 0)
		if err != nil {
			return err
		}
		l.Set(0, uint64(m.p)+2*uint64(s.first)*uint64(m.cols)).Set(1, uint64(s.p)).Set(2, uint64(s.rows)).Set(3, uint64(m.cols))
	}
	p.serial = true
	return nil
}

// direct makes a product from quantised weights, a launch a segment; ok is false where the weights are to be expanded for it.
func (g *gpu) direct(p *program, o *op, x operand, c driver.Pointer, M int, order kernels.Order, mode kernels.Mode) (ok bool, err error) {
	size, stride := 2, o.m.rows
	switch mode {
	case kernels.StoreF32, kernels.AddF32:
		size = 4
	case kernels.SwiGLU:
		stride /= 2
	}
	for i := range o.m.segments {
		s := &o.m.segments[i]
		plan, ok := kernels.QuantizedProduct(g.device(), s.format, order, M, s.rows, o.m.cols)
		if !ok && o.m.expands() {
			return false, nil
		}
		if !ok {
			plan = kernels.QuantizedAll(g.device(), s.format, M, s.rows, o.m.cols)
		}
		l, err := g.add(p, plan.Kernel, plan.Grid, plan.Block, plan.Shared)
		if err != nil {
			return false, err
		}
		var bias uint64
		if o.v != nil {
			bias = uint64(o.v.p) + 4*uint64(s.first)
		}
		l.Set(0, uint64(x.p)).Set(1, uint64(s.p)).Set(2, uint64(c)+uint64(size*s.first)).Set(3, bias).Set(4, uint64(M)).Set(5, uint64(s.rows))
		l.Set(6, uint64(o.m.cols)).Set(7, uint64(mode)).Set(8, uint64(stride))
	}
	return true, nil
}

// embedQuantized makes an embedding from a quantised table.
func (g *gpu) embedQuantized(p *program, o *op) error {
	if len(o.m.segments) != 1 {
		misfit("Embed", "a table of %d formats", len(o.m.segments))
	}
	seg, s := &o.m.segments[0], &g.step
	l, err := g.add(p, "embed_"+seg.suffix, grid(o.rows, 1), threads(128), 0)
	if err != nil {
		return err
	}
	l.Set(0, uint64(o.dst.p)).Set(1, uint64(seg.p)).Set(2, s.word(s.l.tokens)).Set(3, uint64(g.samples.device)).Set(4, uint64(o.m.rows)).Set(5, uint64(o.m.cols))
	return nil
}

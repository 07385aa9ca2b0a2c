package cuda

import (
	"errors"
	"math"

	"cotenant/internal/backend"
	driver "cotenant/internal/cuda"
)

// sampling is memory of Sample.
type sampling struct {
	device driver.Pointer // ids [rows] int32: what was chosen last
	host   []byte         // the same, page-locked; the kernel writes both
	rows   int
	old    [][]byte // hosts that were too small; graphs may write to them
	part   scratch
}

const chunk = 4096 // of kernels/sample.cu

// ids returns where the ids of sampled rows are, with room for some.
func (s *sampling) ids(g *gpu, rows int) (driver.Pointer, error) {
	if rows <= s.rows {
		return s.device, nil
	}
	rows = max(rows, 2*s.rows, 1024)
	var err error
	if s.device, err = g.mem.alloc("workspace", 4*int64(rows)); err != nil {
		return 0, err
	}
	host, err := g.d.AllocHost(4 * rows)
	if err != nil {
		return 0, err
	}
	if s.host != nil {
		s.old = append(s.old, s.host)
	}
	s.host = host
	s.rows = rows
	return s.device, nil
}

func (s *sampling) close(d *driver.Driver) error {
	var err error
	for _, h := range append(s.old, s.host) {
		if h != nil {
			err = errors.Join(err, d.FreeHost(h))
		}
	}
	s.old, s.host = nil, nil
	return err
}

// Sample implements backend.Sampler.
func (g *gpu) Sample(ids []int32, logits backend.Buffer, width, vocab int, draws []backend.Draw) error {
	const name = "Sample"
	o := op{kind: opSample, src: bufferOf(logits, name), rows: g.padded(len(draws)), n: vocab, first: width}
	if len(ids) != len(draws) || len(draws) > g.step.outs || vocab < 1 || vocab > width {
		misfit(name, "%d ids, %d draws of %d outputs, vocabulary %d of %d", len(ids), len(draws), g.step.outs, vocab, width)
	}
	fits(name, o.src, o.rows, width)
	g.wide(o.src)
	if o.src.kind != f32 {
		misfit(name, "of a buffer that holds bf16")
	}
	o.adjust = g.packDraws(draws)
	g.record(o)
	g.flush()
	if g.err != nil {
		return g.err
	}
	if err := g.d.SynchronizeStream(g.stream); err != nil {
		g.fail(err)
		return g.err
	}
	copy(ids, words(g.samples.host))
	return nil
}

// packDraws writes sampling parameters behind the batch and reports whether any logit is to be adjusted.
func (g *gpu) packDraws(draws []backend.Draw) (adjust bool) {
	s := &g.step
	l := &s.l
	s.in = s.in[:l.entries]
	clear(s.in[l.draws:])
	for i := range draws {
		d := &draws[i]
		w := s.in[l.draws+8*i:]
		w[0], w[1], w[2], w[3] = word(d.Temperature), word(d.TopP), word(d.MinP), d.TopK
		w[4], w[5], w[6], w[7] = int32(uint32(d.Seed)), int32(uint32(d.Seed>>32)), d.Choice, d.Position
		p := s.in[l.penalties+4*i:]
		p[0], p[1], p[2] = word(d.Repetition), word(d.Frequency), word(d.Presence)
		for _, a := range d.Adjust {
			var flags int32
			if a.Ban {
				flags |= 1
			}
			if a.Seen {
				flags |= 2
			}
			s.in = append(s.in, a.ID, flags, word(a.Bias), a.Count)
		}
		s.in[l.offsets+i+1] = int32((len(s.in) - l.entries) / 4)
	}
	for i := len(draws); i < l.outs; i++ {
		s.in[l.offsets+i+1] = s.in[l.offsets+i]
	}
	return len(s.in) > l.entries
}

func word(f float32) int32 { return int32(math.Float32bits(f)) }

// buildSample makes the kernels that choose tokens.
func (g *gpu) buildSample(p *program, o *op) error {
	s, m := &g.step, &g.samples
	width, vocab := o.first, o.n
	chunks := (vocab + chunk - 1) / chunk
	ids, err := m.ids(g, o.rows)
	if err != nil {
		return err
	}
	part, err := m.part.room(&g.mem, 16*int64(chunks)*int64(max(o.rows, g.opt.Rows)))
	if err != nil {
		return err
	}
	if o.adjust {
		l, err := g.add(p, "adjust", grid(o.rows, 1), threads(256), 0)
		if err != nil {
			return err
		}
		l.Set(0, uint64(o.src.p)).Set(1, uint64(width)).Set(2, s.word(s.l.offsets)).Set(3, s.word(s.l.entries)).Set(4, s.word(s.l.penalties))
	}
	l, err := g.add(p, "best_of_chunk", grid(chunks, o.rows), threads(256), 0)
	if err != nil {
		return err
	}
	l.Set(0, uint64(o.src.p)).Set(1, uint64(width)).Set(2, uint64(vocab)).Set(3, uint64(part))
	if l, err = g.add(p, "draw", grid(o.rows, 1), threads(1024), 0); err != nil {
		return err
	}
	l.Set(0, uint64(ids)).Set(1, hostAddress(m.host)).Set(2, uint64(part)).Set(3, uint64(chunks))
	l.Set(4, uint64(o.src.p)).Set(5, uint64(width)).Set(6, uint64(vocab)).Set(7, s.word(s.l.draws))
	return nil
}

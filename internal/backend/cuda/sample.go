package cuda

import (
	"errors"
	"math"

	"cotenant/internal/backend"
	driver "cotenant/internal/cuda"
)

// sampling is memory of Sample. It never moves: graphs write to it.
type sampling struct {
	device driver.Pointer // ids [rows] int32: what was chosen last
	host   []byte         // twice the same, page-locked; the kernel writes both
	rows   int
	part   scratch

	// Two samples may be on their way; each has a half of host, and an event that says that it is there.
	there [2]driver.Event
	turn  int // of the next Sample
	away  int // how many were not waited for
}

// secondHalf marks draws of the samples whose ids go to the second half of host (kernels/sample.cu).
const secondHalf = -1 << 31

const chunk = 4096 // of kernels/sample.cu

// open makes room for the ids of so many rows, once for all.
func (s *sampling) open(g *gpu, rows int) error {
	var err error
	if s.device, err = g.mem.alloc("workspace", 4*int64(rows)); err != nil {
		return err
	}
	if s.host, err = g.d.AllocHost(2 * 4 * rows); err != nil {
		return err
	}
	for i := range s.there {
		if s.there[i], err = g.d.CreateEvent(driver.EventDisableTiming); err != nil {
			return err
		}
	}
	s.rows = rows
	return nil
}

func (s *sampling) close(d *driver.Driver) error {
	var err error
	if s.host != nil {
		err = d.FreeHost(s.host)
	}
	for _, e := range s.there {
		if e != 0 {
			err = errors.Join(err, d.DestroyEvent(e))
		}
	}
	s.host = nil
	return err
}

// Sample implements backend.Sampler.
func (g *gpu) Sample(logits backend.Buffer, width, vocab int, draws []backend.Draw) {
	const name = "Sample"
	m := &g.samples
	o := op{kind: opSample, src: bufferOf(logits, name), rows: g.padded(len(draws)), n: vocab, first: width}
	if len(draws) < 1 || len(draws) > g.step.outs || vocab < 1 || vocab > width || m.away == len(m.there) {
		misfit(name, "%d draws of %d outputs, vocabulary %d of %d, %d samples on their way", len(draws), g.step.outs, vocab, width, m.away)
	}
	fits(name, o.src, o.rows, width)
	if o.rows > m.rows {
		misfit(name, "%d rows, Options.Rows allows %d", o.rows, m.rows)
	}
	g.wide(o.src)
	if o.src.kind != f32 {
		misfit(name, "of a buffer that holds bf16")
	}
	o.adjust = g.packDraws(draws)
	g.record(o)
	g.flush()
	if g.err == nil {
		g.fail(g.d.RecordEvent(m.there[m.turn], g.stream))
	}
	m.turn = 1 - m.turn
	m.away++
}

// Wait implements backend.Sampler.
func (g *gpu) Wait(ids []int32) error {
	m := &g.samples
	if m.away == 0 || len(ids) > m.rows {
		misfit("Wait", "for %d ids of %d, %d samples on their way", len(ids), m.rows, m.away)
	}
	if g.err != nil {
		return g.err
	}
	half := m.turn ^ m.away&1 // of two the older, which is turn's; else the other
	m.away--
	if err := g.d.SynchronizeEvent(m.there[half]); err != nil {
		g.fail(err)
		return g.err
	}
	copy(ids, words(m.host)[half*m.rows:])
	return nil
}

// packDraws writes sampling parameters behind the batch and reports whether any logit is to be adjusted.
func (g *gpu) packDraws(draws []backend.Draw) (adjust bool) {
	s := &g.step
	l := &s.l
	s.in = s.in[:l.entries]
	clear(s.in[l.draws:])
	half := int32(0)
	if g.samples.turn == 1 {
		half = secondHalf
	}
	for i := range l.outs {
		s.in[l.draws+8*i+6] = half
	}
	for i := range draws {
		d := &draws[i]
		w := s.in[l.draws+8*i:]
		w[0], w[1], w[2], w[3] = word(d.Temperature), word(d.TopP), word(d.MinP), d.TopK
		w[4], w[5], w[6], w[7] = int32(uint32(d.Seed)), int32(uint32(d.Seed>>32)), d.Choice|half, d.Position
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
	l.Set(0, uint64(m.device)).Set(1, hostAddress(m.host)).Set(2, uint64(part)).Set(3, uint64(chunks))
	l.Set(4, uint64(o.src.p)).Set(5, uint64(width)).Set(6, uint64(vocab)).Set(7, s.word(s.l.draws)).Set(8, uint64(m.rows))
	return nil
}

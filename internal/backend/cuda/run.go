package cuda

import (
	"fmt"
	"slices"

	driver "cotenant/internal/cuda"
	"cotenant/internal/kernels"
)

// program is the launches of a step's operations, ready to run.
type program struct {
	ops      []op
	launches []*driver.Launch
	names    []string // of their kernels
	used     int      // of launches
	runs     int
	serial   bool // the next launch begins when the ones before have ended
	exec     driver.GraphExec
}

// graphKey is what decides, besides the operations, where a step's input lies.
type graphKey struct{ rows, stride int }

// graphs are the programs of decode steps, which come again and again.
type graphs struct {
	programs map[graphKey][]*program
	once     program // of other steps
	bytes    int64   // of the device's memory
	count    int
}

// mostGraphs bounds what is kept; beyond, all are dropped and the useful ones are made again.
const mostGraphs = 256

func (s *graphs) drop(d *driver.Driver) error {
	var first error
	for _, list := range s.programs {
		for _, p := range list {
			if p.exec == 0 {
				continue
			}
			if err := d.DestroyGraphExec(p.exec); err != nil && first == nil {
				first = err
			}
		}
	}
	s.programs, s.count, s.bytes = nil, 0, 0
	return first
}

// flush runs what was recorded.
func (g *gpu) flush() {
	s := &g.step
	if g.err != nil || len(s.ops) == 0 {
		s.ops = s.ops[:0]
		return
	}
	if err := g.run(s.ops); err != nil {
		g.fail(err)
	}
	s.ops = s.ops[:0]
}

func (g *gpu) run(ops []op) error {
	if err := g.send(); err != nil {
		return err
	}
	if !g.step.decode {
		p := &g.graphs.once
		p.used = 0
		if err := g.build(p, ops); err != nil {
			return err
		}
		return g.launch(p)
	}
	p, err := g.program(ops)
	if err != nil {
		return err
	}
	if p.exec != 0 {
		return g.d.LaunchGraph(p.exec, g.stream)
	}
	if p.runs++; p.runs < 2 || g.opt.NoGraphs {
		return g.launch(p)
	}
	if err := g.capture(p); err != nil {
		return err
	}
	return g.d.LaunchGraph(p.exec, g.stream)
}

// program returns the program of a decode step, made where there is none yet.
func (g *gpu) program(ops []op) (*program, error) {
	s := &g.graphs
	key := graphKey{g.step.l.rows, g.step.l.stride}
	for _, p := range s.programs[key] {
		if slices.Equal(p.ops, ops) {
			return p, nil
		}
	}
	if s.count == mostGraphs {
		if err := g.d.SynchronizeStream(g.stream); err != nil {
			return nil, err
		}
		if err := s.drop(g.d); err != nil {
			return nil, err
		}
	}
	p := &program{ops: slices.Clone(ops)}
	if err := g.build(p, ops); err != nil {
		return nil, err
	}
	if s.programs == nil {
		s.programs = map[graphKey][]*program{}
	}
	s.programs[key] = append(s.programs[key], p)
	s.count++
	return p, nil
}

func (g *gpu) launch(p *program) error {
	for _, l := range p.launches[:p.used] {
		if err := l.Run(g.stream); err != nil {
			return err
		}
	}
	return nil
}

// capture makes a program's graph.
func (g *gpu) capture(p *program) error {
	before, _, err := g.d.MemoryInfo()
	if err != nil {
		return err
	}
	if err := g.d.BeginCapture(g.stream); err != nil {
		return err
	}
	launched := g.launch(p)
	graph, err := g.d.EndCapture(g.stream)
	if launched != nil {
		return launched
	}
	if err != nil {
		return err
	}
	p.exec, err = g.d.Instantiate(graph)
	if destroyed := g.d.DestroyGraph(graph); err == nil {
		err = destroyed
	}
	if err != nil {
		return fmt.Errorf("making a graph of %d launches: %w", p.used, err)
	}
	after, _, err := g.d.MemoryInfo()
	if after < before {
		g.graphs.bytes += int64(before - after)
	}
	return err
}

// inPlace leaves out the copies of a decode step's rows, all of which are outputs in their order, where what is copied isn't needed
// itself: what follows works on the rows where they are.
func (g *gpu) inPlace(ops []op) []op {
	if !g.step.decode {
		return ops
	}
	at := map[*buffer]*buffer{}
	var left []op
	for i := range ops {
		o := ops[i]
		if b, ok := at[o.src]; ok {
			o.src = b
		}
		if b, ok := at[o.dst]; ok && o.changes() {
			o.dst = b
		} else {
			delete(at, o.dst)
		}
		if o.kind == opGather && o.rows == g.step.l.rows && !o.kept && unread(ops[i+1:], ops[i].src) {
			at[o.dst] = o.src
			continue
		}
		left = append(left, o)
	}
	return left
}

// build makes launches of operations.
func (g *gpu) build(p *program, ops []op) error {
	ops = g.inPlace(ops)
	done := -1 // the last operation that an earlier one's launch does too
	for i := range ops {
		o := &ops[i]
		if i <= done {
			continue
		}
		var err error
		switch o.kind {
		case opEmbed:
			err = g.buildEmbed(p, o)
		case opNorm:
			if done, err = g.buildNormed(p, ops, i); done < 0 && err == nil {
				err = g.buildNorm(p, o)
			}
		case opMatMul:
			if g.activates(ops, i) {
				err = g.buildMatMul(p, o, &ops[i+1])
				done = i + 1
			} else {
				err = g.buildMatMul(p, o, nil)
			}
		case opHeadNorm:
			if i+1 < len(ops) && ops[i+1].kind == opRoPE && ops[i+1].dst == o.dst {
				continue // rotating does it too
			}
			err = g.buildRoPE(p, nil, o)
		case opRoPE:
			var norm *op
			if i > 0 && ops[i-1].kind == opHeadNorm && ops[i-1].dst == o.dst {
				norm = &ops[i-1]
			}
			if g.rotates(ops, i) {
				err = g.buildDecodeAttention(p, &ops[i+1], o)
				done = i + 1
			} else {
				err = g.buildRoPE(p, o, norm)
			}
		case opAttention:
			err = g.buildAttention(p, o)
		case opSwiGLU:
			err = g.buildSwiGLU(p, o)
		case opGather:
			err = g.buildGather(p, o)
		case opSample:
			err = g.buildSample(p, o)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// add appends a launch of a kernel to a program. Every kernel but a program's first may begin before the one in front of it has
// ended, and waits by itself, but for one behind a program's serial. So what the step's first kernel finds complete, every other one may
// read ahead of its wait, as attention does.
func (g *gpu) add(p *program, name string, grid, block [3]uint32, shared uint32) (*driver.Launch, error) {
	f, err := g.kernels.function(g.d, name)
	if err != nil {
		return nil, err
	}
	if err := g.kernels.allow(g.d, f, shared); err != nil {
		return nil, fmt.Errorf("kernel %s: %w", name, err)
	}
	if p.used == len(p.launches) {
		l, err := g.d.NewLaunch(f, grid, block, shared)
		if err != nil {
			return nil, err
		}
		p.launches, p.names = append(p.launches, l), append(p.names, name)
	}
	p.names[p.used] = name
	l := p.launches[p.used].Reset(f, grid, block, shared)
	if p.used > 0 && g.sm == 90 && !p.serial {
		l.Dependent()
	}
	p.serial = false
	p.used++
	return l, nil
}

func grid(x, y int) [3]uint32 { return [3]uint32{uint32(x), uint32(y), 1} }

func threads(n int) [3]uint32 { return [3]uint32{uint32(n), 1, 1} }

func (g *gpu) buildEmbed(p *program, o *op) error {
	if o.m.quantized() {
		return g.embedQuantized(p, o)
	}
	l, err := g.add(p, "embed", grid(o.rows, 1), threads(256), 0)
	if err != nil {
		return err
	}
	s := &g.step
	l.Set(0, uint64(o.dst.p)).Set(1, uint64(o.m.p)).Set(2, s.word(s.l.tokens)).Set(3, uint64(g.samples.device)).Set(4, uint64(o.m.cols))
	return nil
}

func (g *gpu) buildNorm(p *program, o *op) error {
	plan := kernels.Norm(g.device(), o.rows, o.n)
	if o.dst == o.src {
		plan.Kernel = "rms_norm_f32"
	}
	l, err := g.add(p, plan.Kernel, plan.Grid, plan.Block, plan.Shared)
	if err != nil {
		return err
	}
	l.Set(0, uint64(o.dst.p)).Set(1, uint64(o.src.p)).Set(2, uint64(o.v.p)).Set(3, uint64(o.n)).Set(4, bits32(o.eps))
	return nil
}

// buildRoPE makes rotating and storing, with norms of heads where norm isn't nil; r may be nil where it isn't.
func (g *gpu) buildRoPE(p *program, r, norm *op) error {
	o := r
	if o == nil {
		o = norm
	}
	all, s := o.a.Heads+2*o.a.KVHeads, &g.step
	name, blocks := "rope_store", grid(o.rows, (all+7)/8)
	vector := r != nil && (o.a.HeadDim == 64 || o.a.HeadDim == 128) && r.rope.dim == o.a.HeadDim
	if vector {
		name, blocks = fmt.Sprintf("rope_store_%d", o.a.HeadDim), grid((o.rows*all*o.a.HeadDim/16+255)/256, 1)
	}
	l, err := g.add(p, name, blocks, threads(256), 0)
	if err != nil {
		return err
	}
	l.Set(0, uint64(o.dst.p)).Set(6, s.word(s.l.positions)).Set(7, s.word(s.l.slots)).Set(8, 0)
	l.Set(9, uint64(o.a.Heads)).Set(10, uint64(o.a.KVHeads)).Set(11, uint64(o.a.HeadDim))
	var pages, cos, sin, q, k uint64
	var dim, interleaved int
	pageSize := 1
	if r != nil {
		pages, cos, sin, dim, pageSize = uint64(r.kv.layer(r.layer)), uint64(r.rope.cos), uint64(r.rope.sin), r.rope.dim, r.kv.c.PageSize
		if r.rope.interleaved {
			interleaved = 1
		}
	}
	if norm != nil {
		q, k = uint64(norm.v.p), uint64(norm.w.p)
		l.Set(8, bits32(norm.eps))
	}
	l.Set(1, pages).Set(2, cos).Set(3, sin).Set(4, q).Set(5, k)
	if vector {
		l.Set(11, uint64(o.rows)).Set(12, uint64(interleaved)).Set(13, uint64(pageSize))
		return nil
	}
	l.Set(12, uint64(dim)).Set(13, uint64(interleaved)).Set(14, uint64(pageSize))
	return nil
}

func (g *gpu) buildSwiGLU(p *program, o *op) error {
	l, err := g.add(p, "swiglu", grid((o.n+255)/256, o.rows), threads(256), 0)
	if err != nil {
		return err
	}
	l.Set(0, uint64(o.dst.p)).Set(1, uint64(o.src.p)).Set(2, uint64(o.n))
	return nil
}

func (g *gpu) buildGather(p *program, o *op) error {
	l, err := g.add(p, "gather", grid(o.rows, 1), threads(256), 0)
	if err != nil {
		return err
	}
	units := o.n
	if o.srcKind == f32 {
		units *= 2
	}
	s := &g.step
	l.Set(0, uint64(o.dst.p)).Set(1, uint64(o.src.p)).Set(2, s.word(s.l.outputs+o.first)).Set(3, uint64(units))
	return nil
}

// convert launches a conversion to bf16 at once.
func (g *gpu) convert(name string, to, from driver.Pointer, n int) error {
	f, err := g.kernels.function(g.d, name)
	if err != nil {
		return err
	}
	l, err := g.d.NewLaunch(f, grid(min((n+255)/256, 1024), 1), threads(256), 0)
	if err != nil {
		return err
	}
	return l.Set(0, uint64(to)).Set(1, uint64(from)).Set(2, uint64(n)).Run(g.stream)
}

package cuda

import (
	"errors"
	"fmt"

	driver "cotenant/internal/cuda"
	"cotenant/internal/kernels"
)

func (o *op) mode() kernels.Mode {
	switch {
	case o.accumulate:
		return kernels.AddF32
	case o.wide:
		return kernels.StoreF32
	}
	return kernels.StoreBF16
}

// operand is the input of a product: rows of K bf16.
type operand struct {
	p    driver.Pointer
	rows int // that there is memory for
}

// buildMatMul makes a matrix product, behind a conversion where its input isn't bf16. activated is nil, or the SwiGLU that follows
// and that the product then does too.
func (g *gpu) buildMatMul(p *program, o, activated *op) error {
	K := o.m.cols
	x := operand{o.src.p, 2 * o.src.n / K}
	if o.srcKind == f32 {
		to, err := g.narrow(p, o.src.p, o.rows*K)
		if err != nil {
			return err
		}
		x = operand{to, o.rows}
	}
	mode, dst, width := o.mode(), o.dst.p, o.m.rows
	if activated != nil {
		mode, dst, width = kernels.SwiGLU, activated.dst.p, activated.n
	}
	size := 2
	if mode == kernels.StoreF32 || mode == kernels.AddF32 {
		size = 4
	}
	// The sums of rows that decode have the same order as in a step without prompts.
	sliced := g.sliced(o)
	expanded := false
	for _, part := range []struct {
		first, rows int
		order       kernels.Order
	}{{0, sliced, kernels.Sliced}, {sliced, o.rows - sliced, kernels.Ordered}} {
		if part.rows == 0 {
			continue
		}
		from := operand{x.p + driver.Pointer(2*part.first*K), x.rows - part.first}
		to := dst + driver.Pointer(size*part.first*width)
		if o.m.quantized() {
			if done, err := g.direct(p, o, from, to, part.rows, part.order, mode); err != nil || done {
				if err != nil {
					return err
				}
				continue
			}
			if !expanded {
				if err := g.expand(p, o.m); err != nil {
					return err
				}
				expanded = true
			}
		}
		if err := g.product(p, o, from, to, part.rows, part.order, mode); err != nil {
			return err
		}
	}
	return nil
}

func (g *gpu) product(p *program, o *op, x operand, c driver.Pointer, M int, order kernels.Order, mode kernels.Mode) error {
	N, K := o.m.rows, o.m.cols
	in, w := uint64(x.p), uint64(o.m.p)
	var l *driver.Launch
	var err error
	if N%8 != 0 || K%8 != 0 {
		l, err = g.add(p, "matmul_any", grid((N+7)/8, M), threads(256), 0)
	} else {
		plan := kernels.Product(g.device(), order, M, N, K, mode)
		if plan.Maps {
			if in, err = g.inputMap(x, K, plan.BoxRows); err != nil {
				return err
			}
			if w, err = g.weightMap(o.m, mode); err != nil {
				return err
			}
		}
		l, err = g.add(p, plan.Kernel, plan.Grid, plan.Block, plan.Shared)
		if err == nil && plan.Cluster > 0 {
			l.Cluster(plan.Cluster, 1, 1)
		}
	}
	if err != nil {
		return err
	}
	setProduct(l, in, w, c, o, M, mode)
	return nil
}

// activates reports whether a product can do the SwiGLU that follows it: nobody else reads what it would write.
func (g *gpu) activates(ops []op, i int) bool {
	if i+1 >= len(ops) {
		return false
	}
	o, s := &ops[i], &ops[i+1]
	return s.kind == opSwiGLU && s.src == o.dst && !o.accumulate && !o.wide && o.m.rows == 2*s.n && len(o.m.segments) < 2 && s.rows == o.rows && s.n%8 == 0 && o.m.cols%8 == 0 &&
		unread(ops[i+2:], o.dst)
}

// unread reports whether operations write a buffer anew before they read it, if they do either.
func unread(ops []op, b *buffer) bool {
	for i := range ops {
		o := &ops[i]
		if o.src == b || o.dst == b && o.changes() {
			return false
		}
		if o.dst == b {
			return true
		}
	}
	return true
}

// changes reports whether an operation reads what it writes to.
func (o *op) changes() bool { return o.accumulate || o.kind == opHeadNorm || o.kind == opRoPE }

// buildNormed makes the norm that operation i is and the product that follows it, with the product's SwiGLU, in one launch; it returns
// the last operation that is done, or -1 where it takes two launches: where another reads the norm's result, rows are many, or prompts'.
func (g *gpu) buildNormed(p *program, ops []op, i int) (int, error) {
	if i+1 >= len(ops) {
		return -1, nil
	}
	norm, o, last := &ops[i], &ops[i+1], i+1
	if o.kind != opMatMul || o.m.quantized() || o.src != norm.dst || norm.src == norm.dst || o.rows != norm.rows || o.m.cols != norm.n || g.sliced(o) != o.rows ||
		o.m.rows%8 != 0 || o.m.cols%8 != 0 || !unread(ops[i+2:], norm.dst) {
		return -1, nil
	}
	mode, dst := o.mode(), o.dst.p
	if g.activates(ops, last) {
		last++
		mode, dst = kernels.SwiGLU, ops[last].dst.p
	}
	plan, better := kernels.ProductNorm(g.device(), o.rows, o.m.rows, o.m.cols, mode)
	if !better {
		return -1, nil
	}
	l, err := g.add(p, plan.Kernel, plan.Grid, plan.Block, plan.Shared)
	if err != nil {
		return -1, err
	}
	setProduct(l, uint64(norm.src.p), uint64(o.m.p), dst, o, o.rows, mode)
	l.Set(8, uint64(norm.v.p)).Set(9, bits32(norm.eps))
	return last, nil
}

// sliced is how many rows of a product are summed in slices: those that decode, which are in front of those of prompts.
func (g *gpu) sliced(o *op) int {
	if o.rows == g.step.l.rows && !o.gathered {
		return g.step.single
	}
	return o.rows
}

// setProduct sets the parameters that all products have.
func setProduct(l *driver.Launch, x, w uint64, c driver.Pointer, o *op, M int, mode kernels.Mode) {
	var bias uint64
	if o.v != nil {
		bias = uint64(o.v.p)
	}
	l.Set(0, x).Set(1, w).Set(2, uint64(c)).Set(3, bias).Set(4, uint64(M)).Set(5, uint64(o.m.rows)).Set(6, uint64(o.m.cols)).Set(7, uint64(mode))
}

// maps are tensor maps in device memory. They are copied there in the stream, from page-locked memory that stays as it is: a copy from
// other memory may end after the call.
type maps struct {
	slab  driver.Pointer
	hosts [][]byte // one for each slab, the last one's being filled
	left  int
	input map[inputMap]uint64
}

type inputMap struct {
	x            operand
	cols, boxRow int
}

const slabMaps = 512

// keep copies a tensor map to the device.
func (m *maps) keep(g *gpu, t *driver.TensorMap) (uint64, error) {
	if m.left == 0 {
		p, err := g.mem.alloc("workspace", 128*slabMaps)
		if err != nil {
			return 0, err
		}
		host, err := g.d.AllocHost(128 * slabMaps)
		if err != nil {
			return 0, err
		}
		m.slab, m.left, m.hosts = p, slabMaps, append(m.hosts, host)
	}
	at := 128 * (slabMaps - m.left)
	p := m.slab + driver.Pointer(at)
	m.left--
	from := m.hosts[len(m.hosts)-1][at : at+128]
	copy(from, t.Bytes())
	if err := g.d.ToDeviceAsync(p, from, g.stream); err != nil {
		return 0, fmt.Errorf("tensor map: %w", err)
	}
	return uint64(p), nil
}

func (m *maps) close(d *driver.Driver) error {
	var err error
	for _, h := range m.hosts {
		err = errors.Join(err, d.FreeHost(h))
	}
	m.hosts, m.left = nil, 0
	return err
}

func (g *gpu) inputMap(x operand, cols, boxRows int) (uint64, error) {
	key := inputMap{x, cols, boxRows}
	if p, ok := g.maps.input[key]; ok {
		return p, nil
	}
	t, err := g.d.EncodeBF16(x.p, x.rows, cols, cols, boxRows, 64)
	if err != nil {
		return 0, err
	}
	p, err := g.maps.keep(g, t)
	if err != nil {
		return 0, err
	}
	if g.maps.input == nil {
		g.maps.input = map[inputMap]uint64{}
	}
	g.maps.input[key] = p
	return p, nil
}

func (g *gpu) weightMap(m *matrix, mode kernels.Mode) (uint64, error) {
	at, encode := &m.plain, func() (*driver.TensorMap, error) { return g.d.EncodeBF16(m.p, m.rows, m.cols, m.cols, 64, 64) }
	if mode == kernels.SwiGLU {
		at, encode = &m.paired, func() (*driver.TensorMap, error) { return g.d.EncodeGateUpBF16(m.p, m.rows, m.cols) }
	}
	if *at != 0 {
		return *at, nil
	}
	t, err := encode()
	if err == nil {
		*at, err = g.maps.keep(g, t)
	}
	return *at, err
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

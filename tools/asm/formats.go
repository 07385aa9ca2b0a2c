package main

import (
	"math"

	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// weightFormat is a way of storing weights, as ggml-common.h lays it out.
type weightFormat struct {
	name  string
	elems int // that load makes
	bytes int // that they take
	// setup makes the constants that load needs.
	setup func()
	// load makes the weights at src and gives them to use, in order: i-th vector, register. The register may be changed.
	load func(src func(disp int) operand.Mem, use func(i int, w reg.VecVirtual))
}

func (g *gen) formats() []weightFormat {
	var nibble, minusEight reg.VecVirtual
	none := func() {}
	return []weightFormat{
		{name: "F32", elems: g.lanes, bytes: 4 * g.lanes, setup: none, load: func(src func(int) operand.Mem, use func(int, reg.VecVirtual)) {
			w := g.vec()
			g.VMOVUPS(src(0), w)
			use(0, w)
		}},
		{name: "F16", elems: g.lanes, bytes: 2 * g.lanes, setup: none, load: func(src func(int) operand.Mem, use func(int, reg.VecVirtual)) {
			w := g.vec()
			g.VCVTPH2PS(src(0), w)
			use(0, w)
		}},
		{name: "BF16", elems: g.lanes, bytes: 2 * g.lanes, setup: none, load: func(src func(int) operand.Mem, use func(int, reg.VecVirtual)) {
			w := g.vec()
			g.VPMOVZXWD(src(0), w)
			g.VPSLLD(operand.U8(16), w, w)
			use(0, w)
		}},
		{name: "Q8_0", elems: 32, bytes: 34, setup: none, load: func(src func(int) operand.Mem, use func(int, reg.VecVirtual)) {
			d := g.scale(src(0))
			for i := range 32 / g.lanes {
				w := g.vec()
				g.VPMOVSXBD(src(2+i*g.lanes), w)
				g.VCVTDQ2PS(w, w)
				g.VMULPS(d, w, w)
				use(i, w)
			}
		}},
		{name: "Q4_0", elems: 32, bytes: 18,
			setup: func() { nibble, minusEight = g.nibbleSetup(), g.splat(math.Float32bits(-8)) },
			load: func(src func(int) operand.Mem, use func(int, reg.VecVirtual)) {
				d, m := g.scale(src(0)), g.vec()
				g.VMULPS(minusEight, d, m)
				g.nibbles(src, 2, nibble, d, m, use)
			}},
		{name: "Q4_1", elems: 32, bytes: 20,
			setup: func() { nibble = g.nibbleSetup() },
			load: func(src func(int) operand.Mem, use func(int, reg.VecVirtual)) {
				d, m := g.scaleAndOffset(src(0))
				g.nibbles(src, 4, nibble, d, m, use)
			}},
	}
}

// scale spreads the binary16 at m over a vector. Eight bytes are read, all inside the block.
func (g *gen) scale(m operand.Mem) reg.VecVirtual {
	h, d := g.XMM(), g.vec()
	g.VCVTPH2PS(m, h)
	g.VBROADCASTSS(h, d)
	return d
}

// scaleAndOffset does the same with two neighbours.
func (g *gen) scaleAndOffset(at operand.Mem) (d, m reg.VecVirtual) {
	h := g.XMM()
	d, m = g.vec(), g.vec()
	g.VCVTPH2PS(at, h)
	g.VBROADCASTSS(h, d)
	g.VMOVSHDUP(h, h)
	g.VBROADCASTSS(h, m)
	return d, m
}

// nibbleSetup makes nibbles' constant: a mask, or the numbers 0 to 15.
func (g *gen) nibbleSetup() reg.VecVirtual {
	if g.lanes == 8 {
		return g.splat(15)
	}
	v := g.vec()
	g.VMOVUPS(g.iota, v)
	return v
}

// nibbles makes 32 weights q*d + m from 16 bytes: the low nibbles, then the high ones.
func (g *gen) nibbles(src func(int) operand.Mem, disp int, mask, d, m reg.VecVirtual, use func(int, reg.VecVirtual)) {
	if g.lanes == 16 {
		// The sixteen weights that there are fit a register: mask holds 0, 1, … 15 as float32.
		b, table := g.vec(), m
		g.VPMOVZXBD(src(disp), b)
		g.VFMADD231PS(mask, d, table)
		for i := range 2 {
			w := d
			if i == 1 {
				g.VPSRLD(operand.U8(4), b, b)
				w = b
			}
			g.VPERMPS(table, b, w)
			use(i, w)
		}
		return
	}
	n := 16 / g.lanes
	b := make([]reg.VecVirtual, n)
	for i := range b {
		b[i] = g.vec()
		g.VPMOVZXBD(src(disp+i*g.lanes), b[i])
	}
	for i := range 2 * n {
		w := b[i%n]
		if i < n {
			w = g.vec()
			g.VPAND(mask, b[i], w)
		} else {
			g.VPSRLD(operand.U8(4), w, w)
		}
		g.VCVTDQ2PS(w, w)
		g.VFMADD213PS(m, d, w)
		use(i, w)
	}
}

// expand writes weights as float32.
func (g *gen) expand(f weightFormat) {
	g.text("expand"+f.name, "func(dst *float32, src *byte, n int)", "expands n*"+itoa(f.elems)+" weights.")
	dst, src, n := g.arg("dst"), g.arg("src"), g.arg("n")
	f.setup()
	loop := g.fresh("loop")
	g.Label(loop)
	f.load(
		func(disp int) operand.Mem { return at(src, nil, 0, disp) },
		func(i int, w reg.VecVirtual) { g.VMOVUPS(w, at(dst, nil, 0, i*g.bytes())) })
	g.ADDQ(operand.U32(uint32(f.bytes)), src)
	g.ADDQ(operand.U32(uint32(4*f.elems)), dst)
	g.DECQ(n)
	g.JNZ(operand.LabelRef(loop))
	g.VZEROUPPER()
	g.RET()
}

// prefetch is how many bytes ahead gemv asks for: the four rows and what follows them lie end to end in memory, and the
// processor does not see through the four interleaved streams.
const prefetch = 4096

// gemv is dot4 for one row of x and weights that are expanded in registers: the same sums in the same order.
func (g *gen) gemv(f weightFormat) {
	g.text("gemv4"+f.name, "func(dst *float32, x *float32, w *byte, rowBytes int, n int, bias *float32, add bool)",
		"computes dst[j] (+)= x·w[j] + bias[j], j < 4, over n*"+itoa(f.elems)+" weights.")
	dst, x, w, stride, n := g.arg("dst"), g.arg("x"), g.arg("w"), g.arg("rowBytes"), g.arg("n")
	stride3 := g.GP64()
	g.LEAQ(at(stride, stride, 2, 0), stride3)
	f.setup()
	var acc [4]reg.VecVirtual
	for j := range acc {
		acc[j] = g.vec()
		g.zero(acc[j])
	}
	ahead := g.GP64()
	g.LEAQ(at(w, nil, 0, prefetch), ahead)
	loop := g.fresh("loop")
	g.Label(loop)
	for line := 0; line < 4*f.bytes; line += 64 {
		g.PREFETCHT0(at(ahead, nil, 0, line))
	}
	g.ADDQ(operand.U32(uint32(4*f.bytes)), ahead)
	xv := make([]reg.VecVirtual, f.elems/g.lanes)
	for i := range xv {
		xv[i] = g.vec()
		g.VMOVUPS(at(x, nil, 0, i*g.bytes()), xv[i])
	}
	for j := range acc {
		f.load(
			func(disp int) operand.Mem {
				return [4]operand.Mem{at(w, nil, 0, disp), at(w, stride, 1, disp), at(w, stride, 2, disp), at(w, stride3, 1, disp)}[j]
			},
			func(i int, v reg.VecVirtual) { g.VFMADD231PS(v, xv[i], acc[j]) })
	}
	g.ADDQ(operand.U32(uint32(f.bytes)), w)
	g.ADDQ(operand.U32(uint32(4*f.elems)), x)
	g.DECQ(n)
	g.JNZ(operand.LabelRef(loop))
	g.finish(acc[:], at(g.arg("bias"), nil, 0, 0), at(dst, nil, 0, 0))
	g.VZEROUPPER()
	g.RET()
}

// mostFew is the most rows of x that few takes; from there on, expanding weights into memory costs less.
const mostFew = 8

// few is dot4 for 2 to mostFew rows of x and weights that are expanded in registers, once for all rows.
func (g *gen) few(f weightFormat) {
	g.text("few4"+f.name, "func(dst *float32, ldd int, x *float32, rows int, w *byte, rowBytes int, n int, bias *float32, add bool)",
		"computes dst[i*ldd+j] (+)= x[i]·w[j] + bias[j], i < rows, j < 4, over n*"+itoa(f.elems)+" weights; 2 <= rows <= "+itoa(mostFew)+".")
	dst, ldd, rows, w, stride := g.arg("dst"), g.arg("ldd"), g.arg("rows"), g.arg("w"), g.arg("rowBytes")
	g.SHLQ(operand.U8(2), ldd)
	xStride, xStride3, stride3 := g.GP64(), g.GP64(), g.GP64()
	g.Load(g.Param("n"), xStride)
	g.IMUL3Q(operand.U32(uint32(4*f.elems)), xStride, xStride)
	g.LEAQ(at(xStride, xStride, 2, 0), xStride3)
	g.LEAQ(at(stride, stride, 2, 0), stride3)
	f.setup()
	for m := 2; m <= mostFew; m++ {
		next := g.fresh("not")
		g.CMPQ(rows, operand.U8(m))
		g.JNE(operand.LabelRef(next))
		together := 4 // weight rows
		for together*m+7 > map[int]int{8: 16, 16: 32}[g.lanes] && together > 1 {
			together /= 2
		}
		g.fewBlock(f, m, together, dst, ldd, xStride, xStride3, w, stride, stride3)
		g.VZEROUPPER()
		g.RET()
		g.Label(next)
	}
	g.VZEROUPPER()
	g.RET()
}

// fewBlock does m rows of x, n weight rows at a time.
func (g *gen) fewBlock(f weightFormat, m, n int, dst, ldd, xStride, xStride3, w, stride, stride3 reg.GPVirtual) {
	again := g.fresh("rows")
	g.Label(again)
	acc := make([][]reg.VecVirtual, m)
	for i := range acc {
		for range n {
			v := g.vec()
			g.zero(v)
			acc[i] = append(acc[i], v)
		}
	}
	x := []reg.GPVirtual{g.arg("x")}
	for i := 3; i < m; i += 3 {
		p := g.GP64()
		g.LEAQ(at(x[len(x)-1], xStride3, 1, 0), p)
		x = append(x, p)
	}
	wp, blocks := g.GP64(), g.arg("n")
	g.MOVQ(w, wp)
	loop := g.fresh("loop")
	g.Label(loop)
	for line := 0; line < n*f.bytes; line += 64 {
		g.PREFETCHT0(at(wp, nil, 0, prefetch+line))
	}
	for j := range n {
		f.load(
			func(disp int) operand.Mem {
				return [4]operand.Mem{at(wp, nil, 0, disp), at(wp, stride, 1, disp), at(wp, stride, 2, disp), at(wp, stride3, 1, disp)}[j]
			},
			func(i int, v reg.VecVirtual) {
				for r := range m {
					base, disp := x[r/3], i*g.bytes()
					from := [3]operand.Mem{at(base, nil, 0, disp), at(base, xStride, 1, disp), at(base, xStride, 2, disp)}[r%3]
					g.VFMADD231PS(from, v, acc[r][j])
				}
			})
	}
	g.ADDQ(operand.U32(uint32(f.bytes)), wp)
	for _, p := range x {
		g.ADDQ(operand.U32(uint32(4*f.elems)), p)
	}
	g.DECQ(blocks)
	g.JNZ(operand.LabelRef(loop))
	// Columns done so far are what dst has advanced by; the bias is as far on.
	bias, start, d := g.arg("bias"), g.arg("dst"), g.GP64()
	g.ADDQ(dst, bias)
	g.SUBQ(start, bias)
	g.MOVQ(dst, d)
	for i := range acc {
		g.finish(acc[i], at(bias, nil, 0, 0), at(d, nil, 0, 0))
		g.ADDQ(ldd, d)
	}
	if n < 4 {
		for range n {
			g.ADDQ(stride, w)
		}
		g.ADDQ(operand.U8(4*n), dst)
		g.MOVQ(dst, d)
		g.SUBQ(start, d)
		g.CMPQ(d, operand.U8(16))
		g.JLT(operand.LabelRef(again))
	}
}

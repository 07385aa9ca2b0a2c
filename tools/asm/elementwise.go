package main

import (
	"math"
	"strconv"
	"strings"

	"github.com/mmcloughlin/avo/attr"
	"github.com/mmcloughlin/avo/gotypes"
	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

func itoa(n int) string { return strconv.Itoa(n) }

// expConst are exp's constants; internal/backend/cpu's exp in Go has the same and says where they come from. All but the
// two limits stay in memory: there are not enough registers.
type expConst struct {
	low, high                       reg.VecVirtual
	log2e, round, ln2Hi, ln2Lo, one operand.Mem
	taylor                          []operand.Mem
}

// expData defines the constants, once a file.
func (g *gen) expData() {
	f := func(name string, v float32) operand.Mem {
		m := g.StaticGlobal(name + strings.ToLower(g.isa))
		g.DataAttributes(attr.RODATA | attr.NOPTR)
		for range g.lanes {
			g.AppendDatum(operand.U32(math.Float32bits(v)))
		}
		return m
	}
	g.expMem = expConst{log2e: f("log2e", 1.44269504088896341), round: f("round", 3<<22), ln2Hi: f("ln2hi", 0.693359375),
		ln2Lo: f("ln2lo", -2.12194440e-4), one: f("one", 1)}
	for i, v := range []float32{1.0 / 5040, 1.0 / 720, 1.0 / 120, 1.0 / 24, 1.0 / 6, 0.5, 1, 1} {
		g.expMem.taylor = append(g.expMem.taylor, f("taylor"+itoa(7-i), v))
	}
}

// iotaData defines 0, 1, … 15 as float32.
func (g *gen) iotaData() {
	g.iota = g.StaticGlobal("iota" + strings.ToLower(g.isa))
	g.DataAttributes(attr.RODATA | attr.NOPTR)
	for i := range 16 {
		g.AppendDatum(operand.U32(math.Float32bits(float32(i))))
	}
}

// expSetup loads what exp needs in registers.
func (g *gen) expSetup() expConst {
	c := g.expMem
	c.low, c.high = g.splat(math.Float32bits(-87.33654)), g.splat(math.Float32bits(88.37626))
	return c
}

// exp replaces x by e^x; NaN stays NaN (MINPS and MAXPS return their last operand then, here x).
func (g *gen) exp(c expConst, x reg.VecVirtual) {
	t, n, p := g.vec(), g.vec(), g.vec()
	g.VMAXPS(x, c.low, x)
	g.VMINPS(x, c.high, x)
	g.VMOVUPS(c.round, t)
	g.VFMADD231PS(c.log2e, x, t)
	g.VSUBPS(c.round, t, n)
	g.VFNMADD231PS(c.ln2Hi, n, x)
	g.VFNMADD231PS(c.ln2Lo, n, x)
	g.VMOVUPS(c.taylor[0], p)
	for _, k := range c.taylor[1:] {
		g.VFMADD213PS(k, x, p)
	}
	g.VPSLLD(operand.U8(23), t, t)
	g.VPADDD(c.one, t, t)
	g.VMULPS(t, p, x)
}

// across folds a vector into its lowest element.
func (g *gen) across(v reg.VecVirtual, op func(a, b, dst operand.Op)) reg.VecVirtual {
	x, t := g.XMM(), g.XMM()
	if g.lanes == 16 {
		high, low := g.YMM(), g.YMM()
		g.VEXTRACTF64X4(operand.U8(1), v, high)
		op(high, v.AsY(), low)
		v = low
	}
	g.VEXTRACTF128(operand.U8(1), v.AsY(), t)
	op(t, v.AsX(), x)
	g.VMOVHLPS(x, x, t)
	op(t, x, x)
	g.VMOVSHDUP(x, t)
	op(t, x, x)
	return x
}

func (g *gen) softmax() {
	g.text("softmax", "func(s *float32, n int, scale float32) (top float32, sum float32)",
		"replaces s by exp(scale*s - top) over n vectors and returns top, the largest scale*s, and the sum.")
	s, n := g.arg("s"), g.arg("n")
	scale := g.vec()
	g.VBROADCASTSS(g.address("scale"), scale)
	top := g.splat(math.Float32bits(float32(math.Inf(-1))))
	p, i := g.GP64(), g.GP64()
	g.MOVQ(s, p)
	g.MOVQ(n, i)
	loop := g.fresh("max")
	g.Label(loop)
	v := g.vec()
	g.VMULPS(at(p, nil, 0, 0), scale, v)
	g.VMOVUPS(v, at(p, nil, 0, 0))
	g.VMAXPS(v, top, top)
	g.ADDQ(operand.U8(g.bytes()), p)
	g.DECQ(i)
	g.JNZ(operand.LabelRef(loop))
	t := g.across(top, func(a, b, dst operand.Op) { g.VMAXPS(a, b, dst) })
	g.result(t, "top")
	g.VBROADCASTSS(t.AsX(), top)

	c := g.expSetup()
	sum := g.vec()
	g.zero(sum)
	loop = g.fresh("exp")
	g.Label(loop)
	v = g.vec()
	g.VMOVUPS(at(s, nil, 0, 0), v)
	g.VSUBPS(top, v, v)
	g.exp(c, v)
	g.VMOVUPS(v, at(s, nil, 0, 0))
	g.VADDPS(v, sum, sum)
	g.ADDQ(operand.U8(g.bytes()), s)
	g.DECQ(n)
	g.JNZ(operand.LabelRef(loop))
	r := g.across(sum, func(a, b, dst operand.Op) { g.VADDPS(a, b, dst) })
	g.result(r, "sum")
	g.VZEROUPPER()
	g.RET()
}

// address is where an argument is in memory.
func (g *gen) address(name string) operand.Mem { return address(g.Param(name)) }

// result stores the lowest element of v; avo's own Store would mix SSE with AVX.
func (g *gen) result(v reg.VecVirtual, name string) { g.VMOVSS(v.AsX(), address(g.Return(name))) }

func address(c gotypes.Component) operand.Mem {
	b, err := c.Resolve()
	if err != nil {
		panic(err)
	}
	return b.Addr
}

func (g *gen) swiglu() {
	g.text("swiglu", "func(dst *float32, gate *float32, up *float32, n int)", "writes gate/(1+exp(-gate))*up over n vectors.")
	dst, gate, up, n := g.arg("dst"), g.arg("gate"), g.arg("up"), g.arg("n")
	c := g.expSetup()
	loop := g.fresh("loop")
	g.Label(loop)
	e := g.vec()
	g.zero(e)
	g.VSUBPS(at(gate, nil, 0, 0), e, e)
	g.exp(c, e)
	g.VADDPS(c.one, e, e)
	v := g.vec()
	g.VMOVUPS(at(gate, nil, 0, 0), v)
	g.VDIVPS(e, v, v)
	g.VMULPS(at(up, nil, 0, 0), v, v)
	g.VMOVUPS(v, at(dst, nil, 0, 0))
	for _, p := range []reg.GPVirtual{dst, gate, up} {
		g.ADDQ(operand.U8(g.bytes()), p)
	}
	g.DECQ(n)
	g.JNZ(operand.LabelRef(loop))
	g.VZEROUPPER()
	g.RET()
}

func (g *gen) norm() {
	g.text("squares", "func(x *float32, n int) (sum float32)", "sums x² over n vectors.")
	x, n := g.arg("x"), g.arg("n")
	sum := g.vec()
	g.zero(sum)
	loop := g.fresh("loop")
	g.Label(loop)
	v := g.vec()
	g.VMOVUPS(at(x, nil, 0, 0), v)
	g.VFMADD231PS(v, v, sum)
	g.ADDQ(operand.U8(g.bytes()), x)
	g.DECQ(n)
	g.JNZ(operand.LabelRef(loop))
	r := g.across(sum, func(a, b, dst operand.Op) { g.VADDPS(a, b, dst) })
	g.result(r, "sum")
	g.VZEROUPPER()
	g.RET()

	g.text("scaled", "func(dst *float32, x *float32, w *float32, n int, r float32)", "writes x*r*w over n vectors.")
	dst, x, w, n := g.arg("dst"), g.arg("x"), g.arg("w"), g.arg("n")
	f := g.vec()
	g.VBROADCASTSS(g.address("r"), f)
	loop = g.fresh("loop")
	g.Label(loop)
	v = g.vec()
	g.VMULPS(at(x, nil, 0, 0), f, v)
	g.VMULPS(at(w, nil, 0, 0), v, v)
	g.VMOVUPS(v, at(dst, nil, 0, 0))
	for _, p := range []reg.GPVirtual{dst, x, w} {
		g.ADDQ(operand.U8(g.bytes()), p)
	}
	g.DECQ(n)
	g.JNZ(operand.LabelRef(loop))
	g.VZEROUPPER()
	g.RET()
}

func (g *gen) blend() {
	g.text("blend", "func(y *float32, x *float32, n int, fy float32, fx float32)", "writes y*fy + x*fx to y over n vectors.")
	y, x, n := g.arg("y"), g.arg("x"), g.arg("n")
	f, h := g.vec(), g.vec()
	g.VBROADCASTSS(g.address("fy"), f)
	g.VBROADCASTSS(g.address("fx"), h)
	loop := g.fresh("loop")
	g.Label(loop)
	v := g.vec()
	g.VMULPS(at(x, nil, 0, 0), h, v)
	g.VFMADD231PS(at(y, nil, 0, 0), f, v)
	g.VMOVUPS(v, at(y, nil, 0, 0))
	for _, p := range []reg.GPVirtual{y, x} {
		g.ADDQ(operand.U8(g.bytes()), p)
	}
	g.DECQ(n)
	g.JNZ(operand.LabelRef(loop))
	g.VZEROUPPER()
	g.RET()
}

// rotate is RoPE on one head; AVX2 alone, a head is too short for more.
func (g *gen) rotate() {
	g.text("rotateHalves", "func(lo *float32, hi *float32, cos *float32, sin *float32, n int)",
		"turns (lo, hi) by the angles of cos and sin over n vectors.")
	lo, hi, cos, sin, n := g.arg("lo"), g.arg("hi"), g.arg("cos"), g.arg("sin"), g.arg("n")
	loop := g.fresh("loop")
	g.Label(loop)
	u, v, c, s, t := g.vec(), g.vec(), g.vec(), g.vec(), g.vec()
	g.VMOVUPS(at(lo, nil, 0, 0), u)
	g.VMOVUPS(at(hi, nil, 0, 0), v)
	g.VMOVUPS(at(cos, nil, 0, 0), c)
	g.VMOVUPS(at(sin, nil, 0, 0), s)
	g.VMULPS(v, s, t)
	g.VFMSUB231PS(u, c, t)
	g.VMOVUPS(t, at(lo, nil, 0, 0))
	g.VMULPS(u, s, t)
	g.VFMADD231PS(v, c, t)
	g.VMOVUPS(t, at(hi, nil, 0, 0))
	for _, p := range []reg.GPVirtual{lo, hi, cos, sin} {
		g.ADDQ(operand.U8(g.bytes()), p)
	}
	g.DECQ(n)
	g.JNZ(operand.LabelRef(loop))
	g.VZEROUPPER()
	g.RET()

	g.text("rotatePairs", "func(x *float32, cos *float32, sin *float32, n int)",
		"turns n vectors of neighbouring pairs by the angles of cos and sin, one a pair.")
	x, cos, sin, n := g.arg("x"), g.arg("cos"), g.arg("sin"), g.arg("n")
	loop = g.fresh("loop")
	g.Label(loop)
	u, c, s, t = g.vec(), g.vec(), g.vec(), g.vec()
	g.VPMOVZXDQ(at(cos, nil, 0, 0), c)
	g.VMOVSLDUP(c, c)
	g.VPMOVZXDQ(at(sin, nil, 0, 0), s)
	g.VMOVSLDUP(s, s)
	g.VMOVUPS(at(x, nil, 0, 0), u)
	g.VPERMILPS(operand.U8(0xb1), u, t)
	g.VMULPS(t, s, t)
	g.VFMADDSUB231PS(u, c, t)
	g.VMOVUPS(t, at(x, nil, 0, 0))
	g.ADDQ(operand.U8(g.bytes()), x)
	g.ADDQ(operand.U8(g.bytes()/2), cos)
	g.ADDQ(operand.U8(g.bytes()/2), sin)
	g.DECQ(n)
	g.JNZ(operand.LabelRef(loop))
	g.VZEROUPPER()
	g.RET()
}

package main

import (
	"github.com/mmcloughlin/avo/attr"
	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// The formats below are only expanded, not multiplied in registers, and only for AVX2: weights are exact, so the wider path
// uses the same functions.

func (g *gen) moreFormats() {
	g.expand5("Q5_0", 22, false)
	g.expand5("Q5_1", 24, true)
	g.expand45K("Q4_K", false)
	g.expand45K("Q5_K", true)
	g.expand6K()
}

// widen loads eight bytes as 32-bit integers, shifted right.
func (g *gen) widen(m operand.Mem, shift int) reg.VecVirtual {
	v := g.vec()
	g.VPMOVZXBD(m, v)
	if shift > 0 {
		g.VPSRLD(operand.U8(shift), v, v)
	}
	return v
}

// bitsTo moves bits from place to place and masks them there.
func (g *gen) bitsTo(v reg.VecVirtual, from, to int, mask reg.VecVirtual) {
	switch {
	case from > to:
		g.VPSRLD(operand.U8(from-to), v, v)
	case from < to:
		g.VPSLLD(operand.U8(to-from), v, v)
	}
	g.VPAND(mask, v, v)
}

// expand5 is Q5_0 and Q5_1: binary16 scale (and offset), 32 fifth bits, 16 bytes of nibbles.
func (g *gen) expand5(name string, size int, offset bool) {
	shifts := g.StaticGlobal("fifth" + name)
	g.DataAttributes(attr.RODATA | attr.NOPTR)
	for i := range 32 { // brings bit i to the top
		g.AppendDatum(operand.U32(uint32(31 - i)))
	}
	g.text("expand"+name, "func(dst *float32, src *byte, n int)", "expands n*32 weights.")
	dst, src, n := g.arg("dst"), g.arg("src"), g.arg("n")
	nibble, fifth := g.splat(15), g.splat(16)
	minus := g.splat(0xc1800000) // -16
	loop := g.fresh("loop")
	g.Label(loop)
	var d, m reg.VecVirtual
	at0 := size - 20
	if offset {
		d, m = g.scaleAndOffset(at(src, nil, 0, 0))
	} else {
		d, m = g.scale(at(src, nil, 0, 0)), g.vec()
		g.VMULPS(minus, d, m)
	}
	high := g.vec()
	g.VPBROADCASTD(at(src, nil, 0, at0), high)
	for i := range 4 {
		q := g.widen(at(src, nil, 0, at0+4+i%2*8), i/2*4)
		if i < 2 {
			g.VPAND(nibble, q, q)
		}
		h := g.vec()
		g.VPSLLVD(shifts.Offset(32*i), high, h)
		g.bitsTo(h, 31, 4, fifth)
		g.VPOR(h, q, q)
		g.VCVTDQ2PS(q, q)
		g.VFMADD213PS(m, d, q)
		g.VMOVUPS(q, at(dst, nil, 0, 32*i))
	}
	g.ADDQ(operand.U8(size), src)
	g.SUBQ(operand.I32(-128), dst)
	g.DECQ(n)
	g.JNZ(operand.LabelRef(loop))
	g.VZEROUPPER()
	g.RET()
}

// expand45K is one block of Q4_K or Q5_K. The eight groups' scales and offsets come unpacked and multiplied.
func (g *gen) expand45K(name string, fifth bool) {
	g.text("expand"+name, "func(dst *float32, src *byte, scale *float32)",
		"expands a block of 256 weights; scale has the eight groups' scales, then their offsets.")
	dst, src, scale := g.arg("dst"), g.arg("src"), g.arg("scale")
	nibble, bit := g.splat(15), reg.VecVirtual(nil)
	quants := 16
	if fifth {
		bit, quants = g.splat(16), 48
	}
	for group := range 8 {
		d, m := g.vec(), g.vec()
		g.VBROADCASTSS(at(scale, nil, 0, 4*group), d)
		g.VBROADCASTSS(at(scale, nil, 0, 32+4*group), m)
		for i := range 4 {
			q := g.widen(at(src, nil, 0, quants+group/2*32+8*i), group%2*4)
			if group%2 == 0 {
				g.VPAND(nibble, q, q)
			}
			if fifth {
				h := g.widen(at(src, nil, 0, 16+8*i), 0)
				g.bitsTo(h, group, 4, bit)
				g.VPOR(h, q, q)
			}
			g.VCVTDQ2PS(q, q)
			g.VFMSUB213PS(m, d, q)
			g.VMOVUPS(q, at(dst, nil, 0, 128*group+32*i))
		}
	}
	g.VZEROUPPER()
	g.RET()
}

// expand6K is one block of Q6_K.
func (g *gen) expand6K() {
	g.text("expandQ6_K", "func(dst *float32, src *byte, scale *float32)", "expands a block of 256 weights; scale has the sixteen groups' scales.")
	dst, src, scale := g.arg("dst"), g.arg("src"), g.arg("scale")
	nibble, two, zero := g.splat(15), g.splat(0x30), g.splat(32)
	for half := range 2 {
		for k := range 4 {
			for i := range 4 {
				q := g.widen(at(src, nil, 0, 64*half+k%2*32+8*i), k/2*4)
				if k < 2 {
					g.VPAND(nibble, q, q)
				}
				h := g.widen(at(src, nil, 0, 128+32*half+8*i), 0)
				g.bitsTo(h, 2*k, 4, two)
				g.VPOR(h, q, q)
				g.VPSUBD(zero, q, q)
				g.VCVTDQ2PS(q, q)
				d := g.vec()
				g.VBROADCASTSS(at(scale, nil, 0, 4*(8*half+2*k+i/2)), d)
				g.VMULPS(d, q, q)
				g.VMOVUPS(q, at(dst, nil, 0, 512*half+128*k+32*i))
			}
		}
	}
	g.VZEROUPPER()
	g.RET()
}

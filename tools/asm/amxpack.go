package main

import (
	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// packX splits x into the tiles' parts: a row, or sixteen at once. Both sum a block in the same order.
func (g *gen) packX() {
	g.text("pack", "func(dst *byte, sums *float32, x *float32, n int)",
		"writes n blocks of a row of x to the row's place in tiles, and each block's sum.")
	dst, sums, x, n := g.arg("dst"), g.arg("sums"), g.arg("x"), g.arg("n")
	mask, pairs := g.packSetup()
	loop := g.fresh("loop")
	g.Label(loop)
	total := g.packBlock(mask, pairs, at(x, nil, 0, 0), at(x, nil, 0, 64), dst, 0)
	s := g.across(total, func(a, b, dst operand.Op) { g.VADDPS(a, b, dst) })
	g.VMOVSS(s.AsX(), at(sums, nil, 0, 0))
	g.ADDQ(operand.U32(xBlock), dst)
	g.ADDQ(operand.U32(sumBlock), sums)
	g.SUBQ(operand.I32(-128), x)
	g.DECQ(n)
	g.JNZ(operand.LabelRef(loop))
	g.VZEROUPPER()
	g.RET()

	g.text("packTile", "func(dst *byte, sums *float32, x *float32, n int)", "writes n blocks of sixteen rows of x, n blocks wide.")
	dst, sums, x, n = g.arg("dst"), g.arg("sums"), g.arg("x"), g.arg("n")
	one, three := g.GP64(), g.GP64()
	g.MOVQ(n, one)
	g.SHLQ(operand.U8(7), one)
	g.LEAQ(at(one, one, 2, 0), three)
	rows := [4]reg.GPVirtual{x, g.GP64(), g.GP64(), g.GP64()}
	for i := range 3 {
		g.LEAQ(at(rows[i], one, 4, 0), rows[i+1])
	}
	mask, pairs = g.packSetup()
	loop = g.fresh("loop")
	g.Label(loop)
	var totals []reg.VecVirtual
	for i := range 16 {
		base := rows[i/4]
		row := func(disp int) operand.Mem {
			return [4]operand.Mem{at(base, nil, 0, disp), at(base, one, 1, disp), at(base, one, 2, disp), at(base, three, 1, disp)}[i%4]
		}
		totals = append(totals, g.packBlock(mask, pairs, row(0), row(64), dst, 64*i))
	}
	g.VMOVUPS(g.acrossSixteen(totals), at(sums, nil, 0, 0))
	g.ADDQ(operand.U32(xBlock), dst)
	g.ADDQ(operand.U32(sumBlock), sums)
	for _, r := range rows {
		g.SUBQ(operand.I32(-128), r)
	}
	g.DECQ(n)
	g.JNZ(operand.LabelRef(loop))
	g.VZEROUPPER()
	g.RET()
}

func (g *gen) packSetup() (mask, pairs reg.VecVirtual) {
	mask, pairs = g.splat(0xffff0000), g.vec()
	g.VMOVDQU32(g.pairTable, pairs)
	return mask, pairs
}

// packBlock splits 32 elements into the three parts at dst+disp and returns their sum, not yet across its lanes.
func (g *gen) packBlock(mask, pairs reg.VecVirtual, lo, hi operand.Mem, dst reg.Register, disp int) reg.VecVirtual {
	var v, part [2]reg.VecVirtual
	for i, m := range []operand.Mem{lo, hi} {
		v[i], part[i] = g.vec(), g.vec()
		g.VMOVUPS(m, v[i])
	}
	total := g.vec()
	g.VADDPS(v[0], v[1], total)
	for p := range 3 {
		if p < 2 {
			for i := range v {
				g.VPANDD(mask, v[i], part[i])
				g.VSUBPS(part[i], v[i], v[i])
			}
		} else {
			part = v
		}
		g.VPERMT2W(part[1], pairs, part[0])
		g.VMOVDQU32(part[0], at(dst, nil, 0, disp+1024*(2-p)))
	}
	return total
}

// acrossSixteen sums each of sixteen vectors over its lanes, in across's order, and returns the sums side by side.
func (g *gen) acrossSixteen(v []reg.VecVirtual) reg.VecVirtual {
	// The rows of the four steps' operands, so that row i's sum ends in lane i.
	order := []int{0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15}
	w := make([]reg.VecVirtual, 16)
	for i, r := range order {
		w[i] = v[r]
	}
	steps := []func(a, b, lo, hi reg.VecVirtual){
		func(a, b, lo, hi reg.VecVirtual) { // lanes i and i+8
			g.VSHUFF64X2(operand.U8(0x44), b, a, lo)
			g.VSHUFF64X2(operand.U8(0xee), b, a, hi)
		},
		func(a, b, lo, hi reg.VecVirtual) { // i and i+4
			g.VSHUFF32X4(operand.U8(0x88), b, a, lo)
			g.VSHUFF32X4(operand.U8(0xdd), b, a, hi)
		},
		func(a, b, lo, hi reg.VecVirtual) { // i and i+2
			g.VUNPCKLPD(b, a, lo)
			g.VUNPCKHPD(b, a, hi)
		},
		func(a, b, lo, hi reg.VecVirtual) { // i and i+1
			g.VSHUFPS(operand.U8(0x88), b, a, lo)
			g.VSHUFPS(operand.U8(0xdd), b, a, hi)
		},
	}
	for _, step := range steps {
		for i := range len(w) / 2 {
			lo, hi := g.vec(), g.vec()
			step(w[2*i], w[2*i+1], lo, hi)
			g.VADDPS(hi, lo, lo)
			w[i] = lo
		}
		w = w[:len(w)/2]
	}
	return w[0]
}

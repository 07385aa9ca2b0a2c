package main

import (
	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

func (g *gen) amxFormats() []amxFormat {
	var c amxConst
	nibbles := func(table operand.Mem, quants int, offset bool) amxFormat {
		return amxFormat{
			bytes: quants + 16, offset: offset,
			setup: func() { c = g.amxSetup(); c.table = g.vec(); g.VMOVDQU32(table, c.table) },
			unpack: func(row func(n, disp int) operand.Mem, dst int) {
				g.unpackScales(c, row, dst, offset)
				g.columns(c, row, quants, func(j int, v reg.VecVirtual) {
					g.lookUp(c.table, v, 0, dst, 2*j)
					g.lookUp(c.table, v, 8, dst, 2*j+1)
					g.lookUp(c.table, v, 4, dst, 8+2*j)
					g.lookUp(c.table, v, 12, dst, 9+2*j)
				})
			},
		}
	}
	q40, q41 := nibbles(g.signedTable, 2, false), nibbles(g.nibbleTable, 4, true)
	q40.name, q41.name = "Q4_0", "Q4_1"
	q80 := amxFormat{
		name: "Q8_0", bytes: 34,
		setup: func() { c = g.amxSetup() },
		unpack: func(row func(n, disp int) operand.Mem, dst int) {
			g.unpackScales(c, row, dst, false)
			for half := range 2 {
				g.columns(c, row, 2+16*half, func(j int, v reg.VecVirtual) {
					g.signedPair(v, 0, dst, 8*half+2*j)
					g.signedPair(v, 8, dst, 8*half+2*j+1)
				})
			}
		},
	}
	return []amxFormat{q40, q41, q80}
}

// amxConst is what unpacking keeps in registers.
type amxConst struct {
	masks   [3]reg.OpmaskVirtual // the second to fourth quarter of a vector
	all     reg.OpmaskVirtual
	columns [2]reg.VecVirtual
	rows    reg.VecVirtual // byte offsets of sixteen rows
	table   reg.VecVirtual
}

func (g *gen) amxSetup() amxConst {
	var c amxConst
	t := g.GP32()
	for i := range c.masks {
		c.masks[i] = g.K()
		g.MOVL(operand.U32(0xf0<<(4*i)), t)
		g.KMOVW(t, c.masks[i])
	}
	c.all = g.K()
	g.MOVL(operand.U32(0xffff), t)
	g.KMOVW(t, c.all)
	for i := range c.columns {
		c.columns[i] = g.vec()
		g.VMOVDQU32(g.columnTable[i], c.columns[i])
	}
	c.rows = g.vec()
	g.VPBROADCASTD(g.field(argRowBytes), c.rows)
	g.VPMULLD(g.rowTable, c.rows, c.rows)
	return c
}

// unpackScales writes the rows' binary16 scales, and offsets behind them, as float32.
func (g *gen) unpackScales(c amxConst, row func(n, disp int) operand.Mem, dst int, offset bool) {
	all, v, h := g.K(), g.vec(), g.YMM()
	g.KMOVW(c.all, all) // a gather clears its mask
	g.zero(v)
	base := row(0, 0)
	base.Index, base.Scale = c.rows, 1
	g.VPGATHERDD(base, all, v)
	g.VPMOVDW(v, h)
	f := g.vec()
	g.VCVTPH2PS(h, f)
	g.VMOVUPS(f, at(ptrB, nil, 0, dst+1024))
	if offset {
		g.VPSRLD(operand.U8(16), v, v)
		h, f = g.YMM(), g.vec()
		g.VPMOVDW(v, h)
		g.VCVTPH2PS(h, f)
		g.VMOVUPS(f, at(ptrB, nil, 0, dst+1024+64))
	}
}

// columns transposes 16 bytes of each of 16 rows: vector j has bytes 4j to 4j+3 of all rows.
func (g *gen) columns(c amxConst, row func(n, disp int) operand.Mem, disp int, use func(j int, v reg.VecVirtual)) {
	var q [4]reg.VecVirtual
	for i := range q {
		q[i] = g.vec()
		g.VBROADCASTI32X4(row(4*i, disp), q[i])
		for j, k := range c.masks {
			g.VBROADCASTI32X4(row(4*i+j+1, disp), k, q[i])
		}
	}
	for half := range 2 {
		lo, hi := g.vec(), g.vec()
		g.VMOVDQA32(c.columns[half], lo)
		g.VMOVDQA32(c.columns[half], hi)
		g.VPERMI2D(q[1], q[0], lo)
		g.VPERMI2D(q[3], q[2], hi)
		v := g.vec()
		g.VINSERTI64X4(operand.U8(1), hi.AsY(), lo, v)
		use(2*half, v)
		v = g.vec()
		g.VSHUFI64X2(operand.U8(0xee), hi, lo, v)
		use(2*half+1, v)
	}
}

// lookUp writes a tile row: table's entries at the nibbles shift bits up in each word of v.
func (g *gen) lookUp(table, v reg.VecVirtual, shift int, dst, r int) {
	w := g.vec()
	if shift == 0 {
		g.VPERMW(table, v, w)
	} else {
		g.VPSRLD(operand.U8(shift), v, w)
		g.VPERMW(table, w, w)
	}
	g.VMOVDQU32(w, at(ptrB, nil, 0, dst+64*r))
}

// signedPair writes a tile row from the signed bytes shift and shift+16 bits up in each dword of v.
func (g *gen) signedPair(v reg.VecVirtual, shift int, dst, r int) {
	lo, hi := g.vec(), g.vec()
	g.VPSLLD(operand.U8(24-shift), v, lo)
	g.VPSRAD(operand.U8(24), lo, lo)
	if shift == 8 {
		g.VPSRAD(operand.U8(24), v, hi)
	} else {
		g.VPSLLD(operand.U8(8), v, hi)
		g.VPSRAD(operand.U8(24), hi, hi)
	}
	g.VCVTDQ2PS(lo, lo)
	g.VCVTDQ2PS(hi, hi)
	g.VPSRLD(operand.U8(16), lo, lo)
	g.VPORD(hi, lo, lo) // eight bits and a sign leave hi's lower half zero
	g.VMOVDQU32(lo, at(ptrB, nil, 0, dst+64*r))
}

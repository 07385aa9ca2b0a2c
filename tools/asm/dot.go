package main

import (
	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// dot is the matrix product: rows of x against four rows of expanded weights. Each output has one accumulator vector, so
// element k goes to lane k mod lanes, in order of k, whatever the number of rows.
func (g *gen) dot() {
	g.text("dot4", "func(dst *float32, ldd int, x *float32, rows int, cols int, w *float32, bias *float32, add bool)",
		"computes dst[i*ldd+j] (+)= x[i]·w[j] + bias[j], i < rows, j < 4; cols is a multiple of a vector.")
	dst, ldd, x, rows := g.arg("dst"), g.arg("ldd"), g.arg("x"), g.arg("rows")
	steps, w, stride := g.arg("cols"), g.arg("w"), g.GP64()
	g.SHLQ(operand.U8(2), ldd)
	g.MOVQ(steps, stride)
	g.SHLQ(operand.U8(2), stride)
	if g.lanes == 16 {
		g.SHRQ(operand.U8(4), steps)
	} else {
		g.SHRQ(operand.U8(3), steps)
	}
	stride3 := g.GP64()
	g.LEAQ(at(stride, stride, 2, 0), stride3)
	most := 3
	if g.lanes == 16 {
		most = 6
	}
	for m := most; m >= 1; m-- {
		next, again := g.fresh("rows"), g.fresh("block")
		g.Label(again)
		g.CMPQ(rows, operand.U8(m))
		g.JLT(operand.LabelRef(next))
		g.dotBlock(m, dst, ldd, x, steps, w, stride, stride3)
		for range m {
			g.ADDQ(stride, x)
		}
		g.SUBQ(operand.U8(m), rows)
		if m == most {
			g.JMP(operand.LabelRef(again))
		}
		g.Label(next)
	}
	g.VZEROUPPER()
	g.RET()
}

// dotBlock does m rows and advances dst by them.
func (g *gen) dotBlock(m int, dst, ldd, x, steps, w, stride, stride3 reg.GPVirtual) {
	acc := make([][4]reg.VecVirtual, m)
	for i := range acc {
		for j := range acc[i] {
			acc[i][j] = g.vec()
			g.zero(acc[i][j])
		}
	}
	xp, xp3, wp, n := g.GP64(), g.GP64(), g.GP64(), g.GP64()
	g.MOVQ(x, xp)
	if m > 3 {
		g.LEAQ(at(x, stride3, 1, 0), xp3)
	}
	g.MOVQ(w, wp)
	g.MOVQ(steps, n)
	rowOf := func(base, base3 reg.GPVirtual, i int) operand.Mem {
		if i == 3 && base3 == nil {
			return at(base, stride3, 1, 0)
		}
		if i >= 3 {
			base, i = base3, i-3
		}
		return [3]operand.Mem{at(base, nil, 0, 0), at(base, stride, 1, 0), at(base, stride, 2, 0)}[i]
	}
	loop := g.fresh("k")
	g.Label(loop)
	if g.lanes == 16 {
		var wv [4]reg.VecVirtual
		for j := range wv {
			wv[j] = g.vec()
			g.VMOVUPS(rowOf(wp, nil, j), wv[j])
		}
		for i := range acc {
			xv := g.vec()
			g.VMOVUPS(rowOf(xp, xp3, i), xv)
			for j := range wv {
				g.VFMADD231PS(wv[j], xv, acc[i][j])
			}
		}
	} else {
		xv := make([]reg.VecVirtual, m)
		for i := range xv {
			xv[i] = g.vec()
			g.VMOVUPS(rowOf(xp, xp3, i), xv[i])
		}
		for j := range 4 {
			wv := g.vec()
			g.VMOVUPS(rowOf(wp, nil, j), wv)
			for i := range xv {
				g.VFMADD231PS(wv, xv[i], acc[i][j])
			}
		}
	}
	g.ADDQ(operand.U8(g.bytes()), xp)
	if m > 3 {
		g.ADDQ(operand.U8(g.bytes()), xp3)
	}
	g.ADDQ(operand.U8(g.bytes()), wp)
	g.DECQ(n)
	g.JNZ(operand.LabelRef(loop))
	bias := g.arg("bias")
	for i := range acc {
		g.finish(acc[i][:], at(bias, nil, 0, 0), at(dst, nil, 0, 0))
		g.ADDQ(ldd, dst)
	}
}

// finish sums accumulators over their lanes, always in the same order, adds the bias and, with the argument add, what is in
// dst; it stores the sums, one, two or four, there.
func (g *gen) finish(acc []reg.VecVirtual, bias, dst operand.Mem) {
	fold := make([]reg.VecVirtual, len(acc))
	copy(fold, acc)
	if g.lanes == 16 {
		for j, a := range fold {
			high, y := g.YMM(), g.YMM()
			g.VEXTRACTF64X4(operand.U8(1), a, high)
			g.VADDPS(high, a.AsY(), y)
			fold[j] = y
		}
	}
	t := g.YMM()
	g.VHADDPS(fold[1%len(fold)].AsY(), fold[0].AsY(), t)
	u := t
	if len(fold) == 4 {
		u = g.YMM()
		g.VHADDPS(fold[3].AsY(), fold[2].AsY(), u)
	}
	g.VHADDPS(u, t, t)
	high, sum, old := g.XMM(), g.XMM(), g.XMM()
	g.VEXTRACTF128(operand.U8(1), t, high)
	g.VADDPS(high, t.AsX(), sum)
	load, store := g.VMOVUPS, g.VMOVUPS
	switch len(fold) {
	case 1:
		load, store = g.VMOVSS, g.VMOVSS
	case 2:
		load, store = func(o ...operand.Op) { g.VMOVSD(o...) }, func(o ...operand.Op) { g.VMOVSD(o...) }
	}
	load(bias, old)
	g.VADDPS(old, sum, sum)
	done, add := g.fresh("store"), g.GP8()
	g.Load(g.Param("add"), add)
	g.TESTB(add, add)
	g.JZ(operand.LabelRef(done))
	load(dst, old)
	g.VADDPS(old, sum, sum)
	g.Label(done)
	store(sum, dst)
}

// tile is the other product: a [m, k] by b [k, 16], sums in order of k.
func (g *gen) tile() {
	g.text("tile16", "func(c *float32, ldc int, a *float32, lda int, b *float32, ldb int, m int, k int, add bool)",
		"computes c [m, 16] (+)= a [m, k]·b [k, 16]; m and k are at least 1.")
	c, ldc, a, lda := g.arg("c"), g.arg("ldc"), g.arg("a"), g.arg("lda")
	ldb, m := g.arg("ldb"), g.arg("m")
	for _, r := range []reg.GPVirtual{ldc, lda, ldb} {
		g.SHLQ(operand.U8(2), r)
	}
	sizes := []int{6, 5, 4, 3, 2, 1}
	if g.lanes == 16 {
		sizes = []int{8, 6, 5, 4, 3, 2, 1}
	}
	lda3 := g.GP64()
	g.LEAQ(at(lda, lda, 2, 0), lda3)
	for _, size := range sizes {
		next, again := g.fresh("rows"), g.fresh("block")
		g.Label(again)
		g.CMPQ(m, operand.U8(size))
		g.JLT(operand.LabelRef(next))
		g.tileBlock(size, c, ldc, a, lda, lda3, ldb)
		for range size {
			g.ADDQ(ldc, c)
			g.ADDQ(lda, a)
		}
		g.SUBQ(operand.U8(size), m)
		if size == sizes[0] {
			g.JMP(operand.LabelRef(again))
		}
		g.Label(next)
	}
	g.VZEROUPPER()
	g.RET()
}

func (g *gen) tileBlock(m int, c, ldc, a, lda, lda3, ldb reg.GPVirtual) {
	per := 16 / g.lanes // vectors in a row of c
	acc := make([][]reg.VecVirtual, m)
	for i := range acc {
		for range per {
			acc[i] = append(acc[i], g.vec())
		}
	}
	flag, zero, start := g.GP8(), g.fresh("zero"), g.fresh("start")
	g.Load(g.Param("add"), flag)
	g.TESTB(flag, flag)
	g.JZ(operand.LabelRef(zero))
	cp := g.GP64()
	g.MOVQ(c, cp)
	for i := range acc {
		for j, v := range acc[i] {
			g.VMOVUPS(at(cp, nil, 0, j*g.bytes()), v)
		}
		g.ADDQ(ldc, cp)
	}
	g.JMP(operand.LabelRef(start))
	g.Label(zero)
	for i := range acc {
		for _, v := range acc[i] {
			g.zero(v)
		}
	}
	g.Label(start)
	// Rows of a in groups of three: base, base+lda, base+2*lda.
	var ap []reg.GPVirtual
	for i := 0; i < m; i += 3 {
		p := g.GP64()
		if i == 0 {
			g.MOVQ(a, p)
		} else {
			g.LEAQ(at(ap[len(ap)-1], lda3, 1, 0), p)
		}
		ap = append(ap, p)
	}
	bp, n := g.arg("b"), g.arg("k")
	loop := g.fresh("k")
	g.Label(loop)
	var bv []reg.VecVirtual
	for j := range per {
		v := g.vec()
		g.VMOVUPS(at(bp, nil, 0, j*g.bytes()), v)
		bv = append(bv, v)
	}
	for i := range acc {
		base := ap[i/3]
		from := [3]operand.Mem{at(base, nil, 0, 0), at(base, lda, 1, 0), at(base, lda, 2, 0)}[i%3]
		if g.lanes == 16 {
			g.VFMADD231PS_BCST(from, bv[0], acc[i][0])
			continue
		}
		av := g.vec()
		g.VBROADCASTSS(from, av)
		for j := range bv {
			g.VFMADD231PS(bv[j], av, acc[i][j])
		}
	}
	for _, p := range ap {
		g.ADDQ(operand.U8(4), p)
	}
	g.ADDQ(ldb, bp)
	g.DECQ(n)
	g.JNZ(operand.LabelRef(loop))
	g.MOVQ(c, cp)
	for i := range acc {
		for j, v := range acc[i] {
			g.VMOVUPS(v, at(cp, nil, 0, j*g.bytes()))
		}
		g.ADDQ(ldc, cp)
	}
}

// wide is tile for several b of 16 columns each, side by side in c: a whole head's values, or the keys of several pages. More
// sums at a time hide the latency of each.
func (g *gen) wide() {
	pointers, most := []string{"b0", "b1"}, 3
	if g.lanes == 16 {
		pointers, most = []string{"b0", "b1", "b2", "b3"}, 6
	}
	signature := "func(c *float32, ldc int, a *float32, lda int"
	for _, p := range pointers {
		signature += ", " + p + " *float32"
	}
	g.text("wide", signature+", ldb int, m int, k int, add bool)",
		"computes c [m, 16 for each b] (+)= a [m, k]·b [k, 16]; m and k are at least 1.")
	c, ldc, a, lda, ldb := g.arg("c"), g.arg("ldc"), g.arg("a"), g.arg("lda"), g.arg("ldb")
	for _, r := range []reg.GPVirtual{ldc, lda, ldb} {
		g.SHLQ(operand.U8(2), r)
	}
	var b []reg.GPVirtual
	for _, p := range pointers {
		b = append(b, g.arg(p))
	}
	left := g.address("m") // in memory: registers are short
	for size := most; size >= 1; size-- {
		next, again := g.fresh("rows"), g.fresh("block")
		g.Label(again)
		g.CMPQ(left, operand.U8(size))
		g.JLT(operand.LabelRef(next))
		g.wideBlock(size, c, ldc, a, lda, ldb, b)
		for range size {
			g.ADDQ(ldc, c)
			g.ADDQ(lda, a)
		}
		g.SUBQ(operand.U8(size), left)
		if size == most {
			g.JMP(operand.LabelRef(again))
		}
		g.Label(next)
	}
	g.VZEROUPPER()
	g.RET()
}

func (g *gen) wideBlock(m int, c, ldc, a, lda, ldb reg.GPVirtual, b []reg.GPVirtual) {
	per := 16 / g.lanes
	columns := func(f func(j, disp int)) { // of c
		for j := range len(b) * per {
			f(j, j*g.bytes())
		}
	}
	acc := make([][]reg.VecVirtual, m)
	for i := range acc {
		columns(func(int, int) { acc[i] = append(acc[i], g.vec()) })
	}
	flag, zero, start, p := g.GP8(), g.fresh("zero"), g.fresh("start"), g.GP64()
	g.Load(g.Param("add"), flag)
	g.TESTB(flag, flag)
	g.JZ(operand.LabelRef(zero))
	g.MOVQ(c, p)
	for i := range acc {
		columns(func(j, disp int) { g.VMOVUPS(at(p, nil, 0, disp), acc[i][j]) })
		g.ADDQ(ldc, p)
	}
	g.JMP(operand.LabelRef(start))
	g.Label(zero)
	for i := range acc {
		columns(func(j, _ int) { g.zero(acc[i][j]) })
	}
	g.Label(start)
	first, second, off, n := g.GP64(), g.GP64(), g.GP64(), g.arg("k")
	g.MOVQ(a, first)
	if m > 3 {
		g.LEAQ(at(a, lda, 2, 0), second)
		g.ADDQ(lda, second)
	}
	g.XORQ(off, off)
	loop := g.fresh("k")
	g.Label(loop)
	inB := func(j int) operand.Mem { return at(b[j/per], off, 1, j%per*g.bytes()) }
	var bv []reg.VecVirtual
	columns(func(j, _ int) {
		if g.lanes == 8 && j == len(acc[0])-1 && m == 3 {
			return // no register is left: this one comes from memory each time
		}
		v := g.vec()
		g.VMOVUPS(inB(j), v)
		bv = append(bv, v)
	})
	for i := range acc {
		base := first
		if i >= 3 {
			base = second
		}
		from := [3]operand.Mem{at(base, nil, 0, 0), at(base, lda, 1, 0), at(base, lda, 2, 0)}[i%3]
		av := g.vec()
		g.VBROADCASTSS(from, av)
		for j := range acc[i] {
			if j < len(bv) {
				g.VFMADD231PS(bv[j], av, acc[i][j])
			} else {
				g.VFMADD231PS(inB(j), av, acc[i][j])
			}
		}
	}
	g.ADDQ(operand.U8(4), first)
	if m > 3 {
		g.ADDQ(operand.U8(4), second)
	}
	g.ADDQ(ldb, off)
	g.DECQ(n)
	g.JNZ(operand.LabelRef(loop))
	g.MOVQ(c, p)
	for i := range acc {
		columns(func(j, disp int) { g.VMOVUPS(acc[i][j], at(p, nil, 0, disp)) })
		g.ADDQ(ldc, p)
	}
}

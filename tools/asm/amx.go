package main

import (
	"math"

	"github.com/mmcloughlin/avo/attr"
	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// The matrix product by tiles, for formats whose blocks of 32 weights are w = d*q + m with small integers q. Tiles multiply
// bfloat16 numbers and sum in float32. q is a bfloat16 number; x is three of them, whose sum it is exactly (24 bits of
// fraction are 8 + 8 + 8). So nothing is lost but in float32 sums: a block's sum of q*x comes from the tiles, and
// d*that + m*(sum of x) is added to the output in vector registers.
//
// Elements of a block are in the order of pairOrder, in x and in q alike, because that is how bytes become pairs cheapest.

// Sizes in bytes. A strip is 16 rows of weights; one of its blocks is a tile of q, [16 pairs, 16 rows], then d [16 rows] and
// m [16 rows] in float32. A block of x is three tiles [16 rows, 32], the smallest parts first; sums of x are [16 rows].
const (
	stripBlock = 1024 + 64 + 64
	xBlock     = 3 * 1024
	sumBlock   = 64
)

// nextShare is what a block of each of four strips prefetches of a block of x.
const nextShare = xBlock / 4

// pairOrder returns the elements of pair r of a block.
func pairOrder(r int) (int, int) {
	k := r/2*4 + r%2
	return k, k + 2
}

// Fields of amxArgs in internal/backend/cpu, eight bytes each, in its order.
const (
	argW = 8 * iota
	argRowBytes
	argBlocks
	argSegment
	argGroups
	argStrips
	argX
	argXTile
	argSums
	argSumsTile
	argTiles
	argRows
	argAcc
	argStripMem
	argSumMem
	argConfig
	argDst
	argDstRow
	argBias
	argAdd
	argDone
	argNow
	argTile
	argStrip
)

// Registers of the tile functions; the encoding of tile instructions names them.
var (
	args    = reg.RDI
	count   = reg.RAX
	temp    = reg.RBX
	ptrAcc  = reg.RDX
	stride  = reg.R10 // 64
	ptrB    = reg.R8  // a strip's unpacked blocks
	ptrX    = reg.R9
	ptrC    = reg.R11 // results of products, a ring
	ptrSums = reg.RSI
	// Rows of weights: the first of each four, one row's bytes, three rows' bytes.
	row0, row4, row8, row12 = reg.R12, reg.R13, reg.R14, reg.R15
	oneRow, threeRows       = reg.RCX, reg.RBP
	ptrNext                 = reg.R12 // the next tile of x
)

// Products run lag blocks ahead of the sums that use them: reading what a tile has just stored would stall. The ring of
// results has twice as many places, of 1 KiB, and is on a multiple of twice its size, so that flipping a bit goes half round.
const (
	lag  = 2
	ring = 2 * lag * 1024
)

// Where there is one tile of x alone, unpacking runs ahead blocks before products, for the same reason.
const (
	ahead       = 2
	unpackAhead = lag + ahead // blocks that are unpacked first
)

func (g *gen) field(f int) operand.Mem { return at(args, nil, 0, f) }

// amxFormat is a format that tiles multiply.
type amxFormat struct {
	name   string
	bytes  int // of a block
	offset bool
	// setup loads what unpack needs; unpack writes one block of a strip at ptrB + dst from rows at row(n, disp).
	setup  func()
	unpack func(row func(n, disp int) operand.Mem, dst int)
}

func (g *gen) amx() {
	g.amxData()
	g.packX()
	for _, f := range g.amxFormats() {
		g.amxProduct(f)
	}
}

func (g *gen) amxData() {
	table := func(name string, f func(i int) uint16) operand.Mem {
		m := g.StaticGlobal(name)
		g.DataAttributes(attr.RODATA | attr.NOPTR)
		for i := range 32 {
			g.AppendDatum(operand.U16(f(i)))
		}
		return m
	}
	bf16 := func(v int) uint16 { return uint16(math.Float32bits(float32(v)) >> 16) }
	// Tables have 32 entries, twice the same: the index's fifth bit is another nibble's.
	g.nibbleTable = table("nibbles", func(i int) uint16 { return bf16(i % 16) })
	g.signedTable = table("signed", func(i int) uint16 { return bf16(i%16 - 8) })
	g.pairTable = table("pairs", func(i int) uint16 {
		a, b := pairOrder(i / 2)
		return uint16(2*[2]int{a, b}[i%2] + 1)
	})
	for half := range 2 {
		m := g.StaticGlobal("columns" + itoa(half))
		g.DataAttributes(attr.RODATA | attr.NOPTR)
		for i := range 16 { // dwords 2*half of eight rows, then dwords 2*half+1
			row, dword := i%8, 2*half+i/8
			g.AppendDatum(operand.U32(uint32(row/4*16 + row%4*4 + dword)))
		}
		g.columnTable[half] = m
	}
	g.rowTable = g.StaticGlobal("rows")
	g.DataAttributes(attr.RODATA | attr.NOPTR)
	for i := range 16 {
		g.AppendDatum(operand.U32(uint32(i)))
	}
}

// amxProduct multiplies groups of strips by tiles of x. Loops: groups; segments of blocks, of which a group's strips are
// unpacked; tiles of x; strips; blocks. Results wait in acc between segments.
func (g *gen) amxProduct(f amxFormat) {
	g.text("product"+f.name, "func(a *byte)", "multiplies as the arguments, an amxArgs, say.")
	g.Load(g.Param("a"), args)
	config := reg.RSI
	g.MOVQ(g.field(argConfig), config)
	g.tileConfig(config)
	group, segment := g.fresh("group"), g.fresh("segment")
	g.Label(group)
	g.MOVQ(operand.U32(0), g.field(argDone))
	g.Label(segment)
	now := reg.RAX
	g.MOVQ(g.field(argBlocks), now)
	g.SUBQ(g.field(argDone), now)
	fits := g.fresh("fits")
	g.CMPQ(now, g.field(argSegment))
	g.JLE(operand.LabelRef(fits))
	g.MOVQ(g.field(argSegment), now)
	g.Label(fits)
	g.MOVQ(now, g.field(argNow))
	many, multiplied := g.fresh("many"), g.fresh("multiplied")
	g.CMPQ(g.field(argTiles), operand.U8(1))
	g.JNE(operand.LabelRef(many))
	g.CMPQ(now, operand.U8(unpackAhead))
	g.JLE(operand.LabelRef(many))
	g.multiplyOne(f)
	g.JMP(operand.LabelRef(multiplied))
	g.Label(many)
	g.unpackStrips(f)
	g.multiplyTiles(f)
	g.Label(multiplied)
	done := reg.RAX
	g.MOVQ(g.field(argNow), done)
	g.ADDQ(g.field(argDone), done)
	g.MOVQ(done, g.field(argDone))
	g.CMPQ(done, g.field(argBlocks))
	g.JLT(operand.LabelRef(segment))
	g.storeResults()
	// The next group: its weights, outputs and biases.
	n, t := reg.RAX, reg.RCX
	g.MOVQ(g.field(argStrips), n)
	g.SHLQ(operand.U8(4), n)
	g.MOVQ(n, t)
	g.IMULQ(g.field(argRowBytes), t)
	g.ADDQ(t, g.field(argW))
	g.SHLQ(operand.U8(2), n)
	g.ADDQ(n, g.field(argDst))
	g.ADDQ(n, g.field(argBias))
	g.DECQ(g.field(argGroups))
	g.JNZ(operand.LabelRef(group))
	g.tileRelease()
	g.VZEROUPPER()
	g.RET()
}

// unpackStrips writes a segment of the group's strips to the thread's memory.
func (g *gen) unpackStrips(f amxFormat) {
	f.setup()
	g.MOVQ(operand.U32(0), g.field(argStrip))
	strip := g.fresh("strip")
	g.Label(strip)
	g.startRows(f)
	g.MOVQ(g.field(argStrip), ptrB)
	g.IMULQ(g.field(argSegment), ptrB)
	g.IMUL3Q(operand.U32(stripBlock), ptrB, ptrB)
	g.ADDQ(g.field(argStripMem), ptrB)
	g.MOVQ(g.field(argNow), count)
	g.unpackBlocks(f)
	g.INCQ(g.field(argStrip))
	g.MOVQ(g.field(argStrip), temp)
	g.CMPQ(temp, g.field(argStrips))
	g.JLT(operand.LabelRef(strip))
}

// startRows points at the rows of strip argStrip, at the segment's first block.
func (g *gen) startRows(f amxFormat) {
	g.MOVQ(g.field(argRowBytes), oneRow)
	g.LEAQ(at(oneRow, oneRow, 2, 0), threeRows)
	g.MOVQ(g.field(argDone), row0)
	g.IMUL3Q(operand.U32(uint32(f.bytes)), row0, row0)
	g.ADDQ(g.field(argW), row0)
	g.MOVQ(g.field(argStrip), temp)
	g.SHLQ(operand.U8(4), temp)
	g.IMULQ(oneRow, temp)
	g.ADDQ(temp, row0)
	g.LEAQ(at(row0, oneRow, 4, 0), row4)
	g.LEAQ(at(row4, oneRow, 4, 0), row8)
	g.LEAQ(at(row8, oneRow, 4, 0), row12)
}

// unpackBlock unpacks the block that the rows are at to ptrB + disp, and goes on to the next.
func (g *gen) unpackBlock(f amxFormat, disp int) {
	f.unpack(func(i, disp int) operand.Mem {
		base := [4]reg.Register{row0, row4, row8, row12}[i/4]
		return [4]operand.Mem{at(base, nil, 0, disp), at(base, oneRow, 1, disp), at(base, oneRow, 2, disp), at(base, threeRows, 1, disp)}[i%4]
	}, disp)
	for _, r := range []reg.Register{row0, row4, row8, row12} {
		g.ADDQ(operand.U8(f.bytes), r)
	}
}

// unpackBlocks unpacks count blocks, the first at ptrB.
func (g *gen) unpackBlocks(f amxFormat) {
	loop := g.fresh("unpack")
	g.Label(loop)
	g.unpackBlock(f, 0)
	g.ADDQ(operand.U32(stripBlock), ptrB)
	g.DECQ(count)
	g.JNZ(operand.LabelRef(loop))
}

// multiplyTiles multiplies the unpacked strips by all tiles of x and adds to acc, [tiles, strips, 16, 16].
func (g *gen) multiplyTiles(f amxFormat) {
	g.MOVQ(operand.U32(64), stride)
	g.MOVQ(g.field(argAcc), ptrAcc)
	g.MOVQ(operand.U32(0), g.field(argTile))
	tile, strip := g.fresh("tile"), g.fresh("strip")
	g.Label(tile)
	g.MOVQ(operand.U32(0), g.field(argStrip))
	g.Label(strip)
	g.startTile()
	g.MOVQ(g.field(argStrip), ptrB)
	g.IMULQ(g.field(argSegment), ptrB)
	g.IMUL3Q(operand.U32(stripBlock), ptrB, ptrB)
	g.ADDQ(g.field(argStripMem), ptrB)
	g.MOVQ(g.field(argNow), count)
	// A tile's strips share the work of asking for the next tile's blocks.
	g.MOVQ(g.field(argStrip), ptrNext)
	g.IMULQ(count, ptrNext)
	g.IMUL3Q(operand.U32(nextShare), ptrNext, ptrNext)
	g.ADDQ(ptrX, ptrNext)
	g.ADDQ(g.field(argXTile), ptrNext)
	g.multiplyTile(f)
	g.ADDQ(operand.U32(1024), ptrAcc)
	g.INCQ(g.field(argStrip))
	g.MOVQ(g.field(argStrip), temp)
	g.CMPQ(temp, g.field(argStrips))
	g.JLT(operand.LabelRef(strip))
	g.INCQ(g.field(argTile))
	g.MOVQ(g.field(argTile), temp)
	g.CMPQ(temp, g.field(argTiles))
	g.JLT(operand.LabelRef(tile))
}

// startTile points at tile argTile of x, at the segment's first block, and at the start of the ring.
func (g *gen) startTile() {
	g.MOVQ(g.field(argTile), ptrX)
	g.IMULQ(g.field(argXTile), ptrX)
	g.ADDQ(g.field(argX), ptrX)
	g.MOVQ(g.field(argTile), ptrSums)
	g.IMULQ(g.field(argSumsTile), ptrSums)
	g.ADDQ(g.field(argSums), ptrSums)
	g.MOVQ(g.field(argDone), temp)
	g.IMUL3Q(operand.U32(xBlock), temp, temp)
	g.ADDQ(temp, ptrX)
	g.MOVQ(g.field(argDone), temp)
	g.SHLQ(operand.U8(6), temp)
	g.ADDQ(temp, ptrSums)
	g.MOVQ(g.field(argSumMem), ptrC)
}

// products multiplies a block of x by the block at ptrB + disp into the ring's next place.
func (g *gen) products(disp int) {
	g.tileZero(0)
	g.tileLoad(4, ptrB, stride, disp)
	for i := range 3 {
		g.tileLoad(5+i, ptrX, stride, 1024*i)
		g.tileProduct(0, 5+i, 4)
	}
	g.tileStore(0, ptrC, stride, 0)
	g.ADDQ(operand.U32(xBlock), ptrX)
	g.ADDQ(operand.U32(1024), ptrC)
	g.ANDQ(operand.I32(^ring), ptrC)
}

// addResult adds the result behind places before ptrC in the ring to acc. Its block is at ptrB + disp.
func (g *gen) addResult(f amxFormat, acc []reg.VecVirtual, behind, disp int) {
	d, m := g.vec(), g.vec()
	g.LEAQ(at(ptrC, nil, 0, -1024*behind), temp)
	g.ANDQ(operand.I32(ring-1), temp)
	g.ADDQ(g.field(argSumMem), temp)
	g.VMOVUPS(at(ptrB, nil, 0, disp+1024), d)
	for i, a := range acc {
		g.VFMADD231PS(at(temp, nil, 0, 64*i), d, a)
	}
	if f.offset {
		g.VMOVUPS(at(ptrB, nil, 0, disp+1024+64), m)
		for i, a := range acc {
			g.VFMADD231PS_BCST(at(ptrSums, nil, 0, 4*i), m, a)
		}
	}
	g.ADDQ(operand.U8(sumBlock), ptrSums)
}

// loadAcc makes registers, one a row of x, of what ptrAcc has from earlier segments.
func (g *gen) loadAcc() []reg.VecVirtual {
	acc := make([]reg.VecVirtual, 16)
	for i := range acc {
		acc[i] = g.vec()
	}
	zero, start := g.fresh("zero"), g.fresh("start")
	g.CMPQ(g.field(argDone), operand.U8(0))
	g.JEQ(operand.LabelRef(zero))
	for i, a := range acc {
		g.VMOVUPS(at(ptrAcc, nil, 0, 64*i), a)
	}
	g.JMP(operand.LabelRef(start))
	g.Label(zero)
	for _, a := range acc {
		g.zero(a)
	}
	g.Label(start)
	return acc
}

func (g *gen) storeAcc(acc []reg.VecVirtual) {
	for i, a := range acc {
		g.VMOVUPS(a, at(ptrAcc, nil, 0, 64*i))
	}
}

// askNext prefetches a block's share of the next tile of x.
func (g *gen) askNext() {
	for line := 0; line < nextShare; line += 64 {
		g.PREFETCHT0(at(ptrNext, nil, 0, line))
	}
	g.ADDQ(operand.U32(nextShare), ptrNext)
}

// multiplyTile is one strip, unpacked, by one tile of x.
func (g *gen) multiplyTile(f amxFormat) {
	acc := g.loadAcc()
	loop := g.fresh("block")
	last := make([]string, lag)
	for i := range lag {
		last[i] = g.fresh("last")
		g.products(0)
		g.askNext()
		g.ADDQ(operand.U32(stripBlock), ptrB)
		g.DECQ(count)
		g.JZ(operand.LabelRef(last[i]))
	}
	g.Label(loop)
	g.products(0)
	g.askNext()
	g.addResult(f, acc, lag+1, -lag*stripBlock)
	g.ADDQ(operand.U32(stripBlock), ptrB)
	g.DECQ(count)
	g.JNZ(operand.LabelRef(loop))
	for i := lag; i >= 1; i-- {
		g.Label(last[i-1])
		g.addResult(f, acc, i, -i*stripBlock)
	}
	g.storeAcc(acc)
}

// multiplyOne is a segment of one strip by one tile of x: unpacking, products and sums of different blocks go side by side,
// since each waits for other parts of the processor. The segment has more than unpackAhead blocks.
func (g *gen) multiplyOne(f amxFormat) {
	f.setup()
	g.MOVQ(operand.U32(0), g.field(argStrip))
	g.MOVQ(operand.U32(0), g.field(argTile))
	g.startRows(f)
	g.MOVQ(g.field(argStripMem), ptrB)
	g.MOVQ(operand.U32(unpackAhead), count)
	g.unpackBlocks(f)
	g.MOVQ(operand.U32(64), stride)
	g.MOVQ(g.field(argAcc), ptrAcc)
	g.startTile()
	g.MOVQ(g.field(argNow), count)
	g.SUBQ(operand.U8(unpackAhead), count)
	behind := reg.RDX // in place of ptrAcc
	acc := g.loadAcc()
	// Strips lie end to end: ask for as much of the next but one as was unpacked of this one.
	g.MOVQ(oneRow, behind)
	g.SHLQ(operand.U8(5), behind)
	g.ADDQ(row0, behind)
	g.MOVQ(g.field(argDone), temp)
	g.IMUL3Q(operand.U32(uint32(15*f.bytes)), temp, temp)
	g.ADDQ(temp, behind)
	for i := range lag {
		g.products((i - unpackAhead) * stripBlock)
	}
	loop := g.fresh("block")
	g.Label(loop)
	for line := 0; line < 16*f.bytes; line += 64 {
		g.PREFETCHT0(at(behind, nil, 0, line))
	}
	g.ADDQ(operand.U32(uint32(16*f.bytes)), behind)
	g.products(-ahead * stripBlock)
	g.unpackBlock(f, 0)
	g.addResult(f, acc, lag+1, -unpackAhead*stripBlock)
	g.ADDQ(operand.U32(stripBlock), ptrB)
	g.DECQ(count)
	g.JNZ(operand.LabelRef(loop))
	for i := ahead; i >= 1; i-- {
		g.products(-i * stripBlock)
		g.addResult(f, acc, lag+1, -(i+lag)*stripBlock)
	}
	for i := lag; i >= 1; i-- {
		g.addResult(f, acc, i, -i*stripBlock)
	}
	g.MOVQ(g.field(argAcc), ptrAcc)
	g.storeAcc(acc)
}

// storeResults writes acc, with bias and perhaps what was there, to dst.
func (g *gen) storeResults() {
	acc, dst, bias, rows, left, row, strips, t := reg.RSI, reg.R8, reg.R9, reg.RAX, reg.RBX, reg.RCX, reg.RDX, reg.R11
	g.MOVQ(g.field(argAcc), acc)
	g.MOVQ(g.field(argDstRow), row)
	g.MOVQ(operand.U32(0), g.field(argTile))
	g.MOVQ(g.field(argRows), left)
	tile, strip, one, plain := g.fresh("tile"), g.fresh("strip"), g.fresh("row"), g.fresh("plain")
	g.Label(tile)
	g.MOVQ(g.field(argBias), bias)
	g.MOVQ(operand.U32(0), strips)
	g.Label(strip)
	// dst + tile*16 rows + strip*16 columns
	g.MOVQ(g.field(argTile), dst)
	g.SHLQ(operand.U8(4), dst)
	g.IMULQ(row, dst)
	g.ADDQ(g.field(argDst), dst)
	g.MOVQ(strips, t)
	g.SHLQ(operand.U8(6), t)
	g.ADDQ(t, dst)
	g.MOVQ(left, rows)
	fits := g.fresh("fits")
	g.CMPQ(rows, operand.U8(16))
	g.JLE(operand.LabelRef(fits))
	g.MOVQ(operand.U32(16), rows)
	g.Label(fits)
	b, from := g.vec(), reg.R10
	g.VMOVUPS(at(bias, nil, 0, 0), b)
	g.MOVQ(acc, from)
	g.MOVQ(g.field(argAdd), t)
	g.Label(one)
	v := g.vec()
	g.VADDPS(at(from, nil, 0, 0), b, v)
	g.TESTQ(t, t)
	g.JZ(operand.LabelRef(plain))
	g.VADDPS(at(dst, nil, 0, 0), v, v)
	g.Label(plain)
	g.VMOVUPS(v, at(dst, nil, 0, 0))
	g.ADDQ(operand.U8(64), from)
	g.ADDQ(row, dst)
	g.DECQ(rows)
	g.JNZ(operand.LabelRef(one))
	g.ADDQ(operand.U32(1024), acc)
	g.ADDQ(operand.U8(64), bias)
	g.INCQ(strips)
	g.CMPQ(strips, g.field(argStrips))
	g.JLT(operand.LabelRef(strip))
	g.SUBQ(operand.U8(16), left)
	g.INCQ(g.field(argTile))
	g.MOVQ(g.field(argTile), t)
	g.CMPQ(t, g.field(argTiles))
	g.JLT(operand.LabelRef(tile))
}

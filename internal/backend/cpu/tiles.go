package cpu

import (
	"runtime"
	"unsafe"
)

// tileUnit multiplies by tiles: products of sixteen rows of weights and up to sixteen of x, block by block of 32.
type tileUnit struct {
	name string
	// product, by weights.DType, multiplies as an amxArgs says; nil: the format goes the other way.
	product [types]func(args *byte)
	// pack splits n blocks of a row of x into the row's place in tiles, packTile those of sixteen rows.
	pack, packTile func(dst *byte, sums, x *float32, n int)
}

// multiplies reports whether any part of m is for the unit.
func (u *tileUnit) multiplies(m *matrix) bool {
	if u == nil {
		return false
	}
	for i := range m.parts {
		if u.product[m.parts[i].dtype] != nil {
			return true
		}
	}
	return false
}

// amxArgs are the arguments of the product functions; tools/asm has the same list. Addresses are integers because the
// assembly moves some past the end of what they point to, where the collector must not meet them.
type amxArgs struct {
	w                uintptr // first row of the first strip
	rowBytes, blocks int
	segment          int // blocks that are unpacked at a time
	groups, strips   int // strips of each group
	x                uintptr
	xTile            int // bytes of a tile row of x: sixteen rows, all blocks
	sums             uintptr
	sumsTile         int
	tiles            int // of x
	rows             int // rows of x
	acc              uintptr
	stripMem, sumMem uintptr
	config           uintptr
	dst              uintptr
	dstRow           int // bytes
	bias             uintptr
	add              int

	done, now, tile, strip int // the assembly's own
}

// Sizes that the assembly and this file share, in float32.
const (
	stripRows  = 16
	stripBlock = (1024 + 64 + 64) / 4
	xBlock     = 3 * 1024 / 4
	sumBlock   = 64 / 4
)

// How products are cut. Results do not depend on it, but for tilesFrom: vectors sum in another order than tiles.
const (
	tilesFrom     = mostFew + 1 // rows of x
	fewPieceRows  = 48          // rows of weights of a piece where there is one tile of x
	tilesAtOnce   = 16          // tiles of x that go over a piece together: 256 rows
	tilePieceRows = 64          // rows of weights of a piece where there are several tiles of x; its strips are unpacked together

	manySegment = 4  // blocks of those: weights and x share the first-level cache
	oneSegment  = 24 // blocks of a strip alone
)

// tileConfig is LDTILECFG's 64 bytes: palette 1, eight tiles of 16 rows of 64 bytes. Tile 0 is results, 4 weights, 5 to 7
// parts of x.
var tileConfig = func() (c [64]byte) {
	c[0] = 1
	for t := range 8 {
		c[16+2*t], c[48+t] = 64, 16
	}
	return c
}()

// tileMem is x as tiles want it, and the sums of its blocks.
type tileMem struct{ x, sums []float32 }

func (t *tileMem) bytes() int64 { return 4 * int64(cap(t.x)+cap(t.sums)) }

// packOp splits tiles of rows of x.
type packOp struct {
	unit   *tileUnit
	mem    *tileMem
	x      []float32
	n      int // rows of x
	blocks int
}

func (o *packOp) rows(first, end int) { // of tiles
	cols := 32 * o.blocks
	for t := first; t < end; t++ {
		dst, sums := o.mem.x[t*o.blocks*xBlock:], o.mem.sums[t*o.blocks*sumBlock:]
		if (t+1)*stripRows <= o.n {
			o.unit.packTile((*byte)(unsafe.Pointer(&dst[0])), &sums[0], &o.x[t*stripRows*cols], o.blocks)
			continue
		}
		for i := range o.n - t*stripRows {
			o.unit.pack((*byte)(unsafe.Pointer(&dst[16*i])), &sums[i], &o.x[(t*stripRows+i)*cols], o.blocks)
		}
	}
}

// pack readies x for the tile unit.
func (b *cpuBackend) pack(x []float32, rows, cols int) {
	tiles, blocks := (rows+stripRows-1)/stripRows, cols/32
	grow(&b.tiles.x, tiles*blocks*xBlock)
	grow(&b.tiles.sums, tiles*blocks*sumBlock)
	b.tiles.x, b.tiles.sums = b.tiles.x[:cap(b.tiles.x)], b.tiles.sums[:cap(b.tiles.sums)]
	b.ops.pack = packOp{unit: b.k.tiles, mem: &b.tiles, x: x, n: rows, blocks: blocks}
	b.eachRow(&b.ops.pack, tiles, 2*stripRows*cols)
}

// tilePiece multiplies a piece by rows first to end-1 of x, first a multiple of a tile.
func (m *matmul) tilePiece(s *scratch, p *piece, first, end int) {
	whole := p.rows / stripRows
	out := p.part.first + p.first
	if whole > 0 {
		bias := manyZeros[:]
		if m.bias != nil {
			bias = m.bias[out:]
		}
		m.strips(s, p, p.part.span(p.first, whole*stripRows), whole, first, end, m.dst[first*m.w.rows+out:], m.w.rows, bias, m.add)
	}
	rest := p.rows - whole*stripRows
	if rest == 0 {
		return
	}
	// The last rows: a strip that is filled up with zero bytes, which are weights of 0.
	rb := p.part.rowBytes
	if len(s.rest) < stripRows*rb {
		s.rest = make([]byte, stripRows*rb)
	}
	clear(s.rest[copy(s.rest, p.part.span(p.first+whole*stripRows, rest)):])
	tmp := grow(&s.tail, stripRows*(end-first))
	m.strips(s, p, s.rest, 1, first, end, tmp, stripRows, manyZeros[:], false)
	out += whole * stripRows
	for i := range end - first {
		for j := range rest {
			v, at := tmp[i*stripRows+j], &m.dst[(first+i)*m.w.rows+out+j]
			if m.bias != nil {
				v += m.bias[out+j]
			}
			if m.add {
				v += *at
			}
			*at = v
		}
	}
}

// manyZeros is the bias of a piece without one.
var manyZeros [tilePieceRows]float32

// strips calls the product of n strips of weights.
func (m *matmul) strips(s *scratch, p *piece, w []byte, n, first, end int, dst []float32, ldd int, bias []float32, add bool) {
	rows, blocks := end-first, m.w.cols/32
	tiles := (rows + stripRows - 1) / stripRows
	a := &s.args
	*a = amxArgs{
		rowBytes: p.part.rowBytes, blocks: blocks, segment: oneSegment, groups: n, strips: 1,
		xTile: 4 * blocks * xBlock, sumsTile: 4 * blocks * sumBlock, tiles: tiles, rows: rows, dstRow: 4 * ldd,
	}
	if tiles > 1 {
		a.segment, a.groups, a.strips = manySegment, 1, n
	}
	if add {
		a.add = 1
	}
	tile := first / stripRows * blocks
	x, sums := m.packed.x[tile*xBlock:], m.packed.sums[tile*sumBlock:]
	acc := grow(&s.acc, tiles*a.strips*256)
	mem := grow(&s.panel, a.strips*a.segment*stripBlock)
	_, _, _, _ = w[n*stripRows*p.part.rowBytes-1], dst[(rows-1)*ldd+n*stripRows-1], bias[n*stripRows-1], x[tiles*blocks*xBlock-1]
	a.w = uintptr(unsafe.Pointer(&w[0]))
	a.x, a.sums = address(x), address(sums)
	a.acc, a.sumMem, a.stripMem = address(acc), s.sumMem(), address(mem)
	a.config = uintptr(unsafe.Pointer(&tileConfig))
	a.dst, a.bias = address(dst), address(bias)
	m.k.tiles.product[p.part.dtype]((*byte)(unsafe.Pointer(a)))
	runtime.KeepAlive(m)
}

func address(v []float32) uintptr { return uintptr(unsafe.Pointer(&v[0])) }

// sumMem is a ring of four result tiles of 1 KiB. It is on a multiple of twice its size: the assembly clears a bit of the
// address to get from its end to its start.
func (s *scratch) sumMem() uintptr {
	const size = 4 * 1024
	if s.sums == nil {
		s.sums = make([]float32, 3*size/4)
	}
	return (address(s.sums) + 2*size - 1) / (2 * size) * (2 * size)
}

package main

import (
	"fmt"
	"strings"

	"github.com/mmcloughlin/avo/ir"
	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// Instructions of AMX (Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2, TILELOADD and its like),
// which neither avo nor Go's assembler knows: all are VEX-encoded, map 0F38, W and L 0. Their registers are physical ones.

const (
	prefixNone = 0
	prefixF3   = 2
	prefixF2   = 3
)

// raw emits an instruction as bytes; in are the registers that it reads.
func (g *gen) raw(code []byte, in ...operand.Op) {
	var b []string
	for _, c := range code {
		b = append(b, fmt.Sprintf("BYTE $0x%02x", c))
	}
	g.Instruction(&ir.Instruction{Opcode: strings.Join(b, "; "), Inputs: in})
}

func number(r reg.GPPhysical) byte { return byte(reg.ToPhysical(r).PhysicalIndex()) }

// vex begins an instruction; x and b are the numbers of the index and base registers, v that of the register in vvvv.
func vex(prefix, opcode, x, b, v byte) []byte {
	return []byte{0xc4, 0x80 | (1^x>>3)<<6 | (1^b>>3)<<5 | 2, (15^v)<<3 | prefix, opcode}
}

// tiled is an instruction between tile t and rows at base + i*stride + disp.
func (g *gen) tiled(prefix byte, t int, base, stride reg.GPPhysical, disp int) {
	b, x := number(base), number(stride)
	code := append(vex(prefix, 0x4b, x, b, 0), 0x84|byte(t)<<3, x&7<<3|b&7)
	for i := range 4 {
		code = append(code, byte(disp>>(8*i)))
	}
	g.raw(code, base, stride)
}

func (g *gen) tileLoad(t int, base, stride reg.GPPhysical, disp int) {
	g.tiled(prefixF2, t, base, stride, disp)
}
func (g *gen) tileStore(t int, base, stride reg.GPPhysical, disp int) {
	g.tiled(prefixF3, t, base, stride, disp)
}

func (g *gen) tileZero(t int) { g.raw(append(vex(prefixF2, 0x49, 0, 0, 0), 0xc0|byte(t)<<3)) }

// tileRelease leaves the tiles' initial state, which costs a switch of tasks nothing.
func (g *gen) tileRelease() { g.raw(append(vex(prefixNone, 0x49, 0, 0, 0), 0xc0)) }

// tileConfig takes the 64 bytes at base; not R12 and R13, whose encoding is another.
func (g *gen) tileConfig(base reg.GPPhysical) {
	g.raw(append(vex(prefixNone, 0x49, 0, number(base), 0), number(base)&7), base)
}

// tileProduct adds a·b to c: c [rows, 16] float32, a [rows, 32] bfloat16, b [16, 16] pairs of bfloat16 (TDPBF16PS).
func (g *gen) tileProduct(c, a, b int) {
	g.raw(append(vex(prefixF3, 0x5c, 0, 0, byte(b)), 0xc0|byte(c)<<3|byte(a)))
}

package kernels

import (
	"fmt"
	"math/bits"
)

// normWidth is what a block's 256 threads take of a row at a time, four elements each.
const normWidth = 1024

// Norm plans RMSNorm of rows rows of x, float32, to bf16. A row's result is a matter of its width alone. The kernel's parameters are
//
//	dst u64 (bf16 [rows, width]), x u64 (float32 [rows, width]), norm u64 (float32 [width]), width i32, eps f32,
//
// all at multiples of 16 bytes where width is one of 4.
func Norm(g GPU, rows, width int) Plan {
	p := Plan{Module: module(g, "engine"), Kernel: "rms_norm", Grid: [3]uint32{uint32(rows), 1, 1}, Block: [3]uint32{256, 1, 1}}
	if width%4 == 0 && width <= 8*normWidth {
		p.Kernel = fmt.Sprintf("rms_norm_%d", normQuads(width))
	}
	return p
}

// normQuads is how many quads of a row a thread has: a power of two, of which the last may be empty.
func normQuads(width int) int { return 1 << bits.Len(uint(ceil(width, normWidth)-1)) }

// What a launch takes in a step beyond its bytes, and a norm in front of a product's own work, as measured on an H200. In a product that
// takes less than hidesNorm the norm is waited for; in a longer one weights come meanwhile.
const launchNS, normNS, hidesNorm = 2600, 900, 10_000

// ProductNorm plans RMSNorm of the rows of x and the product in one launch, and reports whether that is possible and believed to take
// less time than two. Results are those of the norm's kernel and Product's Sliced order to the bit. x is float32, and behind Product's
// parameters there are
//
//	norm u64 (float32 [K], at a multiple of 16 bytes; like w read before the kernel in front has ended), eps f32.
func ProductNorm(g GPU, M, N, K int, mode Mode) (p Plan, better bool) {
	if M*normQuads(K) > 8 { // a thread has room for 8
		return Plan{}, false
	}
	c := skinny(g, M, N, K)
	c.plan.Kernel = fmt.Sprintf("skinny_norm_%d", Slices(K))
	c.plan.Shared = uint32(4*K + M*((2*K+127)&^127+32))
	return c.plan, c.ns >= hidesNorm && c.ns+normNS < product(g, Sliced, M, N, K, mode).ns+launchNS
}

package kernels

import "strings"

// GPU is what the choice of kernels depends on.
type GPU struct {
	// Capability is the compute capability, major·10 + minor; at least 80.
	Capability int
	// SMs is how many streaming multiprocessors the work may use: those of the partition, where there is one.
	SMs int
}

// Hopper reports whether the GPU runs the kernels for sm_90a, which no later architecture does.
func (g GPU) Hopper() bool { return g.Capability == 90 }

// Mode is what a product does with its sums.
type Mode int32

// The modes, as product.cuh numbers them.
const (
	StoreBF16 Mode = 0 // c [M, N] bf16
	StoreF32  Mode = 1 // c [M, N] float32
	AddF32    Mode = 2 // added to c [M, N] float32
	SwiGLU    Mode = 3 // w is [gate (N/2 rows) | up (N/2 rows)]; c [M, N/2] bf16 = silu(gate)·up
)

// Order is in which order a product adds along K. Results of the same order are the same to the bit, whatever M is and whatever
// the other rows hold.
type Order int

const (
	// Sliced adds in slices, in parallel: for few rows, and fast up to some hundred.
	Sliced Order = iota
	// Ordered adds from the first to the last: for many rows. On GPUs other than Hopper it is the same as Sliced.
	Ordered
)

// Plan is how to launch a kernel.
type Plan struct {
	Module, Kernel string
	Grid, Block    [3]uint32
	// Shared is dynamic shared memory in bytes; above 48 KiB the function attribute has to allow it.
	Shared uint32
	// Cluster is how many blocks along x make a cluster; 0 for none.
	Cluster uint32
	// Maps says that x and w are device addresses of tensor maps instead of matrices (cuTensorMapEncodeTiled, bfloat16, 128-byte
	// swizzle), each at a multiple of 64: of w in boxes of 64 × 64 (for SwiGLU of rank 4: cuda.EncodeGateUpBF16), of x in boxes of
	// BoxRows × 64. The map of x may describe more rows than M: what is computed of them is not stored. Of PrefillAttention it says that
	// a map of the cache is among the parameters.
	Maps    bool
	BoxRows int
	// Parts is how many parts of a sequence a block of decode attention takes, and Ring how many tiles of 32 keys or values each of its
	// warps copies ahead.
	Parts, Ring int
}

// form is how a kernel of wgmma.cu runs along K.
type form int

const (
	ordered form = iota
	sliced
	cluster // the blocks of a cluster share out the slices
)

// tile is a kernel of wgmma.cu: its rows of w and of x, the stages of its ring, and how many of its blocks share an SM.
type tile struct {
	name                string
	form                form
	w, x, stages, perSM int
	block, fixed        float64 // ns of a block of 64 along K, and of a tile besides, measured on an H200
	turns               bool    // two groups take tiles in turns
}

var tiles = []tile{
	{"ordered_128x176_gated", ordered, 128, 176, 5, 1, 490, 5000, true},
	{"ordered_128x176_turns", ordered, 128, 176, 5, 1, 500, 5000, true},
	{"ordered_128x128_turns", ordered, 128, 128, 6, 1, 385, 4500, true},
	{"ordered_128x256", ordered, 128, 256, 4, 1, 680, 4000, false},
	{"ordered_128x200", ordered, 128, 200, 5, 1, 500, 4500, false},
	{"ordered_128x176", ordered, 128, 176, 5, 1, 460, 4000, false},
	{"ordered_128x144", ordered, 128, 144, 6, 1, 390, 3000, false},
	{"ordered_64x128", ordered, 64, 128, 8, 1, 220, 2500, false},
	{"ordered_64x64", ordered, 64, 64, 8, 1, 190, 1500, false},
	{"sliced_64x16", sliced, 64, 16, 8, 2, 250, 1000, false},
	{"sliced_64x32", sliced, 64, 32, 8, 2, 230, 1000, false},
	{"sliced_128x64", sliced, 128, 64, 8, 1, 270, 2250, false},
	{"sliced_128x128", sliced, 128, 128, 6, 1, 340, 4250, false},
	{"sliced_64x128", sliced, 64, 128, 8, 1, 260, 1250, false},
	{"sliced_128x144", sliced, 128, 144, 6, 1, 360, 4500, false},
	{"sliced_128x176", sliced, 128, 176, 5, 1, 460, 4000, false},
	{"cluster_64x16", cluster, 64, 16, 8, 2, 150, 5000, false},
	{"cluster_64x32", cluster, 64, 32, 6, 2, 160, 5500, false},
	{"cluster_64x64", cluster, 64, 64, 6, 1, 350, 5000, false},
	{"cluster_64x128", cluster, 64, 128, 4, 1, 740, 4500, false},
}

// gated reports whether the kernel is for SwiGLU alone.
func (t *tile) gated() bool { return strings.HasSuffix(t.name, "_gated") }

// Slices returns into how many slices the kernels cut the sum over K.
func Slices(K int) int {
	if K < 2048 {
		return 4
	}
	return 8
}

// Product plans c = x·wᵀ + bias for x [M, K] and w [N, K], bf16, row-major, at multiples of 16 bytes; M ≥ 1, N and K multiples of 8
// (for SwiGLU N of 16). The kernel's parameters are
//
//	x u64, w u64, c u64, bias u64 (float32 [N], or 0), M i32, N i32, K i32, mode i32.
//
// Only Hopper's kernels may be launched before the kernel in front of them has ended; they read nothing but w until then.
func Product(g GPU, order Order, M, N, K int, mode Mode) Plan {
	return product(g, order, M, N, K, mode).plan
}

func product(g GPU, order Order, M, N, K int, mode Mode) candidate {
	if !g.Hopper() {
		if M <= 16 {
			return skinny(g, M, N, K)
		}
		if M <= 128 || ceil(M, 64)*ceil(N, 128) < g.SMs {
			return candidate{plan: Plan{Module: "mma_sm80", Kernel: "mma_64x32", Grid: [3]uint32{uint32(ceil(M, 32)), uint32(ceil(N, 64)), 1}, Block: [3]uint32{64, 1, 1}, Shared: 3 * (64 + 32) * 128}}
		}
		return candidate{plan: Plan{Module: "mma_sm80", Kernel: "mma_128x64", Grid: [3]uint32{uint32(ceil(M, 64)), uint32(ceil(N, 128)), 1}, Block: [3]uint32{256, 1, 1}, Shared: 3 * (128 + 64) * 128}}
	}
	var best candidate
	for _, c := range candidates(g, order, M, N, K, mode) {
		if best.plan.Kernel == "" || c.ns < best.ns {
			best = c
		}
	}
	return best
}

// candidate is a plan and about how long it takes.
type candidate struct {
	plan Plan
	ns   float64
}

// candidates returns what there is for a product on Hopper.
func candidates(g GPU, order Order, M, N, K int, mode Mode) []candidate {
	var all []candidate
	if order == Sliced && M <= 16 {
		all = append(all, skinny(g, M, N, K))
	}
	for i := range tiles {
		switch t := &tiles[i]; {
		case (t.form == ordered) != (order == Ordered) || t.gated() && mode != SwiGLU:
		case t.form == cluster:
			for size := 2; size <= Slices(K); size *= 2 {
				if c := t.candidate(g, M, N, K, size, mode); c.plan.Shared <= mostShared {
					all = append(all, c)
				}
			}
		default:
			all = append(all, t.candidate(g, M, N, K, 1, mode))
		}
	}
	return all
}

// mostShared is how much shared memory a block can have on Hopper.
const mostShared = 227 << 10

// What reading weights reaches on an H200, in bytes a nanosecond: from memory, gate and up from memory by boxes of rank 4, and for every
// further tile of x from L2.
const bandwidth, pairedBandwidth, cacheBandwidth = 4280, 3850, 5700

func (t *tile) candidate(g GPU, M, N, K, size int, mode Mode) candidate {
	n, slices, blocks := ceil(M, t.x)*ceil(N, t.w)*size, Slices(K), ceil(K, 64)
	p := Plan{Module: "wgmma_sm90a", Kernel: t.name, Block: [3]uint32{uint32(t.w)*2 + 128, 1, 1}, Maps: true, BoxRows: t.x, Shared: uint32(t.stages*(t.w+t.x)*128 + 1024)}
	if t.form == cluster {
		p.Shared += uint32(slices / size * t.x * 68 * 4)
	}
	slots := g.SMs * t.perSM
	p.Grid = [3]uint32{uint32(min(n, slots)), 1, 1}
	if t.form == cluster {
		p.Grid[0], p.Cluster = uint32(n), uint32(size)
	}
	mine := ceil(blocks, slices) * (slices / size) // the blocks along K of the busiest member of a cluster
	if size == 1 {
		mine = blocks
	}
	bytes, rate, rounds, each := float64(2*N*K), float64(bandwidth), float64(ceil(n, slots)), float64(mine)*t.block
	if mode == SwiGLU {
		rate = pairedBandwidth
	}
	busy := rounds * (each + t.fixed)
	if t.turns { // a group's tile is stored while the other group multiplies
		busy = max(rounds*each, rounds/2*(each+t.fixed)) + t.fixed
	}
	ns := max(busy, bytes/rate+t.fixed, float64(ceil(M, t.x))*bytes/cacheBandwidth)
	if t.form == cluster {
		ns *= 1 + 0.2*float64(ceil(M, t.x)-1)
	}
	return candidate{p, ns}
}

// skinny takes tiles of 16 rows of w. As many blocks as there is room for take tile after tile.
func skinny(g GPU, M, N, K int) candidate {
	p := Plan{Module: module(g, "skinny"), Kernel: "skinny1_4", Block: [3]uint32{256, 1, 1}}
	ns := 1700 + float64(2*N*K)/3000
	if Slices(K) == 8 {
		// A block takes 16 rows at a time, and where there are few blocks that is what takes time.
		block := float64(2*16*K)/90 + 300*float64(M)
		p.Kernel, ns = "skinny1_8", 3000+max(float64(2*N*K)/4250, float64(ceil(ceil(N, 16), skinnyPerSM*g.SMs))*block)
	}
	if M > 8 {
		p.Kernel, ns = strings.Replace(p.Kernel, "1", "2", 1), 1.5*ns
	}
	p.Grid = [3]uint32{uint32(min(ceil(N, 16*8/Slices(K)), skinnyPerSM*g.SMs)), 1, 1}
	return candidate{p, ns}
}

// skinnyPerSM is how many blocks of skinny.cu share an SM.
const skinnyPerSM = 2

func ceil(a, b int) int { return (a + b - 1) / b }

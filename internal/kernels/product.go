package kernels

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
	// BoxRows × 64. The map of x may describe more rows than M: what is computed of them is not stored.
	Maps    bool
	BoxRows int
}

// tile is a kernel of wgmma.cu.
type tile struct {
	name           string
	w, x, stages   int
	clocks, fixed  float64 // of a block of 64 along K, and of a tile besides
	cluster, slice bool
}

var tiles = []tile{
	{name: "ordered_128x176", w: 128, x: 176, stages: 5, clocks: 800, fixed: 2500},
	{name: "ordered_128x256", w: 128, x: 256, stages: 4, clocks: 1100, fixed: 3000},
	{name: "ordered_128x144", w: 128, x: 144, stages: 6, clocks: 680, fixed: 2500},
	{name: "ordered_128x64", w: 128, x: 64, stages: 8, clocks: 450, fixed: 2000},
	{name: "ordered_64x128", w: 64, x: 128, stages: 8, clocks: 450, fixed: 2000},
	{name: "ordered_64x64", w: 64, x: 64, stages: 8, clocks: 300, fixed: 2000},
	{name: "sliced_64x16", w: 64, x: 16, stages: 8, clocks: 200, fixed: 1500, slice: true},
	{name: "sliced_64x32", w: 64, x: 32, stages: 8, clocks: 220, fixed: 1500, slice: true},
	{name: "sliced_128x64", w: 128, x: 64, stages: 8, clocks: 450, fixed: 2000, slice: true},
	{name: "sliced_128x128", w: 128, x: 128, stages: 6, clocks: 700, fixed: 2500, slice: true},
	{name: "cluster_64x16", w: 64, x: 16, stages: 8, clocks: 200, fixed: 2500, slice: true, cluster: true},
	{name: "cluster_64x32", w: 64, x: 32, stages: 8, clocks: 220, fixed: 2500, slice: true, cluster: true},
	{name: "cluster_64x64", w: 64, x: 64, stages: 6, clocks: 300, fixed: 2500, slice: true, cluster: true},
	{name: "cluster_64x128", w: 64, x: 128, stages: 4, clocks: 450, fixed: 3000, slice: true, cluster: true},
}

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
	if M <= 16 && (order == Sliced || !g.Hopper()) {
		return skinny(g, M, N, K)
	}
	if !g.Hopper() {
		if M <= 128 || ceil(M, 64)*ceil(N, 128) < g.SMs {
			return Plan{Module: "mma_sm80", Kernel: "mma_64x32", Grid: [3]uint32{uint32(ceil(M, 32)), uint32(ceil(N, 64)), 1}, Block: [3]uint32{64, 1, 1}, Shared: 3 * (64 + 32) * 128}
		}
		return Plan{Module: "mma_sm80", Kernel: "mma_128x64", Grid: [3]uint32{uint32(ceil(M, 64)), uint32(ceil(N, 128)), 1}, Block: [3]uint32{256, 1, 1}, Shared: 3 * (128 + 64) * 128}
	}
	best, cost := Plan{}, 0.0
	for i := range tiles {
		t := &tiles[i]
		if t.slice != (order == Sliced) {
			continue
		}
		if c := t.cost(g, M, N, K); best.Kernel == "" || c < cost {
			best, cost = t.plan(g, M, N, K), c
		}
	}
	return best
}

// cost estimates the clocks that a product takes.
func (t *tile) cost(g GPU, M, N, K int) float64 {
	n, blocks, slots := ceil(M, t.x)*ceil(N, t.w), ceil(K, 64), g.SMs
	if t.cluster {
		n, blocks = n*Slices(K), ceil(blocks, Slices(K))
	}
	return float64(ceil(n, slots)) * (float64(blocks)*t.clocks + t.fixed)
}

func (t *tile) plan(g GPU, M, N, K int) Plan {
	p := Plan{Module: "wgmma_sm90a", Kernel: t.name, Block: [3]uint32{uint32(t.w)*2 + 128, 1, 1}, Maps: true, BoxRows: t.x,
		Shared: uint32(t.stages*(t.w+t.x)*128 + 1024)}
	n := ceil(M, t.x) * ceil(N, t.w)
	if t.cluster {
		p.Cluster = uint32(Slices(K))
		n *= Slices(K)
	} else {
		n = min(n, g.SMs)
	}
	p.Grid = [3]uint32{uint32(n), 1, 1}
	return p
}

func skinny(g GPU, M, N, K int) Plan {
	p := Plan{Module: "skinny_sm80", Kernel: "skinny1_4", Block: [3]uint32{256, 1, 1}}
	if g.Hopper() {
		p.Module = "skinny_sm90a"
	}
	columns := 8
	if M > 8 {
		p.Kernel, columns = "skinny2_4", 16
	}
	if Slices(K) == 8 {
		p.Kernel = p.Kernel[:len(p.Kernel)-1] + "8"
	}
	p.Grid = [3]uint32{uint32(ceil(N, 16*8/Slices(K))), uint32(ceil(M, columns)), 1}
	return p
}

func ceil(a, b int) int { return (a + b - 1) / b }

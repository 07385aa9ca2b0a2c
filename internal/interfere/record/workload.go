package record

import "cotenant/internal/observe"

// Expected returns the workload with the Resource and Work that its sizes make on a GPU of so many SMs. Bytes count once what must cross
// the resource at least; a multiply-add is two operations.
func (w Workload) Expected(sms int64) Workload {
	switch w.Kind {
	case Decode: // weights once; vectors stay in caches
		w.Resource, w.Work = HBMBytes, 0
		for _, g := range w.GEMV {
			w.Work += 2 * g[0] * g[1] * w.Layers
		}
	case GEMM:
		w.Resource, w.Work = BF16Ops, 2*w.M*w.N*w.K
	case Critical: // FMAChains multiply-adds a round and thread
		w.Resource, w.Work = FMAOps, 2*FMAChains*w.Blocks*w.Threads*w.Rounds
	case FMA: // the grid is the whole GPU's also in a partition: many small blocks, so that waves waste little
		w.Resource, w.Work = FMAOps, 2*FMAChains*w.Blocks*sms*w.Threads*w.Rounds
	case HBM: // each pass reads one half of the buffer and writes the other
		w.Resource, w.Work = HBMBytes, w.Bytes*w.Passes
	case L2:
		w.Resource, w.Work = L2Bytes, w.Bytes*w.Passes
	case Copy: // both ways
		w.Resource, w.Work = LinkBytes, 2*w.Bytes
	case Tiny:
		w.Resource, w.Work = Launches, w.Launches
	case Persistent: // tickets, which the blocks that fit the allocation take one after the other
		w.Resource, w.Work = BusyNS, 1000*w.SpinUS*w.Rounds*w.Blocks*sms
	}
	return w
}

// FMAChains is how many independent multiply-adds a thread of the arithmetic kernels has under way.
const FMAChains = 8

// Planned reports whether cells of a mechanism may be planned: the host has it, as far as an inspection can tell, and this program can
// make it.
func (m Mechanism) Planned() bool {
	return Measurable(m.Kind) && (m.Verdict == observe.SupportedDeclared || m.Verdict == observe.SupportedProven)
}

// Measurable reports whether this program can make mechanisms of a kind: MIG devices are listed only.
func Measurable(kind string) bool { return kind != MIG }

// Alone reports whether a victim also runs alone by this mechanism: in its part of the SMs, or in a process of its own. Its figures beside
// a neighbour are held against those.
func (m Mechanism) Alone() bool {
	switch m.Kind {
	case Green, Processes, MPS, MPSPercent, MPSStatic, MIG:
		return true
	}
	return false
}

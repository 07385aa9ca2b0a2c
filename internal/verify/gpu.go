package verify

import (
	"cmp"
	"fmt"
	"slices"

	"cotenant/internal/ledger"
)

// gpuFacts is one GPU's readings, whole: a second way to what ledger.Summarize folds.
type gpuFacts struct {
	memory, power, busy []int64
	energy              map[int64][]int64 // by segment
}

func (f *facts) gpuSample(who string, r *ledger.Resource) {
	if f.gpus == nil {
		f.gpus = map[string]*gpuFacts{}
	}
	for i := range r.GPUs {
		u := &r.GPUs[i]
		g := f.gpus[u.GPU]
		if g == nil {
			g = &gpuFacts{energy: map[int64][]int64{}}
			f.gpus[u.GPU] = g
		}
		for _, v := range []struct {
			into *[]int64
			v    ledger.Opt
		}{{&g.memory, u.MemoryUsedBytes}, {&g.power, u.PowerMW}, {&g.busy, u.BusyPPM}} {
			if v.v.OK {
				*v.into = append(*v.into, v.v.V)
			}
		}
		if u.EnergyMJ.OK {
			g.energy[r.Segment] = append(g.energy[r.Segment], u.EnergyMJ.V)
		}
		if u.MemoryUsedBytes.OK && u.MemoryTotalBytes.OK && u.MemoryUsedBytes.V > u.MemoryTotalBytes.V {
			f.badGPU.add("%s: GPU %d has %d bytes in use of %d", who, i, u.MemoryUsedBytes.V, u.MemoryTotalBytes.V)
		}
	}
}

// started holds what the server's own series says of its start, where its process can't be seen.
func (f *facts) started(who string, r *ledger.Resource) {
	if len(r.Series) == 0 || r.Server != nil && r.Server.StartUS.OK {
		return
	}
	for _, s := range r.Series {
		if s.Name != ledger.SeriesServerStart || !s.Value.OK {
			continue
		}
		if f.saidStart.OK && f.saidStart != s.Value && !f.serverStart.OK {
			f.badServer.add("%s: the server says that it started at %d us, before it was %d", who, s.Value.V, f.saidStart.V)
		}
		f.saidStart = s.Value
	}
}

// gpuSums compares what the ledger has of GPUs.
func gpuSums(e *evidence) (string, string) {
	if v := &e.facts.badGPU; v.count > 0 {
		return v.String(), ""
	}
	if len(e.facts.gpus) == 0 && len(e.claimed.GPUs) == 0 {
		return "", "no sample shows a GPU"
	}
	for i, g := range e.computed.GPUs {
		own := e.facts.gpus[g.GPU]
		if own == nil {
			return fmt.Sprintf("/gpus/%d is in no sample", i), ""
		}
		at := fmt.Sprintf("/gpus/%d/", i)
		if d := mismatch(at+"memory_max_bytes", g.MemoryMaxBytes, largest(own.memory), at+"power_max_mw", g.PowerMaxMW, largest(own.power),
			at+"busy_max_ppm", g.BusyMaxPPM, largest(own.busy), at+"energy_mj", g.EnergyMJ, spent(own.energy)); d != "" {
			return d, ""
		}
	}
	return cmp.Or(mismatch("/gpus", len(e.computed.GPUs), len(e.facts.gpus)), listDifference("/gpus", e.claimed.GPUs, e.computed.GPUs)), ""
}

func largest(values []int64) ledger.Opt {
	if len(values) == 0 {
		return ledger.Opt{}
	}
	return ledger.Some(slices.Max(values))
}

// spent adds up what a counter grew by in each segment; absent where it fell.
func spent(segments map[int64][]int64) ledger.Opt {
	total := ledger.Opt{}
	for _, values := range segments {
		if !slices.IsSorted(values) {
			return ledger.Opt{}
		}
		total = ledger.Some(total.V + values[len(values)-1] - values[0])
	}
	return total
}

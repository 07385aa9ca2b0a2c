package ledger

// GPUSummary is one GPU over the run.
type GPUSummary struct {
	GPU              string `json:"gpu"`
	Source           string `json:"source"`  // of its first sample
	Samples          int64  `json:"samples"` // that have it
	MemoryTotalBytes Opt    `json:"memory_total_bytes"`
	MemoryFirstBytes Opt    `json:"memory_first_bytes"`
	MemoryMaxBytes   Opt    `json:"memory_max_bytes"`
	PowerMaxMW       Opt    `json:"power_max_mw"`
	EnergyMJ         Opt    `json:"energy_mj"`     // last - first, summed over segments; null where it fell within one
	BusyMaxPPM       Opt    `json:"busy_max_ppm"`  //
	BusyMeanPPM      Opt    `json:"busy_mean_ppm"` // of the samples that have it, rounded down
	SMMinMHz         Opt    `json:"sm_min_mhz"`
	SMMaxMHz         Opt    `json:"sm_max_mhz"`
	XidChanges       int64  `json:"xid_changes"` // from one sample to the next
}

// gpuSum folds the samples of GPUs.
type gpuSum struct {
	list   []*oneGPU
	reason string // of the last sample that gives one
}

type oneGPU struct {
	GPUSummary
	busySum, busyN int64
	segment        int64
	from, last     Opt // energy within the present segment
	energy         Opt
	fell           bool
	xid            Opt
}

func (s *gpuSum) add(r *Resource) {
	if r.GPUReason != "" {
		s.reason = r.GPUReason
	}
	for i := range r.GPUs {
		s.one(r.GPUs[i].GPU, r.GPUs[i].Source).add(&r.GPUs[i], r.Segment)
	}
}

func (s *gpuSum) one(gpu, source string) *oneGPU {
	for _, g := range s.list {
		if g.GPU == gpu {
			return g
		}
	}
	g := &oneGPU{GPUSummary: GPUSummary{GPU: gpu, Source: source}}
	s.list = append(s.list, g)
	return g
}

func (g *oneGPU) add(u *GPUUsage, segment int64) {
	g.Samples++
	atLeast(&g.MemoryTotalBytes, u.MemoryTotalBytes)
	atLeast(&g.MemoryMaxBytes, u.MemoryUsedBytes)
	atLeast(&g.PowerMaxMW, u.PowerMW)
	atLeast(&g.BusyMaxPPM, u.BusyPPM)
	atLeast(&g.SMMaxMHz, u.SMMHz)
	if !g.MemoryFirstBytes.OK {
		g.MemoryFirstBytes = u.MemoryUsedBytes
	}
	if u.SMMHz.OK && (!g.SMMinMHz.OK || u.SMMHz.V < g.SMMinMHz.V) {
		g.SMMinMHz = u.SMMHz
	}
	if u.BusyPPM.OK {
		g.busySum += u.BusyPPM.V
		g.busyN++
	}
	if u.Xid.OK {
		if g.xid.OK && g.xid != u.Xid {
			g.XidChanges++
		}
		g.xid = u.Xid
	}
	if segment != g.segment {
		delta(&g.energy, g.from, g.last)
		g.segment, g.from, g.last = segment, Opt{}, Opt{}
	}
	g.fell = g.fell || g.last.OK && u.EnergyMJ.OK && u.EnergyMJ.V < g.last.V
	firstLast(&g.from, &g.last, u.EnergyMJ)
}

// summaries ends the sums.
func (s *gpuSum) summaries() []GPUSummary {
	out := []GPUSummary{}
	for _, g := range s.list {
		delta(&g.energy, g.from, g.last)
		if g.EnergyMJ = g.energy; g.fell {
			g.EnergyMJ = Opt{}
		}
		if g.busyN > 0 {
			g.BusyMeanPPM = Some(g.busySum / g.busyN)
		}
		out = append(out, g.GPUSummary)
	}
	return out
}

package verify

import (
	"fmt"

	"cotenant/internal/ledger"
)

// sampleFacts is what the samples of one segment say.
type sampleFacts struct {
	n            int64
	first, last  int64
	maxGap       int64
	latest       ledger.Resource
	inFlightPeak int64
	clientHWM    int64
	cpuFrom, cpu ledger.Opt // the client's CPU time, first and last
}

// samples reads resources.jsonl: order, growth of what can only grow, and what is missing.
func (f *facts) samples(folder *ledger.Folder) error {
	for r, err := range folder.Resources() {
		if err != nil {
			return err
		}
		f.sample(&r)
	}
	return nil
}

func (f *facts) sample(r *ledger.Resource) {
	if !f.segments[r.Segment] {
		f.badStart.add("a sample belongs to segment %d, which no event starts", r.Segment)
	}
	who := fmt.Sprintf("the sample at %d us of segment %d", r.TUS, r.Segment)
	f.clear(who, r.ServerReason, r.ScrapeError, r.GPUReason)
	for _, s := range r.Series {
		f.clear(who, s.Source)
	}
	g := f.trace[r.Segment]
	if g == nil {
		g = &sampleFacts{first: r.TUS, last: r.TUS}
		f.trace[r.Segment] = g
	} else {
		f.growth(who, &g.latest, r)
	}
	f.gauged(r)
	g.n++
	g.maxGap = max(g.maxGap, r.TUS-g.last)
	g.last, g.latest = r.TUS, *r
	if v := r.Client.CPUUS; v.OK {
		if !g.cpuFrom.OK {
			g.cpuFrom = v
		}
		g.cpu = v
	}
	g.clientHWM = max(g.clientHWM, r.Client.HWMBytes.Or(0))
	g.inFlightPeak = max(g.inFlightPeak, r.Client.InFlightPeak, r.Client.InFlight)
	if r.Client.RSSBytes.Or(0) < 1 || r.Client.HWMBytes.Or(0) < 1 {
		f.badMemory.add("%s lacks the client's resident memory", who)
	}
	if v := r.Server; v != nil && v.RSSBytes.Or(0) < 1 && v.HeapBytes.Or(0) < 1 && v.SysBytes.Or(0) < 1 {
		f.badMemory.add("%s has a server without any memory of it", who)
	}
	if len(r.Series) > 0 || r.ScrapeError != "" {
		f.statedSeries++
	}
	f.gpuSample(who, r)
	f.started(who, r)
	if r.Server != nil && r.Server.StartUS.OK {
		if f.serverStart.OK && f.serverStart != r.Server.StartUS {
			f.badServer.add("%s: the server started at %d us since boot, before it was %d", who, r.Server.StartUS.V, f.serverStart.V)
		}
		f.serverStart = r.Server.StartUS
	}
}

// growth compares two samples of one segment that follow each other.
func (f *facts) growth(who string, a, b *ledger.Resource) {
	if b.TUS <= a.TUS {
		f.badCounter.add("%s follows one at %d us", who, a.TUS)
	}
	if x, y := a.Client.CPUUS, b.Client.CPUUS; x.OK && y.OK && y.V < x.V {
		f.badCounter.add("%s: client.cpu_us fell from %d to %d", who, x.V, y.V)
	}
	if x, y := a.Client.InFlightPeak, b.Client.InFlightPeak; y < x {
		f.badCounter.add("%s: client.in_flight_peak fell from %d to %d", who, x, y)
	}
}

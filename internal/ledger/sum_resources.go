package ledger

import "strings"

// resourceSum folds samples into a ledger's numbers. It keeps nothing that grows with their number.
type resourceSum struct {
	samples  Samples
	peaks    Peaks
	series   []SeriesSummary
	segments map[int64]*sampleSegment

	tried        bool  // some sample has series or says why it hasn't
	clientGaps   int64 // samples without the client's memory
	serverReason string
	serverStart  Opt
	scrapeError  string
	start        Opt // the last reading of server_start_us
	gpus         gpuSum
}

// sampleSegment is what one segment's samples span.
type sampleSegment struct {
	first, last, maxGap     int64
	n                       int64
	clientFirst, clientLast Opt
	serverFirst, serverLast Opt
	hostFirst, hostLast     Opt
}

func newResourceSum(cfg *Config) *resourceSum {
	s := &resourceSum{segments: map[int64]*sampleSegment{}, samples: Samples{PeriodUS: cfg.ResourceUS}}
	for _, name := range seriesNames {
		s.series = append(s.series, SeriesSummary{Name: name})
	}
	return s
}

func (s *resourceSum) add(r *Resource) {
	s.samples.Count++
	g := s.segments[r.Segment]
	if g == nil {
		g = &sampleSegment{first: r.TUS, last: r.TUS}
		s.segments[r.Segment] = g
	}
	g.n++
	g.maxGap = max(g.maxGap, r.TUS-g.last)
	g.first, g.last = min(g.first, r.TUS), max(g.last, r.TUS)
	firstLast(&g.clientFirst, &g.clientLast, r.Client.CPUUS)
	firstLast(&g.hostFirst, &g.hostLast, r.Host.BusyUS)
	if r.ScrapeError != "" {
		s.samples.ScrapeErrors++
		s.scrapeError = r.ScrapeError
	}
	s.tried = s.tried || len(r.Series) > 0 || r.ScrapeError != ""
	if !r.Client.RSSBytes.OK || !r.Client.HWMBytes.OK {
		s.clientGaps++
	}
	p, c := &s.peaks, &r.Client
	for _, m := range []struct {
		into *Opt
		v    Opt
	}{{&p.ClientRSSBytes, c.RSSBytes}, {&p.ClientHWMBytes, c.HWMBytes}, {&p.ClientHeapBytes, Some(c.HeapBytes)}, {&p.ClientFDs, c.FDs},
		{&p.Goroutines, Some(c.Goroutines)}, {&p.SchedLagUS, Some(c.SchedLagUS)}, {&p.GCPauseUS, Some(c.GCPauseUS)}} {
		atLeast(m.into, m.v)
	}
	s.server(r, g)
	s.gpus.add(r)
	for i := range r.Series {
		s.reading(&s.series[i], &r.Series[i])
	}
}

func (s *resourceSum) server(r *Resource, g *sampleSegment) {
	v := r.Server
	if v == nil {
		s.serverReason = r.ServerReason
		return
	}
	s.samples.ServerSamples++
	firstLast(&g.serverFirst, &g.serverLast, v.CPUUS)
	atLeast(&s.peaks.ServerRSSBytes, v.RSSBytes)
	atLeast(&s.peaks.ServerHWMBytes, v.HWMBytes)
	atLeast(&s.peaks.ServerHeapBytes, v.HeapBytes)
	atLeast(&s.peaks.ServerRunning, v.RunningSelf)
	if v.StartUS.OK {
		if s.serverStart.OK && s.serverStart != v.StartUS {
			s.samples.ServerRestarts++
		}
		s.serverStart = v.StartUS
	}
}

func (s *resourceSum) reading(sum *SeriesSummary, r *SeriesReading) {
	switch r.State {
	case SeriesNaN:
		sum.NaN++
	case SeriesNotExposed:
		sum.NotExposed++
	case SeriesError:
		sum.Errors++
	}
	if sum.Source == "" {
		sum.Source = r.Source
	}
	if !r.Value.OK {
		return
	}
	sum.Values++
	if sum.Name == SeriesServerStart {
		if s.start.OK && s.start != r.Value && !s.serverStart.OK { // where /proc shows the process, it is the witness
			s.samples.ServerRestarts++
		}
		s.start = r.Value
	}
	if sum.Last.OK && r.Value.V < sum.Last.V && isTotal(sum.Name) {
		sum.Resets++
	}
	firstLast(&sum.First, &sum.Last, r.Value)
	atLeast(&sum.Max, r.Value)
	if !sum.Min.OK || r.Value.V < sum.Min.V {
		sum.Min = r.Value
	}
}

// isTotal reports whether a canonical name is that of a counter.
func isTotal(name string) bool { return strings.HasSuffix(strings.TrimSuffix(name, "_us"), "_total") }

func firstLast(first, last *Opt, v Opt) {
	if !v.OK {
		return
	}
	if !first.OK {
		*first = v
	}
	*last = v
}

func atLeast(into *Opt, v Opt) {
	if v.OK && (!into.OK || v.V > into.V) {
		*into = v
	}
}

// into writes what the samples say into l, given the rows' segments and which segments have ended.
func (s *resourceSum) into(l *Ledger, rows map[int64]*rowSegment, ended map[int64]bool) {
	s.peaks.InFlight, s.peaks.InFlightObserved = l.Peaks.InFlight, l.Peaks.InFlightObserved
	if running := s.series[0]; running.Max.OK {
		atLeast(&s.peaks.ServerRunning, running.Max)
	}
	l.Peaks = s.peaks
	m := &s.samples
	for _, g := range s.segments {
		m.SpanUS += g.last - g.first
		if g.n > 1 {
			atLeast(&m.MaxGapUS, Some(g.maxGap))
		}
		delta(&m.ClientCPUUS, g.clientFirst, g.clientLast)
		delta(&m.ServerCPUUS, g.serverFirst, g.serverLast)
		delta(&m.HostBusyUS, g.hostFirst, g.hostLast)
	}
	if m.HostBusyUS.OK && m.ClientCPUUS.OK && m.ServerCPUUS.OK && !l.InProcess {
		m.OtherCPUUS = Some(max(0, m.HostBusyUS.V-m.ClientCPUUS.V-m.ServerCPUUS.V))
	}
	m.Covered = true
	for k, r := range rows {
		g := s.segments[k]
		slack := int64(0)
		if !ended[k] { // killed: the last sample may lie before the last row
			slack = 3 * m.PeriodUS
		}
		if g == nil || g.first > r.firstPicked || g.last < r.lastEnd-slack {
			m.Covered = false
		}
	}
	cpus := l.Client.CPUs
	if m.ClientCPUUS.OK && m.SpanUS > 0 && cpus > 0 && !l.InProcess {
		m.ClientSharePPM = share(m.ClientCPUUS.V, m.SpanUS, cpus)
	}
	l.Samples = *m
	l.Series, l.GPUs = s.series, s.gpus.summaries()
	l.Reconciliation = []Reconciliation{}
}

// share is part over whole*cpus in parts per million, rounded down; absent where that can't be.
func share(part, whole, cpus int64) Opt {
	if part < 0 || whole <= 0 || part > MaxInt/1_000_000 {
		return Opt{}
	}
	return Some(part * 1_000_000 / whole / cpus)
}

func delta(into *Opt, first, last Opt) {
	if first.OK && last.OK {
		*into = Some(into.Or(0) + last.V - first.V)
	}
}

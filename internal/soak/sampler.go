package soak

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"cotenant/internal/ledger"
	"cotenant/internal/scrape"
)

// sampler takes the run's resource samples.
type sampler struct {
	mu     sync.Mutex // held while a sample is taken
	clk    *clock
	w      Lines
	redact *redactor
	period time.Duration

	self    *scrape.Self
	proc    scrape.Proc
	http    *scrape.Client
	metrics string // URLs; empty: not read
	vars    string
	ollama  string // /api/ps, tried once where there are no metrics
	gpus    *gpus

	ollamaSeen bool

	pid     int // of the server, 0: not known
	port    int // where to look for it again, 0: nowhere
	reason  string
	started ledger.Opt // the server's start, to tell a restart
	last    int64      // moment of the last sample, -1 before the first
	absent  bool       // the server has no metrics

	baseline map[string]int64 // first readings of the gauges
	exposed  bool             // there is any
}

// sample reads everything once and writes a line.
func (s *sampler) sample(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, err := s.take(ctx)
	return err
}

// take is sample for who holds the lock.
func (s *sampler) take(ctx context.Context) (ledger.Resource, error) {
	open, peak := s.clk.inFlight()
	r := ledger.Resource{TUS: max(s.clk.now(), s.clk.lastStamp(), s.last+1), Segment: s.w.Segment()}
	var missed int64
	if s.last >= 0 {
		missed = (r.TUS-s.last)/s.period.Microseconds() - 1
	}
	s.last = r.TUS

	var readings []scrape.Reading
	var scrapeErr error
	var vars scrape.Vars
	var scrapes sync.WaitGroup
	if s.metrics != "" && !s.absent {
		scrapes.Go(func() { readings, scrapeErr = s.readMetrics(ctx) })
	}
	scrapes.Go(func() { r.GPUs, r.GPUReason = s.gpus.sample(ctx) })
	if s.vars != "" {
		scrapes.Go(func() {
			var err error
			if vars, err = s.http.Vars(ctx, s.vars); errors.Is(err, scrape.ErrAbsent) {
				s.vars = ""
			}
		})
	}
	r.Client = s.client()
	r.Client.InFlight, r.Client.InFlightPeak = open, peak
	host := s.proc.Host()
	r.Host = ledger.HostUsage{BusyUS: ledger.Opt(host.BusyUS), AvailableBytes: ledger.Opt(host.AvailableBytes)}
	process, restarted := s.process()
	scrapes.Wait()

	r.GPUReason = s.redact.text(clip(r.GPUReason, ledger.MaxText))
	r.Server, r.ServerReason = s.server(process, vars)
	if errors.Is(scrapeErr, scrape.ErrAbsent) {
		s.absent, scrapeErr = true, nil
	}
	if s.absent {
		readings = scrape.All(scrape.StateNotExposed)
	}
	if scrapeErr != nil {
		r.ScrapeError = s.redact.text(describe(scrapeErr))
	}
	for _, reading := range readings {
		r.Series = append(r.Series, ledger.SeriesReading{Name: reading.Name, Source: clip(reading.Source, ledger.MaxName),
			State: reading.State, Value: ledger.Opt(reading.Value)})
	}
	s.note(r.Series)
	err := s.w.Resource(r)
	if missed > 0 {
		err = errors.Join(err, s.event(ledger.EventScrapeLost, ledger.Some(missed), "the sampler was late"))
	}
	if restarted {
		err = errors.Join(err, s.event(ledger.EventServerRestart, s.started, "the server's process is another one"))
	}
	return r, err
}

// readMetrics scrapes the server's metrics, or what Ollama has in their place.
func (s *sampler) readMetrics(ctx context.Context) ([]scrape.Reading, error) {
	readings, err := s.http.Metrics(ctx, s.metrics)
	if s.ollama == "" || err == nil || !errors.Is(err, scrape.ErrAbsent) {
		return readings, err
	}
	known, ollamaErr := s.http.Ollama(ctx, s.ollama)
	if ollamaErr != nil && s.ollamaSeen {
		return known, ollamaErr
	}
	if ollamaErr != nil {
		s.ollama = ""
		return readings, err
	}
	s.ollamaSeen = true
	return known, nil
}

func (s *sampler) event(kind string, value ledger.Opt, detail string) error {
	return s.w.Event(ledger.Event{TUS: s.clk.now(), Segment: s.w.Segment(), Kind: kind, Value: value, Detail: detail})
}

func (s *sampler) client() ledger.ClientUsage {
	rt := s.self.Sample()
	u := ledger.ClientUsage{HeapBytes: rt.HeapBytes, Goroutines: rt.Goroutines, SchedLagUS: rt.SchedLagUS, GCPauseUS: rt.GCPauseUS}
	if p, err := s.proc.Process(os.Getpid()); err == nil {
		u.RSSBytes, u.HWMBytes = ledger.Opt(p.RSSBytes), ledger.Opt(p.HWMBytes)
		u.CPUUS, u.FDs = ledger.Opt(p.CPUUS), ledger.Opt(p.FDs)
	}
	return u
}

// process reads the server's process tree; where the process is gone it looks for the one that took its port.
func (s *sampler) process() (p *scrape.Process, restarted bool) {
	if s.pid == 0 && s.port == 0 {
		return nil, false
	}
	tree, err := s.proc.Tree(s.pid)
	if s.pid == 0 || err != nil || s.started.OK && ledger.Opt(tree.StartUS) != s.started {
		if s.pid != 0 {
			s.reason = fmt.Sprintf("process %d is gone", s.pid)
		}
		if s.port == 0 {
			return nil, false
		}
		pid, err := s.proc.Listener(s.port)
		if err != nil {
			s.reason = err.Error()
			return nil, false
		}
		if tree, err = s.proc.Tree(pid); err != nil {
			s.reason = err.Error()
			return nil, false
		}
		s.pid = pid
	}
	restarted = s.started.OK && ledger.Opt(tree.StartUS) != s.started
	s.started = ledger.Opt(tree.StartUS)
	return &tree, restarted
}

func (s *sampler) server(p *scrape.Process, v scrape.Vars) (*ledger.ServerUsage, string) {
	u := ledger.ServerUsage{HeapBytes: ledger.Opt(v.HeapBytes), SysBytes: ledger.Opt(v.SysBytes), RunningSelf: ledger.Opt(v.Running)}
	if p != nil {
		u.RSSBytes, u.HWMBytes, u.CPUUS = ledger.Opt(p.RSSBytes), ledger.Opt(p.HWMBytes), ledger.Opt(p.CPUUS)
		u.StartUS, u.Processes = ledger.Opt(p.StartUS), ledger.Some(p.Processes)
	}
	if u == (ledger.ServerUsage{}) {
		return nil, clip(s.reason, ledger.MaxText)
	}
	return &u, ""
}

// run samples once a period until stop, and ends the sample that it is at. A sample that can't be written ends the run by fail.
func (s *sampler) run(ctx context.Context, stop <-chan struct{}, fail func(error)) {
	tick := time.NewTicker(s.period)
	defer tick.Stop()
	for {
		select {
		case <-stop:
			return
		case <-tick.C:
			if err := s.sample(ctx); err != nil {
				fail(err)
				return
			}
		}
	}
}

package ledger

import (
	"fmt"
	"iter"
)

// Run is what a ledger is computed from. Each sequence is read once and one after the other.
type Run struct {
	Config       Config
	ConfigSHA256 string
	Files        []File // config, rows, resources, events
	Rows         iter.Seq2[Row, error]
	Resources    iter.Seq2[Resource, error]
	Events       iter.Seq2[Event, error]
}

// Summarize computes the whole ledger of a run. It is a pure function of what it reads: whoever has the four files can
// compute the same bytes. It judges no row (package verify does) and fails only where a sequence does or a number leaves
// what a document can hold. Memory grows by some 25 bytes a result, which exact percentiles need: see stats.Column.
func Summarize(run Run) (Ledger, error) {
	cfg := &run.Config
	l := Ledger{
		SchemaVersion: SchemaVersion, Operation: Operation, Document: "ledger",
		RunID: cfg.RunID, RunOrdinal: cfg.RunOrdinal, Nonce: cfg.Nonce, ConfigSHA256: run.ConfigSHA256,
		StartedWallUS: cfg.StartedWallUS, Contract: cfg.Contract, Contexts: cfg.Contexts, TurnsPerContext: cfg.TurnsPerContext, Shared: cfg.Shared,
		Workers: cfg.Workers, Model: cfg.Model, EndpointScope: cfg.EndpointScope, EndpointCommitment: cfg.EndpointCommitment,
		InProcess: cfg.InProcess, Workload: cfg.Workload, Base: cfg.Workload.BaseCommit, MaxTokens: cfg.Sampling.MaxTokens,
		Client: cfg.Client, Files: run.Files, Definitions: Definitions(),
	}
	var err error
	if l.FilesRoot, err = FilesRoot(run.Files); err != nil {
		return Ledger{}, err
	}
	resources := newResourceSum(cfg)
	for r, err := range run.Resources {
		if err != nil {
			return Ledger{}, err
		}
		resources.add(&r)
	}
	var events eventSum
	rows := newRowSum(cfg)
	if cfg.Controlled != nil {
		rows.control = newControlSum(cfg)
	}
	if cfg.Load != nil {
		rows.load = newLoadSum(cfg)
	}
	for e, err := range run.Events {
		if err != nil {
			return Ledger{}, err
		}
		events.add(&e)
		if rows.control != nil {
			rows.control.event(&e)
		}
		if rows.load != nil {
			rows.load.event(&e)
		}
	}
	for r, err := range run.Rows {
		if err != nil {
			return Ledger{}, err
		}
		if err := rows.add(&r); err != nil {
			return Ledger{}, fmt.Errorf("summing rows: %w", err)
		}
	}
	events.into(&l)
	rows.into(&l, events.ended)
	l.Counts.Resent = events.resent
	if rows.control != nil {
		rows.control.into(&l, events.ended)
	}
	resources.into(&l, rows.segments, events.ended)
	l.Reconciliation = reconcile(&l, rows)
	l.NotExposed = notExposed(&l, resources)
	l.Admission = admission(&l, rows, resources)
	l.Claims, l.NonClaims = claims(&l)
	if _, err := Marshal(l); err != nil {
		return Ledger{}, fmt.Errorf("the ledger can't be written: %w", err)
	}
	return l, nil
}

// eventSum folds events into a ledger's numbers.
type eventSum struct {
	starts   int64
	resent   int64
	ended    map[int64]bool
	last     Event // the last end event
	hasEnd   bool
	abort    string
	observed Opt
}

func (s *eventSum) add(e *Event) {
	switch e.Kind {
	case EventStart:
		s.starts++
		s.hasEnd = false
	case EventAbort:
		s.abort = e.Detail
	case EventResent:
		s.resent++
	case EventPeak:
		atLeast(&s.observed, e.Value)
	case EventEnd:
		if s.ended == nil {
			s.ended = map[int64]bool{}
		}
		s.ended[e.Segment] = true
		s.last, s.hasEnd = *e, true
	}
}

func (s *eventSum) into(l *Ledger) {
	l.Segments, l.StatusDetail, l.Peaks.InFlightObserved = s.starts, s.abort, s.observed
	l.Status = StatusInterrupted
	if s.hasEnd {
		l.EndedWallUS = s.last.WallUS
		l.Status = s.last.Detail
	}
}

package soak

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"cotenant/internal/ledger"
)

// reopenConfig reads the run that is to go on and checks that the options are those it was registered with.
func (s *session) reopenConfig() error {
	o := s.o
	f, err := ledger.OpenFolder(o.Out)
	if err != nil {
		return usage("there is no run to go on with: %v", err)
	}
	c := &f.Config
	if o.Model == "" {
		o.Model = c.Model
	}
	for _, d := range []struct {
		name         string
		given, there any
	}{
		{"endpoint", o.Endpoint, c.Endpoint}, {"model", o.Model, c.Model}, {"contract", o.Contract, c.Contract}, {"turns", o.Turns, c.TurnsPerContext},
		{"contexts", o.Contexts, c.Contexts}, {"workers", o.Workers, c.Workers}, {"attempts", o.MaxAttempts, c.MaxAttempts},
		{"max-tokens", o.MaxTokens, c.Sampling.MaxTokens}, {"workload", o.Source.Hash(), c.Workload.SHA256}, {"nonce", o.Nonce, c.Nonce},
		{"sample period", o.Period.Microseconds(), c.ResourceUS},
		{"max-spend-tokens", ledger.Opt{V: o.MaxSpendTokens, OK: o.MaxSpendTokens > 0}, c.MaxSpend},
	} {
		if d.given != d.there {
			return usage("the run in %s was registered with %s %v, not %v: a run goes on as it began", o.Out, d.name, d.there, d.given)
		}
	}
	if !samePlan(o.Load, c.Load) {
		return usage("the run in %s was registered with another load plan: a run goes on as it began", o.Out)
	}
	// Another segment would add nothing and take from the evidence: counters of one server are set against one segment.
	if b, err := f.ReadFile(ledger.LedgerFile); err == nil {
		if l, err := ledger.ReadLedger(b); err == nil && l.Status == ledger.StatusFinished {
			return usage("the run in %s is finished: nothing is left to go on with", o.Out)
		}
	}
	if s.lock, err = lockFolder(filepath.Join(o.Out, ledger.ConfigFile)); err != nil {
		return err
	}
	s.cfg = *c
	if s.commit, err = ledger.NewCommitter(c.Secret); err != nil {
		return usage("the run in %s can't be gone on with: %v", o.Out, err)
	}
	if s.place, err = ledger.NewCommitter(c.PlaceSecret); err != nil {
		return usage("the run in %s can't be gone on with: %v", o.Out, err)
	}
	return nil
}

// closed writes the ledger of a run that was killed between its end and its ledger: nothing is left to do. Nil where that isn't so.
func (s *session) closed() (*Result, error) {
	f, err := ledger.OpenFolder(s.o.Out)
	if err != nil {
		return nil, err
	}
	if _, err := f.ReadFile(ledger.LedgerFile); !errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	finished := false
	for e, err := range f.Events() {
		if err != nil {
			return nil, nil // torn: it didn't come to its end
		}
		finished = e.Kind == ledger.EventEnd && e.Detail == ledger.StatusFinished
	}
	if !finished {
		return nil, nil
	}
	l, err := f.Summarize()
	if err == nil {
		err = ledger.WriteLedger(s.o.Out, l)
	}
	if err != nil {
		return nil, fmt.Errorf("writing the ledger of a run that had ended: %w", err)
	}
	s.o.Log("the run had ended before its ledger was written")
	return &Result{Dir: s.o.Out, Ledger: l}, nil
}

// reopen begins another segment. Contexts that earlier segments retired are not sent again; one that was open when its segment was
// killed left no row and is.
func (s *session) reopen() error {
	if d := s.maker.describe(s.o); d != s.cfg.Sampling {
		return usage("the run was registered with other sampling fields: %+v, not %+v", s.cfg.Sampling, d)
	}
	s.clk = newClock()
	w, err := ledger.Reopen(s.o.Out, time.Now().UnixMicro())
	if err != nil {
		return fmt.Errorf("going on with the run: %w", err)
	}
	s.w = w
	f, err := ledger.OpenFolder(s.o.Out)
	if err != nil {
		return err
	}
	past, err := s.records.replay(f.Rows(), s.cfg.MaxAttempts)
	if err != nil {
		return fmt.Errorf("going on with the run: %w", err)
	}
	if s.o.Turns > 1 {
		if s.park, err = reopenPark(s.o.Out, s.commit, past.parked, s.records.lastTurn); err != nil {
			return fmt.Errorf("going on with the run: %w", err)
		}
	}
	for e, err := range f.Events() {
		if err != nil {
			return fmt.Errorf("going on with the run: %w", err)
		}
		switch e.Kind {
		case ledger.EventFault:
			s.pastFaults[e.Context.Or(-1)] = true
		case ledger.EventRollback:
			s.rolledBack = true
		}
	}
	if err := s.resent(); err != nil {
		return err
	}
	s.budget.spent += past.spent
	s.count.Submitted, s.count.Completed, s.count.Failed = past.submitted, past.completed, past.failed
	s.o.Log(fmt.Sprintf("going on: %d of %d contexts are done, %d of them failed", past.completed+past.failed, s.o.Contexts, past.failed))
	return nil
}

// resent says which attempts a killed segment had open: they left no row and are sent again.
func (s *session) resent() (err error) {
	if s.slots, err = openSlots(s.o.Out); err != nil {
		return err
	}
	open, err := s.slots.read(s.o.Workers)
	if err != nil {
		return err
	}
	for _, id := range open {
		if !s.records.isOpen(id) {
			continue // it ended, and its row was written
		}
		err := s.w.Event(ledger.Event{TUS: s.clk.now(), Segment: s.w.Segment(), Kind: ledger.EventResent, Context: ledger.Some(id.context),
			Turn: ledger.Some(id.turn), Attempt: ledger.Some(id.attempt)})
		if err != nil {
			return err
		}
	}
	return s.slots.clear()
}

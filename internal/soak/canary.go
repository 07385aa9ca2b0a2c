package soak

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"cotenant/internal/ledger"
	"cotenant/internal/loadgen"
)

// Terms that a controlled run registers. A canary's question is to find one number of three digits in the base's list: who doesn't have
// the list is right by chance once in 900, and four times in 16 less than once in 10^8; a small model that has it is right more often.
const (
	canaryAsked  = 16
	canaryNeeded = 4
	faultBlock   = 64
	quietPoints  = 4
)

// canaries asks the good base, then one that is really bad, which must fail, rolls back to the good one and asks it again. A segment
// that goes on asks the good one alone. It returns why the run can't begin, empty if it can.
func (s *session) canaries(ctx context.Context) (string, error) {
	work := s.o.Source.(loadgen.Conversations)
	good, bad := s.base, s.cfg.Controlled.BadBaseCommit
	ask := func(text, commit string) (bool, error) {
		right, err := s.askBase(ctx, work, text)
		if err != nil || ctx.Err() != nil {
			return true, errors.Join(err, ctx.Err())
		}
		err = s.sampler.event(ledger.EventCanaryBase, ledger.Some(right), commit)
		return right >= s.cfg.Controlled.CanaryNeeded, err
	}
	ok, err := ask(work.Base(), good)
	if err != nil || !ok {
		return fmt.Sprintf("the base failed its canary: fewer than %d of %d answers were right", canaryNeeded, canaryAsked), err
	}
	if s.w.Segment() > 0 && s.rolledBack {
		return "", nil
	}
	if ok, err = ask(work.BadBase(), bad); err != nil || ok {
		return "the canary can't tell a base from one without its list", err
	}
	s.o.Log("the canary failed a base without its list; rolled back to the good one")
	if err := s.sampler.event(ledger.EventRollback, ledger.Opt{}, good); err != nil {
		return "", err
	}
	if ok, err = ask(work.Base(), good); err != nil || !ok {
		return "the base failed its canary after the rollback", err
	}
	return "", nil
}

// askBase puts the canary's questions to a base, workers of them at once, and counts right answers. A question that gets no answer in
// three attempts counts as wrong.
func (s *session) askBase(ctx context.Context, work loadgen.Conversations, base string) (int64, error) {
	var next, right atomic.Int64
	var askers sync.WaitGroup
	var failed atomic.Pointer[error]
	clk := newClock()
	for range min(s.o.Workers, canaryAsked) {
		askers.Go(func() {
			scratch := newScratch()
			for n := next.Add(1) - 1; n < canaryAsked && ctx.Err() == nil; n = next.Add(1) - 1 {
				task := work.Canary(n, base)
				body, err := s.maker.append(nil, task.Messages, extras{})
				if err != nil {
					failed.Store(&err)
					return
				}
				for range 3 {
					var row ledger.Row
					s.client.do(ctx, scratch, clk, body, &row)
					s.budget.add(&row)
					if row.Outcome != ledger.OK {
						continue
					}
					if task.Check(string(scratch.content)) {
						right.Add(1)
					}
					break
				}
			}
		})
	}
	askers.Wait()
	if err := failed.Load(); err != nil {
		return 0, *err
	}
	return right.Load(), nil
}

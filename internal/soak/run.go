package soak

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"sync"
	"time"

	"cotenant/internal/ledger"
	"cotenant/internal/loadgen"
)

// Progress is how far a run is.
type Progress struct {
	Contexts, Submitted, Completed, Failed int64
	Turns                                  int64 // with a result, where contexts have several
	Retries, Reconnects                    int64
	InFlight, Peak                         int64
	PromptTokens, CompletionTokens         int64
	OraclePassed, OracleChecked            int64
	Elapsed                                time.Duration
	LastTTFT                               time.Duration // of the last result that has one
	LastError                              string        // of the last attempt that was no result, redacted
	Draining                               bool
}

// run works the contexts off and writes the ledger.
func (s *session) run(ctx context.Context, ready readiness) (*Result, error) {
	// Three ends: user's interrupt (ctx), no more work (soft), open attempts cut (hard).
	hard, cut := context.WithCancelCause(context.WithoutCancel(ctx))
	defer cut(nil)
	soft, stop := context.WithCancel(ctx)
	defer stop()
	s.abort.stop, s.abort.cut = stop, cut
	s.count.Contexts = s.o.Contexts

	if s.cfg.Controlled != nil {
		why, err := s.canaries(soft)
		if err != nil && soft.Err() == nil {
			return nil, errors.Join(fmt.Errorf("asking the canary: %w", err), s.w.Abandon())
		}
		if why != "" && soft.Err() == nil {
			s.abort.because("%s", why)
		}
	}
	if err := s.sampler.sample(hard); err != nil {
		return nil, errors.Join(fmt.Errorf("taking the first sample: %w", err), s.w.Abandon())
	}
	watching, unwatch := context.WithCancel(hard)
	var watchers, workers sync.WaitGroup
	watchers.Go(func() { s.sampler.run(hard, watching.Done(), s.abort.fail) })
	watchers.Go(func() { s.report(watching) })
	watchers.Go(func() { s.interrupt(ctx, watching, cut) })
	defer context.AfterFunc(soft, s.records.wake)()
	if s.pacer != nil {
		defer context.AfterFunc(soft, s.pacer.wake)()
	}
	for id := range s.o.Workers {
		workers.Go(func() { s.work(soft, hard, id) })
	}
	workers.Wait()
	remaining, err := s.remaining(ctx) // of a shared run that may take a while, which is sampled too
	unwatch()
	watchers.Wait()
	return s.finish(ctx, remaining, err)
}

// interrupt waits for the user's signal and gives open attempts their grace.
func (s *session) interrupt(ctx, watching context.Context, cut context.CancelCauseFunc) {
	select {
	case <-watching.Done():
		return
	case <-ctx.Done():
	}
	open, _ := s.clk.inFlight()
	s.o.Log(fmt.Sprintf("interrupted: %d requests are open and have %v to end", open, s.o.Grace))
	s.count.Lock()
	s.count.Draining = true
	s.count.Unlock()
	if err := s.sampler.event(ledger.EventInterrupt, ledger.Some(open), ""); err != nil {
		s.abort.fail(err)
	}
	select {
	case <-watching.Done():
	case <-time.After(s.o.Grace):
		cut(errInterrupted)
	}
}

// report calls the user's progress function.
func (s *session) report(watching context.Context) {
	if s.o.Progress == nil {
		return
	}
	tick := time.NewTicker(250 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-watching.Done():
			s.o.Progress(s.progress())
			return
		case <-tick.C:
			s.o.Progress(s.progress())
		}
	}
}

func (s *session) progress() Progress {
	open, peak := s.clk.inFlight()
	s.count.Lock()
	defer s.count.Unlock()
	p := s.count.Progress
	p.InFlight, p.Peak, p.Elapsed = open, peak, time.Since(s.clk.start)
	return p
}

// finish takes the last sample, ends the segment and writes the ledger.
func (s *session) finish(ctx context.Context, remaining int64, err error) (*Result, error) {
	final, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	err = errors.Join(err, s.lastSample(ctx, final))
	_, peak := s.clk.inFlight()
	reason, own := s.abort.why()
	err = errors.Join(own, err)
	status := ledger.StatusFinished
	switch {
	case reason != "":
		status = ledger.StatusFailed
		s.o.Log("the run stopped by itself: " + reason)
		err = errors.Join(err, s.sampler.event(ledger.EventAbort, ledger.Opt{}, s.redact.text(reason)))
	case remaining > 0:
		status = ledger.StatusInterrupted
	}
	end := ledger.Event{TUS: s.clk.now(), Segment: s.w.Segment(), Kind: ledger.EventEnd, WallUS: ledger.Some(time.Now().UnixMicro()), Detail: status}
	err = errors.Join(err, s.sampler.event(ledger.EventPeak, ledger.Some(peak), ""), s.w.Event(end))
	if s.slots != nil {
		err = errors.Join(err, s.slots.remove())
		s.slots = nil
	}
	s.records.drop()
	// The sums grow by some 25 bytes a context. Garbage of rows that are read again must not double that.
	defer debug.SetGCPercent(debug.SetGCPercent(25))
	l, closing := s.w.Close()
	if err = errors.Join(err, closing); err != nil {
		return nil, fmt.Errorf("the run couldn't be recorded: %w", err)
	}
	return &Result{Dir: s.o.Out, Ledger: l, Interrupted: status == ledger.StatusInterrupted}, nil
}

// lastSample shows the server at rest, where the contract asks for it, and is then as good as any.
func (s *session) lastSample(ctx, final context.Context) error {
	if s.cfg.Controlled == nil {
		return s.sampler.sample(final)
	}
	return s.pause(context.WithoutCancel(ctx))
}

// pause waits until the server is at rest.
func (s *session) pause(ctx context.Context) error {
	limit := time.Duration(s.cfg.Controlled.QuietLimitUS) * time.Microsecond
	ctx, cancel := context.WithTimeout(ctx, limit+5*time.Second)
	defer cancel()
	return s.sampler.quiet(ctx, limit)
}

// worker is what one of them keeps between attempts.
type worker struct {
	id      int64
	scratch *scratch
	body    []byte
	floor   int64 // end of its last attempt

	// Of a run with a load plan.
	due  int64      // when the schedule wanted its context sent, 0 in a closed loop
	last ledger.Row // its last attempt
}

// work takes contexts until there are none, soft ends, or the budget is used up.
func (s *session) work(soft, hard context.Context, id int64) {
	w := &worker{id: id, scratch: newScratch()}
	for soft.Err() == nil {
		n, rec, ok := s.take(soft, hard, w)
		if !ok {
			return
		}
		rec = s.context(soft, hard, w, n, rec)
		if s.o.Share != nil {
			s.putShared(n, rec)
			continue
		}
		s.records.put(n, rec)
		if s.pacer != nil {
			s.pacer.over(&w.last, rec)
		}
	}
}

// take gives a worker its next context.
func (s *session) take(soft, hard context.Context, w *worker) (n int64, rec record, ok bool) {
	if s.o.Share != nil {
		return s.takeShared(soft)
	}
	if s.pacer == nil {
		return s.records.take(soft, func() {
			if err := s.pause(hard); err != nil {
				s.abort.fail(err)
			}
		})
	}
	n, rec, from, ok, err := s.pacer.take(soft, w.id)
	if err != nil {
		s.abort.fail(err)
	}
	if s.cfg.Load.Open() {
		w.due = from
	}
	w.floor = max(w.floor, from) // stamps may run ahead of the clock
	return n, rec, ok
}

// turn is what a worker has of the turn that it is at.
type turn struct {
	context  int64
	task     loadgen.Task
	history  []loadgen.Message // what was said before, without the base
	restored string            // the commitment to it
	queued   int64
}

// begin finds what a turn asks, and brings back what was said before it.
// due is when the schedule wanted its first turn sent, 0 in a closed loop.
func (s *session) begin(n int64, rec record, due int64) (turn, error) {
	if rec.turn == 0 {
		return turn{context: n, task: s.o.Source.Task(n), queued: due}, nil
	}
	t := turn{context: n, task: s.o.Source.(loadgen.Conversations).Turn(n, int64(rec.turn)), queued: s.park.readyAt(n)}
	var err error
	t.history, t.restored, err = s.park.restore(n, int64(rec.turn))
	return t, err
}

// messages are what is sent: the base, what was said, this turn's question.
func (t *turn) messages() []loadgen.Message {
	if len(t.history) == 0 {
		return t.task.Messages
	}
	m := t.task.Messages
	return slices.Concat(m[:1], t.history, m[1:])
}

// said is what a later turn has to know.
func (t *turn) said(answer []byte) []loadgen.Message {
	return append(slices.Concat(t.history, t.task.Messages[1:]), loadgen.Message{Role: "assistant", Content: string(answer)})
}

// context makes a context's attempts until its turn has a result, it is retired, or soft ends.
func (s *session) context(soft, hard context.Context, w *worker, n int64, rec record) record {
	t, err := s.begin(n, rec, w.due)
	if err == nil {
		w.body, err = s.maker.append(w.body[:0], t.messages(), s.extras(n, &t.task))
	}
	if err != nil {
		s.abort.fail(fmt.Errorf("context %d: %w", n, err))
		return rec
	}
	prompt := s.commit.Commit(ledger.LabelPrompt, w.body)
	held := estimate(len(w.body), s.o.MaxTokens)
	for tried := false; ; tried = true {
		if !s.budget.hold(held) {
			s.abort.because("the spending limit of %d tokens leaves no room for another request: %d are spent", s.budget.limit, s.budget.total())
			return rec
		}
		row := ledger.Row{Context: n, Turn: int64(rec.turn), Attempt: int64(rec.attempts) + 1, Worker: w.id, Segment: s.w.Segment(),
			QueuedUS: t.queued, PickedUS: max(s.clk.now(), w.floor, t.queued), Base: s.cfg.BaseOf(n), PromptCommit: prompt,
			Task: clip(string(t.task.Kind), ledger.MaxFinish), Oracle: ledger.OracleNone, Restored: t.restored}
		if tried {
			row.BackoffUS = row.PickedUS - w.floor
		}
		v, err := s.attempt(hard, w, &row, &t)
		s.budget.settle(held, &row)
		if err == nil {
			retry := retryable(row.Outcome, v)
			rec.note(&row, retry, s.o.MaxAttempts, s.o.Turns)
			s.tally(&row, rec)
			err = s.record(&row, &rec)
		}
		if s.pacer != nil {
			w.last = row
		}
		if err != nil {
			s.abort.fail(err)
			return rec
		}
		if row.Outcome == ledger.ClientExhausted {
			s.abort.because("this machine is exhausted: %s", row.Error)
		}
		if rec.state != taken || soft.Err() != nil {
			return rec
		}
		select {
		case <-soft.Done():
			return rec
		case <-time.After(backoff(row.Attempt+1, v.retryAfter)):
		}
	}
}

// attempt makes one attempt, judges it, and parks the conversation where another turn follows.
func (s *session) attempt(hard context.Context, w *worker, row *ledger.Row, t *turn) (verdict, error) {
	id := attemptID{row.Context, row.Turn, row.Attempt}
	if s.o.Share != nil {
		if err := s.o.Share.Open(id.context, id.attempt); err != nil {
			return verdict{}, err
		}
	} else if err := s.slots.set(w.id, id); err != nil {
		return verdict{}, err
	}
	c := s.client
	if s.faults != nil {
		var p *planned
		c, p = s.faults.due(s.client, id)
		defer s.faults.over(p)
	}
	v := c.do(hard, w.scratch, s.clk, w.body, row)
	w.floor = row.EndUS
	judge(row, &t.task, w.scratch.content)
	row.OutputCommit = s.commit.Commit(ledger.LabelOutput, w.scratch.text())
	if row.Outcome != ledger.OK || row.Turn == s.o.Turns-1 {
		return v, nil
	}
	var err error
	if row.Parked, err = s.park.park(row.Context, row.Turn, t.said(w.scratch.content)); err == nil {
		s.park.setReady(row.Context, row.EndUS)
	}
	return v, err
}

// judge asks the oracle about a result.
func judge(row *ledger.Row, task *loadgen.Task, content []byte) {
	if row.Outcome != ledger.OK || !task.HasOracle {
		return
	}
	row.Oracle = ledger.OracleFail
	if task.Check(string(content)) {
		row.Oracle = ledger.OraclePass
	}
}

// tally counts a row for the progress display, and stops a run of failures without end.
func (s *session) tally(row *ledger.Row, rec record) {
	s.count.Lock()
	defer s.count.Unlock()
	p := &s.count.Progress
	if row.Attempt > 1 {
		p.Retries++
	} else if row.Turn == 0 {
		p.Submitted++
	}
	if row.Outcome == ledger.OK {
		p.Turns++
	}
	p.Reconnects += row.Reconnects
	p.PromptTokens += row.PromptTokens.Or(0)
	p.CompletionTokens += row.CompletionTokens.Or(0)
	if row.Outcome != ledger.OK {
		p.LastError = string(row.Outcome) + ": " + row.Error
	} else if row.FirstTokenUS.OK {
		p.LastTTFT = time.Duration(row.FirstTokenUS.V-row.SentUS.V) * time.Microsecond
	}
	if row.Oracle != ledger.OracleNone {
		p.OracleChecked++
	}
	if row.Oracle == ledger.OraclePass {
		p.OraclePassed++
	}
	switch {
	case rec.state != retired:
	case row.Outcome == ledger.OK:
		p.Completed++
		s.count.inARow = 0
	default:
		p.Failed++
		if s.count.inARow++; s.count.inARow >= max(failuresInARow, 4*s.o.Workers) && p.Submitted < s.o.Contexts {
			s.abort.because("%d contexts in a row failed, the last by %s", s.count.inARow, row.Outcome)
		}
	}
}

// failuresInARow is after how many failed contexts without a result between them a run gives up: a server that died must not be
// asked a million times.
const failuresInARow = 200

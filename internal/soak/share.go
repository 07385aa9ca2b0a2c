package soak

import (
	"context"
	"errors"
	"fmt"

	"cotenant/internal/ledger"
)

// Share lets several processes make one run: one hosts it, has the run folder and registers it, the others are members. Package queue implements
// it. Its methods are safe for concurrent use.
type Share interface {
	// Member returns what a member was given when it joined, nil to the host.
	Member() *Membership
	// Host tells the host's own that the run is registered and written to by w. From here on others may join.
	Host(cfg ledger.Config, w *ledger.Writer) error
	// Take gives the next context that no process holds; false: none is left, or ctx has ended.
	Take(ctx context.Context) (Work, bool, error)
	// Open says that an attempt is about to be sent, so that it is known of if this process dies.
	Open(context, attempt int64) error
	// Row hands an attempt's row over for the run folder. ErrLost: this process was taken for dead and another went on with the context;
	// the row counts for nothing.
	Row(row ledger.Row, tries int64, retired bool) error
	// Release ends this process's hold on a context. One that isn't retired is handed out again.
	Release(context int64, retired bool) error
	// Finish waits, in the host, until the others have ended or are taken for dead, and returns how many contexts aren't retired.
	Finish(ctx context.Context) (remaining int64, err error)
}

// Membership is what a member of a shared run has from its host.
type Membership struct {
	Config ledger.Config // as it was registered, secrets among it
	// Start begins a segment, whose clock must begin when it returns, and says where its lines go.
	Start func() (Lines, error)
}

// Work is a context and what has been done of it.
type Work struct {
	Context         int64
	Attempts, Tries int64 // rows, and those of them that count against the limit
	Resent          bool  // an attempt was open when the process that held it died, and left no row
}

// ErrLost says that another process has taken a context over.
var ErrLost = errors.New("another process has gone on with this context")

// Lines takes a run's lines. A ledger.Writer is one.
type Lines interface {
	Segment() int64
	Row(ledger.Row) error
	Resource(ledger.Resource) error
	Event(ledger.Event) error
	Close() (ledger.Ledger, error)
	Abandon() error
}

// checkShare refuses what several processes can't do together.
func (o *Options) checkShare() error {
	switch {
	case o.Share == nil:
		return nil
	case o.Contract != ledger.ContractPlain || o.Load != nil:
		return usage("several processes share runs of the contract %s without a load plan alone: parked turns, faults and schedules belong to one process", ledger.ContractPlain)
	case o.Resume:
		return usage("a run that several processes share can't be gone on with")
	case o.MaxSpendTokens > 0:
		return usage("max-spend-tokens is counted by one process; a run that several share can't have it")
	}
	return nil
}

// member is nil unless this process joined a run.
func (o *Options) member() *Membership {
	if o.Share == nil {
		return nil
	}
	return o.Share.Member()
}

// join begins a member's segment.
func (s *session) join(m *Membership) (err error) {
	s.cfg = m.Config
	if d := s.maker.describe(s.o); d != s.cfg.Sampling {
		return usage("the run was registered with other sampling fields: %+v, not %+v", s.cfg.Sampling, d)
	}
	if s.commit, err = ledger.NewCommitter(s.cfg.Secret); err != nil {
		return err
	}
	if s.place, err = ledger.NewCommitter(s.cfg.PlaceSecret); err != nil {
		return err
	}
	if s.w, err = m.Start(); err != nil {
		return fmt.Errorf("beginning a segment of the shared run: %w", err)
	}
	s.clk = newClock()
	return nil
}

// takeShared gives a worker a context that no process holds.
func (s *session) takeShared(soft context.Context) (n int64, rec record, ok bool) {
	w, ok, err := s.o.Share.Take(soft)
	if err == nil && ok && w.Resent {
		err = s.w.Event(ledger.Event{TUS: s.clk.now(), Segment: s.w.Segment(), Kind: ledger.EventResent, Context: ledger.Some(w.Context),
			Turn: ledger.Some(0), Attempt: ledger.Some(w.Attempts + 1)})
	}
	if err != nil {
		s.abort.fail(err)
		return 0, record{}, false
	}
	return w.Context, record{attempts: uint16(w.Attempts), tries: uint8(w.Tries), state: taken}, ok
}

// putShared ends this process's hold on a context.
func (s *session) putShared(n int64, rec record) {
	if rec.state == lost {
		return
	}
	if err := s.o.Share.Release(n, rec.state == retired); err != nil {
		s.abort.fail(err)
	}
}

// record writes a row, or hands it over.
func (s *session) record(row *ledger.Row, rec *record) error {
	if s.o.Share == nil {
		return s.w.Row(*row)
	}
	err := s.o.Share.Row(*row, int64(rec.tries), rec.state == retired)
	if errors.Is(err, ErrLost) {
		s.o.Log(fmt.Sprintf("context %d: %v", row.Context, err))
		rec.state = lost
		return nil
	}
	return err
}

// remaining is how many contexts aren't retired; the host of a shared run waits for the others first.
func (s *session) remaining(ctx context.Context) (int64, error) {
	if s.o.Share == nil {
		return s.records.remaining(), nil
	}
	return s.o.Share.Finish(ctx)
}

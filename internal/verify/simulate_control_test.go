package verify

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"path/filepath"
	"slices"
	"testing"

	"cotenant/internal/ledger"
	"cotenant/internal/loadgen"
)

// simulateControlled plays the contract controlled in virtual time: the plan's faults, two turns with parking between them, and four
// quiet points.
func simulateControlled(t testing.TB, contexts, block int64) *run {
	t.Helper()
	const base = "You keep this register and answer one question at a time."
	p := simulate(t, 100) // for its config
	commit, err := ledger.NewCommitter(p.cfg.Secret)
	if err != nil {
		t.Fatal(err)
	}
	s := &simulation{rng: newRand(contexts), commit: commit, used: map[int64]bool{}}
	s.cfg = p.cfg
	s.cfg.Contract, s.cfg.Contexts, s.cfg.TurnsPerContext, s.cfg.MaxSpend = ledger.ContractControlled, contexts, 2, ledger.Opt{}
	s.cfg.EndpointScope = ledger.ScopePrivate // far from the client: rates may be claimed
	s.cfg.Workload.Unique = false
	s.cfg.ResourceUS = 30e6 // of a long run
	s.cfg.Controlled = &ledger.ControlPlan{FaultSeed: "7", FaultBlock: block, StallIdleUS: 2e6, CanaryAsked: 16, CanaryNeeded: 4,
		BadBaseCommit: commit.Commit(ledger.LabelBase, []byte("no list")), QuietPoints: 4, QuietLimitUS: 10e6}
	s.events = []ledger.Event{{Kind: ledger.EventStart, WallUS: ledger.Some(s.cfg.StartedWallUS)}}
	good, bad := s.cfg.Workload.BaseCommit, s.cfg.Controlled.BadBaseCommit
	s.events = append(s.events,
		ledger.Event{TUS: 100, Kind: ledger.EventCanaryBase, Value: ledger.Some(16), Detail: good},
		ledger.Event{TUS: 200, Kind: ledger.EventCanaryBase, Value: ledger.Some(0), Detail: bad},
		ledger.Event{TUS: 210, Kind: ledger.EventRollback, Detail: good},
		ledger.Event{TUS: 300, Kind: ledger.EventCanaryBase, Value: ledger.Some(15), Detail: good})
	quiet := s.loadControlled(base)
	s.sampleControlled(quiet)
	s.logControlled(quiet)
	return &s.run
}

// loadControlled makes the rows and returns the quiet points' samples' times.
func (s *simulation) loadControlled(base string) (quiet []int64) {
	turns := s.cfg.TurnsPerContext
	total := s.cfg.Contexts * turns
	free := make([]int64, s.cfg.Workers)
	for w := range free {
		free[w] = 2_000 + int64(w)*150
	}
	plan, ready, parked := s.cfg.FaultPlan(), map[int64]int64{}, map[int64]string{}
	pauses := s.cfg.Controlled.QuietPoints
	for n := range total {
		if k := n * pauses / total; n > 0 && k != (n-1)*pauses/total {
			at := slices.Max(free) + 5_000
			quiet = append(quiet, at)
			for w := range free {
				free[w] = at + 10_000 + int64(w)
			}
		}
		c, turn := n%s.cfg.Contexts, n/s.cfg.Contexts
		w := int64(0)
		for i := range free {
			if free[i] < free[w] {
				w = int64(i)
			}
		}
		at := max(free[w], ready[c]) + s.between(20, 90)
		attempt := int64(1)
		restored := parked[c]
		if f, ok := plan.Of(c, turn); ok {
			r := s.turn(c, turn, w, attempt, at, base, restored, ready[c])
			s.fault(&r, f.Kind)
			at, attempt = r.EndUS+1_000_000, 2
			s.rows = append(s.rows, r)
		}
		r := s.turn(c, turn, w, attempt, at, base, restored, ready[c])
		if attempt > 1 {
			r.BackoffUS = 1_000_000
		}
		s.answer(&r)
		if turn < turns-1 {
			r.Parked = s.commit.Commit(ledger.LabelPark, fmt.Append(nil, c, turn))
			parked[c], ready[c] = r.Parked, r.EndUS
		}
		s.rows = append(s.rows, r)
		free[w], s.end = r.EndUS, max(s.end, r.EndUS)
	}
	slices.SortStableFunc(s.rows, func(a, b ledger.Row) int { return cmp.Compare(a.EndUS, b.EndUS) })
	return append(quiet, s.end+60_000)
}

func (s *simulation) turn(c, turn, w, attempt, at int64, base, restored string, queued int64) ledger.Row {
	r := s.attempt(c, w, attempt, at, base)
	r.Turn, r.Restored, r.QueuedUS = turn, restored, queued
	r.PromptCommit = s.commit.Commit(ledger.LabelPrompt, fmt.Append(nil, c, turn))
	return r
}

// fault lets an attempt meet its fault.
func (s *simulation) fault(r *ledger.Row, kind loadgen.FaultKind) {
	sent := r.SentUS.V
	after := sent + 900
	token := false
	r.EndUS = s.stamp(sent + 1_100)
	switch kind {
	case loadgen.ResetBeforeHeaders:
		r.Outcome = ledger.TransportBefore
	case loadgen.HTTP503:
		r.Outcome, r.HTTPStatus = ledger.HTTP5xx, ledger.Some(503)
	case loadgen.HTTP429:
		r.Outcome, r.HTTPStatus, r.RetryAfterUS = ledger.HTTP429, ledger.Some(429), ledger.Some(1_000_000)
	case loadgen.ResetAfterFirstToken, loadgen.ResetMidStream:
		r.Outcome, token = ledger.TransportMid, true
	case loadgen.StallMidStream:
		r.Outcome, token = ledger.TimeoutIdle, true
	case loadgen.TruncatedMidStream:
		r.Outcome, token = ledger.Truncated, true
	case loadgen.CancelBeforeHeaders:
		r.Outcome = ledger.CancelledInject
	case loadgen.CancelAfterFirstToken:
		r.Outcome, token = ledger.CancelledInject, true
	}
	r.Error = string(kind)
	if token {
		r.HTTPStatus, r.HeadersUS, r.FirstEventUS = ledger.Some(200), ledger.Some(sent+300), ledger.Some(sent+400)
		r.FirstTokenUS, r.FirstContentUS, r.LastTokenUS = ledger.Some(sent+500), ledger.Some(sent+500), ledger.Some(sent+500)
		r.Deltas, r.Events, r.TextBytes, r.WastedTokens = 1, 2, 3, 1
	} else if r.HTTPStatus.OK {
		r.HeadersUS = ledger.Some(sent + 950)
	}
	s.events = append(s.events, ledger.Event{TUS: after, Kind: ledger.EventFault, Context: ledger.Some(r.Context), Turn: ledger.Some(r.Turn),
		Attempt: ledger.Some(r.Attempt), Value: ledger.Some(r.Events), Detail: string(kind)})
}

func (s *simulation) sampleControlled(quiet []int64) {
	prompts := map[[2]int64]int64{}
	for _, r := range s.rows {
		if r.Outcome == ledger.OK {
			prompts[[2]int64{r.Context, r.Turn}] = r.PromptTokens.V
		}
	}
	s.extra = func(r *ledger.Row) served {
		switch {
		case r.Outcome == ledger.OK:
			return served{1, 0, r.PromptTokens.V, r.CompletionTokens.V, r.CachedTokens.V}
		case r.FirstTokenUS.OK: // cut: the server had computed its prompt, two tokens of its answer, and saw the client go
			return served{0, 1, prompts[[2]int64{r.Context, r.Turn}], 2, 688}
		}
		return served{}
	}
	times := slices.Clone(quiet)
	for at := int64(1_000); at < s.end; at += s.cfg.ResourceUS {
		times = append(times, at)
	}
	slices.Sort(times)
	for _, at := range times {
		s.resources = append(s.resources, s.at(at))
	}
}

func (s *simulation) logControlled(quiet []int64) {
	for _, at := range quiet {
		end := int64(0)
		for _, r := range s.rows {
			if r.EndUS <= at {
				end = max(end, r.EndUS)
			}
		}
		s.events = append(s.events, ledger.Event{TUS: at + 700, Kind: ledger.EventQuiet, Value: ledger.Some(at - end)})
	}
	last := s.resources[len(s.resources)-1]
	slices.SortStableFunc(s.events, func(a, b ledger.Event) int { return cmp.Compare(a.TUS, b.TUS) })
	s.events = append(s.events,
		ledger.Event{TUS: s.end + 10, Kind: ledger.EventPeak, Value: ledger.Some(last.Client.InFlightPeak)},
		ledger.Event{TUS: last.TUS + 1_000, Kind: ledger.EventEnd, WallUS: ledger.Some(s.cfg.StartedWallUS + last.TUS), Detail: ledger.StatusFinished})
}

// parkFile writes what the rows commit to.
func (r *run) parkFile(t testing.TB, dir string) {
	b := []byte(ledger.ParkMagic)
	for _, x := range r.rows {
		if x.Parked == "" {
			continue
		}
		payload := fmt.Append(nil, x.Context, x.Turn)
		b = binary.LittleEndian.AppendUint64(b, uint64(x.Context))
		b = binary.LittleEndian.AppendUint32(b, uint32(x.Turn))
		b = binary.LittleEndian.AppendUint32(b, uint32(len(payload)))
		b = append(b, payload...)
	}
	write(t, filepath.Join(dir, ledger.ParkFile), b)
}

package verify

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"slices"

	"cotenant/internal/ledger"
)

// attemptOf names an attempt, or what an event says of one.
type attemptOf struct{ context, turn, attempt, segment int64 }

// controlFacts is what this package finds of the contract controlled by its own means.
type controlFacts struct {
	cfg     *ledger.Config
	planned map[attemptOf]string // by context and turn: kinds of fault, worked out from the registered plan

	badPlan, badShow, badPark violation

	faults     []*faultFacts
	byTry      map[attemptOf]*faultFacts
	of         map[int64]*faultFacts // by context
	canary     []ledger.Event        // canary_base and rollback events
	quiet      []ledger.Event
	parked     map[int64]string // by context: the commitment of its last result
	records    int64            // results that parked something
	everParked map[string]bool  // commitments
	firstUS    map[int64]int64  // by segment: the first request's picked
}

type faultFacts struct {
	at        attemptOf
	t         int64
	kind      string
	row       bool // its attempt has a row
	recovered bool // its turn has a result
}

// faultKinds are the kinds in the order in which blocks take turns, as docs/formats/run.md has them.
var faultKinds = []string{"reset_before_headers", "http_503", "http_429", "reset_after_first_token", "reset_mid_stream", "stall_mid_stream",
	"truncated_mid_stream", "cancel_before_headers", "cancel_after_first_token"}

func newControlFacts(cfg *ledger.Config) *controlFacts {
	f := &controlFacts{cfg: cfg, planned: map[attemptOf]string{}, byTry: map[attemptOf]*faultFacts{}, of: map[int64]*faultFacts{}, parked: map[int64]string{}, everParked: map[string]bool{}, firstUS: map[int64]int64{}}
	size := cfg.Controlled.FaultBlock
	for block := int64(0); (block+1)*size <= cfg.Contexts; block++ {
		sum := sha256.Sum256([]byte("cotenant-faults-1\n" + cfg.Controlled.FaultSeed + "\n" + fmt.Sprint(block)))
		at := attemptOf{context: block*size + int64(binary.BigEndian.Uint64(sum[0:])%uint64(size)),
			turn: int64(binary.BigEndian.Uint64(sum[8:]) % uint64(cfg.TurnsPerContext))}
		f.planned[at] = faultKinds[block%int64(len(faultKinds))]
	}
	return f
}

func (f *controlFacts) event(e *ledger.Event) {
	switch e.Kind {
	case ledger.EventCanaryBase, ledger.EventRollback:
		f.canary = append(f.canary, *e)
	case ledger.EventQuiet:
		f.quiet = append(f.quiet, *e)
	case ledger.EventFault:
		x := &faultFacts{at: attemptOf{e.Context.Or(-1), e.Turn.Or(-1), e.Attempt.Or(-1), e.Segment}, t: e.TUS, kind: e.Detail}
		key := attemptOf{context: x.at.context, turn: x.at.turn}
		switch kind, ok := f.planned[key]; {
		case !ok:
			f.badPlan.add("a fault was done to context %d, turn %d, which the plan doesn't have", key.context, key.turn)
		case kind != x.kind:
			f.badPlan.add("context %d met %s, the plan has %s", key.context, x.kind, kind)
		case f.of[key.context] != nil:
			f.badPlan.add("context %d met its fault twice", key.context)
		}
		f.faults = append(f.faults, x)
		f.byTry[x.at], f.of[x.at.context] = x, x
	}
}

// row takes an attempt of a context's present turn.
func (f *controlFacts) row(r *ledger.Row, who attemptName) {
	if at, ok := f.firstUS[r.Segment]; !ok || r.PickedUS < at {
		f.firstUS[r.Segment] = r.PickedUS
	}
	x := f.byTry[attemptOf{r.Context, r.Turn, r.Attempt, r.Segment}]
	switch {
	case x != nil:
		x.row = true
		if why := shows(x, r); why != "" {
			f.badShow.add("%s met %s: %s", who, x.kind, why)
		}
	case r.Outcome == ledger.CancelledInject:
		f.badShow.add("%s was cancelled by a plan that no event speaks of", who)
	}
	if r.Outcome == ledger.OK {
		if x := f.of[r.Context]; x != nil && x.at.turn == r.Turn && (x.row || r.Segment > x.at.segment) {
			x.recovered = true
		}
	}
	f.parking(r, who)
}

// shows says why an attempt can't have met its fault; empty if it can.
func shows(x *faultFacts, r *ledger.Row) string {
	want, token := map[string]ledger.Outcome{"reset_before_headers": "transport_before_first_byte", "http_503": "http_5xx", "http_429": "http_429",
		"reset_after_first_token": "transport_mid_stream", "reset_mid_stream": "transport_mid_stream", "stall_mid_stream": "timeout_idle",
		"truncated_mid_stream": "truncated", "cancel_before_headers": "cancelled_injected", "cancel_after_first_token": "cancelled_injected"}[x.kind],
		slices.Contains([]string{"reset_after_first_token", "reset_mid_stream", "stall_mid_stream", "truncated_mid_stream", "cancel_after_first_token"}, x.kind)
	switch {
	case r.Outcome != want:
		return fmt.Sprintf("it ended with %s, not with %s", r.Outcome, want)
	case r.FirstTokenUS.OK != token:
		return fmt.Sprintf("whether a token came before it is %t", r.FirstTokenUS.OK)
	case x.kind == "http_503" && r.HTTPStatus != ledger.Some(503):
		return "its status isn't 503"
	case x.kind == "http_429" && !r.RetryAfterUS.OK:
		return "it was told no Retry-After"
	case x.t < r.PickedUS || x.t > r.EndUS:
		return fmt.Sprintf("the fault was done at %d us, the attempt lasted from %d to %d us", x.t, r.PickedUS, r.EndUS)
	}
	return ""
}

// parking follows a conversation from turn to turn.
func (f *controlFacts) parking(r *ledger.Row, who attemptName) {
	before := f.parked[r.Context]
	switch {
	case r.Turn == 0 && r.Restored != "":
		f.badPark.add("%s brought something back", who)
	case r.Turn > 0 && r.Restored != before:
		f.badPark.add("%s brought back %q, parked was %q", who, r.Restored, before)
	case r.Turn > 0 && before == "":
		f.badPark.add("%s brought nothing back", who)
	}
	if r.Outcome != ledger.OK {
		if r.Parked != "" {
			f.badPark.add("%s has no result and was parked", who)
		}
		return
	}
	if another := r.Turn < f.cfg.TurnsPerContext-1; another != (r.Parked != "") {
		f.badPark.add("%s has another turn to come: %t; it was parked as %q", who, another, r.Parked)
	}
	if r.Parked != "" {
		f.records++
		f.everParked[r.Parked] = true
	}
	f.parked[r.Context] = r.Parked
}

func contractTerms(e *evidence) (string, string) { return e.config.ControlledTerms(), "" }

func canaries(e *evidence) (string, string) {
	p, good := e.config.Controlled, e.config.Workload.BaseCommit
	asked := map[int64]string{} // by segment: the base that was asked last before the first request, and passed
	failed, rolledBack := false, false
	for _, x := range e.facts.control.canary {
		if first, ok := e.facts.control.firstUS[x.Segment]; ok && x.TUS > first {
			return fmt.Sprintf("the canary of %d us in segment %d comes after the first request, at %d us", x.TUS, x.Segment, first), ""
		}
		if x.Kind == ledger.EventRollback {
			rolledBack = rolledBack || failed && x.Detail == good
			failed = false
			continue
		}
		if x.Value.Or(0) > p.CanaryAsked {
			return fmt.Sprintf("%d right answers to %d questions", x.Value.V, p.CanaryAsked), ""
		}
		passed := x.Value.Or(0) >= p.CanaryNeeded
		failed = x.Detail == p.BadBaseCommit && !passed
		asked[x.Segment] = ""
		if passed {
			asked[x.Segment] = x.Detail
		}
	}
	if !rolledBack {
		return "no bad base failed its canary and was rolled back to the good one", ""
	}
	for _, s := range inOrder(e.facts.control.firstUS) {
		if asked[s] != good {
			return fmt.Sprintf("segment %d sent requests though its last canary wasn't passed by the base that they carry", s), ""
		}
	}
	return "", ""
}

func faultsPlanned(e *evidence) (string, string) {
	f := e.facts.control
	switch {
	case f.badPlan.count > 0:
		return f.badPlan.String(), ""
	case len(f.faults) != len(f.planned):
		return fmt.Sprintf("%d faults were done, %d were planned", len(f.faults), len(f.planned)), ""
	case int64(len(f.faults))*100 < e.config.Contexts:
		return fmt.Sprintf("%d of %d contexts met a fault: want 1 %%", len(f.faults), e.config.Contexts), ""
	}
	return "", ""
}

func faultsRecovered(e *evidence) (string, string) {
	f := e.facts.control
	if f.badShow.count > 0 {
		return f.badShow.String(), ""
	}
	lost := map[int64]int64{}
	var bad violation
	for _, x := range f.faults {
		switch {
		case !x.row && e.facts.ended[x.at.segment]:
			bad.add("the fault of context %d, turn %d, attempt %d has no row", x.at.context, x.at.turn, x.at.attempt)
		case !x.row:
			// What is open when a segment is killed leaves no row.
			if lost[x.at.segment]++; lost[x.at.segment] > e.config.Workers {
				bad.add("segment %d left more faults without a row than it had workers", x.at.segment)
			}
		case !x.recovered:
			bad.add("context %d didn't recover from %s in turn %d", x.at.context, x.kind, x.at.turn)
		}
	}
	if bad.count > 0 {
		return bad.String(), ""
	}
	return "", ""
}

func resent(e *evidence) (string, string) {
	segments := map[int64]int64{}
	if e.config.Shared {
		return resentByOthers(e), ""
	}
	for _, r := range e.facts.resent {
		switch segments[r.segment]++; {
		case r.segment == 0:
			return "the first segment sent something again", ""
		case segments[r.segment] > e.config.Workers:
			return fmt.Sprintf("segment %d sent more again than the %d workers can have had open", r.segment, e.config.Workers), ""
		case r.context < 0 || r.context >= e.config.Contexts || r.turn < 0 || r.turn >= e.config.TurnsPerContext || r.attempt < 1:
			return fmt.Sprintf("context %d, turn %d, attempt %d was never planned", r.context, r.turn, r.attempt), ""
		case e.facts.ended[r.segment-1]:
			return fmt.Sprintf("segment %d sent something again, though the one before it ended in order", r.segment), ""
		case e.computed.Status == ledger.StatusFinished && !e.facts.contexts[r.context].any:
			return fmt.Sprintf("context %d was to be sent again and has no row", r.context), ""
		}
	}
	return "", ""
}

// resentByOthers judges a run whose segments ran at the same time: what died with a process is sent again by any other.
func resentByOthers(e *evidence) string {
	killed := int64(0)
	for s := range e.facts.segments {
		if !e.facts.ended[s] {
			killed++
		}
	}
	if n := int64(len(e.facts.resent)); n > killed*e.config.Workers {
		return fmt.Sprintf("%d attempts were sent again; %d processes died with at most %d open each", n, killed, e.config.Workers)
	}
	for _, r := range e.facts.resent {
		if r.context < 0 || r.context >= e.config.Contexts || r.turn != 0 || r.attempt < 1 || e.computed.Status == ledger.StatusFinished && !e.facts.contexts[r.context].any {
			return fmt.Sprintf("context %d, turn %d, attempt %d was never planned, or has no row", r.context, r.turn, r.attempt)
		}
	}
	return ""
}

func controlledSums(e *evidence) (string, string) {
	a, c := e.claimed.Controlled, e.computed.Controlled
	if (a == nil) != (c == nil) {
		return fmt.Sprintf("controlled is there: %t; the contract is %s", a != nil, e.config.Contract), ""
	}
	if c == nil {
		return "", "the contract is " + e.config.Contract
	}
	f := e.facts.control
	own := mismatch("/controlled/fault_contexts", c.FaultContexts, int64(len(f.faults)), "/controlled/parked", c.Parked, f.records,
		"/controlled/quiet_points", c.QuietPoints, int64(len(f.quiet)))
	return cmp.Or(own, difference("/controlled", *a, *c)), ""
}

func reconciled(e *evidence) (string, string) {
	if e.computed.Segments != 1 || e.computed.Samples.ServerRestarts > 0 {
		return "", "counters of one server are set against one segment: this run has several, or several servers"
	}
	if e.config.Contract == ledger.ContractOrchestration {
		for _, name := range []string{ledger.SeriesRequests, ledger.SeriesPromptTokens, ledger.SeriesOutputTokens} {
			if !slices.ContainsFunc(e.computed.Reconciliation, func(r ledger.Reconciliation) bool { return r.Quantity == name }) {
				return "the endpoint has no " + name + " that could be set against the client's", ""
			}
		}
	}
	if len(e.computed.Reconciliation) == 0 {
		return "", "the server exposes no counter"
	}
	for _, r := range e.computed.Reconciliation {
		if r.Residual < r.Low || r.Residual > r.High {
			return fmt.Sprintf("%s: the server counted %d, the client %d; the residual %d lies outside %d to %d, which is what attempts that were cut can have left",
				r.Quantity, r.Server, r.Client, r.Residual, r.Low, r.High), ""
		}
	}
	return "", ""
}

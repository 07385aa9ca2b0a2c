package verify

import (
	"fmt"
	"maps"
	"slices"

	"cotenant/internal/ledger"
)

func rung(e *evidence) (string, string) {
	ladder, low := "100, 1,000, 10,000, 100,000, 1,000,000", true
	if e.config.Contract != ledger.ContractPlain {
		ladder, low = "10,000, 100,000, 1,000,000", false
	}
	switch e.config.Contexts {
	case 100, 1_000:
		if low {
			return "", ""
		}
	case 10_000, 100_000, 1_000_000:
		return "", ""
	}
	return fmt.Sprintf("not_a_rung: %d contexts; the ladder of the contract %s is %s", e.config.Contexts, e.config.Contract, ladder), ""
}

func finished(e *evidence) (string, string) {
	a, c := &e.claimed, &e.computed
	switch {
	case a.Status != c.Status || a.StatusDetail != c.StatusDetail || a.EndedWallUS != c.EndedWallUS || a.Segments != c.Segments:
		return fmt.Sprintf("the ledger has status %q (%q), %d segments, end %s; the events give %q (%q), %d, %s",
			a.Status, a.StatusDetail, a.Segments, opt(a.EndedWallUS), c.Status, c.StatusDetail, c.Segments, opt(c.EndedWallUS)), ""
	case c.Segments != int64(len(e.facts.segments)):
		return fmt.Sprintf("the ledger has %d segments, the events start %d", c.Segments, len(e.facts.segments)), ""
	case c.Status != ledger.StatusFinished:
		return fmt.Sprintf("the run's status is %q: %s", c.Status, orNone(c.StatusDetail)), ""
	case c.EndedWallUS.OK && c.EndedWallUS.V < c.StartedWallUS:
		return fmt.Sprintf("the run ended at %d and started at %d", c.EndedWallUS.V, c.StartedWallUS), ""
	}
	return "", ""
}

func exactlyOnce(e *evidence) (string, string) {
	var missing, twice violation
	for i, c := range e.facts.contexts {
		switch {
		case !c.any:
			missing.add("context %d was never submitted", i)
		case c.twice > 0:
			twice.add("context %d has %d attempts of a turn that had its result", i, c.twice)
		}
	}
	switch {
	case missing.count > 0:
		return missing.String(), ""
	case twice.count > 0:
		return twice.String(), ""
	case e.facts.strays > 0:
		return fmt.Sprintf("%d attempts belong to contexts or turns that weren't planned", e.facts.strays), ""
	case e.computed.Counts.Duplicates > 0:
		return fmt.Sprintf("%d attempts follow a result", e.computed.Counts.Duplicates), ""
	}
	return "", ""
}

func noFailures(e *evidence) (string, string) {
	var failed violation
	for i, c := range e.facts.contexts {
		if last, ok := e.facts.failing[int64(i)]; c.any && int64(c.turns) < e.config.TurnsPerContext {
			if !ok {
				failed.add("context %d ended after %d of %d turns", i, c.turns, e.config.TurnsPerContext)
				continue
			}
			failed.add("context %d ended with %s", i, last.outcome)
		}
	}
	if failed.count > 0 {
		return fmt.Sprintf("%d of %d contexts failed: %s", failed.count, len(e.facts.contexts), failed.String()), ""
	}
	return "", ""
}

func usageThere(e *evidence) (string, string) {
	var none violation
	for i, c := range e.facts.contexts {
		if c.usage < c.turns {
			none.add("context %d has a result without usage", i)
		}
	}
	if none.count > 0 {
		return none.String(), ""
	}
	return "", ""
}

func boundedWorkers(e *evidence) (string, string) {
	c := e.config
	if c.Workers < 1 || c.Workers >= c.Contexts {
		return fmt.Sprintf("%d workers for %d contexts: want at least 1 and fewer than contexts", c.Workers, c.Contexts), ""
	}
	if v := &e.facts.badWorker; v.count > 0 {
		return v.String(), ""
	}
	return "", ""
}

func lanes(e *evidence) (string, string) { return e.facts.overlaps(), "" }

func peakObserved(e *evidence) (string, string) {
	most := int64(0)
	for _, s := range inOrder(e.facts.segments) {
		peak := e.facts.peak(s)
		// A segment that was killed has no count, and what was open then left no row.
		if counted := e.facts.peaks[s]; counted != peak && e.facts.ended[s] {
			return fmt.Sprintf("segment %d: the client counted %d in flight, its rows give %d", s, counted, peak), ""
		}
		most = max(most, peak)
	}
	a, c := &e.claimed.Peaks, &e.computed.Peaks
	switch {
	case c.InFlight != most:
		return fmt.Sprintf("two sweeps over the rows disagree: %d and %d", c.InFlight, most), ""
	case a.InFlight != most || a.InFlightObserved != c.InFlightObserved:
		return fmt.Sprintf("the ledger's peak is %d (counted %s), the rows give %d (counted %s)", a.InFlight, opt(a.InFlightObserved), most, opt(c.InFlightObserved)), ""
	case most < 1 || most > e.config.Workers:
		return fmt.Sprintf("%d were in flight: want 1 to %d, the workers", most, e.config.Workers), ""
	}
	return "", ""
}

func samplesBelowPeak(e *evidence) (string, string) {
	for _, s := range inOrder(e.facts.trace) {
		if g, peak := e.facts.trace[s], e.facts.peak(s); g.inFlightPeak > peak && e.facts.ended[s] {
			return fmt.Sprintf("a sample of segment %d saw %d in flight, its rows give %d at most", s, g.inFlightPeak, peak), ""
		}
	}
	return "", ""
}

func spending(e *evidence) (string, string) {
	limit, ok := e.config.MaxSpend.Get()
	if !ok {
		return "", "the config sets no limit"
	}
	if spent, slack := e.facts.tokens.spent, e.facts.mostSpent*e.config.Workers; spent > limit+slack {
		return fmt.Sprintf("%d tokens were spent; the limit is %d, and %d were in flight at most", spent, limit, slack), ""
	}
	return "", ""
}

// inOrder lists a map's segments.
func inOrder[V any](m map[int64]V) []int64 { return slices.Sorted(maps.Keys(m)) }

func opt(o ledger.Opt) string {
	if v, ok := o.Get(); ok {
		return fmt.Sprint(v)
	}
	return "null"
}

func orNone(s string) string {
	if s == "" {
		return "no reason was recorded"
	}
	return s
}

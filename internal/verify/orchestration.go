package verify

import (
	"fmt"

	"cotenant/internal/ledger"
)

func allRight(e *evidence) (string, string) {
	turns := int64(0)
	for _, c := range e.facts.contexts {
		turns += int64(c.turns)
	}
	if o := e.facts.oracle; o.passed != turns {
		return fmt.Sprintf("of %d results %d were found right and %d wrong: want all right", turns, o.passed, o.failed), ""
	}
	return "", ""
}

func clientMemory(e *evidence) (string, string) {
	if e.config.InProcess {
		return "client and server were one process: the client's memory isn't its own", ""
	}
	most := int64(0)
	for _, g := range e.facts.trace {
		most = max(most, g.clientHWM)
	}
	if most < 1 || most >= ledger.MaxClientBytes {
		return fmt.Sprintf("the client's VmHWM is %d bytes: want 1 to %d", most, ledger.MaxClientBytes-1), ""
	}
	return "", ""
}

func connectionsReused(e *evidence) (string, string) {
	f, results := e.facts, int64(0)
	for _, c := range f.contexts {
		results += int64(c.turns)
	}
	limit := e.config.Workers*int64(len(f.segments)) + f.rows - results + f.reconnects + f.rows/1000
	if f.opened > limit {
		return fmt.Sprintf("%d attempts opened a connection; %d workers, %d attempts without a result, %d reconnects and one attempt of 1,000 account for %d", f.opened, e.config.Workers, f.rows-results, f.reconnects, limit), ""
	}
	return "", ""
}

package verify

import (
	"fmt"
	"slices"
	"strings"

	"cotenant/internal/ledger"
)

// timed are the claims that an overloaded client spoils: times, rates and what follows from them.
var timed = []string{"result_rate", "prompt_rate", "completion_rate", "latency_p50", "latency_p95_upper", ledger.ClaimTTFT, "queue_age_p50",
	"queue_age_p95_upper", "latency_from_schedule_p50", "latency_from_schedule_p95_upper", "objective_level", "jain_index", "prefix_cache_benefit"}

func clientCost(e *evidence) (string, string) {
	cfg := e.config
	if cfg.EndpointScope != ledger.ScopeLoopback || cfg.InProcess {
		return "", "client and server share no cores, or one process"
	}
	used, had, known := int64(0), int64(0), false
	for _, g := range e.facts.trace {
		had += (g.last - g.first) * cfg.Client.CPUs
		if g.cpuFrom.OK {
			used += g.cpu.V - g.cpuFrom.V
			known = true
		}
	}
	if known && had > 0 && used*1_000_000/had <= 100_000 {
		return "", ""
	}
	var ids []string
	for _, c := range e.claimed.Claims {
		if slices.Contains(timed, c.ID) {
			ids = append(ids, c.ID)
		}
	}
	if len(ids) > 0 {
		return fmt.Sprintf("the client took %d us of the %d us that the cores had, known: %t; want a tenth at most, and %s is claimed", used, had, known, strings.Join(ids, ", ")), ""
	}
	return "", ""
}

package verify

import (
	"strings"
	"testing"

	"cotenant/internal/ledger"
)

// simulateOrchestration plays the contract orchestration in virtual time: a closed loop with one retry, whose answers are all right and
// counted by the endpoint.
func simulateOrchestration(t testing.TB, contexts int64) *run {
	t.Helper()
	p := simulate(t, 100) // for its config
	commit, err := ledger.NewCommitter(p.cfg.Secret)
	if err != nil {
		t.Fatal(err)
	}
	s := &simulation{rng: newRand(contexts), commit: commit, used: map[int64]bool{}}
	s.cfg = p.cfg
	s.cfg.Contract, s.cfg.Contexts, s.cfg.MaxSpend = ledger.ContractOrchestration, contexts, ledger.Opt{}
	s.cfg.ResourceUS = 30e6 // of a long run
	s.load("You keep this register and answer one question at a time.")
	for i := range s.rows {
		if s.rows[i].Outcome == ledger.OK {
			s.rows[i].Oracle = ledger.OraclePass
		}
	}
	s.extra = func(r *ledger.Row) served {
		if r.Outcome != ledger.OK {
			return served{}
		}
		return served{1, 0, r.PromptTokens.V, r.CompletionTokens.V, r.CachedTokens.V}
	}
	for at := int64(1_000); ; at += s.cfg.ResourceUS {
		s.resources = append(s.resources, s.at(at))
		if at > s.end {
			break
		}
	}
	s.log()
	return &s.run
}

// TestOrchestration: a run under the contract holds at its lowest rung, and a small one but for its size; it claims nothing about a server.
func TestOrchestration(t *testing.T) {
	for contexts, want := range map[int64]string{100: "R-RUNG-01", ledger.OrchestrationRung: ""} {
		dir := t.TempDir()
		simulateOrchestration(t, contexts).write(t, dir, nil)
		report, err := Dir(dir, Options{})
		if err != nil {
			t.Fatal(err)
		}
		var failed, ids []string
		for _, f := range report.Failed() {
			failed = append(failed, f.Rule)
			t.Logf("%s: %s", f.Rule, f.Detail)
		}
		if strings.Join(failed, " ") != want {
			t.Errorf("%d contexts: %v", contexts, failed)
		}
		for _, c := range report.Establishes {
			ids = append(ids, c.ID)
		}
		claims := "retired in_flight client_memory tasks_right conn_reused reconciled_prefix_hit_tokens_total reconciled_prompt_tokens_total " +
			"reconciled_completion_tokens_total reconciled_requests_total reconciled_requests_aborted_total"
		if want == "" && strings.Join(ids, " ") != claims {
			t.Errorf("it establishes %v", ids)
		}
	}
}

// TestOrchestrationNeedsCounters: what the endpoint doesn't count can't be agreed on.
func TestOrchestrationNeedsCounters(t *testing.T) {
	r := simulateOrchestration(t, 100)
	for i := range r.resources {
		for j := range r.resources[i].Series {
			if s := &r.resources[i].Series[j]; s.Name == ledger.SeriesRequests {
				*s = ledger.SeriesReading{Name: s.Name, State: ledger.SeriesNotExposed}
			}
		}
	}
	dir := t.TempDir()
	r.write(t, dir, nil)
	report, err := Dir(dir, Options{})
	if err != nil {
		t.Fatal(err)
	}
	if failed := report.Failed(); len(failed) != 2 || failed[1].Rule != "R-REC-01" {
		t.Errorf("failed: %+v", failed)
	}
	if why := strings.Join(summarize(t, dir).Admission.Why, " "); why != "not_a_rung counters" {
		t.Errorf("why not: %s", why)
	}
}

package main

import (
	"context"
	"slices"
	"testing"

	"cotenant/internal/ledger"
	"cotenant/internal/loadgen"
	"cotenant/internal/soak"
	"cotenant/internal/verify"
)

// A soak under the contract orchestration agrees with what the endpoint counted, whichever way it writes. Only its size and the one process
// of client and endpoint stand against it here.
func TestOrchestration(t *testing.T) {
	for _, flush := range []bool{false, true} {
		url, s := start(t, flush)
		w, err := loadgen.New(loadgen.Options{Seed: 5})
		if err != nil {
			t.Fatal(err)
		}
		res, err := soak.Run(context.Background(), soak.Options{Endpoint: url, Contract: ledger.ContractOrchestration, Contexts: 2000, Workers: 8,
			Out: t.TempDir(), Source: w, Workload: soak.WorkloadInfo{Seed: "5"}, RulesVersion: verify.RulesVersion})
		if err != nil {
			t.Fatal(err)
		}
		if want := []string{ledger.WhyNotARung, ledger.WhyMemory}; !slices.Equal(res.Ledger.Admission.Why, want) {
			t.Errorf("against it: %v, want %v", res.Ledger.Admission.Why, want)
		}
		if n := res.Ledger.Counts.Attempts - res.Ledger.Counts.ConnReused; n > 8 {
			t.Errorf("8 workers opened %d connections", n)
		}
		report, err := verify.Dir(res.Dir, verify.Options{})
		if err != nil {
			t.Fatal(err)
		}
		var failed []string
		for _, f := range report.Failed() {
			failed = append(failed, f.Rule)
		}
		if !slices.Equal(failed, []string{"R-RUNG-01", "R-MEM-01"}) {
			t.Errorf("failed: %v", failed)
		}
		// The canary of one token came before the samples.
		if n := s.answered.Load(); n != 2001 {
			t.Errorf("the endpoint answered %d requests", n)
		}
	}
}

package verify

import (
	"crypto/ed25519"
	"errors"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"cotenant/internal/ledger"
)

const lone = "testdata/good-100/ledger.json"

// integrityFixtures break one rule of lone ledgers each, and no other.
var integrityFixtures = []struct {
	rule   string
	change func(l *ledger.Ledger)
	bytes  func(b []byte) []byte
	opts   Options
}{
	{rule: "I-FORM-01", bytes: func(b []byte) []byte { return append(b, '\n') }},
	{rule: "I-FILE-01", change: func(l *ledger.Ledger) { l.Files[1].Bytes++ }},
	{rule: "I-DEF-01", change: func(l *ledger.Ledger) { l.Definitions.Wall = "as long as it took" }},
	{rule: "I-RUNG-01", change: func(l *ledger.Ledger) {
		l.Contexts, l.Admission = 101, ledger.Admission{Why: []string{ledger.WhyNotARung, ledger.WhyIncomplete}}
		l.Claims, l.NonClaims = ledger.Restate(l)
	}},
	{rule: "I-COUNT-01", change: func(l *ledger.Ledger) { l.Counts.Attempts++ }},
	{rule: "I-TOK-01", change: func(l *ledger.Ledger) { l.Tokens.RowsEqual++ }},
	{rule: "I-RATE-01", change: func(l *ledger.Ledger) { l.Rates.WarmResultsPer1e6s.V++ }},
	{rule: "I-LAT-01", change: func(l *ledger.Ledger) { l.Times.SendLag.P90.ValueUS.V = l.Times.SendLag.MaxUS.V + 1 }},
	{rule: "I-ORA-01", change: func(l *ledger.Ledger) { l.Oracle.WilsonHighPPM.V++ }},
	{rule: "I-PEAK-01", change: func(l *ledger.Ledger) { l.Peaks.InFlightObserved.V++ }},
	{rule: "I-ADM-01", change: func(l *ledger.Ledger) { l.Samples.ServerRestarts++ }},
	{rule: "I-LOAD-01", change: func(l *ledger.Ledger) {
		l.Load = &ledger.Load{Plan: ledger.LoadPlan{Arrival: ledger.ArrivalClosed, Levels: []int64{4}}, Stages: []ledger.StageSum{{Level: ledger.Some(4), Contexts: 100, Results: 100,
			WallUS: l.WallUS, ResultsPer1e6s: l.Rates.ResultsPer1e6s, TTFT: l.Times.TTFTAdjusted, Latency: l.Times.Adjusted}}, WorkersOut: 1}
		l.Claims, l.NonClaims = ledger.Restate(l)
	}},
	{rule: "I-CLAIM-01", change: func(l *ledger.Ledger) { l.Claims[1].Value++ }},
	{rule: "I-CLAIM-02", change: func(l *ledger.Ledger) { l.NonClaims = l.NonClaims[1:] }},
	{rule: "I-SIGN-01", opts: Options{Keys: []ed25519.PublicKey{key(1).Public().(ed25519.PublicKey)}}},
}

// TestLoneLoad: the ledgers of runs under a plan hold by themselves.
func TestLoneLoad(t *testing.T) {
	for kind := range loadPlans {
		dir := t.TempDir()
		simulateLoad(t, kind).write(t, dir, nil)
		r, err := LedgerFile(read(t, filepath.Join(dir, ledger.LedgerFile)), Options{})
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range r.Failed() {
			t.Errorf("%s: %s: %s", kind, f.Rule, f.Detail)
		}
	}
}

func TestLoneLedger(t *testing.T) {
	r, err := LedgerFile(read(t, lone), Options{})
	if err != nil {
		t.Fatal(err)
	}
	if r.ExitCode() != 0 || r.Grade != GradeIntegrity || len(r.Establishes) != 0 || len(r.States) == 0 || r.DoesNot[0].ID != "what_it_states" {
		t.Errorf("%+v", r)
	}
	var ids, covered []string
	for _, rule := range IntegrityRules() {
		ids = append(ids, rule.ID)
	}
	for _, f := range integrityFixtures {
		covered = append(covered, f.rule)
		b := read(t, lone)
		if f.change != nil {
			l, err := ledger.ReadLedger(b)
			if err != nil {
				t.Fatal(err)
			}
			f.change(&l)
			b = marshal(t, l)
		}
		if f.bytes != nil {
			b = f.bytes(b)
		}
		r, err := LedgerFile(b, f.opts)
		if err != nil {
			t.Fatal(err)
		}
		if failed := r.Failed(); len(failed) != 1 || failed[0].Rule != f.rule || r.ExitCode() != 3 || len(r.States) != 0 {
			t.Errorf("%s: exit code %d, failed %+v", f.rule, r.ExitCode(), failed)
		}
	}
	if !slices.Equal(ids, covered) {
		t.Errorf("rules %v\nfixtures %v", ids, covered)
	}
}

func TestLoneLedgersThatHold(t *testing.T) {
	run := t.TempDir()
	r := good(t, 1000)
	r.rows[len(r.rows)-1].Outcome = ledger.Empty // a run that isn't admitted is a ledger too
	r.write(t, run, nil)
	for _, path := range []string{filepath.Join(realRun, ledger.LedgerFile), filepath.Join(run, ledger.LedgerFile)} {
		r, err := LedgerFile(read(t, path), Options{})
		if err != nil {
			t.Fatal(err)
		}
		if len(r.Failed()) > 0 {
			t.Errorf("%s: %+v", path, r.Failed())
		}
	}
	for _, other := range []string{"", "{}", "[]", string(read(t, "testdata/good-100/config.json")), strings.Repeat("[", 1<<20)} {
		if _, err := LedgerFile([]byte(other), Options{}); !errors.Is(err, ErrUnreadable) {
			t.Errorf("%.40q: %v", other, err)
		}
	}
}

func FuzzLedgerFile(f *testing.F) {
	f.Add(read(f, lone))
	f.Add(read(f, filepath.Join(realRun, ledger.LedgerFile)))
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := LedgerFile(b, Options{})
		if err == nil && (len(r.Results) != len(IntegrityRules()) || len(r.Establishes) > 0) {
			t.Fatalf("%+v", r)
		}
	})
}

package soak

import (
	"context"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"testing/synctest"

	"cotenant/internal/ledger"
)

// asKilled makes a finished run folder what a SIGKILL would have left after rows lines: no end of any kind, the last line torn.
func asKilled(t *testing.T, dir string, rows int) {
	t.Helper()
	edit := func(name string, change func(lines []string) string) {
		b, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte(change(strings.SplitAfter(string(b), "\n"))), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	edit(ledger.RowsFile, func(lines []string) string { return strings.Join(lines[:rows], "") + lines[rows][:40] })
	edit(ledger.EventsFile, func(lines []string) string {
		kept := ""
		for _, l := range lines {
			if !strings.Contains(l, `"kind":"peak"`) && !strings.Contains(l, `"kind":"end"`) {
				kept += l
			}
		}
		return kept
	})
	edit(ledger.ResourcesFile, func(lines []string) string { return strings.Join(lines[:len(lines)-2], "") })
	if err := os.Remove(filepath.Join(dir, ledger.LedgerFile)); err != nil {
		t.Fatal(err)
	}
}

func TestKilledRunGoesOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		e := &endpoint{t: t, answer: solver}
		defer e.serve(m)()
		o := options(t, m, 100)
		if _, err := Run(context.Background(), o); err != nil {
			t.Fatal(err)
		}
		asKilled(t, o.Out, 97)
		before := e.served.Load()
		o.Resume = true
		res, err := Run(context.Background(), o)
		if err != nil {
			t.Fatal(err)
		}
		if sent := e.served.Load() - before; sent != 4 {
			t.Errorf("%d requests were sent again, want the canary and 3", sent)
		}
		l := &res.Ledger
		if l.Segments != 2 || l.Counts.Completed != 100 || l.Counts.Duplicates != 0 || ExitCode(res, nil) != ExitAdmitted {
			t.Errorf("%d segments, %+v, %v", l.Segments, l.Counts, l.Admission.Why)
		}
		if failed := failedRules(t, o.Out); failed != "" {
			t.Errorf("rules that fail: %s", failed)
		}
		if got, want := eventsOf(t, o.Out), "start ready canary start torn_row ready canary peak end:finished"; got != want {
			t.Errorf("events %s, want %s", got, want)
		}
	})
}

func TestReplay(t *testing.T) {
	row := func(context, attempt int64, o ledger.Outcome) ledger.Row {
		return ledger.Row{Context: context, Attempt: attempt, Outcome: o, PromptTokens: ledger.Some(10), CompletionTokens: ledger.Some(1)}
	}
	rows := []ledger.Row{
		row(0, 1, ledger.OK),
		row(1, 1, ledger.HTTP5xx), row(1, 2, ledger.Interrupted),
		row(2, 1, ledger.HTTP4xx),
		row(3, 1, ledger.HTTP429), row(3, 2, ledger.HTTP429), row(3, 3, ledger.HTTP429),
		row(4, 1, ledger.Interrupted), row(4, 2, ledger.Interrupted), row(4, 3, ledger.Interrupted),
	}
	r := newRecords(6, 1)
	got, err := r.replay(func(yield func(ledger.Row, error) bool) {
		for _, row := range rows {
			if !yield(row, nil) {
				return
			}
		}
	}, 3)
	if want := (past{spent: 110, submitted: 5, completed: 1, failed: 2}); err != nil || !reflect.DeepEqual(got, want) || r.remaining() != 3 {
		t.Errorf("%+v, %d left, %v; want %+v", got, r.remaining(), err, want)
	}
	for _, want := range []struct {
		context int64
		rec     record
	}{{1, record{attempts: 2, tries: 1, state: taken}}, {4, record{attempts: 3, state: taken}}, {5, record{state: taken}}} {
		context, rec, ok := r.take(t.Context(), nil)
		if rec.state = taken; !ok || context != want.context || rec != want.rec {
			t.Errorf("context %d with %+v, want %d with %+v", context, rec, want.context, want.rec)
		}
	}
	if _, _, ok := r.take(t.Context(), nil); ok {
		t.Error("a fourth context was left")
	}
	stray := func(yield func(ledger.Row, error) bool) { yield(row(6, 1, ledger.OK), nil) }
	if _, err := newRecords(6, 1).replay(stray, 3); err == nil {
		t.Error("a row of a context beyond the run was taken")
	}
}

package record

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"cotenant/internal/observe"
)

// firstWith returns the first row that has launches, or hasn't.
func firstWith(rows []Row, launches bool) *Row {
	i := slices.IndexFunc(rows, func(r Row) bool { return (len(r.HostNS) > 0) == launches })
	return &rows[i]
}

// broken changes an example so that one rule fails and no other; files may then be changed on the disk.
var broken = []struct {
	rule, what string
	change     func(p *Plan, s []Segment, rows []Row) []Row
	files      func(t *testing.T, dir string)
}{
	{"I-PLAN", "more work than the sizes make", func(p *Plan, _ []Segment, rows []Row) []Row { p.Victims[0].Work++; return rows }, nil},
	{"I-PLAN", "another resource", func(p *Plan, _ []Segment, rows []Row) []Row { p.Aggressors[1].Resource = L2Bytes; return rows }, nil},
	{"I-PLAN", "cells of a mechanism that the host lacks", func(p *Plan, _ []Segment, rows []Row) []Row {
		p.Mechanisms[1].Verdict = observe.Unsupported
		return rows
	}, nil},
	{"I-ORDER", "two blocks changed places", func(_ *Plan, _ []Segment, rows []Row) []Row {
		a := firstWith(rows, true)
		for i := range rows {
			if rows[i].Cell != a.Cell && len(rows[i].HostNS) > 0 {
				a.Cell, rows[i].Cell = rows[i].Cell, a.Cell
				break
			}
		}
		return rows
	}, nil},
	{"I-ORDER", "a block left out", func(_ *Plan, _ []Segment, rows []Row) []Row { return slices.Delete(rows, 5, 6) }, nil},
	{"I-ROWS", "an event time missing", func(_ *Plan, _ []Segment, rows []Row) []Row {
		r := firstWith(rows, true)
		r.EventNS = r.EventNS[1:]
		return rows
	}, nil},
	{"I-ROWS", "slow launches left out", func(_ *Plan, _ []Segment, rows []Row) []Row {
		r := firstWith(rows, true)
		r.HostNS, r.EventNS = r.HostNS[:100], r.EventNS[:100]
		return rows
	}, nil},
	{"I-ROWS", "longer launches than the block", func(_ *Plan, _ []Segment, rows []Row) []Row {
		r := firstWith(rows, true)
		r.HostNS = append(Series{1_000_000_000}, r.HostNS[1:]...)
		return rows
	}, nil},
	{"I-ROWS", "another number of dropped launches", func(_ *Plan, _ []Segment, rows []Row) []Row { firstWith(rows, true).Dropped--; return rows }, nil},
	{"I-CLOCKS", "an event time longer than the host's", func(_ *Plan, _ []Segment, rows []Row) []Row {
		r := firstWith(rows, true)
		r.EventNS[3] = r.HostNS[3] + 10_000
		return rows
	}, nil},
	{"I-TIMES", "blocks that overlap", func(_ *Plan, _ []Segment, rows []Row) []Row { rows[7].BeganUS = rows[6].EndedUS - 1; return rows }, nil},
	{"I-SEGMENTS", "another GPU", func(_ *Plan, s []Segment, rows []Row) []Row { s[0].GPUName = "NVIDIA H100"; return rows }, nil},
	{"I-SEGMENTS", "no kernels", func(_ *Plan, s []Segment, rows []Row) []Row { s[0].Modules = []Module{}; return rows }, nil},
	{"I-CHECKS", "a wrong output", func(_ *Plan, s []Segment, rows []Row) []Row {
		s[0].Checks[0] = Check{"gemv", Fail, "row 3 is 4, want 5"}
		return rows
	}, nil},
	{"I-CHECKS", "nothing checked", func(_ *Plan, s []Segment, rows []Row) []Row { s[0].Checks = []Check{}; return rows }, nil},
	{"I-TORN", "a row without its end", nil, func(t *testing.T, dir string) {
		f, err := os.OpenFile(filepath.Join(dir, RowsFile), os.O_APPEND|os.O_WRONLY, 0)
		if err == nil {
			_, err = f.WriteString(`{"segment":1,"block":`)
		}
		if err != nil {
			t.Fatal(err)
		}
		f.Close()
	}},
	{"I-LEDGER", "a better percentile", nil, func(t *testing.T, dir string) {
		edit(t, dir, LedgerFile, `"percentile": "p50",`, `"percentile": "p51",`)
	}},
	{"I-LEDGER", "a claim more", nil, func(t *testing.T, dir string) {
		edit(t, dir, LedgerFile, `"does_not": [`, "\"does_not\": [\n    \"nothing\",")
	}},
	{"I-LEDGER", "a launch that took less", nil, func(t *testing.T, dir string) { edit(t, dir, RowsFile, `"host_ns":"27`, `"host_ns":"26`) }},
	{"I-LEDGER", "no ledger", nil, func(t *testing.T, dir string) {
		if err := os.Remove(filepath.Join(dir, LedgerFile)); err != nil {
			t.Fatal(err)
		}
	}},
}

func edit(t *testing.T, dir, name, from, to string) {
	t.Helper()
	path := filepath.Join(dir, name)
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	changed := strings.Replace(string(content), from, to, 1)
	if changed == string(content) {
		t.Fatalf("%s holds no %s", name, from)
	}
	if err := os.WriteFile(path, []byte(changed), 0o644); err != nil {
		t.Fatal(err)
	}
}

// A segment with another driver or other kernels than the first isn't of the same run.
func TestSegmentsDiffer(t *testing.T) {
	p := examplePlan()
	segments, rows := exampleRows(p)
	for _, change := range []func(*Segment){func(s *Segment) { s.Driver = "590.1" }, func(s *Segment) { s.Modules = []Module{{"interfere_sm80", "00"}} }} {
		second := segments[0]
		second.Segment = 2
		change(&second)
		dir := t.TempDir()
		write(t, dir, p, []Segment{segments[0], second}, rows)
		f, err := Load(dir)
		if err != nil {
			t.Fatal(err)
		}
		if failed := f.Verify().Failed(); len(failed) != 1 || failed[0].Rule != "I-SEGMENTS" {
			t.Errorf("%+v", failed)
		}
	}
}

// Each rule has fixtures that trip it and no other.
func TestRules(t *testing.T) {
	tripped := make(map[string]bool)
	for _, b := range broken {
		t.Run(b.rule+" "+b.what, func(t *testing.T) {
			dir := t.TempDir()
			p := examplePlan()
			segments, rows := exampleRows(p)
			if b.change != nil {
				rows = b.change(p, segments, rows)
			}
			write(t, dir, p, segments, rows)
			if b.files != nil {
				b.files(t, dir)
			}
			f, err := Load(dir)
			if err != nil {
				t.Fatal(err)
			}
			r := f.Verify()
			failed := r.Failed()
			if len(failed) != 1 || failed[0].Rule != b.rule || r.Holds || len(r.Establishes) > 0 {
				t.Errorf("failed %+v, holds %v, establishes %v", failed, r.Holds, r.Establishes)
			}
			tripped[b.rule] = true
		})
	}
	for _, r := range rules {
		if !tripped[r.id] {
			t.Errorf("no fixture for %s", r.id)
		}
	}
}

// A folder of two segments, the first cut off, holds; so does one that isn't complete.
func TestSegments(t *testing.T) {
	p := examplePlan()
	segments, rows := exampleRows(p)
	second := segments[0]
	second.Segment = 2
	for i := 30; i < len(rows); i++ {
		rows[i].Segment = 2
	}
	for _, n := range []int{len(rows), 50, 0} {
		dir := t.TempDir()
		write(t, dir, p, append(segments, second), rows[:n])
		f, err := Load(dir)
		if err != nil {
			t.Fatal(err)
		}
		if r := f.Verify(); !r.Holds {
			t.Errorf("%d rows: %+v", n, r.Failed())
		}
		if state := f.Ledger.State; (state == "complete") != (n == len(rows)) {
			t.Errorf("%d rows: %s", n, state)
		}
	}
}

// A plan whose parts don't fit each other isn't read.
func TestPlanCheck(t *testing.T) {
	for name, change := range map[string]func(*Plan){
		"cell":       func(p *Plan) { p.Cells[3].ID = "x" },
		"twice":      func(p *Plan) { p.Cells[1] = p.Cells[0] },
		"victim":     func(p *Plan) { p.Victims = p.Victims[1:] },
		"mechanism":  func(p *Plan) { p.Mechanisms = p.Mechanisms[1:] },
		"sampling":   func(p *Plan) { p.Sampling.MaxLaunches = 1 },
		"no time":    func(p *Plan) { p.Sampling.MaxMS = 0 },
		"kind":       func(p *Plan) { p.Aggressors[0].Kind = "loud" },
		"odd matrix": func(p *Plan) { p.Victims[0].GEMV[0][1] = 7 },
		"huge":       func(p *Plan) { p.Aggressors[2].Rounds = 1 << 30 },
		"version":    func(p *Plan) { p.SchemaVersion = 2 },
		"two alike":  func(p *Plan) { p.Aggressors[1].ID = p.Victims[0].ID },
		"upper case": func(p *Plan) { p.Aggressors[1].ID = "HBM" },
	} {
		p := examplePlan()
		change(p)
		if err := p.Check(); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

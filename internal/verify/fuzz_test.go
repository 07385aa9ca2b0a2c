package verify

import (
	"bytes"
	"path/filepath"
	"testing"

	"cotenant/internal/ledger"
)

// FuzzJudge puts a foreign line into a good run in place of one of its own: whatever it says, every rule answers.
func FuzzJudge(f *testing.F) {
	const dir = "testdata/good-100"
	for which, name := range []string{ledger.RowsFile, ledger.ResourcesFile, ledger.EventsFile} {
		lines := bytes.Split(bytes.TrimSpace(read(f, filepath.Join(dir, name))), []byte("\n"))
		if len(lines) < 3 {
			f.Fatalf("%s has %d lines", name, len(lines))
		}
		f.Add(uint8(which), lines[len(lines)/2])
	}
	base := readRun(f, dir)
	e, err := load(dir, Options{})
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, which uint8, line []byte) {
		r := *base
		switch which % 3 {
		case 0:
			var x ledger.Row
			if ledger.Unmarshal(line, &x) != nil || x.Check() != nil {
				return
			}
			r.rows = append([]ledger.Row{x}, base.rows[1:]...)
		case 1:
			var x ledger.Resource
			if ledger.Unmarshal(line, &x) != nil || x.Check() != nil {
				return
			}
			r.resources = append([]ledger.Resource{x}, base.resources[1:]...)
		case 2:
			var x ledger.Event
			if ledger.Unmarshal(line, &x) != nil || x.Check() != nil {
				return
			}
			r.events = append([]ledger.Event{x}, base.events[1:]...)
		}
		run := t.TempDir()
		r.writeFiles(t, run)
		folder, err := ledger.OpenFolder(run)
		if err != nil {
			t.Fatal(err)
		}
		g := *e
		g.folder = folder
		if g.actual, err = folder.Files(); err != nil {
			t.Fatal(err)
		}
		if g.compute() != nil {
			return
		}
		g.claimed, g.ledgerBytes = g.computed, marshal(t, g.computed)
		report := g.report()
		if len(report.Results) != len(Rules()) {
			t.Fatalf("%d results of %d rules", len(report.Results), len(Rules()))
		}
		for _, res := range report.Results {
			// What the ledger holds was computed from these very lines: no comparison with it may fail.
			switch res.Rule {
			case "R-COUNT-01", "R-TOK-02", "R-LAT-01", "R-RATE-01", "R-ORA-01", "R-SUM-01", "R-CLAIM-01", "R-CLAIM-02", "R-ADM-01", "R-FILE-01", "R-FILE-02":
				if res.Result == Fail {
					t.Fatalf("%s: %s", res.Rule, res.Detail)
				}
			}
		}
	})
}

// FuzzParkRecords: any bytes are read or refused, and a record's payload lies within them.
func FuzzParkRecords(f *testing.F) {
	f.Add([]byte(ledger.ParkMagic + "\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\x00\x00[]"))
	f.Add([]byte(ledger.ParkMagic + "torn"))
	f.Fuzz(func(t *testing.T, b []byte) {
		n := 0
		err := parkRecords(bytes.NewReader(b), func(payload []byte) {
			if n += 16 + len(payload); n > len(b) {
				t.Fatalf("records of %d bytes in a file of %d", n, len(b))
			}
		})
		if err == nil && !bytes.HasPrefix(b, []byte(ledger.ParkMagic)) {
			t.Error("a file without its head was read")
		}
	})
}

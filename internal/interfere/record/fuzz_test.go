package record

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
)

// exampleFiles fails where the corpus is empty: a fuzz target without seeds passes for nothing.
func exampleFiles(t testing.TB) map[string][]byte {
	t.Helper()
	files := make(map[string][]byte)
	for _, name := range []string{PlanFile, SegmentsFile, RowsFile, LedgerFile} {
		content, err := os.ReadFile(filepath.Join("testdata", "example", name))
		if err != nil || len(content) == 0 {
			t.Fatalf("the corpus: %v", err)
		}
		files[name] = content
	}
	return files
}

// FuzzFolder: whatever a folder holds, it is read or refused; what is read can be computed and judged.
func FuzzFolder(f *testing.F) {
	files := exampleFiles(f)
	p := examplePlan()
	p.Victims, p.Aggressors, p.Mechanisms = p.Victims[1:], p.Aggressors[2:], p.Mechanisms[:4]
	p.Cells = MakeCells(p)
	plan, err := Encode(p)
	if err != nil {
		f.Fatal(err)
	}
	row, _, _ := bytes.Cut(files[RowsFile], []byte{'\n'})
	row = append(row[:bytes.Index(row, []byte(`"host_ns":"`))+16], []byte(`","event_ns":"1","units":1,"units_us":1,"clocks":{}}`+"\n")...)
	f.Add(plan, files[SegmentsFile], row, []byte("{}"))
	f.Add(plan, []byte(nil), row[:len(row)/2], []byte(nil))
	f.Fuzz(func(t *testing.T, plan, segments, rows, ledger []byte) {
		in := map[string][]byte{PlanFile: plan, SegmentsFile: segments, RowsFile: rows}
		if len(ledger) > 0 {
			in[LedgerFile] = ledger
		}
		folder, err := parse(in)
		if err != nil {
			return
		}
		folder.Verify()
		l := folder.Compute()
		if _, err := Recommend(l, Objective{"p99", 1000}, "", ""); err != nil {
			t.Error(err)
		}
	})
}

// FuzzSeries: what is read is written again the same.
func FuzzSeries(f *testing.F) {
	for _, s := range []string{`""`, `"1 2 3"`, `"0"`, `"01"`, `" 1"`, `"1  2"`, `"-1"`, `"9223372036854775808"`, `[1]`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		var s Series
		if json.Unmarshal(data, &s) != nil {
			return
		}
		again, err := json.Marshal(s)
		var text string
		if err != nil || json.Unmarshal(data, &text) != nil && !bytes.Equal(data, []byte("null")) {
			t.Fatalf("%s: %v", data, err)
		}
		if want, _ := json.Marshal(text); !bytes.Equal(again, want) {
			t.Errorf("%s became %s", data, again)
		}
	})
}

// FuzzPublished: a public form is read or refused.
func FuzzPublished(f *testing.F) {
	files := exampleFiles(f)
	doc := Published{SchemaVersion: 1, Operation: PublishedOperation, Originals: []Original{{PlanFile, 1, "00"}},
		Documents: map[string]json.RawMessage{PlanFile: files[PlanFile], LedgerFile: files[LedgerFile], SegmentsFile: json.RawMessage("[]")}}
	content, err := json.Marshal(doc)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(content)
	f.Fuzz(func(t *testing.T, data []byte) {
		if folder, _, err := LoadPublished(data); err == nil {
			folder.Verify()
		}
	})
}

// FuzzObjective: what is accepted is positive.
func FuzzObjective(f *testing.F) {
	for _, s := range []string{"p99_us=500", "p99.9_ms=1", "p50_us=0", "p99=1", "=", "p99_us=1e3", "p95_us=1"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if o, err := ParseObjective(s); err == nil && o.NS <= 0 {
			t.Errorf("%q: %+v", s, o)
		}
	})
}

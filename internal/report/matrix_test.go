package report

import (
	"bytes"
	"errors"
	"html"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"cotenant/internal/interfere/record"
	"cotenant/internal/report/plot"
)

// matrixPageOf makes the page of dir, its guards being somebody else's to judge.
func matrixPageOf(t *testing.T, dir, objective string) (*Page, error) {
	t.Helper()
	f, err := record.Load(dir)
	if err != nil {
		t.Fatal(err)
	}
	return Interfere(f, f.Verify(), "test", objective)
}

// The numbers of an interference run's page are its ledger's, its plan's and its segments', by the same second reader.
func TestMatrixNumbers(t *testing.T) {
	p, err := matrixPageOf(t, matrix, "p99_us=150")
	if err != nil {
		t.Fatal(err)
	}
	f, err := record.Load(matrix)
	if err != nil {
		t.Fatal(err)
	}
	o, err := record.ParseObjective("p99_us=150")
	if err != nil {
		t.Fatal(err)
	}
	advice, err := record.Recommend(f.Ledger, o, "", "")
	if err != nil {
		t.Fatal(err)
	}
	flat := map[string]any{}
	for prefix, v := range map[string]any{"": f.Ledger, "p:": f.Plan, "s:": f.Segments, "r:": advice} {
		part := map[string]any{}
		flatten(t, part, v)
		for at, x := range part {
			flat[prefix+at] = x
		}
	}
	found := shownElement.FindAllStringSubmatch(string(p.HTML), -1)
	if len(found) != p.Numbers || len(found) < 1000 {
		t.Errorf("%d values found, the page says that it compared %d", len(found), p.Numbers)
	}
	ratios := 0
	for _, m := range found {
		at, unit, text := html.UnescapeString(m[1]), m[2], html.UnescapeString(m[4])
		want, ok := flat[at]
		switch {
		case strings.HasPrefix(at, "v:"):
		case !ok:
			t.Errorf("no document has %s", at)
		case want == nil:
			if strings.ContainsAny(text, "0123456789") {
				t.Errorf("%q for null at %s", text, at)
			}
		default:
			if n, ok := want.(float64); ok {
				if err := means(text, unit, n); err != nil {
					t.Errorf("%s: %v", at, err)
				}
			} else if text != want {
				t.Errorf("%q at %s, which is %v", text, at, want)
			}
		}
		if unit == unitRatio {
			ratios++
		}
	}
	if ratios < 40 {
		t.Errorf("only %d slowdowns", ratios)
	}
	if strings.Contains(string(p.HTML), f.Plan.GPUUUID) {
		t.Error("the page names the GPU's UUID")
	}
}

// A matrix whose rows or ledger were changed gets no page.
func TestMatrixRefused(t *testing.T) {
	for file, change := range map[string][2]string{
		record.LedgerFile:   {`"launches": 20884`, `"launches": 20885`},
		record.RowsFile:     {`"units":150`, `"units":151`},
		record.SegmentsFile: {`"result":"pass"`, `"result":"fail"`},
	} {
		dir := copyRun(t, matrix)
		path := filepath.Join(dir, file)
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		changed := bytes.Replace(data, []byte(change[0]), []byte(change[1]), 1)
		if bytes.Equal(changed, data) {
			t.Fatalf("%s has no %s", file, change[0])
		}
		if err := os.WriteFile(path, changed, 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := matrixPageOf(t, dir, ""); !errors.Is(err, ErrRefused) {
			t.Errorf("%s changed: %v", file, err)
		}
	}
	f, err := record.Load(matrix)
	if err != nil {
		t.Fatal(err)
	}
	judged := f.Verify()
	judged.Add(record.GuardRule, record.GuardTitle, record.Fail, "segment 1")
	if _, err := Interfere(f, judged, "test", ""); !errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), "I-GUARD") {
		t.Errorf("a guard that isn't proven: %v", err)
	}
	if _, err := matrixPageOf(t, matrix, "p98_us=1"); !errors.Is(err, ErrObjective) {
		t.Errorf("an objective that isn't one: %v", err)
	}
}

func TestPareto(t *testing.T) {
	list := []candidate{}
	for i, p := range []plot.Point{{X: 1, Y: 1}, {X: 2, Y: 2}, {X: 2, Y: 3}, {X: 3, Y: 2.5}, {X: 0.5, Y: 1.5}, {X: 1, Y: 1}} {
		list = append(list, candidate{index: i, at: p})
	}
	var got []int
	for _, c := range pareto(list) {
		got = append(got, c.index)
	}
	if !slices.Equal(got, []int{0, 5, 1, 3}) {
		t.Errorf("the front is %v", got)
	}
}

// spoiledMatrix is the example after a bad day: one cell void, one failed, one without clocks, and an end that never came. Its ledger is
// made again.
func spoiledMatrix(t *testing.T) string {
	t.Helper()
	dir := copyRun(t, matrix)
	f, err := record.Load(dir)
	if err != nil {
		t.Fatal(err)
	}
	rows := f.Rows[:len(f.Rows)-len(f.Rows)/3]
	for i := range rows {
		switch rows[i].Cell {
		case "decode-0.5b/hbm/streams":
			rows[i].Clocks.Throttle = []string{"hw_thermal_slowdown"}
		case "decode-0.5b/fma/priority":
			rows[i].HostNS, rows[i].EventNS, rows[i].Failure = record.Series{}, record.Series{}, hostile
		case "critical/prefill/streams":
			rows[i].Clocks.SMMHz, rows[i].Clocks.EnergyMJ = nil, nil
		case "critical/hbm/green:16": // too few launches for a p99
			rows[i].HostNS, rows[i].EventNS = rows[i].HostNS[:240], rows[i].EventNS[:240]
		}
	}
	data, err := record.EncodeLines(rows)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, record.RowsFile), data, 0o600); err != nil {
		t.Fatal(err)
	}
	if f, err = record.Load(dir); err != nil {
		t.Fatal(err)
	}
	if data, err = record.Encode(f.Compute()); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, record.LedgerFile), data, 0o600); err != nil {
		t.Fatal(err)
	}
	return dir
}

func TestSpoiledMatrix(t *testing.T) {
	p, err := matrixPageOf(t, spoiledMatrix(t), "")
	if err != nil {
		t.Fatal(err)
	}
	text := html.UnescapeString(string(p.HTML))
	for _, want := range []string{"A part of the matrix", ">void<", ">failed<", "not established", "hw_thermal_slowdown"} {
		if !strings.Contains(text, want) {
			t.Errorf("the page doesn't say %q", want)
		}
	}
	if strings.Contains(string(p.HTML), "<img") {
		t.Error("a failure's text became an element")
	}
	if found := otherNumber(string(p.HTML)); found != "" {
		t.Errorf("a number that isn't the ledger's: …%s…", found)
	}
}

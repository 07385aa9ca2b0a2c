package verify

import (
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"cotenant/internal/ledger"
)

// TestFormatPage keeps the lists of docs/formats/run.md equal to the code's; -update writes them.
func TestFormatPage(t *testing.T) {
	path := filepath.Join("..", "..", "docs", "formats", "run.md")
	page := string(read(t, path))
	var outcomes, series []string
	for _, o := range ledger.Outcomes() {
		outcomes = append(outcomes, "`"+string(o)+"`")
	}
	for _, s := range ledger.SeriesNames() {
		series = append(series, "`"+s+"`")
	}
	var rules, integrity strings.Builder
	integrity.WriteString("| id | of a ledger without its folder, holds if |\n|---|---|\n")
	for _, r := range IntegrityRules() {
		fmt.Fprintf(&integrity, "| %s | **%s.** %s |\n", r.ID, r.Title, r.Explain)
	}
	rules.WriteString("| id | holds if |")
	line := "\n|---|---|"
	for _, at := range Ladder() {
		fmt.Fprintf(&rules, " %s %d |", at.Contract, at.From)
		line += "---|"
	}
	rules.WriteString(" rests on |" + line + "---|\n")
	for _, r := range Rules() {
		fmt.Fprintf(&rules, "| %s | **%s.** %s |", r.ID, r.Title, r.Explain)
		for _, at := range Ladder() {
			fmt.Fprintf(&rules, " %s |", map[bool]string{true: "yes", false: "–"}[r.Asks(at.Contract, at.From)])
		}
		fmt.Fprintf(&rules, " %s |\n", strings.Join(r.After, ", "))
	}
	want := page
	for name, text := range map[string]string{"outcomes": strings.Join(outcomes, ", ") + ".\n", "series": strings.Join(series, ", ") + ".\n", "rules": rules.String(), "integrity": integrity.String()} {
		start, end := "<!-- "+name+" -->\n", "<!-- end -->"
		before, rest, ok := strings.Cut(want, start)
		_, after, ok2 := strings.Cut(rest, end)
		if !ok || !ok2 {
			t.Fatalf("no place for %s", name)
		}
		want = before + start + text + end + after
	}
	if *update {
		write(t, path, []byte(want))
		page = want
	}
	if page != want {
		t.Errorf("docs/formats/run.md isn't what the code has: go test ./internal/verify -run FormatPage -update")
	}
	l, err := ledger.ReadLedger(read(t, "testdata/good-100/ledger.json"))
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(page, l.FilesRoot) {
		t.Errorf("the page doesn't have the test vector's root %s", l.FilesRoot)
	}
	for _, c := range l.Claims {
		if !strings.Contains(page, "| `"+c.ID+"` | "+c.Statement+" |") {
			t.Errorf("the page doesn't have the claim %s", c.ID)
		}
	}
	for _, k := range ledger.EventKinds() {
		if !strings.Contains(page, "| `"+k+"` |") {
			t.Errorf("the page doesn't have the event %s", k)
		}
	}
	for _, k := range ledger.AdmissionCodes() {
		if !strings.Contains(page, "| `"+k+"` |") {
			t.Errorf("the page doesn't have the code %s", k)
		}
	}
	if info, err := os.Stat(path); err != nil || info.Size() < 10_000 {
		t.Errorf("the page is too short to be right: %v, %v", info, err)
	}
}

// TestMetricsPage: docs/metrics.md has each number of the ledger and each series of the server.
func TestMetricsPage(t *testing.T) {
	page := string(read(t, filepath.Join("..", "..", "docs", "metrics.md")))
	for _, part := range []any{ledger.Counts{}, ledger.Tokens{}, ledger.Times{}, ledger.Rates{}, ledger.Peaks{}, ledger.Samples{}, ledger.Oracle{}} {
		typ := reflect.TypeOf(part)
		for i := range typ.NumField() {
			name, _, _ := strings.Cut(typ.Field(i).Tag.Get("json"), ",")
			if !strings.Contains(page, "`"+name+"`") {
				t.Errorf("%s.%s isn't in docs/metrics.md", typ.Name(), name)
			}
		}
	}
	names := map[string]bool{}
	files, err := filepath.Glob("../server/*.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		for _, m := range seriesName.FindAllStringSubmatch(string(read(t, file)), -1) {
			names["cotenant_"+m[1]+m[2]+m[3]] = true
		}
	}
	if len(names) < 20 {
		t.Fatalf("only %d series were found in the server", len(names))
	}
	for name := range names {
		if !strings.Contains(page, "`"+name+"`") && !strings.Contains(page, "`"+name+"{") {
			t.Errorf("%s isn't in docs/metrics.md", name)
		}
	}
}

// seriesName finds the server's series in its source: written out, in the table of plain ones, or described by name.
var seriesName = regexp.MustCompile(`"cotenant_([a-z_]+[a-z])"|\{"([a-z_]+)", "[A-Z]|desc\("([a-z_]+)", "`)

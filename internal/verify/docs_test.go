package verify

import (
	"fmt"
	"os"
	"path/filepath"
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
	var rules strings.Builder
	rules.WriteString("| id | holds if | from contexts | rests on |\n|---|---|---|---|\n")
	for _, r := range Rules() {
		from := "every run"
		if r.From > 0 {
			from = fmt.Sprintf("%d", r.From)
		}
		fmt.Fprintf(&rules, "| %s | **%s.** %s | %s | %s |\n", r.ID, r.Title, r.Explain, from, strings.Join(r.After, ", "))
	}
	want := page
	for name, text := range map[string]string{"outcomes": strings.Join(outcomes, ", ") + ".\n", "series": strings.Join(series, ", ") + ".\n", "rules": rules.String()} {
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

package fak

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write the table of docs/formats/predecessor.md")

// TestFormatPage keeps the page's table equal to the rules, and its gaps to those that documents get.
func TestFormatPage(t *testing.T) {
	path := filepath.Join("..", "..", "..", "docs", "formats", "predecessor.md")
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	page := string(b)
	var table strings.Builder
	table.WriteString("| schema, rung | rule or check | holds if |\n|---|---|---|\n| all | F-TYPE-01 | members have the types that their decoder reads |\n")
	for _, k := range kinds() {
		name := fmt.Sprintf("`%s`, %s", k.schema, k.rung)
		for _, r := range k.rules {
			from := ""
			if r.from > 0 {
				from = fmt.Sprintf(" (from %d)", r.from)
			}
			fmt.Fprintf(&table, "| %s | %s | %s%s |\n", name, r.id, r.title, from)
		}
		if k.rung == rungAPI {
			continue // its checks are the spine's
		}
		for _, c := range k.checks {
			fmt.Fprintf(&table, "| %s | %s | %s |\n", name, c.id, c.title)
		}
	}
	const start, end = "<!-- rules -->\n", "<!-- end -->"
	before, rest, ok := strings.Cut(page, start)
	_, after, ok2 := strings.Cut(rest, end)
	if !ok || !ok2 {
		t.Fatal("no place for the rules")
	}
	want := before + start + table.String() + end + after
	if *update {
		if err := os.WriteFile(path, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
		page = want
	}
	if page != want {
		t.Error("docs/formats/predecessor.md isn't what the code has: go test ./internal/verify/fak -run FormatPage -update")
	}
	for _, name := range files(t) {
		for _, g := range judge(t, document(t, name, nil)).Gaps {
			if !strings.Contains(page, "`"+g.Name+"`") {
				t.Errorf("the page doesn't have the gap %s", g.Name)
			}
		}
	}
}

package container

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write the tables of docs/formats/container.md")

// The document's tables are those of the code.
func TestDocument(t *testing.T) {
	const path = "../../docs/formats/container.md"
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var ruleTable, imageTable strings.Builder
	ruleTable.WriteString("| rule | wanted | because |\n|---|---|---|\n")
	for _, r := range Rules() {
		fmt.Fprintf(&ruleTable, "| `%s` | %s | %s |\n", r.ID, r.Want, r.Why)
	}
	imageTable.WriteString("| image | platform | manifest | why |\n|---|---|---|---|\n")
	for _, i := range Reviewed() {
		fmt.Fprintf(&imageTable, "| `%s` | %s | `%s` | %s |\n", i.Name, i.Platform, i.Digest, i.Why)
	}
	text := replaced(t, replaced(t, string(b), "<!-- rules -->\n", ruleTable.String()), "<!-- images -->\n", imageTable.String())
	if *update {
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	} else if text != string(b) {
		t.Errorf("%s isn't up to date: go test ./internal/container -run TestDocument -update", path)
	}
}

// replaced puts a table after a mark, for the one that is there.
func replaced(t *testing.T, text, mark, table string) string {
	t.Helper()
	before, after, ok := strings.Cut(text, mark)
	if !ok {
		t.Fatalf("no %s", mark)
	}
	for strings.HasPrefix(after, "|") {
		_, after, _ = strings.Cut(after, "\n")
	}
	return before + mark + table + after
}

// Each image is pinned to a platform's manifest, once, and its reference is read back as what it is.
func TestReviewedImages(t *testing.T) {
	seen := make(map[string]bool)
	for _, i := range Reviewed() {
		name, digest, ok := parseImage(i.Reference())
		if !ok || name != i.Name || digest != i.Digest || !strings.HasPrefix(i.Platform, "linux/") || i.Why == "" || seen[i.Digest] {
			t.Errorf("%+v: read back as %s %s", i, name, digest)
		}
		seen[i.Digest] = true
	}
	if _, ok := defaultImage(reviewed); !ok {
		t.Errorf("no image for %s", platform())
	}
}

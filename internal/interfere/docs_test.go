package interfere

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"

	"cotenant/internal/interfere/record"
)

var updateDocs = flag.Bool("update-docs", false, "write the tables of evidence into the documentation again")

// published reads evidence of the repository.
func published(t *testing.T, name string) *record.Folder {
	t.Helper()
	packed, err := os.ReadFile(filepath.Join("..", "..", "evidence", "interfere", "h200-580.159.04", name, "evidence.json.zst"))
	if err != nil {
		t.Fatal(err)
	}
	z, err := zstd.NewReader(nil)
	if err != nil {
		t.Fatal(err)
	}
	defer z.Close()
	content, err := z.DecodeAll(packed, nil)
	if err != nil {
		t.Fatal(err)
	}
	r, f, err := VerifyPublished(content)
	if err != nil || !r.Holds {
		t.Fatalf("%s: %v %+v", name, err, r)
	}
	return f
}

// figures writes one row a mechanism: a victim's p99 alone and beside aggressors, by the host's clock, and what each aggressor keeps.
func figures(f *record.Folder, victim string, mechanisms map[string]string, order, aggressors []string) string {
	cells := make(map[string]*record.CellResult)
	for i := range f.Ledger.Cells {
		cells[f.Ledger.Cells[i].ID] = &f.Ledger.Cells[i]
	}
	p99 := func(c *record.CellResult) string {
		if c == nil {
			return "–"
		}
		q := c.Host.Of("p99")
		if q.Value == nil {
			return "not established"
		}
		return fmt.Sprintf("%d", (*q.Value+500)/1000)
	}
	var b strings.Builder
	b.WriteString("| how it is shared | alone there |")
	for _, a := range aggressors {
		fmt.Fprintf(&b, " beside `%s` | it keeps |", a)
	}
	b.WriteString("\n|---|---|" + strings.Repeat("---|---|", len(aggressors)) + "\n")
	for _, m := range order {
		fmt.Fprintf(&b, "| %s | %s |", mechanisms[m], p99(cells[record.CellID(victim, "", m, false)]))
		for _, a := range aggressors {
			c := cells[record.CellID(victim, a, m, false)]
			kept := "–"
			if c != nil && c.Neighbour.KeptPPM != nil {
				kept = fmt.Sprintf("%d %%", (*c.Neighbour.KeptPPM+5000)/10_000)
			}
			fmt.Fprintf(&b, " %s | %s |", p99(c), kept)
		}
		b.WriteString("\n")
	}
	return b.String()
}

var named = map[string]string{record.Whole: "not shared", record.Sequential: "one stream, in turns", record.Streams: "plain streams", record.Priority: "streams with priorities",
	"green:8": "Green Context, 8 SMs", "green:16": "Green Context, 16 SMs", "green:24": "Green Context, 24 SMs", "green:32": "Green Context, 32 SMs", "green:48": "Green Context, 48 SMs",
	"green:64": "Green Context, 64 SMs", "green:96": "Green Context, 96 SMs", record.Processes: "two processes, time-sliced", record.MPS: "MPS", "mps_percent:10": "MPS, 10 %",
	"mps_percent:25": "MPS, 25 %", "mps_percent:50": "MPS, 50 %", record.MPSBelow: "MPS, client priorities"}

// What the documentation says is what the evidence in the repository holds.
func TestDocumentedFigures(t *testing.T) {
	quick, sweep := published(t, "quick"), published(t, "sweep")
	short := []string{record.Whole, record.Streams, record.Priority, "green:16", "green:32", "green:64", record.Processes, record.MPS, "mps_percent:25"}
	all := []string{record.Whole, record.Sequential, record.Streams, record.Priority, "green:16", "green:32", "green:64", record.Processes, record.MPS, "mps_percent:25", record.MPSBelow}
	splits := []string{record.Whole, record.Streams, "green:8", "green:16", "green:24", "green:32", "green:48", "green:64", "green:96", "mps_percent:10", "mps_percent:25", "mps_percent:50"}
	for _, d := range []struct{ file, mark, table string }{
		{"README.md", "quick", figures(quick, "decode-0.5b", named, short, []string{"gemm", "hbm"})},
		{"docs/interfere.md", "decode", figures(quick, "decode-0.5b", named, all, []string{"gemm", "fma", "hbm", "l2"})},
		{"docs/interfere.md", "sweep", figures(sweep, "decode-8b", named, splits, []string{"gemm", "hbm", "copy"})},
		{"docs/interfere.md", "critical", figures(quick, "critical", named, all, []string{"gemm", "fma", "hbm", "l2", "persistent"})},
	} {
		path := filepath.Join("..", "..", d.file)
		content, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		begin, end := "<!-- evidence: "+d.mark+" -->\n", "<!-- end -->"
		before, rest, ok := strings.Cut(string(content), begin)
		table, after, ok2 := strings.Cut(rest, end)
		if !ok || !ok2 {
			t.Errorf("%s has no place for table %s", d.file, d.mark)
			continue
		}
		if table == d.table {
			continue
		}
		if !*updateDocs {
			t.Errorf("%s, table %s isn't what the evidence holds: go test -run TestDocumentedFigures -update-docs; want\n%s", d.file, d.mark, d.table)
			continue
		}
		if err := os.WriteFile(path, []byte(before+begin+d.table+end+after), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

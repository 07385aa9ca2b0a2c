package report

import (
	"errors"
	"fmt"
	"html"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"cotenant/internal/compare"
	"cotenant/internal/ledger"
	"cotenant/internal/verify"
)

// declaredRun is a copy of the good run that says what it is of, the i-th of its kind.
func declaredRun(t *testing.T, server string, i int64) string {
	t.Helper()
	dir := copyRun(t, good)
	rewrite(t, dir, func(c *ledger.Config) {
		c.RunID = fmt.Sprintf("%032x", 1000+i)
		c.StartedWallUS += i * 100_000_000
		c.Declared = ledger.Declared{Server: server, Hardware: "a laptop"}
	}, func(*ledger.Row) bool { return true }, func(*ledger.Resource) {}, `"wall_us":17960000`, fmt.Sprintf(`"wall_us":1796000%d`, i))
	return dir
}

func TestCompare(t *testing.T) {
	a, b := declaredRun(t, "one", 1), declaredRun(t, "</h1><img src=x>", 2)
	p, err := Compare(a, b, "server", "test")
	if err != nil {
		t.Fatal(err)
	}
	c, err := compare.Folders(a, b, "server", verify.Options{})
	if err != nil {
		t.Fatal(err)
	}
	flat := map[string]any{}
	part := map[string]any{}
	flatten(t, part, c)
	for at, x := range part {
		flat["c:"+at] = x
	}
	for prefix, dir := range map[string]string{"": a, "a:": a, "b:": b} {
		data, err := os.ReadFile(filepath.Join(dir, ledger.LedgerFile))
		if err != nil {
			t.Fatal(err)
		}
		l, err := ledger.ReadLedger(data)
		if err != nil {
			t.Fatal(err)
		}
		part := map[string]any{}
		flatten(t, part, l)
		for at, x := range part {
			flat[prefix+at] = x
		}
	}
	found := shownElement.FindAllStringSubmatch(string(p.HTML), -1)
	ratios := 0
	for _, m := range found {
		want, ok := flat[html.UnescapeString(m[1])]
		if !ok {
			t.Errorf("no document has %s", m[1])
			continue
		}
		if n, ok := want.(float64); ok {
			if err := means(html.UnescapeString(m[4]), m[2], n); err != nil {
				t.Errorf("%s: %v", m[1], err)
			}
		}
		if strings.HasPrefix(m[2], unitRatio) {
			ratios++
		}
	}
	if len(found) != p.Numbers || ratios < len(c.Ratios) || ratios == 0 {
		t.Errorf("%d values of %d, %d ratios of %d", len(found), p.Numbers, ratios, len(c.Ratios))
	}
	if text := string(p.HTML); strings.Contains(text, "<img") || strings.Contains(text, a) {
		t.Error("the page has a hostile element, or says where a run lies")
	}
	if found := otherNumber(string(p.HTML)); found != "" {
		t.Errorf("a number that isn't a document's: …%s…", found)
	}
}

func TestCompareRefuses(t *testing.T) {
	a, b := declaredRun(t, "one", 1), declaredRun(t, "two", 2)
	if _, err := Compare(a, b, "model", "test"); !errors.Is(err, ErrUnlike) || !strings.Contains(err.Error(), "server: the runs differ in it") {
		t.Errorf("along another axis: %v", err)
	}
	if _, err := Compare(a, a, "server", "test"); !errors.Is(err, ErrUnlike) {
		t.Errorf("a run with itself: %v", err)
	}
	if _, err := Compare(a, b, "weather", "test"); !errors.Is(err, ErrAxis) {
		t.Errorf("along no axis: %v", err)
	}
	if err := os.Truncate(filepath.Join(b, ledger.RowsFile), 100); err != nil {
		t.Fatal(err)
	}
	if _, err := Compare(a, b, "server", "test"); !errors.Is(err, ErrRefused) {
		t.Errorf("a torn run: %v", err)
	}
}

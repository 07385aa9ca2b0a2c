package report

import (
	"bytes"
	"errors"
	"html"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"cotenant/internal/ledger"
)

const (
	good   = "../verify/testdata/good-100"
	matrix = "../interfere/record/testdata/example"
)

func page(t *testing.T, dir string) *Page {
	t.Helper()
	p, err := Run(dir, "test")
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// copyRun is a copy of a run folder that a test may spoil.
func copyRun(t *testing.T, from string) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.CopyFS(dir, os.DirFS(from)); err != nil {
		t.Fatal(err)
	}
	return dir
}

func TestRefused(t *testing.T) {
	dir := copyRun(t, good)
	path := filepath.Join(dir, ledger.LedgerFile)
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, bytes.Replace(data, []byte(`"completed":100`), []byte(`"completed":101`), 1), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Run(dir, "test"); !errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), "R-COUNT-01") {
		t.Errorf("a changed ledger: %v", err)
	}
	if _, err := Run(t.TempDir(), "test"); !errors.Is(err, ErrUnreadable) {
		t.Errorf("an empty folder: %v", err)
	}
}

// rewrite changes the documents of a copied run and makes its ledger again, as a program would that is honest about what it was told.
func rewrite(t *testing.T, dir string, config func(*ledger.Config), row func(*ledger.Row) bool, resource func(*ledger.Resource), times ...string) {
	t.Helper()
	folder, err := ledger.OpenFolder(dir)
	if err != nil {
		t.Fatal(err)
	}
	var rows, resources, events bytes.Buffer
	line := func(b *bytes.Buffer, v any) {
		data, err := ledger.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		b.Write(append(data, '\n'))
	}
	for r, err := range folder.Rows() {
		if err != nil {
			t.Fatal(err)
		}
		if row(&r) {
			line(&rows, r)
		}
	}
	for r, err := range folder.Resources() {
		if err != nil {
			t.Fatal(err)
		}
		resource(&r)
		line(&resources, r)
	}
	old := folder.ConfigSHA256
	config(&folder.Config)
	c, err := ledger.Marshal(folder.Config)
	if err != nil {
		t.Fatal(err)
	}
	write := func(name string, data []byte) {
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	lines, err := os.ReadFile(filepath.Join(dir, ledger.EventsFile))
	if err != nil {
		t.Fatal(err)
	}
	write(ledger.ConfigFile, c)
	write(ledger.RowsFile, rows.Bytes())
	write(ledger.ResourcesFile, resources.Bytes())
	if folder, err = ledger.OpenFolder(dir); err != nil {
		t.Fatal(err)
	}
	text := strings.ReplaceAll(string(lines), old, folder.ConfigSHA256)
	events.WriteString(strings.NewReplacer(times...).Replace(text))
	write(ledger.EventsFile, events.Bytes())
	l, err := folder.Summarize()
	if err != nil {
		t.Fatal(err)
	}
	data, err := ledger.Marshal(l)
	if err != nil {
		t.Fatal(err)
	}
	write(ledger.LedgerFile, data)
}

const hostile = "</script><img src=x onerror=alert(1)>'\"&lt;{{.}}\u202e\u0007"

// hostileRun is a run whose every free text is an attack, and which verifies.
func hostileRun(t *testing.T) string {
	dir := copyRun(t, good)
	rewrite(t, dir, func(c *ledger.Config) {
		c.Model, c.Workload.Name, c.Nonce, c.Client.Version, c.Client.Revision = hostile, hostile, hostile, hostile, hostile
	}, func(r *ledger.Row) bool {
		if r.Outcome != ledger.OK {
			r.Error = hostile
		}
		r.Task = "</td><svg onload=alert(2)>"
		return true
	}, func(r *ledger.Resource) {
		for i := range r.Series {
			if r.Series[i].Source != "" {
				r.Series[i].Source = hostile
			}
		}
		if r.Server == nil {
			r.ServerReason = hostile
		}
	})
	return dir
}

func TestHostileTexts(t *testing.T) {
	p := string(page(t, hostileRun(t)).HTML)
	for _, bad := range []string{"<img", "<svg onload", "onerror=alert(1)>'", "\u202e", "\u0007"} {
		if strings.Contains(p, bad) {
			t.Errorf("the page has %q", bad)
		}
	}
	if n := strings.Count(p, "</script>"); n != 2 {
		t.Errorf("%d script elements end on the page, it has 2", n)
	}
}

// A run that isn't admitted is shown as such; a run without any result too.
func TestNotAdmitted(t *testing.T) {
	nothing := func(*ledger.Config) {}
	same := func(*ledger.Resource) {}
	short := copyRun(t, good)
	rewrite(t, short, nothing, func(r *ledger.Row) bool { return r.Context != 7 }, same)
	empty := copyRun(t, good)
	rewrite(t, empty, nothing, func(r *ledger.Row) bool { return false }, same)
	for name, dir := range map[string]string{"a context is missing": short, "no row": empty} {
		p, err := Run(dir, "test")
		if err != nil {
			// Rules on the rows themselves may fail too: then there is no page, for that reason.
			if name == "no row" && errors.Is(err, ErrRefused) {
				continue
			}
			t.Errorf("%s: %v", name, err)
			continue
		}
		text := html.UnescapeString(string(p.HTML))
		for _, want := range []string{"Not admitted", "Nothing is established", whyWords[ledger.WhyIncomplete], "R-CTX-01", "not claimed"} {
			if !strings.Contains(text, want) {
				t.Errorf("%s: the page doesn't say %q", name, want)
			}
		}
	}
}

func TestWords(t *testing.T) {
	for _, code := range ledger.AdmissionCodes() {
		if whyText(code) == "" {
			t.Errorf("no words for %s", code)
		}
	}
	for _, o := range ledger.Outcomes() {
		if outcomeText(string(o)) == "" {
			t.Errorf("no words for %s", o)
		}
	}
}

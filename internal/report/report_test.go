package report

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"html"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"cotenant/internal/compare"
	"cotenant/internal/interfere/record"
	"cotenant/internal/ledger"
	"cotenant/internal/report/plot"
	"cotenant/internal/verify"
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

var shownElement = regexp.MustCompile(`<(?:span|bdi|tspan) class="[a-z]+" data-at="([^"]*)" data-u="([^"]*)" data-v="([^"]*)"[^>]*>([^<]*)<`)

// Every number on a page is the ledger's, by a second reader: its own idea of what an element looks like, of where a place is, and of what a
// text means.
func TestNumbersAreTheLedgers(t *testing.T) {
	for _, dir := range []string{good, "../verify/testdata/smollm2-100"} {
		p := page(t, dir)
		data, err := os.ReadFile(filepath.Join(dir, ledger.LedgerFile))
		if err != nil {
			t.Fatal(err)
		}
		l, err := ledger.ReadLedger(data)
		if err != nil {
			t.Fatal(err)
		}
		flat := map[string]any{}
		flatten(t, flat, l)
		found := shownElement.FindAllStringSubmatch(string(p.HTML), -1)
		if len(found) != p.Numbers || len(found) < 400 {
			t.Errorf("%s: %d values found, the page says that it compared %d", dir, len(found), p.Numbers)
		}
		numbers := 0
		for _, m := range found {
			at, unit, text := html.UnescapeString(m[1]), m[2], html.UnescapeString(m[4])
			if strings.HasPrefix(at, "v:") {
				continue
			}
			want, ok := flat[at]
			if !ok {
				t.Errorf("%s: the ledger has nothing at %s", dir, at)
				continue
			}
			switch want := want.(type) {
			case nil:
				if strings.ContainsAny(text, "0123456789") {
					t.Errorf("%s: %q for null at %s", dir, text, at)
				}
			case float64:
				numbers++
				if err := means(text, unit, want); err != nil {
					t.Errorf("%s: %s: %v", dir, at, err)
				}
			case string:
				if text != want {
					t.Errorf("%s: %q at %s, the ledger has %q", dir, text, at, want)
				}
			}
		}
		if numbers < 250 {
			t.Errorf("%s: only %d numbers", dir, numbers)
		}
	}
}

// flatten lists v's scalars by JSON pointer.
func flatten(t *testing.T, into map[string]any, v any) {
	t.Helper()
	data, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	var root any
	if err := json.Unmarshal(data, &root); err != nil {
		t.Fatal(err)
	}
	var walk func(string, any)
	walk = func(at string, v any) {
		switch v := v.(type) {
		case map[string]any:
			for k, x := range v {
				walk(at+"/"+k, x)
			}
		case []any:
			for i, x := range v {
				walk(fmt.Sprintf("%s/%d", at, i), x)
			}
		default:
			into[at] = v
		}
	}
	walk("", root)
}

// means reports where text isn't want in unit, within what its last digit leaves open.
func means(text, unit string, want float64) error {
	if unit == unitWall {
		return nil // written by one call of the standard library
	}
	unit, round := roundingOf(unit)
	if unit == unitRatio {
		text, unit = strings.TrimSuffix(text, "×"), unitPerE6
	}
	number, suffix, _ := strings.Cut(strings.ReplaceAll(strings.ReplaceAll(text, ",", ""), "−", "-"), " ")
	factor, ok := map[string]float64{
		unitCount + "": 1, unitUS + "µs": 1, unitUS + "ms": 1e3, unitUS + "s": 1e6,
		unitBytes + "B": 1, unitBytes + "KiB": 1 << 10, unitBytes + "MiB": 1 << 20, unitBytes + "GiB": 1 << 30, unitPPM + "%": 1e4, unitPerE6 + "": 1e6,
		unitNS + "ns": 1, unitNS + "µs": 1e3, unitNS + "ms": 1e6, unitUJ + "µJ": 1, unitUJ + "mJ": 1e3, unitUJ + "J": 1e6,
		unitByteS + "GB/s": 1e9, unitByteS + "TB/s": 1e12, unitOpS + "GFLOP/s": 1e9, unitOpS + "TFLOP/s": 1e12,
		unitMW + "W": 1e3, unitMJ + "J": 1e3, unitMHz + "MHz": 1,
	}[unit+suffix]
	if !ok {
		return fmt.Errorf("%q isn't of unit %s", text, unit)
	}
	v, err := strconv.ParseFloat(number, 64)
	if err != nil {
		return err
	}
	_, fraction, _ := strings.Cut(number, ".")
	last := math.Pow(10, -float64(len(fraction))) * factor
	switch diff := v*factor - want; round {
	case upward:
		if diff < -1e-3 || diff > last {
			return fmt.Errorf("%q for at most %v", text, want)
		}
		return nil
	case downward:
		if diff > 1e-3 || diff < -last {
			return fmt.Errorf("%q for at least %v", text, want)
		}
		return nil
	}
	if math.Abs(v*factor-want) > last/2+1e-6 {
		return fmt.Errorf("%q for %v", text, want)
	}
	return nil
}

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

// No digit stands on a page but in values that are compared, in ticks of axes, and in names that a person gave.
func TestNoOtherNumbers(t *testing.T) {
	m, err := matrixPageOf(t, matrix, "p99_us=150")
	if err != nil {
		t.Fatal(err)
	}
	for name, html := range map[string][]byte{"soak": page(t, good).HTML, "interfere": m.HTML} {
		if found := otherNumber(string(html)); found != "" {
			t.Errorf("%s: a number that isn't the ledger's: …%s…", name, found)
		}
	}
}

// otherNumber is where the first stands.
func otherNumber(p string) string {
	p = shownElement.ReplaceAllString(p, "<")
	for _, cut := range []string{`(?s)<style>.*?</style>`, `(?s)<script .*?</script>`, `(?s)<head>.*?</head>`, `(?s)<g class="axis".*?</g>`, `(?s)<title\b.*?</title>`, `(?s)<desc .*?</desc>`, `<[^>]*>`} {
		p = regexp.MustCompile(cut).ReplaceAllString(p, " ")
	}
	p = html.UnescapeString(p)
	for _, name := range []string{"p50", "p90", "p95", "p99.9", "p99", "99 % upper bound", "95 % interval", "SHA-256", "status 200", "near 1×", " 1× ", "100 % nobody", "bf16", "the L2,"} {
		p = strings.ReplaceAll(p, name, " ")
	}
	if i := strings.IndexAny(p, "0123456789"); i >= 0 {
		return p[max(0, i-80):min(len(p), i+40)]
	}
	return ""
}

// A page on which any one value was changed is not handed out.
func TestChangedPageIsFound(t *testing.T) {
	r, err := openRun(good, "a")
	if err != nil {
		t.Fatal(err)
	}
	docs := documents{"a": r.doc, "v": r.verdict}
	p := page(t, good).HTML
	if _, err := check(p, docs); err != nil {
		t.Fatal(err)
	}
	places := shownElement.FindAllSubmatchIndex(p, -1)
	for i := 0; i < len(places); i += 7 {
		m := places[i]
		for _, group := range []int{3, 4} { // the attribute with the value, and the text
			from, to := m[2*group], m[2*group+1]
			changed := slicesReplace(p, from, to, "7")
			if string(p[from:to]) == "7" {
				changed = slicesReplace(p, from, to, "8")
			}
			if _, err := check(changed, docs); err == nil {
				t.Fatalf("value %d, %s: a change isn't found", i, p[m[0]:m[1]])
			}
		}
	}
	other := bytes.Replace(r.doc.data, []byte(`"completed":100`), []byte(`"completed":101`), 1)
	doc, err := newDocument("a", other)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := check(p, documents{"a": doc, "v": r.verdict}); err == nil || !strings.Contains(err.Error(), "/counts/completed") {
		t.Errorf("a page of another ledger passes: %v", err)
	}
}

func slicesReplace(p []byte, from, to int, with string) []byte {
	return append(append(append([]byte{}, p[:from]...), with...), p[to:]...)
}

// Charts can't be of other rows than the ledger's numbers.
func TestTraceFits(t *testing.T) {
	folder, err := ledger.OpenFolder(good)
	if err != nil {
		t.Fatal(err)
	}
	data, err := folder.ReadFile(ledger.LedgerFile)
	if err != nil {
		t.Fatal(err)
	}
	for name, spoil := range map[string]func(*ledger.Ledger){
		"a percentile":      func(l *ledger.Ledger) { l.Times.TTFT.P95.ValueUS.V++ },
		"a maximum":         func(l *ledger.Ledger) { l.Times.Latency.MaxUS.V++ },
		"a count":           func(l *ledger.Ledger) { l.Times.InterToken.N++ },
		"the peak":          func(l *ledger.Ledger) { l.Peaks.InFlight++ },
		"a series' maximum": func(l *ledger.Ledger) { l.Series[0].Max.V++ },
	} {
		l, err := ledger.ReadLedger(data)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := readTrace(folder, &l); err != nil {
			t.Fatal(err)
		}
		spoil(&l)
		if _, err := readTrace(folder, &l); err == nil {
			t.Errorf("%s that isn't the rows' passes", name)
		}
	}
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

func TestQuantity(t *testing.T) {
	for _, c := range []struct {
		n    int64
		unit string
		want string
	}{
		{0, unitUS, "0 s"}, {7, unitUS, "7 µs"}, {999, unitUS, "999 µs"}, {1000, unitUS, "1.00 ms"}, {54_712, unitUS, "54.7 ms"}, {999_949, unitUS, "1,000 ms"},
		{5_471_234, unitUS, "5.47 s"}, {5_471_234, unitUSUp, "5.48 s"}, {599_000_000, unitUS, "599 s"}, {754_000_000, unitUS, "12 min 34 s"}, {-1500, unitUS, "−1.50 ms"},
		{40_000_000_000, unitUS, "11 h 06 min"}, {850, unitNS, "850 ns"}, {1_234, unitNS, "1.23 µs"}, {1_231, unitNSUp, "1.24 µs"}, {1_239, "ns_down", "1.23 µs"}, {-1_231, "ns_down", "−1.24 µs"}, {-1_239, unitNSUp, "−1.23 µs"},
		{0, unitBytes, "0 B"}, {1023, unitBytes, "1,023 B"}, {16_778_917, unitBytes, "16.0 MiB"}, {940_000, unitPPM, "94.0 %"}, {1_000_000, unitPPM, "100 %"}, {12, unitPPM, "0.00120 %"},
		{4_253_703_766, unitPerE6, "4,254"}, {29_521_581, unitPerE6, "29.5"}, {1_234_567, unitCount, "1,234,567"}, {-3, unitCount, "−3"},
		{700_123, unitMW, "700 W"}, {567_000, unitMJ, "567 J"}, {1_567_000, unitMJ, "1.57 kJ"}, {1_500_000, unitRatio, "1.50×"},
		{1_796_000_000_000_000, unitWall, "2026-11-30 00:53:20 UTC"},
	} {
		got, err := quantity(c.n, c.unit)
		if err != nil || got != c.want {
			t.Errorf("%d in %s is %q (%v), want %q", c.n, c.unit, got, err, c.want)
		}
	}
}

package report

import (
	"bytes"
	"encoding/json"
	"fmt"
	"html"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"cotenant/internal/ledger"
)

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

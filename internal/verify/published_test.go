package verify

import (
	"crypto/ed25519"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"cotenant/internal/ledger"
)

// public writes the published form of a run: whole, or a sample of rows.
func public(t testing.TB, dir string, sample int64) string {
	t.Helper()
	out := filepath.Join(t.TempDir(), "public")
	o := ledger.PublishOptions{OpenSecret: true, MaxRows: 4 << 20}
	if sample > 0 {
		o.MaxRows, o.Sample = 0, sample
	}
	if _, err := ledger.Publish(dir, out, o); err != nil {
		t.Fatal(err)
	}
	return out
}

func judged(t testing.TB, dir string) *Report {
	t.Helper()
	r, err := Dir(dir, Options{})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func failures(r *Report) string {
	var ids []string
	for _, f := range r.Failed() {
		ids = append(ids, f.Rule)
	}
	return strings.Join(ids, " ")
}

// runs that are published in the tests: a recorded one, and one of several turns that isn't a rung.
func publishedRuns(t testing.TB) map[string]string {
	t.Helper()
	control := t.TempDir()
	simulateControlled(t, smallControlled, 16).write(t, control, nil)
	runs := map[string]string{"testdata/smollm2-100": "", control: "R-RUNG-01"}
	for _, kind := range []string{"open", "tenants", "paired"} {
		dir := t.TempDir()
		simulateLoad(t, kind).write(t, dir, nil)
		runs[dir] = ""
	}
	return runs
}

func TestPublishedWholeIsRecomputed(t *testing.T) {
	for dir, failed := range publishedRuns(t) {
		out := public(t, dir, 0)
		r := judged(t, out)
		if failures(r) != failed || r.Grade != GradeRecomputed {
			t.Errorf("%s: grade %s, failed %s", dir, r.Grade, failures(r))
		}
		if failed == "" && len(r.Establishes) != len(judged(t, dir).Establishes) {
			t.Errorf("%s: the published form establishes %d claims, the run %d", dir, len(r.Establishes), len(judged(t, dir).Establishes))
		}
		private, err := ledger.OpenFolder(dir)
		if err != nil {
			t.Fatal(err)
		}
		nothingPrivate(t, out, private.Config)
	}
}

// inPlace replaces a run's folder by its published form, whose list is changed.
func inPlace(t *testing.T, dir string, sample int64, forge func(p *ledger.Published)) {
	t.Helper()
	out := public(t, dir, sample)
	entries, err := os.ReadDir(out)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		write(t, filepath.Join(dir, e.Name()), read(t, filepath.Join(out, e.Name())))
	}
	for _, name := range []string{ledger.RowsFile, ledger.ResourcesFile, ledger.EventsFile} {
		remove(t, filepath.Join(dir, name))
	}
	path := filepath.Join(dir, ledger.PublishedFile)
	p, err := ledger.ReadPublished(read(t, path))
	if err != nil {
		t.Fatal(err)
	}
	forge(&p)
	write(t, path, marshal(t, p))
}

// nothingPrivate looks for the endpoint and the secret of its place in all that was published.
func nothingPrivate(t *testing.T, out string, cfg ledger.Config) {
	t.Helper()
	for _, name := range []string{ledger.ConfigFile, ledger.LedgerFile, ledger.PublishedFile} {
		for _, private := range []string{cfg.Endpoint, cfg.MetricsURL, cfg.PlaceSecret, "127.0.0.1"} {
			if private != "" && strings.Contains(string(read(t, filepath.Join(out, name))), private) {
				t.Errorf("%s shows %q", name, private)
			}
		}
	}
}

func TestPublishedSample(t *testing.T) {
	for dir, failed := range publishedRuns(t) {
		r := judged(t, public(t, dir, 40))
		if failures(r) != failed || r.Grade != GradeSampled || len(r.Establishes) > 0 {
			t.Errorf("%s: grade %s, failed %s, %d claims", dir, r.Grade, failures(r), len(r.Establishes))
			for _, f := range r.Failed() {
				t.Log(f.Rule, f.Detail)
			}
		}
		if failed == "" && (len(r.States) == 0 || !strings.Contains(r.DoesNot[0].Reason, "40 of 100 rows") || !strings.Contains(r.DoesNot[0].Reason, "108750 ppm")) {
			t.Errorf("%s: %d stated, %q", dir, len(r.States), r.DoesNot[0].Reason)
		}
	}
	// All rows can be a sample too.
	if r := judged(t, public(t, "testdata/smollm2-100", 1_000_000)); !r.Holds || r.Grade != GradeSampled {
		t.Errorf("all rows as a sample: %s", failures(r))
	}
}

// A published form from which the secret is left out holds too; its prompts can't be made again.
func TestPublishedWithoutSecret(t *testing.T) {
	out := filepath.Join(t.TempDir(), "public")
	if _, err := ledger.Publish("testdata/smollm2-100", out, ledger.PublishOptions{MaxRows: 4 << 20}); err != nil {
		t.Fatal(err)
	}
	r := judged(t, out)
	if !r.Holds {
		t.Errorf("failed %s", failures(r))
	}
	for _, x := range r.Results {
		if (x.Rule == "R-PROMPT-02" || x.Rule == "R-CONF-04") != (x.Result == NotApplicable && strings.Contains(x.Detail, "published without")) {
			t.Errorf("%s: %s %s", x.Rule, x.Result, x.Detail)
		}
	}
}

// Every changed byte of a published form is refused, wherever it lies: some of the larger files, all of the small ones.
func TestEveryChangedByteOfAPublishedForm(t *testing.T) {
	for _, sample := range []int64{0, 8} {
		out := public(t, "testdata/smollm2-100", sample)
		entries, err := os.ReadDir(out)
		if err != nil || len(entries) < 6 {
			t.Fatalf("%d files, %v", len(entries), err)
		}
		for _, e := range entries {
			path := filepath.Join(out, e.Name())
			good := read(t, path)
			step := max(1, len(good)/25)
			for i := 0; i < len(good); i += step {
				bad := slices.Clone(good)
				bad[i] ^= 1 << (i % 7)
				write(t, path, bad)
				if r, err := Dir(out, Options{}); err == nil && r.Holds {
					t.Errorf("sample %d, %s: byte %d was changed and the run holds", sample, e.Name(), i)
				}
			}
			write(t, path, good[:len(good)-1])
			if r, err := Dir(out, Options{}); err == nil && r.Holds {
				t.Errorf("sample %d, %s: a byte is missing and the run holds", sample, e.Name())
			}
			write(t, path, good)
		}
		if r := judged(t, out); !r.Holds {
			t.Errorf("sample %d: restored, it doesn't hold: %s", sample, failures(r))
		}
	}
}

// What a forger can make fit again by hashing is still refused, each thing by its rule.
func TestForgedPublishedForms(t *testing.T) {
	for name, c := range map[string]struct {
		sample int64
		rule   string
		forge  func(t *testing.T, p *ledger.Published, out string)
	}{
		"another run's id": {0, "R-PUB-01", func(_ *testing.T, p *ledger.Published, _ string) { p.RunID = strings.Repeat("0", 32) }},
		"another size":     {0, "R-PUB-01", func(_ *testing.T, p *ledger.Published, _ string) { p.Files[2].Bytes++ }},
		"a file that isn't listed": {0, "R-PUB-01", func(t *testing.T, _ *ledger.Published, out string) {
			write(t, filepath.Join(out, ledger.ParkFile), []byte("x"))
		}},
		"a redaction less": {0, "R-PUB-02", func(_ *testing.T, p *ledger.Published, _ string) { p.Redactions = p.Redactions[1:] }},
		"another commitment": {0, "R-PUB-02", func(_ *testing.T, p *ledger.Published, _ string) {
			p.Redactions[0].Commitment = strings.Repeat("0", 32)
		}},
		"of more rows":         {8, "R-PUB-03", func(_ *testing.T, p *ledger.Published, _ string) { p.Sample.Of++ }},
		"fewer rows than said": {8, "R-PUB-03", func(_ *testing.T, p *ledger.Published, _ string) { p.Sample.Count++ }},
		"a row that isn't the run's": {8, "R-PUB-03", func(t *testing.T, p *ledger.Published, out string) {
			resample(t, p, out, func(s *ledger.SampledRow) { s.Row.Bytes++ })
		}},
		"another proof": {8, "R-PUB-03", func(t *testing.T, p *ledger.Published, out string) {
			resample(t, p, out, func(s *ledger.SampledRow) { slices.Reverse(s.Proof) })
		}},
		"an index beyond": {8, "R-PUB-03", func(t *testing.T, p *ledger.Published, out string) {
			resample(t, p, out, func(s *ledger.SampledRow) { s.Index = 100 })
		}},
	} {
		t.Run(name, func(t *testing.T) {
			out := public(t, "testdata/smollm2-100", c.sample)
			path := filepath.Join(out, ledger.PublishedFile)
			p, err := ledger.ReadPublished(read(t, path))
			if err != nil {
				t.Fatal(err)
			}
			c.forge(t, &p, out)
			write(t, path, marshal(t, p))
			if r := judged(t, out); failures(r) != c.rule {
				t.Errorf("failed %q, want %s", failures(r), c.rule)
			}
		})
	}
}

// resample changes a sample's first line and makes published.json fit.
func resample(t *testing.T, p *ledger.Published, out string, change func(*ledger.SampledRow)) {
	t.Helper()
	f, err := ledger.OpenFolder(out)
	if err != nil {
		t.Fatal(err)
	}
	var lines []ledger.SampledRow
	for s, err := range f.SampledRows() {
		if err != nil {
			t.Fatal(err)
		}
		lines = append(lines, s)
	}
	change(&lines[0])
	b := packed(t, jsonLines(t, lines))
	write(t, filepath.Join(out, p.Files[1].As), b)
	p.Files[1].Bytes, p.Files[1].SHA256 = int64(len(b)), fmt.Sprintf("%x", sha(b))
}

// A trace's schedule is published whole, also beside a sample of rows.
func TestPublishedSchedule(t *testing.T) {
	dir := t.TempDir()
	simulate(t, 100).write(t, dir, nil)
	write(t, filepath.Join(dir, ledger.ScheduleFile), []byte("{\"at_us\":5,\"max_tokens\":8}\n"))
	f, err := ledger.OpenFolder(public(t, dir, 4))
	if err != nil {
		t.Fatal(err)
	}
	if lines, _, err := f.Schedule(); err != nil || len(lines) != 1 || lines[0].AtUS != 5 {
		t.Errorf("%+v, %v", lines, err)
	}
	if r := judged(t, f.Dir); !r.Holds {
		t.Errorf("failed %s", failures(r))
	}
}

func TestSampleIndexes(t *testing.T) {
	root := strings.Repeat("ab", 32)
	a := ledger.SampleIndexes(root, 1000, 50)
	if len(a) != 50 || !slices.IsSorted(a) || a[0] < 0 || a[49] > 999 || len(slices.Compact(slices.Clone(a))) != 50 {
		t.Errorf("%v", a)
	}
	if slices.Equal(a, ledger.SampleIndexes(strings.Repeat("ac", 32), 1000, 50)) {
		t.Error("another root picks the same rows")
	}
	if all := ledger.SampleIndexes(root, 5, 9); !slices.Equal(all, []int64{0, 1, 2, 3, 4}) {
		t.Errorf("all: %v", all)
	}
	// docs/formats/published.md has these.
	if got := ledger.SampleIndexes(root, 1000, 3); !slices.Equal(got, []int64{174, 364, 571}) {
		t.Errorf("vector: %v", got)
	}
}

func TestPublishRefuses(t *testing.T) {
	run := simulate(t, 100)
	run.rows[3].Error, run.rows[3].Outcome, run.rows[3].Oracle = "no route to gpu-box", ledger.TransportMid, ledger.OracleNone
	named := t.TempDir()
	run.write(t, named, nil)
	declaring := t.TempDir()
	says := simulate(t, 100)
	says.cfg.Declared.Hardware = "one H200 in gpu-box"
	says.write(t, declaring, nil)
	changed := t.TempDir()
	simulate(t, 100).write(t, changed, nil)
	write(t, filepath.Join(changed, ledger.EventsFile), append(read(t, filepath.Join(changed, ledger.EventsFile)), '\n'))
	full := t.TempDir()
	write(t, filepath.Join(full, "x"), nil)
	for name, c := range map[string]struct{ dir, out, why string }{
		"a host is named":         {named, filepath.Join(t.TempDir(), "a"), `names the host "gpu-box"`},
		"a host is declared":      {declaring, filepath.Join(t.TempDir(), "e"), `config.json names the host "gpu-box"`},
		"a file was changed":      {changed, filepath.Join(t.TempDir(), "b"), "events.jsonl"},
		"out isn't empty":         {"testdata/smollm2-100", full, "isn't empty"},
		"it is a published form":  {public(t, "testdata/smollm2-100", 0), filepath.Join(t.TempDir(), "c"), "already"},
		"there is no run to read": {t.TempDir(), filepath.Join(t.TempDir(), "d"), "config.json"},
	} {
		_, err := ledger.Publish(c.dir, c.out, ledger.PublishOptions{OpenSecret: true, MaxRows: 1 << 20, HostNames: []string{"gpu-box"}})
		if err == nil || !strings.Contains(err.Error(), c.why) {
			t.Errorf("%s: %v", name, err)
		}
		if _, err := os.Stat(filepath.Join(c.out, ledger.PublishedFile)); err == nil {
			t.Errorf("%s: something was written", name)
		}
	}
	if _, err := ledger.Publish(named, filepath.Join(t.TempDir(), "e"), ledger.PublishOptions{MaxRows: 1 << 20, HostNames: []string{"gpu", "box"}}); err != nil {
		t.Errorf("a word within another: %v", err)
	}
}

// A signature is over the files as they were; it holds for every published form.
func TestPublishedSignature(t *testing.T) {
	public1, private, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	other, _, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	simulate(t, 100).write(t, dir, nil)
	if err := ledger.Sign(dir, private); err != nil {
		t.Fatal(err)
	}
	for _, sample := range []int64{0, 5} {
		out := public(t, dir, sample)
		for _, c := range []struct {
			key    ed25519.PublicKey
			failed string
		}{{public1, ""}, {other, "R-SIGN-02"}} {
			r, err := Dir(out, Options{Keys: []ed25519.PublicKey{c.key}})
			if err != nil {
				t.Fatal(err)
			}
			if failures(r) != c.failed || (r.SignedBy != "") != (c.failed == "") {
				t.Errorf("sample %d: failed %q, want %q; signed by %q", sample, failures(r), c.failed, r.SignedBy)
			}
		}
		// Without the envelope the form isn't what its list says, and no signature is there.
		remove(t, filepath.Join(out, ledger.EnvelopeFile))
		if r, err := Dir(out, Options{Keys: []ed25519.PublicKey{public1}}); err != nil || failures(r) != "R-PUB-01 R-SIGN-02" {
			t.Errorf("sample %d, without an envelope: %q, %v", sample, failures(r), err)
		}
	}
}

// A form that can't be finished leaves nothing behind that would stand in the way of the next try.
func TestUnfinishedFormIsRemoved(t *testing.T) {
	dir, out := t.TempDir(), filepath.Join(t.TempDir(), "public")
	if err := os.CopyFS(dir, os.DirFS("testdata/smollm2-100")); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(dir, ledger.EnvelopeFile), make([]byte, ledger.MaxDocument+1))
	if _, err := ledger.Publish(dir, out, ledger.PublishOptions{MaxRows: 1 << 20}); err == nil {
		t.Fatal("an envelope beyond all bounds was published")
	}
	left, err := os.ReadDir(out)
	if err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, error %v", left, err)
	}
}

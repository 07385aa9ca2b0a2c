package ledger

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

// testConfig is a config that may be written.
func testConfig(contexts, workers int64) Config {
	return Config{RunID: strings.Repeat("a", 32), RunOrdinal: 1, Secret: strings.Repeat("1", 64), PlaceSecret: strings.Repeat("2", 64), StartedWallUS: 1_796_000_000_000_000,
		Contract: ContractPlain, Contexts: contexts, TurnsPerContext: 1, Workers: workers, MaxAttempts: 3, Endpoint: "http://127.0.0.1:1/v1",
		EndpointScope: ScopeLoopback, Sampling: Sampling{MaxTokens: 8}, ResourceUS: 1_000_000, Client: Build{CPUs: 2}}
}

// okRow is a result of a context, sent at t and ended at t+100.
func okRow(context, t int64) Row {
	return Row{Context: context, Attempt: 1, PickedUS: t - 10, SentUS: Some(t), HeadersUS: Some(t + 5), FirstEventUS: Some(t + 6),
		FirstTokenUS: Some(t + 20), FirstContentUS: Some(t + 20), LastTokenUS: Some(t + 90), EndUS: t + 100, HTTPStatus: Some(200), Outcome: OK,
		FinishReason: "stop", Done: true, PromptTokens: Some(700), CompletionTokens: Some(4), Events: 6, Deltas: 4, Buffered: true, Bytes: 900, TextBytes: 12,
		PromptCommit: strings.Repeat("b", 32), OutputCommit: strings.Repeat("c", 32), Task: "sum", Oracle: OraclePass}
}

func must(t testing.TB, errs ...error) {
	t.Helper()
	for _, err := range errs {
		if err != nil {
			t.Fatal(err)
		}
	}
}

// finishedRun writes a run of three contexts and returns its folder.
func finishedRun(t testing.TB) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "run")
	w, err := Create(dir, testConfig(3, 1))
	must(t, err)
	must(t, w.Resource(Resource{ServerReason: "none", GPUReason: "none"}))
	for c := range int64(3) {
		must(t, w.Row(okRow(c, 100+c*200)))
	}
	must(t, w.Resource(Resource{TUS: 1000, ServerReason: "none", GPUReason: "none"}), w.Event(Event{TUS: 1000, Kind: EventPeak, Value: Some(1)}),
		w.Event(Event{TUS: 1000, Kind: EventEnd, WallUS: Some(1_796_000_000_001_000), Detail: StatusFinished}))
	_, err = w.Close()
	must(t, err)
	return dir
}

func TestCreate(t *testing.T) {
	dir := finishedRun(t)
	f, err := OpenFolder(dir)
	must(t, err)
	info, err := os.Stat(filepath.Join(dir, ConfigFile))
	must(t, err)
	if info.Mode().Perm() != 0o600 {
		t.Errorf("config.json has mode %v: it holds the endpoint and the secret", info.Mode())
	}
	first := true
	for e, err := range f.Events() {
		must(t, err)
		if first && (e.Kind != EventStart || e.ConfigSHA256 != f.ConfigSHA256 || e.TUS != 0) {
			t.Errorf("the first event is %+v", e)
		}
		first = false
	}
	b, err := f.ReadFile(LedgerFile)
	must(t, err)
	for _, secret := range []string{f.Config.Secret, "127.0.0.1"} {
		if bytes.Contains(b, []byte(secret)) {
			t.Errorf("the ledger shows %q", secret)
		}
	}
	l, err := ReadLedger(b)
	must(t, err)
	again, err := f.Summarize()
	must(t, err)
	x, err := Marshal(l)
	must(t, err)
	y, err := Marshal(again)
	must(t, err)
	if !bytes.Equal(x, b) || !bytes.Equal(y, b) {
		t.Error("the ledger isn't what the files give")
	}
	if _, err := Create(dir, testConfig(3, 1)); !errors.Is(err, ErrNotEmpty) {
		t.Errorf("a second run in the same folder: %v", err)
	}
}

func TestWriterRefuses(t *testing.T) {
	for name, change := range map[string]func(*Config){
		"no contexts": func(c *Config) { c.Contexts = 0 }, "too many contexts": func(c *Config) { c.Contexts = MaxContexts + 1 },
		"no workers": func(c *Config) { c.Workers = 0 }, "another contract": func(c *Config) { c.Contract = "loose" },
		"no secret": func(c *Config) { c.Secret = "" }, "two turns": func(c *Config) { c.TurnsPerContext = 2 },
		"negative": func(c *Config) { c.RunOrdinal = -1 },
	} {
		cfg := testConfig(3, 1)
		change(&cfg)
		dir := filepath.Join(t.TempDir(), "run")
		if _, err := Create(dir, cfg); err == nil {
			t.Errorf("%s was taken", name)
		}
		if _, err := os.Stat(dir); err == nil {
			t.Errorf("%s: a folder was made", name)
		}
	}
	w, err := Create(filepath.Join(t.TempDir(), "run"), testConfig(3, 1))
	must(t, err)
	defer w.Abandon()
	for name, change := range map[string]func(*Row){
		"outcome": func(r *Row) { r.Outcome = "fine" }, "oracle": func(r *Row) { r.Oracle = "" }, "attempt": func(r *Row) { r.Attempt = 0 },
		"base": func(r *Row) { r.Base = "x" }, "prompt": func(r *Row) { r.PromptCommit = "" }, "long error": func(r *Row) { r.Error = strings.Repeat("e", MaxText+1) },
		"time": func(r *Row) { r.EndUS = maxTime + 1 }, "negative": func(r *Row) { r.Context = -1 }, "count": func(r *Row) { r.Deltas = maxCount + 1 },
	} {
		r := okRow(0, 100)
		change(&r)
		if err := w.Row(r); err == nil {
			t.Errorf("a row with a bad %s was written", name)
		}
	}
	if err := w.Event(Event{Kind: "something"}); err == nil {
		t.Error("an unknown event was written")
	}
	if err := w.Event(Event{Kind: EventEnd, Detail: "well"}); err == nil {
		t.Error("an end of an unknown kind was written")
	}
	if err := w.Resource(Resource{}); err == nil {
		t.Error("a sample without a server and without a reason was written")
	}
	if err := w.Resource(Resource{ServerReason: "none", GPUReason: "none", Series: []SeriesReading{{Name: SeriesRunning, State: SeriesNaN}}}); err == nil {
		t.Error("a sample with some of the series was written")
	}
}

func TestWriterIsConcurrent(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "run")
	w, err := Create(dir, testConfig(400, 8))
	must(t, err)
	var group sync.WaitGroup
	for worker := range int64(8) {
		group.Go(func() {
			for c := worker; c < 400; c += 8 {
				if err := w.Row(okRow(c, 100+c)); err != nil {
					t.Error(err)
				}
			}
		})
	}
	group.Wait()
	l, err := w.Close()
	must(t, err)
	if l.Counts.Completed != 400 || l.Status != StatusInterrupted {
		t.Errorf("%d completed, status %s", l.Counts.Completed, l.Status)
	}
}

// TestReopen cuts a run off at every byte of its rows' last line, as a kill or a power loss may, and goes on.
func TestReopen(t *testing.T) {
	whole := finishedRun(t)
	rows, err := os.ReadFile(filepath.Join(whole, RowsFile))
	must(t, err)
	lastLine := bytes.LastIndexByte(rows[:len(rows)-1], '\n') + 1
	for cut := lastLine; cut <= len(rows); cut += 37 {
		dir := t.TempDir()
		for _, name := range []string{ConfigFile, ResourcesFile, EventsFile, LedgerFile} {
			b, err := os.ReadFile(filepath.Join(whole, name))
			must(t, err, os.WriteFile(filepath.Join(dir, name), b, 0o600))
		}
		must(t, os.WriteFile(filepath.Join(dir, RowsFile), rows[:cut], 0o600))
		w, err := Reopen(dir, 1_796_000_100_000_000)
		must(t, err)
		if w.Segment() != 1 {
			t.Fatalf("segment %d", w.Segment())
		}
		if _, err := os.Stat(filepath.Join(dir, LedgerFile)); err == nil {
			t.Error("the old ledger is still there")
		}
		r := okRow(2, 100)
		r.Segment = 1
		must(t, w.Row(r), w.Event(Event{TUS: 500, Segment: 1, Kind: EventEnd, Detail: StatusFinished}))
		l, err := w.Close()
		must(t, err)
		if l.Counts.Completed != 3 || l.Segments != 2 || l.Status != StatusFinished {
			t.Errorf("cut at %d: %d completed, %d segments, %s", cut, l.Counts.Completed, l.Segments, l.Status)
		}
		f, err := OpenFolder(dir)
		must(t, err)
		torn := int64(0)
		for e, err := range f.Events() {
			must(t, err)
			if e.Kind == EventTornRow {
				torn = e.Value.V
			}
		}
		if torn != int64(cut-lastLine) {
			t.Errorf("cut at %d: %d bytes were logged as torn, want %d", cut, torn, cut-lastLine)
		}
	}
}

// TestHostileFolders: what isn't a file, or has no end or no line feed, is an error and not a hang.
func TestHostileFolders(t *testing.T) {
	for name, spoil := range map[string]func(dir string) error{
		"a folder for a file": func(dir string) error {
			return errors.Join(os.Remove(filepath.Join(dir, RowsFile)), os.Mkdir(filepath.Join(dir, RowsFile), 0o755))
		},
		"a device": func(dir string) error {
			return errors.Join(os.Remove(filepath.Join(dir, RowsFile)), os.Symlink("/dev/zero", filepath.Join(dir, RowsFile)))
		},
		"a long line": func(dir string) error {
			return os.WriteFile(filepath.Join(dir, RowsFile), append(bytes.Repeat([]byte("a"), MaxLine+1), '\n'), 0o600)
		},
		"a torn line": func(dir string) error {
			b, err := os.ReadFile(filepath.Join(dir, RowsFile))
			return errors.Join(err, os.WriteFile(filepath.Join(dir, RowsFile), b[:len(b)-1], 0o600))
		},
		"an empty line": func(dir string) error {
			b, err := os.ReadFile(filepath.Join(dir, RowsFile))
			return errors.Join(err, os.WriteFile(filepath.Join(dir, RowsFile), append(b, '\n'), 0o600))
		},
		"CRLF": func(dir string) error {
			b, err := os.ReadFile(filepath.Join(dir, RowsFile))
			return errors.Join(err, os.WriteFile(filepath.Join(dir, RowsFile), bytes.ReplaceAll(b, []byte("\n"), []byte("\r\n")), 0o600))
		},
		"a large config": func(dir string) error {
			return os.WriteFile(filepath.Join(dir, ConfigFile), make([]byte, MaxDocument+1), 0o600)
		},
	} {
		dir := finishedRun(t)
		must(t, spoil(dir))
		f, err := OpenFolder(dir)
		if err == nil {
			_, err = f.Summarize()
		}
		if err == nil {
			t.Errorf("%s was read", name)
		}
	}
}

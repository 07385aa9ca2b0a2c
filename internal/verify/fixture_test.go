package verify

import (
	"crypto/sha256"
	"os"
	"path/filepath"
	"testing"

	"github.com/klauspost/compress/zstd"

	"cotenant/internal/ledger"
)

// readRun reads a run folder into memory.
func readRun(t testing.TB, dir string) *run {
	t.Helper()
	f, err := ledger.OpenFolder(dir)
	if err != nil {
		t.Fatal(err)
	}
	r := &run{cfg: f.Config}
	for x, err := range f.Rows() {
		if err != nil {
			t.Fatal(err)
		}
		r.rows = append(r.rows, x)
	}
	for x, err := range f.Resources() {
		if err != nil {
			t.Fatal(err)
		}
		r.resources = append(r.resources, x)
	}
	for x, err := range f.Events() {
		if err != nil {
			t.Fatal(err)
		}
		r.events = append(r.events, x)
	}
	return r
}

// writeFiles writes everything but the ledger, without the checks of ledger.Writer. Start events without a hash get the
// config's.
func (r *run) writeFiles(t testing.TB, dir string) {
	t.Helper()
	cfg := marshal(t, r.cfg)
	sum, err := ledger.HashConfig(r.cfg)
	if err != nil {
		t.Fatal(err)
	}
	for i := range r.events {
		if r.events[i].Kind == ledger.EventStart && r.events[i].ConfigSHA256 == "" {
			r.events[i].ConfigSHA256 = sum
		}
	}
	write(t, filepath.Join(dir, ledger.ConfigFile), cfg)
	write(t, filepath.Join(dir, ledger.RowsFile), jsonLines(t, r.rows))
	write(t, filepath.Join(dir, ledger.ResourcesFile), jsonLines(t, r.resources))
	write(t, filepath.Join(dir, ledger.EventsFile), jsonLines(t, r.events))
}

// write writes the run and the ledger that it gives, changed.
func (r *run) write(t testing.TB, dir string, change func(*ledger.Ledger)) {
	t.Helper()
	r.writeFiles(t, dir)
	l := summarize(t, dir)
	if change != nil {
		change(&l)
	}
	write(t, filepath.Join(dir, ledger.LedgerFile), marshal(t, l))
}

func summarize(t testing.TB, dir string) ledger.Ledger {
	t.Helper()
	f, err := ledger.OpenFolder(dir)
	if err != nil {
		t.Fatal(err)
	}
	l, err := f.Summarize()
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func marshal(t testing.TB, v any) []byte {
	t.Helper()
	b, err := ledger.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func jsonLines[T any](t testing.TB, values []T) []byte {
	t.Helper()
	var b []byte
	for i := range values {
		b = append(append(b, marshal(t, &values[i])...), '\n')
	}
	return b
}

func write(t testing.TB, path string, b []byte) {
	t.Helper()
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
}

func read(t testing.TB, path string) []byte {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// good returns the committed run at rung 100, or a simulated one at 1,000.
func good(t testing.TB, contexts int64) *run {
	t.Helper()
	if contexts == 100 {
		return readRun(t, "testdata/good-100")
	}
	return simulate(t, contexts)
}

// ok returns the n-th row that is a result.
func (r *run) ok(n int) *ledger.Row {
	for i := range r.rows {
		if r.rows[i].Outcome == ledger.OK && r.rows[i].Attempt == 1 {
			if n--; n < 0 {
				return &r.rows[i]
			}
		}
	}
	panic("no such row")
}

// packed is b as one Zstandard frame.
func packed(t testing.TB, b []byte) []byte {
	t.Helper()
	enc, err := zstd.NewWriter(nil)
	if err != nil {
		t.Fatal(err)
	}
	defer enc.Close()
	return enc.EncodeAll(b, nil)
}

func sha(b []byte) []byte {
	sum := sha256.Sum256(b)
	return sum[:]
}

func remove(t testing.TB, path string) {
	t.Helper()
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
}

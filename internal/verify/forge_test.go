package verify

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"cotenant/internal/ledger"
)

// refuse judges e with other bytes in place of ledger.json and fails where they pass.
func refuse(t *testing.T, e *evidence, forged []byte, what string) {
	t.Helper()
	claimed, err := ledger.ReadLedger(forged)
	if err != nil {
		return // can't be read: exit code 4
	}
	f := *e
	f.ledgerBytes, f.claimed = forged, claimed
	if r := f.report(); r.ExitCode() != 3 {
		t.Errorf("%s: exit code %d", what, r.ExitCode())
	}
}

// numbers returns where the numbers of a JSON document lie.
func numbers(t *testing.T, b []byte) (spans [][2]int) {
	t.Helper()
	dec := json.NewDecoder(bytes.NewReader(b))
	dec.UseNumber()
	for {
		token, err := dec.Token()
		if err == io.EOF {
			return spans
		}
		if err != nil {
			t.Fatal(err)
		}
		if n, ok := token.(json.Number); ok {
			end := int(dec.InputOffset())
			spans = append(spans, [2]int{end - len(n), end})
		}
	}
}

// step returns b with the number at span moved on by d.
func step(t *testing.T, b []byte, span [2]int, d int64) []byte {
	t.Helper()
	n, err := strconv.ParseInt(string(b[span[0]:span[1]]), 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	out := append([]byte{}, b[:span[0]]...)
	out = strconv.AppendInt(out, n+d, 10)
	return append(out, b[span[1]:]...)
}

func TestAnyNumberOfTheLedgerChangedIsRefused(t *testing.T) {
	const dir = "testdata/good-100"
	e, err := load(dir, Options{})
	if err != nil {
		t.Fatal(err)
	}
	if r := e.report(); r.ExitCode() != 0 {
		t.Fatalf("the run itself doesn't hold: %+v", r.Failed())
	}
	b := read(t, filepath.Join(dir, ledger.LedgerFile))
	spans := numbers(t, b)
	if len(spans) < 400 {
		t.Fatalf("only %d numbers", len(spans))
	}
	for i, span := range spans {
		d := int64(1 - i%2*2) // up or down
		refuse(t, e, step(t, b, span, d), fmt.Sprintf("…%s with %+d", b[max(0, span[0]-40):span[1]], d))
	}
	// A few of them the whole way through.
	for i := 0; i < len(spans); i += 97 {
		run := t.TempDir()
		readRun(t, dir).write(t, run, nil)
		write(t, filepath.Join(run, ledger.LedgerFile), step(t, b, spans[i], 1))
		if r, err := Dir(run, Options{}); err == nil && r.ExitCode() != 3 {
			t.Errorf("number %d: exit code %d", i, r.ExitCode())
		}
	}
}

func TestAnyByteOfTheLedgerChangedIsRefused(t *testing.T) {
	const dir = "testdata/good-100"
	e, err := load(dir, Options{})
	if err != nil {
		t.Fatal(err)
	}
	b := read(t, filepath.Join(dir, ledger.LedgerFile))
	for i := 0; i < len(b); i += 41 {
		forged := bytes.Clone(b)
		forged[i] ^= 1
		refuse(t, e, forged, fmt.Sprintf("byte %d, …%s", i, forged[max(0, i-40):i+1]))
	}
	for i := 1; i < len(b); i += 1009 {
		refuse(t, e, b[:i], fmt.Sprintf("the first %d bytes", i))
	}
}

func TestAnyNumberOfTheOtherFilesChangedIsRefused(t *testing.T) {
	const dir = "testdata/good-100"
	run := t.TempDir()
	readRun(t, dir).write(t, run, nil)
	for name, stride := range map[string]int{ledger.RowsFile: 307, ledger.ResourcesFile: 131, ledger.EventsFile: 3, ledger.ConfigFile: 7} {
		path := filepath.Join(run, name)
		b := read(t, path)
		spans := numbers(t, b)
		for i := 0; i < len(spans); i += stride {
			write(t, path, step(t, b, spans[i], 1))
			if r, err := Dir(run, Options{}); err == nil && r.ExitCode() != 3 {
				t.Errorf("%s, number %d: exit code %d", name, i, r.ExitCode())
			}
		}
		write(t, path, b)
	}
	if r, err := Dir(run, Options{}); err != nil || r.ExitCode() != 0 {
		t.Errorf("the run was not put back: %v", err)
	}
}

// TestForgedClaims has a forger who knows the format: files hashed again, the ledger's form kept, one sum improved where it
// stands and wherever a claim repeats it.
func TestForgedClaims(t *testing.T) {
	for name, forge := range map[string]func(*ledger.Ledger){
		"faster":       func(l *ledger.Ledger) { l.Rates.ResultsPer1e6s.V *= 2 },
		"sooner":       func(l *ledger.Ledger) { l.Times.TTFT.P50.ValueUS.V /= 2 },
		"smaller":      func(l *ledger.Ledger) { l.Peaks.ServerRSSBytes.V /= 2 },
		"right":        func(l *ledger.Ledger) { l.Oracle.Passed, l.Oracle.Failed = l.Oracle.Checked, 0 },
		"higher rung":  func(l *ledger.Ledger) { l.Admission.Rung = ledger.Some(1000) },
		"exposed":      func(l *ledger.Ledger) { l.NotExposed = l.NotExposed[1:] },
		"another base": func(l *ledger.Ledger) { l.Base = strings.Repeat("0", 32) },
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			good(t, 100).write(t, dir, func(l *ledger.Ledger) {
				forge(l)
				doc := generic(marshal(t, *l))
				for i := range l.Claims {
					if v, ok := at(doc, l.Claims[i].Evidence); ok {
						n, err := v.(json.Number).Int64()
						if err != nil {
							t.Fatal(err)
						}
						l.Claims[i].Value = n
					}
				}
			})
			r, err := Dir(dir, Options{})
			if err != nil {
				t.Fatal(err)
			}
			if r.ExitCode() != 3 {
				t.Errorf("exit code %d", r.ExitCode())
			}
		})
	}
}

func TestUnreadable(t *testing.T) {
	for name, spoil := range map[string]func(t *testing.T, dir string){
		"no ledger":    func(t *testing.T, dir string) { remove(t, filepath.Join(dir, ledger.LedgerFile)) },
		"no config":    func(t *testing.T, dir string) { remove(t, filepath.Join(dir, ledger.ConfigFile)) },
		"empty ledger": func(t *testing.T, dir string) { write(t, filepath.Join(dir, ledger.LedgerFile), nil) },
		"not JSON":     func(t *testing.T, dir string) { write(t, filepath.Join(dir, ledger.LedgerFile), []byte("ledger")) },
		"another document": func(t *testing.T, dir string) {
			write(t, filepath.Join(dir, ledger.LedgerFile), read(t, filepath.Join(dir, ledger.ConfigFile)))
		},
		"a later schema": func(t *testing.T, dir string) {
			path := filepath.Join(dir, ledger.LedgerFile)
			write(t, path, bytes.Replace(read(t, path), []byte(`"schema_version":1`), []byte(`"schema_version":2`), 1))
		},
		"a member twice": func(t *testing.T, dir string) {
			path := filepath.Join(dir, ledger.LedgerFile)
			write(t, path, bytes.Replace(read(t, path), []byte(`"wall_us":`), []byte(`"wall_us":1,"wall_us":`), 1))
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			good(t, 100).write(t, dir, nil)
			spoil(t, dir)
			if r, err := Dir(dir, Options{}); err == nil {
				t.Errorf("it was read; exit code %d", r.ExitCode())
			}
		})
	}
	if _, err := Dir(filepath.Join(t.TempDir(), "nowhere"), Options{}); err == nil {
		t.Error("a folder that isn't there was read")
	}
	if _, err := Dir("testdata/good-100/ledger.json", Options{}); err == nil {
		t.Error("a file was read as a folder")
	}
}

// TestMissingFiles: config and ledger are there, so this is a ledger, and a rule fails.
func TestMissingFiles(t *testing.T) {
	for _, name := range []string{ledger.RowsFile, ledger.ResourcesFile, ledger.EventsFile} {
		dir := t.TempDir()
		good(t, 100).write(t, dir, nil)
		remove(t, filepath.Join(dir, name))
		r, err := Dir(dir, Options{})
		if err != nil {
			t.Fatal(err)
		}
		if failed := r.Failed(); len(failed) != 1 || failed[0].Rule != "R-FORM-02" {
			t.Errorf("without %s: %+v", name, failed)
		}
	}
}

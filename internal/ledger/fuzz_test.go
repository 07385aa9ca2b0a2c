package ledger

import (
	"bytes"
	"crypto/ed25519"
	"os"
	"path/filepath"
	"testing"
)

// corpus adds a finished run's file, whole or by lines, and fails where there is none.
func corpus(f *testing.F, name string, byLine bool) {
	f.Helper()
	dir := finishedRun(f)
	if err := Sign(dir, ed25519.NewKeyFromSeed(make([]byte, 32))); err != nil {
		f.Fatal(err)
	}
	b, err := os.ReadFile(filepath.Join(dir, name))
	if err != nil {
		f.Fatal(err)
	}
	seeds := [][]byte{b}
	if byLine {
		seeds = bytes.Split(bytes.TrimSuffix(b, []byte("\n")), []byte("\n"))
	}
	for _, s := range seeds {
		if len(s) == 0 {
			f.Fatalf("%s gives an empty seed", name)
		}
		f.Add(s)
	}
}

// roundTrip reads data and, where that works, writes it and reads it again: both must give the same bytes.
func roundTrip[T any](t *testing.T, data []byte, check func(*T) error) {
	var v T
	if err := Unmarshal(data, &v); err != nil {
		return
	}
	b, err := Marshal(&v)
	if err != nil {
		t.Fatalf("%s was read and can't be written: %v", data, err)
	}
	var again T
	if _, err := UnmarshalCanonical(b, &again, nil); err != nil {
		t.Fatalf("%s was written and can't be read: %v", b, err)
	}
	if check != nil {
		_ = check(&v)
	}
}

func FuzzConfig(f *testing.F) {
	corpus(f, ConfigFile, false)
	f.Fuzz(func(t *testing.T, data []byte) {
		roundTrip[Config](t, data, (*Config).Check)
		if c, err := ReadConfig(data); err == nil {
			if b, err := Marshal(c); err != nil || !bytes.Equal(b, data) {
				t.Fatalf("%s was taken as canonical: %v", data, err)
			}
		}
	})
}

func FuzzRows(f *testing.F) {
	corpus(f, RowsFile, true)
	f.Fuzz(func(t *testing.T, data []byte) {
		roundTrip[Row](t, data, (*Row).Check)
		// Whatever reads as a row can be summed up, or fails with an error.
		var r Row
		if Unmarshal(data, &r) == nil && r.Check() == nil {
			l, err := Summarize(Run{Config: testConfig(3, 1), Rows: seq([]Row{r, r}), Resources: seq[Resource](nil), Events: seq[Event](nil)})
			if err != nil {
				return
			}
			if _, err := Marshal(l); err != nil {
				t.Fatal(err)
			}
		}
	})
}

func FuzzResources(f *testing.F) {
	corpus(f, ResourcesFile, true)
	f.Fuzz(func(t *testing.T, data []byte) { roundTrip[Resource](t, data, (*Resource).Check) })
}

func FuzzEvents(f *testing.F) {
	corpus(f, EventsFile, true)
	f.Fuzz(func(t *testing.T, data []byte) { roundTrip[Event](t, data, (*Event).Check) })
}

func FuzzLedger(f *testing.F) {
	corpus(f, LedgerFile, false)
	f.Fuzz(func(t *testing.T, data []byte) {
		roundTrip[Ledger](t, data, nil)
		ReadLedger(data)
	})
}

func FuzzEnvelope(f *testing.F) {
	corpus(f, EnvelopeFile, false)
	key := ed25519.NewKeyFromSeed(make([]byte, 32)).Public().(ed25519.PublicKey)
	f.Fuzz(func(t *testing.T, data []byte) {
		env, _, err := ReadEnvelope(data)
		if err != nil {
			return
		}
		env.CheckSignature(key)
	})
}

func FuzzPublished(f *testing.F) {
	public := filepath.Join(f.TempDir(), "public")
	if _, err := Publish(filepath.Join("..", "verify", "testdata", "good-100"), public, PublishOptions{Sample: 3}); err != nil {
		f.Fatal(err)
	}
	for _, name := range []string{PublishedFile, RowsFile + sampleEnding} {
		b, err := os.ReadFile(filepath.Join(public, name))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if p, err := ReadPublished(b); err == nil {
			if again, err := Marshal(p); err != nil || !bytes.Equal(again, b) {
				t.Errorf("read and written it differs: %v", err)
			}
		}
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, RowsFile+sampleEnding), b, 0o600); err != nil {
			t.Fatal(err)
		}
		for s, err := range (&Folder{Dir: dir}).SampledRows() {
			if err == nil {
				s.CheckProof(100, s.Row.PromptCommit)
			}
		}
	})
}

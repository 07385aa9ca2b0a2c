package evidence

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// corpus are journals as runs left them, whole and torn, and lines that are none.
func corpus(t testing.TB) map[string][]byte {
	t.Helper()
	paths, err := filepath.Glob("testdata/journals/*.jsonl")
	if err != nil || len(paths) == 0 {
		t.Fatalf("no journals under testdata: %v", err)
	}
	files := make(map[string][]byte)
	for _, p := range paths {
		b, err := os.ReadFile(p)
		if err != nil {
			t.Fatal(err)
		}
		files[filepath.Base(p)] = b
	}
	return files
}

func TestParseJournalCorpus(t *testing.T) {
	for name, content := range corpus(t) {
		entries, torn, err := ParseJournal(content)
		bad := strings.HasPrefix(name, "bad-")
		if (err != nil) != bad || torn != strings.HasPrefix(name, "torn-") || !bad && len(entries) == 0 {
			t.Errorf("%s: %d entries, torn %v, %v", name, len(entries), torn, err)
		}
	}
}

func FuzzParseJournal(f *testing.F) {
	for _, content := range corpus(f) {
		f.Add(content)
	}
	f.Fuzz(func(t *testing.T, content []byte) {
		entries, torn, err := ParseJournal(content)
		if err != nil {
			return
		}
		// What was read, written again, reads the same.
		var again bytes.Buffer
		for _, e := range entries {
			line, err := json.Marshal(e)
			if err != nil {
				t.Fatal(err)
			}
			again.Write(append(line, '\n'))
		}
		second, torn2, err := ParseJournal(again.Bytes())
		if err != nil || torn2 || len(second) != len(entries) {
			t.Errorf("%d entries, torn %v; again %d, torn %v, %v", len(entries), torn, len(second), torn2, err)
		}
	})
}

// FuzzVerify feeds a folder's documents: whatever they hold, the answer is a report or an error.
func FuzzVerify(f *testing.F) {
	paths, err := filepath.Glob("testdata/folder/*")
	if err != nil || len(paths) == 0 {
		f.Fatalf("no folder under testdata: %v", err)
	}
	good := make(map[string][]byte)
	for _, p := range paths {
		b, err := os.ReadFile(p)
		if err != nil {
			f.Fatal(err)
		}
		good[filepath.Base(p)] = b
	}
	for name, b := range good {
		f.Add(name, b)
	}
	f.Fuzz(func(t *testing.T, name string, content []byte) {
		if _, known := good[name]; !known {
			return
		}
		dir := t.TempDir()
		for n, b := range good {
			if n == name {
				b = content
			}
			if err := os.WriteFile(filepath.Join(dir, n), b, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		r, err := Verify(dir)
		if err != nil {
			return
		}
		changed := !bytes.Equal(content, good[name])
		if r.Holds && changed && name != ManifestFile {
			t.Errorf("%s was changed, and it holds", name)
		}
	})
}

// The folder under testdata is one that a probe of this version wrote on the fake driver.
func TestVerifyFolder(t *testing.T) {
	r, err := Verify("testdata/folder")
	if err != nil || !r.Holds || len(r.Establishes) < 4 || len(r.DoesNot) < 2 {
		t.Errorf("%v, %+v", err, r)
	}
	if !Is("testdata/folder") || Is("testdata/journals") {
		t.Error("Is doesn't tell a folder")
	}
}

func TestJournalOnFullDisk(t *testing.T) {
	f, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Skip("this system has no /dev/full")
	}
	j := &Journal{f: f, by: "worker"}
	taken := false
	err = j.Step("create_green_context", 0, nil, func() error { taken = true; return nil })
	if err == nil || taken {
		t.Errorf("a step that could not be recorded was taken: %v, %v", taken, err)
	}
}

func TestWriteReplacesNothingHalf(t *testing.T) {
	dir := t.TempDir()
	if err := Write(dir, "a", []byte("one")); err != nil {
		t.Fatal(err)
	}
	if err := Write(dir, "a", []byte("two")); err != nil {
		t.Fatal(err)
	}
	b, err := Read(dir, "a")
	entries, _ := os.ReadDir(dir)
	if err != nil || string(b) != "two" || len(entries) != 1 {
		t.Errorf("%q, %d files, %v", b, len(entries), err)
	}
	if _, err := Read(dir, "."); err == nil {
		t.Error("a folder was read as a file")
	}
	if err := Write(filepath.Join(dir, "nowhere"), "a", nil); err == nil {
		t.Error("a folder that isn't there took a file")
	}
}

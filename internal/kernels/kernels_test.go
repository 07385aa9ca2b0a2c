package kernels

import (
	"crypto/sha256"
	"encoding/hex"
	"io/fs"
	"regexp"
	"slices"
	"testing"
)

// What is embedded is what the manifest says, and nothing else.
func TestManifest(t *testing.T) {
	m, err := ReadManifest()
	if err != nil {
		t.Fatal(err)
	}
	var named []string
	for _, info := range m.Modules {
		named = append(named, info.Name+".ptx")
		ptx, _, err := Module(info.Name)
		if err != nil {
			t.Fatal(err)
		}
		if sum := sha256.Sum256(ptx); hex.EncodeToString(sum[:]) != info.SHA256 {
			t.Errorf("%s: hash differs from the manifest's", info.Name)
		}
		source, err := files.ReadFile(info.Source)
		if err != nil {
			t.Fatal(err)
		}
		headers, err := Headers(files)
		if err != nil {
			t.Fatal(err)
		}
		if sum := sha256.Sum256(append(source, headers...)); hex.EncodeToString(sum[:]) != info.SourceSHA256 {
			t.Errorf("%s: its source changed since: go run ./tools/ptx", info.Name)
		}
		for _, k := range info.Kernels {
			if !regexp.MustCompile(`(?m)^\.visible \.entry ` + k + `\($`).Match(ptx) {
				t.Errorf("%s has no kernel %s", info.Name, k)
			}
		}
	}
	found, err := fs.Glob(files, "*.ptx")
	if err != nil || len(found) == 0 {
		t.Fatalf("no PTX is embedded: %v", err)
	}
	slices.Sort(named)
	if !slices.Equal(found, named) {
		t.Errorf("embedded %v, in the manifest %v", found, named)
	}
	if _, _, err := Module("nothing"); err == nil {
		t.Error("a module that isn't there was returned")
	}
}

// Values that a C program of the same arithmetic printed.
func TestWitnessValue(t *testing.T) {
	for _, c := range []struct{ seed, rounds, block, threads, want uint32 }{
		{7, 0, 0, 32, 2340144880},
		{7, 16, 0, 1024, 3971822146},
		{12345, 33, 1023, 256, 557028907},
	} {
		if got := WitnessValue(c.seed, c.rounds, c.block, c.threads); got != c.want {
			t.Errorf("%+v: got %d", c, got)
		}
	}
}

// Values that a C program printed with fmaf of the C library.
func TestArithmeticValue(t *testing.T) {
	for _, c := range []struct{ block, threads, rounds, want uint32 }{
		{0, 32, 0, 292552704}, {3, 64, 100, 2096807862}, {70, 256, 1000, 648315208},
	} {
		if got := ArithmeticValue(c.block, c.threads, c.rounds); got != c.want {
			t.Errorf("%+v: got %d", c, got)
		}
	}
}

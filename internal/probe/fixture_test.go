//go:build linux

package probe

import (
	"os"
	"path/filepath"
	"testing"
)

// TestFixture writes a folder for the tests of package evidence: go test -run Fixture, with PROBE_FIXTURE=DIR set.
func TestFixture(t *testing.T) {
	to := os.Getenv("PROBE_FIXTURE")
	if to == "" {
		return
	}
	from := evidenceFolder(t)
	entries, err := os.ReadDir(from)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(to, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		b, err := os.ReadFile(filepath.Join(from, e.Name()))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(to, e.Name()), b, 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

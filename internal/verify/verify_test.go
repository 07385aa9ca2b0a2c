package verify

import (
	"flag"
	"os"
	"testing"
)

var update = flag.Bool("update", false, "write testdata/good-100 from the simulation")

func TestMain(m *testing.M) {
	flag.Parse()
	os.Exit(m.Run())
}

func TestUpdate(t *testing.T) {
	if !*update {
		return
	}
	if err := os.MkdirAll("testdata/good-100", 0o755); err != nil {
		t.Fatal(err)
	}
	simulate(t, 100).write(t, "testdata/good-100", nil)
}

func TestGood(t *testing.T) {
	for _, contexts := range []int64{100, 1000} {
		dir := t.TempDir()
		good(t, contexts).write(t, dir, nil)
		r, err := Dir(dir, Options{})
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range r.Failed() {
			t.Errorf("%d contexts: %s: %s", contexts, f.Rule, f.Detail)
		}
		if r.ExitCode() != 0 || len(r.Establishes) == 0 || len(r.DoesNot) == 0 {
			t.Errorf("%d contexts: exit code %d, %d claims, %d non-claims", contexts, r.ExitCode(), len(r.Establishes), len(r.DoesNot))
		}
	}
}

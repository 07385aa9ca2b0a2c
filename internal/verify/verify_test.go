package verify

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"cotenant/internal/ledger"
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
	// The real run's rows stay as they were written; its ledger is what they give.
	write(t, filepath.Join(realRun, ledger.LedgerFile), marshal(t, summarize(t, realRun)))
}

// realRun is a run of `cotenant soak` at rung 100 with 4 workers against `cotenant serve` with SmolLM2-135M-Instruct on the CPU.
const realRun = "testdata/smollm2-100"

func TestRealRun(t *testing.T) {
	r, err := Dir(realRun, Options{})
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range r.Failed() {
		t.Errorf("%s: %s", f.Rule, f.Detail)
	}
	ids := map[string]bool{}
	for _, c := range r.Establishes {
		ids[c.ID] = true
	}
	for _, want := range []string{"retired", "in_flight", "result_rate", ledger.ClaimTTFT, "tasks_right", "kv_slots", "queue_oldest_age", "prefix_hits"} {
		if !ids[want] {
			t.Errorf("the run doesn't establish %s", want)
		}
	}
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

// TestGapsOfAShortPeriod: a run that asks for 20 samples a second may miss some, as long as it is seen at all.
func TestGapsOfAShortPeriod(t *testing.T) {
	for _, c := range []struct {
		without int // samples, a second apart
		want    string
	}{{1, ""}, {3, "R-RES-02"}} {
		r := good(t, 100)
		r.cfg.ResourceUS = 50_000
		r.events[0].ConfigSHA256 = ""
		r.resources = append(r.resources[:5:5], r.resources[5+c.without:]...)
		dir := t.TempDir()
		r.write(t, dir, nil)
		report, err := Dir(dir, Options{})
		if err != nil {
			t.Fatal(err)
		}
		var failed []string
		for _, f := range report.Failed() {
			failed = append(failed, f.Rule)
		}
		if strings.Join(failed, " ") != c.want {
			t.Errorf("%d samples less: %v", c.without, failed)
		}
	}
}

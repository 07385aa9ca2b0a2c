package compare

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"cotenant/internal/ledger"
	"cotenant/internal/verify"
)

// variant writes the good run of package verify's tests with its config changed and its times multiplied.
func variant(t *testing.T, times int64, change func(c *ledger.Config)) string {
	t.Helper()
	const good = "../verify/testdata/good-100"
	f, err := ledger.OpenFolder(good)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	cfg := f.Config
	old, err := ledger.HashConfig(cfg)
	check(t, err)
	if change != nil {
		change(&cfg)
	}
	hash, err := ledger.HashConfig(cfg)
	check(t, err)
	b, err := ledger.Marshal(cfg)
	check(t, err)
	check(t, os.WriteFile(filepath.Join(dir, ledger.ConfigFile), b, 0o600))
	var rows, samples, events []byte
	line := func(into *[]byte, v any) {
		b, err := ledger.Marshal(v)
		check(t, err)
		*into = append(append(*into, b...), '\n')
	}
	for r, err := range f.Rows() {
		check(t, err)
		for _, at := range []*int64{&r.QueuedUS, &r.PickedUS, &r.SentUS.V, &r.HeadersUS.V, &r.FirstEventUS.V, &r.FirstTokenUS.V, &r.FirstContentUS.V, &r.LastTokenUS.V, &r.EndUS} {
			*at *= times
		}
		r.Buffered = r.IsBuffered()
		line(&rows, &r)
	}
	for r, err := range f.Resources() {
		check(t, err)
		r.TUS *= times
		line(&samples, &r)
	}
	for e, err := range f.Events() {
		check(t, err)
		e.TUS *= times
		if e.Kind == ledger.EventEnd {
			e.WallUS.V = cfg.StartedWallUS + e.TUS
		}
		e.ConfigSHA256 = strings.Replace(e.ConfigSHA256, old, hash, 1)
		line(&events, &e)
	}
	for name, b := range map[string][]byte{ledger.RowsFile: rows, ledger.ResourcesFile: samples, ledger.EventsFile: events} {
		check(t, os.WriteFile(filepath.Join(dir, name), b, 0o600))
	}
	out, err := ledger.OpenFolder(dir)
	check(t, err)
	l, err := out.Summarize()
	check(t, err)
	check(t, ledger.WriteLedger(dir, l))
	return dir
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// declare gives a run its declarations.
func declare(server string) func(*ledger.Config) {
	return func(c *ledger.Config) {
		c.Declared = ledger.Declared{Server: server, Hardware: "two cores"}
		c.EndpointScope = ledger.ScopePrivate // so that times may be claimed
	}
}

// another is a later run against another server, changed further.
func another(further func(c *ledger.Config)) func(*ledger.Config) {
	return func(c *ledger.Config) {
		declare("b 2.0")(c)
		c.RunID = strings.Repeat("b", 32)
		c.StartedWallUS += 24 * 3600 * 1e6
		if further != nil {
			further(c)
		}
	}
}

func TestAlike(t *testing.T) {
	a, b := variant(t, 1, declare("a 1.0")), variant(t, 2, another(nil))
	r, err := Folders(a, b, "server", verify.Options{})
	check(t, err)
	if !r.Alike || r.Runs[0].Value != "a 1.0" || r.Runs[1].Value != "b 2.0" {
		t.Fatalf("%+v", r)
	}
	seen := map[string]Ratio{}
	for _, x := range r.Ratios {
		seen[x.Name] = x
	}
	// Everything took twice as long.
	for _, name := range []string{"ttft_p50", "latency_p50", "latency_p95"} {
		x := seen[name]
		if x.RatioE6 != 2_000_000 || x.LowE6 == nil || *x.LowE6 > x.RatioE6 || *x.HighE6 < x.RatioE6 || x.ConfidencePPM != 960_000 {
			t.Errorf("%s: %+v", name, x)
		}
	}
	if x := seen["latency_p50"]; x.Verdict != Higher {
		t.Errorf("the median latency is %s: %d to %d", x.Verdict, *x.LowE6, *x.HighE6)
	}
	if x := seen["result_rate"]; x.RatioE6 < 499_000 || x.RatioE6 > 500_000 || x.LowE6 != nil || x.ConfidencePPM != 0 || x.Verdict != NotEstablished {
		t.Errorf("the rate of results: %+v", x)
	}
	if x := seen["tasks_right"]; x.RatioE6 != 1_000_000 || x.Verdict != NotEstablished {
		t.Errorf("tasks: %+v", x)
	}
	if len(r.NonClaims) < 4 || len(r.NotCompared) != 0 {
		t.Errorf("%+v, %+v", r.NonClaims, r.NotCompared)
	}
	// The other way round it is half.
	if r, err = Folders(b, a, "server", verify.Options{}); err != nil || r.Ratios[0].RatioE6 < 1_990_000 {
		t.Errorf("%+v, %v", r, err)
	}
}

// TestRefused: each condition by itself keeps runs from being compared.
func TestRefused(t *testing.T) {
	a := variant(t, 1, declare("a 1.0"))
	for name, c := range map[string]struct {
		vary   string
		change func(c *ledger.Config)
	}{
		"workload":           {"server", func(c *ledger.Config) { c.Workload.SHA256 = strings.Repeat("c", 64) }},
		"workers":            {"server", func(c *ledger.Config) { c.Workers++ }},
		"max_attempts":       {"server", func(c *ledger.Config) { c.MaxAttempts++ }},
		"sampling":           {"server", func(c *ledger.Config) { c.Sampling.MaxTokens++ }},
		"timeouts":           {"server", func(c *ledger.Config) { c.Timeouts.IdleUS++ }},
		"endpoint_scope":     {"server", func(c *ledger.Config) { c.EndpointScope = ledger.ScopePublic }},
		"connection_policy":  {"server", func(c *ledger.Config) { c.ConnectionPolicy = "new" }},
		"resource_period_us": {"server", func(c *ledger.Config) { c.ResourceUS++ }},
		"client":             {"server", func(c *ledger.Config) { c.Client.BinarySHA256 = strings.Repeat("d", 64) }},
		"hardware":           {"server", func(c *ledger.Config) { c.Declared.Hardware = "four cores" }},
		"model":              {"server", func(c *ledger.Config) { c.Model = "another" }},
		"split":              {"server", func(c *ledger.Config) { c.Declared.Split = "half" }},
		"server":             {"server", func(c *ledger.Config) { c.Declared.Server = "a 1.0" }},
		"apart":              {"server", func(c *ledger.Config) { c.StartedWallUS -= 24 * 3600 * 1e6 }},
	} {
		r, err := Folders(a, variant(t, 1, another(c.change)), c.vary, verify.Options{})
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		var broken []string
		for _, x := range r.Conditions {
			if !x.Holds {
				broken = append(broken, x.Name)
			}
		}
		if r.Alike || strings.Join(broken, " ") != name || len(r.Ratios) != 0 {
			t.Errorf("%s: %v don't hold, %d ratios", name, broken, len(r.Ratios))
		}
	}
}

// TestUndeclared: what nobody has said isn't equal.
func TestUndeclared(t *testing.T) {
	bare := func(c *ledger.Config) {
		declare("")(c)
		c.Declared = ledger.Declared{Server: c.Declared.Server, Hardware: ""}
	}
	a := variant(t, 1, bare)
	b := variant(t, 1, func(c *ledger.Config) { another(nil)(c); c.Declared = ledger.Declared{}; c.Model = "another" })
	r, err := Folders(a, b, "model", verify.Options{})
	check(t, err)
	why := ""
	for _, c := range r.Conditions {
		why += c.Why
	}
	if r.Alike || strings.Count(why, "neither run says") != 2 {
		t.Errorf("%s", why)
	}
}

func TestOneRun(t *testing.T) {
	a := variant(t, 1, declare("a 1.0"))
	r, err := Folders(a, a, "server", verify.Options{})
	if err != nil || r.Alike {
		t.Errorf("a run was compared with itself: %+v, %v", r, err)
	}
}

func TestNotVerified(t *testing.T) {
	a, b := variant(t, 1, declare("a 1.0")), variant(t, 1, another(nil))
	path := filepath.Join(b, ledger.LedgerFile)
	data, err := os.ReadFile(path)
	check(t, err)
	check(t, os.WriteFile(path, bytes.Replace(data, []byte(`"reconnects":1`), []byte(`"reconnects":2`), 1), 0o600))
	if _, err := Folders(a, b, "server", verify.Options{}); !errors.Is(err, ErrNotVerified) {
		t.Errorf("a changed ledger: %v", err)
	}
	if _, err := Folders(a, t.TempDir(), "server", verify.Options{}); !errors.Is(err, ErrNotVerified) {
		t.Errorf("no run: %v", err)
	}
	if _, err := Folders(a, b, "colour", verify.Options{}); err == nil || errors.Is(err, ErrNotVerified) {
		t.Errorf("another axis: %v", err)
	}
}

//go:build linux

package probe

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"cotenant/internal/gputest"
	"cotenant/internal/partition"
	"cotenant/internal/probe/evidence"
)

// evidenceFolder runs a create probe with cycles and returns its folder.
func evidenceFolder(t *testing.T) string {
	t.Helper()
	m := gputest.Start(t, testHost())
	o := options(t, m)
	o.Plan = partition.Plan{SMs: []int{16, 64}}
	o.Cycles = 3
	o.Topology = testTopology(t, testUUID)
	out, _ := create(t, o)
	if out.Exit != ExitDone {
		t.Fatalf("exit %d, %s", out.Exit, out.Why)
	}
	leftNothing(t, out)
	return out.Folder
}

func copyFolder(t *testing.T, from string) string {
	t.Helper()
	to := t.TempDir()
	entries, err := os.ReadDir(from)
	if err != nil {
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
	return to
}

// edit changes a document and seals the folder again, as somebody would who forges evidence.
func edit(t *testing.T, dir, name string, change func(doc map[string]any)) {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(dir, name))
	if err != nil {
		t.Fatal(err)
	}
	var doc map[string]any
	if err := json.Unmarshal(b, &doc); err != nil {
		t.Fatal(err)
	}
	change(doc)
	b, err = json.Marshal(doc)
	if err != nil {
		t.Fatal(err)
	}
	// The order of members is that of the types: decode and encode them as such.
	switch name {
	case evidence.ResultFile:
		var r evidence.CreateResult
		err = json.Unmarshal(b, &r)
		if err == nil {
			b, err = evidence.Encode(r)
		}
	case evidence.PlanFile:
		var p evidence.Plan
		err = json.Unmarshal(b, &p)
		if err == nil {
			b, err = evidence.Encode(p)
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, name), b, 0o644); err != nil {
		t.Fatal(err)
	}
}

func reseal(t *testing.T, dir string, change func(*evidence.Manifest)) {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(dir, evidence.ManifestFile))
	if err != nil {
		t.Fatal(err)
	}
	var m evidence.Manifest
	if err := json.Unmarshal(b, &m); err != nil {
		t.Fatal(err)
	}
	if change != nil {
		change(&m)
	}
	if err := evidence.Seal(dir, m); err != nil {
		t.Fatal(err)
	}
}

// Every byte counts: a file with any one changed is refused, or isn't evidence any more.
func TestVerifyAnyByte(t *testing.T) {
	dir := evidenceFolder(t)
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) < 6 {
		t.Fatalf("%d files, %v", len(entries), err)
	}
	for _, e := range entries {
		path := filepath.Join(dir, e.Name())
		whole, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if e.Name() == evidence.ManifestFile {
			continue // nothing but a signature guards this one; see TestVerifyForged
		}
		for at := 0; at < len(whole); at += 1 + len(whole)/23 {
			b := append([]byte(nil), whole...)
			b[at] ^= 1
			if err := os.WriteFile(path, b, 0o644); err != nil {
				t.Fatal(err)
			}
			if r, err := evidence.Verify(dir); err == nil && r.Holds {
				t.Errorf("%s: byte %d changed, and it holds", e.Name(), at)
			}
		}
		if err := os.WriteFile(path, whole, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if r, err := evidence.Verify(dir); err != nil || !r.Holds || len(r.Establishes) < 4 {
		t.Errorf("%v, %+v", err, r)
	}
}

// Each rule is tripped by a forgery whose hashes fit, and by it alone.
func TestVerifyForged(t *testing.T) {
	good := evidenceFolder(t)
	result := func(f func(doc map[string]any)) func(*testing.T, string) {
		return func(t *testing.T, dir string) { edit(t, dir, evidence.ResultFile, f); reseal(t, dir, nil) }
	}
	part := func(doc map[string]any, i int) map[string]any {
		return doc["resources"].(map[string]any)["partitions"].([]any)[i].(map[string]any)
	}
	tripped := make(map[string]bool)
	for _, c := range []struct {
		name, rule string
		forge      func(t *testing.T, dir string)
	}{
		{"a file more", "P-FILES", func(t *testing.T, dir string) {
			if err := os.WriteFile(filepath.Join(dir, "more.json"), nil, 0o644); err != nil {
				t.Fatal(err)
			}
		}},
		{"another topology", "P-FILES", func(t *testing.T, dir string) {
			edit(t, dir, evidence.ManifestFile, func(doc map[string]any) { doc["topology_sha256"] = strings.Repeat("0", 64) })
		}},
		{"another run's plan", "P-IDS", func(t *testing.T, dir string) {
			edit(t, dir, evidence.PlanFile, func(doc map[string]any) { doc["run_id"] = "20260101T000000Z-0000000000000000" })
			reseal(t, dir, nil)
		}},
		{"a gate that said no", "P-GATES", func(t *testing.T, dir string) {
			edit(t, dir, evidence.PlanFile, func(doc map[string]any) { doc["gates"].([]any)[0].(map[string]any)["answer"] = "no" })
			reseal(t, dir, nil)
		}},
		{"an override left out", "P-GATES", func(t *testing.T, dir string) {
			edit(t, dir, evidence.PlanFile, func(doc map[string]any) { doc["overrides"] = []string{"--allow-display"} })
			reseal(t, dir, nil)
		}},
		{"a line of the journal left out", "P-JOURNAL", func(t *testing.T, dir string) {
			path := filepath.Join(dir, evidence.JournalFile)
			b, _ := os.ReadFile(path)
			lines := strings.SplitAfter(string(b), "\n")
			lines = append(lines[:3], lines[4:]...)
			if err := os.WriteFile(path, []byte(strings.Join(lines, "")), 0o644); err != nil {
				t.Fatal(err)
			}
			reseal(t, dir, nil)
		}},
		{"the journal begins elsewhere", "P-BEFORE", func(t *testing.T, dir string) {
			path := filepath.Join(dir, evidence.JournalFile)
			b, _ := os.ReadFile(path)
			b = []byte(strings.ReplaceAll(string(b), `"by":"supervisor"`, `"by":"somebody"`))
			if err := os.WriteFile(path, b, 0o644); err != nil {
				t.Fatal(err)
			}
			reseal(t, dir, nil)
		}},
		{"cleanup made complete", "P-COMPUTED", result(func(doc map[string]any) {
			doc["cleanup"].(map[string]any)["memory"].(map[string]any)["outside"].(map[string]any)["verdict"] = "not_returned"
		})},
		{"an overlap hidden", "P-COMPUTED", result(func(doc map[string]any) { part(doc, 1)["smids"].([]any)[0] = 0 })},
		{"a check made to pass", "P-COMPUTED", result(func(doc map[string]any) { doc["visible_devices"] = 2 })},
		{"a cycle's time", "P-COMPUTED", result(func(doc map[string]any) {
			doc["cycles"].(map[string]any)["rows"].([]any)[2].(map[string]any)["create_us"] = 99999999
		})},
		{"another output", "P-WITNESS", result(func(doc map[string]any) { part(doc, 0)["output_sha256"] = strings.Repeat("a", 64) })},
		{"SMs twice", "P-SMS", result(func(doc map[string]any) { part(doc, 0)["least_blocks_per_sm"] = 9 })},
		{"one destroyed less in the journal", "P-STEPS", func(t *testing.T, dir string) {
			path := filepath.Join(dir, evidence.JournalFile)
			b, _ := os.ReadFile(path)
			b = []byte(strings.Replace(string(b), `"step":"destroy_stream","phase":"end","index":1`, `"step":"destroy_stream","phase":"note","index":1`, 1))
			if err := os.WriteFile(path, b, 0o644); err != nil {
				t.Fatal(err)
			}
			reseal(t, dir, nil)
		}},
		{"another exit code", "P-EXIT", func(t *testing.T, dir string) { reseal(t, dir, func(m *evidence.Manifest) { m.ExitCode = 3 }) }},
		{"another role", "P-ROLE", func(t *testing.T, dir string) {
			edit(t, dir, evidence.PlanFile, func(doc map[string]any) { doc["role"].(map[string]any)["role"] = "heavy" })
			reseal(t, dir, func(m *evidence.Manifest) { m.Role.Role = "heavy" })
		}},
		{"a container's step", "P-CONTAINER", func(t *testing.T, dir string) {
			path := filepath.Join(dir, evidence.JournalFile)
			b, _ := os.ReadFile(path)
			b = []byte(strings.ReplaceAll(string(b), `"step":"initialise"`, `"step":"create_container"`))
			if err := os.WriteFile(path, b, 0o644); err != nil {
				t.Fatal(err)
			}
			reseal(t, dir, nil)
		}},
		{"other kernels", "P-KERNELS", func(t *testing.T, dir string) {
			reseal(t, dir, func(m *evidence.Manifest) { m.Kernels[0].SHA256 = strings.Repeat("b", 64) })
		}},
	} {
		dir := copyFolder(t, good)
		c.forge(t, dir)
		r, err := evidence.Verify(dir)
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		failed := r.Failed()
		if r.Holds || len(failed) != 1 || failed[0].Rule != c.rule || len(r.Establishes) > 0 {
			t.Errorf("%s: failed %+v, want %s alone", c.name, failed, c.rule)
		}
		tripped[c.rule] = true
	}
	for _, r := range evidence.Rules() {
		if !tripped[r[0]] {
			t.Errorf("no forgery trips %s", r[0])
		}
	}
	if _, err := evidence.Verify(t.TempDir()); err == nil {
		t.Error("an empty folder was read")
	}
}

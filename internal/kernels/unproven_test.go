package kernels

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"
)

// checkRecord is a record of bench/h200/check-gpu.sh: every test that needs a GPU ran on one and passed.
type checkRecord struct {
	SchemaVersion int    `json:"schema_version"`
	Operation     string `json:"operation"` // "check-gpu"
	GPU           string `json:"gpu"`
	Driver        string `json:"driver"`
	Date          string `json:"date"`     // the day, UTC
	Commit        string `json:"commit"`   // of what was built
	Modified      bool   `json:"modified"` // what was built wasn't that commit
	Modules       []struct {
		Name   string `json:"name"`
		SHA256 string `json:"sha256"` // of its PTX
	} `json:"modules"`
	Tests []string `json:"tests"` // binary and top-level test
}

var (
	hashForm   = regexp.MustCompile(`^[0-9a-f]{64}$`)
	commitForm = regexp.MustCompile(`^[0-9a-f]{40}$`)
	dateForm   = regexp.MustCompile(`^\d{4}-\d\d-\d\d$`)
)

// the tests without which a run is of something else.
var demanded = []string{"kernels TestProductOnGPU", "kernels TestAttentionOnGPU", "kernels TestDecodeAttentionRoPEOnGPU", "cuda TestLayer",
	"cuda TestRowsAreIndependent", "cuda TestSample", "cuda TestGreedyEqualsCPU", "cuda TestConversations", "cuda TestLogits"}

func parseRecord(data []byte) (checkRecord, error) {
	var r checkRecord
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	if err := d.Decode(&r); err != nil {
		return r, err
	}
	switch {
	case r.SchemaVersion != 1 || r.Operation != "check-gpu":
		return r, errors.New("not version 1 of a check-gpu record")
	case r.GPU == "" || r.Driver == "" || !dateForm.MatchString(r.Date):
		return r, errors.New("no GPU, driver or date")
	case r.Modified || !commitForm.MatchString(r.Commit):
		return r, errors.New("what ran wasn't built from a commit")
	case len(r.Modules) == 0:
		return r, errors.New("no modules")
	}
	for _, m := range r.Modules {
		if !hashForm.MatchString(m.SHA256) {
			return r, fmt.Errorf("%s has no hash", m.Name)
		}
	}
	for _, name := range demanded {
		if !slices.Contains(r.Tests, name) {
			return r, fmt.Errorf("%s didn't run", name)
		}
	}
	return r, nil
}

// wrongList says where a list of unproven modules isn't exact, given which hashes a record proves.
func wrongList(modules []ModuleInfo, proven func(sha256 string) bool, reasons map[string]string) []string {
	var wrong []string
	left := len(reasons)
	for _, m := range modules {
		_, listed := reasons[m.Name]
		if listed {
			left--
		}
		switch {
		case listed && proven(m.SHA256):
			wrong = append(wrong, m.Name+" is proven: take it off unproven.txt")
		case !listed && !proven(m.SHA256):
			wrong = append(wrong, m.Name+" as it is has passed no test on a GPU that is on record: list it in unproven.txt, or run bench/h200/check-gpu.sh")
		}
	}
	if left > 0 {
		wrong = append(wrong, "unproven.txt names what isn't in the manifest")
	}
	return wrong
}

// provenHashes gathers the evidence: records of check-gpu, and the public documents of probes and interference runs, which name the PTX that
// they ran and which .ci/run verifies.
func provenHashes(t *testing.T) map[string]bool {
	hashes := make(map[string]bool)
	records, err := filepath.Glob("../../evidence/kernels/*/check-gpu.json")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range records {
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		r, err := parseRecord(data)
		if err != nil {
			t.Errorf("%s: %v", path, err)
		}
		for _, m := range r.Modules {
			hashes[m.SHA256] = true
		}
	}
	z, err := zstd.NewReader(nil)
	if err != nil {
		t.Fatal(err)
	}
	defer z.Close()
	quoted := regexp.MustCompile(`"[0-9a-f]{64}"`)
	for _, glob := range []string{"probe/*/*/evidence.json", "interfere/*/*/evidence.json.zst"} {
		paths, err := filepath.Glob("../../evidence/" + glob)
		if err != nil || len(paths) == 0 {
			t.Fatalf("no evidence: %s %v", glob, err)
		}
		for _, path := range paths {
			data, err := os.ReadFile(path)
			if err == nil && strings.HasSuffix(path, ".zst") {
				data, err = z.DecodeAll(data, nil)
			}
			if err != nil {
				t.Fatal(err)
			}
			for _, h := range quoted.FindAll(data, -1) {
				hashes[string(h[1:65])] = true
			}
		}
	}
	return hashes
}

// Every module either has evidence of a GPU or is listed as having none.
func TestUnprovenIsExact(t *testing.T) {
	m, err := ReadManifest()
	if err != nil {
		t.Fatal(err)
	}
	reasons, err := Unproven()
	if err != nil {
		t.Fatal(err)
	}
	hashes := provenHashes(t)
	for _, wrong := range wrongList(m.Modules, func(h string) bool { return hashes[h] }, reasons) {
		t.Error(wrong)
	}
}

func TestWrongList(t *testing.T) {
	modules := []ModuleInfo{{Name: "a", SHA256: "1"}, {Name: "b", SHA256: "2"}}
	proven := func(h string) bool { return h == "1" }
	for name, c := range map[string]struct {
		list string
		want string
	}{
		"exact":        {"# why\nb: not run\n", ""},
		"not listed":   {"", "b as it is"},
		"proven":       {"a: not run\nb: not run\n", "a is proven"},
		"not a module": {"b: not run\nc: not run\n", "isn't in the manifest"},
	} {
		reasons, err := parseUnproven(c.list)
		if err != nil {
			t.Fatal(err)
		}
		wrong := strings.Join(wrongList(modules, proven, reasons), "\n")
		if c.want == "" && wrong != "" || !strings.Contains(wrong, c.want) {
			t.Errorf("%s: %q, want %q", name, wrong, c.want)
		}
	}
	for _, bad := range []string{"a\n", "a: x\na: y\n"} {
		if _, err := parseUnproven(bad); err == nil {
			t.Errorf("%q was read", bad)
		}
	}
}

func TestParseRecord(t *testing.T) {
	hash := strings.Repeat("ab", 32)
	tests, _ := json.Marshal(demanded)
	good := `{"schema_version": 1, "operation": "check-gpu", "gpu": "NVIDIA H200", "driver": "580.159.04", "date": "2026-12-01", "commit": "` + hash[:40] +
		`", "modified": false, "modules": [{"name": "a", "sha256": "` + hash + `"}], "tests": ` + string(tests) + `}`
	if _, err := parseRecord([]byte(good)); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ old, new, want string }{
		{`"schema_version": 1`, `"schema_version": 2`, "not version 1"},
		{`"check-gpu"`, `"check"`, "not version 1"},
		{`"NVIDIA H200"`, `""`, "no GPU"},
		{`"2026-12-01"`, `"today"`, "no GPU, driver or date"},
		{`"modified": false`, `"modified": true`, "wasn't built from a commit"},
		{hash[:40] + `", "mod`, `", "mod`, "wasn't built from a commit"},
		{`[{"name": "a", "sha256": "` + hash + `"}]`, `[]`, "no modules"},
		{`"sha256": "ab`, `"sha256": "`, "has no hash"},
		{"cuda TestLogits", "cuda TestOther", "cuda TestLogits didn't run"},
		{`"gpu"`, `"card"`, "unknown field"},
	} {
		if _, err := parseRecord([]byte(strings.Replace(good, c.old, c.new, 1))); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", c.new, err, c.want)
		}
	}
}

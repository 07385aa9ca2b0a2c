package fak

import (
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// set is a change to a document: members by path, nil takes one away.
type set map[string]any

// negatives break one of their rules each, and no other.
var negatives = []struct {
	rule, file string
	change     set
}{
	{"F-TYPE-01", "s5-1000", set{"prompt_tokens": 703890.5}},
	{"F-SPINE-01", "s5-1000", set{"verdict": "FAIL"}},
	{"F-SPINE-01", "s5-1000", set{"mode": "synthetic"}},
	{"F-SPINE-02", "s5-1000", set{"logical_shards": 999, "completed": 999, "turn_count": 999, "usage_responses": 999}},
	{"F-SPINE-03", "s5-1000", set{"usage_responses": 999}},
	{"F-SPINE-03", "s5-1000", set{"failed": 1}},
	{"F-SPINE-04", "s5-1000", set{"physical_workers": 1000}},
	{"F-SPINE-05", "s1-100", set{"peak_in_flight": 5}},
	{"F-SPINE-06", "s5-1000", set{"base_fingerprint": ""}},
	{"F-SPINE-06", "s5-1000", set{"shared_base_installs": nil}},
	{"F-SPINE-07", "s5-1000", set{"ttft_p95_ms": 1058.041}},
	{"F-SPINE-07", "s5-10000", set{"ttft_max_ms": 2872.645}},
	{"F-SPINE-08", "s5-1000", set{"decode_tokens_per_wall_second": 0}},
	{"F-SPINE-09", "s5-1000", set{"hardware": nil}},
	{"F-SPINE-10", "s5-1000", set{"resource_samples": 1}},
	{"F-SPINE-11", "s5-1000", set{"endpoint_peak_requests": 3}},
	{"F-SPINE-12", "s5-1000", set{"kv_capacity_evidence": ""}},
	{"F-SPINE-13", "s5-10000", set{"soak_contract": nil}},
	{"F-SPINE-14", "s5-10000", set{"base_rollback_count": 0}},
	{"F-SPINE-15", "s5-10000", set{"retry_recovered": 0}},
	{"F-SPINE-16", "s5-10000", set{"provider_transient_recovered": 3}},
	{"F-SPINE-17", "s5-10000", set{"restored_contexts": 9997}},
	{"F-API-01", "s6-api", set{"verdict": "FAIL"}},
	{"F-API-02", "s6-api", set{"completed": 3}},
	{"F-API-03", "s6-api", set{"adapter.concurrency_limit": 4}},
	{"F-API-04", "s6-api", set{"adapter.provider_managed": false}},
	{"F-API-05", "s6-api", set{"adapter.tpm_limit": 0}},
	{"F-API-06", "s6-api", set{"cached_prompt_tokens": 0}},
	{"F-API-07", "s6-api", set{"model": ""}},
	{"F-AB-01", "s2-prefix", set{"verdict": "FAIL"}},
	{"F-AB-02", "s2-prefix", set{"base_fingerprint": ""}},
	{"F-AB-03", "s2-prefix", set{"arms.1.completed": 11}},
	{"F-AB-04", "s2-prefix", set{"scope": ""}},
	{"F-KAB-01", "s2b-kernel", set{"warm_control": ""}},
	{"F-KAB-02", "s2b-kernel", set{"base_fingerprint_sha256": "70eb"}},
	{"F-KAB-03", "s2b-kernel", set{"shared.fresh_process": false}},
	{"F-KAB-04", "s2b-kernel", set{"shared.kernel_prompt_tokens_delta": 5609}},
	{"F-KAB-05", "s2b-kernel", set{"shared.rows.3.prompt_tokens": 702}},
	{"F-KAB-06", "s2b-kernel", set{"unique.prefix_mode": "shared"}},
	{"F-KAB-07", "s2b-kernel", set{"shared_vs_unique_wall_ratio": 2.161}},
	{"F-KAB-08", "s2b-kernel", set{"shared_warm_cached_fraction": 0.9}},
	{"F-KAB-09", "s2b-kernel", set{"excluded_claims": []any{}}},
	{"F-HIB-01", "s3-hibernation", set{"verdict": "FAIL"}},
	{"F-HIB-02", "s3-hibernation", set{"duplicate_effects": 1}},
	{"F-HIB-03", "s3-hibernation", set{"at_restart.hibernated": 999}},
	{"F-HIB-04", "s3-hibernation", set{"peak_resident": 17}},
	{"F-HIB-05", "s3-hibernation", set{"peak_alloc_delta_bytes": 67108865}},
	{"F-HIB-06", "s3-hibernation", set{"replay_turns_avoided": 999}},
	{"F-DESC-01", "s4a-descriptor", set{"base_installs": 2}},
	{"F-DESC-02", "s4a-descriptor", set{"arms": []any{map[string]any{"available": true, "contexts": 1000, "model_calls": 1000, "descriptor_bytes": 210}}}},
	{"F-DESC-03", "s4a-descriptor", set{"arms.3.model_calls": 999}},
	{"F-COMPAT-01", "s4b-compatibility", set{"verdict": "FAIL"}},
	{"F-COMPAT-02", "s4b-compatibility", set{"scheduled": 96}},
	{"F-COMPAT-03", "s4b-compatibility", set{"padding_tax": 0.101}},
	{"F-COMPAT-04", "s4b-compatibility", set{"batches": 0}},
	{"F-EFF-01", "s4c-effects", set{"verdict": "FAIL"}},
	{"F-EFF-02", "s4c-effects", set{"conflicts_refused": 0}},
	{"F-EFF-03", "s4c-effects", set{"physical_applies": 4}},
	{"F-TURN-01", "s4d-multi-turn", set{"descriptor_schema": "fak-micro-context-descriptor/1"}},
	{"F-TURN-02", "s4d-multi-turn", set{"accounted_turns": 2999}},
	{"F-TURN-03", "s4d-multi-turn", set{"continuation_mismatches": 1}},
	{"F-TURN-04", "s4d-multi-turn", set{"verified_restores": 999}},
	{"F-BATCH-01", "s4e-batch", set{"verdict": "FAIL"}},
	{"F-BATCH-02", "s4e-batch", set{"executed_batches": 2}},
	{"F-BATCH-03", "s4e-batch", set{"nonempty_logit_rows": 93}},
	{"F-BATCH-04", "s4e-batch", set{"batch_wall_ms": 0}},
	{"F-BATCH-05", "s4e-batch", set{"non_claims": nil}},
	{"F-FAIR-01", "s7-fairness", set{"verdict": "FAIL"}},
	{"F-FAIR-02", "s7-fairness", set{"refused_spend": 0}},
	{"F-FAIR-03", "s7-fairness", set{"per_tenant_scheduled.bulk": 201}},
	{"F-FAIR-04", "s7-fairness", set{"max_service_lag.interactive": 7}},
	{"F-FAIR-05", "s7-fairness", set{"bulk_wait_p95_ms": 0.75}},
	{"F-QUAL-01", "quality", set{"check_contract": ""}},
	{"F-QUAL-02", "quality", set{"verification.checked": 999}},
	{"F-QUAL-03", "quality", set{"outcomes": nil}}, // as in their ledger of rung S0
	{"F-QUAL-04", "quality", set{"claim_families.orchestration.submitted_total": 999}},
	{"F-QUAL-05", "quality", set{"sample_limit": 7}},
	{"F-HEALTH-01", "health", set{"score": 101}},
	{"F-HEALTH-02", "health", set{"refusals": 1}},
	{"F-HEALTH-03", "health", set{"failure_rate": -0.1}},
	{"F-HEALTH-04", "health", set{"reasons": []any{}}},
}

// contradictions are admitted by their rules and contradict themselves.
var contradictions = []struct {
	check, file string
	change      set
}{
	{"C-RATE-01", "s5-1000", set{"shards_per_second": 1.0}},
	{"C-RATE-01", "s5-1000", set{"elapsed_ms": 1045555, "prompt_tokens_per_wall_second": 703890 / 1045.5551, "decode_tokens_per_wall_second": 8000 / 1045.5551, "shards_per_second": 1000 / 1045.5551}},
	{"C-RATE-02", "s5-1000", set{"prompt_tokens": 703891}},
	{"C-TIME-01", "s5-1000", set{"ttft_p95_ms": 1143.635}},
	{"C-TRACE-01", "s5-10000", set{"resource_samples": 471}},
	{"C-TRACE-02", "s5-10000", set{"gpu_peak_power_watts": 35.87}},
	{"C-TRACE-03", "s5-10000", set{"observed_at_complete": "2026-08-09T06:54:47Z"}},
	{"C-TRACE-03", "s5-10000", set{"resource_trace.7.observed_at": "2026-08-09T01:58:40Z"}},
	{"C-TRACE-04", "s5-10000", set{"resource_trace.7.endpoint_requests_total": 10000}},
	{"C-COUNT-01", "s5-10000", set{"endpoint_request_counter.expected_canary_turns": 2}},
	{"C-AB-01", "s2-prefix", set{"arms.0.wall_ms": 75479}},
	{"C-AB-02", "s2-prefix", set{"shared_vs_unique_ttft_ratio": 1.02}},
	{"C-KAB-01", "s2b-kernel", set{"shared.warm_rest.cached_prompt_tokens": 4859}},
	{"C-KAB-02", "s2b-kernel", set{"shared.contexts_per_second": 0.25549, "shared_vs_unique_throughput_ratio": 0.25549 / 0.11823601069504032}},
	{"C-KAB-03", "s2b-kernel", set{"shared_warm_cached_fraction": 0.999}},
	{"C-KAB-04", "s2b-kernel", set{"unique.ttft_p50_ms": 8000.0}},
	{"C-HIB-01", "s3-hibernation", set{"queue_age_max_us": 1005}},
	{"C-DESC-01", "s4a-descriptor", set{"arms.0.startup_p95_us": 160329}},
	{"C-COMPAT-01", "s4b-compatibility", set{"batch_ids.1.0": "w-001"}},
	{"C-TURN-01", "s4d-multi-turn", set{"wall_ns": 4486225500}},
	{"C-BATCH-01", "s4e-batch", set{"real_padding_tax": 0.1}},
	{"C-BATCH-02", "s4e-batch", set{"batch_vs_sequential_throughput_ratio": 1.2}},
	{"C-FAIR-01", "s7-fairness", set{"per_tenant_scheduled.third": 1}},
	{"C-QUAL-01", "quality", set{"claim_families.useful_work.per_wall_second": 1.0}},
	{"C-HEALTH-01", "health", set{"failure_rate": 0.1}},
	{"C-HEALTH-02", "health", set{"grade": "B"}},
}

func files(t testing.TB) []string {
	t.Helper()
	paths, err := filepath.Glob("testdata/*.json")
	if err != nil || len(paths) < 16 {
		t.Fatalf("%d documents under testdata: %v", len(paths), err)
	}
	var out []string
	for _, p := range paths {
		out = append(out, strings.TrimSuffix(filepath.Base(p), ".json"))
	}
	return out
}

// document reads one of testdata and changes it. The ledger of 10,000 contexts gets the trace that its sums are of.
func document(t testing.TB, name string, change set) []byte {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("testdata", name+".json"))
	if err != nil {
		t.Fatal(err)
	}
	var v map[string]any
	if err := json.Unmarshal(b, &v); err != nil {
		t.Fatal(err)
	}
	if name == "s5-10000" {
		v["resource_trace"] = trace()
	}
	for path, value := range change {
		put(t, v, strings.Split(path, "."), value)
	}
	if b, err = json.Marshal(v); err != nil {
		t.Fatal(err)
	}
	return b
}

// trace is a sample each 30 s and a little over the run of 10,000 contexts, at the request counts and peaks that it is published with.
func trace() []any {
	start := time.Date(2026, 8, 9, 1, 58, 40, 0, time.UTC)
	var out []any
	for i := range 472 {
		out = append(out, map[string]any{"observed_at": start.Add(time.Duration(30*i+i/36) * time.Second).Format(time.RFC3339), "client_rss_bytes": 31_883_264 - 4096*i,
			"server_rss_bytes": 5_305_233_408 - 4096*((i+3)%472), "server_heap_alloc_bytes": 4_631_053_864 - i%4*500_000_000, "endpoint_inflight_requests": 2 + min(i, 1),
			"endpoint_requests_total": 10_070 + i*21, "gpu_memory_used_mib": 2312.0, "gpu_power_watts": 35.86 - float64(i%7)/10, "gpu_utilization_percent": 0.0})
	}
	out[469].(map[string]any)["server_rss_bytes"] = 5_305_233_408
	return out
}

func put(t testing.TB, v any, path []string, value any) {
	t.Helper()
	switch c := v.(type) {
	case map[string]any:
		if len(path) > 1 {
			put(t, c[path[0]], path[1:], value)
			return
		}
		if c[path[0]] = value; value == nil {
			delete(c, path[0])
		}
	case []any:
		i, err := strconv.Atoi(path[0])
		if err != nil || i >= len(c) {
			t.Fatalf("no %v", path)
		}
		if len(path) > 1 {
			put(t, c[i], path[1:], value)
			return
		}
		c[i] = value
	default:
		t.Fatalf("nothing at %v", path)
	}
}

func judge(t testing.TB, b []byte) *Report {
	t.Helper()
	r, err := Judge(b)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func failed(list []Result) []string {
	var out []string
	for _, r := range list {
		if r.Result == Fail {
			out = append(out, r.ID)
		}
	}
	return out
}

func TestPublishedFiguresAreAdmitted(t *testing.T) {
	for _, name := range files(t) {
		r := judge(t, document(t, name, nil))
		if name == "s1-100-overload" { // kept by its authors as a failure
			if got := failed(r.Rules); !slices.Equal(got, []string{"F-SPINE-01", "F-SPINE-03"}) || r.ExitCode() != 3 {
				t.Errorf("%s: %v, exit code %d", name, got, r.ExitCode())
			}
			continue
		}
		if r.Compat != Admit || !r.Holds || r.ExitCode() != 0 {
			t.Errorf("%s: %+v", name, r.Failed())
		}
		if r.Strict != Refuse || len(r.Gaps) < 2 {
			t.Errorf("%s: strict grade %s, gaps %+v", name, r.Strict, r.Gaps)
		}
	}
}

func TestEachRuleHasItsNegative(t *testing.T) {
	covered, contradicted := map[string]bool{}, map[string]bool{}
	for _, n := range negatives {
		covered[n.rule] = true
		r := judge(t, document(t, n.file, n.change))
		if got := failed(r.Rules); !slices.Equal(got, []string{n.rule}) || r.Compat != Refuse || r.ExitCode() != 3 {
			t.Errorf("%s, %v: %v failed, %s", n.rule, n.change, got, r.Compat)
		}
	}
	for _, n := range contradictions {
		contradicted[n.check] = true
		r := judge(t, document(t, n.file, n.change))
		if r.Compat != Admit || r.Holds || r.ExitCode() != 3 || !slices.Contains(failed(r.Checks), n.check) {
			t.Errorf("%s, %v: %s, failed %+v", n.check, n.change, r.Compat, r.Failed())
		}
	}
	for _, k := range kinds() {
		for _, rule := range k.rules {
			if !covered[rule.id] {
				t.Errorf("%s has no negative", rule.id)
			}
		}
		for _, c := range k.checks {
			if !contradicted[c.id] {
				t.Errorf("%s has no contradiction", c.id)
			}
		}
	}
}

func TestGapsByName(t *testing.T) {
	for name, want := range map[string][]string{
		"s1-100":         {"no-rows", "asserted-peak", "label-fingerprint", "ttft≈latency", "no-hash-chain", "length-capped", "no-oracle", "percentile-undefined"},
		"s5-1000":        {"no-rows", "asserted-peak", "label-fingerprint", "ttft≈latency", "no-hash-chain", "length-capped", "no-oracle", "percentile-undefined"},
		"s5-10000":       {"no-rows", "asserted-peak", "label-fingerprint", "ttft≈latency", "no-hash-chain", "gpu-util-all-zero", "length-capped", "trace-present-but-unbound", "no-oracle", "percentile-undefined", "unknown-members"},
		"s6-api":         {"no-rows", "asserted-peak", "label-fingerprint", "no-hash-chain", "length-capped", "no-oracle", "percentile-undefined"},
		"s2-prefix":      {"no-rows", "no-hash-chain", "label-fingerprint", "no-reuse-seen", "one-repetition", "renamed-members"},
		"s2b-kernel":     {"rows-unbound", "no-hash-chain", "ttft≈latency", "one-repetition", "percentile-undefined"},
		"s4e-batch":      {"no-rows", "no-hash-chain", "no-oracle", "slower-than-baseline", "one-repetition"},
		"quality":        {"no-rows", "no-hash-chain", "vacuous-check", "label-fingerprint"},
		"s3-hibernation": {"no-rows", "no-hash-chain", "no-model", "asserted-restores", "no-crash"},
	} {
		var got []string
		for _, g := range judge(t, document(t, name, nil)).Gaps {
			got = append(got, g.Name)
			if len(g.Detail) < 10 {
				t.Errorf("%s: gap %s isn't explained", name, g.Name)
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s: gaps %v\nwant %v", name, got, want)
		}
	}
	// Gaps go where their reason goes.
	r := judge(t, document(t, "s5-1000", set{"base_fingerprint": strings.Repeat("ab", 32), "ttft_p50_ms": 300.0, "completion_tokens": 7900, "decode_tokens_per_wall_second": 7900 / 1045.554, "failed": nil}))
	var got []string
	for _, g := range r.Gaps {
		got = append(got, g.Name)
	}
	if want := []string{"no-rows", "asserted-peak", "no-hash-chain", "no-oracle", "percentile-undefined", "absent-reads-as-zero"}; !slices.Equal(got, want) {
		t.Errorf("gaps %v, want %v", got, want)
	}
}

func TestSixteenMembersOfTheLargeLedgerAreUnknown(t *testing.T) {
	for _, g := range judge(t, document(t, "s5-10000", nil)).Gaps {
		if g.Name == "unknown-members" && !strings.HasPrefix(g.Detail, "16 members") {
			t.Errorf("%s", g.Detail)
		}
	}
}

func TestForm(t *testing.T) {
	good := string(document(t, "s5-1000", nil))
	twice := strings.Replace(good, `"failed":0`, `"failed":7,"failed":0`, 1)
	r := judge(t, []byte(twice))
	if g := r.Gaps[len(r.Gaps)-1]; r.Compat != Admit || g.Name != "duplicate-members" || !strings.Contains(g.Detail, "failed") {
		t.Errorf("a member that comes twice: %s, %+v", r.Compat, g)
	}
	for name, text := range map[string]string{
		"empty": "", "no object": "[1]", "cut": good[:len(good)/2], "two documents": good + good, "invalid UTF-8": strings.Replace(good, "L4", "\xff", 1),
		"another schema": strings.Replace(good, "spine/1", "spine/2", 1), "no schema": `{"verdict":"PASS"}`, "ours": `{"schema_version":1,"operation":"soak"}`,
		"deep": strings.Repeat(`{"a":`, 100) + "1" + strings.Repeat("}", 100), "large": `{"schema":"` + strings.Repeat("x", maxDocument) + `"}`,
		"an input of theirs that is no ledger": `{"schema":"fak-microcontext-large-input/1"}`,
	} {
		if _, err := Judge([]byte(text)); err == nil {
			t.Errorf("%s was read", name)
		}
	}
	if !Is([]byte(good)) || Is([]byte(`{"schema":"other"}`)) || Is([]byte("{")) || Is(nil) {
		t.Error("a document of theirs isn't told from others")
	}
	if len(Schemas()) != 12 {
		t.Errorf("schemas %v", Schemas())
	}
}

// TestAnotherTypeAnywhere puts a value of another type at each member of each document: the answer is a refusal or the same as
// before, never a panic.
func TestAnotherTypeAnywhere(t *testing.T) {
	for _, name := range files(t) {
		var v map[string]any
		if err := json.Unmarshal(document(t, name, nil), &v); err != nil {
			t.Fatal(err)
		}
		for _, key := range slices.Sorted(maps.Keys(v)) {
			for _, other := range []any{nil, true, "text", 1e300, -1, []any{nil, 1, []any{}}, map[string]any{"a": nil}} {
				change := set{"resource_trace": trace()[:3]} // a short one: it is read each time
				change[key] = other
				if r, err := Judge(document(t, name, change)); err == nil && len(r.Rules) == 0 {
					t.Errorf("%s: no rule answers with %s = %v", name, key, other)
				}
			}
		}
	}
}

func TestTable(t *testing.T) {
	ids := map[string]bool{}
	for _, k := range kinds() {
		for _, r := range k.rules {
			if ids[r.id] || r.title == "" {
				t.Errorf("%s comes twice or has no title", r.id)
			}
			ids[r.id] = true
		}
		for name := range k.aliases {
			if _, ok := k.members[name]; ok {
				t.Errorf("%s: %s is a member and an older name", k.schema, name)
			}
		}
		if k.gaps == nil || k.about == "" {
			t.Errorf("%s has no gaps or isn't described", k.schema)
		}
	}
}

func FuzzJudge(f *testing.F) {
	for _, name := range files(f) {
		f.Add(document(f, name, nil))
	}
	f.Add([]byte(`{"schema":"fak-microcontext-prefix-ab/1","arms":[null,{"wall_ms":1e999}],"shared_vs_unique_throughput_ratio":-0.0}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := Judge(b)
		if err != nil {
			return
		}
		if r.Holds != (r.Compat == Admit && len(r.Failed()) == 0) || r.Strict != Refuse {
			t.Fatalf("%+v", r)
		}
		if _, err := json.Marshal(r); err != nil {
			t.Fatal(err)
		}
	})
}

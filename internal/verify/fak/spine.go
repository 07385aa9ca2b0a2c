package fak

import (
	"fmt"
	"math"
	"strings"
)

const (
	spineSchema = "fak-microcontext-spine/1"
	rungAPI     = "S6"
)

// spineMembers are what their decoder knows of a spine ledger.
func spineMembers() map[string]memberType {
	return members(isText, "verdict mode provider model hardware base_fingerprint scope",
		maybe(isText), "first_failure endpoint kv_capacity_evidence queue_evidence result_check soak_contract observed_reuse claim_boundary",
		isInt, "logical_shards physical_workers completed failed shared_base_installs turn_count peak_in_flight elapsed_ms prompt_tokens completion_tokens usage_responses",
		maybe(isInt), "cached_prompt_tokens resource_samples client_peak_rss_bytes server_peak_rss_bytes server_peak_heap_alloc_bytes endpoint_peak_requests canary_contexts canary_passed base_rollback_count retry_injected retry_recovered cancellation_injected cancellation_recovered provider_transient_failures provider_transient_recovered max_attempts queue_peak_contexts hibernated_contexts restored_contexts live_input_records",
		isNumber, "shards_per_second ttft_p50_ms ttft_p95_ms latency_p50_ms latency_p95_ms prompt_tokens_per_wall_second decode_tokens_per_wall_second",
		maybe(isNumber), "ttft_max_ms latency_max_ms verified_nonempty_results_per_wall_second",
		maybe(isObject), "adapter")
}

// spine is the ledger of a run against an endpoint.
func spine() kind {
	return kind{schema: spineSchema, rung: "S0, S1, S5", about: "logical contexts over a bounded number of workers against one endpoint", members: spineMembers(),
		rules: append(spineRules(), controlledRules()...), checks: spineChecks(), gaps: spineGaps}
}

func spineRules() []rule {
	const deep = 1000
	return []rule{
		{"F-SPINE-01", "passed, over a real endpoint", 0, func(d doc) string { return first(is(d, "verdict", "PASS"), is(d, "mode", "openai-compatible")) }},
		{"F-SPINE-02", "a declared scale", 0, func(d doc) string {
			switch n := d.integer("logical_shards"); n {
			case 100, 1000, 10000:
				return ""
			default:
				return fmt.Sprintf("logical_shards is %d: want 100, 1000 or 10000", n)
			}
		}},
		{"F-SPINE-03", "submitted = completed = turns = usage responses, none failed", 0, func(d doc) string {
			return first(same(d, "logical_shards", "completed", "turn_count", "usage_responses"), equal(d, 0, "failed"))
		}},
		{"F-SPINE-04", "workers bounded below contexts", 0, func(d doc) string { return within(d, "physical_workers", 1, d.integer("logical_shards")-1) }},
		{"F-SPINE-05", "peak in flight within workers", 0, func(d doc) string { return within(d, "peak_in_flight", 1, d.integer("physical_workers")) }},
		{"F-SPINE-06", "one shared base", 0, func(d doc) string { return first(equal(d, 1, "shared_base_installs"), said(d, "base_fingerprint")) }},
		{"F-SPINE-07", "tokens and times to first token", 0, func(d doc) string {
			broken := first(positive(d, "prompt_tokens", "completion_tokens", "ttft_p50_ms"), ordered(d, "ttft_p50_ms", "ttft_p95_ms"))
			if d.number("ttft_max_ms") > 0 {
				broken = first(broken, ordered(d, "ttft_p95_ms", "ttft_max_ms"))
			}
			return broken
		}},
		{"F-SPINE-08", "wall time and token rates", 0, func(d doc) string {
			return positive(d, "elapsed_ms", "prompt_tokens_per_wall_second", "decode_tokens_per_wall_second")
		}},
		{"F-SPINE-09", "scope and provenance", 0, func(d doc) string { return said(d, "scope", "provider", "model", "hardware") }},
		{"F-SPINE-10", "resources of client and server", deep, func(d doc) string {
			return first(within(d, "resource_samples", 2, math.MaxInt64), positive(d, "client_peak_rss_bytes", "server_peak_rss_bytes", "server_peak_heap_alloc_bytes"))
		}},
		{"F-SPINE-11", "the endpoint saw the workers and its probe at most", deep, func(d doc) string {
			return within(d, "endpoint_peak_requests", 1, d.integer("physical_workers")+1)
		}},
		{"F-SPINE-12", "the claim's boundary", deep, func(d doc) string {
			return first(said(d, "kv_capacity_evidence", "queue_evidence", "result_check"), positive(d, "verified_nonempty_results_per_wall_second"))
		}},
	}
}

// controlledRules are those of the controlled soak of 10,000 contexts.
func controlledRules() []rule {
	const controlled = 10_000
	return []rule{
		{"F-SPINE-13", "the controlled contract", controlled, func(d doc) string { return is(d, "soak_contract", "controlled-10k-v1") }},
		{"F-SPINE-14", "a canary and one rollback", controlled, func(d doc) string {
			return first(within(d, "canary_contexts", 1, math.MaxInt64), same(d, "canary_contexts", "canary_passed"), equal(d, 1, "base_rollback_count"))
		}},
		{"F-SPINE-15", "one retry and one cancellation, both recovered, in three attempts", controlled, func(d doc) string {
			return first(equal(d, 1, "retry_injected", "retry_recovered", "cancellation_injected", "cancellation_recovered"), equal(d, 3, "max_attempts"))
		}},
		{"F-SPINE-16", "the provider's own failures recovered", controlled, func(d doc) string {
			return same(d, "provider_transient_failures", "provider_transient_recovered")
		}},
		{"F-SPINE-17", "all queued, all but the workers' contexts parked and restored", controlled, func(d doc) string {
			return first(same(d, "logical_shards", "queue_peak_contexts"), equal(d, d.integer("logical_shards")-d.integer("physical_workers"), "hibernated_contexts"),
				same(d, "hibernated_contexts", "restored_contexts"))
		}},
	}
}

// apiOnly is the same ledger over a provider's API, which admits fewer requests at once than there are workers.
func apiOnly() kind {
	all := spineMembers()
	for _, name := range strings.Fields("cached_prompt_tokens observed_reuse claim_boundary adapter") {
		t := all[name]
		t.needed = true
		all[name] = t
	}
	return kind{schema: spineSchema, rung: rungAPI, about: "a few contexts over a provider's API", members: all, checks: spineChecks(), gaps: spineGaps, rules: []rule{
		{"F-API-01", "passed", 0, func(d doc) string { return is(d, "verdict", "PASS") }},
		{"F-API-02", "submitted = completed = turns = usage responses, none failed", 0, func(d doc) string {
			return first(within(d, "logical_shards", 2, math.MaxInt64), same(d, "logical_shards", "completed", "turn_count", "usage_responses"), equal(d, 0, "failed"))
		}},
		{"F-API-03", "more workers than the provider admits at once", 0, func(d doc) string {
			limit := d.object("adapter").integer("concurrency_limit")
			return unless(limit >= 1 && d.integer("physical_workers") > limit, "physical_workers is %d, adapter.concurrency_limit %d: want more, and at least 1", d.integer("physical_workers"), limit)
		}},
		{"F-API-04", "the boundary of an API alone", 0, func(d doc) string {
			a := d.object("adapter")
			return first(is(a, "mode", "api-only"), is(a, "credential_class", "keyed-billing-credential"), unless(a.flag("provider_managed"), "adapter.provider_managed is false"))
		}},
		{"F-API-05", "the provider's limits and reuse", 0, func(d doc) string {
			a := d.object("adapter")
			return first(positive(a, "rpm_limit", "tpm_limit"), said(a, "reuse_control", "reuse_evidence"))
		}},
		{"F-API-06", "what was seen", 0, func(d doc) string {
			return first(positive(d, "cached_prompt_tokens", "ttft_p50_ms"), said(d, "observed_reuse", "claim_boundary"), ordered(d, "ttft_p50_ms", "ttft_p95_ms"))
		}},
		{"F-API-07", "provenance", 0, func(d doc) string { return said(d, "provider", "model") }},
	}}
}

// ttftIsLatency tells an answer that came in one piece by the medians, as our own rule tells a row: within 1 ms or 1 % of latency.
func ttftIsLatency(d doc) bool {
	ttft, latency := d.number("ttft_p50_ms"), d.number("latency_p50_ms")
	return d.integer("completion_tokens") > d.integer("usage_responses") && ttft > 0 && latency > 0 && latency-ttft < math.Max(1, latency/100)
}

func spineGaps(d doc) []Gap {
	var out []Gap
	add := func(name, format string, args ...any) { out = append(out, Gap{name, fmt.Sprintf(format, args...)}) }
	add("no-rows", "no request has a row: nothing of what is summed can be computed again")
	if w := d.integer("physical_workers"); d.integer("peak_in_flight") == w {
		add("asserted-peak", "peak_in_flight equals physical_workers, %d: their client sets it so and doesn't count", w)
	}
	if f := d.text("base_fingerprint"); !isHex(f, 64) {
		add("label-fingerprint", "base_fingerprint is the label %q, no hash of the bytes that were sent", clip(f, 60))
	}
	if ttftIsLatency(d) {
		add("ttft≈latency", "the medians of first token and latency lie %.3f ms apart at %.1f completion tokens a turn: answers came in one piece, or latency stands in for the first token",
			d.number("latency_p50_ms")-d.number("ttft_p50_ms"), float64(d.integer("completion_tokens"))/float64(max(1, d.integer("usage_responses"))))
	}
	add("no-hash-chain", "no hash in it binds anything: a changed number leaves no trace")
	trace := d.objects("resource_trace")
	if len(trace) > 0 && most(trace, "gpu_utilization_percent") == 0 {
		add("gpu-util-all-zero", "all %d samples of the GPU's utilisation are 0", len(trace))
	}
	if n, k := d.integer("completion_tokens"), d.integer("usage_responses"); k >= 2 && n > k && n%k == 0 {
		add("length-capped", "%d completion tokens are exactly %d a turn: answers were cut by length", n, n/k)
	}
	if len(trace) > 0 {
		add("trace-present-but-unbound", "resource_trace has %d samples that no rule of theirs reads, and what resource_trace_sha256 is the hash of isn't said", len(trace))
	}
	add("no-oracle", "a result is nonempty text with usage; nothing asks whether it is right")
	add("percentile-undefined", "which order statistic a percentile is isn't said, and without rows it can't be found out; no bound, no n")
	return out
}

func isHex(s string, n int) bool {
	return len(s) == n && strings.Trim(s, "0123456789abcdef") == ""
}

// most is the largest value of a member, 0 where none has it.
func most(list []doc, name string) float64 {
	top := 0.0
	for _, d := range list {
		top = math.Max(top, d.number(name))
	}
	return top
}

package fak

import (
	"fmt"
	"math"
	"slices"
	"strings"
)

const prefixABSchema = "fak-microcontext-prefix-ab/1"

// prefixAB is three arms over one endpoint: unique prompts, a shared base, and the shared base one by one.
func prefixAB() kind {
	return kind{schema: prefixABSchema, rung: "S2", about: "a shared prefix against unique prompts, and one by one",
		members: members(isText, "verdict base_fingerprint reuse_evidence claim_verdict scope", maybe(isText), "observed_at provider model hardware canonicalization",
			isInt, "shards_per_arm", isList, "arms", maybe(isList), "reuse_limits", maybe(isObject), "provider_native_batch",
			isNumber, "shared_vs_unique_throughput_ratio shared_vs_unique_ttft_ratio"),
		// The published document is older than the verifier that is published with it.
		aliases: map[string]string{"contexts_per_arm": "shards_per_arm", "cache_evidence": "reuse_evidence", "cache_miss_reasons": "reuse_limits",
			"logical_contexts": "logical_shards", "contexts_per_second": "shards_per_second"},
		rules: []rule{
			{"F-AB-01", "passed", 0, func(d doc) string { return is(d, "verdict", "PASS") }},
			{"F-AB-02", "three arms of two contexts or more, over one base", 0, func(d doc) string {
				return first(unless(len(d.objects("arms")) == 3, "%d arms: want 3", len(d.objects("arms"))), within(d, "shards_per_arm", 2, math.MaxInt64), said(d, "base_fingerprint"))
			}},
			{"F-AB-03", "each arm is whole", 0, eachArm(func(d, arm doc) string {
				return first(equal(arm, d.integer("shards_per_arm"), "completed"), equal(arm, 0, "failed"), positive(arm, "prompt_tokens", "ttft_p50_ms"))
			})},
			{"F-AB-04", "evidence, verdict and scope are said", 0, func(d doc) string { return said(d, "reuse_evidence", "claim_verdict", "scope") }},
		},
		checks: []check{
			{"C-AB-01", "each arm's rates are its counts over its wall time", func(d doc) (string, string) {
				return eachArm(func(_, arm doc) string {
					ms := arm.integer("wall_ms")
					return first(rateFits(arm, "shards_per_second", arm.number("logical_shards"), ms), rateFits(arm, "prompt_tokens_per_wall_second", arm.number("prompt_tokens"), ms),
						rateFits(arm, "decode_tokens_per_wall_second", arm.number("completion_tokens"), ms))
				})(d), ""
			}},
			{"C-AB-02", "ratios are those of the arms", func(d doc) (string, string) {
				arms := d.objects("arms")
				if len(arms) < 2 {
					return "", "fewer than two arms"
				}
				u, s := arms[0], arms[1]
				return first(ratioNear(d, "shared_vs_unique_throughput_ratio", s.number("shards_per_second"), u.number("shards_per_second"), rateTolerance),
					ratioNear(d, "shared_vs_unique_ttft_ratio", s.number("ttft_p50_ms"), u.number("ttft_p50_ms"), rateTolerance)), ""
			}},
		},
		gaps: func(d doc) []Gap {
			out := []Gap{{"no-rows", "no request has a row: the arms are sums"}, {"no-hash-chain", "no hash in it binds anything"}}
			if f := d.text("base_fingerprint"); !isHex(f, 64) {
				out = append(out, Gap{"label-fingerprint", fmt.Sprintf("base_fingerprint is the label %q, no hash of the bytes that were sent", clip(f, 60))})
			}
			cached := 0.0
			for _, arm := range d.objects("arms") {
				cached += arm.number("cached_prompt_tokens")
			}
			if cached == 0 {
				out = append(out, Gap{"no-reuse-seen", "no arm has a cached token, so that the ratios say nothing of a prefix cache"})
			}
			return append(out, Gap{"one-repetition", "each arm ran once, in one order: no interval, and drift can't be told from effect"})
		}}
}

// eachArm applies a condition to the members of arms.
func eachArm(broken func(d, arm doc) string) func(d doc) string {
	return func(d doc) string {
		arms := d.objects("arms")
		if len(arms) != len(d.list("arms")) {
			return "an arm isn't an object"
		}
		for _, arm := range arms {
			if bad := broken(d, arm); bad != "" {
				return fmt.Sprintf("arm %s: %s", clip(arm.text("name"), 60), bad)
			}
		}
		return ""
	}
}

// ratioNear compares a stored ratio with a over b.
func ratioNear(d doc, name string, a, b, part float64) string {
	if b == 0 {
		return ""
	}
	return near(name, d.number(name), a/b, part)
}

const kernelABSchema = "fak-microcontext-kernel-prefix-ab/1"

// kernelPrefixAB is their best ledger: it has a row per request, and its verifier sums them.
func kernelPrefixAB() kind {
	texts := "captured_at endpoint_mode cache_implementation model model_artifact hardware forward_path reset_control warm_control unique_mutation tuned_sequential_baseline provider_native_batch_status claim_scope"
	return kind{schema: kernelABSchema, rung: "S2b", about: "a shared prefix against unique prompts on a prefix cache, with a row per request",
		members: members(isText, texts+" base_fingerprint_sha256 claim_verdict", isObject, "unique shared", isBool, "usage_kernel_reconciliation", isList, "excluded_claims",
			isNumber, "shared_vs_unique_throughput_ratio shared_vs_unique_wall_ratio shared_warm_cached_fraction"),
		rules: []rule{
			{"F-KAB-01", "controls and provenance are said", 0, func(d doc) string { return said(d, strings.Fields(texts)...) }},
			{"F-KAB-02", "a fingerprint of 64 digits, a net-true verdict, usage reconciled", 0, func(d doc) string {
				return first(unless(len(d.text("base_fingerprint_sha256")) == 64, "base_fingerprint_sha256 has %d digits: want 64", len(d.text("base_fingerprint_sha256"))),
					is(d, "claim_verdict", "net-true"), unless(d.flag("usage_kernel_reconciliation"), "usage_kernel_reconciliation is false"))
			}},
			{"F-KAB-03", "each arm is whole, on one worker of a fresh process", 0, bothArms(func(arm doc) string {
				n := arm.integer("contexts")
				return first(unless(arm.flag("fresh_process"), "fresh_process is false"), within(arm, "contexts", 2, math.MaxInt64), equal(arm, 1, "physical_workers"),
					equal(arm, n, "completed"), equal(arm, 0, "failed"), unless(int64(len(arm.list("rows"))) == n, "%d rows of %d contexts", len(arm.list("rows")), n))
			})},
			{"F-KAB-04", "the kernel's counters are usage's", 0, bothArms(func(arm doc) string {
				return first(same(arm, "contexts", "kernel_turns_delta"), same(arm, "prompt_tokens", "kernel_prompt_tokens_delta"), same(arm, "cached_prompt_tokens", "kernel_reused_tokens_delta"))
			})},
			{"F-KAB-05", "sums are those of the rows, none of them empty", 0, bothArms(func(arm doc) string {
				prompt, cached := int64(0), int64(0)
				for i, row := range arm.objects("rows") {
					if !row.flag("nonempty") {
						return fmt.Sprintf("row %d is empty", i)
					}
					prompt, cached = prompt+row.integer("prompt_tokens"), cached+row.integer("cached_prompt_tokens")
				}
				return first(equal(arm, prompt, "prompt_tokens"), equal(arm, cached, "cached_prompt_tokens"))
			})},
			{"F-KAB-06", "arms are what they are called, and the shared one reused more", 0, func(d doc) string {
				u, s := d.object("unique"), d.object("shared")
				return first(is(u, "prefix_mode", "unique"), is(s, "prefix_mode", "shared"), unless(s.integer("kernel_reused_tokens_delta") > u.integer("kernel_reused_tokens_delta"),
					"the shared arm reused %d tokens, the unique one %d", s.integer("kernel_reused_tokens_delta"), u.integer("kernel_reused_tokens_delta")))
			}},
			{"F-KAB-07", "ratios are those of the arms", 0, func(d doc) string {
				u, s := d.object("unique"), d.object("shared")
				return first(ratioWithin(d, "shared_vs_unique_throughput_ratio", s.number("contexts_per_second"), u.number("contexts_per_second")),
					ratioWithin(d, "shared_vs_unique_wall_ratio", u.number("wall_ms"), s.number("wall_ms")))
			}},
			{"F-KAB-08", "warm requests reused more than nine tenths", 0, func(d doc) string {
				f := d.number("shared_warm_cached_fraction")
				return unless(f > 0.9, "shared_warm_cached_fraction is %v", f)
			}},
			{"F-KAB-09", "what isn't claimed is said", 0, func(d doc) string { return some(d, "excluded_claims") }},
		},
		checks: kernelABChecks(), gaps: kernelABGaps}
}

// bothArms applies a condition to unique and shared.
func bothArms(broken func(arm doc) string) func(d doc) string {
	return func(d doc) string {
		for _, name := range []string{"unique", "shared"} {
			arm := d.object(name)
			if arm == nil {
				return name + " isn't there"
			}
			if bad := broken(arm); bad != "" {
				return name + ": " + bad
			}
		}
		return ""
	}
}

// ratioWithin is their own tolerance of a ratio.
func ratioWithin(d doc, name string, a, b float64) string {
	if got := d.number(name); !(math.Abs(a/b-got) <= 1e-6) { // a NaN breaks it too
		return fmt.Sprintf("%s is %v, the arms give %v", name, got, a/b)
	}
	return ""
}

func kernelABChecks() []check {
	return []check{
		{"C-KAB-01", "the first and the other rows are summed apart", func(d doc) (string, string) {
			return bothArms(func(arm doc) string {
				rows := arm.objects("rows")
				if len(rows) == 0 {
					return "no rows"
				}
				cached, wall := int64(0), 0.0
				for _, row := range rows[1:] {
					cached, wall = cached+row.integer("cached_prompt_tokens"), wall+row.number("wall_ms")
				}
				cold, warm := arm.object("cold_first"), arm.object("warm_rest")
				return first(equal(cold, rows[0].integer("cached_prompt_tokens"), "cached_prompt_tokens"), equal(warm, int64(len(rows)-1), "contexts"), equal(warm, cached, "cached_prompt_tokens"),
					near("cold_first.wall_ms", cold.number("wall_ms"), rows[0].number("wall_ms"), rateTolerance), near("warm_rest.wall_ms", warm.number("wall_ms"), wall, rateTolerance),
					unless(arm.number("wall_ms") >= wall+rows[0].number("wall_ms"), "wall_ms is %v, below the rows' sum", arm.number("wall_ms")))
			})(d), ""
		}},
		{"C-KAB-02", "contexts over wall time", func(d doc) (string, string) {
			return bothArms(func(arm doc) string {
				return ratioNear(arm, "contexts_per_second", arm.number("contexts")*1000, arm.number("wall_ms"), 1e-6)
			})(d), ""
		}},
		{"C-KAB-03", "the warm fraction is that of the rows", func(d doc) (string, string) {
			rows := d.object("shared").objects("rows")
			cached, prompt := 0.0, 0.0
			for _, row := range rows[min(1, len(rows)):] {
				cached, prompt = cached+row.number("cached_prompt_tokens"), prompt+row.number("prompt_tokens")
			}
			if prompt == 0 {
				return "", "no warm rows"
			}
			return near("shared_warm_cached_fraction", d.number("shared_warm_cached_fraction"), cached/prompt, rateTolerance), ""
		}},
		{"C-KAB-04", "medians lie within the rows", func(d doc) (string, string) {
			return bothArms(func(arm doc) string {
				var walls []float64
				for _, row := range arm.objects("rows") {
					walls = append(walls, row.number("wall_ms"))
				}
				slices.Sort(walls)
				for _, name := range []string{"ttft_p50_ms", "ttft_p95_ms"} {
					if v := arm.number(name); !slices.Contains(walls, v) {
						return fmt.Sprintf("%s is %v, which is no row's wall time", name, v)
					}
				}
				return ""
			})(d), ""
		}},
	}
}

func kernelABGaps(d doc) []Gap {
	out := []Gap{{"rows-unbound", "rows have wall times and tokens, but no moment, no outcome and no hash: a row can be changed with its sums"},
		{"no-hash-chain", "no hash in it binds anything but the base's bytes"}}
	single := true
	for _, name := range []string{"unique", "shared"} {
		for _, row := range d.object(name).objects("rows") {
			single = single && row.integer("completion_tokens") == 1
		}
	}
	if single {
		out = append(out, Gap{"ttft≈latency", "answers have one token: a time to first token is the whole request"})
	}
	return append(out, Gap{"one-repetition", "each arm ran once: no interval"}, Gap{"percentile-undefined", "which order statistic a percentile is isn't said"})
}

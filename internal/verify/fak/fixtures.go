package fak

import (
	"fmt"
	"math"
)

// The kinds below are of programs that ran without a model, or of their planners; their rules mostly pin the numbers of one
// fixture.

func hibernation() kind {
	return kind{schema: "fak-microcontext-hibernation/1", rung: "S3", about: "contexts parked, their runtime rebuilt, and restored; synthetic steps",
		members: members(isText, "verdict", maybe(isText), "observed_at provenance",
			isInt, "logical_contexts resident_limit forced_runtime_restarts completed unique_retirements duplicate_effects peak_resident frozen_bytes_at_restart restored_turns replay_turns_avoided peak_alloc_delta_bytes memory_envelope_bytes",
			maybe(isInt), "worker_slots turns_per_context peak_warm restore_latency_p50_us restore_latency_p95_us queue_age_p50_us queue_age_p95_us queue_age_max_us wall_ms",
			isObject, "at_restart final", maybe(isList), "claims non_claims"),
		rules: []rule{
			{"F-HIB-01", "passed", 0, func(d doc) string { return is(d, "verdict", "PASS") }},
			{"F-HIB-02", "1,000 contexts retired once each, no effect twice", 0, func(d doc) string {
				return first(equal(d, 1000, "logical_contexts", "completed", "unique_retirements"), equal(d, 0, "duplicate_effects"))
			}},
			{"F-HIB-03", "all parked at one restart", 0, func(d doc) string {
				return first(equal(d, 1, "forced_runtime_restarts"), equal(d.object("at_restart"), d.integer("logical_contexts"), "hibernated"))
			}},
			{"F-HIB-04", "residents within their limit, none left", 0, func(d doc) string {
				return first(within(d, "peak_resident", 1, d.integer("resident_limit")), equal(d.object("final"), 0, "resident", "hibernated"))
			}},
			{"F-HIB-05", "memory within its envelope", 0, func(d doc) string {
				return unless(d.integer("peak_alloc_delta_bytes") <= d.integer("memory_envelope_bytes"), "peak_alloc_delta_bytes is %d, the envelope %d", d.integer("peak_alloc_delta_bytes"), d.integer("memory_envelope_bytes"))
			}},
			{"F-HIB-06", "every parked turn restored and none replayed", 0, func(d doc) string {
				return first(positive(d, "frozen_bytes_at_restart"), same(d, "logical_contexts", "restored_turns", "replay_turns_avoided"))
			}},
		},
		checks: []check{{"C-HIB-01", "percentiles in order", func(d doc) (string, string) {
			return first(ordered(d, "restore_latency_p50_us", "restore_latency_p95_us"), ordered(d, "queue_age_p50_us", "queue_age_p95_us", "queue_age_max_us")), ""
		}}},
		gaps: noModel(Gap{"asserted-restores", "restored_turns and replay_turns_avoided are set to the number of contexts, not counted"},
			Gap{"no-crash", "the runtime was rebuilt within one process: no kill, no power loss"})}
}

func descriptorBenchmark() kind {
	return kind{schema: "fak-microcontext-descriptor-benchmark/1", rung: "S4a", about: "the start of command line tools against the making of a descriptor",
		members: members(isText, "verdict descriptor_schema", maybe(isText), "observed_at", isInt, "contexts base_installs", isList, "arms", maybe(isList), "assumptions claims non_claims"),
		rules: []rule{
			{"F-DESC-01", "passed, 1,000 contexts of one base", 0, func(d doc) string {
				return first(is(d, "verdict", "PASS"), equal(d, 1000, "contexts"), is(d, "descriptor_schema", "fak-micro-context-descriptor/1"), equal(d, 1, "base_installs"))
			}},
			{"F-DESC-02", "four arms", 0, func(d doc) string { return unless(len(d.list("arms")) == 4, "%d arms: want 4", len(d.list("arms"))) }},
			{"F-DESC-03", "the last arm made every descriptor and its call", 0, func(d doc) string {
				arms := d.objects("arms")
				if len(arms) == 0 {
					return "no arm is an object"
				}
				a := arms[len(arms)-1]
				return first(unless(a.flag("available"), "it isn't available"), equal(a, d.integer("contexts"), "contexts", "model_calls"), positive(a, "descriptor_bytes"))
			}},
		},
		checks: []check{{"C-DESC-01", "percentiles in order", func(d doc) (string, string) {
			return eachArm(func(_, arm doc) string { return ordered(arm, "startup_p50_us", "startup_p95_us") })(d), ""
		}}},
		gaps: noModel(Gap{"unlike-arms", "the start of a process stands beside the making of a struct: no ratio of them means anything"})}
}

func compatibility() kind {
	return kind{schema: "fak-microcontext-compatibility/1", rung: "S4b", about: "a planner that puts like work into batches",
		members: members(isText, "verdict", maybe(isText), "observed_at provenance", isInt, "submitted cancelled rejected scheduled batches singleton_fallbacks", maybe(isInt), "max_queue_age_ms",
			isNumber, "padding_tax", maybe(isNumber), "batch_fill nominal_use", maybe(isList), "batch_ids claims non_claims"),
		rules: []rule{
			{"F-COMPAT-01", "passed", 0, func(d doc) string { return is(d, "verdict", "PASS") }},
			{"F-COMPAT-02", "98 submitted, 97 scheduled, one cancelled, one alone", 0, func(d doc) string {
				return first(equal(d, 98, "submitted"), equal(d, 97, "scheduled"), equal(d, 1, "cancelled", "singleton_fallbacks"), equal(d, 0, "rejected"))
			}},
			{"F-COMPAT-03", "padding of a tenth at most", 0, func(d doc) string {
				return unless(d.number("padding_tax") <= 0.10, "padding_tax is %v", d.number("padding_tax"))
			}},
			{"F-COMPAT-04", "some batch", 0, func(d doc) string { return unless(d.integer("batches") != 0, "batches is 0") }},
		},
		checks: []check{
			{"C-COMPAT-01", "batches hold what was scheduled, each once", batchIDs},
		},
		gaps: noModel(Gap{"plan-only", "no batch ran: fill and padding are the plan's"})}
}

func batchIDs(d doc) (string, string) {
	batches := d.list("batch_ids")
	if len(batches) == 0 {
		return "", "no batch_ids"
	}
	seen, alone := map[string]bool{}, int64(0)
	for i, b := range batches {
		ids, _ := b.([]any)
		if len(ids) == 1 {
			alone++
		}
		for _, v := range ids {
			id, _ := v.(string)
			if id == "" || seen[id] {
				return fmt.Sprintf("batch %d: %q is empty or comes twice", i, clip(id, 40)), ""
			}
			seen[id] = true
		}
	}
	return first(equal(d, int64(len(batches)), "batches"), equal(d, int64(len(seen)), "scheduled"), equal(d, alone, "singleton_fallbacks")), ""
}

func effects() kind {
	return kind{schema: "fak-microcontext-effects/1", rung: "S4c", about: "effects on files: disjoint, conflicting, refused, replayed",
		members: members(isText, "verdict", maybe(isText), "observed_at", isInt, "disjoint_completed conflicts_refused authority_refused verified replayed_after_restart physical_applies", maybe(isInt), "submitted journal_entries",
			maybe(isList), "claims non_claims"),
		rules: []rule{
			{"F-EFF-01", "passed", 0, func(d doc) string { return is(d, "verdict", "PASS") }},
			{"F-EFF-02", "two disjoint done, one conflict and one without authority refused", 0, func(d doc) string {
				return first(equal(d, 2, "disjoint_completed"), equal(d, 1, "conflicts_refused", "authority_refused"))
			}},
			{"F-EFF-03", "one replay, three applied, four verified", 0, func(d doc) string {
				return first(equal(d, 1, "replayed_after_restart"), equal(d, 3, "physical_applies"), equal(d, 4, "verified"))
			}},
		},
		gaps: noModel(Gap{"five-effects", "five effects on files of a fixture: no rate, no crash, no other resource"})}
}

func multiTurn() kind {
	return kind{schema: "fak-microcontext-multi-turn-descriptor/1", rung: "S4d", about: "contexts of several turns, parked and restored between two of them; scripted answers",
		members: members(isText, "verdict descriptor_schema", maybe(isText), "observed_at claim_boundary",
			isInt, "contexts turns_per_logical_agent expected_turns accounted_turns completed failed continuation_tokens continuation_mismatches mid_task_hibernations verified_restores parked_bytes base_installs physical_workers wall_ns",
			isNumber, "verified_completions_per_second"),
		rules: []rule{
			{"F-TURN-01", "passed, descriptors of version 2", 0, func(d doc) string {
				return first(is(d, "verdict", "PASS"), is(d, "descriptor_schema", "fak-micro-context-descriptor/2"))
			}},
			{"F-TURN-02", "1,000 contexts, every turn accounted for", 0, func(d doc) string {
				return first(equal(d, 1000, "contexts"), within(d, "turns_per_logical_agent", 2, math.MaxInt32),
					equal(d, d.integer("contexts")*d.integer("turns_per_logical_agent"), "expected_turns"), same(d, "expected_turns", "accounted_turns"))
			}},
			{"F-TURN-03", "all completed, every continuation its own", 0, func(d doc) string {
				return first(same(d, "contexts", "completed", "continuation_tokens"), equal(d, 0, "failed", "continuation_mismatches"))
			}},
			{"F-TURN-04", "all parked and restored, one base", 0, func(d doc) string {
				return first(same(d, "contexts", "mid_task_hibernations", "verified_restores"), positive(d, "parked_bytes", "physical_workers", "wall_ns", "verified_completions_per_second"), equal(d, 1, "base_installs"))
			}},
		},
		checks: []check{{"C-TURN-01", "completions over wall time", func(d doc) (string, string) {
			return ratioNear(d, "verified_completions_per_second", d.number("completed")*1e9, d.number("wall_ns"), rateTolerance), ""
		}}},
		gaps: noModel(Gap{"asserted-continuations", "continuation_tokens and base_installs are set, not counted"}, Gap{"no-crash", "parked and restored within one process"})}
}

// noModel makes the gaps of a document that no model had a part in.
func noModel(more ...Gap) func(doc) []Gap {
	return func(doc) []Gap {
		return append([]Gap{{"no-rows", "nothing that happened has a row"}, {"no-hash-chain", "no hash in it binds anything"},
			{"no-model", "no model and no endpoint: it says nothing about serving"}}, more...)
	}
}

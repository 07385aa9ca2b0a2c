package fak

import (
	"fmt"
	"math"
)

func batchExecution() kind {
	return kind{schema: "fak-microcontext-compat-batch-execution/1", rung: "S4e", about: "planned batches run by a model, against one by one",
		members: members(isText, "verdict", maybe(isText), "captured_at model_artifact hardware forward_path isolation_check",
			isInt, "submitted scheduled cancelled rejected compatibility_classes executed_batches prefix_tokens_prefilled_once useful_token_steps allocated_steps nonempty_logit_rows expected_logit_rows", maybe(isInt), "max_batch",
			isNumber, "batch_wall_ms tuned_sequential_wall_ms batch_tokens_per_second tuned_sequential_tokens_per_second batch_vs_sequential_throughput_ratio",
			maybe(isNumber), "real_padding_tax real_batch_fill queue_delay_p50_ms queue_delay_p95_ms", isList, "claims non_claims"),
		rules: []rule{
			{"F-BATCH-01", "passed", 0, func(d doc) string { return is(d, "verdict", "PASS") }},
			{"F-BATCH-02", "25 submitted, 24 scheduled in three classes, one cancelled", 0, func(d doc) string {
				return first(equal(d, 25, "submitted"), equal(d, 24, "scheduled"), equal(d, 1, "cancelled"), equal(d, 0, "rejected"), equal(d, 3, "compatibility_classes"),
					within(d, "executed_batches", 3, math.MaxInt64), equal(d, 64, "prefix_tokens_prefilled_once"))
			}},
			{"F-BATCH-03", "every useful step gave logits", 0, func(d doc) string {
				return first(positive(d, "useful_token_steps"), ordered(d, "useful_token_steps", "allocated_steps"), same(d, "expected_logit_rows", "nonempty_logit_rows"))
			}},
			{"F-BATCH-04", "times and rates", 0, func(d doc) string {
				return positive(d, "batch_wall_ms", "tuned_sequential_wall_ms", "batch_tokens_per_second", "tuned_sequential_tokens_per_second", "batch_vs_sequential_throughput_ratio")
			}},
			{"F-BATCH-05", "what is claimed and what isn't", 0, func(d doc) string { return some(d, "claims", "non_claims") }},
		},
		checks: []check{
			{"C-BATCH-01", "padding and fill are those of the steps and batches", func(d doc) (string, string) {
				all := d.number("allocated_steps")
				return first(ratioNear(d, "real_padding_tax", all-d.number("useful_token_steps"), all, rateTolerance),
					ratioNear(d, "real_batch_fill", d.number("scheduled"), d.number("executed_batches")*d.number("max_batch"), rateTolerance)), ""
			}},
			{"C-BATCH-02", "rates and their ratio are those of the times", func(d doc) (string, string) {
				steps, batch, sequential := d.number("useful_token_steps"), d.number("batch_wall_ms"), d.number("tuned_sequential_wall_ms")
				return first(ratioNear(d, "batch_tokens_per_second", steps*1000, batch, rateTolerance), ratioNear(d, "tuned_sequential_tokens_per_second", steps*1000, sequential, rateTolerance),
					ratioNear(d, "batch_vs_sequential_throughput_ratio", sequential, batch, rateTolerance)), ""
			}},
		},
		gaps: func(d doc) []Gap {
			out := []Gap{{"no-rows", "no step has a row"}, {"no-hash-chain", "no hash in it binds anything"}, {"no-oracle", "finite logits are asked for, not right ones"}}
			if r := d.number("batch_vs_sequential_throughput_ratio"); r > 0 && r < 1 {
				out = append(out, Gap{"slower-than-baseline", fmt.Sprintf("batches reach %.3f of one by one; their rule admits any ratio above 0", r)})
			}
			return append(out, Gap{"one-repetition", "each arm ran once: no interval"})
		}}
}

func fairness() kind {
	return kind{schema: "fak-microcontext-fairness/1", rung: "S7", about: "two tenants before a scheduler on a virtual clock",
		members: members(isText, "verdict economics_verdict scope", isInt, "submitted scheduled cancelled refused_spend selection_cost_ns allocation_bytes", maybe(isInt), "estimated_idle_model_ns duplicate_output_tokens failed_work_units",
			isNumber, "interactive_wait_p95_ms bulk_wait_p95_ms", isObject, "per_tenant_scheduled max_service_lag", maybe(isObject), "spend_micros"),
		rules: []rule{
			{"F-FAIR-01", "passed", 0, func(d doc) string { return is(d, "verdict", "PASS") }},
			{"F-FAIR-02", "the work adds up, one refused for its spend", 0, func(d doc) string {
				return first(equal(d, d.integer("scheduled")+d.integer("cancelled"), "submitted"), equal(d, 1, "refused_spend"))
			}},
			{"F-FAIR-03", "594 of the one tenant, 200 of the other", 0, func(d doc) string {
				return first(equal(d.object("per_tenant_scheduled"), 594, "interactive"), equal(d.object("per_tenant_scheduled"), 200, "bulk"))
			}},
			{"F-FAIR-04", "service lags by six at most", 0, func(d doc) string {
				lags := d.object("max_service_lag")
				for tenant := range lags {
					if n := lags.integer(tenant); n > 6 {
						return fmt.Sprintf("max_service_lag of %s is %d", clip(tenant, 40), n)
					}
				}
				return ""
			}},
			{"F-FAIR-05", "the interactive tenant waits less, at a cost that is said", 0, func(d doc) string {
				i, b := d.number("interactive_wait_p95_ms"), d.number("bulk_wait_p95_ms")
				return first(unless(i < b, "interactive_wait_p95_ms is %v, bulk_wait_p95_ms %v", i, b), positive(d, "selection_cost_ns", "allocation_bytes"), said(d, "economics_verdict", "scope"))
			}},
		},
		checks: []check{{"C-FAIR-01", "tenants' shares add up", func(d doc) (string, string) {
			sum, tenants := int64(0), d.object("per_tenant_scheduled")
			for tenant := range tenants {
				sum += tenants.integer(tenant)
			}
			return equal(d, sum, "scheduled"), ""
		}}},
		gaps: noModel(Gap{"virtual-clock", "waits are of a clock that moves on by a microsecond a choice: no request waited"})}
}

func qualityLedger() kind {
	return kind{schema: "fak-microcontext-quality-ledger/1", rung: "S0, S5, S6", about: "results by outcome, and how many a check accepted",
		members: members(isText, "run_id base_id check_contract", maybe(isText), "mode provider model", isInt, "submitted retired failed cancelled", maybe(isInt), "retried elapsed_ms sample_limit",
			isObject, "verification claim_families outcomes", maybe(isObject), "error_classes", maybe(isList), "sample_ids"),
		rules: []rule{
			{"F-QUAL-01", "identity is said", 0, func(d doc) string { return said(d, "run_id", "base_id", "check_contract") }},
			{"F-QUAL-02", "submitted = retired + failed + cancelled, all of them checked or failed", 0, func(d doc) string {
				v := d.object("verification")
				return first(equal(d, d.integer("retired")+d.integer("failed")+d.integer("cancelled"), "submitted"), equal(v, d.integer("retired"), "checked"),
					unless(v.integer("passed")+v.integer("failed") == d.integer("submitted"), "verification has %d passed and %d failed of %d submitted", v.integer("passed"), v.integer("failed"), d.integer("submitted")))
			}},
			{"F-QUAL-03", "outcomes are those of the counts", 0, func(d doc) string {
				o := d.object("outcomes")
				if o == nil {
					return "outcomes isn't there"
				}
				return first(equal(o, d.integer("retired"), "success"), equal(o, d.integer("failed"), "error"), equal(o, d.integer("cancelled"), "refusal"))
			}},
			{"F-QUAL-04", "claim families repeat the counts", 0, func(d doc) string {
				c := d.object("claim_families")
				return first(equal(c.object("orchestration"), d.integer("submitted"), "submitted_total"), equal(c.object("useful_work"), d.object("verification").integer("passed"), "verified_completions"))
			}},
			{"F-QUAL-05", "samples within their limit", 0, func(d doc) string {
				return unless(int64(len(d.list("sample_ids"))) <= d.integer("sample_limit"), "%d sample_ids, sample_limit is %d", len(d.list("sample_ids")), d.integer("sample_limit"))
			}},
		},
		checks: []check{{"C-QUAL-01", "useful work over wall time", func(d doc) (string, string) {
			return rateFits(d.object("claim_families").object("useful_work"), "per_wall_second", d.object("verification").number("passed"), d.integer("elapsed_ms")), ""
		}}},
		gaps: func(d doc) []Gap {
			out := []Gap{{"no-rows", "no result has a row"}, {"no-hash-chain", "no hash in it binds anything"},
				{"vacuous-check", "their check is a function that accepts everything: checked and passed are the number of results"}}
			if f := d.text("base_id"); !isHex(f, 64) {
				out = append(out, Gap{"label-fingerprint", fmt.Sprintf("base_id is the label %q, no hash of the bytes that were sent", clip(f, 60))})
			}
			return out
		}}
}

func healthScorecard() kind {
	return kind{schema: "fak-microcontext-health-scorecard/1", rung: "S5", about: "a school grade made from a quality ledger",
		members: members(isText, "grade drift", maybe(isText), "evidence", isInt, "score submitted success errors refusals", isNumber, "failure_rate verification_rate useful_per_wall_second", isList, "reasons"),
		rules: []rule{
			{"F-HEALTH-01", "a grade and a score of 0 to 100", 0, func(d doc) string { return first(said(d, "grade"), within(d, "score", 0, 100)) }},
			{"F-HEALTH-02", "results add up", 0, func(d doc) string {
				return first(positive(d, "submitted"), equal(d, d.integer("success")+d.integer("errors")+d.integer("refusals"), "submitted"))
			}},
			{"F-HEALTH-03", "rates can be true", 0, func(d doc) string {
				return first(unless(d.number("failure_rate") >= 0, "failure_rate is %v", d.number("failure_rate")), positive(d, "verification_rate", "useful_per_wall_second"))
			}},
			{"F-HEALTH-04", "drift and reasons are said", 0, func(d doc) string { return first(said(d, "drift"), some(d, "reasons")) }},
		},
		checks: []check{
			{"C-HEALTH-01", "the failure rate is that of the results", func(d doc) (string, string) {
				return ratioNear(d, "failure_rate", d.number("errors")+d.number("refusals"), d.number("submitted"), rateTolerance), ""
			}},
			{"C-HEALTH-02", "the grade is that of the score", func(d doc) (string, string) {
				want := "F"
				for _, g := range []struct {
					least int64
					grade string
				}{{60, "C"}, {75, "B"}, {90, "A"}} {
					if d.integer("score") >= g.least {
						want = g.grade
					}
				}
				return is(d, "grade", want), ""
			}},
		},
		gaps: func(doc) []Gap {
			return []Gap{{"no-rows", "no result has a row"}, {"no-hash-chain", "the quality ledger that it was made from is a file name, no hash"},
				{"vacuous-check", "verification_rate repeats a check that accepts everything"}, {"one-run", "drift needs a second run, as it says itself"}}
		}}
}

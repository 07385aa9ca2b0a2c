package fak

import (
	"fmt"
	"math"
	"time"
)

// spineChecks are what a spine ledger allows to check beyond its own rules. Most of them need what only the ledger of 10,000
// contexts has: a trace and a counter, neither of which their verifier reads.
func spineChecks() []check {
	return []check{
		{"C-RATE-01", "contexts and results over wall time", func(d doc) (string, string) {
			ms := d.integer("elapsed_ms")
			if d.number("verified_nonempty_results_per_wall_second") != 0 {
				if bad := rateFits(d, "verified_nonempty_results_per_wall_second", d.number("completed"), ms); bad != "" {
					return bad, ""
				}
			}
			return rateFits(d, "shards_per_second", d.number("logical_shards"), ms), "" // of all contexts, failed ones too
		}},
		{"C-RATE-02", "tokens over wall time", func(d doc) (string, string) {
			ms := d.integer("elapsed_ms")
			return first(rateFits(d, "prompt_tokens_per_wall_second", d.number("prompt_tokens"), ms),
				rateFits(d, "decode_tokens_per_wall_second", d.number("completion_tokens"), ms)), ""
		}},
		{"C-TIME-01", "no first token after the end, percentiles in order", func(d doc) (string, string) {
			bad := first(ordered(d, "ttft_p50_ms", "latency_p50_ms"), ordered(d, "ttft_p95_ms", "latency_p95_ms"), ordered(d, "latency_p50_ms", "latency_p95_ms"))
			if d.number("latency_max_ms") > 0 {
				bad = first(bad, ordered(d, "latency_p95_ms", "latency_max_ms"), ordered(d, "ttft_max_ms", "latency_max_ms"))
			}
			return bad, ""
		}},
		{"C-TRACE-01", "as many trace rows as resource samples", onTrace(func(d doc, trace []doc) string {
			return unless(int64(len(trace)) == d.integer("resource_samples"), "resource_trace has %d rows, resource_samples is %d", len(trace), d.integer("resource_samples"))
		})},
		{"C-TRACE-02", "peaks are the trace's maxima", onTrace(func(d doc, trace []doc) string {
			for _, p := range [][2]string{{"client_peak_rss_bytes", "client_rss_bytes"}, {"server_peak_rss_bytes", "server_rss_bytes"},
				{"server_peak_heap_alloc_bytes", "server_heap_alloc_bytes"}, {"endpoint_peak_requests", "endpoint_inflight_requests"},
				{"gpu_peak_memory_used_mib", "gpu_memory_used_mib"}, {"gpu_peak_power_watts", "gpu_power_watts"},
				{"gpu_utilization_sample_peak_percent", "gpu_utilization_percent"}} {
				if stored, top := d.number(p[0]), most(trace, p[1]); stored != top {
					return fmt.Sprintf("%s is %v, the trace's largest %s is %v", p[0], stored, p[1], top)
				}
			}
			return ""
		})},
		{"C-TRACE-03", "the trace goes forward and spans the run", onTrace(traceSpans)},
		{"C-TRACE-04", "the endpoint's counter doesn't fall and stays within its two readings", onTrace(func(d doc, trace []doc) string {
			c := d.object("endpoint_request_counter")
			last := c.integer("before")
			for i, row := range trace {
				n := row.integer("endpoint_requests_total")
				if n < last {
					return fmt.Sprintf("row %d of the trace has %d requests, before it there were %d", i, n, last)
				}
				last = n
			}
			return unless(last <= c.integer("after"), "the trace ends at %d requests, the counter at %d", last, c.integer("after"))
		})},
		{"C-COUNT-01", "the endpoint's counter adds up", func(d doc) (string, string) {
			c := d.object("endpoint_request_counter")
			if c == nil {
				return "", "no endpoint_request_counter"
			}
			before, after, delta := c.integer("before"), c.integer("after"), c.integer("delta")
			turns, canary := c.integer("expected_measured_turns"), c.integer("expected_canary_turns")
			return first(unless(after-before == delta, "before %d and delta %d don't give after %d", before, delta, after),
				unless(turns == d.integer("turn_count"), "expected_measured_turns is %d, turn_count %d", turns, d.integer("turn_count")),
				unless(canary == d.integer("canary_contexts"), "expected_canary_turns is %d, canary_contexts %d", canary, d.integer("canary_contexts")),
				unless(delta == turns+canary, "delta is %d, measured and canary turns %d", delta, turns+canary)), ""
		}},
	}
}

// onTrace makes a check of one that reads the resource trace.
func onTrace(ask func(d doc, trace []doc) string) func(d doc) (string, string) {
	return func(d doc) (string, string) {
		trace := d.objects("resource_trace")
		if len(trace) == 0 {
			return "", "no resource_trace"
		}
		if len(trace) != len(d.list("resource_trace")) {
			return "a row of resource_trace isn't an object", ""
		}
		return ask(d, trace), ""
	}
}

// traceSpans wants moments that move on, none outside the run, and the run covered but for the trace's longest step at either end.
func traceSpans(d doc, trace []doc) string {
	at := make([]time.Time, len(trace))
	step := time.Duration(0)
	for i, row := range trace {
		var err error
		if at[i], err = time.Parse(time.RFC3339, row.text("observed_at")); err != nil {
			return fmt.Sprintf("row %d of the trace: observed_at %q is no time (RFC 3339)", i, clip(row.text("observed_at"), 40))
		}
		if i > 0 {
			if !at[i].After(at[i-1]) {
				return fmt.Sprintf("row %d of the trace is of %s, the one before of %s", i, at[i].Format(time.RFC3339), at[i-1].Format(time.RFC3339))
			}
			step = max(step, at[i].Sub(at[i-1]))
		}
	}
	first, last := at[0], at[len(at)-1]
	for _, edge := range []struct {
		name   string
		beyond func(t time.Time) bool
	}{{"observed_at_start", func(t time.Time) bool { return first.Before(t) || first.Sub(t) > step }},
		{"observed_at_complete", func(t time.Time) bool { return last.After(t) || t.Sub(last) > step }}} {
		if t, err := time.Parse(time.RFC3339, d.text(edge.name)); err == nil && edge.beyond(t) {
			return fmt.Sprintf("the trace goes from %s to %s, %s is %s", first.Format(time.RFC3339), last.Format(time.RFC3339), edge.name, t.Format(time.RFC3339))
		}
	}
	ms := math.Min(d.number("elapsed_ms"), 1e12) // a Duration holds 290 years
	span, elapsed := last.Sub(first), time.Duration(ms)*time.Millisecond
	return unless(span+2*step >= elapsed, "the trace spans %s, the run took %s", span, elapsed)
}

package soak

import (
	"fmt"
	"strings"
	"testing"

	"cotenant/internal/ledger"
)

// The numbers are those of docs/metrics.md.
func TestFewSamples(t *testing.T) {
	plan := func(percentile, stages int64) *ledger.LoadPlan {
		return &ledger.LoadPlan{Search: &ledger.SearchPlan{Steps: stages}, Objectives: []ledger.Objective{{Metric: "ttft", Percentile: percentile, LimitUS: 1}}}
	}
	for percentile, want := range map[int64]struct {
		need int64
		name string
	}{900: {64, "ttft_p90_us"}, 950: {130, "ttft_p95_us"}, 990: {662, "ttft_p99_us"}, 999: {6636, "ttft_p999_us"}} {
		if got := fewSamples(plan(percentile, 10), want.need*10); got != nil {
			t.Errorf("p%d: %d a stage are said to be too few: %q", percentile, want.need, got)
		}
		got := fewSamples(plan(percentile, 10), want.need*10-10)
		if len(got) != 1 || !strings.Contains(got[0], want.name) || !strings.Contains(got[0], " takes "+fmt.Sprint(want.need)+" a stage, "+fmt.Sprint(want.need*10)+" in all") {
			t.Errorf("p%d: %q", percentile, got)
		}
	}
	if got := fewSamples(nil, 100); got != nil {
		t.Errorf("no plan: %q", got)
	}
}

package ledger

import (
	"iter"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func seq[T any](values []T) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		for _, v := range values {
			if !yield(v, nil) {
				return
			}
		}
	}
}

func sumUp(t *testing.T, cfg Config, rows []Row, resources []Resource, events []Event) Ledger {
	t.Helper()
	l, err := Summarize(Run{Config: cfg, Rows: seq(rows), Resources: seq(resources), Events: seq(events)})
	must(t, err)
	return l
}

// TestSummarizeByHand has a run small enough to work out on paper: three contexts on two workers, one of which needed two
// attempts, and a fourth that failed.
func TestSummarizeByHand(t *testing.T) {
	cfg := testConfig(4, 2)
	cfg.Workload.BaseCommit = strings.Repeat("d", 32)
	rows := []Row{okRow(0, 100), okRow(1, 150), okRow(2, 300), okRow(2, 500), okRow(3, 600)}
	for i := range rows {
		rows[i].Base = cfg.Workload.BaseCommit
	}
	rows[1].Worker, rows[1].Oracle, rows[1].Task, rows[1].CachedTokens, rows[1].Deltas = 1, OracleFail, "order", Some(600), 2
	first, second := &rows[2], &rows[3]
	first.Outcome, first.HTTPStatus, first.Oracle, first.FirstTokenUS, first.FirstContentUS, first.LastTokenUS = HTTP429, Some(429), OracleNone, Opt{}, Opt{}, Opt{}
	first.PromptTokens, first.CompletionTokens, first.Deltas, first.TextBytes, first.EndUS = Opt{}, Opt{}, 0, 0, 310
	second.Attempt, second.FinishReason, second.Reconnects, second.Quirks = 2, "length", 1, int64(QuirkComment)
	failed := &rows[4]
	failed.Outcome, failed.Oracle, failed.WastedTokens, failed.EndUS, failed.Quirks = Truncated, OracleNone, 4, 650, int64(QuirkNoSpace)

	l := sumUp(t, cfg, rows, nil, []Event{
		{Kind: EventStart}, {Kind: EventPeak, Value: Some(2)}, {TUS: 700, Kind: EventEnd, WallUS: Some(9), Detail: StatusFinished}})
	for _, c := range []struct {
		name      string
		got, want any
	}{
		{"counts", l.Counts, Counts{Submitted: 4, Completed: 3, Failed: 1, Turns: 3, UsageResponses: 3, Attempts: 5, Retries: 1, Reconnects: 1,
			LengthCapped: 1, Buffered: 3, Quirky: 2, Quirks: int64(QuirkComment | QuirkNoSpace),
			Outcomes: []OutcomeCount{{OK, 3}, {Truncated, 1}, {HTTP429, 1}}}},
		{"tokens", l.Tokens, Tokens{Prompt: 2100, Completion: 12, Cached: Some(600), CachedResponses: 1, Deltas: 10, TextBytes: 36, RowsEqual: 2,
			RowsFewerDeltas: 1, Wasted: 4, Spent: 2816}},
		{"wall", l.WallUS, int64(650 - 90)},
		{"results", l.Rates.ResultsPer1e6s, Some(3 * 1_000_000_000_000 / 560)},
		{"warm", l.Rates.WarmResults, Some(1)},
		{"warm wall", l.Rates.WarmWallUS, Some(600 - 250)},
		{"peak", l.Peaks.InFlight, int64(2)},
		{"observed", l.Peaks.InFlightObserved, Some(2)},
		{"latency n", l.Times.Latency.N, int64(3)},
		{"latency p50", l.Times.Latency.P50, Quantile{ValueUS: Some(100), Evidence: EvidenceSample}},
		{"full max", l.Times.LatencyFull.MaxUS, Some(600 - 290)},
		{"adjusted n", l.Times.Adjusted.N, int64(4)},
		{"adjusted p99", l.Times.Adjusted.P99, Quantile{LowerUS: Some(100), Evidence: EvidenceInfinite}},
		{"adjusted max", l.Times.Adjusted.MaxUS, Opt{}},
		{"queue age", l.Times.QueueAge, Distribution{N: 4, MinUS: Some(100), MaxUS: Some(600), SumUS: Some(100 + 150 + 300 + 600),
			P50: Quantile{ValueUS: Some(150), Evidence: EvidenceSample}, P90: Quantile{ValueUS: Some(600), LowerUS: Some(150), Evidence: EvidenceSample},
			P95: Quantile{ValueUS: Some(600), LowerUS: Some(150), Evidence: EvidenceSample}, P99: Quantile{ValueUS: Some(600), LowerUS: Some(300), Evidence: EvidenceSample},
			P999: Quantile{ValueUS: Some(600), LowerUS: Some(600), Evidence: EvidenceSample}}},
		{"oracle", l.Oracle, Oracle{Checked: 3, Passed: 2, Failed: 1, PassRatePPM: Some(666_666), WilsonLowPPM: Some(207_659), WilsonHighPPM: Some(938_509),
			ConfidencePPM: 950_000, ByTask: []TaskScore{{"order", 1, 0}, {"sum", 2, 2}}}},
		{"status", l.Status, StatusFinished},
		{"claims", l.Claims, []Claim{}},
		{"why", l.Admission.Why, []string{WhyNotARung, WhyFailed, WhySamples}},
	} {
		if d := cmp.Diff(c.want, c.got); d != "" {
			t.Errorf("%s: -want +got\n%s", c.name, d)
		}
	}
}

func TestSummarizeOrderOfRowsAcrossContexts(t *testing.T) {
	cfg := testConfig(50, 5)
	var rows []Row
	for c := range int64(50) {
		rows = append(rows, okRow(c, 100+c*31))
	}
	want := sumUp(t, cfg, rows, nil, nil)
	slices.Reverse(rows)
	if d := cmp.Diff(want, sumUp(t, cfg, rows, nil, nil)); d != "" {
		t.Errorf("another order of contexts gives another ledger: %s", d)
	}
}

func TestSegments(t *testing.T) {
	cfg := testConfig(2, 1)
	a, b := okRow(0, 100), okRow(1, 5000)
	b.Segment = 1
	events := []Event{{Kind: EventStart}, {Segment: 1, Kind: EventStart}, {TUS: 1, Segment: 1, Kind: EventEnd, Detail: StatusFinished}}
	l := sumUp(t, cfg, []Row{a, b}, nil, events)
	if l.WallUS != 220 || l.Segments != 2 || l.Rates.WarmResults.OK {
		t.Errorf("wall %d, segments %d, warm %v: nothing but sums is computed across segments", l.WallUS, l.Segments, l.Rates.WarmResults)
	}
	// A third start without an end: killed.
	if l := sumUp(t, cfg, []Row{a, b}, nil, append(events, Event{Segment: 2, Kind: EventStart})); l.Status != StatusInterrupted {
		t.Errorf("status %s", l.Status)
	}
}

func TestStrayAndDuplicateRows(t *testing.T) {
	cfg := testConfig(2, 1)
	stray := okRow(7, 1000)
	again := okRow(0, 2000)
	l := sumUp(t, cfg, []Row{okRow(0, 100), okRow(1, 300), stray, again}, nil, nil)
	if c := l.Counts; c.Strays != 1 || c.Duplicates != 1 || c.Completed != 2 || c.Turns != 2 || l.Tokens.Prompt != 1400 {
		t.Errorf("%+v, %d prompt tokens: only planned results count, each once", c, l.Tokens.Prompt)
	}
}

func TestResources(t *testing.T) {
	sample := func(t, cpu, running int64) Resource {
		r := Resource{TUS: t, Client: ClientUsage{RSSBytes: Some(t), HWMBytes: Some(t + 1), CPUUS: Some(cpu)},
			Server: &ServerUsage{RSSBytes: Some(10 * t), StartUS: Some(5), CPUUS: Some(cpu * 2)}}
		for _, name := range SeriesNames() {
			r.Series = append(r.Series, SeriesReading{Name: name, State: SeriesNotExposed})
		}
		r.Series[0] = SeriesReading{Name: SeriesRunning, Source: "running", State: SeriesValue, Value: Some(running)}
		r.Series[1] = SeriesReading{Name: SeriesWaiting, Source: "waiting", State: SeriesNaN}
		return r
	}
	rs := []Resource{sample(50, 1_000, 0), sample(400, 2_000, 2), sample(900, 9_000, 1)}
	rs[2].Server.StartUS = Some(6)
	for i := range rs {
		rs[i].Series[15] = SeriesReading{Name: SeriesPromptTokens, Source: "prompt", State: SeriesValue, Value: Some([]int64{10, 20, 5}[i])}
		rs[i].Series[16] = SeriesReading{Name: SeriesOutputTokens, Source: "output", State: SeriesValue, Value: Some(int64(i) * 4)}
	}
	events := []Event{{Kind: EventStart}, {TUS: 900, Kind: EventEnd, Detail: StatusFinished}}
	l := sumUp(t, testConfig(2, 1), []Row{okRow(0, 100), okRow(1, 300)}, rs, events)
	want := Samples{Count: 3, SpanUS: 850, PeriodUS: 1_000_000, MaxGapUS: Some(500), Covered: true, ServerSamples: 3, ServerRestarts: 1,
		ClientCPUUS: Some(8_000), ServerCPUUS: Some(16_000), ClientSharePPM: Some(8_000 * 1_000_000 / 850 / 2)}
	if d := cmp.Diff(want, l.Samples); d != "" {
		t.Errorf("samples: -want +got\n%s", d)
	}
	if l.Peaks.ServerRSSBytes != Some(9000) || l.Peaks.ServerRunning != Some(2) || l.Peaks.ClientHWMBytes != Some(901) {
		t.Errorf("peaks %+v", l.Peaks)
	}
	if s := l.Series[1]; s.NaN != 3 || s.Values != 0 || s.Max.OK {
		t.Errorf("a NaN series: %+v", s)
	}
	if s := l.Series[15]; s.Resets != 1 || s.First != Some(10) || s.Last != Some(5) {
		t.Errorf("a counter that was reset: %+v", s)
	}
	reasons := map[string]string{}
	for _, s := range l.NotExposed {
		reasons[s.ID] = s.Reason
	}
	if !strings.Contains(reasons[SeriesWaiting], "NaN") || !strings.Contains(reasons[SeriesKVSlots], "no such series") {
		t.Errorf("reasons %v", reasons)
	}
	if len(l.Reconciliation) != 0 {
		t.Errorf("reconciled over a restart: %+v", l.Reconciliation)
	}
	rs[2].Server.StartUS = Some(5)
	l = sumUp(t, testConfig(2, 1), []Row{okRow(0, 100), okRow(1, 300)}, rs, events)
	if d := cmp.Diff([]Reconciliation{{Quantity: SeriesOutputTokens, Client: 8, Server: 8}}, l.Reconciliation); d != "" {
		t.Errorf("reconciliation: -want +got\n%s", d)
	}
	if l := sumUp(t, testConfig(2, 1), []Row{okRow(0, 100), okRow(1, 900)}, rs, events); l.Samples.Covered {
		t.Error("samples that end before the last row cover it")
	}
}

func TestPer1e6s(t *testing.T) {
	for _, c := range []struct {
		count, us int64
		want      Opt
	}{
		{1000, 1_045_554_000, Some(956_430)}, {0, 1, Some(0)}, {1, 0, Opt{}}, {1, -1, Opt{}}, {1, 1, Some(1_000_000_000_000)},
		{MaxInt, 1, Opt{}}, {MaxInt, 1_000_000_000_000, Some(MaxInt)}, {10_000, 1, Opt{}}, {9_007, 1, Some(9_007_000_000_000_000)},
	} {
		if got := Per1e6s(c.count, c.us); got != c.want {
			t.Errorf("%d in %d us: %v, want %v", c.count, c.us, got, c.want)
		}
	}
}

// TestDefinitionsAreWhole makes sure that no definition is left empty.
func TestDefinitionsAreWhole(t *testing.T) {
	b, err := Marshal(Definitions())
	must(t, err)
	if strings.Contains(string(b), `""`) {
		t.Errorf("an empty definition in %s", b)
	}
}

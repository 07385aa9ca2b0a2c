package ledger

import (
	"strings"
	"testing"
)

// TestBuffered tells answers that came in one piece from fast streams. Times in µs.
func TestBuffered(t *testing.T) {
	for _, c := range []struct {
		name                  string
		completion, deltas    int64
		finish                string
		first, spread, behind int64 // sent to first token, first to last token, last token to end
		want                  bool
	}{
		// The predecessor's runs: 8 tokens, first token and end 45 and 65 µs apart after a second and more.
		{"fak S5a, 1,000 contexts", 8, 8, "length", 1_058_042, 45, 0, true},
		{"fak S5, 10,000 contexts", 8, 8, "length", 2_831_671, 65, 0, true},
		{"the same in one read", 8, 8, "length", 1_058_042, 0, 45, true},
		{"a proxy that writes event by event, in front of a fast server", 8, 8, "length", 20_000, 300, 20, true},
		{"1,000 tokens, there at once, in several reads", 1000, 1000, "length", 80_000, 9_000, 20, true},
		{"a whole answer in one event", 8, 1, "stop", 20_000, 0, 20, true},
		{"two tokens in one event", 2, 1, "length", 20_000, 0, 20, true},
		{"half of it in one event, the rest in another right behind", 8, 2, "length", 20_000, 40, 20, true},
		{"a small model: 400 us a token", 4, 3, "stop", 5_000, 800, 100, false},
		{"the same with one event between two", 4, 2, "length", 5_000, 800, 100, false},
		{"a model behind a long prompt: 50 ms a token", 8, 8, "length", 3_000_000, 350_000, 900, false},
		{"a stream within a hundredth of its latency", 3, 3, "length", 300_000, 2_000, 100, true},
		{"one token and the end of sequence", 2, 1, "stop", 5_000, 0, 400, false},
		{"one token", 1, 1, "length", 5_000, 0, 40, false},
		{"two tokens and the end of sequence, in one read", 3, 2, "stop", 5_000, 0, 40, true},
		{"no usage, events at one moment", -1, 3, "stop", 5_000, 0, 40, true},
		{"no usage, a stream", -1, 3, "stop", 5_000, 900, 40, false},
	} {
		r := Row{SentUS: Some(1000), FirstTokenUS: Some(1000 + c.first), LastTokenUS: Some(1000 + c.first + c.spread),
			EndUS: 1000 + c.first + c.spread + c.behind, Deltas: c.deltas, FinishReason: c.finish}
		if c.completion >= 0 {
			r.CompletionTokens = Some(c.completion)
		}
		if got := r.IsBuffered(); got != c.want {
			t.Errorf("%s: buffered is %t", c.name, got)
		}
	}
}

func TestEndOfSequenceCounted(t *testing.T) {
	row := func(context, completion, deltas int64, finish string) Row {
		r := okRow(context, 100+context*300)
		r.CompletionTokens, r.Deltas, r.FinishReason = Some(completion), deltas, finish
		return r
	}
	rows := []Row{row(0, 4, 3, "stop"), row(1, 4, 3, "length"), row(2, 4, 2, "stop"), row(3, 4, 4, "stop"), row(4, 4, 3, "")}
	l := sumUp(t, testConfig(5, 1), rows, nil, nil)
	if k := l.Tokens; k.RowsEOSCounted != 1 || k.RowsFewerDeltas != 3 || k.RowsEqual != 1 || k.RowsMoreDeltas != 0 {
		t.Errorf("%+v", k)
	}
	said := func(l Ledger) (reason string) {
		for _, s := range l.NonClaims {
			if s.ID == "tokens_seen" {
				reason = s.Reason
			}
		}
		return reason
	}
	if !strings.HasPrefix(said(l), "in 3 results fewer deltas") {
		t.Errorf("tokens_seen: %q", said(l))
	}
	if l := sumUp(t, testConfig(1, 1), rows[:1], nil, nil); said(l) != "" {
		t.Errorf("an end-of-sequence token isn't explained: %q", said(l))
	}
}

// TestInterTokenLeavesTheEndOut: three deltas have two gaps, whatever usage counts.
func TestInterTokenLeavesTheEndOut(t *testing.T) {
	r := okRow(0, 1000)
	r.SentUS, r.FirstTokenUS, r.FirstContentUS, r.LastTokenUS, r.EndUS = Some(1000), Some(5000), Some(5000), Some(7000), 7500
	r.CompletionTokens, r.Deltas, r.FinishReason = Some(4), 3, "stop"
	r.Buffered = r.IsBuffered()
	l := sumUp(t, testConfig(1, 1), []Row{r}, nil, nil)
	if got := l.Times.InterToken.P50.ValueUS; got != Some(1000) {
		t.Errorf("inter_token %+v", got)
	}
}

// TestNotExposedSpeaksOfTheWholeRun: one scrape that failed among many doesn't hide that the server lacks a series.
func TestNotExposedSpeaksOfTheWholeRun(t *testing.T) {
	const failed = "context deadline exceeded"
	scrape := func(at int64, state, failure string) Resource {
		r := Resource{TUS: at, ServerReason: "not asked", GPUReason: "not asked", ScrapeError: failure}
		for _, name := range SeriesNames() {
			r.Series = append(r.Series, SeriesReading{Name: name, State: state})
		}
		return r
	}
	for _, c := range []struct {
		name    string
		samples []Resource
		want    string
	}{
		{"one of three failed", []Resource{scrape(1, SeriesNotExposed, ""), scrape(2, SeriesError, failed), scrape(3, SeriesNotExposed, "")},
			"the server has no such series"},
		{"the last failed", []Resource{scrape(1, SeriesNotExposed, ""), scrape(2, SeriesError, failed)}, "the server has no such series"},
		{"all failed", []Resource{scrape(1, SeriesError, failed), scrape(2, SeriesError, failed)}, "metrics could not be read: " + failed},
		{"none was tried", []Resource{{TUS: 1, ServerReason: "not asked", GPUReason: "not asked"}}, "no metrics were read"},
	} {
		got := map[string]string{}
		for _, s := range sumUp(t, testConfig(1, 1), []Row{okRow(0, 100)}, c.samples, nil).NotExposed {
			got[s.ID] = s.Reason
		}
		if got[SeriesDeviceMemory] != c.want {
			t.Errorf("%s: %q", c.name, got[SeriesDeviceMemory])
		}
	}
}

func TestSampleGapsThatAreAllowed(t *testing.T) {
	for _, c := range []struct {
		period, gap int64
		want        bool
	}{{50_000, 1_170_000, true}, {50_000, 3_000_000, true}, {50_000, 3_000_001, false}, {1_000_000, 3_000_000, true},
		{1_000_000, 3_000_001, false}, {2_000_000, 6_000_000, true}, {2_000_000, 6_000_001, false}} {
		cfg := testConfig(100, 1)
		cfg.ResourceUS = c.period
		sample := Resource{ServerReason: "not asked", GPUReason: "not asked"}
		later := sample
		later.TUS = c.gap
		why := sumUp(t, cfg, []Row{}, []Resource{sample, later}, nil).Admission.Why
		refused := false
		for _, code := range why {
			refused = refused || code == WhySamples
		}
		if refused == c.want {
			t.Errorf("%d us at a period of %d us: %v", c.gap, c.period, why)
		}
	}
}

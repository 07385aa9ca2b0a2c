package soak

import (
	"fmt"
	"io"
	"strconv"
	"strings"

	"cotenant/internal/ledger"
)

// WriteTable prints what a run measured, in the order of the seed's "Captured result", the oracle's score apart from it, and whether
// the run counts. What wasn't exposed is said, never shown as 0.
func WriteTable(w io.Writer, l *ledger.Ledger) error {
	var rows [][2]string
	add := func(name, format string, args ...any) {
		rows = append(rows, [2]string{name, fmt.Sprintf(format, args...)})
	}
	c, t, p := &l.Counts, &l.Tokens, &l.Peaks
	add("Submitted / completed / failed", "%s / %s / %s", grouped(c.Submitted), grouped(c.Completed), grouped(c.Failed))
	add("Physical workers / peak client in flight", "%s / %s", grouped(l.Workers), grouped(p.InFlight))
	add("Wall time", "%s s", seconds(ledger.Some(l.WallUS)))
	ttft := &l.Times.TTFT
	add("TTFT p50 / p95", "%s / %s s (n %s)%s", seconds(ttft.P50.ValueUS), seconds(ttft.P95.ValueUS), grouped(ttft.N), ttftNote(l))
	add("Latency p50 / p95", "%s / %s s", seconds(l.Times.Latency.P50.ValueUS), seconds(l.Times.Latency.P95.ValueUS))
	add("Prompt / completion tokens", "%s / %s", grouped(t.Prompt), grouped(t.Completion))
	add("Cached prompt tokens", "%s", orNotExposed(t.Cached, grouped))
	add("Usage responses", "%s", grouped(c.UsageResponses))
	add("Usage-derived prompt / decode rate", "%s / %s tok/s", perSecond(l.Rates.PromptPer1e6s, 2), perSecond(l.Rates.CompletionPer1e6s, 2))
	add("Nonempty, usage-bearing results / wall-second", "%s", perSecond(l.Rates.ResultsPer1e6s, 3))
	if l.Rates.WarmResultsPer1e6s.OK {
		add("– without the first W results", "%s", perSecond(l.Rates.WarmResultsPer1e6s, 3))
	}
	if n := c.Retries + c.Reconnects; n > 0 {
		add("Retries / reconnects / wasted tokens", "%s / %s / %s", grouped(c.Retries), grouped(c.Reconnects), grouped(t.Wasted))
	}
	if k := l.Controlled; k != nil {
		add("Faults done / recovered", "%s / %s (%s without a row)", grouped(k.FaultContexts), grouped(k.FaultsRecovered), grouped(k.FaultsWithoutRow))
		add("Bases rolled back", "%s", grouped(k.Rollbacks))
		add("Conversations parked / restored / by another process", "%s / %s / %s", grouped(k.Parked), grouped(k.Restored), grouped(k.RestoredAcross))
		add("Server's gauges back at quiet points", "%s of %s (longest %s s)", grouped(k.QuietReturned), grouped(k.QuietPoints), seconds(k.QuietMaxUS))
		add("Queue age p50 / p95", "%s / %s s", seconds(l.Times.QueueAge.P50.ValueUS), seconds(l.Times.QueueAge.P95.ValueUS))
	}
	if l.Load != nil {
		addLoad(l, add)
	}
	if c.Resent > 0 {
		add("Sent again after a kill", "%s", grouped(c.Resent))
	}
	if lag := &l.Times.SlotLag; lag.N > 0 {
		add("Client's lag from free slot to request written p50 / p95", "%s / %s s", seconds(lag.P50.ValueUS), seconds(lag.P95.ValueUS))
	}
	if m := &l.Samples; m.ClientCPUUS.OK {
		add("CPU time of client / server / everything else", "%s / %s / %s", orNotExposed(m.ClientCPUUS, cpuSeconds), orNotExposed(m.ServerCPUUS, cpuSeconds), orNotExposed(m.OtherCPUUS, cpuSeconds))
	}
	add("Client peak RSS", "%s", orNotExposed(p.ClientHWMBytes, mebibytes))
	add("Server sampled peak RSS", "%s", orNotExposed(p.ServerRSSBytes, mebibytes))
	add("Server sampled peak Go heap", "%s", orNotExposed(p.ServerHeapBytes, mebibytes))
	for _, s := range l.Series {
		if name := shown[s.Name]; name != "" && s.Values > 0 {
			add(name, "%s", seriesPeak(&s))
		}
	}
	add("Resource samples", "%s over %s s", grouped(l.Samples.Count), seconds(ledger.Some(l.Samples.SpanUS)))
	var b strings.Builder
	writeRows(&b, rows)
	writeScore(&b, l)
	writeVerdict(&b, l)
	_, err := io.WriteString(w, b.String())
	return err
}

// shown are the scraped series that the table names; the ledger has all of them.
var shown = map[string]string{
	ledger.SeriesKVSlots:        "Server KV slots, peak",
	ledger.SeriesKVPagesUsed:    "Server KV pages in use, peak",
	ledger.SeriesKVUsage:        "Server KV usage, peak",
	ledger.SeriesWaiting:        "Server queue depth, peak",
	ledger.SeriesQueueOldestAge: "Server queue's oldest age, peak",
	ledger.SeriesDeviceMemory:   "Server device memory, peak",
	ledger.SeriesPrefixHits:     "Server prefix-cache hit tokens",
}

func seriesPeak(s *ledger.SeriesSummary) string {
	switch {
	case strings.HasSuffix(s.Name, "_total"):
		return grouped(s.Last.V - s.First.V)
	case strings.HasSuffix(s.Name, "_us"):
		return seconds(s.Max) + " s"
	case strings.HasSuffix(s.Name, "_ppm"):
		return fmt.Sprintf("%.1f %%", float64(s.Max.V)/1e4)
	case strings.HasSuffix(s.Name, "_bytes"):
		return mebibytes(s.Max.V)
	}
	return grouped(s.Max.V)
}

// ttftNote says why the times to first token mean nothing, where they don't.
func ttftNote(l *ledger.Ledger) string {
	switch c := &l.Counts; {
	case c.Turns > 0 && c.TTFTMissing == c.Turns:
		return ", not exposed"
	case !ledger.TTFTClaimable(c, &l.Times.TTFT) && c.Buffered > 0:
		return fmt.Sprintf(", no claim: %s of %s answers came in one piece", grouped(c.Buffered), grouped(c.Turns))
	}
	return ""
}

func writeRows(b *strings.Builder, rows [][2]string) {
	width := [2]int{len("Measure"), len("Observed")}
	for _, r := range rows {
		for i, cell := range r {
			width[i] = max(width[i], len([]rune(cell)))
		}
	}
	line := func(a, c string) {
		fmt.Fprintf(b, "| %s%s | %s%s |\n", a, strings.Repeat(" ", width[0]-len([]rune(a))), c, strings.Repeat(" ", width[1]-len([]rune(c))))
	}
	line("Measure", "Observed")
	line(strings.Repeat("-", width[0]), strings.Repeat("-", width[1]))
	for _, r := range rows {
		line(r[0], r[1])
	}
}

func writeScore(b *strings.Builder, l *ledger.Ledger) {
	o := &l.Oracle
	if o.Checked == 0 {
		b.WriteString("\nOracle: no task could be checked.\n")
		return
	}
	fmt.Fprintf(b, "\nOracle (apart from transport): %s of %s tasks right, %.1f %% (95 %% interval %.1f to %.1f)\n", grouped(o.Passed), grouped(o.Checked),
		float64(o.PassRatePPM.V)/1e4, float64(o.WilsonLowPPM.V)/1e4, float64(o.WilsonHighPPM.V)/1e4)
	for _, t := range o.ByTask {
		if t.Checked > 0 {
			fmt.Fprintf(b, "  %-8s %s of %s\n", t.Task, grouped(t.Passed), grouped(t.Checked))
		}
	}
}

func writeVerdict(b *strings.Builder, l *ledger.Ledger) {
	b.WriteByte('\n')
	if l.Admission.Admitted {
		fmt.Fprintf(b, "Admitted at rung %s.\n", grouped(l.Admission.Rung.V))
		return
	}
	fmt.Fprintf(b, "Not admitted (%s): %s\n", l.Status, strings.Join(l.Admission.Why, ", "))
	if l.Counts.Failed > 0 {
		b.WriteString("Attempts by outcome:")
		for i, o := range l.Counts.Outcomes {
			if i > 0 {
				b.WriteByte(',')
			}
			fmt.Fprintf(b, " %s %s", o.Outcome, grouped(o.Count))
		}
		b.WriteByte('\n')
	}
}

// grouped writes 1234567 as 1,234,567.
func grouped(n int64) string {
	s := fmt.Sprint(n)
	sign := ""
	if n < 0 {
		sign, s = "-", s[1:]
	}
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return sign + s
}

const notExposed = "not exposed"

func orNotExposed(o ledger.Opt, format func(int64) string) string {
	if !o.OK {
		return notExposed
	}
	return format(o.V)
}

func cpuSeconds(us int64) string { return seconds(ledger.Some(us)) + " s" }

func seconds(us ledger.Opt) string {
	if !us.OK {
		return "–"
	}
	return fmt.Sprintf("%s.%03d", grouped(us.V/1e6), us.V%1e6/1e3)
}

// perSecond shows a count per 10^6 s.
func perSecond(o ledger.Opt, digits int) string {
	if !o.OK {
		return "–"
	}
	whole, fraction, _ := strings.Cut(fmt.Sprintf("%.*f", digits, float64(o.V)/1e6), ".")
	n, err := strconv.ParseInt(whole, 10, 64)
	if err != nil {
		return whole
	}
	return grouped(n) + "." + fraction
}

func mebibytes(n int64) string {
	if n >= 1<<30 {
		return fmt.Sprintf("%.2f GiB", float64(n)/(1<<30))
	}
	return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20))
}

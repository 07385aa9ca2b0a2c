package soak

import (
	"fmt"
	"strings"

	"cotenant/internal/ledger"
)

// addLoad shows what became of a load plan.
func addLoad(l *ledger.Ledger, add func(name, format string, args ...any)) {
	d := l.Load
	if d.Plan.Open() {
		t := &l.Times
		add("Arrivals", "%s, %s found no worker free", d.Plan.Arrival, grouped(d.WorkersOut))
		add("From schedule to worker p50 / max", "%s / %s s", seconds(d.StartLag.P50.ValueUS), seconds(d.StartLag.MaxUS))
		add("TTFT from schedule p50 / p95", "%s / %s s", orInfinite(&t.TTFTSchedule.P50), orInfinite(&t.TTFTSchedule.P95))
		add("Latency from schedule p50 / p95", "%s / %s s", orInfinite(&t.LatencySchedule.P50), orInfinite(&t.LatencySchedule.P95))
	}
	if len(d.Stages) > 1 || d.Answer != nil {
		for i, s := range d.Stages {
			text := fmt.Sprintf("TTFT p95 %s, latency p95 %s s, %s results/s", orInfinite(&s.TTFT.P95), orInfinite(&s.Latency.P95), perSecond(s.ResultsPer1e6s, 2))
			if s.Verdict != "" {
				text += ", " + strings.ReplaceAll(s.Verdict, "_", " ")
			}
			add(fmt.Sprintf("Stage %d, %s", i+1, levelText(&d.Plan, s.Level)), "%s", text)
		}
	}
	if a := d.Answer; a != nil {
		text := "not established"
		if a.Level.OK {
			text = levelText(&d.Plan, a.Level)
		}
		if a.BrokenAt.OK {
			text += ", broken at " + levelText(&d.Plan, a.BrokenAt)
		}
		add("Highest level that keeps the objectives", "%s", text)
	}
	for _, t := range d.Tenants {
		share := notEstablished
		if t.SharePPM.OK {
			share = fmt.Sprintf("%.1f %% of the service", float64(t.SharePPM.V)/1e4)
		}
		add("Tenant "+t.Name, "%s (due %.1f %%), TTFT p95 %s s, wait p95 %s s, %s of %s failed", share, float64(t.ClaimPPM)/1e4, orInfinite(&t.TTFT.P95),
			orInfinite(&t.Wait.P95), grouped(t.Failed), grouped(t.Contexts))
	}
	if len(d.Tenants) > 0 {
		add("Jain's index of service over weight", "%s", orElse(d.JainPPM, notEstablished, func(v int64) string { return fmt.Sprintf("%.3f", float64(v)/1e6) }))
	}
	if p := d.Paired; p != nil {
		add("Unique minus shared base, TTFT, median of pairs", "%s", differenceText(&p.TTFTDiff))
		add("Unique minus shared base, latency, median of pairs", "%s", differenceText(&p.LatencyDiff))
	}
}

const notEstablished = "not established"

func orElse(o ledger.Opt, otherwise string, format func(int64) string) string {
	if !o.OK {
		return otherwise
	}
	return format(o.V)
}

// orInfinite shows a percentile, with failures as infinite ones.
func orInfinite(q *ledger.Quantile) string {
	if q.Evidence == ledger.EvidenceInfinite && !q.ValueUS.OK {
		return "∞"
	}
	return seconds(q.ValueUS)
}

func levelText(p *ledger.LoadPlan, level ledger.Opt) string {
	switch {
	case !level.OK:
		return "no level"
	case p.Open():
		return perSecond(level, 3) + " arrivals/s"
	}
	return grouped(level.V) + " workers"
}

// differenceText shows a median difference with its interval.
func differenceText(d *ledger.Distribution) string {
	q := &d.P50
	if !q.LowerUS.OK || !q.UpperUS.OK {
		return fmt.Sprintf("%s (%s pairs)", notEstablished, grouped(d.N))
	}
	ms := func(us int64) string { return fmt.Sprintf("%.3f", float64(us)/1e3) }
	return fmt.Sprintf("%s ms (98 %% interval %s to %s, %s pairs)", ms(q.ValueUS.V), ms(q.LowerUS.V), ms(q.UpperUS.V), grouped(d.N))
}

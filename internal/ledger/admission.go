package ledger

import (
	"cmp"
	"fmt"
)

// DeepRung is the number of contexts from which resource and claim-boundary fields are demanded.
const DeepRung = 1000

// MaxGapUS is how far two samples may lie apart, for a period in µs. A trace has to show the run at least once a second, with two
// samples lost; a run that asks for more samples than that isn't the worse for it on a busy machine.
func MaxGapUS(period int64) int64 { return max(3*period, 3_000_000) }

// admission says whether the run counts at its rung, by what the sums know. Package verify asks each of these again, and
// more, by its own means.
func admission(l *Ledger, rows *rowSum, res *resourceSum) Admission {
	a := Admission{Why: []string{}}
	if IsRungOf(l.Contract, l.Contexts) {
		a.Rung = Some(l.Contexts)
	}
	c, m := &l.Counts, &l.Samples
	against := map[string]bool{
		WhyNotARung:     !a.Rung.OK,
		WhyNotFinished:  l.Status != StatusFinished,
		WhyIncomplete:   c.Submitted != l.Contexts || c.Duplicates > 0 || c.Strays > 0,
		WhyFailed:       c.Failed > 0,
		WhyUsage:        c.UsageMissing > 0,
		WhyWorkers:      l.Workers < 1 || l.Workers >= l.Contexts || rows.workersBad,
		WhyPeak:         l.Peaks.InFlight < 1 || l.Peaks.InFlight > l.Workers || l.Peaks.InFlightObserved != Some(rows.endedPeak),
		WhySamples:      m.Count < 2 || !m.Covered || m.MaxGapUS.Or(0) > MaxGapUS(m.PeriodUS),
		WhyResources:    l.Contexts >= DeepRung && (res.clientGaps > 0 || !res.tried),
		WhyTokens:       rows.tokensBad,
		WhySharedBase:   rows.baseDiffers,
		WhyServerChange: m.ServerRestarts > 0,
	}
	if rows.control != nil {
		rows.control.against(l, against)
	}
	if l.Contract == ContractOrchestration {
		orchestrationAgainst(l, against)
	}
	for _, code := range AdmissionCodes() {
		if against[code] {
			a.Why = append(a.Why, code)
		}
	}
	a.Admitted = len(a.Why) == 0
	return a
}

// notExposed lists what could have been evidence and wasn't there, and why.
func notExposed(l *Ledger, res *resourceSum) []Statement {
	out := []Statement{}
	add := func(id, format string, args ...any) { out = append(out, Statement{id, fmt.Sprintf(format, args...)}) }
	if l.Tokens.CachedResponses == 0 {
		add("cached_tokens", "no response's usage said how much of its prompt was cached")
	}
	if l.Samples.ServerSamples == 0 {
		reason := res.serverReason
		if reason == "" {
			reason = "no sample was taken"
		}
		add("server_process", "%s", reason)
	} else {
		for _, p := range []struct {
			id string
			v  Opt
		}{{"server_rss_bytes", l.Peaks.ServerRSSBytes}, {"server_heap_bytes", l.Peaks.ServerHeapBytes}} {
			if !p.v.OK {
				add(p.id, "no sample of the server's process holds it")
			}
		}
	}
	if len(l.GPUs) == 0 {
		add("gpu", "%s", cmp.Or(res.gpus.reason, "no sample was taken"))
	}
	if l.InProcess {
		add("client_share", "client and server are one process: their CPU time and memory are not separable")
	}
	for _, s := range l.Series {
		switch {
		case s.Values > 0:
		case !res.tried:
			add(s.Name, "no metrics were read")
		case s.NaN > 0:
			add(s.Name, "every reading of %s was NaN", s.Source)
		case s.NotExposed > 0: // by at least one reading that succeeded, and none had it
			add(s.Name, "the server has no such series")
		case res.scrapeError != "":
			add(s.Name, "metrics could not be read: %s", res.scrapeError)
		default:
			add(s.Name, "its readings failed")
		}
	}
	return out
}

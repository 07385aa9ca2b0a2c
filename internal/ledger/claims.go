package ledger

import "fmt"

// What a claim about time needs: no more than 5 % of results may have come in one piece, and a client on the server's
// machine may have used no more than 10 % of its cores.
const (
	MaxBufferedPPM    = 50_000
	MaxClientSharePPM = 100_000
)

// ClaimTTFT is the claim that buffered answers rule out.
const ClaimTTFT = "ttft_p50"

// TTFTClaimable reports whether a run's times to first token mean what they say.
func TTFTClaimable(c *Counts, ttft *Distribution) bool {
	return ttft.N > 0 && c.TTFTMissing == 0 && c.Turns > 0 && c.Buffered*1_000_000 <= MaxBufferedPPM*c.Turns
}

// Restate computes claims and non-claims again from what else stands in l: its numbers, its admission and what it says was not
// exposed.
func Restate(l *Ledger) ([]Claim, []Statement) { return claims(l) }

// claims lists what the run establishes and what it doesn't. A run that isn't admitted establishes nothing.
func claims(l *Ledger) ([]Claim, []Statement) {
	out := []Claim{}
	claim := func(id, statement string, v Opt, unit, evidence, bound string) {
		if v.OK && l.Admission.Admitted {
			out = append(out, Claim{id, statement, v.V, unit, evidence, bound})
		}
	}
	claim("retired", "logical contexts that retired exactly once", Some(l.Counts.Completed), "contexts", "/counts/completed",
		"by this client's record of one run; the contract is "+l.Contract)
	claim("in_flight", "largest number of requests in flight at once, observed", Some(l.Peaks.InFlight), "requests", "/peaks/in_flight",
		inFlightBound(l))
	claim("client_memory", "largest resident memory of the client", l.Peaks.ClientHWMBytes, "bytes", "/peaks/client_hwm_bytes", clientMemoryBound(l))
	if l.Contract != ContractOrchestration {
		claimServer(l, claim)
	}
	if l.Oracle.Checked > 0 {
		claim("tasks_right", "results whose answer the task's oracle accepts", Some(l.Oracle.Passed), "results", "/oracle/passed",
			fmt.Sprintf("of %d generated tasks that were checked; not a measure of usefulness beyond them", l.Oracle.Checked))
	}
	if l.Contract == ContractOrchestration {
		claimOrchestration(l, claim)
		return out, nonClaims(l)
	}
	for i, g := range l.GPUs {
		claimGPU(l, i, g, claim)
	}
	for i, s := range l.Series {
		claimSeries(l, i, s, claim)
	}
	if l.Controlled != nil {
		claimControlled(l, claim)
	}
	if l.Load != nil && clientLimits(l) == "" {
		claimLoad(l, claim)
	}
	return out, nonClaims(l)
}

// claimServer claims what the server took and how fast its answers came, which an endpoint that computes nothing doesn't show.
func claimServer(l *Ledger, claim func(id, statement string, v Opt, unit, evidence, bound string)) {
	claim("server_memory", "largest resident memory of the server's processes, sampled", l.Peaks.ServerRSSBytes, "bytes", "/peaks/server_rss_bytes",
		"host memory, a sample every period_us; device memory is another series")
	rateBound := "observed provider usage over the run's wall time; not a kernel's or the server's own rate"
	if clientLimits(l) == "" {
		claim("result_rate", "nonempty, usage-bearing results", l.Rates.ResultsPer1e6s, "per 10^6 s", "/rates/results_per_1e6s", rateBound)
		claim("prompt_rate", "prompt tokens", l.Rates.PromptPer1e6s, "per 10^6 s", "/rates/prompt_tokens_per_1e6s", rateBound)
		claim("completion_rate", "completion tokens", l.Rates.CompletionPer1e6s, "per 10^6 s", "/rates/completion_tokens_per_1e6s", rateBound)
		claim("latency_p50", "median time from sent to end", l.Times.Latency.P50.ValueUS, "us", "/times/latency/p50/value_us", "of this run's sample")
		claim("latency_p95_upper", "95th percentile of the time from sent to end, 99 % upper bound", boundOf(l.Times.Latency.P95), "us",
			"/times/latency/p95/upper_us", "if the run's results are independent draws")
		if TTFTClaimable(&l.Counts, &l.Times.TTFT) {
			claim(ClaimTTFT, "median time to first token", l.Times.TTFT.P50.ValueUS, "us", "/times/ttft/p50/value_us", "of this run's sample")
		}
	}
}

// claimControlled claims what the contract's terms came to.
func claimControlled(l *Ledger, claim func(id, statement string, v Opt, unit, evidence, bound string)) {
	c := l.Controlled
	claim("rollback", "bases that failed the canary and were rolled back", Some(c.Rollbacks), "bases", "/controlled/rollbacks",
		"a base without its list, asked for what stood there; every measured request carries the base that passed")
	claim("faults_recovered", "planned faults that ended an attempt as they had to, and whose turn has a result", Some(c.FaultsRecovered), "faults",
		"/controlled/faults_recovered", fmt.Sprintf("of %d; done by the client's own proxy and by the client, not by the network or the server", c.FaultContexts))
	claim("restored", "conversations that were parked on the disk and came back byte for byte", Some(c.Restored), "conversations", "/controlled/restored",
		"as the commitments of what was written and of what was sent have it")
	if c.RestoredAcross > 0 {
		claim("restored_across", "conversations that another process than the one that parked them brought back", Some(c.RestoredAcross), "conversations",
			"/controlled/restored_across", "after the first process had ended or was killed; a loss of power was not tried")
	}
	if hasGauge(l) {
		claim("gauges_returned", "times at which nothing was open and the server's gauges came back to where they began", Some(c.QuietReturned), "times",
			"/controlled/quiet_returned", "cancelled and reset requests before them included; by the endpoint's own reading")
	}
	if clientLimits(l) == "" {
		claim("queue_age_p50", "median time from a turn's being ready to its being sent", l.Times.QueueAge.P50.ValueUS, "us", "/times/queue_age/p50/value_us",
			"of a closed loop, where it grows with contexts over workers")
		claim("queue_age_p95_upper", "95th percentile of the time from a turn's being ready to its being sent, 99 % upper bound", boundOf(l.Times.QueueAge.P95), "us",
			"/times/queue_age/p95/upper_us", "if turns are independent draws")
	}
	claimReconciled(l, claim)
}

// claimReconciled claims the counts on which server and client agree.
func claimReconciled(l *Ledger, claim func(id, statement string, v Opt, unit, evidence, bound string)) {
	for i, r := range l.Reconciliation {
		unit := "tokens"
		if r.Quantity == SeriesRequests || r.Quantity == SeriesAborted {
			unit = "requests"
		}
		claim("reconciled_"+r.Quantity, r.Quantity+" by the server's own counter, within the declared residual of the client's count", Some(r.Server), unit,
			fmt.Sprintf("/reconciliation/%d/server", i), fmt.Sprintf("residual %d, declared %d to %d: what attempts that were cut can have left", r.Residual, r.Low, r.High))
	}
}

// claimGPU claims what one GPU's samples came to.
func claimGPU(l *Ledger, i int, g GPUSummary, claim func(id, statement string, v Opt, unit, evidence, bound string)) {
	suffix := ""
	if len(l.GPUs) > 1 {
		suffix = fmt.Sprintf("_%d", i)
	}
	whole := "of the whole GPU by " + g.Source + ", with whatever else ran on it"
	claim("gpu_memory"+suffix, "largest memory in use on a GPU, sampled", g.MemoryMaxBytes, "bytes", fmt.Sprintf("/gpus/%d/memory_max_bytes", i), whole)
	claim("gpu_power"+suffix, "largest power of a GPU, sampled", g.PowerMaxMW, "mW", fmt.Sprintf("/gpus/%d/power_max_mw", i), whole)
	claim("gpu_energy"+suffix, "energy of a GPU over the samples' span", g.EnergyMJ, "mJ", fmt.Sprintf("/gpus/%d/energy_mj", i), whole+", its idle power included")
}

// claimSeries claims what the endpoint itself exposed.
func claimSeries(l *Ledger, i int, s SeriesSummary, claim func(id, statement string, v Opt, unit, evidence, bound string)) {
	at := fmt.Sprintf("/series/%d/max", i)
	said := "the endpoint's own reading of " + s.Source + ", sampled"
	switch s.Name {
	case SeriesQueueOldestAge:
		claim("queue_oldest_age", "largest age of the oldest request in the server's queue", s.Max, "us", at, said)
	case SeriesWaiting:
		claim("queue_depth", "largest number of requests in the server's queue", s.Max, "requests", at, said)
	case SeriesKVSlots:
		claim("kv_slots", "largest number of sequences that held KV cache", s.Max, "sequences", at, said)
	case SeriesKVPagesUsed:
		claim("kv_pages", "largest number of KV pages in use", s.Max, "pages", at, said)
	case SeriesDeviceMemory:
		claim("device_memory", "largest device memory", s.Max, "bytes", at, said)
	case SeriesPrefixHits:
		for j, r := range l.Reconciliation {
			if r.Quantity == SeriesPrefixHits && r.Residual == 0 {
				claim("prefix_hits", "prompt tokens taken from the prefix cache, by the server's counter and by usage alike", Some(r.Server), "tokens",
					fmt.Sprintf("/reconciliation/%d/server", j), "that they were reused, not what that was worth")
			}
		}
	}
}

func inFlightBound(l *Ledger) string {
	const bound = "between a request's last byte sent and its response's end, as the client saw them"
	if l.Shared {
		return bound + "; of one of the processes, which ran at the same time"
	}
	return bound
}

func clientMemoryBound(l *Ledger) string {
	if l.InProcess {
		return "VmHWM of the one process that holds client and server"
	}
	return "VmHWM of the soaking process"
}

func boundOf(q Quantile) Opt {
	if q.Evidence != EvidenceBound && q.Evidence != EvidenceMaximum {
		return Opt{}
	}
	return q.UpperUS
}

// clientLimits says why times and rates may be the client's rather than the server's, empty if nothing says so.
func clientLimits(l *Ledger) string {
	share, known := l.Samples.ClientSharePPM.Get()
	switch {
	case l.Shared:
		return "several processes drove the endpoint at the same time: their clocks aren't one, and what they used together isn't computed"
	case l.EndpointScope != ScopeLoopback, l.InProcess, known && share <= MaxClientSharePPM:
		return ""
	case !known:
		return "what the client used of the cores that it shared with the server isn't known"
	}
	return fmt.Sprintf("the client used %d ppm of the cores that it shared with the server; the limit is %d", l.Samples.ClientSharePPM.V, MaxClientSharePPM)
}

func nonClaims(l *Ledger) []Statement {
	out := []Statement{}
	add := func(id, format string, args ...any) { out = append(out, Statement{id, fmt.Sprintf(format, args...)}) }
	if !l.Admission.Admitted {
		add("admission", "the run isn't admitted (see admission.why): its numbers describe it and establish nothing")
	}
	if l.Counts.Resent > 0 {
		add("sent_once", "%d attempts were open when a segment was killed and were sent again: the server may have answered them twice", l.Counts.Resent)
	}
	if l.Contract == ContractOrchestration {
		add("server", "the contract %s is about the client: the endpoint's answers are checked and counted, and its times, rates and memory establish nothing", l.Contract)
	}
	if (l.Controlled != nil || l.Contract == ContractOrchestration) && len(l.Reconciliation) == 0 {
		add("reconciliation", "counters are set against the client's where one server exposes them to one segment; this run has %d segments", l.Segments)
	}
	if l.Nonce != "" && l.Workload.Seed == "" {
		add("answered_after_the_challenge", "the client puts the nonce before each prompt; prompts from a file are made again only where `verify --prompts` has it")
	} else if l.Nonce != "" {
		add("answered_after_the_challenge", "each prompt begins with the nonce, so that it was made after that was given; whether a server answered it then is the next line's")
	}
	add("that_it_happened", "hashes and signatures prove that the files haven't changed since, not that a server answered; a nonce or a second observer would add to that")
	add("kernel_rates", "rates are provider usage over wall time")
	add("backend_speed_up", "one run compares nothing; two like runs would")
	if why := noBenefit(l); why != "" {
		add("prefix_cache_benefit", "%s", why)
	}
	if !l.Workload.Unique {
		add("fresh_answers", "the workload doesn't promise that no two contexts send the same prompt: an answer may have come from an output cache")
	}
	if why := noFairness(l); why != "" {
		add("multi_user_fairness", "%s", why)
	}
	if l.Load != nil {
		loadNonClaims(l.Load, add)
	}
	if l.Oracle.Checked == 0 {
		add("task_quality", "no result had an oracle: a result is nonempty text with usage, no more")
	} else {
		add("task_quality", "the oracle's tasks are generated and small; beyond them nothing is known")
	}
	if why := clientLimits(l); why != "" {
		add("server_times_and_rates", "%s", why)
	}
	if l.InProcess {
		add("server_times_apart", "client and server shared one process: times and rates are of the pair")
	}
	if !TTFTClaimable(&l.Counts, &l.Times.TTFT) {
		add(ClaimTTFT, "of %d results %d came in one piece and %d had no first token's time: the limit is %d ppm and none", l.Counts.Turns, l.Counts.Buffered, l.Counts.TTFTMissing, MaxBufferedPPM)
	}
	if !boundOf(l.Times.Latency.P95).OK {
		add("latency_p95_upper", "%d results are too few for a 99 %% bound of a 95th percentile", l.Times.Latency.N)
	}
	if l.Tokens.RowsFewerDeltas > 0 {
		add("tokens_seen", "in %d results fewer deltas than completion tokens came, beyond an end-of-sequence token: the rest is the provider's word", l.Tokens.RowsFewerDeltas)
	}
	for _, s := range l.NotExposed {
		switch s.ID {
		case SeriesKVSlots, SeriesKVPagesUsed, SeriesQueueOldestAge, SeriesPrefixHits, SeriesDeviceMemory, "server_rss_bytes", "server_process":
			add(s.ID, "not exposed: %s", s.Reason)
		}
	}
	return out
}

package verify

import (
	"slices"

	"cotenant/internal/ledger"
)

// Rule is one thing that must hold of a run. Its ID never changes meaning.
type Rule struct {
	ID        string   `json:"id"`
	Title     string   `json:"title"`
	Explain   string   `json:"explain"`   // why it is asked, and what is compared
	From      int64    `json:"from"`      // applies from this many contexts
	Contracts []string `json:"contracts"` // applies to these; empty: to all
	After     []string `json:"after"`     // rules on which its meaning rests: not judged where one failed

	// check returns what failed, or else why the rule doesn't apply, or else nothing. It changes nothing.
	check func(*evidence) (failure, notApplicable string)
}

// Rules lists all rules in the order in which they are judged. A rule follows those that it rests on.
func Rules() []Rule {
	readable, controlled, orchestration := []string{"R-FORM-02"}, []string{ledger.ContractControlled}, []string{ledger.ContractOrchestration}
	rules := []Rule{
		{ID: "R-FORM-01", Title: "ledger.json is in canonical form",
			Explain: "One ledger has one sequence of bytes (RFC 8785, integers only), so that a hash of it means its content and nothing can hide in its form.",
			check:   canonicalLedger},
		{ID: "R-FORM-02", Title: "every line reads strictly",
			Explain: "Each line of rows.jsonl, resources.jsonl and events.jsonl is one object in canonical form with exactly the members of docs/formats/run.md, each within its range, the last line ended by a line feed.",
			check:   readableLines},
		{ID: "R-FILE-01", Title: "sizes, lines and hashes are those of the files",
			Explain: "Bytes, line feeds and SHA-256 in files[] are compared with the four files as they lie there.",
			After:   readable, check: fileHashes},
		{ID: "R-FILE-02", Title: "Merkle roots are those of the lines",
			Explain: "The RFC 6962 root over a file's lines, which lets a part of the rows be published with proofs, is computed again.",
			After:   readable, check: merkleRoots},
		{ID: "R-FILE-03", Title: "the files' root binds files[]",
			Explain: "files_root is the Merkle root over the canonical entries of files[]: one hash that stands for the run.",
			check:   filesRoot},
		{ID: "R-CONF-01", Title: "the config is the one that was registered",
			Explain: "The SHA-256 of config.json in its public form equals config_sha256 of the ledger and of every start event.",
			After:   readable, check: configHash},
		{ID: "R-CONF-02", Title: "registration comes before the first request",
			Explain: "The first line of events.jsonl is the start event with the config's hash, at 0 us of its segment's clock; segments start in order; every row, sample and event belongs to a segment that has started.",
			After:   readable, check: registeredFirst},
		{ID: "R-CONF-03", Title: "the ledger repeats the config",
			Explain: "Identity, plan, model, workload and build in the ledger are those of config.json.",
			After:   readable, check: repeatsConfig},
		{ID: "R-CONF-04", Title: "the config's commitments open",
			Explain: "secret_sha256, place_sha256, endpoint_commitment and metrics_commitment are those of what the config has. What is left out of a published run can't be asked.",
			check:   endpointOpens},
		{ID: "R-LEAK-01", Title: "no address and no secret in clear",
			Explain: "Neither the endpoint's address nor the run's secret stands in ledger.json or in any free text of the lines.",
			After:   readable, check: leaks},
		{ID: "R-DEF-01", Title: "definitions are those of this schema",
			Explain: "Load tools differ in what starts and stops each clock, which tokens count and how a percentile is taken. The choices of schema_version are written out in config and ledger, and are no others.",
			check:   definitions},
		{ID: "R-RUNG-01", Title: "the number of contexts is a rung",
			Explain: "Only 100, 1,000, 10,000, 100,000 and 1,000,000 contexts can be admitted, under the contracts controlled and orchestration only those from 10,000 up; anything else is not_a_rung.",
			check:   rung},
		{ID: "R-STAT-01", Title: "the run finished",
			Explain: "The last segment has an end event that says finished, and the ledger's status, segments and end are those of the events.",
			After:   readable, check: finished},
		{ID: "R-CTX-01", Title: "each context exactly once",
			Explain: "Each planned context was submitted, no turn has two results or comes before the one before it, none beyond the plan was sent. With R-FAIL-01 and R-USAGE-01: submitted = completed, and turns = usage responses = contexts times turns of each.",
			After:   readable, check: exactlyOnce},
		{ID: "R-FAIL-01", Title: "no context failed",
			Explain: "The last attempt of every submitted context is of its last turn and ended with ok.",
			After:   readable, check: noFailures},
		{ID: "R-USAGE-01", Title: "every result has usage",
			Explain: "Tokens come from the provider's usage object alone; a result without one is not a usage response, and nothing is put in its place.",
			After:   readable, check: usageThere},
		{ID: "R-RETRY-01", Title: "attempts follow each other",
			Explain: "Attempts of a turn count 1, 2, … up to its result, stay within max_attempts (interrupted ones, which only another segment may repeat, don't count), follow only an outcome that may be retried, and don't begin before the one before has ended.",
			After:   readable, check: firstOf(func(f *facts) *violation { return &f.badRetry })},
		{ID: "R-SENT-01", Title: "what was sent again is declared",
			Explain: "An attempt that was open when a segment was killed left no row and is sent again by the next one, which says so: at most one a worker, of what was planned, and only after a segment that has no end.",
			After:   readable, check: resent},
		{ID: "R-QUEUE-01", Title: "a turn is ready when the turn before it has ended",
			Explain: "queued_us of a later turn is the end of the result before it, where that is of the same segment, else 0: no queue age is made shorter.",
			After:   readable, check: firstOf(func(f *facts) *violation { return &f.badQueue })},
		{ID: "R-OUT-01", Title: "outcomes fit what was seen",
			Explain: "ok needs HTTP 200, text, an end marked by finish_reason or [DONE] and no error; each other outcome needs what it names; an oracle judges results alone.",
			After:   readable, check: firstOf(func(f *facts) *violation { return &f.badOutcome })},
		{ID: "R-WORK-01", Title: "workers are bounded",
			Explain: "At least one worker and fewer than contexts; no attempt ran on a worker beyond them.",
			After:   readable, check: boundedWorkers},
		{ID: "R-LANE-01", Title: "a worker does one thing at a time",
			Explain: "The intervals from picked to end of one worker's attempts don't overlap.",
			After:   readable, check: lanes},
		{ID: "R-PEAK-01", Title: "the peak in flight was observed",
			Explain: "The client's own counter (peak events), the sweep line over rows and the ledger agree in every segment that ended, and lie between 1 and workers. A segment that was killed has its rows' sweep alone.",
			After:   readable, check: peakObserved},
		{ID: "R-PEAK-02", Title: "no sample saw more in flight than the peak",
			Explain: "The counter that the samples of resources.jsonl carry never exceeds the peak of its segment, where that ended: what is open when a segment is killed leaves no row.",
			After:   []string{"R-FORM-02", "R-PEAK-01"}, check: samplesBelowPeak},
		{ID: "R-TIME-01", Title: "times are in order",
			Explain: "queued ≤ picked ≤ sent ≤ headers ≤ first event ≤ first token ≤ last token ≤ end in every row, and first content lies between first and last token.",
			After:   readable, check: firstOf(func(f *facts) *violation { return &f.badTime })},
		{ID: "R-BASE-01", Title: "all rows carry one base",
			Explain: "The fingerprint of the shared base that a row sent equals the one that the config registered.",
			After:   readable, check: firstOf(func(f *facts) *violation { return &f.badBase })},
		{ID: "R-PROMPT-01", Title: "prompts are what the workload says",
			Explain: "All attempts of a turn send the same bytes; where the workload promises unique prompts, no two contexts do. A server that answers from an output cache can't hide behind repeated prompts.",
			After:   readable, check: firstOf(func(f *facts) *violation { return &f.badPrompt })},
		{ID: "R-PROMPT-02", Title: "prompts are those that seed, nonce and sampling give",
			Explain: "The prompts of first turns are made again from the config, the verifier's nonce at their beginning, and give the rows' commitments; above 100,000 contexts those of a part that files_root picks. Prompts from a file are taken from it where verify --prompts FILE gives it, whose SHA-256 must be workload.sha256; without it, and of a run that is published without its secret, no prompt is made again.",
			After:   readable, check: promptsRebuilt},
		{ID: "R-TOK-01", Title: "usage can be true",
			Explain: "Each result has at least one prompt and one completion token, no more completion tokens than were allowed, no more deltas than completion tokens, no more cached than prompt tokens.",
			After:   readable, check: firstOf(func(f *facts) *violation { return &f.badTokens })},
		{ID: "R-TOK-02", Title: "token sums are those of the rows",
			Explain: "Sums of usage, of deltas and of what was wasted, and how many results have as many deltas as tokens, are computed again, twice.",
			After:   readable, check: tokenSums},
		{ID: "R-TOK-03", Title: "spending stayed within its limit",
			Explain: "Prompt and completion tokens of all attempts don't exceed max_spend_tokens, where the config sets it, by more than what workers had in flight.",
			After:   readable, check: spending},
		{ID: "R-COUNT-01", Title: "counts are those of the rows",
			Explain: "Contexts, turns, attempts, outcomes and flags are counted again, twice.",
			After:   readable, check: counts},
		{ID: "R-LAT-01", Title: "distributions are those of the rows",
			Explain: "Each n, minimum, percentile, bound, maximum and sum is computed again, the order statistics twice.",
			After:   readable, check: distributions},
		{ID: "R-RATE-01", Title: "wall time and rates are those of the rows",
			Explain: "Wall time, results and tokens over it, and the warm rate are computed again, twice.",
			After:   readable, check: wallAndRates},
		{ID: "R-ORA-01", Title: "the oracle's score is that of the rows",
			Explain: "Checked, passed, each task's score, the rate and Wilson's interval are computed again. The verifier doesn't ask the oracle: answers aren't in the rows.",
			After:   readable, check: oracle},
		{ID: "R-BUF-01", Title: "buffered answers are marked",
			Explain: "A row is marked buffered exactly where its two tokens or more came at one moment, within 1 % of its latency, or within 50 us for each event after the first: faster than a model decodes, so that the answer was finished when it was sent.",
			After:   readable, check: firstOf(func(f *facts) *violation { return &f.badBuffered })},
		{ID: "R-TTFT-01", Title: "no time to first token from buffered answers",
			Explain: "The ledger claims a time to first token only if every result has one and no more than 5 % of results came in one piece.",
			After:   []string{"R-FORM-02", "R-BUF-01"}, check: ttftClaim},
		{ID: "R-RES-01", Title: "samples cover the run",
			Explain: "At least two samples, from before a segment's first request to after its last end.",
			After:   readable, check: samplesCover},
		{ID: "R-RES-02", Title: "samples have no gap",
			Explain: "Two samples of a segment are no more than three periods apart, or three seconds where the period is shorter than one: the run is seen every second, and a trace that is asked for more may have holes.",
			After:   readable, check: sampleGaps},
		{ID: "R-RES-03", Title: "memory of client and server",
			Explain: "Every sample has the client's resident memory, and some memory of the server's (resident, or what it says of itself) or the reason why none can be had.",
			From:    ledger.DeepRung, After: readable, check: memoryThere},
		{ID: "R-RES-04", Title: "KV-capacity and queue evidence",
			Explain: "Samples hold the endpoint's series on KV pages, slots, queue and prefix cache, or say that it exposes none; silence is neither.",
			From:    ledger.DeepRung, After: readable, check: seriesStated},
		{ID: "R-RES-05", Title: "one server throughout",
			Explain: "The server's process is the same in all samples.",
			After:   readable, check: firstOf(func(f *facts) *violation { return &f.badServer })},
		{ID: "R-RES-06", Title: "samples are in order",
			Explain: "Within a segment, time moves on and what is cumulative doesn't fall.",
			After:   readable, check: firstOf(func(f *facts) *violation { return &f.badCounter })},
		{ID: "R-SUM-01", Title: "peaks, samples, series and reconciliation are those of the samples",
			Explain: "Everything that the ledger takes from resources.jsonl is computed again.",
			After:   readable, check: sampleSums},
		{ID: "R-GPU-01", Title: "sums over GPUs are those of the samples",
			Explain: "Memory, power, energy and utilisation of each GPU are computed again, the largest values and the energy twice; no sample shows more memory in use than there is.",
			After:   readable, check: gpuSums},
		{ID: "R-TERM-01", Title: "the registered terms are the contract's",
			Explain:   "At least two turns, at most three attempts, a fault for one context in a hundred at least, a canary that can tell a base, a bad base other than the good one, and a wait for the server's gauges.",
			Contracts: controlled, check: contractTerms},
		{ID: "R-CAN-01", Title: "a bad base failed its canary and was rolled back",
			Explain:   "The registered bad base got fewer right answers than needed, a rollback to the good one followed, and before the first request of each segment the good one was the last that was asked, and passed.",
			Contracts: controlled, After: readable, check: canaries},
		{ID: "R-FAULT-01", Title: "faults were done as planned",
			Explain:   "The plan, worked out again from its seed, gives one context in each block its kind and turn; each was done once, none else was, and they are 1 % of contexts at least.",
			Contracts: controlled, After: readable, check: faultsPlanned},
		{ID: "R-FAULT-02", Title: "each fault shows in its attempt and was recovered from",
			Explain:   "Each fault event has the row of its attempt, which lasted when the fault was done, ended as that kind makes an attempt end, in its phase, and whose turn has a result; no attempt was cancelled by a plan without its event. A segment that was killed may have left one without its row for each worker.",
			Contracts: controlled, After: []string{"R-FORM-02", "R-FAULT-01", "R-FAIL-01"}, check: faultsRecovered},
		{ID: "R-PARK-01", Title: "what came back is what was parked",
			Explain:   "Each turn's result but the last has a commitment to what was parked, and each attempt of the next turn has the same commitment to what was read back and sent.",
			Contracts: controlled, After: []string{"R-FORM-02", "R-FAIL-01", "R-CTX-01"}, check: firstOf(func(f *facts) *violation { return &f.control.badPark })},
		{ID: "R-PARK-02", Title: "the park file opens the commitments",
			Explain:   "Every commitment to a parked conversation is opened by a record of park.bin, where that private file lies beside the rows.",
			Contracts: controlled, After: []string{"R-FORM-02", "R-PARK-01"}, check: parkFile},
		{ID: "R-QUIET-01", Title: "the server's gauges came back",
			Explain:   "At each quiet point nothing was open, and the sample that it speaks of shows requests running and waiting and KV memory in use no higher than the segment's first sample, within the registered limit of the last end; each segment that ended has one after its last end.",
			Contracts: controlled, After: readable, check: quietPoints},
		{ID: "R-REC-01", Title: "counters agree within the declared residual",
			Explain:   "The increase of the server's counters of requests, aborts, prompt tokens, generated tokens and prefix hits is the client's count, beside what attempts that were cut can have left: between nothing and their prompts and tokens whole, and no less than what they were seen to bring. Under the contract orchestration the counters of requests, prompt tokens and generated tokens must be there, where one segment made the run.",
			Contracts: append(orchestration, controlled...), After: []string{"R-FORM-02", "R-CTX-01", "R-FAIL-01", "R-TOK-01"}, check: reconciled},
		{ID: "R-ORA-02", Title: "every task was answered right",
			Explain:   "Each turn's result was accepted by its task's oracle: an endpoint that computes nothing answers what it is asked, so that a wrong answer is one that went to another context.",
			Contracts: orchestration, After: []string{"R-FORM-02", "R-FAIL-01", "R-ORA-01"}, check: allRight},
		{ID: "R-MEM-01", Title: "the client's memory is bounded",
			Explain:   "The largest resident memory (VmHWM) that a sample shows of the client is known, is not shared with a server in the same process, and lies below 256,000,000 bytes.",
			Contracts: orchestration, After: []string{"R-FORM-02", "R-RES-03"}, check: clientMemory},
		{ID: "R-CONN-01", Title: "connections were used again",
			Explain:   "No more attempts opened a connection than there are workers in each segment, attempts that ended with anything but a result, reconnects, and one attempt of 1,000: ports can't run out.",
			Contracts: orchestration, After: []string{"R-FORM-02", "R-CTX-01"}, check: connectionsReused},
		{ID: "R-CTL-01", Title: "the contract's sums are those of the files",
			Explain: "Canaries, faults by kind, parked and restored conversations and quiet points in the ledger are counted again, some of them twice.",
			After:   []string{"R-FORM-02", "R-FAULT-01"}, check: controlledSums},
		{ID: "R-LOAD-01", Title: "arrivals are those of the plan",
			Explain: "In an open loop, queued_us of each attempt is when its stage began and the plan's gaps since then, worked out again from the registered seed and rates, or from the schedule whose hash was registered: nothing was sent late and called punctual.",
			After:   readable, check: arrivals},
		{ID: "R-LOAD-02", Title: "stages follow the plan",
			Explain: "Each stage has the level that the plan gives it, or, in a search, the one that follows from the stages before it; its contexts come after its beginning, a closed one runs on no more workers than it has, and a step of a search begins when the one before it has ended.",
			After:   readable, check: stages},
		{ID: "R-LOAD-03", Title: "tenants keep to their workers",
			Explain: "In a closed loop with tenants, each attempt ran on a worker of its context's tenant, so that none took another's place at the client.",
			After:   readable, check: tenantLanes},
		{ID: "R-LOAD-04", Title: "what the plan came to is that of the rows",
			Explain: "Stages, verdicts, the answer, tenants' service, Jain's index and differences of pairs are computed again, most of them twice.",
			After:   []string{"R-FORM-02", "R-CTX-01", "R-RETRY-01"}, check: loadSums},
		{ID: "R-PAIR-01", Title: "a base of one's own is nobody else's",
			Explain: "Of paired contexts, no two with a base of their own sent the same prompt, and none over the shared base sent one of theirs.",
			After:   readable, check: pairsDiffer},
		{ID: "R-PUB-01", Title: "published.json lists what is here",
			Explain: "Bytes and SHA-256 of each file of a published form are compared with the list, whose run is that of config and ledger; nothing else lies there.",
			After:   readable, check: publishedFiles},
		{ID: "R-PUB-02", Title: "what was left out is listed",
			Explain: "Each private member that a published config lacks is in the list of redactions with the commitment that the config has for it, and no other; endpoint, metrics' address and place_secret are never there.",
			After:   readable, check: redactionsListed},
		{ID: "R-PUB-03", Title: "sampled rows are the right ones, and among the run's",
			Explain: "Of a published sample, the indexes are those that files_root picks, and each row's audit path (RFC 6962, 2.1.1) leads to the Merkle root of rows.jsonl.",
			After:   readable, check: sampleProven},
		{ID: "R-PUB-04", Title: "each sampled row can be true",
			Explain: "What is asked of single rows of a whole run (times, outcomes, tokens, base, buffered, bounds) is asked of each row of a published sample.",
			After:   readable, check: sampleTrue},
		{ID: "R-COST-01", Title: "no time or rate of a server that its client held up",
			Explain: "Where the endpoint is on the client's machine, the client's share of its cores is worked out from the samples again; above a tenth, or unknown, the ledger claims no latency, no time, no rate and nothing that follows from them. In one process the two are not separable, which the ledger says.",
			After:   readable, check: clientCost},
		{ID: "R-CLAIM-01", Title: "a claim's value stands where it points",
			Explain: "Each claim points into the ledger; the value there, itself computed again, is the claim's.",
			check:   claimValues},
		{ID: "R-CLAIM-02", Title: "claims, non-claims and what was not exposed",
			Explain: "The ledger claims what the files support, and names what they don't and what was not exposed, with the reasons that the files give.",
			After:   []string{"R-FORM-02", "R-COST-01"}, check: claimList},
		{ID: "R-ADM-01", Title: "admission is what the files give",
			Explain: "The rung, the verdict and every reason against it are computed again.",
			After:   readable, check: admission},
		{ID: "R-SIGN-01", Title: "the signed statement names these files",
			Explain: "The in-toto statement in ledger.dsse.json has the digests of all five files.",
			After:   readable, check: signedFiles},
		{ID: "R-SIGN-02", Title: "the signature is by the given key",
			Explain: "One of the keys that the verifier was given signed the statement's bytes as they came (DSSE, ed25519). It proves who signed and that nothing changed since, not that the run happened.",
			check:   signature},
	}
	return rules
}

// Asks reports whether a rule is asked of a run under a contract with so many contexts.
func (r *Rule) Asks(contract string, contexts int64) bool {
	return contexts >= r.From && (len(r.Contracts) == 0 || slices.Contains(r.Contracts, contract))
}

// Rung is a place on the ladder: a contract, and the number of contexts from which the same is demanded up to the next place.
type Rung struct {
	Contract string `json:"contract"`
	From     int64  `json:"from"`
}

// Ladder lists the places at which demands grow.
func Ladder() []Rung {
	return []Rung{{ledger.ContractPlain, 100}, {ledger.ContractPlain, ledger.DeepRung}, {ledger.ContractControlled, ledger.ControlledRung},
		{ledger.ContractOrchestration, ledger.OrchestrationRung}}
}

// RuleByID finds a rule.
func RuleByID(id string) (Rule, bool) {
	for _, r := range Rules() {
		if r.ID == id {
			return r, true
		}
	}
	return Rule{}, false
}

// owners says which rule compares each member of the ledger; load compares the first three.
var owners = map[string]string{
	"schema_version": "load", "operation": "load", "document": "load",
	"run_id": "R-CONF-03", "run_ordinal": "R-CONF-03", "nonce": "R-CONF-03", "started_wall_us": "R-CONF-03", "contract": "R-CONF-03",
	"contexts": "R-CONF-03", "turns_per_context": "R-CONF-03", "workers": "R-CONF-03", "model": "R-CONF-03", "endpoint_scope": "R-CONF-03",
	"endpoint_commitment": "R-CONF-03", "in_process": "R-CONF-03", "shared": "R-CONF-03", "workload": "R-CONF-03", "base": "R-CONF-03", "max_tokens": "R-CONF-03",
	"client": "R-CONF-03", "config_sha256": "R-CONF-01", "ended_wall_us": "R-STAT-01", "status": "R-STAT-01", "status_detail": "R-STAT-01",
	"segments": "R-STAT-01", "files": "R-FILE-01", "files_root": "R-FILE-03", "counts": "R-COUNT-01", "tokens": "R-TOK-02",
	"wall_us": "R-RATE-01", "rates": "R-RATE-01", "times": "R-LAT-01", "peaks": "R-SUM-01", "oracle": "R-ORA-01", "samples": "R-SUM-01", "gpus": "R-GPU-01",
	"series": "R-SUM-01", "reconciliation": "R-SUM-01", "controlled": "R-CTL-01", "load": "R-LOAD-04", "definitions": "R-DEF-01", "claims": "R-CLAIM-02", "non_claims": "R-CLAIM-02",
	"not_exposed": "R-CLAIM-02", "admission": "R-ADM-01",
}

package report

import (
	"strings"

	"cotenant/internal/interfere/record"
	"cotenant/internal/ledger"
	"cotenant/internal/verify"
)

// whyWords says what an admission code means.
var whyWords = map[string]string{
	ledger.WhyNotARung:     "the number of contexts is no rung of this contract",
	ledger.WhyNotFinished:  "the run was stopped or failed before its end",
	ledger.WhyIncomplete:   "contexts are missing, or turns were tried that weren't planned",
	ledger.WhyFailed:       "at least one context failed",
	ledger.WhyUsage:        "at least one answer came without usage",
	ledger.WhyWorkers:      "the workers weren't fewer than the contexts, or more worked than were registered",
	ledger.WhyPeak:         "the peak in flight isn't within the workers, or differs from the client's counter",
	ledger.WhySamples:      "resource samples are too few, too far apart, or don't cover the run",
	ledger.WhyResources:    "resource evidence that this rung demands is missing",
	ledger.WhyTokens:       "an answer's token counts can't be true",
	ledger.WhySharedBase:   "the shared base isn't the same in every request",
	ledger.WhyServerChange: "the server was restarted during the run",
	ledger.WhyTerms:        "what was registered is less than the contract demands",
	ledger.WhyCanary:       "the base that had to fail didn't, the good one did, or nothing was rolled back",
	ledger.WhyFaults:       "a planned fault wasn't done, didn't show, or wasn't recovered from",
	ledger.WhyParking:      "a conversation wasn't parked, or came back another",
	ledger.WhyQuiet:        "the server's gauges didn't come back",
	ledger.WhyReconcile:    "a counter of the server lies outside its declared bounds, or isn't there",
	ledger.WhyTasks:        "at least one answer wasn't found right",
	ledger.WhyMemory:       "the client's memory isn't known, isn't its own, or is too large",
	ledger.WhyConnections:  "more connections were opened than workers need",
}

// whyText is empty for a code that this program doesn't know.
func whyText(code string) string { return whyWords[code] }

// outcomeWords says how attempts of an outcome ended.
var outcomeWords = map[ledger.Outcome]string{
	ledger.OK:              "answered whole",
	ledger.Empty:           "a whole stream without text",
	ledger.Truncated:       "the body ended before its end was marked",
	ledger.InbandError:     "an error inside a stream of status 200",
	ledger.HTTP429:         "too many requests",
	ledger.HTTP5xx:         "the server's fault, it says",
	ledger.HTTP4xx:         "the client's fault, the server says",
	ledger.Template:        "refused by the model's chat template",
	ledger.TransportBefore: "the connection failed before a byte came",
	ledger.TransportMid:    "the connection failed inside the stream",
	ledger.TimeoutHeaders:  "no headers in time",
	ledger.TimeoutIdle:     "nothing more in time",
	ledger.TimeoutTotal:    "not done in time",
	ledger.Oversize:        "an event larger than the reader takes",
	ledger.BadJSON:         "an event that is no JSON",
	ledger.NonStreamed:     "one JSON body in place of a stream",
	ledger.BadBody:         "neither a stream nor JSON",
	ledger.Compressed:      "a compressed body that wasn't asked for",
	ledger.CancelledInject: "cancelled by the run's own plan",
	ledger.Interrupted:     "open when the run was stopped",
	ledger.ClientExhausted: "the client ran out of ports or descriptors",
}

// outcomeText is empty for an outcome that this program doesn't know.
func outcomeText(outcome string) string { return outcomeWords[ledger.Outcome(outcome)] }

// mechanismWords says what a mechanism is.
var mechanismWords = map[string]string{
	record.Whole:      "nothing is divided: workloads alone",
	record.Sequential: "one stream: a victim's launch stands behind a unit of its neighbour",
	record.Streams:    "two streams of one context",
	record.Priority:   "two streams, the victim's of the greatest priority",
	record.Green:      "Green Contexts on SMs of their own",
	record.Processes:  "two processes, time-sliced by the driver",
	record.MPS:        "two clients of one MPS daemon",
	record.MPSPercent: "MPS clients, each with a share of the SMs",
	record.MPSBelow:   "MPS clients, the neighbour of lower priority",
	record.MPSStatic:  "MPS clients in static partitions",
	record.MIG:        "two MIG devices",
}

// workloadWords says what a workload stands for.
var workloadWords = map[string]string{
	record.Decode:     "a layer's small memory-bound products as one CUDA graph, as decoding runs them",
	record.Critical:   "one short kernel on few blocks, whose end somebody waits for",
	record.GEMM:       "a large bf16 matrix product, as prefill runs them",
	record.FMA:        "arithmetic on every SM",
	record.HBM:        "reads and writes of memory beyond any cache",
	record.L2:         "reads of what fits in the L2, again and again",
	record.Copy:       "the copy engines, both ways at once",
	record.Tiny:       "many launches of an empty kernel",
	record.Persistent: "a kernel that fills every SM and stays",
}

// rateUnit is how a rate of a resource is written.
func rateUnit(resource string) string {
	switch resource {
	case record.HBMBytes, record.L2Bytes, record.LinkBytes:
		return unitByteS
	case record.BF16Ops, record.FMAOps:
		return unitOpS
	}
	return unitPerS
}

func mechanismText(kind string) string { return mechanismWords[kind] }
func workloadText(kind string) string  { return workloadWords[kind] }

// verdictText says on which side of 1 a ratio lies.
func verdictText(verdict string) string { return strings.ReplaceAll(verdict, "_", " ") }

// resultText says what a rule came to.
func resultText(result string) string {
	switch result {
	case verify.Pass:
		return "holds"
	case verify.Fail:
		return "failed"
	}
	return "doesn't apply"
}

package report

import "cotenant/internal/ledger"

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

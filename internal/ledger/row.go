package ledger

// Outcome says how an attempt ended.
type Outcome string

// The closed list of outcomes.
const (
	OK              Outcome = "ok"
	Empty           Outcome = "empty"        // a complete stream without text
	Truncated       Outcome = "truncated"    // the body ended cleanly with neither finish_reason nor [DONE]
	InbandError     Outcome = "inband_error" // an error object under HTTP 200, tokens before it or not
	HTTP429         Outcome = "http_429"
	HTTP5xx         Outcome = "http_5xx"
	HTTP4xx         Outcome = "http_4xx"
	Template        Outcome = "template" // a 400 by the model's chat template
	TransportBefore Outcome = "transport_before_first_byte"
	TransportMid    Outcome = "transport_mid_stream"
	TimeoutHeaders  Outcome = "timeout_headers"
	TimeoutIdle     Outcome = "timeout_idle"
	TimeoutTotal    Outcome = "timeout_total"
	Oversize        Outcome = "oversize" // an event above the reader's cap
	BadJSON         Outcome = "bad_json"
	NonStreamed     Outcome = "non_streamed" // a JSON body where a stream was asked for
	BadBody         Outcome = "bad_body"     // neither a stream nor JSON
	Compressed      Outcome = "compressed"
	CancelledInject Outcome = "cancelled_injected" // by the run's own plan
	Interrupted     Outcome = "interrupted"        // by the user: the run stopped while it was open
	ClientExhausted Outcome = "client_exhausted"   // ports, descriptors: the client's own fault
)

// Outcomes lists them in the order in which tables show them.
func Outcomes() []Outcome {
	return []Outcome{OK, Empty, Truncated, InbandError, HTTP429, HTTP5xx, HTTP4xx, Template, TransportBefore, TransportMid,
		TimeoutHeaders, TimeoutIdle, TimeoutTotal, Oversize, BadJSON, NonStreamed, BadBody, Compressed, CancelledInject,
		Interrupted, ClientExhausted}
}

// Retryable reports whether another attempt may follow an attempt that ended so. An in-band error is retried by its code,
// which the client knows; an interrupted attempt by the next segment; one that the plan cancelled because the plan says so.
func (o Outcome) Retryable() bool {
	switch o {
	case Truncated, InbandError, HTTP429, HTTP5xx, TransportBefore, TransportMid, TimeoutHeaders, TimeoutIdle, TimeoutTotal,
		CancelledInject, Interrupted:
		return true
	}
	return false
}

// Values of Row.Oracle.
const (
	OraclePass = "pass"
	OracleFail = "fail"
	OracleNone = "none" // no oracle for this task, or no result to ask it about
)

// Row is one line of rows.jsonl: one attempt, whatever became of it. Times are µs of the segment's monotonic clock, whose
// zero is the segment's start event. sent_us and end_us are stamped under one lock and no two stamps of a segment are
// equal (the later is moved on by a microsecond), so that the rows' sweep line is exactly what the client's counter saw.
type Row struct {
	Context int64 `json:"context"` // from 0
	Turn    int64 `json:"turn"`    // from 0
	Attempt int64 `json:"attempt"` // from 1
	Worker  int64 `json:"worker"`  // from 0, below Config.Workers
	Segment int64 `json:"segment"` // from 0

	QueuedUS       int64 `json:"queued_us"`        // the turn could have run: the end of the turn before it, where that is of this segment, else 0
	PickedUS       int64 `json:"picked_us"`        // a worker took this attempt up, after any backoff
	SentUS         Opt   `json:"sent_us"`          // the request's last byte went to the connection; null: never written
	HeadersUS      Opt   `json:"headers_us"`       // the response's headers were there
	FirstEventUS   Opt   `json:"first_event_us"`   // the first SSE event with data
	FirstTokenUS   Opt   `json:"first_token_us"`   // the first event that Defs.TTFT counts
	FirstContentUS Opt   `json:"first_content_us"` // the first event with non-empty content
	LastTokenUS    Opt   `json:"last_token_us"`    // the last event that Defs.TTFT counts
	EndUS          int64 `json:"end_us"`           // the stream's end was read, or the attempt was given up

	HTTPStatus   Opt     `json:"http_status"`
	Outcome      Outcome `json:"outcome"`
	FinishReason string  `json:"finish_reason"` // as sent, up to 32 bytes; empty: none came
	Done         bool    `json:"done"`          // the stream ended by [DONE]
	Error        string  `json:"error"`         // what a server or a transport said, up to 200 bytes, addresses and keys taken out; empty for ok

	PromptTokens     Opt `json:"prompt_tokens"`     // from usage, null: not exposed
	CompletionTokens Opt `json:"completion_tokens"` // from usage
	CachedTokens     Opt `json:"cached_tokens"`     // from usage.prompt_tokens_details

	Events       int64 `json:"events"`        // SSE events with data
	Deltas       int64 `json:"deltas"`        // events with non-empty content, reasoning or tool text
	Bytes        int64 `json:"bytes"`         // of the response's body as read
	TextBytes    int64 `json:"text_bytes"`    // of content, reasoning and tool text, UTF-8
	Quirks       int64 `json:"quirks"`        // bit mask, see Quirk
	Buffered     bool  `json:"buffered"`      // Defs.Buffered; see IsBuffered
	WastedTokens int64 `json:"wasted_tokens"` // of an attempt that is not ok: usage's completion tokens, else deltas

	Base         string `json:"base"`          // Commit(secret, "base", base bytes as sent); empty where nothing is shared
	PromptCommit string `json:"prompt_commit"` // Commit(secret, "prompt", request body)
	OutputCommit string `json:"output_commit"` // Commit(secret, "output", text); empty: no text
	Task         string `json:"task"`          // the kind of task
	Oracle       string `json:"oracle"`        // OraclePass, OracleFail or OracleNone

	Parked   string `json:"parked"`   // Commit(secret, "park", what was written to the disk for the next turn) of a turn's result; else empty
	Restored string `json:"restored"` // Commit(secret, "park", what was read back and sent) of attempts of later turns; else empty

	ConnReused   bool  `json:"conn_reused"`
	Reconnects   int64 `json:"reconnects"`     // sends repeated by the transport because a kept-alive socket had been closed: not failures
	RetryAfterUS Opt   `json:"retry_after_us"` // what the response asked for
	BackoffUS    int64 `json:"backoff_us"`     // waited before this attempt
}

// Quirk is a bit of Row.Quirks: something in a stream that a reader has to know about.
type Quirk int64

// The quirks. Bit numbers are part of the format.
const (
	QuirkComment           Quirk = 1 << iota // comment lines
	QuirkEmptyData                           // events with empty data
	QuirkNoSpace                             // "data:" without a space
	QuirkCR                                  // line ends other than LF
	QuirkMultiLine                           // an event of several data lines
	QuirkBOM                                 // a byte order mark
	QuirkEmptyChoices                        // choices: [] (the usual usage chunk)
	QuirkNullUsage                           // usage: null
	QuirkContinuousUsage                     // usage in more than one chunk
	QuirkUsageInContent                      // usage and text in one chunk
	QuirkNoDone                              // finish_reason came, [DONE] did not
	QuirkNoFinish                            // [DONE] came, finish_reason did not
	QuirkNoFinalBlank                        // the last event had no blank line after it
	QuirkRoleOnly                            // a first chunk with a role and no text
	QuirkReasoning                           // reasoning deltas
	QuirkTools                               // tool deltas
	QuirkBadUTF8                             // invalid UTF-8 in text, replaced
	QuirkIDChanged                           // the id changed within the stream
	QuirkIndexDrift                          // a choice index other than 0
	QuirkDataAfterDone                       // bytes after [DONE]
	QuirkMultiTokenDelta                     // fewer deltas than completion tokens
	QuirkMoreDeltas                          // more deltas than completion tokens
	QuirkCompressedUnasked                   // a compressed body although identity was asked for
	QuirkMediaType                           // events under another media type than text/event-stream
	QuirkDrainTimeout                        // the body did not end soon after [DONE]
)

// EOSCounted reports whether usage counts one token more than came as deltas and the model ended the answer by itself: vLLM and
// llama.cpp count the end-of-sequence token, which has no text.
func (r *Row) EOSCounted() bool {
	n, ok := r.CompletionTokens.Get()
	return ok && r.FinishReason == "stop" && r.Deltas == n-1
}

// TextTokens is how many tokens can have brought text; see Defs.Tokens. Where usage has none, each delta counts as one.
func (r *Row) TextTokens() int64 {
	if r.EOSCounted() {
		return r.Deltas
	}
	return r.CompletionTokens.Or(r.Deltas)
}

// burstGapUS tells events that were only written from events that were computed: a flushed chunk takes some 10 µs over loopback, a
// token of even a model of 3 M parameters some 400.
const burstGapUS = 50

// IsBuffered recomputes Row.Buffered: the whole answer came at once, so its time to first token says nothing. Events of one read
// have one moment. More reads prove nothing by themselves: a finished answer that is written piece by piece, or is larger than
// the reader's buffer, comes in several, but faster than any model decodes, or within a sliver of the time that it took to come.
func (r *Row) IsBuffered() bool {
	if r.TextTokens() <= 1 || !r.SentUS.OK || !r.FirstTokenUS.OK || !r.LastTokenUS.OK {
		return false
	}
	spread := r.LastTokenUS.V - r.FirstTokenUS.V
	return spread == 0 || spread < max((r.EndUS-r.SentUS.V)/100, burstGapUS*(r.Deltas-1))
}

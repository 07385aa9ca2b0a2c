package ledger

// Event is one line of events.jsonl: something that happened to the run as a whole.
type Event struct {
	TUS          int64  `json:"t_us"`
	Segment      int64  `json:"segment"`
	Kind         string `json:"kind"`
	WallUS       Opt    `json:"wall_us"`       // of start and end events: UTC, µs since 1970
	ConfigSHA256 string `json:"config_sha256"` // of start events, else empty
	Context      Opt    `json:"context"`
	Turn         Opt    `json:"turn"`
	Attempt      Opt    `json:"attempt"`
	Value        Opt    `json:"value"`  // what the kind says
	Detail       string `json:"detail"` // up to 200 bytes, addresses and keys taken out
}

// Kinds of event.
const (
	EventStart         = "start"          // a segment begins: t_us is 0; the first line of the file
	EventReady         = "ready"          // the endpoint answered a completion; value: µs that it took
	EventCanary        = "canary"         // a request before the measured ones; value: its completion tokens; not in rows
	EventCanaryBase    = "canary_base"    // a base was asked canary_asked questions; value: right answers; detail: the base's commitment
	EventRollback      = "rollback"       // a base failed; detail: the commitment of the base that is sent instead
	EventFault         = "fault"          // a planned fault is about to be done; context, turn, attempt; value: events that came before it; detail: its kind
	EventQuiet         = "quiet"          // nothing is open; value: µs from the last end to the sample in which the server's gauges were back; null: they weren't; detail: why
	EventStage         = "stage"          // a stage of the load plan begins in this segment, with context; value: its level, null of a trace
	EventResent        = "resent"         // an attempt that was open when an earlier segment was killed is sent again; context, turn, attempt
	EventUsageRefused  = "usage_refused"  // the server refused stream_options: sent without from here on
	EventServerRestart = "server_restart" // the server's process changed; value: its new start_us
	EventScrapeLost    = "scrape_lost"    // value: samples missed
	EventTornRow       = "torn_row"       // a torn last line was cut off on resume; value: its bytes
	EventInterrupt     = "interrupt"      // the user asked to stop
	EventAbort         = "abort"          // the run stopped by itself; detail: why
	EventPeak          = "peak"           // a segment's counter of open attempts; value: its high-water mark
	EventEnd           = "end"            // a segment ends; detail: one of the three below
)

// Details of an end event, and values of Ledger.Status.
const (
	StatusFinished    = "finished"    // every context was tried to its end
	StatusInterrupted = "interrupted" // stopped by the user, or without an end event
	StatusFailed      = "failed"      // stopped by itself
)

// EventKinds lists the kinds.
func EventKinds() []string {
	return []string{EventStart, EventReady, EventCanary, EventCanaryBase, EventRollback, EventFault, EventQuiet, EventStage, EventResent, EventUsageRefused, EventServerRestart, EventScrapeLost, EventTornRow,
		EventInterrupt, EventAbort, EventPeak, EventEnd}
}

// Package ledger is the evidence of a run: the files of a run folder, how they are written and strictly read, what binds
// them together, and the one function that turns rows into a ledger.
//
// A run folder holds
//
//	config.json        what was going to be done, written before the first request (pre-registration)
//	rows.jsonl         one line per attempt
//	resources.jsonl    one line per sample of client, server and host
//	events.jsonl       what happened to the run as a whole; the first line repeats the hash of config.json
//	ledger.json        everything that the run establishes, computed by Summarize from the four files above
//	ledger.dsse.json   where a key was given: a DSSE envelope over an in-toto statement over all five files
//
// Every document, and every line of the .jsonl files without its line feed, is in the canonical form of RFC 8785,
// restricted to integers of at most 2^53-1: one value has one form, and a line that was not written by this rule is
// refused. A value that did not happen or was not exposed is null; it is never 0 and never left out.
//
// docs/formats/run.md describes the folder in enough detail to write or check one in another language.
package ledger

import (
	"encoding/json"
	"strconv"
)

// SchemaVersion is the version of all documents of a run folder. It changes with any field, definition or rule.
const SchemaVersion = 1

// Operation is the operation that these documents belong to.
const Operation = "soak"

// The names of a run folder's files.
const (
	ConfigFile    = "config.json"
	RowsFile      = "rows.jsonl"
	ResourcesFile = "resources.jsonl"
	EventsFile    = "events.jsonl"
	LedgerFile    = "ledger.json"
	EnvelopeFile  = "ledger.dsse.json"
)

// MaxInt is the largest integer of a document: beyond it JSON readers of other languages round (RFC 7493, 2.2).
const MaxInt = 1<<53 - 1

// Opt is an integer that may be absent, which JSON shows as null. Absent is not zero.
type Opt struct {
	V  int64
	OK bool
}

// Some is a present v.
func Some(v int64) Opt { return Opt{V: v, OK: true} }

// Get returns the value and whether there is one.
func (o Opt) Get() (int64, bool) { return o.V, o.OK }

// Or returns the value, or d where there is none.
func (o Opt) Or(d int64) int64 {
	if o.OK {
		return o.V
	}
	return d
}

// MarshalJSON writes the number or null.
func (o Opt) MarshalJSON() ([]byte, error) {
	if !o.OK {
		return []byte("null"), nil
	}
	return strconv.AppendInt(nil, o.V, 10), nil
}

// UnmarshalJSON reads a number or null.
func (o *Opt) UnmarshalJSON(b []byte) error {
	if string(b) == "null" {
		*o = Opt{}
		return nil
	}
	o.OK = true
	return json.Unmarshal(b, &o.V)
}

// Files of a run folder that are the client's working state: private, no evidence by themselves, not bound by the ledger.
const (
	ParkFile     = "park.bin"       // what contexts with another turn have said; rows hold a commitment to each record
	ScheduleFile = "schedule.jsonl" // when a trace's requests are due: an Arrival a line; the config has its hash
	OpenFile     = "open.bin"       // attempts that are open; gone when a segment has ended
	ParkMagic    = "cotenant-park 1\n"
	MaxParked    = 1 << 20 // bytes of one record's payload
)

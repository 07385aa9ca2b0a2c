package evidence

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"
)

// Phases of an entry.
const (
	Begin = "begin" // the step is about to be taken
	End   = "end"   // it was taken, or failed
	Note  = "note"  // something was seen
)

// Entry is a line of the journal.
type Entry struct {
	// Seq counts the entries of one writer from 1.
	Seq int64 `json:"seq"`
	// Time is UTC with microseconds. Writers are processes of one host.
	Time string `json:"time"`
	// By is supervisor, worker, client, guard or cleanup, and PID its process.
	By    string `json:"by"`
	PID   int    `json:"pid"`
	Step  string `json:"step"`
	Phase string `json:"phase"`
	Index int    `json:"index"`
	// Error is why a step failed; empty.
	Error string `json:"error,omitempty"`
	// Detail holds what a cleanup needs to know: run id, folders, process start times.
	Detail map[string]string `json:"detail,omitempty"`
}

// Journal appends entries to a run's journal. Several processes may append to one file: each entry is one write. It may be used by
// several goroutines.
type Journal struct {
	mu  sync.Mutex
	f   *os.File
	by  string
	seq int64
}

// OpenJournal opens the journal of a run folder for appending and makes it where it isn't there.
func OpenJournal(dir, by string) (*Journal, error) {
	f, err := os.OpenFile(filepath.Join(dir, JournalFile), os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o644)
	if err != nil {
		return nil, fmt.Errorf("opening the journal: %w", err)
	}
	return &Journal{f: f, by: by}, nil
}

// Record appends an entry. Where sync is true it is on disk when Record returns.
func (j *Journal) Record(e Entry, sync bool) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.seq++
	e.Seq, e.By, e.PID = j.seq, j.by, os.Getpid()
	e.Time = time.Now().UTC().Format("2006-01-02T15:04:05.000000Z")
	e.Error = strings.ToValidUTF8(e.Error, "?")
	line, err := json.Marshal(e)
	if err == nil {
		_, err = j.f.Write(append(line, '\n'))
	}
	if err == nil && sync {
		err = j.f.Sync()
	}
	if err != nil {
		return fmt.Errorf("recording %s: %w", e.Step, err)
	}
	return nil
}

// Begin records, on disk, that a step is about to be taken.
func (j *Journal) Begin(step string, index int) error {
	return j.Record(Entry{Step: step, Phase: Begin, Index: index}, true)
}

// BeginWith is Begin with what a cleanup needs to know of the step.
func (j *Journal) BeginWith(step string, index int, detail map[string]string) error {
	return j.Record(Entry{Step: step, Phase: Begin, Index: index, Detail: detail}, true)
}

// End records how a step ended. It isn't synced: the next Begin is, and a step without an end counts as taken.
func (j *Journal) End(step string, index int, err error) {
	e := Entry{Step: step, Phase: End, Index: index}
	if err != nil {
		e.Error = err.Error()
	}
	_ = j.Record(e, false)
}

// Step takes a step between its two entries. Where the first can't be recorded the step isn't taken.
func (j *Journal) Step(step string, index int, detail map[string]string, f func() error) error {
	if err := j.BeginWith(step, index, detail); err != nil {
		return err
	}
	err := f()
	j.End(step, index, err)
	return err
}

// Close syncs and closes the journal.
func (j *Journal) Close() error {
	j.mu.Lock()
	defer j.mu.Unlock()
	return errors.Join(j.f.Sync(), j.f.Close())
}

// maxJournalLine bounds one entry.
const maxJournalLine = 64 << 10

// ParseJournal reads a journal. torn says that the last line isn't whole, as a crash can leave it; it is left out.
func ParseJournal(content []byte) (entries []Entry, torn bool, err error) {
	entries = []Entry{}
	for n := 1; len(content) > 0; n++ {
		line, rest, whole := bytes.Cut(content, []byte{'\n'})
		if !whole {
			return entries, true, nil
		}
		content = rest
		if len(line) > maxJournalLine {
			return nil, false, fmt.Errorf("journal line %d: longer than %d bytes", n, maxJournalLine)
		}
		var e Entry
		if err := Decode(fmt.Sprintf("journal line %d", n), line, &e); err != nil {
			return nil, false, err
		}
		if e.Phase != Begin && e.Phase != End && e.Phase != Note || e.Step == "" || e.PID <= 0 || e.Seq <= 0 {
			return nil, false, fmt.Errorf("journal line %d: not an entry", n)
		}
		entries = append(entries, e)
	}
	return entries, false, nil
}

// ReadJournal reads a folder's journal.
func ReadJournal(dir string) (entries []Entry, torn bool, err error) {
	content, err := Read(dir, JournalFile)
	if err != nil {
		return nil, false, fmt.Errorf("reading the journal: %w", err)
	}
	return ParseJournal(content)
}

package ledger

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
)

// Reopen opens a run folder to go on with it in another segment, whose clock begins now. A torn last line of a file is cut
// off and logged as an event; ledger and envelope of the earlier end are removed, since they no longer describe the
// folder. wallUS is the present wall time, UTC in µs. The caller reads rows before to know what is left to do.
func Reopen(dir string, wallUS int64) (*Writer, error) {
	f, err := OpenFolder(dir)
	if err != nil {
		return nil, fmt.Errorf("opening the run folder: %w", err)
	}
	torn := make(map[string]int64)
	for _, name := range []string{RowsFile, ResourcesFile, EventsFile} {
		n, err := cutTorn(filepath.Join(dir, name))
		if err != nil {
			return nil, fmt.Errorf("looking for a torn line in %s: %w", name, err)
		}
		if n > 0 {
			torn[name] = n
		}
	}
	w := &Writer{dir: dir}
	if err := w.open(0); err != nil { // makes what a process that was killed at its start hadn't made
		return nil, err
	}
	for e, err := range f.Events() {
		if err != nil {
			return nil, errors.Join(err, w.closeFiles())
		}
		if e.Kind == EventStart {
			w.segment++
		}
	}
	if w.segment >= maxSegments {
		return nil, errors.Join(fmt.Errorf("the run has %d segments: no more can follow", w.segment), w.closeFiles())
	}
	for _, name := range []string{LedgerFile, EnvelopeFile} {
		if err := os.Remove(filepath.Join(dir, name)); err != nil && !errors.Is(err, os.ErrNotExist) {
			return nil, errors.Join(err, w.closeFiles())
		}
	}
	err = w.Event(Event{Segment: w.segment, Kind: EventStart, WallUS: Some(wallUS), ConfigSHA256: f.ConfigSHA256})
	for _, name := range []string{RowsFile, ResourcesFile, EventsFile} {
		if n := torn[name]; n > 0 {
			err = errors.Join(err, w.Event(Event{Segment: w.segment, Kind: EventTornRow, Value: Some(n), Detail: name}))
		}
	}
	if err != nil {
		return nil, errors.Join(err, w.closeFiles())
	}
	return w, nil
}

// cutTorn cuts off what follows the last line feed and returns how many bytes that were.
func cutTorn(path string) (int64, error) {
	info, err := os.Stat(path)
	if errors.Is(err, os.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	if !info.Mode().IsRegular() {
		return 0, fmt.Errorf("%s isn't a regular file", path)
	}
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	size := info.Size()
	tail := make([]byte, min(size, MaxLine))
	if _, err := f.ReadAt(tail, size-int64(len(tail))); err != nil && err != io.EOF {
		return 0, err
	}
	torn := int64(len(tail) - 1 - bytes.LastIndexByte(tail, '\n'))
	if torn == int64(len(tail)) && size > torn {
		return 0, fmt.Errorf("no line feed in the last %d bytes", MaxLine)
	}
	if torn == 0 {
		return 0, nil
	}
	return torn, errors.Join(f.Truncate(size-torn), f.Sync())
}

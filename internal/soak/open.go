package soak

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"cotenant/internal/ledger"
)

// openAttempts is a file with a slot for each worker that names the attempt it is at: what a killed process had open leaves no row, and
// is found here. A slot has context + 1, turn and attempt, 8 bytes each, little-endian; the first is 0 where there is none.
type openAttempts struct{ f *os.File }

const slotBytes = 24

// attemptID names one attempt.
type attemptID struct{ context, turn, attempt int64 }

func openSlots(dir string) (*openAttempts, error) {
	f, err := os.OpenFile(filepath.Join(dir, ledger.OpenFile), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("opening the file of open attempts: %w", err)
	}
	return &openAttempts{f}, nil
}

// set names a worker's attempt. It is with the system before the attempt is sent.
func (o *openAttempts) set(worker int64, id attemptID) error {
	var b [slotBytes]byte
	binary.LittleEndian.PutUint64(b[:], uint64(id.context+1))
	binary.LittleEndian.PutUint64(b[8:], uint64(id.turn))
	binary.LittleEndian.PutUint64(b[16:], uint64(id.attempt))
	if _, err := o.f.WriteAt(b[:], worker*slotBytes); err != nil {
		return fmt.Errorf("noting an open attempt: %w", err)
	}
	return nil
}

// read lists what the slots of an earlier process name.
func (o *openAttempts) read(workers int64) ([]attemptID, error) {
	b, err := io.ReadAll(io.NewSectionReader(o.f, 0, workers*slotBytes))
	if err != nil {
		return nil, fmt.Errorf("reading open attempts: %w", err)
	}
	var out []attemptID
	for ; len(b) >= slotBytes; b = b[slotBytes:] {
		id := attemptID{int64(binary.LittleEndian.Uint64(b)) - 1, int64(binary.LittleEndian.Uint64(b[8:])), int64(binary.LittleEndian.Uint64(b[16:]))}
		if id.context >= 0 && id.turn >= 0 && id.attempt >= 1 {
			out = append(out, id)
		}
	}
	return out, nil
}

// clear empties the slots.
func (o *openAttempts) clear() error { return o.f.Truncate(0) }

// remove ends a segment in order: nothing is open.
func (o *openAttempts) remove() error { return errors.Join(o.f.Close(), os.Remove(o.f.Name())) }

func (o *openAttempts) close() error { return o.f.Close() }

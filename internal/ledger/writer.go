package ledger

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
)

// Writer writes a run folder. Its methods are safe for concurrent use. Every line is handed to the system when the method
// returns, so that a killed process loses at most a line that it was writing; Sync and Close force them to the disk.
type Writer struct {
	dir     string
	segment int64
	files   [3]*lineFile // rows, resources, events
}

type lineFile struct {
	mu  sync.Mutex
	f   *os.File
	buf []byte
}

// Create makes dir, which must not exist or be empty, writes config.json into it, forces it to the disk, and writes the
// start event of segment 0, whose clock begins now. The caller fills cfg whole; SchemaVersion, Operation, Document,
// Definitions, TokenSource and what commits to private members are set here.
func Create(dir string, cfg Config) (*Writer, error) {
	if err := cfg.Seal(); err != nil {
		return nil, err
	}
	cfg.SchemaVersion, cfg.Operation, cfg.Document = SchemaVersion, Operation, "config"
	cfg.Definitions, cfg.TokenSource = Definitions(), TokenSourceUsage
	if err := cfg.Check(); err != nil {
		return nil, fmt.Errorf("checking the run's config: %w", err)
	}
	b, err := Marshal(cfg)
	if err != nil {
		return nil, fmt.Errorf("encoding the run's config: %w", err)
	}
	if err := emptyDir(dir); err != nil {
		return nil, err
	}
	// Whole or not at all: a process that is killed here leaves a folder without a run, or one that can be gone on with.
	if err := replaceFile(filepath.Join(dir, ConfigFile), b, 0o600); err != nil {
		return nil, err
	}
	w := &Writer{dir: dir}
	if err := w.open(os.O_EXCL); err != nil {
		return nil, err
	}
	hash, err := HashConfig(cfg)
	if err != nil {
		return nil, err
	}
	return w, w.Event(Event{Kind: EventStart, WallUS: Some(cfg.StartedWallUS), ConfigSHA256: hash})
}

// Segment is the number of the segment that is being written. Lines carry it by themselves: the caller fills it in.
func (w *Writer) Segment() int64 { return w.segment }

func (w *Writer) open(flag int) error {
	for i, name := range []string{RowsFile, ResourcesFile, EventsFile} {
		f, err := os.OpenFile(filepath.Join(w.dir, name), flag|os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
		if err != nil {
			return errors.Join(fmt.Errorf("opening %s: %w", name, err), w.closeFiles())
		}
		w.files[i] = &lineFile{f: f}
	}
	return nil
}

// Row appends a row.
func (w *Writer) Row(r Row) error {
	if err := r.Check(); err != nil {
		return fmt.Errorf("row of context %d: %w", r.Context, err)
	}
	return w.files[0].write(RowsFile, &r)
}

// Resource appends a sample.
func (w *Writer) Resource(r Resource) error {
	if err := r.Check(); err != nil {
		return fmt.Errorf("sample: %w", err)
	}
	return w.files[1].write(ResourcesFile, &r)
}

// Event appends an event.
func (w *Writer) Event(e Event) error {
	if err := e.Check(); err != nil {
		return fmt.Errorf("event: %w", err)
	}
	return w.files[2].write(EventsFile, &e)
}

func (l *lineFile) write(name string, v any) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	b, err := Append(l.buf[:0], v)
	if err != nil {
		return fmt.Errorf("encoding a line of %s: %w", name, err)
	}
	l.buf = append(b, '\n')
	if len(l.buf) > MaxLine {
		return fmt.Errorf("a line of %s has %d bytes: the limit is %d", name, len(l.buf), MaxLine)
	}
	if _, err := l.f.Write(l.buf); err != nil {
		return fmt.Errorf("writing %s: %w", name, err)
	}
	return nil
}

// Sync forces everything to the disk.
func (w *Writer) Sync() error {
	var errs []error
	for _, l := range w.files {
		errs = append(errs, l.f.Sync())
	}
	return errors.Join(errs...)
}

// Close forces everything to the disk, computes the ledger from what is there and writes ledger.json. It writes the ledger
// of an interrupted or failed run as well as that of a finished one. No other method may be called afterwards.
func (w *Writer) Close() (Ledger, error) {
	if err := errors.Join(w.Sync(), w.closeFiles()); err != nil {
		return Ledger{}, fmt.Errorf("closing the run's files: %w", err)
	}
	folder, err := OpenFolder(w.dir)
	if err != nil {
		return Ledger{}, err
	}
	l, err := folder.Summarize()
	if err != nil {
		return Ledger{}, fmt.Errorf("summarizing the run: %w", err)
	}
	return l, WriteLedger(w.dir, l)
}

// Abandon closes the files without a ledger.
func (w *Writer) Abandon() error { return w.closeFiles() }

func (w *Writer) closeFiles() error {
	var errs []error
	for _, l := range w.files {
		if l != nil {
			errs = append(errs, l.f.Close())
		}
	}
	return errors.Join(errs...)
}

// WriteLedger writes ledger.json into dir, whole or not at all.
func WriteLedger(dir string, l Ledger) error {
	b, err := Marshal(l)
	if err != nil {
		return fmt.Errorf("encoding the ledger: %w", err)
	}
	return replaceFile(filepath.Join(dir, LedgerFile), b, 0o644)
}

// emptyDir makes dir or makes sure that it is empty.
func emptyDir(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("making the run folder: %w", err)
	}
	empty, err := IsEmpty(dir)
	if err != nil {
		return fmt.Errorf("reading the run folder: %w", err)
	}
	if !empty {
		return fmt.Errorf("run folder %s: %w", dir, ErrNotEmpty)
	}
	return nil
}

// IsEmpty reports whether a folder holds nothing, or no more than a process leaves that was killed before it had registered a run.
func IsEmpty(dir string) (bool, error) {
	entries, err := os.ReadDir(dir)
	return err == nil && (len(entries) == 0 || len(entries) == 1 && entries[0].Name() == ConfigFile+tempSuffix), err
}

const tempSuffix = ".tmp"

// ErrNotEmpty says that a run folder holds something already: a usage error.
var ErrNotEmpty = errors.New("isn't empty")

// writeSynced writes a file that must not exist, and makes it and its name durable.
func writeSynced(path string, b []byte, mode os.FileMode) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, mode)
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
		return fmt.Errorf("writing %s: %w", path, err)
	}
	return syncDir(filepath.Dir(path))
}

func replaceFile(path string, b []byte, mode os.FileMode) error {
	temp := path + tempSuffix
	if err := os.Remove(temp); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if err := writeSynced(temp, b, mode); err != nil {
		return err
	}
	if err := os.Rename(temp, path); err != nil {
		return fmt.Errorf("naming %s: %w", path, err)
	}
	return syncDir(filepath.Dir(path))
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

package ledger

import (
	"bufio"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"iter"
	"os"
	"path/filepath"
)

// Caps on what is read. A line above its cap is an error, not a longer buffer.
const (
	MaxLine     = 64 << 10
	MaxDocument = 4 << 20
)

// Folder is a run folder that is being read.
type Folder struct {
	Dir          string
	Config       Config
	ConfigBytes  []byte // of the config's public form
	ConfigSHA256 string // of these

	Published *Published // nil unless it is a published form
}

// OpenFolder reads and checks config.json of dir.
func OpenFolder(dir string) (*Folder, error) {
	b, err := readDocument(filepath.Join(dir, ConfigFile))
	if err != nil {
		return nil, err
	}
	f := &Folder{Dir: dir}
	if f.Published, err = publishedForm(dir); err != nil {
		return nil, err
	}
	if f.Config, err = ReadConfig(b); err != nil {
		return nil, fmt.Errorf("reading %s: %w", ConfigFile, err)
	}
	if f.ConfigBytes, err = f.Config.PublicBytes(); err != nil {
		return nil, err
	}
	sum := sha256.Sum256(f.ConfigBytes)
	f.ConfigSHA256 = hex.EncodeToString(sum[:])
	return f, nil
}

// ReadConfig reads config.json's bytes, which must be in canonical form.
func ReadConfig(b []byte) (Config, error) {
	var c Config
	if _, err := UnmarshalCanonical(b, &c, nil); err != nil {
		return Config{}, err
	}
	return c, c.Check()
}

// ReadLedger reads ledger.json's bytes. Whether they are in canonical form is a rule of package verify, not asked here.
func ReadLedger(b []byte) (Ledger, error) {
	var l Ledger
	if len(b) > MaxDocument {
		return Ledger{}, fmt.Errorf("%d bytes: the limit is %d", len(b), MaxDocument)
	}
	if err := Unmarshal(b, &l); err != nil {
		return Ledger{}, err
	}
	if l.Operation != Operation || l.Document != "ledger" {
		return Ledger{}, fmt.Errorf("operation %q, document %q: want %q, %q", l.Operation, l.Document, Operation, "ledger")
	}
	if l.SchemaVersion != SchemaVersion {
		return Ledger{}, fmt.Errorf("schema_version %d: this program reads %d", l.SchemaVersion, SchemaVersion)
	}
	return l, nil
}

// ReadFile reads ledger.json or ledger.dsse.json of the folder, up to MaxDocument bytes.
func (f *Folder) ReadFile(name string) ([]byte, error) {
	return readDocument(filepath.Join(f.Dir, name))
}

// Rows yields the rows in the file's order, and one error at most, after which it ends.
func (f *Folder) Rows() iter.Seq2[Row, error] { return records(f, RowsFile, (*Row).Check) }

// Resources yields the samples.
func (f *Folder) Resources() iter.Seq2[Resource, error] {
	return records(f, ResourcesFile, (*Resource).Check)
}

// Events yields the events.
func (f *Folder) Events() iter.Seq2[Event, error] { return records(f, EventsFile, (*Event).Check) }

// Schedule reads schedule.jsonl, and gives its SHA-256 in hexadecimal digits.
func (f *Folder) Schedule() ([]Arrival, string, error) {
	h := sha256.New()
	for line, err := range lines(func() (io.ReadCloser, error) { return f.open(ScheduleFile) }) {
		if err != nil {
			return nil, "", err
		}
		h.Write(line)
		h.Write([]byte{'\n'})
	}
	var out []Arrival
	for a, err := range records(f, ScheduleFile, (*Arrival).check) {
		if err != nil {
			return nil, "", err
		}
		out = append(out, a)
	}
	return out, hex.EncodeToString(h.Sum(nil)), nil
}

// Files hashes the folder's files. Of a sample of rows the entry is the ledger's own, since the rows aren't here.
func (f *Folder) Files() ([]File, error) {
	d := newDigest()
	d.document(f.ConfigBytes)
	files := []File{d.file(ConfigFile)}
	for _, name := range []string{RowsFile, ResourcesFile, EventsFile} {
		if name == RowsFile && f.Sampled() {
			stated, err := f.statedRows()
			if err != nil {
				return nil, err
			}
			files = append(files, stated)
			continue
		}
		d := newDigest()
		for line, err := range lines(func() (io.ReadCloser, error) { return f.open(name) }) {
			if err != nil {
				return nil, err
			}
			d.line(line)
		}
		files = append(files, d.file(name))
	}
	return files, nil
}

// statedRows is what ledger.json says of rows.jsonl.
func (f *Folder) statedRows() (File, error) {
	b, err := f.ReadFile(LedgerFile)
	if err != nil {
		return File{}, err
	}
	l, err := ReadLedger(b)
	if err != nil {
		return File{}, fmt.Errorf("reading %s: %w", LedgerFile, err)
	}
	if len(l.Files) != 4 || l.Files[1].Name != RowsFile {
		return File{}, fmt.Errorf("reading %s: files[] isn't that of a run", LedgerFile)
	}
	return l.Files[1], nil
}

// Summarize hashes the folder's files and computes its ledger.
func (f *Folder) Summarize() (Ledger, error) {
	files, err := f.Files()
	if err != nil {
		return Ledger{}, err
	}
	return Summarize(Run{Config: f.Config, ConfigSHA256: f.ConfigSHA256, Files: files, Rows: f.Rows(), Resources: f.Resources(), Events: f.Events()})
}

func records[T any](f *Folder, name string, check func(*T) error) iter.Seq2[T, error] {
	return strictLines(name, func() (io.ReadCloser, error) { return f.open(name) }, check)
}

// strictLines reads lines, each a document in canonical form.
func strictLines[T any](name string, open func() (io.ReadCloser, error), check func(*T) error) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		n := 0
		var scratch []byte
		for line, err := range lines(open) {
			n++
			var v T
			if err == nil {
				scratch, err = UnmarshalCanonical(line, &v, scratch)
			}
			if err == nil {
				err = check(&v)
			}
			if err != nil {
				var zero T
				yield(zero, fmt.Errorf("reading %s, line %d: %w", name, n, err))
				return
			}
			if !yield(v, nil) {
				return
			}
		}
	}
}

var errTorn = errors.New("the last line doesn't end in a line feed: it is torn")

// lines yields a file's lines without line feed, each valid until the next.
func lines(open func() (io.ReadCloser, error)) iter.Seq2[[]byte, error] {
	return func(yield func([]byte, error) bool) {
		file, err := open()
		if err != nil {
			yield(nil, err)
			return
		}
		defer file.Close()
		r := bufio.NewReaderSize(file, MaxLine+1)
		for {
			line, err := r.ReadSlice('\n')
			switch {
			case err == nil:
				if !yield(line[:len(line)-1], nil) {
					return
				}
				continue
			case err == io.EOF && len(line) == 0:
				return
			case err == io.EOF:
				err = errTorn
			case err == bufio.ErrBufferFull:
				err = fmt.Errorf("longer than %d bytes", MaxLine)
			}
			yield(nil, err)
			return
		}
	}
}

// openRegular opens a file for reading and refuses what may block or never end: a pipe, a device, a folder.
func openRegular(path string) (*os.File, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s isn't a regular file", path)
	}
	return os.Open(path)
}

func readDocument(path string) ([]byte, error) {
	file, err := openRegular(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	b, err := io.ReadAll(io.LimitReader(file, MaxDocument+1))
	if err != nil {
		return nil, err
	}
	if len(b) > MaxDocument {
		return nil, fmt.Errorf("%s is larger than %d bytes", path, MaxDocument)
	}
	return b, nil
}

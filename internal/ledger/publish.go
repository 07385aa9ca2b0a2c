package ledger

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/klauspost/compress/zstd"
	"golang.org/x/mod/sumdb/tlog"
)

// PublishOptions say how a run is published.
type PublishOptions struct {
	OpenSecret bool     // publish the secret of what was sent and came: for generated tasks, whose texts are no secret
	MaxRows    int64    // bytes that compressed rows may have; above them a sample is published. 0: always a sample
	Sample     int64    // rows of a sample
	HostNames  []string // names that must not stand in any text
}

// Publish writes the published form of the run in dir into out, which must be empty or new. The run's files must be those that its
// ledger binds: verify it first. Texts in lines are bound by hashes and can't be changed, so that a run whose texts name a host is refused.
func Publish(dir, out string, o PublishOptions) (Published, error) {
	f, err := OpenFolder(dir)
	if err != nil {
		return Published{}, err
	}
	if f.Published != nil {
		return Published{}, fmt.Errorf("%s is a published form already", dir)
	}
	l, err := f.boundLedger()
	if err != nil {
		return Published{}, err
	}
	if err := f.namesNobody(o.HostNames); err != nil {
		return Published{}, err
	}
	if err := emptyDir(out); err != nil {
		return Published{}, err
	}
	w := &publisher{f: f, ledger: l, out: out, o: o}
	if err := w.write(); err != nil {
		return Published{}, errors.Join(fmt.Errorf("publishing the run: %w", err), w.remove())
	}
	return w.doc, nil
}

// boundLedger reads the ledger and holds the files against it.
func (f *Folder) boundLedger() (*Ledger, error) {
	b, err := f.ReadFile(LedgerFile)
	if err != nil {
		return nil, err
	}
	l, err := ReadLedger(b)
	if err != nil {
		return nil, fmt.Errorf("reading %s: %w", LedgerFile, err)
	}
	files, err := f.Files()
	if err != nil {
		return nil, err
	}
	if len(l.Files) != len(files) {
		return nil, fmt.Errorf("the ledger binds %d files: want %d", len(l.Files), len(files))
	}
	for i := range files {
		if l.Files[i] != files[i] {
			return nil, fmt.Errorf("%s isn't the file that the ledger binds", files[i].Name)
		}
	}
	return &l, nil
}

// namesNobody looks for host names in all texts.
func (f *Folder) namesNobody(hosts []string) error {
	named := func(where string, texts ...string) error {
		for _, t := range texts {
			for _, h := range hosts {
				if len(h) > 2 && h != "localhost" && hasWord(t, h) {
					return fmt.Errorf("%s names the host %q; the text is bound by a hash and can't be changed: this run can't be published", where, h)
				}
			}
		}
		return nil
	}
	c := &f.Config
	texts := []string{c.Model, c.Sampling.ExtraBody, c.Nonce, strings.Join(c.HeaderNames, " "), c.Workload.Name, c.Declared.Server, c.Declared.Hardware, c.Declared.Split}
	if c.Load != nil {
		for _, t := range c.Load.Tenants {
			texts = append(texts, t.Name)
		}
	}
	if err := named(ConfigFile, texts...); err != nil {
		return err
	}
	for r, err := range f.Rows() {
		if err == nil {
			err = named("a row's error", r.Error)
		}
		if err != nil {
			return err
		}
	}
	for r, err := range f.Resources() {
		if err == nil {
			err = named("a sample", r.ServerReason, r.ScrapeError, r.GPUReason)
		}
		if err != nil {
			return err
		}
	}
	for e, err := range f.Events() {
		if err == nil {
			err = named("an event", e.Detail)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// hasWord reports whether text has word with no letter, digit, "-" or "_" beside it.
func hasWord(text, word string) bool {
	own := func(i int) bool {
		if i < 0 || i >= len(text) {
			return false
		}
		b := text[i]
		return b == '-' || b == '_' || b >= '0' && b <= '9' || b >= 'a' && b <= 'z' || b >= 'A' && b <= 'Z'
	}
	for from := 0; ; {
		i := strings.Index(text[from:], word)
		if i < 0 {
			return false
		}
		i += from
		if !own(i-1) && !own(i+len(word)) {
			return true
		}
		from = i + 1
	}
}

// publisher writes one published form.
type publisher struct {
	f      *Folder
	ledger *Ledger
	out    string
	o      PublishOptions
	doc    Published
	made   []string // paths of the files that were begun
}

func (w *publisher) write() error {
	w.doc = Published{SchemaVersion: SchemaVersion, Operation: Operation, Document: "published", RunID: w.f.Config.RunID}
	cfg := w.f.Config.Public()
	if w.o.OpenSecret {
		cfg.Secret = w.f.Config.Secret
	}
	w.doc.Redactions = cfg.redactions()
	b, err := Marshal(cfg)
	if err == nil {
		err = w.put(ConfigFile, ConfigFile, FormRedacted, bytes.NewReader(b))
	}
	if err == nil {
		err = w.rows()
	}
	for _, name := range []string{ResourcesFile, EventsFile, ScheduleFile} {
		if err == nil {
			err = w.packed(name)
		}
		if name == ScheduleFile && errors.Is(err, os.ErrNotExist) {
			err = nil
		}
	}
	for _, name := range []string{LedgerFile, EnvelopeFile} {
		if err == nil {
			err = w.same(name)
		}
	}
	if err != nil {
		return err
	}
	if b, err = Marshal(w.doc); err != nil {
		return err
	}
	return writeSynced(filepath.Join(w.out, PublishedFile), b, 0o644)
}

// rows publishes all rows, or a sample where they are too many.
func (w *publisher) rows() error {
	if w.o.MaxRows > 0 {
		if err := w.packed(RowsFile); err != nil {
			return err
		}
		last := len(w.doc.Files) - 1
		if w.doc.Files[last].Bytes <= w.o.MaxRows {
			return nil
		}
		if err := os.Remove(filepath.Join(w.out, w.doc.Files[last].As)); err != nil {
			return err
		}
		w.doc.Files = w.doc.Files[:last]
	}
	n := w.ledger.Files[1].Lines
	if n == 0 || w.o.Sample < 1 {
		return fmt.Errorf("a sample of %d of %d rows: want at least one", w.o.Sample, n)
	}
	indexes := SampleIndexes(w.ledger.FilesRoot, n, min(w.o.Sample, MaxSample))
	w.doc.Sample = &RowSample{SampleMethod, int64(len(indexes)), n}
	lines, err := w.sample(n, indexes)
	if err != nil {
		return err
	}
	return w.put(RowsFile, RowsFile+sampleEnding, FormSample, packing(bytes.NewReader(lines)))
}

// sample makes the lines of a sample. It holds two hashes for each row of the run.
func (w *publisher) sample(n int64, indexes []int64) ([]byte, error) {
	stored := make([]tlog.Hash, 0, tlog.StoredHashCount(n))
	reader := tlog.HashReaderFunc(func(at []int64) ([]tlog.Hash, error) {
		out := make([]tlog.Hash, len(at))
		for i, k := range at {
			if k >= int64(len(stored)) {
				return nil, fmt.Errorf("hash %d of %d", k, len(stored))
			}
			out[i] = stored[k]
		}
		return out, nil
	})
	picked := make([]Row, 0, len(indexes))
	k, next := int64(0), 0
	var scratch []byte
	for r, err := range w.f.Rows() {
		if err != nil {
			return nil, err
		}
		if scratch, err = Append(scratch[:0], &r); err != nil {
			return nil, err
		}
		more, err := tlog.StoredHashesForRecordHash(k, tlog.RecordHash(scratch), reader)
		if err != nil {
			return nil, err
		}
		stored = append(stored, more...)
		if next < len(indexes) && indexes[next] == k {
			picked = append(picked, r)
			next++
		}
		k++
	}
	var out []byte
	for i, index := range indexes {
		proof, err := tlog.ProveRecord(n, index, reader)
		if err != nil {
			return nil, err
		}
		line := SampledRow{Index: index, Proof: []string{}, Row: picked[i]}
		for _, h := range proof {
			line.Proof = append(line.Proof, hex.EncodeToString(h[:]))
		}
		if out, err = Append(out, &line); err != nil {
			return nil, err
		}
		out = append(out, '\n')
	}
	return out, nil
}

// packed publishes a .jsonl file as one Zstandard frame.
func (w *publisher) packed(name string) error {
	file, err := openRegular(filepath.Join(w.f.Dir, name))
	if err != nil {
		return err
	}
	defer file.Close()
	return w.put(name, name+compressedEnding, FormZstd, packing(file))
}

// same publishes a file as it is. Only the envelope may be absent.
func (w *publisher) same(name string) error {
	b, err := w.f.ReadFile(name)
	if errors.Is(err, os.ErrNotExist) && name == EnvelopeFile {
		return nil
	}
	if err != nil {
		return err
	}
	return w.put(name, name, FormSame, bytes.NewReader(b))
}

// put writes one file and its entry.
func (w *publisher) put(name, as, form string, content io.Reader) (err error) {
	file, err := os.OpenFile(filepath.Join(w.out, as), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	w.made = append(w.made, file.Name())
	defer func() { err = errors.Join(err, file.Close()) }()
	if c, ok := content.(io.Closer); ok {
		defer c.Close() // ends a compressor that has something left
	}
	h := sha256.New()
	n, err := io.Copy(io.MultiWriter(file, h), content)
	if err != nil {
		return fmt.Errorf("writing %s: %w", as, err)
	}
	w.doc.Files = append(w.doc.Files, PublishedEntry{Name: name, As: as, Form: form, Bytes: n, SHA256: hex.EncodeToString(h.Sum(nil))})
	return file.Sync()
}

// remove takes away what was written of a form that couldn't be finished, so that it can be tried again.
func (w *publisher) remove() (err error) {
	for _, path := range w.made {
		if gone := os.Remove(path); !errors.Is(gone, os.ErrNotExist) {
			err = errors.Join(err, gone)
		}
	}
	return err
}

// packing compresses what it reads to one Zstandard frame; equal bytes give equal frames.
func packing(r io.Reader) io.Reader {
	pr, pw := io.Pipe()
	go func() {
		enc, err := zstd.NewWriter(pw, zstd.WithEncoderConcurrency(1), zstd.WithEncoderLevel(zstd.SpeedBestCompression), zstd.WithWindowSize(8<<20))
		if err == nil {
			_, err = enc.ReadFrom(r)
			err = errors.Join(err, enc.Close())
		}
		pw.CloseWithError(err)
	}()
	return pr
}

package ledger

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"iter"
	"os"
	"path/filepath"
	"slices"

	"github.com/klauspost/compress/zstd"
	"golang.org/x/mod/sumdb/tlog"
)

// PublishedFile marks a folder as the published form of a run and lists what became of each file. docs/formats/published.md describes
// the form.
const PublishedFile = "published.json"

// Endings of a file's published form.
const (
	compressedEnding = ".zst"
	sampleEnding     = ".sample.zst"
)

// Published is published.json, in canonical form.
type Published struct {
	SchemaVersion int64  `json:"schema_version"`
	Operation     string `json:"operation"` // "soak"
	Document      string `json:"document"`  // "published"
	RunID         string `json:"run_id"`

	Files      []PublishedEntry `json:"files"`      // config, rows, resources, events, the schedule of a trace, ledger, the envelope where the run is signed
	Redactions []Redaction      `json:"redactions"` // by pointer
	Sample     *RowSample       `json:"sample"`     // null: all rows are here
}

// Forms of a published file.
const (
	FormRedacted = "redacted" // the config, private members empty
	FormZstd     = "zstd"     // all of it, one Zstandard frame (RFC 8878)
	FormSample   = "sample"   // some rows with their proofs, one Zstandard frame
	FormSame     = "same"     // byte for byte
)

// PublishedEntry is one file as it lies in the published folder.
type PublishedEntry struct {
	Name   string `json:"name"` // in the run's folder
	As     string `json:"as"`   // here
	Form   string `json:"form"` // one of the forms
	Bytes  int64  `json:"bytes"`
	SHA256 string `json:"sha256"` // of the bytes here
}

// Redaction is a value that was left out, and what commits to it.
type Redaction struct {
	File       string `json:"file"`
	Pointer    string `json:"pointer"` // RFC 6901
	Method     string `json:"method"`  // one of the two below
	Commitment string `json:"commitment"`
}

// Methods of a redaction.
const (
	MethodHMAC = "hmac-sha-256-128 under place_secret" // Commit
	MethodHash = "sha-256 of 64 random digits"
)

// RowSample says which rows are here.
type RowSample struct {
	Method string `json:"method"` // SampleMethod
	Count  int64  `json:"count"`
	Of     int64  `json:"of"` // rows that the run has
}

// SampleMethod names how rows are picked: see SampleIndexes.
const SampleMethod = "cotenant-sample-1"

// SampledRow is a line of a sample: a row, its index in rows.jsonl from 0, and its audit path (RFC 6962, 2.1.1), hashes in hex from the
// leaf's sibling up.
type SampledRow struct {
	Index int64    `json:"index"`
	Proof []string `json:"proof"`
	Row   Row      `json:"row"`
}

// SampleIndexes picks count of n rows, ascending: the first count different values of the first 8 bytes, big-endian, of
// SHA-256(SampleMethod LF files_root LF i) modulo n, for i = 0, 1, 2, …. files_root is over all rows, so that who has written them can't choose
// which are shown without choosing the run.
func SampleIndexes(filesRoot string, n, count int64) []int64 {
	count = max(0, min(count, n))
	seen := make(map[int64]bool, count)
	out := make([]int64, 0, count)
	for i := int64(0); int64(len(out)) < count; i++ {
		h := sha256.Sum256(fmt.Appendf(nil, "%s\n%s\n%d", SampleMethod, filesRoot, i))
		k := int64(binary.BigEndian.Uint64(h[:8]) % uint64(n))
		if !seen[k] {
			seen[k] = true
			out = append(out, k)
		}
	}
	slices.Sort(out)
	return out
}

// redactions lists what c leaves out.
func (c *Config) redactions() []Redaction {
	out := []Redaction{}
	for _, m := range []struct{ value, pointer, method, commitment string }{
		{c.Endpoint, "/endpoint", MethodHMAC, c.EndpointCommitment}, {c.MetricsURL, "/metrics_url", MethodHMAC, c.MetricsHash},
		{c.PlaceSecret, "/place_secret", MethodHash, c.PlaceSHA256}, {c.Secret, "/secret", MethodHash, c.SecretSHA256},
	} {
		if m.value == "" && m.commitment != "" {
			out = append(out, Redaction{ConfigFile, m.pointer, m.method, m.commitment})
		}
	}
	return out
}

// ReadPublished reads published.json's bytes.
func ReadPublished(b []byte) (Published, error) {
	var p Published
	if len(b) > MaxDocument {
		return Published{}, fmt.Errorf("%d bytes: the limit is %d", len(b), MaxDocument)
	}
	if _, err := UnmarshalCanonical(b, &p, nil); err != nil {
		return Published{}, err
	}
	switch {
	case p.SchemaVersion != SchemaVersion || p.Operation != Operation || p.Document != "published":
		return Published{}, fmt.Errorf("schema_version %d, operation %q, document %q: want %d, %q, %q", p.SchemaVersion, p.Operation, p.Document, SchemaVersion, Operation, "published")
	}
	i := 0
	for _, name := range []string{ConfigFile, RowsFile, ResourcesFile, EventsFile, ScheduleFile, LedgerFile, EnvelopeFile} {
		form, ending := FormZstd, compressedEnding
		switch {
		case name == ConfigFile:
			form, ending = FormRedacted, ""
		case name == RowsFile && p.Sample != nil:
			form, ending = FormSample, sampleEnding
		case name == LedgerFile, name == EnvelopeFile:
			form, ending = FormSame, ""
		}
		switch {
		case i < len(p.Files) && p.Files[i].Name == name && p.Files[i].As == name+ending && p.Files[i].Form == form:
			i++
		case name != ScheduleFile && name != EnvelopeFile:
			return Published{}, fmt.Errorf("file %d isn't %q as %q (%s)", i, name, name+ending, form)
		}
	}
	if i != len(p.Files) {
		return Published{}, fmt.Errorf("file %d has no place in the list", i)
	}
	if s := p.Sample; s != nil && (s.Method != SampleMethod || s.Count < 1 || s.Count > MaxSample || s.Of < s.Count) {
		return Published{}, fmt.Errorf("a sample of %d of %d rows by %q: want 1 to %d by %q", s.Count, s.Of, s.Method, MaxSample, SampleMethod)
	}
	return p, nil
}

// MaxSample bounds a sample.
const MaxSample = 1_000_000

// publishedForm reads published.json where dir has one.
func publishedForm(dir string) (*Published, error) {
	b, err := readDocument(filepath.Join(dir, PublishedFile))
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	p, err := ReadPublished(b)
	if err != nil {
		return nil, fmt.Errorf("reading %s: %w", PublishedFile, err)
	}
	return &p, nil
}

// ErrSampled says that a published folder has some rows only.
var ErrSampled = errors.New("the published rows are a sample")

// Sampled reports whether the folder has some rows only.
func (f *Folder) Sampled() bool { return f.Published != nil && f.Published.Sample != nil }

// open opens one of the .jsonl files, whatever its form.
func (f *Folder) open(name string) (io.ReadCloser, error) {
	if f.Published == nil {
		return openRegular(filepath.Join(f.Dir, name))
	}
	if name == RowsFile && f.Sampled() {
		return nil, ErrSampled
	}
	return openZstd(filepath.Join(f.Dir, name+compressedEnding))
}

// SampledRows yields a sample's lines. Whether they are the right ones is a rule of package verify.
func (f *Folder) SampledRows() iter.Seq2[SampledRow, error] {
	open := func() (io.ReadCloser, error) { return openZstd(filepath.Join(f.Dir, RowsFile+sampleEnding)) }
	return strictLines(RowsFile+sampleEnding, open, func(s *SampledRow) error {
		if len(s.Proof) > 64 {
			return fmt.Errorf("a proof of %d hashes", len(s.Proof))
		}
		return s.Row.Check()
	})
}

// CheckProof reports whether a sampled row is the record of its index in a tree of n records.
func (s *SampledRow) CheckProof(n int64, merkleRoot string) error {
	root, err := hexHash(merkleRoot)
	if err != nil {
		return err
	}
	var proof tlog.RecordProof
	for _, text := range s.Proof {
		h, err := hexHash(text)
		if err != nil {
			return err
		}
		proof = append(proof, h)
	}
	b, err := Marshal(&s.Row)
	if err != nil {
		return err
	}
	return tlog.CheckRecord(proof, n, root, s.Index, tlog.RecordHash(b))
}

func hexHash(text string) (tlog.Hash, error) {
	if !isHex(text, 64) {
		return tlog.Hash{}, fmt.Errorf("%q isn't a hash of 64 hexadecimal digits", clipText(text))
	}
	b, _ := hex.DecodeString(text)
	return tlog.ParseHash(base64.StdEncoding.EncodeToString(b))
}

func clipText(s string) string { return s[:min(len(s), 80)] }

// CheckEntry compares a published file with its entry.
func (f *Folder) CheckEntry(e PublishedEntry) error {
	file, err := openRegular(filepath.Join(f.Dir, e.As))
	if err != nil {
		return err
	}
	defer file.Close()
	h := sha256.New()
	n, err := io.Copy(h, file)
	if err != nil {
		return err
	}
	if got := hex.EncodeToString(h.Sum(nil)); n != e.Bytes || got != e.SHA256 {
		return fmt.Errorf("%s has %d bytes with SHA-256 %s; %s says %d and %s", e.As, n, got, PublishedFile, e.Bytes, e.SHA256)
	}
	return nil
}

// CheckRedactions compares the listed redactions with what the config leaves out.
func (f *Folder) CheckRedactions() error {
	want := f.Config.redactions()
	if !slices.Equal(f.Published.Redactions, want) {
		return fmt.Errorf("%d redactions are listed; the config leaves out %d members, or others, or has other commitments", len(f.Published.Redactions), len(want))
	}
	return nil
}

// maxExpansion is how much larger than its compressed form a file may be: hashes and times don't compress better.
const maxExpansion = 200

// zstdFile is a file that is being decompressed.
type zstdFile struct {
	file *os.File
	dec  *zstd.Decoder
	left int64
}

func openZstd(path string) (io.ReadCloser, error) {
	file, err := openRegular(path)
	if err != nil {
		return nil, err
	}
	info, err := file.Stat()
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	dec, err := zstd.NewReader(file, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(64<<20), zstd.WithDecoderMaxWindow(16<<20))
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return &zstdFile{file, dec, info.Size()*maxExpansion + 1<<20}, nil
}

func (z *zstdFile) Read(p []byte) (int, error) {
	n, err := z.dec.Read(p)
	if z.left -= int64(n); z.left < 0 {
		return 0, fmt.Errorf("it expands to more than %d times its size", maxExpansion)
	}
	return n, err
}

func (z *zstdFile) Close() error {
	z.dec.Close()
	return z.file.Close()
}

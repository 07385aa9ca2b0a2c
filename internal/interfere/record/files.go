package record

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
)

// ErrUnreadable is a folder or file that isn't an interference run's, or can't be read as one.
var ErrUnreadable = errors.New("can't be read as an interference run")

const (
	maxFile = 256 << 20
	maxLine = 16 << 20
)

// Folder is a run's folder in memory.
type Folder struct {
	Plan     Plan
	Segments []Segment
	Rows     []Row
	// Ledger is nil where there is none.
	Ledger *Ledger
	// Torn says that the last row isn't whole, as a crash can leave it: it isn't in Rows. Whole is how many bytes of the file are.
	Torn  bool
	Whole int64
	// Hashes are SHA-256 of the whole part of each file, by name.
	Hashes map[string]string
	ledger []byte
}

// Is reports whether a folder has an interference plan.
func Is(dir string) bool {
	content, err := read(dir, PlanFile)
	var head struct {
		Operation string `json:"operation"`
	}
	return err == nil && json.Unmarshal(content, &head) == nil && head.Operation == PlanOperation
}

func read(dir, name string) ([]byte, error) {
	f, err := os.Open(filepath.Join(dir, name))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s: not a regular file", name)
	}
	content, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err == nil && len(content) > maxFile {
		err = fmt.Errorf("%s: more than %d bytes", name, maxFile)
	}
	return content, err
}

// DecodeStrict reads one JSON document strictly: unknown members and anything after it are errors.
func DecodeStrict(name string, content []byte, v any) error {
	dec := json.NewDecoder(bytes.NewReader(content))
	dec.DisallowUnknownFields()
	if err := dec.Decode(v); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	if _, err := dec.Token(); err != io.EOF {
		return fmt.Errorf("%s: more than one document", name)
	}
	return nil
}

// Encode returns a document as it is stored.
func Encode(v any) ([]byte, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetIndent("", "  ")
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return nil, fmt.Errorf("encoding: %w", err)
	}
	return b.Bytes(), nil
}

// lines reads a file of one document a line. A last line without its end is left out.
func lines[T any](name string, content []byte) (list []T, whole int, err error) {
	list = []T{}
	for n := 1; whole < len(content); n++ {
		end := bytes.IndexByte(content[whole:], '\n')
		if end < 0 {
			return list, whole, nil
		}
		if end > maxLine {
			return nil, 0, fmt.Errorf("%s: line %d has more than %d bytes", name, n, maxLine)
		}
		var v T
		if err := DecodeStrict(fmt.Sprintf("%s: line %d", name, n), content[whole:whole+end], &v); err != nil {
			return nil, 0, err
		}
		list, whole = append(list, v), whole+end+1
	}
	return list, whole, nil
}

func hash(content []byte) string {
	sum := sha256.Sum256(content)
	return hex.EncodeToString(sum[:])
}

// Load reads a folder. The error wraps ErrUnreadable.
func Load(dir string) (*Folder, error) {
	files := make(map[string][]byte)
	for _, name := range []string{PlanFile, SegmentsFile, RowsFile, LedgerFile} {
		content, err := read(dir, name)
		if err != nil && (name == PlanFile || !errors.Is(err, os.ErrNotExist)) {
			return nil, fmt.Errorf("%w: %w", ErrUnreadable, err)
		}
		if err == nil {
			files[name] = content
		}
	}
	f, err := parse(files)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrUnreadable, err)
	}
	return f, nil
}

func parse(files map[string][]byte) (*Folder, error) {
	f := &Folder{Hashes: make(map[string]string), ledger: files[LedgerFile]}
	if err := DecodeStrict(PlanFile, files[PlanFile], &f.Plan); err != nil {
		return nil, err
	}
	if err := f.Plan.Check(); err != nil {
		return nil, fmt.Errorf("%s: %w", PlanFile, err)
	}
	var err error
	var n int
	if f.Segments, n, err = lines[Segment](SegmentsFile, files[SegmentsFile]); err != nil {
		return nil, err
	}
	if n != len(files[SegmentsFile]) {
		return nil, fmt.Errorf("%s: the last line isn't whole", SegmentsFile)
	}
	if f.Rows, n, err = lines[Row](RowsFile, files[RowsFile]); err != nil {
		return nil, err
	}
	f.Torn, f.Whole = n != len(files[RowsFile]), int64(n)
	f.Hashes[PlanFile], f.Hashes[SegmentsFile], f.Hashes[RowsFile] = hash(files[PlanFile]), hash(files[SegmentsFile]), hash(files[RowsFile][:n])
	if f.ledger != nil {
		f.Ledger = new(Ledger)
		if err := DecodeStrict(LedgerFile, f.ledger, f.Ledger); err != nil {
			return nil, err
		}
	}
	return f, nil
}

// Compute makes the folder's ledger, with the hashes of its files.
func (f *Folder) Compute() *Ledger {
	l := Compute(&f.Plan, f.Segments, f.Rows)
	l.PlanSHA256, l.SegmentsSHA256, l.RowsSHA256 = f.Hashes[PlanFile], f.Hashes[SegmentsFile], f.Hashes[RowsFile]
	return l
}

var idPattern = regexp.MustCompile(`^[a-z0-9][a-z0-9._:-]{0,63}$`)

// Bounds of a plan.
const (
	maxCells  = 4096
	maxBlocks = 100_000
	maxWork   = 1 << 42
)

// Check refuses a plan that makes no sense on any GPU, or whose parts don't fit each other.
func (p *Plan) Check() error {
	if p.Operation != PlanOperation || p.SchemaVersion != SchemaVersion {
		return fmt.Errorf("operation %q, version %d", p.Operation, p.SchemaVersion)
	}
	s := p.Sampling
	switch {
	case s.Repeats < 1 || s.Repeats > 1000 || s.Launches < 1 || s.MaxLaunches < s.Launches || s.MaxLaunches > maxSeries:
		return fmt.Errorf("sampling: %d repeats of %d to %d launches", s.Repeats, s.Launches, s.MaxLaunches)
	case s.MinMS < 0 || s.MaxMS < 1 || s.MaxMS < s.MinMS || s.MaxMS > 60_000 || s.AloneMS < 1 || s.AloneMS > 60_000 || s.Dropped < 0 || s.Dropped > 10_000:
		return fmt.Errorf("sampling: blocks of %d to %d ms, %d launches dropped", s.MinMS, s.MaxMS, s.Dropped)
	case len(p.Cells) == 0 || len(p.Cells) > maxCells || s.Repeats*int64(len(p.Cells)) > maxBlocks:
		return fmt.Errorf("%d cells", len(p.Cells))
	}
	victims, aggressors, mechanisms := make(map[string]bool), make(map[string]bool), make(map[string]Mechanism)
	for _, w := range slices.Concat(p.Victims, p.Aggressors) {
		if err := w.Check(); err != nil {
			return fmt.Errorf("workload %.70q: %w", w.ID, err)
		}
		if victims[w.ID] || aggressors[w.ID] {
			return fmt.Errorf("two workloads %q", w.ID)
		}
		if len(victims) < len(p.Victims) {
			victims[w.ID] = true
		} else {
			aggressors[w.ID] = true
		}
	}
	for _, m := range p.Mechanisms {
		if _, twice := mechanisms[m.ID]; twice || !idPattern.MatchString(m.ID) {
			return fmt.Errorf("mechanism %.70q", m.ID)
		}
		mechanisms[m.ID] = m
	}
	seen := make(map[string]bool)
	for _, c := range p.Cells {
		_, known := mechanisms[c.Mechanism]
		switch {
		case c.ID != CellID(c.Victim, c.Aggressor, c.Mechanism, c.Twin) || seen[c.ID]:
			return fmt.Errorf("cell %.200q: not its name, or twice", c.ID)
		case !known || c.Victim != "" && !victims[c.Victim] || c.Aggressor != "" && !aggressors[c.Aggressor] || c.Victim+c.Aggressor == "":
			return fmt.Errorf("cell %.200q: its parts aren't in the plan", c.ID)
		}
		seen[c.ID] = true
	}
	return nil
}

// Check refuses a workload without sense.
func (w Workload) Check() error {
	if !idPattern.MatchString(w.ID) || w.Work < 0 || w.Work > maxWork || w.Depth < 0 || w.Depth > 1024 {
		return fmt.Errorf("work %d, depth %d", w.Work, w.Depth)
	}
	between := func(v, low, high int64) bool { return v >= low && v <= high }
	ok := false
	switch w.Kind {
	case Decode:
		ok = between(w.Layers, 1, 256) && between(int64(len(w.GEMV)), 1, 64)
		for _, g := range w.GEMV {
			ok = ok && between(g[0], 1, 1<<20) && between(g[1], 8, 1<<20) && g[1]%8 == 0
		}
	case GEMM:
		ok = between(w.M, 1, 1<<17) && between(w.N, 256, 1<<17) && w.N%256 == 0 && between(w.K, 64, 1<<17) && w.K%64 == 0
	case Critical, FMA:
		ok = between(w.Blocks, 1, 1<<16) && between(w.Threads, 32, 1024) && w.Threads%32 == 0 && between(w.Rounds, 1, 1<<30)
	case HBM, L2:
		ok = between(w.Bytes, 1<<12, 1<<36) && w.Bytes%4096 == 0 && between(w.Passes, 1, 1<<20)
	case Copy:
		ok = between(w.Bytes, 1<<12, 1<<32) && w.Bytes%4096 == 0
	case Tiny:
		ok = between(w.Launches, 1, 4096)
	case Persistent:
		ok = between(w.SpinUS, 1, 1_000_000) && between(w.Rounds, 1, 1<<20) && between(w.Blocks, 1, 32) && between(w.Threads, 32, 1024) && w.Threads%32 == 0
	default:
		return fmt.Errorf("kind %.40q", w.Kind)
	}
	if ok && w.Expected(1024).Work > maxWork {
		ok = false
	}
	if !ok {
		return fmt.Errorf("sizes that a %s can't have", w.Kind)
	}
	return nil
}

// EncodeLines returns documents as they are stored one a line.
func EncodeLines[T any](list []T) ([]byte, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	for _, v := range list {
		if err := enc.Encode(v); err != nil {
			return nil, fmt.Errorf("encoding: %w", err)
		}
	}
	return b.Bytes(), nil
}

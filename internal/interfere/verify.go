package interfere

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"cotenant/internal/interfere/record"
	"cotenant/internal/probe/evidence"
)

// Verify judges a run's folder by the rules of package record, and each segment's guard by those of probes.
func Verify(dir string) (*record.Report, *record.Folder, error) {
	f, err := record.Load(dir)
	if err != nil {
		return nil, nil, err
	}
	r := f.Verify()
	result, detail := record.Pass, ""
	for _, s := range f.Segments {
		if detail = guardFault(filepath.Join(dir, record.GuardFolder, strconv.FormatInt(s.Segment, 10)), s, s.Segment < int64(len(f.Segments))); detail != "" {
			result = record.Fail
			break
		}
	}
	r.Add(record.GuardRule, record.GuardTitle, result, detail)
	return r, f, nil
}

// guardFault says what is wrong with a segment's guard; empty for nothing.
func guardFault(dir string, s record.Segment, followed bool) string {
	g, err := evidence.Verify(dir)
	if err != nil {
		return fmt.Sprintf("segment %d: %v", s.Segment, err)
	}
	return judgeGuard(g, s, followed)
}

// judgeGuard accepts a segment whose supervisor was killed where another followed, whose gates found nobody on the GPU.
func judgeGuard(g *evidence.Report, s record.Segment, followed bool) string {
	switch {
	case !g.Holds:
		return fmt.Sprintf("segment %d: %s: %s", s.Segment, g.Failed()[0].Rule, g.Failed()[0].Detail)
	case g.Probe != evidence.MeasureOperation || g.RunID != s.RunID:
		return fmt.Sprintf("segment %d: the guard's evidence is of another run", s.Segment)
	case !g.CleanupComplete && !(followed && g.Outcome == evidence.Unfinished):
		return fmt.Sprintf("segment %d: its cleanup isn't proven", s.Segment)
	}
	return ""
}

// Files reads a run's folder by names with slashes: its own documents, and those of each segment's guard.
func Files(dir string) (map[string][]byte, error) {
	f, err := record.Load(dir)
	if err != nil {
		return nil, err
	}
	names := []string{record.PlanFile, record.SegmentsFile, record.RowsFile, record.LedgerFile}
	for _, s := range f.Segments {
		for _, name := range evidence.Names() {
			names = append(names, guardName(s, name))
		}
	}
	files := make(map[string][]byte)
	for _, name := range names {
		content, err := os.ReadFile(filepath.Join(dir, filepath.FromSlash(name)))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("reading the run: %w", err)
		}
		files[name] = content
	}
	return files, nil
}

func guardName(s record.Segment, file string) string {
	return record.GuardFolder + "/" + strconv.FormatInt(s.Segment, 10) + "/" + file
}

// VerifyPublished judges the public form of a run's folder: every rule but those that need the private bytes.
func VerifyPublished(content []byte) (*record.Report, *record.Folder, error) {
	f, p, err := record.LoadPublished(content)
	if err != nil {
		return nil, nil, err
	}
	r := f.Verify()
	result, detail := record.Pass, ""
	for _, s := range f.Segments {
		if detail = publishedGuardFault(p, s, s.Segment < int64(len(f.Segments))); detail != "" {
			result = record.Fail
			break
		}
	}
	r.Add(record.GuardRule, record.GuardTitle, result, detail)
	return r, f, nil
}

// publishedGuardFault judges a segment's guard as the public form of a probe's folder.
func publishedGuardFault(p *record.Published, s record.Segment, followed bool) string {
	prefix := guardName(s, "")
	guard := record.Published{SchemaVersion: 1, Operation: evidence.PublishedOperation, Originals: []record.Original{}, Documents: make(map[string]json.RawMessage)}
	for name, doc := range p.Documents {
		if file, ok := strings.CutPrefix(name, prefix); ok {
			guard.Documents[file] = doc
		}
	}
	for _, o := range p.Originals {
		if file, ok := strings.CutPrefix(o.Name, prefix); ok {
			guard.Originals = append(guard.Originals, record.Original{Name: file, Bytes: o.Bytes, SHA256: o.SHA256})
		}
	}
	content, err := json.Marshal(guard)
	if err != nil {
		return err.Error()
	}
	g, err := evidence.VerifyPublished(content)
	if err != nil {
		return fmt.Sprintf("segment %d: %v", s.Segment, err)
	}
	return judgeGuard(g, s, followed)
}

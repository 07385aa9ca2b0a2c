package record

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
)

// Original is a file of a folder as it was before it was published.
type Original struct {
	Name   string `json:"name"`
	Bytes  int64  `json:"bytes"`
	SHA256 string `json:"sha256"`
}

// Published is the public form of a folder: private values are labels, files of lines are lists.
type Published struct {
	SchemaVersion int                        `json:"schema_version"`
	Operation     string                     `json:"operation"`
	Originals     []Original                 `json:"originals"`
	Documents     map[string]json.RawMessage `json:"documents"`
}

// IsPublished reports whether a file is the public form of a run's folder.
func IsPublished(content []byte) bool {
	var head struct {
		Operation string `json:"operation"`
	}
	return json.Unmarshal(content, &head) == nil && head.Operation == PublishedOperation
}

// LoadPublished reads the public form. The hashes are the originals', so that the ledger's are held against them. The error wraps
// ErrUnreadable.
func LoadPublished(content []byte) (*Folder, *Published, error) {
	p := new(Published)
	f, err := loadPublished(content, p)
	if err != nil {
		return nil, nil, fmt.Errorf("%w: %w", ErrUnreadable, err)
	}
	return f, p, nil
}

func loadPublished(content []byte, p *Published) (*Folder, error) {
	if err := DecodeStrict("the published run", content, p); err != nil {
		return nil, err
	}
	if p.Operation != PublishedOperation || p.SchemaVersion != SchemaVersion {
		return nil, fmt.Errorf("operation %q, version %d", p.Operation, p.SchemaVersion)
	}
	files := make(map[string][]byte)
	for _, name := range []string{PlanFile, SegmentsFile, RowsFile, LedgerFile} {
		doc, ok := p.Documents[name]
		switch {
		case !ok && name == PlanFile:
			return nil, fmt.Errorf("%s is missing", name)
		case !ok:
			continue
		case !strings.HasSuffix(name, ".jsonl"):
			files[name] = doc
			continue
		}
		var list []json.RawMessage
		if err := json.Unmarshal(doc, &list); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		var lines bytes.Buffer
		for _, line := range list {
			if err := json.Compact(&lines, line); err != nil {
				return nil, fmt.Errorf("%s: %w", name, err)
			}
			lines.WriteByte('\n')
		}
		files[name] = lines.Bytes()
	}
	f, err := parse(files)
	if err != nil {
		return nil, err
	}
	if f.Ledger != nil { // publishing sorts members
		if f.ledger, err = Encode(f.Ledger); err != nil {
			return nil, err
		}
	}
	f.Hashes = make(map[string]string)
	for _, o := range p.Originals {
		if _, twice := f.Hashes[o.Name]; twice {
			return nil, fmt.Errorf("the original %s is there twice", o.Name)
		}
		f.Hashes[o.Name] = o.SHA256
	}
	return f, nil
}

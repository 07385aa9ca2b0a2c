package publish

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
)

// Operations of the public forms of folders: a probe's evidence, an interference run.
const (
	ProbeOperation        = "gpu_sharing_evidence_published"
	InterferenceOperation = "interference_published"
)

// Original is a file of the folder as it was.
type Original struct {
	Name   string `json:"name"`
	Bytes  int64  `json:"bytes"`
	SHA256 string `json:"sha256"`
}

// Folder publishes the files of a folder as one document of this operation, so that a label means the same in all of them: their
// sizes and hashes as they were under originals, and under documents each JSON file, .jsonl files as lists, and text. Names may have
// folders of their own, with slashes.
func Folder(operation string, files map[string][]byte, o Options) (*Published, error) {
	names := make([]string, 0, len(files))
	total := 0
	for name, data := range files {
		names = append(names, name)
		total += len(data)
	}
	slices.Sort(names)
	if total > maxDocument {
		return nil, fmt.Errorf("%w: larger than %d bytes", ErrUnreadable, maxDocument)
	}
	originals := []any{}
	documents := make(map[string]any)
	whole := sha256.New()
	for _, name := range names {
		data := files[name]
		sum := sha256.Sum256(data)
		originals = append(originals, map[string]any{"name": name, "bytes": json.Number(fmt.Sprint(len(data))), "sha256": fmt.Sprintf("%x", sum)})
		fmt.Fprintf(whole, "%s %x\n", name, sum)
		doc, err := anyDocument(name, data)
		if err != nil {
			return nil, fmt.Errorf("%w: %s: %v", ErrUnreadable, name, err)
		}
		documents[name] = doc
	}
	r := newRedactor(o)
	for _, name := range names {
		if inspected, ok := documents[name].(map[string]any); ok && path.Base(name) == "inspect.json" {
			r.learn(inspected)
		}
	}
	r.learn(documents)
	public := r.value("", map[string]any{"documents": documents})
	if !r.clean(public) {
		return nil, errors.New("publishing: a private value would have stayed; nothing was written")
	}
	doc := public.(map[string]any)
	doc["schema_version"], doc["operation"], doc["originals"] = json.Number("1"), operation, originals
	out, err := encode(doc)
	if err != nil {
		return nil, err
	}
	return &Published{Document: out, List: List{SchemaVersion: SchemaVersion, Operation: Operation, Of: operation,
		SHA256: fmt.Sprintf("%x", whole.Sum(nil)), Replaced: r.list(), Kept: slices.Clone(kept)}}, nil
}

// anyDocument reads a file by its name's end.
func anyDocument(name string, data []byte) (any, error) {
	switch {
	case strings.HasSuffix(name, ".jsonl"):
		list := []any{}
		for line := range bytes.Lines(data) {
			if !bytes.HasSuffix(line, []byte{'\n'}) {
				break // torn by a crash
			}
			doc, err := decode(line)
			if err != nil {
				return nil, err
			}
			list = append(list, doc)
		}
		return list, nil
	case strings.HasSuffix(name, ".json"):
		return decode(data)
	}
	return strings.ToValidUTF8(string(data), "?"), nil
}

// Package publish makes evidence public: the same document with UUIDs, host names, paths and addresses replaced by labels, and a
// list of what was replaced and where. A label stands for one value throughout a document, and the same document always gives
// the same labels. What is left is checked once more before it is handed out. docs/formats/inspect.md describes the files.
package publish

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
)

// ErrUnreadable says that the input is no document that can be published.
var ErrUnreadable = errors.New("not a report that can be published")

// maxDocument is the size of the largest report, in bytes.
const maxDocument = 64 << 20

// inspection is the operation of the reports that can be published, and inspectionVersion the version of their format.
const (
	inspection        = "gpu_sharing_inspect"
	inspectionVersion = 1
)

// SchemaVersion and Operation mark the list of replacements.
const (
	SchemaVersion = 1
	Operation     = "publish"
)

// Options say what is private beyond what can be told by its form.
type Options struct {
	// HostNames are names of machines to replace wherever they stand as a word of their own.
	HostNames []string
}

// Published is the public form of a document.
type Published struct {
	// Document is the document, with sorted keys, indented.
	Document []byte
	List     List
}

// List is what was replaced.
type List struct {
	SchemaVersion int    `json:"schema_version"`
	Operation     string `json:"operation"`
	// Of is the operation of the document, and SHA256 the hash of its original bytes, by which who has them can show that they
	// are the same.
	Of       string        `json:"of"`
	SHA256   string        `json:"original_sha256"`
	Replaced []Replacement `json:"replaced"`
	// Kept says what stays readable.
	Kept []string `json:"kept"`
}

// Replacement is one value that was replaced, under its label.
type Replacement struct {
	Label string `json:"label"`
	Kind  string `json:"kind"` // gpu_uuid, mig_uuid, uuid, host_name, path, address
	Count int    `json:"count"`
	// Where are JSON pointers (RFC 6901) of the strings that held it, sorted; the first 16.
	Where []string `json:"where"`
}

const maxWhere = 16

var kept = []string{
	"names of products, versions of drivers, libraries and kernels",
	"places on the PCI bus, indexes, counts and sizes",
	"paths where every installation has them: drivers, toolkits, device nodes, /proc, /sys, Python's own folders",
	"roles and models of a topology, user ids, names of environment variables",
}

// Report publishes a report of `cotenant inspect --json`.
func Report(data []byte, o Options) (*Published, error) {
	if len(data) > maxDocument {
		return nil, fmt.Errorf("%w: larger than %d bytes", ErrUnreadable, maxDocument)
	}
	doc, err := decode(data)
	if err != nil {
		return nil, fmt.Errorf("%w: %v", ErrUnreadable, err)
	}
	op, _ := doc["operation"].(string)
	version, _ := doc["schema_version"].(json.Number)
	if op != inspection {
		return nil, fmt.Errorf("%w: operation %q, want %q", ErrUnreadable, op, inspection)
	}
	if version.String() != fmt.Sprint(inspectionVersion) {
		return nil, fmt.Errorf("%w: schema_version %q, want %d", ErrUnreadable, version.String(), inspectionVersion)
	}
	r := newRedactor(o)
	r.learn(doc)
	public := r.value("", doc)
	out, err := encode(public)
	if err != nil {
		return nil, err
	}
	if !r.clean(public) {
		return nil, errors.New("publishing: a private value would have stayed; nothing was written")
	}
	return &Published{Document: out, List: List{SchemaVersion: SchemaVersion, Operation: Operation, Of: op,
		SHA256: fmt.Sprintf("%x", sha256.Sum256(data)), Replaced: r.list(), Kept: slices.Clone(kept)}}, nil
}

func decode(data []byte) (map[string]any, error) {
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.UseNumber()
	var doc map[string]any
	if err := dec.Decode(&doc); err != nil {
		return nil, err
	}
	if _, err := dec.Token(); err != io.EOF {
		return nil, errors.New("something follows the document")
	}
	if doc == nil {
		return nil, errors.New("not an object")
	}
	return doc, nil
}

func encode(v any) ([]byte, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetIndent("", "  ")
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return nil, fmt.Errorf("encoding the published document: %w", err)
	}
	return b.Bytes(), nil
}

var escaped = strings.NewReplacer("~", "~0", "/", "~1")

// pointer adds a token to a JSON pointer.
func pointer(at, token string) string { return at + "/" + escaped.Replace(token) }

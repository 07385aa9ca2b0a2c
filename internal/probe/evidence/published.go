package evidence

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
)

// PublishedOperation is that of package publish's public form of a folder.
const PublishedOperation = "gpu_sharing_evidence_published"

// published is the public form: strings are replaced by labels, figures are as they were.
type published struct {
	SchemaVersion int                        `json:"schema_version"`
	Operation     string                     `json:"operation"`
	Originals     []File                     `json:"originals"`
	Documents     map[string]json.RawMessage `json:"documents"`
}

// IsPublished reports whether a file is the public form of a probe's folder.
func IsPublished(content []byte) bool {
	var head struct {
		Operation string `json:"operation"`
	}
	return json.Unmarshal(content, &head) == nil && head.Operation == PublishedOperation
}

// Names are the files of a folder that have a public form.
func Names() []string {
	return []string{PlanFile, JournalFile, InspectFile, ResultFile, StderrFile, ManifestFile}
}

// VerifyPublished judges the public form of a folder: every rule but those that need the private bytes. The hashes of the originals
// are in it, so that who has them can show that they are the same.
func VerifyPublished(content []byte) (*Report, error) {
	f, err := openPublished(content)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrUnreadable, err)
	}
	return f.judge(), nil
}

func openPublished(content []byte) (*folder, error) {
	var p published
	if err := Decode("the published folder", content, &p); err != nil {
		return nil, err
	}
	if p.Operation != PublishedOperation || p.SchemaVersion != 1 {
		return nil, fmt.Errorf("operation %q, version %d", p.Operation, p.SchemaVersion)
	}
	f := &folder{public: true, originals: p.Originals, files: make(map[string][]byte)}
	if err := Decode(ManifestFile, p.Documents[ManifestFile], &f.manifest); err != nil {
		return nil, err
	}
	for name, doc := range p.Documents {
		if name == ManifestFile {
			continue
		}
		f.files[name] = doc
		if name == JournalFile {
			var lines []json.RawMessage
			if err := json.Unmarshal(doc, &lines); err != nil {
				return nil, fmt.Errorf("%s: %w", name, err)
			}
			var journal bytes.Buffer
			for _, line := range lines {
				if err := json.Compact(&journal, line); err != nil {
					return nil, fmt.Errorf("%s: %w", name, err)
				}
				journal.WriteByte('\n')
			}
			f.files[name] = journal.Bytes()
		}
	}
	if err := f.decode(); err != nil {
		return nil, err
	}
	// The order of members is lost in publishing: the result's is that of its type.
	var typed any
	switch {
	case f.create != nil:
		typed = f.create
	case f.mps != nil:
		typed = f.mps
	case f.contained != nil:
		typed = f.contained
	case f.measure != nil:
		typed = f.measure
	default:
		return f, nil
	}
	again, err := Encode(typed)
	if err != nil {
		return nil, err
	}
	f.files[ResultFile] = again
	return f, nil
}

// originalsRule stands for P-FILES where the files themselves are private.
func (f *folder) originalsRule() (string, string) {
	byName := make(map[string]File)
	for _, o := range f.originals {
		if _, twice := byName[o.Name]; twice {
			return fail("%s is there twice", o.Name)
		}
		byName[o.Name] = o
	}
	for _, x := range f.manifest.Files {
		if byName[x.Name] != x {
			return fail("%s: the original's hash isn't the one that was sealed", x.Name)
		}
		delete(byName, x.Name)
	}
	delete(byName, ManifestFile)
	if len(byName) > 0 {
		return fail("%d originals aren't in the manifest", len(byName))
	}
	return NotApplicable, "published: the originals' hashes are those that were sealed, their bytes are private"
}

var errNoJournal = errors.New("the journal is empty")

package evidence

import (
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
)

// Is reports whether a folder has a probe's manifest or journal.
func Is(dir string) bool {
	for _, name := range []string{ManifestFile, PlanFile} {
		if content, err := Read(dir, name); err == nil {
			var head struct {
				Operation string `json:"operation"`
			}
			if json.Unmarshal(content, &head) == nil && (head.Operation == ManifestOperation || head.Operation == PlanOperation) {
				return true
			}
		}
	}
	return false
}

// folder is what was read.
type folder struct {
	dir       string
	manifest  Manifest
	plan      Plan
	files     map[string][]byte
	entries   []Entry
	torn      bool
	create    *CreateResult
	mps       *MPSResult
	measure   *MeasureResult
	contained *ContainerResult // create is then what its program printed, or nil

	public    bool // the public form: labels for private strings
	originals []File
}

func open(dir string) (*folder, error) {
	f := &folder{dir: dir, files: make(map[string][]byte)}
	content, err := Read(dir, ManifestFile)
	if err != nil {
		return nil, err
	}
	if err := Decode(ManifestFile, content, &f.manifest); err != nil {
		return nil, err
	}
	if f.manifest.Operation != ManifestOperation || f.manifest.SchemaVersion != SchemaVersion {
		return nil, fmt.Errorf("%s: operation %q, version %d", ManifestFile, f.manifest.Operation, f.manifest.SchemaVersion)
	}
	for _, x := range f.manifest.Files {
		if x.Name != filepath.Base(x.Name) || x.Name == ManifestFile {
			return nil, fmt.Errorf("%s: file %q", ManifestFile, x.Name)
		}
		if content, err := Read(dir, x.Name); err == nil {
			f.files[x.Name] = content
		}
	}
	return f, f.decode()
}

// decode reads what the rules look at.
func (f *folder) decode() (err error) {
	if f.files[PlanFile] == nil || f.files[JournalFile] == nil {
		return errors.New("plan or journal is missing")
	}
	if err := Decode(PlanFile, f.files[PlanFile], &f.plan); err != nil {
		return err
	}
	if f.entries, f.torn, err = ParseJournal(f.files[JournalFile]); err != nil {
		return err
	}
	if len(f.entries) == 0 {
		return errNoJournal
	}
	if content := f.files[ResultFile]; content != nil {
		switch f.manifest.Probe {
		case CreateOperation:
			f.create = new(CreateResult)
			err = Decode(ResultFile, content, f.create)
		case MPSOperation:
			f.mps = new(MPSResult)
			err = Decode(ResultFile, content, f.mps)
		case MeasureOperation:
			f.measure = new(MeasureResult)
			err = Decode(ResultFile, content, f.measure)
		case ContainerOperation:
			f.contained = new(ContainerResult)
			err = Decode(ResultFile, content, f.contained)
		default:
			err = fmt.Errorf("a result of %q", f.manifest.Probe)
		}
	}
	return err
}

func (f *folder) hasResult() bool {
	return f.create != nil || f.mps != nil || f.contained != nil || f.measure != nil
}

// created is the result of create: the run's own, or that of the program in its container; nil.
func (f *folder) created() *CreateResult {
	if f.contained != nil {
		return f.contained.Create
	}
	return f.create
}

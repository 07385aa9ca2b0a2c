// Package evidence is the folder that a probe leaves behind: its documents, its journal, and the check that holds them against
// each other, offline. docs/formats/probe.md describes them for others.
//
//	plan.json      what was to be done and why it was or wasn't: written before anything is made
//	journal.jsonl  each step before it is taken, synced, by supervisor, worker, guard and cleanup
//	inspect.json   the host as `cotenant inspect` saw it just before
//	result.json    what `--json` printed
//	stderr.txt     what worker and libraries printed
//	manifest.json  hashes of all these, versions, exit codes: written last
//	cleanup.json   what `cotenant probe cleanup` did later; not in the manifest
package evidence

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

	"cotenant/internal/observe"
)

// SchemaVersion of every document.
const SchemaVersion = 1

// Operations.
const (
	PlanOperation     = "gpu_sharing_probe_plan"
	CreateOperation   = "green_context_probe"
	MPSOperation      = "mps_probe"
	MeasureOperation  = "guarded_measurement"
	ManifestOperation = "gpu_sharing_evidence"
	CleanupOperation  = "gpu_sharing_probe_cleanup"
)

// Names of the files.
const (
	PlanFile     = "plan.json"
	JournalFile  = "journal.jsonl"
	InspectFile  = "inspect.json"
	ResultFile   = "result.json"
	StderrFile   = "stderr.txt"
	ManifestFile = "manifest.json"
	CleanupFile  = "cleanup.json"
)

// Answers of a gate.
const (
	Yes           = "yes"
	No            = "no"
	Unknown       = "unknown"
	NotApplicable = "not_applicable"
)

// Gate is one go/no-go criterion.
type Gate struct {
	ID       string `json:"id"`
	Question string `json:"question"`
	Answer   string `json:"answer"`
	Detail   string `json:"detail"`
	// Override is the flag that lets a run go on all the same; empty where none does.
	Override   string `json:"override,omitempty"`
	Overridden bool   `json:"overridden,omitempty"`
}

// Passes reports whether the gate lets a run go on.
func (g Gate) Passes() bool { return g.Answer == Yes || g.Answer == NotApplicable || g.Overridden }

// Go reports whether all do.
func Go(gates []Gate) bool {
	for _, g := range gates {
		if !g.Passes() {
			return false
		}
	}
	return len(gates) > 0
}

// Plan is plan.json.
type Plan struct {
	SchemaVersion int      `json:"schema_version"`
	Operation     string   `json:"operation"`
	Probe         string   `json:"probe"` // operation of the result
	RunID         string   `json:"run_id"`
	Started       string   `json:"started"` // RFC 3339, UTC
	GPUUUID       string   `json:"gpu_uuid"`
	Request       any      `json:"request"` // the probe's options
	Gates         []Gate   `json:"gates"`
	Go            bool     `json:"go"`
	Overrides     []string `json:"overrides"` // flags given that let a run go on
	Steps         []string `json:"steps"`
	Environment   []string `json:"environment"` // variables that the worker gets, beyond its supervisor's
	Cleanup       []string `json:"cleanup_contract"`
	Rollback      []string `json:"rollback_plan"`
	Folder        string   `json:"artifact_folder"`
	DeadlineMS    int64    `json:"deadline_ms"`
	// ImageDigest is the container's, where there is one.
	ImageDigest observe.Value[string] `json:"image_digest"`
	Role        *Role                 `json:"role"` // null without a topology
}

// Role is what the operator's topology says of the GPU: its identity, and what became of the role.
type Role struct {
	TopologySHA256 string `json:"topology_file_sha256"`
	Host           string `json:"host"`  // the declared host that this machine is; empty where none is
	Role           string `json:"role"`  // empty where the GPU has none
	State          string `json:"state"` // bound, absent, mismatched
	Reason         string `json:"reason,omitempty"`
}

// Outcomes of a run.
const (
	Completed   = "completed" // every step was taken; whether checks pass is in the result
	Refused     = "refused"   // a gate said no
	Failed      = "failed"    // a step failed
	Interrupted = "interrupted"
	HealthLost  = "health_lost" // GPU, display or Xid: the worker was ended at once
	Deadline    = "deadline"    // the worker was killed at its deadline
	Crashed     = "crashed"     // the worker ended by itself, without an answer
	Abandoned   = "abandoned"   // the worker could not be killed
	Unfinished  = "unfinished"  // the supervisor ended first; a cleanup wrote the manifest
)

// File is a file of the folder.
type File struct {
	Name   string `json:"name"`
	Bytes  int64  `json:"bytes"`
	SHA256 string `json:"sha256"`
}

// Process is how a process ended.
type Process struct {
	Outcome  string `json:"outcome"`   // bounded.Outcome
	ExitCode int    `json:"exit_code"` // -1 unless it exited
	Signal   string `json:"signal,omitempty"`
	WallUS   int64  `json:"wall_us"`
}

// Program is the binary that ran.
type Program struct {
	Version  string                `json:"version"`
	Revision string                `json:"revision"` // empty where the build recorded none
	SHA256   observe.Value[string] `json:"sha256"`   // of the executable
	OS       string                `json:"os"`
	Arch     string                `json:"arch"`
}

// Versions are those of the machine.
type Versions struct {
	DriverRelease observe.Value[string] `json:"driver_release"` // 580.159.04
	CUDADriver    observe.Value[string] `json:"cuda_driver"`    // 13.0
	CUDARuntime   observe.Value[string] `json:"cuda_runtime"`
	MPSControl    observe.Value[int]    `json:"mps_control"`
}

// Kernels is a module that was loaded.
type Kernels struct {
	Name     string `json:"name"`
	SHA256   string `json:"sha256"`
	Compiler string `json:"compiler"`
}

// Manifest is manifest.json.
type Manifest struct {
	SchemaVersion   int                   `json:"schema_version"`
	Operation       string                `json:"operation"`
	Probe           string                `json:"probe"`
	RunID           string                `json:"run_id"`
	Started         string                `json:"started"`
	Ended           string                `json:"ended"`
	Outcome         string                `json:"outcome"`
	ExitCode        int                   `json:"exit_code"`
	Worker          *Process              `json:"worker"` // null where none was started
	Program         Program               `json:"program"`
	ImageDigest     observe.Value[string] `json:"image_digest"`
	Versions        Versions              `json:"versions"`
	Kernels         []Kernels             `json:"kernels"`
	GPUUUID         string                `json:"gpu_uuid"`
	GPULabel        string                `json:"gpu_label"`       // stable, tells nothing: for publishing
	TopologySHA256  string                `json:"topology_sha256"` // of inspect.json
	Role            *Role                 `json:"role"`            // as in the plan
	CleanupComplete bool                  `json:"cleanup_complete"`
	Files           []File                `json:"files"`
}

// Label is a stable name of a GPU that doesn't tell its UUID.
func Label(uuid string) string {
	sum := sha256.Sum256([]byte("cotenant gpu label\x00" + uuid))
	return "gpu-" + hex.EncodeToString(sum[:4])
}

// Encode returns a document as it is printed and stored.
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

// Write writes a file of the folder so that it is on disk, whole or not at all, when it returns.
func Write(dir, name string, content []byte) (err error) {
	f, err := os.CreateTemp(dir, "."+name+"-*")
	if err != nil {
		return fmt.Errorf("writing %s: %w", name, err)
	}
	defer func() {
		if err != nil {
			os.Remove(f.Name())
			err = fmt.Errorf("writing %s: %w", name, err)
		}
	}()
	_, err = f.Write(content)
	if err == nil {
		err = f.Sync()
	}
	err = errors.Join(err, f.Close())
	if err == nil {
		err = os.Chmod(f.Name(), 0o644)
	}
	if err == nil {
		err = os.Rename(f.Name(), filepath.Join(dir, name))
	}
	return err
}

// WriteDocument encodes and writes.
func WriteDocument(dir, name string, v any) error {
	content, err := Encode(v)
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return Write(dir, name, content)
}

// maxFile bounds what is read of one file.
const maxFile = 64 << 20

// Read reads a file of a folder. One that is larger than any of ours is an error.
func Read(dir, name string) ([]byte, error) {
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

// Decode reads a document strictly: unknown fields and anything after it are errors.
func Decode(name string, content []byte, v any) error {
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

// Hash describes a file's content.
func Hash(name string, content []byte) File {
	sum := sha256.Sum256(content)
	return File{name, int64(len(content)), hex.EncodeToString(sum[:])}
}

// Seal hashes what is in the folder into the manifest and writes it.
func Seal(dir string, m Manifest) error {
	m.SchemaVersion, m.Operation = SchemaVersion, ManifestOperation
	m.Files = []File{}
	for _, name := range []string{PlanFile, JournalFile, InspectFile, ResultFile, StderrFile} {
		content, err := Read(dir, name)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return fmt.Errorf("sealing: %w", err)
		}
		m.Files = append(m.Files, Hash(name, content))
		if name == InspectFile {
			m.TopologySHA256 = Hash(name, content).SHA256
		}
	}
	if m.Kernels == nil {
		m.Kernels = []Kernels{}
	}
	return WriteDocument(dir, ManifestFile, m)
}

// Package kernels carries the program's GPU code: CUDA C in this folder, compiled ahead of time to PTX, which the driver
// compiles for the GPU that it meets. tools/ptx makes the PTX and the manifest; the CUDA toolkit is needed by nobody.
package kernels

import (
	"embed"
	"encoding/json"
	"fmt"
	"io/fs"
	"strings"
)

// Manifest says what the PTX files were made from and their hashes.
type Manifest struct {
	SchemaVersion int    `json:"schema_version"`
	Operation     string `json:"operation"` // "kernels"
	// Compiler is the first line of its --version.
	Compiler string       `json:"compiler"`
	Modules  []ModuleInfo `json:"modules"`
}

// ModuleInfo is one PTX file.
type ModuleInfo struct {
	Name   string `json:"name"`
	Source string `json:"source"`
	// SourceSHA256 is of the source followed by Headers.
	SourceSHA256 string   `json:"source_sha256"`
	Flags        []string `json:"flags"`
	Arch         string   `json:"arch"`
	SHA256       string   `json:"sha256"`
	Kernels      []string `json:"kernels"`
}

//go:embed *.ptx *.cu *.cuh manifest.json unproven.txt
var files embed.FS

// Headers returns the headers of a folder of kernels one after the other, by name.
func Headers(dir fs.FS) ([]byte, error) {
	names, err := fs.Glob(dir, "*.cuh")
	if err != nil {
		return nil, err
	}
	var all []byte
	for _, name := range names {
		text, err := fs.ReadFile(dir, name)
		if err != nil {
			return nil, fmt.Errorf("reading a header of kernels: %w", err)
		}
		all = append(all, text...)
	}
	return all, nil
}

// ReadManifest returns the embedded manifest.
func ReadManifest() (Manifest, error) {
	var m Manifest
	text, err := files.ReadFile("manifest.json")
	if err == nil {
		err = json.Unmarshal(text, &m)
	}
	if err != nil {
		return m, fmt.Errorf("reading the manifest of kernels: %w", err)
	}
	return m, nil
}

// Module returns the PTX of a module, such as "probe_sm70", and what the manifest says of it. The text has no NUL at its end.
func Module(name string) ([]byte, ModuleInfo, error) {
	m, err := ReadManifest()
	if err != nil {
		return nil, ModuleInfo{}, err
	}
	for _, info := range m.Modules {
		if info.Name != name {
			continue
		}
		ptx, err := files.ReadFile(name + ".ptx")
		if err != nil {
			return nil, info, fmt.Errorf("reading kernels %s: %w", name, err)
		}
		return ptx, info, nil
	}
	return nil, ModuleInfo{}, fmt.Errorf("no kernels %q in this program", name)
}

// Unproven returns the modules, by name, that have not passed their tests on a GPU as they are, each with the reason. A test holds the list
// to the records under evidence/: a module is on it exactly where no record has its hash.
func Unproven() (map[string]string, error) {
	text, err := files.ReadFile("unproven.txt")
	if err != nil {
		return nil, fmt.Errorf("reading which kernels are unproven: %w", err)
	}
	return parseUnproven(string(text))
}

// parseUnproven reads lines `NAME: reason`; a line that begins with # says nothing.
func parseUnproven(text string) (map[string]string, error) {
	reasons := make(map[string]string)
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		name, reason, ok := strings.Cut(line, ": ")
		if _, twice := reasons[name]; !ok || twice {
			return nil, fmt.Errorf("unproven kernels: %q isn't `NAME: reason`, or names what stands there already", line)
		}
		reasons[name] = reason
	}
	return reasons, nil
}

package model

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"cotenant/internal/weights"
)

// Info describes a model for people and ledgers.
type Info struct {
	Name         string // GGUF's general.name, else org/name in a Hugging Face cache, else the file's or folder's name
	Arch         string
	Parameters   int64  // Config.Parameters
	Format       string // gguf, safetensors
	Quantisation string // number formats by bytes, the largest first, for instance "Q4_1 ×210, Q8_0 ×1, F32 ×61"
	Path         string // as resolved
	Bytes        int64  // of all tensors, as stored
}

// Info describes the model.
func (m *Model) Info() Info { return m.info }

func (m *Model) summarise(src *source) {
	m.info = Info{
		Name: src.Name, Arch: src.Arch, Parameters: src.Parameters(), Format: string(m.file.Format()), Path: m.file.Path(),
	}
	if m.info.Name == "" {
		m.info.Name = nameOf(m.info.Path)
	}
	type use struct {
		kind  weights.DType
		count int
		bytes int64
	}
	var uses []use
	for _, t := range src.tensors.Tensors() {
		i := slices.IndexFunc(uses, func(u use) bool { return u.kind == t.Type })
		if i < 0 {
			i, uses = len(uses), append(uses, use{kind: t.Type})
		}
		uses[i].count++
		uses[i].bytes += int64(len(t.Data))
		m.info.Bytes += int64(len(t.Data))
	}
	slices.SortFunc(uses, func(a, b use) int { return cmp.Or(cmp.Compare(b.bytes, a.bytes), cmp.Compare(a.kind, b.kind)) })
	var parts []string
	for _, u := range uses {
		parts = append(parts, fmt.Sprintf("%v ×%d", u.kind, u.count))
	}
	m.info.Quantisation = strings.Join(parts, ", ")
}

// nameOf makes a name from a path: of a file, or of a folder or the tensors in it.
func nameOf(path string) string {
	if abs, err := filepath.Abs(path); err == nil {
		path = abs
	}
	if filepath.Ext(path) == ".safetensors" {
		path = filepath.Dir(path)
	}
	// huggingface_hub keeps a repository as models--org--name/snapshots/commit.
	if snapshots := filepath.Dir(path); filepath.Base(snapshots) == "snapshots" {
		if repo, ok := strings.CutPrefix(filepath.Base(filepath.Dir(snapshots)), "models--"); ok {
			return strings.Replace(repo, "--", "/", 1)
		}
	}
	return strings.TrimSuffix(filepath.Base(path), ".gguf")
}

// Digest reads the model's files (or the memory that it was loaded from) once more and returns a SHA-256 in hex that stands for them. Of a GGUF file it is the
// file's own. Of a folder it is that of a list with a line "SHA-256  name\n" for each .json, .jinja and .safetensors file,
// in the order of their names. It may be called from any goroutine, and after Close.
func (m *Model) Digest() (string, error) {
	if m.data != nil {
		sum := sha256.Sum256(m.data)
		return hex.EncodeToString(sum[:]), nil
	}
	d, err := digest(m.info.Path, m.info.Format == string(weights.GGUF))
	if err != nil {
		return "", fmt.Errorf("digest of model %s: %w", m.info.Path, err)
	}
	return d, nil
}

func digest(path string, single bool) (string, error) {
	if single {
		return fileDigest(path)
	}
	dir := path
	if info, err := os.Stat(path); err != nil {
		return "", err
	} else if !info.IsDir() { // the one safetensors file
		dir = filepath.Dir(path)
	}
	entries, err := os.ReadDir(dir) // sorted by name
	if err != nil {
		return "", err
	}
	list := sha256.New()
	for _, e := range entries {
		switch filepath.Ext(e.Name()) {
		case ".json", ".jinja", ".safetensors":
			sum, err := fileDigest(filepath.Join(dir, e.Name()))
			if err != nil {
				return "", err
			}
			fmt.Fprintf(list, "%s  %s\n", sum, e.Name())
		}
	}
	return hex.EncodeToString(list.Sum(nil)), nil
}

func fileDigest(path string) (string, error) {
	info, err := os.Stat(path)
	if err != nil {
		return "", err
	}
	if !info.Mode().IsRegular() {
		return "", fmt.Errorf("%s is not a regular file", path)
	}
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer func() { _ = f.Close() }()
	sum := sha256.New()
	if _, err := io.Copy(sum, f); err != nil {
		return "", err
	}
	return hex.EncodeToString(sum.Sum(nil)), nil
}

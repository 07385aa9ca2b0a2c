package weights

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Format is the container that a model's tensors come in.
type Format string

// The containers that this package reads.
const (
	GGUF        Format = "gguf"
	Safetensors Format = "safetensors"
)

// maxTensors bounds the tensors of one model. The largest published checkpoints have about 100,000.
const maxTensors = 1 << 18

// File is an open model: its tensors, its metadata and, beside safetensors, its sidecar files. It may be read from several
// goroutines at once. Close must come after the last use of any Tensor's Data.
type File struct {
	path    string // of the file or folder; a name chosen by the caller for FromBytes
	format  Format
	tensors []Tensor
	index   map[string]int
	meta    metadata
	maps    []*mapping
	sidecar string // folder of config.json and its like, "" where there is none
}

// Open maps a model: a GGUF file (v2 or v3, little endian), a .safetensors file, or a folder that holds either (see
// openFolder for the order). It reads the description of the tensors, not the tensors.
//
// The file must keep its size and contents while it is open. Where files are mapped (Linux, macOS, BSD), touching a page
// that was cut off by a truncation kills the process with SIGBUS; replace a model by renaming another file over it, which
// leaves the mapped one alive. Where files are not mapped (Windows), they are read into memory whole.
func Open(path string) (*File, error) {
	info, err := os.Stat(path)
	if err != nil {
		if errors.Is(err, os.ErrNotExist) {
			return nil, fmt.Errorf("open model: %w (give a GGUF file, a .safetensors file, a folder, or a repository name from the local Hugging Face cache)", err)
		}
		return nil, fmt.Errorf("open model: %w", err)
	}
	var f *File
	if info.IsDir() {
		f, err = openFolder(path)
	} else {
		f, err = openFile(path)
	}
	if err != nil {
		return nil, fmt.Errorf("open model %s: %w", path, err)
	}
	return f, nil
}

// FromBytes reads a model that is already in memory, a GGUF or a safetensors file, told apart by their first bytes. name
// stands in for the path in messages. data is borrowed: it must not change while the File is in use.
func FromBytes(name string, data []byte) (*File, error) {
	f, err := parse(data)
	if err != nil {
		return nil, fmt.Errorf("read model %s: %w", name, err)
	}
	f.path = name
	return f, nil
}

func openFile(path string) (*File, error) {
	m, err := mapFile(path)
	if err != nil {
		return nil, err
	}
	f, err := parse(m.data)
	if err != nil {
		return nil, errors.Join(err, m.close())
	}
	f.path, f.maps = path, []*mapping{m}
	if f.format == Safetensors {
		f.sidecar = filepath.Dir(path)
	}
	return f, nil
}

func parse(data []byte) (*File, error) {
	switch {
	case bytes.HasPrefix(data, []byte(ggufMagic)):
		return parseGGUF(data)
	case len(data) > 8 && data[8] == '{':
		return parseSafetensors(data)
	case bytes.HasPrefix(data, []byte("PK\x03\x04")) || bytes.HasPrefix(data, []byte{0x80, 0x02}):
		return nil, errors.New("is a pickled PyTorch file, which could run code and isn't read: convert it to safetensors")
	case bytes.HasPrefix(data, []byte("version https://git-lfs")):
		return nil, errors.New("is a Git LFS pointer, not the model: run `git lfs pull` where it came from")
	}
	return nil, errors.New("is neither GGUF nor safetensors")
}

// newFile builds a File over tensors whose names must differ.
func newFile(format Format, tensors []Tensor, meta metadata) (*File, error) {
	f := &File{format: format, tensors: tensors, index: make(map[string]int, len(tensors)), meta: meta}
	for i, t := range tensors {
		if _, twice := f.index[t.Name]; twice {
			return nil, fmt.Errorf("tensor %s is there twice", quote(t.Name))
		}
		f.index[t.Name] = i
	}
	return f, nil
}

// Path returns the path that was opened.
func (f *File) Path() string { return f.path }

// Format returns the container's format.
func (f *File) Format() Format { return f.format }

// Tensor returns the named tensor; false where the model has none of that name.
func (f *File) Tensor(name string) (Tensor, bool) {
	i, ok := f.index[name]
	if !ok {
		return Tensor{}, false
	}
	return f.tensors[i], true
}

// Expect returns the named tensor and fails unless it is there with exactly this shape.
func (f *File) Expect(name string, shape ...int) (Tensor, error) {
	t, ok := f.Tensor(name)
	if !ok {
		return Tensor{}, fmt.Errorf("model %s has no tensor %q", f.path, name)
	}
	if !slices.Equal(t.Shape, shape) {
		return Tensor{}, fmt.Errorf("model %s: tensor %q has shape %v, want %v", f.path, name, t.Shape, shape)
	}
	return t, nil
}

// Tensors returns all tensors in the file's order. The slice is the caller's; the elements' Shape and Data are shared.
func (f *File) Tensors() []Tensor { return slices.Clone(f.tensors) }

// Forget gives the memory of the mapped files back, where every tensor that is needed was copied. Data stays valid.
func (f *File) Forget() error {
	var errs []error
	for _, m := range f.maps {
		errs = append(errs, m.forget())
	}
	return errors.Join(errs...)
}

// Close unmaps the files; no Tensor's Data may be touched afterwards. Strings and sidecars stay valid. A second call does
// nothing.
func (f *File) Close() error {
	var errs []error
	for _, m := range f.maps {
		errs = append(errs, m.close())
	}
	f.maps, f.tensors, f.index, f.meta = nil, nil, nil, metadata{}
	return errors.Join(errs...)
}

// quote makes a name from a file fit for a message: escaped, and short however long the file has it.
func quote(s string) string {
	if len(s) > 80 {
		s = strings.ToValidUTF8(s[:80], "") + "…"
	}
	return fmt.Sprintf("%q", s)
}

package weights

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

const (
	singleName = "model.safetensors"
	indexName  = "model.safetensors.index.json"

	// MaxSidecar is the largest sidecar file that is read, in bytes. The largest tokenizer.json in use has 33 MB.
	MaxSidecar = 64 << 20
)

// openFolder opens what a folder holds, in transformers' order: model.safetensors, a sharded model by its index, the only
// other .safetensors file; else the only .gguf file.
func openFolder(dir string) (*File, error) {
	names, err := fileNames(dir)
	if err != nil {
		return nil, err
	}
	tensors, ggufs := withSuffix(names, ".safetensors"), withSuffix(names, ".gguf")
	switch {
	case slices.Contains(names, singleName):
		return openFile(filepath.Join(dir, singleName))
	case slices.Contains(names, indexName):
		return openShards(dir)
	case len(tensors) == 1:
		return openFile(filepath.Join(dir, tensors[0]))
	case len(tensors) > 1:
		return nil, fmt.Errorf("has %d .safetensors files (%s) and no %s: is the download complete?", len(tensors), some(tensors), indexName)
	case len(ggufs) == 1:
		return openFile(filepath.Join(dir, ggufs[0]))
	case len(ggufs) > 1:
		return nil, fmt.Errorf("has %d GGUF files (%s): give the one you want", len(ggufs), some(ggufs))
	case len(withSuffix(names, ".bin"))+len(withSuffix(names, ".pth"))+len(withSuffix(names, ".pt")) > 0:
		return nil, errors.New("has pickled PyTorch weights, which could run code and aren't read: convert them to safetensors")
	}
	return nil, errors.New("has neither .safetensors nor .gguf files")
}

// fileNames lists the files of a folder, links to files included: the Hugging Face cache is made of links.
func fileNames(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var names []string
	for _, e := range entries {
		if !e.IsDir() {
			names = append(names, e.Name())
		}
	}
	return names, nil
}

func withSuffix(names []string, suffix string) []string {
	var out []string
	for _, n := range names {
		if strings.HasSuffix(n, suffix) {
			out = append(out, n)
		}
	}
	return out
}

// some joins the first few names for a message.
func some(names []string) string {
	if len(names) > 4 {
		return strings.Join(names[:4], ", ") + ", …"
	}
	return strings.Join(names, ", ")
}

// Sidecar returns a file that lies beside a safetensors model: config.json, tokenizer.json, tokenizer_config.json,
// generation_config.json. false means that it isn't there. A GGUF file has everything inside, so it has no sidecars, and
// what happens to lie in its folder is not read. Larger files than MaxSidecar are an error. name is a plain file name.
func (f *File) Sidecar(name string) ([]byte, bool, error) {
	if f.sidecar == "" {
		return nil, false, nil
	}
	if !plainName(name) {
		return nil, false, fmt.Errorf("sidecar %q is not a plain file name", name)
	}
	data, err := readCapped(filepath.Join(f.sidecar, name), MaxSidecar)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return nil, false, nil
	case err != nil:
		return nil, false, fmt.Errorf("read %s of model %s: %w", name, f.path, err)
	}
	return data, true, nil
}

// plainName reports whether name stays in its folder, on every platform.
func plainName(name string) bool {
	return filepath.IsLocal(name) && name != "." && !strings.ContainsAny(name, `/\:`)
}

func readCapped(path string, limit int) ([]byte, error) {
	r, size, err := openRegular(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = r.Close() }()
	if size > limit {
		return nil, fmt.Errorf("has %d bytes, more than %d", size, limit)
	}
	// The file may grow between the question and the reading.
	data, err := io.ReadAll(io.LimitReader(r, int64(limit)+1))
	if err == nil && len(data) > limit {
		err = fmt.Errorf("has more than %d bytes", limit)
	}
	return data, err
}

package weights_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"cotenant/internal/weights"
	"cotenant/internal/weights/weightstest"
)

// tensor returns a small F32 matrix.
func tensor(name string, first float32) weights.Tensor {
	return weightstest.Float32(name, weights.F32, []float32{first, 1, 2, 3}, 2, 2)
}

func safetensors(t *testing.T, tensors ...weights.Tensor) string {
	t.Helper()
	data, err := weightstest.Safetensors(map[string]string{"format": "pt"}, tensors)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

func gguf(t *testing.T, tensors ...weights.Tensor) string {
	t.Helper()
	data, err := weightstest.GGUF([]weightstest.KV{{Key: "general.architecture", Value: "llama"}}, tensors)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// folder writes files, given by relative path and contents, and returns the folder.
func folder(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		path := filepath.Join(dir, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func index(t *testing.T, weightMap map[string]string) string {
	t.Helper()
	text, err := json.Marshal(map[string]any{"metadata": map[string]any{"total_size": 1}, "weight_map": weightMap})
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// first returns the first element of a tensor.
func first(t *testing.T, f *weights.File, name string) float32 {
	t.Helper()
	x, err := f.Expect(name, 2, 2)
	if err != nil {
		t.Fatal(err)
	}
	v := make([]float32, 4)
	weights.Dequantize(v, x.Type, x.Data)
	return v[0]
}

func TestOpen(t *testing.T) {
	const shard1, shard2 = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
	a, b := safetensors(t, tensor("a", 10)), safetensors(t, tensor("b", 20), tensor("c", 30))
	whole := index(t, map[string]string{"a": shard1, "b": shard2, "c": shard2})
	for _, c := range []struct {
		name  string
		files map[string]string
		open  string // relative to the folder
		want  map[string]float32
		err   string
	}{
		{"gguf", map[string]string{"m.gguf": gguf(t, tensor("a", 10))}, "m.gguf", map[string]float32{"a": 10}, ""},
		{"gguf-by-folder", map[string]string{"m.gguf": gguf(t, tensor("a", 10)), "README.md": "x"}, "", map[string]float32{"a": 10}, ""},
		{"gguf-of-another-name", map[string]string{"blob": gguf(t, tensor("a", 10))}, "blob", map[string]float32{"a": 10}, ""},
		{"ggufs", map[string]string{"q4.gguf": gguf(t), "q8.gguf": gguf(t)}, "", nil, "has 2 GGUF files (q4.gguf, q8.gguf): give the one you want"},
		{"single", map[string]string{"model.safetensors": a, "other.safetensors": b}, "", map[string]float32{"a": 10}, ""},
		{"single-before-index", map[string]string{"model.safetensors": a, "model.safetensors.index.json": whole}, "", map[string]float32{"a": 10}, ""},
		{"single-of-another-name", map[string]string{"weights.safetensors": a, "m.gguf": gguf(t)}, "", map[string]float32{"a": 10}, ""},
		{"single-file", map[string]string{"x/w.safetensors": a}, "x/w.safetensors", map[string]float32{"a": 10}, ""},
		{"many-without-index", map[string]string{shard1: a, shard2: b}, "", nil, "no model.safetensors.index.json: is the download complete?"},
		{"shards", map[string]string{"model.safetensors.index.json": whole, shard1: a, shard2: b}, "", map[string]float32{"a": 10, "b": 20, "c": 30}, ""},
		{"shards-with-consolidated", map[string]string{"model.safetensors.index.json": whole, shard1: a, shard2: b, "consolidated.safetensors": a}, "",
			map[string]float32{"a": 10, "b": 20, "c": 30}, ""},
		{"shard-missing", map[string]string{"model.safetensors.index.json": whole, shard1: a}, "", nil, "shard " + shard2},
		{"shard-cut", map[string]string{"model.safetensors.index.json": whole, shard1: a, shard2: b[:len(b)-1]}, "", nil, "shard " + shard2 + ": tensor \"c\" ends at"},
		{"shard-is-gguf", map[string]string{"model.safetensors.index.json": whole, shard1: gguf(t, tensor("a", 10)), shard2: b}, "", nil, "is not safetensors"},
		{"tensor-in-the-wrong-shard", map[string]string{"model.safetensors.index.json": index(t, map[string]string{"a": shard2, "b": shard1}), shard1: a, shard2: b}, "", nil, "which doesn't have it"},
		{"tensor-nowhere", map[string]string{"model.safetensors.index.json": index(t, map[string]string{"a": shard1, "z": shard1}), shard1: a}, "", nil, `places tensor "z"`},
		{"tensor-in-two-shards", map[string]string{"model.safetensors.index.json": whole, shard1: safetensors(t, tensor("a", 10), tensor("b", 9)), shard2: b}, "", nil, `tensor "b" is in shards`},
		{"shard-elsewhere", map[string]string{"m/model.safetensors.index.json": index(t, map[string]string{"a": "../secret.safetensors"}), "secret.safetensors": a}, "m", nil, "not a plain file name"},
		{"shard-absolute", map[string]string{"model.safetensors.index.json": index(t, map[string]string{"a": "/etc/passwd"})}, "", nil, "not a plain file name"},
		{"shard-backslash", map[string]string{"model.safetensors.index.json": index(t, map[string]string{"a": `..\secret.safetensors`})}, "", nil, "not a plain file name"},
		{"shard-empty-name", map[string]string{"model.safetensors.index.json": index(t, map[string]string{"a": ""})}, "", nil, "not a plain file name"},
		{"index-without-map", map[string]string{"model.safetensors.index.json": `{}`}, "", nil, "has no weight_map"},
		{"index-of-numbers", map[string]string{"model.safetensors.index.json": `{"weight_map":{"a":1}}`}, "", nil, "model.safetensors.index.json: json:"},
		{"index-nested", map[string]string{"model.safetensors.index.json": `{"weight_map":` + strings.Repeat(`{"a":`, 20_000)}, "", nil, "model.safetensors.index.json: "},
		{"pickle", map[string]string{"pytorch_model.bin": "PK\x03\x04"}, "", nil, "convert them to safetensors"},
		{"nothing", map[string]string{"config.json": "{}"}, "", nil, "neither .safetensors nor .gguf files"},
		{"empty-file", map[string]string{"m.gguf": ""}, "", nil, "is empty"},
		{"absent", nil, "nowhere.gguf", nil, "give a GGUF file"},
	} {
		t.Run(c.name, func(t *testing.T) {
			path := filepath.Join(folder(t, c.files), filepath.FromSlash(c.open))
			f, err := weights.Open(path)
			if c.err != "" {
				if err == nil || !strings.Contains(err.Error(), c.err) || !strings.Contains(err.Error(), path) {
					t.Fatalf("error %v, want %q and the path in it", err, c.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if len(f.Tensors()) != len(c.want) {
				t.Errorf("%d tensors, want %d", len(f.Tensors()), len(c.want))
			}
			for name, want := range c.want {
				if got := first(t, f, name); got != want {
					t.Errorf("%s begins with %v, want %v", name, got, want)
				}
			}
			for range 2 {
				if err := f.Close(); err != nil {
					t.Errorf("close: %v", err)
				}
			}
			if _, ok := f.Tensor("a"); ok {
				t.Error("a closed file has tensors")
			}
		})
	}
}

func TestOpenRefusesWhatIsNoFile(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("needs /dev/zero: not on Windows")
	}
	// Neither may be read to its end, and a FIFO may not even be opened: nobody writes to it.
	fifo := filepath.Join(t.TempDir(), "model.gguf")
	if err := mkfifo(fifo); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{"/dev/zero", fifo} {
		if _, err := weights.Open(path); err == nil || !strings.Contains(err.Error(), "is not a regular file") {
			t.Errorf("%s: %v", path, err)
		}
	}
}

func TestStringsOutliveTheFile(t *testing.T) {
	data, err := weightstest.GGUF([]weightstest.KV{{Key: "s", Value: "text"}, {Key: "ss", Value: []string{"one", "two"}}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	f, err := weights.Open(filepath.Join(folder(t, map[string]string{"m.gguf": string(data)}), "m.gguf"))
	if err != nil {
		t.Fatal(err)
	}
	s, _, _ := f.String("s")
	list, _, _ := f.Strings("ss")
	two := list.At(1)
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	if s != "text" || two != "two" {
		t.Errorf("%q, %q", s, two)
	}
	if _, ok, err := f.String("s"); ok || err != nil {
		t.Errorf("a closed file has metadata: %v, %v", ok, err)
	}
}

// TestReplacedFile: renaming another file over an open one leaves the open one as it was.
func TestReplacedFile(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("needs to rename over an open file: not on Windows")
	}
	dir := folder(t, map[string]string{"m.gguf": gguf(t, tensor("a", 10)), "other": gguf(t, tensor("a", 11))})
	f, err := weights.Open(filepath.Join(dir, "m.gguf"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	if err := os.Rename(filepath.Join(dir, "other"), filepath.Join(dir, "m.gguf")); err != nil {
		t.Fatal(err)
	}
	if got := first(t, f, "a"); got != 10 {
		t.Errorf("the open file holds %v", got)
	}
}

func TestSidecar(t *testing.T) {
	dir := folder(t, map[string]string{"model.safetensors": safetensors(t, tensor("a", 1)), "config.json": `{"model_type":"llama"}`,
		"sub/x.json": "{}", "empty.json": "", "gguf/m.gguf": gguf(t), "gguf/config.json": "{}"})
	if err := os.Truncate(filepath.Join(dir, "empty.json"), weights.MaxSidecar+1); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{dir, filepath.Join(dir, "model.safetensors")} {
		f, err := weights.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = f.Close() }()
		if text, ok, err := f.Sidecar("config.json"); string(text) != `{"model_type":"llama"}` || !ok || err != nil {
			t.Errorf("config.json: %q, %v, %v", text, ok, err)
		}
		if _, ok, err := f.Sidecar("generation_config.json"); ok || err != nil {
			t.Errorf("absent: %v, %v", ok, err)
		}
		for _, name := range []string{"../x", "sub/x.json", "/etc/passwd", "", ".", "..", `sub\x.json`, "C:x"} {
			if _, ok, err := f.Sidecar(name); ok || err == nil || !strings.Contains(err.Error(), "plain file name") {
				t.Errorf("%q: %v, %v", name, ok, err)
			}
		}
		if _, ok, err := f.Sidecar("empty.json"); ok || err == nil || !strings.Contains(err.Error(), fmt.Sprintf("more than %d", weights.MaxSidecar)) {
			t.Errorf("too large: %v, %v", ok, err)
		}
		if _, ok, err := f.Sidecar("sub"); ok || err == nil || !strings.Contains(err.Error(), "regular file") {
			t.Errorf("folder: %v, %v", ok, err)
		}
	}
	// A GGUF file has everything inside: what lies beside it may belong to another model.
	for _, path := range []string{filepath.Join(dir, "gguf"), filepath.Join(dir, "gguf", "m.gguf")} {
		f, err := weights.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = f.Close() }()
		if _, ok, err := f.Sidecar("config.json"); ok || err != nil {
			t.Errorf("beside GGUF: %v, %v", ok, err)
		}
	}
	f, err := weights.FromBytes("x", []byte(safetensors(t, tensor("a", 1))))
	if err != nil {
		t.Fatal(err)
	}
	if _, ok, err := f.Sidecar("config.json"); ok || err != nil {
		t.Errorf("from memory: %v, %v", ok, err)
	}
}

// TestTwoReaders reads one file from several goroutines; the race detector judges.
func TestTwoReaders(t *testing.T) {
	f, err := weights.FromBytes("x", bytes.Clone(validGGUF()))
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error)
	for range 4 {
		go func() { done <- use(f) }()
	}
	for range 4 {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}

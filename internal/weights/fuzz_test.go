package weights_test

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
	"testing"

	"cotenant/internal/weights"
	"cotenant/internal/weights/weightstest"
)

var update = flag.Bool("update", false, "write the fuzz seeds under testdata/fuzz anew")

// maxSeed leaves large hostile files out of the committed seeds.
const maxSeed = 1 << 10

// TestSeeds checks that the committed seeds are the hostile files of this package's tables: `go test` runs the fuzz targets
// over them, and fuzzing begins there.
func TestSeeds(t *testing.T) {
	for target, cases := range map[string][]hostile{"FuzzGGUF": append(hostileGGUF(), hostile{"valid", validGGUF(), ""}), "FuzzSafetensors": hostileSafetensors()} {
		dir := filepath.Join("testdata", "fuzz", target)
		if *update {
			if err := os.RemoveAll(dir); err != nil {
				t.Fatal(err)
			}
			if err := os.MkdirAll(dir, 0o755); err != nil {
				t.Fatal(err)
			}
		}
		want := map[string]bool{}
		for _, c := range cases {
			if len(c.data) > maxSeed || strings.HasPrefix(c.name, "cut-at-") {
				continue
			}
			want[c.name] = true
			text := []byte(fmt.Sprintf("go test fuzz v1\n[]byte(%s)\n", strconv.QuoteToASCII(string(c.data))))
			path := filepath.Join(dir, c.name)
			if *update {
				if err := os.WriteFile(path, text, 0o644); err != nil {
					t.Fatal(err)
				}
			}
			if got, err := os.ReadFile(path); err != nil || !bytes.Equal(got, text) {
				t.Errorf("%s isn't the table's case (%v): run go test -update", path, err)
			}
		}
		files, err := filepath.Glob(filepath.Join(dir, "*"))
		if err != nil || len(files) == 0 || len(want) < 20 {
			t.Fatalf("%s holds %d seeds (%v)", dir, len(files), err)
		}
		for _, f := range files {
			// What the fuzzer finds and a person commits has a hash for a name.
			if name := filepath.Base(f); !want[name] && len(name) != 16 {
				t.Errorf("%s is no case of the table", f)
			}
		}
	}
}

func FuzzGGUF(f *testing.F) {
	f.Add([]byte(validGGUF()))
	f.Fuzz(func(t *testing.T, data []byte) {
		m, err := weights.FromBytes("x", data)
		if err != nil {
			return
		}
		if err := use(m); err != nil {
			t.Fatal(err)
		}
		if m.Format() != weights.GGUF {
			return
		}
		again, err := weightstest.GGUF(nil, m.Tensors())
		same(t, m, again, err)
	})
}

func FuzzSafetensors(f *testing.F) {
	f.Add([]byte(st(validHeader, 22)))
	f.Fuzz(func(t *testing.T, data []byte) {
		m, err := weights.FromBytes("x", data)
		if err != nil {
			return
		}
		if err := use(m); err != nil {
			t.Fatal(err)
		}
		if m.Format() != weights.Safetensors {
			return
		}
		again, err := weightstest.Safetensors(nil, m.Tensors())
		same(t, m, again, err)
	})
}

// same fails unless data, written from m's tensors, is read as the same tensors.
func same(t *testing.T, m *weights.File, data []byte, err error) {
	t.Helper()
	if err != nil {
		t.Fatalf("write what was read: %v", err)
	}
	back, err := weights.FromBytes("y", data)
	if err != nil {
		t.Fatalf("read what was written: %v", err)
	}
	a, b := m.Tensors(), back.Tensors()
	if len(a) != len(b) {
		t.Fatalf("%d tensors became %d", len(a), len(b))
	}
	for i := range a {
		if a[i].Name != b[i].Name || a[i].Type != b[i].Type || !reflect.DeepEqual(a[i].Shape, b[i].Shape) || !bytes.Equal(a[i].Data, b[i].Data) {
			t.Fatalf("tensor %d: %q became %q", i, a[i].Name, b[i].Name)
		}
	}
}

package weights_test

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"strings"
	"testing"

	"cotenant/internal/weights"
	"cotenant/internal/weights/weightstest"
)

// maxRefusal bounds what refusing a small file may allocate, in bytes.
const maxRefusal = 256 << 10

// TestHostileFiles refuses each file with its reason, and without an allocation that the file's numbers decide.
func TestHostileFiles(t *testing.T) {
	for kind, cases := range map[string][]hostile{"gguf": hostileGGUF(), "safetensors": hostileSafetensors(), "other": hostileOther()} {
		for _, c := range cases {
			t.Run(kind+"/"+c.name, func(t *testing.T) {
				var before, after runtime.MemStats
				runtime.ReadMemStats(&before)
				f, err := weights.FromBytes("x", c.data)
				runtime.ReadMemStats(&after)
				if used := after.TotalAlloc - before.TotalAlloc; used > maxRefusal {
					t.Errorf("allocated %d bytes for a file of %d", used, len(c.data))
				}
				switch {
				case c.want == "" && err != nil:
					t.Errorf("refused: %v", err)
				case c.want == "":
					if err := use(f); err != nil {
						t.Error(err)
					}
				case err == nil:
					t.Errorf("was read; want an error with %q", c.want)
				case !strings.Contains(err.Error(), c.want):
					t.Errorf("error %q, want %q in it", err, c.want)
				}
			})
		}
	}
}

// use touches everything that a file gives and returns what doesn't hold.
func use(f *weights.File) error {
	for _, x := range f.Tensors() {
		n := 1
		for _, d := range x.Shape {
			n *= d
		}
		if n%x.Type.BlockSize() != 0 || len(x.Data) != x.Type.RowBytes(n) || cap(x.Data) != len(x.Data) {
			return fmt.Errorf("tensor %q: %d bytes (capacity %d) for %v of %s", x.Name, len(x.Data), cap(x.Data), x.Shape, x.Type)
		}
		if n <= 1<<16 {
			weights.Dequantize(make([]float32, n), x.Type, x.Data)
		}
		if y, ok := f.Tensor(x.Name); !ok || !reflect.DeepEqual(x, y) {
			return fmt.Errorf("tensor %q isn't found by its name", x.Name)
		}
	}
	for _, k := range f.Keys() {
		found := 0
		note := func(ok bool, err error) {
			if ok && err == nil {
				found++
			}
		}
		_, ok, err := f.String(k)
		note(ok, err)
		_, ok, err = f.Bool(k)
		note(ok, err)
		_, ok, err = f.Int(k)
		note(ok, err)
		_, ok, err = f.Float32(k)
		note(ok, err)
		_, ok, err = f.Ints(k)
		note(ok, err)
		_, ok, err = f.Float32s(k)
		note(ok, err)
		l, ok, err := f.Strings(k)
		note(ok, err)
		for i, s := range l.All() {
			if s != l.At(i) {
				return fmt.Errorf("key %q: string %d differs", k, i)
			}
		}
		_, _, _ = f.Uint32(k)
		_, _, _ = f.Int32s(k)
		if found > 1 {
			return fmt.Errorf("key %q has %d types", k, found)
		}
	}
	return nil
}

// TestMutatedFiles changes every byte of a good file and reads the result: it may be refused, it may be another good file.
func TestMutatedFiles(t *testing.T) {
	for name, good := range map[string][]byte{"gguf": validGGUF(), "safetensors": st(validHeader, 22)} {
		read := 0
		for i := range good {
			for _, b := range []byte{0, 1, good[i] + 1, good[i] - 1, good[i] ^ 0x80, 0xff} {
				data := bytes.Clone(good)
				data[i] = b
				f, err := weights.FromBytes("x", data)
				if err != nil {
					continue
				}
				read++
				if err := use(f); err != nil {
					t.Errorf("%s with byte %d = %#x: %v", name, i, b, err)
				}
			}
		}
		if read == 0 || read == 6*len(good) {
			t.Errorf("%s: %d of %d mutations were read", name, read, 6*len(good))
		}
	}
}

func TestGGUFValues(t *testing.T) {
	pairs := []weightstest.KV{
		{Key: "u8", Value: uint8(200)}, {Key: "i8", Value: int8(-5)}, {Key: "u16", Value: uint16(60000)}, {Key: "i16", Value: int16(-300)},
		{Key: "u32", Value: uint32(4_000_000_000)}, {Key: "i32", Value: int32(-70000)}, {Key: "u64", Value: uint64(1 << 40)},
		{Key: "i64", Value: int64(-1 << 40)}, {Key: "u64max", Value: uint64(1<<64 - 1)}, {Key: "f32", Value: float32(1e-5)},
		{Key: "f64", Value: 2.5}, {Key: "yes", Value: true}, {Key: "no", Value: false}, {Key: "s", Value: "text"}, {Key: "empty", Value: ""},
		{Key: "ss", Value: []string{"a", "", "Ġb\x00\xff"}}, {Key: "none", Value: []string{}}, {Key: "i32s", Value: []int32{1, -2}},
		{Key: "u32s", Value: []uint32{1, 2_000_000_000}}, {Key: "f32s", Value: []float32{0.5, -1}}, {Key: "u8s", Value: []uint8{1, 2}},
		{Key: "bools", Value: []bool{true, false}}, {Key: "u64s", Value: []uint64{1<<64 - 1}},
	}
	data, err := weightstest.GGUF(pairs, nil)
	if err != nil {
		t.Fatal(err)
	}
	f, err := weights.FromBytes("x", data)
	if err != nil {
		t.Fatal(err)
	}
	if len(f.Keys()) != len(pairs) || f.Keys()[0] != "u8" {
		t.Errorf("keys %v", f.Keys())
	}
	for key, want := range map[string]int64{"u8": 200, "i8": -5, "u16": 60000, "i16": -300, "u32": 4_000_000_000, "i32": -70000, "u64": 1 << 40, "i64": -1 << 40} {
		got, ok, err := f.Int(key)
		if fits := int64(int(want)) == want; !ok || fits != (err == nil) || fits && int64(got) != want {
			t.Errorf("Int(%s) = %d, %v, %v", key, got, ok, err)
		}
	}
	check := func(what string, got any, ok bool, err error, want any) {
		t.Helper()
		if !ok || err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%s = %v, %v, %v; want %v", what, got, ok, err, want)
		}
	}
	u, ok, err := f.Uint32("u32")
	check("u32", u, ok, err, uint32(4_000_000_000))
	x, ok, err := f.Float32("f32")
	check("f32", x, ok, err, float32(1e-5))
	b, ok, err := f.Bool("yes")
	check("yes", b, ok, err, true)
	b, ok, err = f.Bool("no")
	check("no", b, ok, err, false)
	s, ok, err := f.String("s")
	check("s", s, ok, err, "text")
	s, ok, err = f.String("empty")
	check("empty", s, ok, err, "")
	i32s, ok, err := f.Int32s("i32s")
	check("i32s", i32s, ok, err, []int32{1, -2})
	f32s, ok, err := f.Float32s("f32s")
	check("f32s", f32s, ok, err, []float32{0.5, -1})
	ints, ok, err := f.Ints("u32s")
	check("u32s", ints, ok, err, []int{1, 2_000_000_000})
	list, ok, err := f.Strings("ss")
	check("ss", []string{list.At(0), list.At(1), string(list.Bytes(2))}, ok, err, []string{"a", "", "Ġb\x00\xff"})
	list, ok, err = f.Strings("none")
	check("none", list.Len(), ok, err, 0)
	if err := use(f); err != nil {
		t.Error(err)
	}
}

// TestGettersTellAbsentFromMistaken: a wrong type is an error that names both types, an absent key is not.
func TestGettersTellAbsentFromMistaken(t *testing.T) {
	data, err := weightstest.GGUF([]weightstest.KV{{Key: "tokenizer.ggml.scores", Value: []uint8{1, 2, 3}}, {Key: "n", Value: uint32(1)},
		{Key: "big", Value: uint64(1<<64 - 1)}, {Key: "bigs", Value: []uint64{1<<64 - 1}}, {Key: "s", Value: "x"}, {Key: "ss", Value: []string{"x"}}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	f, err := weights.FromBytes("x", data)
	if err != nil {
		t.Fatal(err)
	}
	getters := map[string]func(key string) (bool, error){
		"Float32s": func(k string) (bool, error) { _, ok, err := f.Float32s(k); return ok, err },
		"Int32s":   func(k string) (bool, error) { _, ok, err := f.Int32s(k); return ok, err },
		"Ints":     func(k string) (bool, error) { _, ok, err := f.Ints(k); return ok, err },
		"Strings":  func(k string) (bool, error) { _, ok, err := f.Strings(k); return ok, err },
		"String":   func(k string) (bool, error) { _, ok, err := f.String(k); return ok, err },
		"Bool":     func(k string) (bool, error) { _, ok, err := f.Bool(k); return ok, err },
		"Int":      func(k string) (bool, error) { _, ok, err := f.Int(k); return ok, err },
		"Uint32":   func(k string) (bool, error) { _, ok, err := f.Uint32(k); return ok, err },
		"Float32":  func(k string) (bool, error) { _, ok, err := f.Float32(k); return ok, err },
	}
	for name, get := range getters {
		if ok, err := get("absent"); ok || err != nil {
			t.Errorf("%s of an absent key: %v, %v", name, ok, err)
		}
	}
	for _, c := range []struct{ getter, key, want string }{
		{"Float32s", "tokenizer.ggml.scores", "is ARRAY of UINT8, want ARRAY of FLOAT32"},
		{"Int32s", "tokenizer.ggml.scores", "want ARRAY of INT32"}, {"Strings", "tokenizer.ggml.scores", "want ARRAY of STRING"},
		{"Ints", "ss", "is ARRAY of STRING, want ARRAY of integers"}, {"Ints", "n", "is UINT32, want ARRAY"}, {"Ints", "bigs", "element 0"},
		{"String", "n", "is UINT32, want STRING"}, {"Bool", "n", "want BOOL"}, {"Int", "s", "is STRING, want an integer"},
		{"Int", "ss", "is ARRAY, want an integer"}, {"Int", "big", "18446744073709551615 doesn't fit"}, {"Uint32", "big", "is UINT64, want UINT32"},
		{"Float32", "n", "is UINT32, want FLOAT32"}, {"Strings", "s", "is STRING, want ARRAY of STRING"},
	} {
		if ok, err := getters[c.getter](c.key); !ok || err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s(%s): %v, %v; want %q", c.getter, c.key, ok, err, c.want)
		}
	}
}

// TestRoundTrip writes every format and reads it back, GGUF and safetensors.
func TestRoundTrip(t *testing.T) {
	values := make([]float32, 512)
	for i := range values {
		values[i] = float32(i%37) - 18
	}
	var tensors []weights.Tensor
	for _, dt := range allTypes {
		tensors = append(tensors, weightstest.Float32("t."+dt.String(), dt, values, 2, 256))
	}
	tensors = append(tensors, weightstest.Float32("odd", weights.F32, values[:3], 3), weightstest.Float32("last", weights.F32, values[:6], 1, 3, 2))
	for _, align := range []uint32{32, 8, 4096} {
		data, err := weightstest.GGUF([]weightstest.KV{{Key: "general.alignment", Value: align}}, tensors)
		if err != nil {
			t.Fatal(err)
		}
		compare(t, data, weights.GGUF, tensors)
	}
	plain := append(tensors[:3:3], tensors[len(tensors)-2:]...)
	data, err := weightstest.Safetensors(map[string]string{"format": "pt", "é\n": "\"x\""}, plain)
	if err != nil {
		t.Fatal(err)
	}
	compare(t, data, weights.Safetensors, plain)
	f, err := weights.FromBytes("x", data)
	if err != nil {
		t.Fatal(err)
	}
	if s, ok, err := f.String("é\n"); s != `"x"` || !ok || err != nil {
		t.Errorf("metadata: %q, %v, %v", s, ok, err)
	}
}

func compare(t *testing.T, data []byte, format weights.Format, want []weights.Tensor) {
	t.Helper()
	f, err := weights.FromBytes("x", data)
	if err != nil {
		t.Fatal(err)
	}
	if f.Format() != format || f.Path() != "x" {
		t.Errorf("format %s, path %s", f.Format(), f.Path())
	}
	if err := use(f); err != nil {
		t.Error(err)
	}
	got := f.Tensors()
	if len(got) != len(want) {
		t.Fatalf("%d tensors, want %d", len(got), len(want))
	}
	for i := range got {
		if !reflect.DeepEqual(got[i], want[i]) {
			t.Errorf("tensor %d is %s %s %v, want %s %s %v", i, got[i].Name, got[i].Type, got[i].Shape, want[i].Name, want[i].Type, want[i].Shape)
		}
	}
}

func TestExpect(t *testing.T) {
	f, err := weights.FromBytes("m.gguf", validGGUF())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.Expect("token_embd.weight", 3, 4); err != nil {
		t.Error(err)
	}
	for _, shape := range [][]int{{4, 3}, {12}, {3, 4, 1}, nil} {
		if _, err := f.Expect("token_embd.weight", shape...); err == nil || !strings.Contains(err.Error(), "has shape [3 4], want") {
			t.Errorf("shape %v: %v", shape, err)
		}
	}
	if _, err := f.Expect("output.weight", 3, 4); err == nil || !strings.Contains(err.Error(), `has no tensor "output.weight"`) {
		t.Errorf("absent: %v", err)
	}
}

// TestSparseFiles: sizes that a file really has, at no cost to its author, are no reason to allocate either.
func TestSparseFiles(t *testing.T) {
	const size = 200 << 20
	dir := t.TempDir()
	for _, c := range []struct {
		name string
		head raw
		want string
	}{
		{"string.gguf", pair("k").u32(tString).u64(150 << 20), "a string of 157286400 bytes"},
		{"array.gguf", pair("k").u32(tArray).u32(tUint8).u64(150 << 20), "an array claims 157286400 elements"},
		{"pairs.gguf", head(0, 10_000_000), "claims 10000000 metadata pairs"},
		{"empty-pairs.gguf", head(0, 60_000), `key "" is there twice`},
		{"tensors.gguf", head(1_000_000, 0), "claims 1000000 tensors"},
		{"strings.gguf", pair("k").u32(tArray).u32(tString).u64(5 << 20), "an array claims"},
		{"header.safetensors", append(raw{}.u64(100_000_001), '{'), "header of 100000001 bytes"},
		{"zeros.safetensors", append(raw{}.u64(99_000_000), '{'), `wants '"'`},
		{"name.safetensors", append(append(raw{}.u64(99_000_000), '{', '"'), bytes.Repeat([]byte("n"), 1<<20)...), "control character 0x0"},
	} {
		path := filepath.Join(dir, c.name)
		if err := os.WriteFile(path, c.head, 0o644); err != nil {
			t.Fatal(err)
		}
		if err := os.Truncate(path, size); err != nil {
			t.Fatal(err)
		}
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, err := weights.Open(path)
		runtime.ReadMemStats(&after)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: error %v, want %q in it", c.name, err, c.want)
		}
		if used := after.TotalAlloc - before.TotalAlloc; used > maxRefusal && runtime.GOOS != "windows" {
			t.Errorf("%s: allocated %d bytes", c.name, used)
		}
	}
}

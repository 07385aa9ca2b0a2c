//go:build linux && (amd64 || arm64) && !nocuda

package dl_test

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"unsafe"

	"cotenant/internal/dl"
	"cotenant/internal/testenv"
)

const source = `
int answer = 42;
int add(int a, int b) { return a + b; }
int fill(unsigned char *p, unsigned long n) { for (unsigned long i = 0; i < n; i++) p[i] = i; return -5; }
long sum(long a, long b, long c, long d, long e, long f, long g, long h, long i, long j, long k) { return a+b+c+d+e+f+g+h+i+j+k; }
`

func build(t *testing.T, name, code string, flags ...string) string {
	t.Helper()
	gcc := testenv.Need(t, "gcc", "apt install gcc libc6-dev")
	dir := t.TempDir()
	c, so := filepath.Join(dir, "x.c"), filepath.Join(dir, name)
	if err := os.WriteFile(c, []byte(code), 0o644); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command(gcc, append([]string{"-shared", "-fPIC", "-o", so, c}, flags...)...).CombinedOutput(); err != nil {
		t.Fatalf("gcc: %v\n%s", err, out)
	}
	return so
}

func TestCall(t *testing.T) {
	so := build(t, "libx.so.1", source)
	l, err := dl.Open(so)
	if err != nil {
		t.Fatal(err)
	}
	if got := int32(l.Symbol("add").Call(40, ^uintptr(0))); got != 39 {
		t.Errorf("add: %d", got)
	}
	var buf [64]byte
	if got := int32(l.Symbol("fill").Call(uintptr(unsafe.Pointer(&buf)), uintptr(len(buf)))); got != -5 || buf[63] != 63 {
		t.Errorf("fill: %d, %v", got, buf)
	}
	// cuLaunchKernel takes eleven.
	if got := l.Symbol("sum").Call(1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11); got != 66 {
		t.Errorf("sum: %d", got)
	}
	if l.Has("missing") || l.Symbol("missing").Present() || l.Has("add\x00x") || l.Has("") {
		t.Error("an absent symbol is present")
	}
	found := l.Resolve([]string{"add", "missing", "fill"})
	if len(found) != 2 || !found["add"].Present() || found["missing"].Present() {
		t.Errorf("resolved %v", found)
	}
	runtime.GC()
	if got := int32(found["add"].Call(1, 2)); got != 3 {
		t.Errorf("after a collection: %d", got)
	}
}

// The path is that of the file, whatever links led to it.
func TestPath(t *testing.T) {
	so := build(t, "libx.so.1.2.3", source)
	link := filepath.Join(t.TempDir(), "libx.so.1")
	if err := os.Symlink(so, link); err != nil {
		t.Fatal(err)
	}
	l, err := dl.Open(link)
	if err != nil {
		t.Fatal(err)
	}
	real, err := filepath.EvalSymlinks(so)
	if err != nil {
		t.Fatal(err)
	}
	if l.Path != real || l.Name != link {
		t.Errorf("path %s, name %s, want %s", l.Path, l.Name, real)
	}
}

func TestOpenErrors(t *testing.T) {
	garbage := filepath.Join(t.TempDir(), "garbage.so")
	if err := os.WriteFile(garbage, []byte("\x7fELF and nothing else, which is too short to be one"), 0o755); err != nil {
		t.Fatal(err)
	}
	unresolved := build(t, "libneeds.so", "extern int nowhere_defined(void); int f(void) { return nowhere_defined(); }")
	names := []string{"", "a\x00b", "libcertainly-absent.so.1", "/nonexistent/libx.so", garbage, unresolved, t.TempDir()}
	_, err := dl.Open(names...)
	var failed *dl.OpenError
	if !errors.As(err, &failed) || len(failed.Attempts) != len(names) {
		t.Fatalf("error %v", err)
	}
	for i, a := range failed.Attempts {
		if a.Name != names[i] || a.Error == "" {
			t.Errorf("attempt %d: %+v", i, a)
		}
	}
	if !strings.Contains(failed.Attempts[5].Error, "nowhere_defined") {
		t.Errorf("a missing dependency is found when opening: %q", failed.Attempts[5].Error)
	}
	if _, err := dl.Open(); err == nil {
		t.Error("no names: no error")
	}
	so := build(t, "libx.so.1", source)
	if l, err := dl.Open("libcertainly-absent.so.1", so); err != nil || l.Name != so {
		t.Errorf("the second name: %v", err)
	}
}

func TestGoString(t *testing.T) {
	for in, want := range map[string]string{"": "", "\x00": "", "abc": "abc", "abc\x00def": "abc"} {
		if got := dl.GoString([]byte(in)); got != want {
			t.Errorf("%q: %q", in, got)
		}
	}
}

func BenchmarkCall(b *testing.B) {
	l, err := dl.Open("libc.so.6")
	if err != nil {
		b.Skip(err)
	}
	f := l.Symbol("abs")
	b.ReportAllocs()
	for b.Loop() {
		f.Call(7)
	}
}

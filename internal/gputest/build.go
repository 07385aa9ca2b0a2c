package gputest

import (
	"embed"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"

	"cotenant/internal/testenv"
)

//go:embed c
var sources embed.FS

// built caches what gcc made in this process, by output name.
var built struct {
	sync.Mutex
	folder string
	files  map[string]string
}

// build compiles one source of the folder c once a process and returns the output's path.
func build(t testing.TB, source, output string, flags ...string) string {
	t.Helper()
	gcc := testenv.Need(t, "gcc", "apt install gcc libc6-dev: the fake driver libraries are C")
	built.Lock()
	defer built.Unlock()
	if path, ok := built.files[output]; ok {
		return path
	}
	if built.folder == "" {
		dir, err := unpack()
		if err != nil {
			t.Fatal(err)
		}
		built.folder, built.files = dir, make(map[string]string)
	}
	path := filepath.Join(built.folder, output)
	args := append([]string{"-O0", "-Wall", "-Wextra", "-Wno-unused-function", "-o", path, filepath.Join(built.folder, source)}, flags...)
	if out, err := exec.Command(gcc, append(args, "-ldl", "-lm")...).CombinedOutput(); err != nil {
		t.Fatalf("compiling %s: %v\n%s", source, err, out)
	}
	built.files[output] = path
	return path
}

func unpack() (string, error) {
	dir, err := os.MkdirTemp("", "gputest-c-")
	if err != nil {
		return "", err
	}
	entries, err := sources.ReadDir("c")
	if err != nil {
		return "", err
	}
	for _, e := range entries {
		b, err := sources.ReadFile("c/" + e.Name())
		if err != nil {
			return "", err
		}
		if err := os.WriteFile(filepath.Join(dir, e.Name()), b, 0o644); err != nil {
			return "", err
		}
	}
	return dir, nil
}

// Cleanup removes what gcc made. Call it at the end of TestMain of a package that uses gputest.
func Cleanup() {
	built.Lock()
	defer built.Unlock()
	if built.folder != "" {
		os.RemoveAll(built.folder)
	}
	built.folder, built.files = "", nil
}

// library compiles a fake library for a version. Versions that export the same symbols share one file.
func library(t testing.TB, source, soname string, version int) string {
	t.Helper()
	macro := map[string]string{"cuda.c": "FAKE_CUDA", "nvml.c": "FAKE_NVML", "cudart.c": "FAKE_CUDART"}[source]
	steps := map[string][]int{
		"cuda.c":   {13010, 13000, 12050, 12040, 11040, 0},
		"nvml.c":   {13000, 12020, 11060, 11000, 0},
		"cudart.c": {13010, 0},
	}[source]
	level := 0
	for _, s := range steps {
		if version >= s {
			level = s
			break
		}
	}
	return build(t, source, fmt.Sprintf("%s-%d", soname, level),
		"-shared", "-fPIC", "-fvisibility=hidden", "-Wl,-soname,"+soname, fmt.Sprintf("-D%s=%d", macro, level))
}

// Layout returns sizes and offsets of NVML's structs as the C compiler has them: "pciInfo" and "pciInfo.domain".
func Layout(t testing.TB) map[string]int {
	t.Helper()
	out, err := exec.Command(build(t, "layout.c", "layout")).Output()
	if err != nil {
		t.Fatal(err)
	}
	layout := make(map[string]int)
	var name string
	var n int
	for rest := string(out); ; {
		k, err := fmt.Sscanf(rest, "%s %d\n", &name, &n)
		if k < 2 || err != nil {
			return layout
		}
		layout[name] = n
		i := 0
		for i < len(rest) && rest[i] != '\n' {
			i++
		}
		rest = rest[i+1:]
	}
}

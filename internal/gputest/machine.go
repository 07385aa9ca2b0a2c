package gputest

import (
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sort"
	"strconv"
	"strings"
	"testing"

	"cotenant/internal/testenv"
)

// Machine is a host that was started.
type Machine struct {
	Host Host
	// Root stands for "/" of the host. It is short, so that sockets fit below it.
	Root string
	// Env is the environment that a process on the host has: PATH and LD_LIBRARY_PATH lead into Root only.
	Env []string

	log string
}

// Start makes a machine of the host. It goes with the test, and every process that hangs on it.
func Start(t testing.TB, h Host) *Machine {
	t.Helper()
	root, err := os.MkdirTemp("", "gt")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(root) })
	m := &Machine{Host: h, Root: root, log: filepath.Join(root, ".fake", "log")}
	m.write(t, "/.fake/alive", "", 0o644)
	m.mkdir(t, "/.fake/usage")
	for _, dir := range append([]string{"/tmp", "/dev", "/proc", "/sys", "/usr/bin"}, h.Folders...) {
		m.mkdir(t, dir)
	}
	for path, content := range h.Files {
		m.write(t, path, content, 0o644)
	}
	for path, target := range h.Links {
		m.mkdir(t, filepath.Dir(path))
		if err := os.Symlink(target, m.Path(path)); err != nil {
			t.Fatal(err)
		}
	}
	libraries := m.libraries(t)
	programs := m.programs(t)
	m.docker(t)
	// Under the race detector a child would sleep for a second before it exits.
	m.Env = []string{"PATH=" + strings.Join(programs, ":"), "LD_LIBRARY_PATH=" + strings.Join(libraries, ":"), "LC_ALL=C", "GORACE=atexit_sleep_ms=0"}
	keys := make([]string, 0, len(h.Env))
	for k := range h.Env {
		keys = append(keys, k)
	}
	sort.Strings(keys)
	for _, k := range keys {
		m.Env = append(m.Env, k+"="+strings.ReplaceAll(h.Env[k], "$ROOT", root))
	}
	return m
}

// Path returns where a path of the host is.
func (m *Machine) Path(path string) string { return filepath.Join(m.Root, path) }

// Strip removes the root from a text, so that it reads as on the host.
func (m *Machine) Strip(text string) string { return strings.ReplaceAll(text, m.Root, "") }

// ImageFiles are the fake driver's files where a container's loader finds them, by path without the leading slash. No data file names a
// place outside /tmp.
func (m *Machine) ImageFiles(t testing.TB) map[string][]byte {
	t.Helper()
	files := make(map[string][]byte)
	libraries, err := filepath.Glob(m.Path("/usr/lib/*-linux-gnu/lib*"))
	if err != nil || len(libraries) != 4 {
		t.Fatalf("the fake driver's files: %v %v", libraries, err)
	}
	for _, name := range libraries {
		b, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		if strings.HasSuffix(name, ".data") {
			b = []byte(strings.ReplaceAll(m.Strip(string(b)), "/.fake", "/tmp"))
		}
		files[strings.TrimPrefix(m.Strip(name), "/")] = b
	}
	return files
}

// Log returns the calls and inputs so far, one a line, in order: a function's name; "nvidia-smi …"; "mps <folder>: …". Those that
// would have changed something start with "MUTATING".
func (m *Machine) Log() []string {
	b, err := os.ReadFile(m.log)
	if err != nil {
		return nil
	}
	return strings.Split(strings.TrimSuffix(string(b), "\n"), "\n")
}

// Mutations returns the lines of the log that would have changed something.
func (m *Machine) Mutations() []string {
	var found []string
	for _, line := range m.Log() {
		if strings.HasPrefix(line, "MUTATING") {
			found = append(found, line)
		}
	}
	return found
}

func (m *Machine) mkdir(t testing.TB, path string) {
	t.Helper()
	if err := os.MkdirAll(m.Path(path), 0o755); err != nil {
		t.Fatal(err)
	}
}

func (m *Machine) write(t testing.TB, path, content string, mode os.FileMode) {
	t.Helper()
	if mode&0o111 != 0 {
		testenv.Program(t, m.Path(path), []byte(content))
		return
	}
	m.mkdir(t, filepath.Dir(path))
	if err := os.WriteFile(m.Path(path), []byte(content), mode); err != nil {
		t.Fatal(err)
	}
}

// libraries puts each library with its data in its folder and returns the folders that the loader searches.
func (m *Machine) libraries(t testing.TB) []string {
	t.Helper()
	var path []string
	place := func(folder, def, soname, from string, hidden bool, d *data) {
		if folder == "" {
			folder = def
		}
		b, err := os.ReadFile(from)
		if err != nil {
			t.Fatal(err)
		}
		file := filepath.Join(folder, soname)
		m.write(t, file, string(b), 0o755)
		d.set(m.log, "log")
		d.set(m.Path("/.fake/alive"), "alive")
		d.set(m.Path("/.fake/usage"), "usage")
		d.set(m.Path("/tmp/nvidia-mps"), "mps.default")
		m.write(t, file+".data", d.text(), 0o644)
		dir := m.Path(folder)
		for _, p := range path {
			hidden = hidden || p == dir
		}
		if !hidden {
			path = append(path, dir)
		}
	}
	lib := "/usr/lib/x86_64-linux-gnu"
	if m.Host.GOARCH == "arm64" {
		lib = "/usr/lib/aarch64-linux-gnu"
	}
	for _, c := range m.Host.CUDA {
		exports := c.Exports
		if exports == 0 {
			exports = c.Version
		}
		file := c.File
		if file == "" {
			file = "libcuda.so.1"
		}
		place(c.Folder, lib, file, library(t, "cuda.c", "libcuda.so.1", exports), c.Hidden, m.Host.cudaData(c))
	}
	for _, n := range m.Host.NVML {
		exports := n.Exports
		if exports == 0 {
			exports = n.CUDA
		}
		place(n.Folder, lib, "libnvidia-ml.so.1", library(t, "nvml.c", "libnvidia-ml.so.1", exports), n.Hidden, m.Host.nvmlData(n))
	}
	for _, r := range m.Host.Runtime {
		soname := "libcudart.so." + strconv.Itoa(r.Version/1000)
		if r.Version < 12000 {
			soname = "libcudart.so.11.0"
		}
		d := &data{}
		d.set(r.Version, "version")
		d.faults(m.Host.Faults)
		place(r.Folder, "/usr/local/cuda/lib64", soname, library(t, "cudart.c", soname, r.Version), r.Hidden, d)
	}
	return path
}

// docker serves the Docker engine's API from data.
func (m *Machine) docker(t testing.TB) {
	t.Helper()
	if m.Host.Docker == nil {
		return
	}
	m.mkdir(t, "/var/run")
	l, err := net.Listen("unix", m.Path("/var/run/docker.sock"))
	if err != nil {
		t.Fatal(err)
	}
	s := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet && r.Method != http.MethodHead {
			m.note("MUTATING docker " + r.Method + " " + r.URL.Path)
			http.Error(w, "read-only", http.StatusMethodNotAllowed)
			return
		}
		m.note("docker " + r.URL.Path)
		path := r.URL.Path
		if strings.HasPrefix(path, "/v1.") { // a versioned path
			if i := strings.IndexByte(path[1:], '/'); i >= 0 {
				path = path[1+i:]
			}
		}
		body, ok := m.Host.Docker[path]
		if !ok {
			http.Error(w, `{"message":"page not found"}`, http.StatusNotFound)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprint(w, body)
	})}
	go func() { _ = s.Serve(l) }()
	t.Cleanup(func() { s.Close() })
}

func (m *Machine) note(line string) {
	f, err := os.OpenFile(m.log, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return
	}
	defer f.Close()
	fmt.Fprintln(f, line)
}

// chmodNone makes a file unreadable for everybody but root.
func chmodNone(path string) error { return os.Chmod(path, 0) }

//go:build linux

// Package enginetest starts Docker engines and a registry of a test's own: a dockerd with its files in a temporary folder, without
// networks of its own, and images made from Debian's packages, pushed to a registry on loopback so that their digests are real. It
// needs root. For tests only.
package enginetest

import (
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"cotenant/internal/testenv"
)

// Hook is what NVIDIA's hook does on an engine's machine. The real one brings the driver into a container before it starts.
type Hook string

// The hooks.
const (
	NoHook     Hook = ""                                                                                             // not installed
	QuietHook  Hook = "exit 0"                                                                                       // does nothing: the driver must be in the image
	FailedHook Hook = `echo "nvidia-container-cli: initialization error: nvml error: driver not loaded" >&2; exit 1` // no driver
)

// Engine is a running engine.
type Engine struct {
	// Env is the environment of a client: DOCKER_HOST names the engine's socket.
	Env    []string
	Socket string

	root string
	stop func()
	once sync.Once
}

// Needs skips t unless an engine can be started here.
func Needs(t testing.TB) {
	t.Helper()
	const hint = "apt install docker.io; the tests start their own"
	testenv.Need(t, "dockerd", hint)
	testenv.Need(t, "containerd", hint)
	if os.Getuid() != 0 {
		testenv.Missing(t, "root", "dockerd needs it")
	}
}

// Start starts an engine. Stop it in any case: TestMain's end is a good place.
func Start(t testing.TB, hook Hook) *Engine {
	t.Helper()
	Needs(t)
	e, err := start(hook)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func start(hook Hook) (*Engine, error) {
	removeStale()
	root, err := folder("cotenant-e")
	if err != nil {
		return nil, err
	}
	// In memory: an engine syncs all that it writes. Without the right to mount it works as well, only slower.
	mounted := filepath.Join(root, "m")
	if err := os.Mkdir(mounted, 0o755); err != nil {
		return nil, err
	}
	_ = syscall.Mount("tmpfs", mounted, "tmpfs", 0, "size=4g")
	e := &Engine{root: root, Socket: filepath.Join(root, "s"), Env: []string{"DOCKER_HOST=unix://" + filepath.Join(root, "s")}, stop: func() {}}
	path := os.Getenv("PATH")
	if hook != NoHook {
		bin := filepath.Join(root, "bin")
		if err := errors.Join(os.Mkdir(bin, 0o755), os.WriteFile(filepath.Join(bin, "nvidia-container-runtime-hook"), []byte("#!/bin/sh\n"+string(hook)+"\n"), 0o755)); err != nil {
			e.Stop()
			return nil, err
		}
		path = bin + ":" + path
	}
	log, err := os.Create(filepath.Join(root, "log"))
	if err != nil {
		e.Stop()
		return nil, err
	}
	defer log.Close()
	cmd := exec.Command("dockerd", "--data-root", filepath.Join(mounted, "d"), "--exec-root", filepath.Join(mounted, "x"), "--pidfile", filepath.Join(root, "p"),
		"-H", "unix://"+e.Socket, "--iptables=false", "--ip6tables=false", "--bridge=none", "--userland-proxy=false", "--log-level", "info")
	cmd.Env = []string{"PATH=" + path, "HOME=" + root, "TMPDIR=" + root}
	cmd.Stdout, cmd.Stderr = log, log
	ended, err := background(cmd)
	if err != nil {
		e.Stop()
		return nil, err
	}
	e.stop = func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		select {
		case <-ended:
		case <-time.After(30 * time.Second):
			_ = cmd.Process.Kill()
			<-ended
		}
	}
	for deadline := time.Now().Add(2 * time.Minute); ; time.Sleep(50 * time.Millisecond) {
		if c, err := net.Dial("unix", e.Socket); err == nil {
			c.Close()
			return e, nil
		}
		select {
		case <-ended:
			deadline = time.Time{}
		default:
		}
		if time.Now().After(deadline) {
			text, _ := os.ReadFile(log.Name())
			e.Stop()
			return nil, errors.New("dockerd doesn't answer: " + string(text[max(0, len(text)-4000):]))
		}
	}
}

// background starts a command that is told to end when this process does, however that ends. The kernel binds this to the thread
// that started it, which therefore waits for it.
func background(cmd *exec.Cmd) (ended <-chan struct{}, err error) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM}
	started, done := make(chan error), make(chan struct{})
	go func() {
		runtime.LockOSThread()
		if err := cmd.Start(); err != nil {
			started <- err
			return
		}
		started <- nil
		_ = cmd.Wait()
		close(done)
	}()
	return done, <-started
}

// Stop ends the engine and removes all its files and mounts.
func (e *Engine) Stop() {
	e.once.Do(func() {
		e.stop()
		removeAll(e.root)
	})
}

// Log is what the engine printed.
func (e *Engine) Log() string {
	b, _ := os.ReadFile(filepath.Join(e.root, "log"))
	return string(b)
}

// folder makes a folder that says whose it is. Its path is short: sockets' are limited to 108 bytes.
func folder(prefix string) (string, error) {
	root, err := os.MkdirTemp("/tmp", prefix)
	if err != nil {
		return "", err
	}
	return root, os.WriteFile(filepath.Join(root, "owner"), []byte(strconv.Itoa(os.Getpid())), 0o644)
}

// removeStale removes what tests left that were killed. Their engines have ended with them.
func removeStale() {
	owners, _ := filepath.Glob("/tmp/cotenant-[er][0-9]*/owner")
	for _, name := range owners {
		pid, err := os.ReadFile(name)
		if err != nil {
			continue
		}
		if _, err := os.Stat("/proc/" + string(pid)); len(pid) > 0 && os.IsNotExist(err) {
			removeAll(filepath.Dir(name))
		}
	}
}

// removeAll removes a folder, after what is mounted below it.
func removeAll(root string) {
	b, _ := os.ReadFile("/proc/self/mounts")
	lines := strings.Split(string(b), "\n")
	for i := len(lines) - 1; i >= 0; i-- { // the innermost last
		if f := strings.Fields(lines[i]); len(f) > 1 && strings.HasPrefix(f[1]+"/", root+"/") {
			_ = syscall.Unmount(f[1], syscall.MNT_DETACH)
		}
	}
	_ = os.RemoveAll(root)
}

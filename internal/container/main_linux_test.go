package container

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"cotenant/internal/container/enginetest"
	"cotenant/internal/gputest"
)

// grown keeps what the mode "grow" allocates.
var grown [][]byte

// TestMain also plays the probe: in a container this test program is what is mounted and started.
func TestMain(m *testing.M) {
	ArmDeadline()
	if os.Getpid() == 1 && len(os.Args) > 2 && os.Args[1] == "play" {
		play(os.Args[2])
		return
	}
	if text := os.Getenv(crashVariable); text != "" {
		crash(text)
	}
	code := m.Run()
	stopAll(code != 0)
	gputest.Cleanup()
	os.Exit(code)
}

// inside is what the played probe sees.
type inside struct {
	Arguments     []string
	Env           []string
	UID, GID      int
	Status        map[string]string // of /proc/self/status
	Interfaces    []string
	RootWritable  string
	BinWritable   string
	TmpWritable   string
	TmpExecutable string
	TmpSize       uint64
	MemoryLimit   string
	Processes     int
	Folder        string
}

func play(mode string) {
	switch mode {
	case "report":
		report()
	case "exit":
		fmt.Println("bye")
		fmt.Fprintln(os.Stderr, "an error")
		os.Exit(7)
	case "flood", "flood-stderr":
		out := os.Stdout
		if mode == "flood-stderr" {
			out = os.Stderr
		}
		for line := []byte(strings.Repeat("x", 64<<10)); ; {
			if _, err := out.Write(line); err != nil {
				os.Exit(1)
			}
		}
	case "fill": // exactly as much as is read
		os.Stdout.WriteString(strings.Repeat("y", MaxStdout))
	case "hang":
		signal.Ignore(syscall.SIGTERM, syscall.SIGINT)
		fmt.Println("hanging")
		time.Sleep(time.Hour)
	case "grow":
		for {
			b := make([]byte, 1<<20)
			for i := range b {
				b[i] = 1
			}
			grown = append(grown, b)
		}
	case "fork":
		var children []*exec.Cmd
		for {
			c := exec.Command("/bin/sleep", "1000")
			if err := c.Start(); err != nil {
				fmt.Printf("%d processes\n", len(children))
				return
			}
			children = append(children, c)
		}
	case "orphan": // a child that outlives it
		c := exec.Command("/bin/sleep", "1000")
		fmt.Println(c.Start())
	}
}

func report() {
	word := func(err error) string {
		if err != nil {
			return err.Error()
		}
		return "yes"
	}
	r := inside{Arguments: os.Args, Env: os.Environ(), UID: os.Getuid(), GID: os.Getgid(), Status: make(map[string]string)}
	status, _ := os.ReadFile("/proc/self/status")
	for _, line := range strings.Split(string(status), "\n") {
		if key, value, ok := strings.Cut(line, ":"); ok {
			r.Status[key] = strings.TrimSpace(value)
		}
	}
	interfaces, _ := net.Interfaces()
	for _, i := range interfaces {
		r.Interfaces = append(r.Interfaces, i.Name)
	}
	r.RootWritable = word(os.WriteFile("/x", nil, 0o644))
	_, err := os.OpenFile(binaryTarget, os.O_WRONLY, 0)
	r.BinWritable = word(err)
	r.TmpWritable = word(os.WriteFile("/tmp/x", []byte("#!/bin/sh\n"), 0o755))
	r.TmpExecutable = word(exec.Command("/tmp/x").Run())
	var fs syscall.Statfs_t
	_ = syscall.Statfs("/tmp", &fs)
	r.TmpSize = fs.Blocks * uint64(fs.Bsize)
	for _, name := range []string{"/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory.max"} {
		if b, err := os.ReadFile(name); err == nil {
			r.MemoryLimit = strings.TrimSpace(string(b))
		}
	}
	entries, _ := os.ReadDir("/proc")
	for _, e := range entries {
		if e.Name()[0] >= '0' && e.Name()[0] <= '9' {
			r.Processes++
		}
	}
	r.Folder, _ = os.Getwd()
	_ = json.NewEncoder(os.Stdout).Encode(r)
}

// shared are the engines and the image of all tests of this package: starting and pulling cost seconds.
var shared struct {
	sync.Mutex
	engines  map[enginetest.Hook]*enginetest.Engine
	registry *enginetest.Registry
	image    Image
}

func stopAll(failed bool) {
	for _, e := range shared.engines {
		if text := e.Log(); failed && text != "" {
			fmt.Fprintf(os.Stderr, "the engine at %s printed:\n%s\n", e.Socket, text[max(0, len(text)-20000):])
		}
		e.Stop()
	}
	if shared.registry != nil {
		shared.registry.Stop()
	}
}

// engineWith returns the engine with a hook, and the image, which lies in a registry on loopback.
func engineWith(t *testing.T, hook enginetest.Hook) (*enginetest.Engine, Image) {
	t.Helper()
	shared.Lock()
	defer shared.Unlock()
	enginetest.Needs(t)
	if shared.registry == nil {
		shared.registry = enginetest.StartRegistry(t)
	}
	if shared.image.Digest == "" {
		shared.image = push(t, enginetest.Config{Env: []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin"}}, enginetest.Rootfs(t))
	}
	if shared.engines == nil {
		shared.engines = make(map[enginetest.Hook]*enginetest.Engine)
	}
	if shared.engines[hook] == nil {
		shared.engines[hook] = enginetest.Start(t, hook)
	}
	return shared.engines[hook], shared.image
}

// push makes a reviewed image of layers.
func push(t *testing.T, c enginetest.Config, layers ...string) Image {
	t.Helper()
	name, digest := shared.registry.Push(t, "probe", c, layers...)
	return Image{Name: name, Platform: platform(), Digest: digest, Why: "Debian's minimal system, made by debootstrap"}
}

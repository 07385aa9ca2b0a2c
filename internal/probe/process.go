package probe

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// parentPoll is how often a worker and a guard look whether their parent still runs.
const parentPoll = 50 * time.Millisecond

// endWithParent ends this process soon after its parent has, which may have been before it looked: a worker doesn't outlive its
// supervisor. The end of a process gives everything on the GPU back, and works also while a call into the driver hangs.
func endWithParent(parent int) {
	if os.Getppid() != parent {
		os.Exit(125)
	}
	go func() {
		waitForEnd(parent)
		os.Exit(125)
	}()
}

// waitForEnd returns when this process's parent has ended.
func waitForEnd(parent int) {
	for os.Getppid() == parent {
		time.Sleep(parentPoll)
	}
}

// startTicks returns when a process started, in clock ticks since boot, which with its pid names it for good; empty where /proc
// doesn't tell.
func startTicks(pid int) string {
	b, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
	if err != nil {
		return ""
	}
	// The name, in brackets, may hold anything: proc(5) counts from after the last one.
	f := strings.Fields(string(b[bytes.LastIndexByte(b, ')')+1:]))
	if len(f) < 20 {
		return ""
	}
	return f[19] // field 22; state is field 3
}

// ours are the processes of a run but for this one and except: their environment holds the run's id, which nobody else knows
// before the run's journal does.
func ours(runID string, except ...int) []int { return carrying(RunVariable+"="+runID, except...) }

// carrying are the processes that have this in their environment.
func carrying(variable string, except ...int) []int {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}
	mark := []byte(variable)
	var pids []int
next:
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid == os.Getpid() {
			continue
		}
		for _, x := range except {
			if pid == x {
				continue next
			}
		}
		environ, err := os.ReadFile(filepath.Join("/proc", e.Name(), "environ"))
		if err != nil {
			continue
		}
		for _, v := range bytes.Split(environ, []byte{0}) {
			if bytes.Equal(v, mark) {
				pids = append(pids, pid)
				continue next
			}
		}
	}
	return pids
}

// bareProcesses reports whether a process has a program and no environment. While one replaces its program, between the old environment
// and the new, it looks so.
func bareProcesses() bool {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return false
	}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid == os.Getpid() {
			continue
		}
		environ, err := os.ReadFile(filepath.Join("/proc", e.Name(), "environ"))
		if err != nil || len(environ) > 0 || !alive(pid) {
			continue
		}
		if _, err := os.Readlink(filepath.Join("/proc", e.Name(), "exe")); err == nil { // a thread of the kernel has none
			return true
		}
	}
	return false
}

// programOf returns the base name of a process's program; empty where /proc doesn't tell.
func programOf(pid int) string {
	line, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "cmdline"))
	if err != nil || len(line) == 0 {
		return ""
	}
	args := bytes.Split(bytes.TrimRight(line, "\x00"), []byte{0})
	name := filepath.Base(string(args[0]))
	if (name == "sh" || name == "bash" || name == "dash" || name == "exe") && len(args) > 1 {
		name = filepath.Base(string(args[1])) // a script; or this program, started by /proc/self/exe for a task
	}
	return name
}

func alive(pid int) bool {
	b, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
	if err != nil {
		return false
	}
	f := strings.Fields(string(b[bytes.LastIndexByte(b, ')')+1:]))
	return len(f) > 0 && f[0] != "Z" && f[0] != "X"
}

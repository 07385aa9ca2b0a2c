package scrape

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// Proc reads a mounted proc file system; see proc(5). The zero value reads /proc. A path of another root is for tests.
type Proc struct{ Root string }

func (p Proc) path(parts ...string) string {
	root := p.Root
	if root == "" {
		root = "/proc"
	}
	return filepath.Join(append([]string{root}, parts...)...)
}

// tick is what one clock tick of /proc lasts in µs: USER_HZ is 100 on every Linux that Go runs on.
const tick = 10_000

// Process is one process, or the sum over a tree of them.
type Process struct {
	PID       int
	RSSBytes  Opt // VmRSS; over a tree, shared pages count once a process
	HWMBytes  Opt // VmHWM; over a tree the sum of the processes' own peaks: an upper bound
	CPUUS     Opt // utime + stime since its start, µs in steps of 10,000
	FDs       Opt // open descriptors; absent where /proc/PID/fd may not be read
	StartUS   Opt // µs from boot to its start: tells a reused pid
	Processes int64
}

// Process reads one process. The error says that it doesn't exist or can't be seen.
func (p Proc) Process(pid int) (Process, error) {
	out := Process{PID: pid, Processes: 1}
	dir := strconv.Itoa(pid)
	stat, err := os.ReadFile(p.path(dir, "stat"))
	if err != nil {
		return Process{}, fmt.Errorf("reading process %d: %w", pid, err)
	}
	fields, err := statFields(stat)
	if err != nil {
		return Process{}, fmt.Errorf("reading process %d: %w", pid, err)
	}
	user, system := fields.number(14), fields.number(15)
	if user.OK && system.OK {
		out.CPUUS = Some((user.V + system.V) * tick)
	}
	if start := fields.number(22); start.OK {
		out.StartUS = Some(start.V * tick)
	}
	if status, err := os.ReadFile(p.path(dir, "status")); err == nil {
		out.RSSBytes, out.HWMBytes = kilobytes(status, "VmRSS:"), kilobytes(status, "VmHWM:")
	}
	if n, err := countDir(p.path(dir, "fd")); err == nil {
		out.FDs = Some(int64(n))
	}
	return out, nil
}

// Tree sums pid and its descendants; PID and StartUS are those of pid itself.
func (p Proc) Tree(pid int) (Process, error) {
	total, err := p.Process(pid)
	if err != nil {
		return Process{}, err
	}
	for _, child := range p.descendants(pid) {
		// A child that ended meanwhile is no error.
		if c, err := p.Process(child); err == nil {
			total.RSSBytes, total.HWMBytes = plus(total.RSSBytes, c.RSSBytes), plus(total.HWMBytes, c.HWMBytes)
			total.CPUUS, total.FDs = plus(total.CPUUS, c.CPUUS), plus(total.FDs, c.FDs)
			total.Processes++
		}
	}
	return total, nil
}

func plus(a, b Opt) Opt {
	if !a.OK || !b.OK {
		return Opt{V: a.V + b.V, OK: a.OK || b.OK}
	}
	return Some(a.V + b.V)
}

// descendants lists the processes below pid, by /proc/PID/task/TID/children where the kernel has it, else by parent ids.
func (p Proc) descendants(pid int) []int {
	var all []int
	seen := map[int]bool{pid: true}
	var parents map[int][]int
	for queue := []int{pid}; len(queue) > 0; queue = queue[1:] {
		children, ok := p.children(queue[0])
		if !ok {
			if parents == nil {
				parents = p.byParent()
			}
			children = parents[queue[0]]
		}
		for _, c := range children {
			if !seen[c] {
				seen[c] = true
				all, queue = append(all, c), append(queue, c)
			}
		}
	}
	return all
}

func (p Proc) children(pid int) ([]int, bool) {
	files, _ := filepath.Glob(p.path(strconv.Itoa(pid), "task", "*", "children"))
	if len(files) == 0 {
		return nil, false
	}
	var out []int
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			continue
		}
		for s := range strings.FieldsSeq(string(b)) {
			if n, err := strconv.Atoi(s); err == nil {
				out = append(out, n)
			}
		}
	}
	return out, true
}

func (p Proc) byParent() map[int][]int {
	out := map[int][]int{}
	for _, pid := range p.pids() {
		b, err := os.ReadFile(p.path(strconv.Itoa(pid), "stat"))
		if err != nil {
			continue
		}
		if fields, err := statFields(b); err == nil {
			if parent := fields.number(4); parent.OK {
				out[int(parent.V)] = append(out[int(parent.V)], pid)
			}
		}
	}
	return out
}

func (p Proc) pids() []int {
	dir, err := os.Open(p.path())
	if err != nil {
		return nil
	}
	defer dir.Close()
	names, _ := dir.Readdirnames(-1)
	var out []int
	for _, name := range names {
		if pid, err := strconv.Atoi(name); err == nil {
			out = append(out, pid)
		}
	}
	slices.Sort(out)
	return out
}

// stat is the fields of /proc/PID/stat from the third on.
type stat []string

// statFields splits a stat line behind the command, which may hold spaces and brackets.
func statFields(b []byte) (stat, error) {
	i := bytes.LastIndexByte(b, ')')
	if i < 0 {
		return nil, fmt.Errorf("stat line without a command")
	}
	fields := strings.Fields(string(b[i+1:]))
	if len(fields) < 20 {
		return nil, fmt.Errorf("stat line of %d fields", len(fields)+2)
	}
	return fields, nil
}

// number is the n-th field as proc(5) counts them.
func (s stat) number(n int) Opt {
	v, err := strconv.ParseInt(s[n-3], 10, 64)
	if err != nil || v < 0 || v > 1<<40 {
		return Opt{}
	}
	return Some(v)
}

// kilobytes reads a line like "VmRSS:      1234 kB" of status or meminfo, in bytes.
func kilobytes(b []byte, name string) Opt {
	for line := range bytes.Lines(b) {
		rest, ok := bytes.CutPrefix(line, []byte(name))
		if !ok {
			continue
		}
		f := bytes.Fields(rest)
		if len(f) != 2 || string(f[1]) != "kB" {
			return Opt{}
		}
		n, err := strconv.ParseInt(string(f[0]), 10, 64)
		if err != nil || n < 0 || n > 1<<43 {
			return Opt{}
		}
		return Some(n << 10)
	}
	return Opt{}
}

func countDir(path string) (int, error) {
	dir, err := os.Open(path)
	if err != nil {
		return 0, err
	}
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	return len(names), err
}

// Host is the machine.
type Host struct {
	BusyUS         Opt // CPU time of all processors that was neither idle nor waiting for I/O, cumulative
	AvailableBytes Opt // MemAvailable
}

// Host reads the machine's CPU time and memory.
func (p Proc) Host() Host {
	var h Host
	if b, err := os.ReadFile(p.path("stat")); err == nil {
		h.BusyUS = busy(b)
	}
	if b, err := os.ReadFile(p.path("meminfo")); err == nil {
		h.AvailableBytes = kilobytes(b, "MemAvailable:")
	}
	return h
}

// busy adds user, nice, system, irq, softirq and steal of the first line; guest time is part of user.
func busy(b []byte) Opt {
	line, _, _ := bytes.Cut(b, []byte("\n"))
	f := strings.Fields(string(line))
	if len(f) < 9 || f[0] != "cpu" {
		return Opt{}
	}
	var ticks int64
	for _, i := range []int{1, 2, 3, 6, 7, 8} {
		n, err := strconv.ParseInt(f[i], 10, 64)
		if err != nil || n < 0 || n > 1<<40 {
			return Opt{}
		}
		ticks += n
	}
	return Some(ticks * tick)
}

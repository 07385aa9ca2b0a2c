package recover

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"cotenant/internal/scrape"
)

// Limits of what is read from /proc.
const (
	maxProcFile = 4 << 20
	maxArgs     = 4096
	maxNames    = 4096
	maxMappings = 64
)

// proc is one process's folder in /proc.
type proc struct{ pid int }

func (p proc) path(name string) string {
	return filepath.Join("/proc", strconv.Itoa(p.pid), name)
}

// read reads a file of the folder, up to maxProcFile bytes.
func (p proc) read(name string) ([]byte, error) {
	f, err := os.Open(p.path(name))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, maxProcFile))
}

func (p proc) process() (Process, error) {
	known, err := scrape.Proc{}.Process(p.pid)
	if err != nil {
		return Process{}, classify(p.pid, err)
	}
	out := Process{StartUS: known.StartUS, Argv: []string{}, Environment: []string{}}
	if b, err := p.read("stat"); err == nil {
		out.State = stateOf(b)
	}
	if b, err := p.read("cmdline"); err == nil {
		out.Argv, out.ArgvMasked = mask(splitNUL(b, maxArgs))
	}
	if cwd, err := os.Readlink(p.path("cwd")); err == nil {
		out.WorkingFolder = plain(cwd)
	}
	if b, err := p.read("environ"); err != nil {
		out.EnvironmentReason = plain(classify(p.pid, err).Error())
	} else {
		out.Environment = environmentNames(b)
	}
	return out, nil
}

// stateOf is the letter behind the command's closing bracket.
func stateOf(stat []byte) string {
	i := bytes.LastIndexByte(stat, ')')
	if i < 0 || i+2 >= len(stat) {
		return ""
	}
	return plain(string(stat[i+2 : i+3]))
}

// splitNUL splits what the kernel ends with NUL bytes.
func splitNUL(b []byte, most int) []string {
	var out []string
	for part := range bytes.SplitSeq(bytes.TrimSuffix(b, []byte{0}), []byte{0}) {
		if len(out) == most {
			break
		}
		out = append(out, string(part))
	}
	return out
}

// environmentNames are the names alone. An entry without an equals sign is all value and is left out, and so is what no shell would
// take as a name: programs write their titles over this memory.
func environmentNames(b []byte) []string {
	out := []string{}
	for _, entry := range splitNUL(b, maxNames) {
		if name, _, ok := strings.Cut(entry, "="); ok && variable.MatchString(name) {
			out = append(out, name)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

var variable = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_.]{0,127}$`)

// deleted is what the kernel writes behind the path of an unlinked file (d_path).
const deleted = " (deleted)"

// executable follows /proc/PID/exe. The path is as the process's own root sees it.
func (p proc) executable() (Executable, error) {
	link, err := os.Readlink(p.path("exe"))
	if err != nil {
		if os.IsNotExist(err) { // a kernel thread, or a zombie
			if _, err := os.Stat(p.path("stat")); err == nil {
				return Executable{}, fmt.Errorf("process %d has no executable, it is a kernel thread or has ended: %w", p.pid, ErrNoProcess)
			}
		}
		return Executable{}, classify(p.pid, err)
	}
	info, err := os.Stat(p.path("exe"))
	if err != nil {
		return Executable{}, classify(p.pid, err)
	}
	e := Executable{Path: plain(link), Bytes: info.Size()}
	there := func(path string) (os.FileInfo, bool) {
		other, err := os.Stat(p.path("root") + path)
		return other, err == nil
	}
	was, suffixed := strings.CutSuffix(link, deleted)
	if other, ok := there(link); ok && os.SameFile(info, other) || !suffixed {
		return e, nil // a file may be called so
	}
	e.Path, e.Unlinked = plain(was), true
	_, e.Replaced = there(was)
	return e, nil
}

// deletedMappings lists unlinked files that are mapped beside the executable.
func (p proc) deletedMappings(executable string) []string {
	b, err := p.read("maps")
	if err != nil {
		return []string{}
	}
	return parseDeleted(b, executable)
}

// parseDeleted reads /proc/PID/maps. Shared memory is unlinked by design and isn't listed.
func parseDeleted(maps []byte, executable string) []string {
	out := []string{}
	for line := range bytes.Lines(maps) {
		// address perms offset dev inode path
		fields := bytes.SplitN(bytes.TrimSuffix(line, []byte("\n")), []byte(" "), 6)
		if len(fields) < 6 {
			continue
		}
		path, ok := strings.CutSuffix(strings.TrimLeft(string(fields[5]), " "), deleted)
		if path = plain(path); !ok || path == executable || slices.Contains(out, path) || len(out) == maxMappings {
			continue
		}
		for _, memory := range []string{"/dev/shm/", "/memfd:", "/SYSV", "/dev/zero", "/dev/nvidia", "/[aio]", "/anon_hugepage", "/i915"} {
			ok = ok && !strings.HasPrefix(path, memory)
		}
		if ok && strings.HasPrefix(path, "/") {
			out = append(out, path)
		}
	}
	return out
}

// plain makes foreign text fit to be shown: valid UTF-8, nothing that a terminal acts on, at most 1,024 bytes.
func plain(s string) string {
	const most = 1024
	s = strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return utf8.RuneError
		}
		return r
	}, s)
	if len(s) <= most {
		return s
	}
	n := most
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n] + "…"
}

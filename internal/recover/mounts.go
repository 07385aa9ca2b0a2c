package recover

import (
	"bytes"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// Mount is a mount point of this machine.
type Mount struct {
	Path string `json:"path"`
	Type string `json:"type"`
}

// mountEntry is a line of /proc/PID/mountinfo, see proc_pid_mountinfo(5).
type mountEntry struct {
	Mount
	noexec bool
}

// maxMounts bounds a report; a host with many containers has some thousands.
const maxMounts = 256

// parseMountinfo reads mount points in the order in which they were mounted. A line that isn't one is passed over.
func parseMountinfo(b []byte) []mountEntry {
	var out []mountEntry
	for line := range bytes.Lines(b) {
		// id parent major:minor root mountpoint options optional… - type source super-options
		f := strings.Fields(string(line))
		dash := slices.Index(f, "-")
		if dash < 6 || dash+1 >= len(f) {
			continue
		}
		options := strings.Split(f[5], ",")
		if dash+3 < len(f) {
			options = append(options, strings.Split(f[dash+3], ",")...)
		}
		path := unescape(f[4])
		if !strings.HasPrefix(path, "/") {
			continue
		}
		out = append(out, mountEntry{Mount{path, f[dash+1]}, slices.Contains(options, "noexec")})
	}
	return out
}

// unescape undoes the octal escapes that the kernel writes for space, tab, line feed and backslash.
func unescape(s string) string {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+3 < len(s) {
			if n, err := strconv.ParseUint(s[i+1:i+4], 8, 8); err == nil {
				b.WriteByte(byte(n))
				i += 3
				continue
			}
		}
		b.WriteByte(s[i])
	}
	return b.String()
}

// File systems that hold no files of anybody's: that they are noexec hinders nobody.
var pseudo = map[string]bool{"proc": true, "sysfs": true, "cgroup": true, "cgroup2": true, "devpts": true, "mqueue": true, "securityfs": true, "pstore": true, "bpf": true,
	"tracefs": true, "debugfs": true, "configfs": true, "fusectl": true, "binfmt_misc": true, "hugetlbfs": true, "efivarfs": true, "autofs": true, "rpc_pipefs": true, "nsfs": true,
	"devtmpfs": true, "selinuxfs": true}

// noexec lists where a copy can't run: mounts that are noexec, what is hidden by another mount on top left out.
func noexec(table []mountEntry) []Mount {
	out := []Mount{}
	for i, m := range table {
		hidden := slices.ContainsFunc(table[i+1:], func(later mountEntry) bool { return later.Path == m.Path })
		if m.noexec && !hidden && !pseudo[m.Type] && len(out) < maxMounts {
			out = append(out, Mount{plain(m.Path), plain(m.Type)})
		}
	}
	return out
}

// holds finds the mount that a path lies under. The path needn't exist: links are followed in the part of it that does.
func holds(table []mountEntry, path string) (point string, isNoexec bool) {
	abs, err := filepath.Abs(path)
	if err != nil {
		return "", false
	}
	for part := abs; ; part = filepath.Dir(part) {
		if real, err := filepath.EvalSymlinks(part); err == nil {
			abs = filepath.Join(real, strings.TrimPrefix(abs, part))
			break
		}
		if part == "/" {
			break
		}
	}
	for _, m := range table {
		under := m.Path == "/" || abs == m.Path || strings.HasPrefix(abs, m.Path+"/")
		if under && len(m.Path) >= len(point) { // the last one mounted there
			point, isNoexec = m.Path, m.noexec
		}
	}
	return plain(point), isNoexec
}

package inspect

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"cotenant/internal/observe"
)

// maxFile bounds what is read of one file, in bytes.
const maxFile = 1 << 20

// tree reads files under a root. Paths are absolute and with slashes.
type tree struct{ root string }

func (t tree) path(name string) string { return filepath.Join(t.root, filepath.FromSlash(name)) }

// read reads a regular file, at most maxFile bytes of it. Anything else, such as a pipe that would block, is refused.
func (t tree) read(name string) (string, error) {
	info, err := os.Stat(t.path(name))
	if err != nil {
		return "", err
	}
	if !info.Mode().IsRegular() {
		return "", fmt.Errorf("%s is not a regular file", name)
	}
	f, err := os.Open(t.path(name))
	if err != nil {
		return "", err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxFile))
	if err != nil {
		return "", err
	}
	return strings.ToValidUTF8(string(data), "?"), nil
}

// line reads the first line of a file; empty where there is none.
func (t tree) line(name string) string {
	text, err := t.read(name)
	if err != nil {
		return ""
	}
	line, _, _ := strings.Cut(text, "\n")
	return strings.TrimSpace(strings.Trim(line, "\x00"))
}

func (t tree) exists(name string) bool {
	_, err := os.Stat(t.path(name))
	return err == nil
}

// link reads a symbolic link; empty where it is none.
func (t tree) link(name string) string {
	to, err := os.Readlink(t.path(name))
	if err != nil {
		return ""
	}
	return to
}

// names lists a folder, sorted.
func (t tree) names(dir string) ([]string, error) {
	entries, err := os.ReadDir(t.path(dir))
	names := make([]string, 0, len(entries))
	for _, e := range entries {
		names = append(names, e.Name())
	}
	slices.Sort(names)
	return names, err
}

// glob returns the matches as paths under the root, sorted.
func (t tree) glob(pattern string) []string {
	found, err := filepath.Glob(t.path(pattern))
	if err != nil {
		return nil
	}
	for i, f := range found {
		f = filepath.ToSlash(f)
		found[i] = path.Join("/", strings.TrimPrefix(f, strings.TrimSuffix(filepath.ToSlash(t.root), "/")))
	}
	slices.Sort(found)
	return found
}

// statusOf says what a failed read means.
func statusOf(err error) (observe.Status, string) {
	switch {
	case errors.Is(err, fs.ErrPermission):
		return observe.PermissionDenied, "permission denied"
	case errors.Is(err, fs.ErrNotExist):
		return observe.Unavailable, "not there"
	}
	return observe.Unknown, observe.Clip(err.Error())
}

// variable returns the last value of an environment variable.
func variable(env []string, name string) (string, bool) {
	for i := len(env) - 1; i >= 0; i-- {
		if v, ok := strings.CutPrefix(env[i], name+"="); ok {
			return v, true
		}
	}
	return "", false
}

// program searches PATH of env, then folders, for an executable file.
func (t tree) program(env []string, name string, folders ...string) string {
	list, _ := variable(env, "PATH")
	dirs := filepath.SplitList(list)
	for _, f := range folders {
		dirs = append(dirs, t.path(f))
	}
	for _, d := range dirs {
		if !filepath.IsAbs(d) {
			continue
		}
		p := filepath.Join(d, name)
		if info, err := os.Stat(p); err == nil && info.Mode().IsRegular() && executable(info) {
			return p
		}
	}
	return ""
}

// shown returns how a path of the machine is named in a report: without the root of a test.
func (t tree) shown(p string) string {
	if t.root == "" {
		return p
	}
	if rest, ok := strings.CutPrefix(p, strings.TrimSuffix(t.root, "/")); ok {
		return path.Join("/", filepath.ToSlash(rest))
	}
	return p
}

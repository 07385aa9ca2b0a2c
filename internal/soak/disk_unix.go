//go:build unix

package soak

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// freeBytes is what an ordinary user may still write into dir, or into the nearest parent that exists.
func freeBytes(dir string) (int64, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return 0, err
	}
	for {
		var st unix.Statfs_t
		err := unix.Statfs(dir, &st)
		if err == nil {
			return int64(st.Bavail) * int64(st.Bsize), nil
		}
		parent := filepath.Dir(dir)
		if !errors.Is(err, unix.ENOENT) || parent == dir {
			return 0, fmt.Errorf("reading the free space of %s: %w", dir, err)
		}
		dir = parent
	}
}

// lockFolder keeps another process from going on with the same run. The lock ends with the file or the process.
func lockFolder(file string) (*os.File, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		f.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, usage("another process is working on this run")
		}
		return nil, fmt.Errorf("locking the run: %w", err)
	}
	return f, nil
}

package container

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"sync"
)

// Binary is the program that runs in the container: this one.
type Binary struct {
	Path   string `json:"path"`
	SHA256 string `json:"sha256"`
	Bytes  int64  `json:"bytes"`
}

// self is the running program's hash, read once: /proc/self/exe is the file that runs, also where its name has another file since.
var self = sync.OnceValues(func() (string, error) {
	path := "/proc/self/exe"
	if runtime.GOOS != "linux" {
		var err error
		if path, err = os.Executable(); err != nil {
			return "", err
		}
	}
	sum, _, err := hashFile(path)
	return sum, err
})

// programOf is this program, or the one at path, for tests.
func programOf(path string) (Binary, error) {
	if path != "" {
		sum, size, err := hashFile(path)
		return Binary{path, sum, size}, err
	}
	path, err := os.Executable()
	if err != nil {
		return Binary{}, fmt.Errorf("finding this program's file: %w", err)
	}
	sum, err := self()
	if err != nil {
		return Binary{}, fmt.Errorf("hashing this program: %w", err)
	}
	return Binary{Path: path, SHA256: sum}, nil
}

func hashFile(path string) (sum string, size int64, err error) {
	f, err := os.Open(path)
	if err != nil {
		return "", 0, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return "", 0, err
	}
	if !info.Mode().IsRegular() {
		return "", 0, errors.New(path + ": not a regular file")
	}
	h := sha256.New()
	if size, err = io.Copy(h, f); err != nil {
		return "", 0, err
	}
	return hex.EncodeToString(h.Sum(nil)), size, nil
}

// runnable reports whether the container's user, who is nobody, may read and run a file.
func runnable(path string) error {
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	if runtime.GOOS == "linux" && info.Mode().Perm()&0o005 != 0o005 {
		return fmt.Errorf("%s has mode %v: the container's user is nobody and must read and run it (chmod o+rx)", path, info.Mode().Perm())
	}
	return nil
}

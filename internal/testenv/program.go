package testenv

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

// Program writes a program or script that a test is to run, with its folder. Linux refuses to execute a file that somebody has open for
// writing, and that may be a child that another test of this process forks at that moment, until it executes its own program: none is
// forked while the file is open.
func Program(t testing.TB, path string, content []byte) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	syscall.ForkLock.RLock()
	err := os.WriteFile(path, content, 0o755)
	syscall.ForkLock.RUnlock()
	if err != nil {
		t.Fatal(err)
	}
}

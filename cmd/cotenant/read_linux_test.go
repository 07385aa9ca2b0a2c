package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// A pipe that nobody writes into is refused, not waited for.
func TestReadAtMostRefusesPipes(t *testing.T) {
	pipe := filepath.Join(t.TempDir(), "pipe")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := readAtMost(pipe, 1); err == nil || !strings.Contains(err.Error(), "regular file") {
		t.Errorf("error %v, want that it isn't a regular file", err)
	}
}

// A key may come through a pipe, and never takes more memory than a key needs.
func TestReadKey(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if _, err := w.WriteString("k\n"); err != nil {
		t.Fatal(err)
	}
	w.Close()
	if key, err := readKey(fmt.Sprintf("/dev/fd/%d", r.Fd())); err != nil || string(key) != "k\n" {
		t.Errorf("key %q, error %v", key, err)
	}
	if _, err := readKey("/dev/zero"); err == nil {
		t.Error("an endless file was read as a key")
	}
}

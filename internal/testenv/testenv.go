// Package testenv says what a test needs from the machine. A test whose need isn't met skips, and tools/skips lists it at
// the end of `go test ./...`; under COTENANT_REQUIRE_ALL=1 it fails. For tests only.
package testenv

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// RequireAll reports whether a test that would skip must fail.
func RequireAll() bool { return os.Getenv("COTENANT_REQUIRE_ALL") == "1" }

// Missing skips t because tool isn't here; hint says how to get it. Under COTENANT_REQUIRE_ALL=1 it fails t.
func Missing(t testing.TB, tool, hint string) {
	t.Helper()
	if RequireAll() {
		t.Fatalf("needs %s, which COTENANT_REQUIRE_ALL=1 demands: %s", tool, hint)
	}
	record(Skip{Test: t.Name(), Needs: tool, Hint: hint})
	t.Skipf("needs %s: %s", tool, hint)
}

// RequireGPU reports whether a test that would skip for want of a GPU must fail. COTENANT_REQUIRE_ALL does not ask for one: the
// machines of CI have none.
func RequireGPU() bool { return os.Getenv("COTENANT_REQUIRE_GPU") == "1" }

// GPU is what the tests that NoGPU skips need.
const GPU = "GPU"

// NoGPU skips t because this machine has no GPU that can be used, for the reason given. Under COTENANT_REQUIRE_GPU=1 it fails t.
func NoGPU(t testing.TB, reason string) {
	t.Helper()
	if RequireGPU() {
		t.Fatalf("needs a GPU, which COTENANT_REQUIRE_GPU=1 demands: %s", reason)
	}
	record(Skip{Test: t.Name(), Needs: GPU, Hint: reason})
	t.Skipf("needs a GPU: %s", reason)
}

// Need skips t unless the executable is on PATH, and returns its path.
func Need(t testing.TB, executable, hint string) string {
	t.Helper()
	path, err := exec.LookPath(executable)
	if err != nil {
		Missing(t, executable, hint)
	}
	return path
}

const fetchHint = "go run ./tools/fetch, then set COTENANT_MODEL_DIR to the folder that it prints"

// Model returns the path of a file under COTENANT_MODEL_DIR and skips t where it isn't there.
func Model(t testing.TB, name string) string {
	t.Helper()
	dir := os.Getenv("COTENANT_MODEL_DIR")
	if dir == "" {
		Missing(t, name, fetchHint)
	}
	path := filepath.Join(dir, filepath.FromSlash(name))
	if _, err := os.Stat(path); err != nil {
		Missing(t, name, fetchHint)
	}
	return path
}

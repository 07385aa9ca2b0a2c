package skips

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"sort"
	"strconv"
	"strings"
	"testing"
	"time"

	"cotenant/internal/testenv"
)

func TestListSkips(t *testing.T) {
	defeatCache(t)
	waitForOthers(time.Minute)
	skips, err := testenv.Skips()
	if err != nil {
		t.Fatal(err)
	}
	var lines []string
	missing := 0
	for _, s := range skips {
		if !stillLacks(s) {
			continue
		}
		lines = append(lines, fmt.Sprintf("  %s %s: needs %s (%s)", s.Package, s.Test, s.Needs, s.Hint))
		if s.Needs != testenv.GPU { // whose tests are bench/h200/check-gpu.sh's to demand
			missing++
		}
	}
	if len(lines) == 0 {
		return
	}
	if testenv.RequireAll() && missing > 0 {
		t.Fatalf("%d tests were skipped:\n%s", len(lines), strings.Join(lines, "\n"))
	}
	sort.Strings(lines)
	fmt.Fprintf(goStderr(), "%d tests were skipped; COTENANT_REQUIRE_ALL=1 makes them fail instead, but for those that need a GPU, which bench/h200/check-gpu.sh runs:\n%s\n", len(lines), strings.Join(lines, "\n"))
}

// stillLacks reports whether a recorded skip stands: the record of a package that has since run in full is dropped.
func stillLacks(s testenv.Skip) bool {
	if _, err := exec.LookPath(s.Needs); err == nil {
		return false
	}
	if dir := os.Getenv("COTENANT_MODEL_DIR"); dir != "" {
		if _, err := os.Stat(filepath.Join(dir, filepath.FromSlash(s.Needs))); err == nil {
			return false
		}
	}
	return true
}

// defeatCache touches a file of this module: go doesn't cache a test that looked at a file that new.
func defeatCache(t *testing.T) {
	const stamp = "testdata/now"
	if err := os.MkdirAll(filepath.Dir(stamp), 0o755); err == nil {
		os.WriteFile(stamp, []byte(time.Now().String()), 0o644)
	}
	if _, err := os.Stat(stamp); err != nil {
		t.Logf("the list may be cached: %v", err)
	}
}

// waitForOthers waits until no other test binary of this `go test` runs.
func waitForOthers(limit time.Duration) {
	for end := time.Now().Add(limit); time.Now().Before(end) && othersRun(); {
		time.Sleep(100 * time.Millisecond)
	}
}

func othersRun() bool {
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, name := range stats {
		exe, err := os.Readlink(filepath.Join(filepath.Dir(name), "exe"))
		if err != nil || !strings.HasSuffix(exe, ".test") {
			continue
		}
		data, err := os.ReadFile(name)
		if err != nil {
			continue
		}
		// pid (comm) state ppid …: comm may hold anything, so read from its last parenthesis.
		text := string(data)
		fields := strings.Fields(text[strings.LastIndexByte(text, ')')+1:])
		if len(fields) < 2 || filepath.Base(filepath.Dir(name)) == strconv.Itoa(os.Getpid()) {
			continue
		}
		if ppid, _ := strconv.Atoi(fields[1]); ppid == os.Getppid() {
			return true
		}
	}
	return false
}

// goStderr is the standard error of the go command that started this test; this process's own where there is no /proc.
func goStderr() io.Writer {
	f, err := os.OpenFile(fmt.Sprintf("/proc/%d/fd/2", os.Getppid()), os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		return os.Stderr
	}
	return f
}

//go:build unix

package bounded

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"cotenant/internal/testenv"
)

func sh(script string) Command { return Command{Path: "/bin/sh", Args: []string{"-c", script}} }

func TestOutcomes(t *testing.T) {
	for name, c := range map[string]struct {
		command  Command
		outcome  Outcome
		code     int
		out, err string
	}{
		"both":      {sh("echo out; echo err >&2"), Exited, 0, "out\n", "err\n"},
		"code":      {sh("exit 3"), Exited, 3, "", ""},
		"signal":    {sh("kill -SEGV $$"), Signaled, -1, "", ""},
		"stdin":     {Command{Path: "/bin/sh", Args: []string{"-c", "cat"}, Stdin: "lspart\n"}, Exited, 0, "lspart\n", ""},
		"no stdin":  {sh("cat"), Exited, 0, "", ""},
		"env":       {Command{Path: "/bin/sh", Args: []string{"-c", "echo $A"}, Env: []string{"A=1"}}, Exited, 0, "1\n", ""},
		"absent":    {Command{Path: "/nonexistent/nvidia-smi"}, NotStarted, -1, "", ""},
		"a folder":  {Command{Path: "/"}, NotStarted, -1, "", ""},
		"big stdin": {Command{Path: "/bin/sh", Args: []string{"-c", "cat"}, Stdin: strings.Repeat("x", 5000)}, NotStarted, -1, "", ""},
	} {
		r := Run(context.Background(), c.command)
		if r.Outcome != c.outcome || r.ExitCode != c.code || string(r.Stdout) != c.out || string(r.Stderr) != c.err {
			t.Errorf("%s: %s %d %q %q (%v)", name, r.Outcome, r.ExitCode, r.Stdout, r.Stderr, r.Err)
		}
		if (r.Err != nil) != (c.outcome == NotStarted) {
			t.Errorf("%s: error %v", name, r.Err)
		}
	}
}

func within(t *testing.T, limit time.Duration, c Command, kill func(*os.Process)) Result {
	t.Helper()
	start := time.Now()
	r := run(context.Background(), c, kill)
	if took := time.Since(start); took > limit {
		t.Errorf("took %v, limit %v", took, limit)
	}
	return r
}

const timeout = 2 * time.Second

// slack is for a busy machine; what hangs here would hang for half a minute.
const slack = timeout + Overrun + 10*time.Second

func TestTimeout(t *testing.T) {
	c := sh("trap '' TERM; echo begun; sleep 30")
	c.Timeout = timeout
	r := within(t, slack, c, killTree)
	if r.Outcome != TimedOut || string(r.Stdout) != "begun\n" || r.ExitCode != -1 || !r.Hung() {
		t.Errorf("%+v, %q", r, r.Stdout)
	}
	if runtime.GOOS == "linux" && r.State == "" {
		t.Error("no state")
	}
}

// A descendant outside the group keeps stdout open: the output so far is there, and nobody waits for the rest.
func TestPipesHeld(t *testing.T) {
	setsid := testenv.Need(t, "setsid", "apt install util-linux")
	file := filepath.Join(t.TempDir(), "alive")
	if err := os.WriteFile(file, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	c := sh("echo begun; " + setsid + " sh -c 'while [ -e " + file + " ]; do sleep 0.05; done' & exit 0")
	c.Timeout = 20 * time.Second
	r := within(t, slack, c, killTree)
	if r.Outcome != Exited || !r.PipesHeld || string(r.Stdout) != "begun\n" {
		t.Errorf("%+v, %q", r, r.Stdout)
	}
	before := runtime.NumGoroutine()
	time.Sleep(50 * time.Millisecond)
	if after := runtime.NumGoroutine(); after > before {
		t.Errorf("goroutines grew from %d to %d", before, after)
	}
}

// A process that a kill doesn't end, as one in uninterruptible sleep, is left behind.
func TestAbandoned(t *testing.T) {
	var victim *os.Process
	c := sh("echo begun; sleep 30")
	c.Timeout = timeout
	r := within(t, slack, c, func(p *os.Process) { victim = p })
	defer killTree(victim)
	if r.Outcome != Abandoned || !r.Hung() || string(r.Stdout) != "begun\n" {
		t.Errorf("%+v, %q", r, r.Stdout)
	}
}

func TestCanceled(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	begun := filepath.Join(t.TempDir(), "begun")
	go func() {
		for _, err := os.Stat(begun); err != nil; _, err = os.Stat(begun) {
			time.Sleep(time.Millisecond)
		}
		time.Sleep(200 * time.Millisecond) // that it runs has to be seen here too
		cancel()
	}()
	if r := Run(ctx, sh("touch "+begun+"; sleep 30")); r.Outcome != Canceled {
		t.Errorf("%+v", r)
	}
	if r := Run(ctx, sh("sleep 30")); r.Outcome != NotStarted || !errors.Is(r.Err, context.Canceled) {
		t.Errorf("after its end: %+v", r)
	}
}

func TestLimits(t *testing.T) {
	c := sh("i=0; while [ $i -lt 3000 ]; do echo 0123456789012345678901234567890123456789; echo e >&2; i=$((i+1)); done")
	c.StdoutLimit, c.StderrLimit = 1000, 10
	r := Run(context.Background(), c)
	if len(r.Stdout) != 1000 || !r.StdoutTruncated || len(r.Stderr) != 10 || !r.StderrTruncated || r.Outcome != Exited {
		t.Errorf("%d %v %d %v %s", len(r.Stdout), r.StdoutTruncated, len(r.Stderr), r.StderrTruncated, r.Outcome)
	}
}

// Many runs leave neither goroutines nor files behind.
func TestNoLeak(t *testing.T) {
	files := func() int {
		entries, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			return 0
		}
		return len(entries)
	}
	Run(context.Background(), sh("exit 0"))
	g, f := runtime.NumGoroutine(), files()
	for range 50 {
		Run(context.Background(), sh("echo x"))
	}
	for until := time.Now().Add(20 * time.Second); runtime.NumGoroutine() > g+1 || files() > f+1; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(until) {
			t.Fatalf("goroutines %d to %d, files %d to %d", g, runtime.NumGoroutine(), f, files())
		}
	}
}

func TestProcessState(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("/proc is Linux'")
	}
	if s := processState(os.Getpid()); s != "R" && s != "S" && s != "D" {
		t.Errorf("own state %q", s)
	}
	if s := processState(1 << 30); s != "" {
		t.Errorf("nobody's state %q", s)
	}
}

package recover

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"cotenant/internal/testenv"
)

const (
	gnuID      = "00112233445566778899aabbccddeeff00112233"
	goID       = "of/the/test"
	planted    = "hunter2-hunter2-hunter2"
	plantedEnv = "swordfish-swordfish"
)

// program builds the stale server once and returns its path.
var program = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "cotenant-recover-")
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, "staleserver")
	out, err := exec.Command("go", "build", "-o", path, "-ldflags", "-B 0x"+gnuID+" -buildid="+goID, "./testdata/staleserver").CombinedOutput()
	if err != nil {
		return "", errors.New(string(out))
	}
	return path, nil
})

func TestMain(m *testing.M) {
	code := m.Run()
	if path, err := program(); err == nil {
		os.RemoveAll(filepath.Dir(path))
	}
	os.Exit(code)
}

// start runs a copy of the stale server and returns its pid and the copy's path and SHA-256.
func start(t *testing.T, args ...string) (pid int, path, sum string) {
	t.Helper()
	testenv.Need(t, "go", "install Go")
	built, err := program()
	if err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(built)
	if err != nil {
		t.Fatal(err)
	}
	path = filepath.Join(t.TempDir(), "model server")
	testenv.Program(t, path, b)
	h := sha256.Sum256(b)
	cmd := exec.Command(path, args...)
	cmd.Env = []string{"PATH=/usr/bin", "HF_TOKEN=" + plantedEnv, "CUDA_VISIBLE_DEVICES=0"}
	cmd.Dir = t.TempDir()
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
	})
	if _, err := bufio.NewReader(out).ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	return cmd.Process.Pid, path, hex.EncodeToString(h[:])
}

func diagnose(t *testing.T, o Options) *Report {
	t.Helper()
	r, err := Diagnose(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestAServerWhoseFileWasRemoved(t *testing.T) {
	pid, path, sum := start(t, "--completions=hang", "--api-key", planted)
	out := t.TempDir()
	if r := diagnose(t, Options{PID: pid, Out: out, NoAsk: true}); r.Stale || r.Executable.Path != path || !strings.Contains(r.Diagnosis, "still where it was") {
		t.Errorf("before it was removed: %+v", r)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	r := diagnose(t, Options{PID: pid, Out: out, Canary: 300 * time.Millisecond})
	if !r.Stale || !r.Executable.Unlinked || r.Executable.Replaced || r.Executable.Path != path {
		t.Errorf("executable: %+v", r.Executable)
	}
	if want := "its executable was unlinked; it lists one model; completions hang"; r.Diagnosis != want {
		t.Errorf("diagnosis %q, want %q", r.Diagnosis, want)
	}
	if len(r.Listeners) != 1 || !slices.Equal(r.Listeners[0].Models, []string{"stale-model"}) || r.Listeners[0].Completion.State != Hangs || r.Listeners[0].Completion.WallUS < 250_000 {
		t.Errorf("listeners %+v", r.Listeners)
	}
	if want := []string{path, "--completions=hang", "--api-key", masked}; !slices.Equal(r.Process.Argv, want) || r.Process.ArgvMasked != 1 {
		t.Errorf("argv %q, %d masked", r.Process.Argv, r.Process.ArgvMasked)
	}
	if want := []string{"CUDA_VISIBLE_DEVICES", "HF_TOKEN", "PATH"}; !slices.Equal(r.Process.Environment, want) {
		t.Errorf("environment %v", r.Process.Environment)
	}
	if err := Save(r, out); err != nil {
		t.Fatal(err)
	}
	saved := filepath.Join(out, r.Executable.SavedAs)
	b, err := os.ReadFile(saved)
	if err != nil {
		t.Fatal(err)
	}
	h := sha256.Sum256(b)
	if got := hex.EncodeToString(h[:]); got != sum || r.Executable.SHA256 != sum || r.Executable.Bytes != int64(len(b)) || r.Executable.SavedAs != "model server" {
		t.Errorf("saved %s of %d bytes as %s, want %s", got, len(b), r.Executable.SavedAs, sum)
	}
	if r.Executable.GNUBuildID != gnuID || r.Executable.GoBuildID != goID {
		t.Errorf("build ids %q, %q", r.Executable.GNUBuildID, r.Executable.GoBuildID)
	}
	if help, err := exec.Command(saved, "--help").CombinedOutput(); !strings.Contains(string(help), "-completions") {
		t.Errorf("the saved executable doesn't run: %v, %s", err, help)
	}
	report, err := os.ReadFile(filepath.Join(out, ReportFile))
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(report), planted) || strings.Contains(string(report), plantedEnv) {
		t.Errorf("%s holds a secret: %s", ReportFile, report)
	}
	var again Report
	if err := json.Unmarshal(report, &again); err != nil || again.SchemaVersion != 1 || again.Operation != "recover" || again.Executable != r.Executable {
		t.Errorf("%v: %+v", err, again)
	}
	if err := syscall.Kill(pid, 0); err != nil {
		t.Errorf("the process was stopped: %v", err)
	}
	if err := Save(r, out); err == nil {
		t.Error("an executable was saved over another")
	}
}

func TestStates(t *testing.T) {
	for mode, want := range map[string]string{"answer": Answers, "refuse": Refuses} {
		pid, path, _ := start(t, "--completions="+mode)
		// Replaced, as an upgrade does.
		if err := os.Rename(path, path+".old"); err != nil {
			t.Fatal(err)
		}
		if r := diagnose(t, Options{PID: pid, NoAsk: true}); r.Stale {
			t.Errorf("a file that was moved is still there: %+v", r.Executable)
		}
		if err := os.Remove(path + ".old"); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path+".old", []byte("another"), 0o600); err != nil {
			t.Fatal(err)
		}
		r := diagnose(t, Options{PID: pid})
		if !r.Stale || !r.Executable.Replaced || r.Listeners[0].Completion.State != want {
			t.Errorf("%s: %+v, %+v", mode, r.Executable, r.Listeners)
		}
	}
}

func TestNotAStaleServer(t *testing.T) {
	if r := diagnose(t, Options{PID: os.Getpid(), Out: t.TempDir(), NoAsk: true}); r.Stale || len(r.Steps) != 1 {
		t.Errorf("this test is stale: %+v", r)
	}
	for _, pid := range []int{1 << 22, 2} { // above the largest pid; a kernel thread, if this is its namespace
		if pid == 2 {
			if b, err := os.ReadFile("/proc/2/cmdline"); err != nil || len(b) > 0 {
				continue
			}
		}
		if _, err := Diagnose(t.Context(), Options{PID: pid}); !errors.Is(err, ErrNoProcess) {
			t.Errorf("process %d: %v", pid, err)
		}
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	cause := errors.New("interrupted")
	cancel(cause)
	if _, err := Diagnose(ctx, Options{PID: os.Getpid()}); !errors.Is(err, cause) {
		t.Errorf("interrupted: %v", err)
	}
}

// TestAnotherUsersProcess runs this test again as a user that may not look at this process.
func TestAnotherUsersProcess(t *testing.T) {
	const variable = "COTENANT_RECOVER_TEST_PID"
	if pid := os.Getenv(variable); pid != "" {
		var n int
		if err := json.Unmarshal([]byte(pid), &n); err != nil {
			t.Fatal(err)
		}
		if _, err := Diagnose(t.Context(), Options{PID: n}); !errors.Is(err, ErrNotPermitted) {
			t.Fatalf("another user's process: %v", err)
		}
		return
	}
	if os.Getuid() != 0 {
		testenv.Missing(t, "root", "run this test as root: it becomes another user")
	}
	dir := t.TempDir() // may be in a folder of root's alone
	for d := dir; d != "/"; d = filepath.Dir(d) {
		if info, err := os.Stat(d); err != nil || info.Mode()&0o001 == 0 {
			if err := os.Chmod(d, 0o755); err != nil {
				t.Fatal(err)
			}
		}
	}
	self, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	copied := filepath.Join(dir, "test")
	testenv.Program(t, copied, self)
	victim, _, _ := start(t)
	pid, err := json.Marshal(victim)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(copied, "-test.run", "^TestAnotherUsersProcess$", "-test.v")
	cmd.Dir = dir
	cmd.Env = []string{variable + "=" + string(pid), "HOME=" + dir, "PATH=" + os.Getenv("PATH")}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65533, Gid: 65533}}
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "--- PASS") {
		t.Errorf("%v: %s", err, out)
	}
}

func TestNoexecMount(t *testing.T) {
	if os.Getuid() != 0 {
		testenv.Missing(t, "root", "run this test as root: it mounts a tmpfs")
	}
	dir := filepath.Join(t.TempDir(), "no exec")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mount("tmpfs", dir, "tmpfs", syscall.MS_NOEXEC, ""); err != nil {
		testenv.Missing(t, "CAP_SYS_ADMIN", "run this test where root may mount: "+err.Error())
	}
	t.Cleanup(func() { syscall.Unmount(dir, syscall.MNT_DETACH) })
	pid, path, _ := start(t, "--completions=answer")
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	out := filepath.Join(dir, "not there yet")
	r := diagnose(t, Options{PID: pid, Out: out, NoAsk: true})
	if !r.OutNoexec || r.OutMount != dir || !slices.Contains(r.NoexecMounts, Mount{dir, "tmpfs"}) {
		t.Errorf("out lies under %q, noexec %t; mounts %+v", r.OutMount, r.OutNoexec, r.NoexecMounts)
	}
	if !slices.ContainsFunc(r.Steps, func(s string) bool { return strings.Contains(s, "mounted noexec") }) {
		t.Errorf("steps %q", r.Steps)
	}
	if err := os.Mkdir(out, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := Save(r, out); err != nil {
		t.Fatal(err)
	}
	if err := exec.Command(filepath.Join(out, r.Executable.SavedAs), "--help").Run(); !errors.Is(err, syscall.EACCES) {
		t.Errorf("the copy on a noexec mount: %v", err)
	}
	if r := diagnose(t, Options{PID: pid, Out: t.TempDir(), NoAsk: true}); r.OutNoexec {
		t.Errorf("%s isn't noexec", r.OutMount)
	}
}

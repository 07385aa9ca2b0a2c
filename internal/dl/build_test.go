package dl_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"cotenant/internal/testenv"
)

// compile builds testdata/open, which opens a library, for a platform.
func compile(t *testing.T, goos, goarch string, flags ...string) string {
	t.Helper()
	out := filepath.Join(t.TempDir(), "program")
	cmd := exec.Command("go", append(append([]string{"build", "-o", out}, flags...), "./testdata/open")...)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS="+goos, "GOARCH="+goarch)
	if b, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%s/%s %v: %v\n%s", goos, goarch, flags, err, b)
	}
	return out
}

func TestNoCUDAIsStatic(t *testing.T) {
	if runtime.GOOS != "linux" {
		testenv.Missing(t, "linux", "static and dynamic programs are told apart by ELF headers")
	}
	file := testenv.Need(t, "file", "apt install file")
	for _, arch := range []string{"amd64", "arm64"} {
		out, err := exec.Command(file, "-b", compile(t, "linux", arch, "-tags", "nocuda")).Output()
		if err != nil || !strings.Contains(string(out), "statically linked") {
			t.Errorf("linux/%s with nocuda: %s, %v", arch, out, err)
		}
		out, err = exec.Command(file, "-b", compile(t, "linux", arch)).Output()
		if err != nil || !strings.Contains(string(out), "dynamically linked") {
			t.Errorf("linux/%s: %s, %v", arch, out, err)
		}
	}
	out, err := exec.Command(compile(t, "linux", runtime.GOARCH, "-tags", "nocuda")).Output()
	if err != nil || !strings.Contains(string(out), "nocuda: it is static") || strings.Contains(string(out), "<nil>") {
		t.Errorf("the static program says %q, %v", out, err)
	}
	out, err = exec.Command(compile(t, "linux", runtime.GOARCH)).Output()
	if err != nil || strings.TrimSpace(string(out)) != "<nil> | <nil>" {
		t.Errorf("the dynamic program says %q, %v", out, err)
	}
}

func TestBuildsElsewhere(t *testing.T) {
	compile(t, "windows", "amd64")
	compile(t, "darwin", "arm64")
}

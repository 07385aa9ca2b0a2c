// Package h200 tests the scripts beside it without a GPU: on real files, and on the fake driver at small counts.
package h200

import (
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"cotenant/internal/gputest"
	"cotenant/internal/testenv"
)

func TestMain(m *testing.M) {
	code := m.Run()
	gputest.Cleanup()
	os.Exit(code)
}

// Each file under testdata is one behaviour of a script. $SCRIPTS is this folder.
func TestScripts(t *testing.T) {
	testenv.Need(t, "curl", "apt install curl")
	python := testenv.Need(t, "python3", "apt install python3")
	scripts, err := filepath.Abs(".")
	if err != nil {
		t.Fatal(err)
	}
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata",
		RequireExplicitExec: true,
		Setup: func(e *testscript.Env) error {
			e.Values["test"] = e.T()
			e.Setenv("SCRIPTS", scripts)
			e.Setenv("PYTHON", python)
			return nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){"noise": noise, "gpu": machineWithGPU,
			"compile": compile, "port": freePort},
	})
}

// noise is `noise FILE BYTES`: a file of so many bytes, no two places of which are alike.
func noise(ts *testscript.TestScript, neg bool, args []string) {
	var n int
	_, err := fmt.Sscan(args[1], &n)
	ts.Check(err)
	data := make([]byte, n)
	rand.NewChaCha8([32]byte{}).Read(data)
	ts.Check(os.WriteFile(ts.MkAbs(args[0]), data, 0o644))
}

// machineWithGPU is `gpu`: from here on the script's machine has an H200, whose driver and nvidia-smi are fakes.
func machineWithGPU(ts *testscript.TestScript, neg bool, args []string) {
	m := gputest.Start(ts.Value("test").(testing.TB), gputest.Host{
		CUDA: []gputest.CUDA{{Version: 13000}}, NVML: []gputest.NVML{{Driver: "580.159.04", CUDA: 13000}}, SMI: &gputest.SMI{},
		GPUs: []gputest.GPU{{UUID: "GPU-11111111-2222-3333-4444-555555555555", Name: "NVIDIA H200", Bus: "00000000:06:00.0", CC: "9.0", SMs: 132,
			Memory: 150754820096}}})
	for _, v := range m.Env {
		k, value, _ := strings.Cut(v, "=")
		if k == "PATH" {
			value += string(os.PathListSeparator) + ts.Getenv("PATH")
		}
		ts.Setenv(k, value)
	}
}

// compile is `compile FILE PACKAGE`: the program of this module, or the test binary of a Go file or package where FILE ends in .test.
func compile(ts *testscript.TestScript, neg bool, args []string) {
	build := []string{"build"}
	if strings.HasSuffix(args[0], ".test") {
		build = []string{"test", "-c"}
	}
	what := args[1]
	if strings.HasSuffix(what, ".go") {
		what = ts.MkAbs(what)
	}
	cmd := exec.Command("go", append(build, "-o", ts.MkAbs(args[0]), what)...)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		ts.Fatalf("%s: %v\n%s", strings.Join(cmd.Args, " "), err, out)
	}
}

// freePort is `port`: $PORT is a port that nobody has, out of those that the kernel doesn't hand out by itself.
func freePort(ts *testscript.TestScript, neg bool, args []string) {
	for range 100 {
		port := fmt.Sprint(20000 + rand.IntN(10000))
		l, err := net.Listen("tcp", "127.0.0.1:"+port)
		if err == nil {
			ts.Check(l.Close())
			ts.Setenv("PORT", port)
			return
		}
	}
	ts.Fatalf("no port is free")
}

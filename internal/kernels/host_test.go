//go:build linux && amd64

package kernels

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"cotenant/internal/testenv"
)

// The CUDA C of products, norms and attention, compiled for the CPU with headers that play warps, blocks, clusters and the tensor memory
// accelerator (testdata/host): every kernel against float64, and to the bit against those that must have the same results.
func TestKernelsOnHost(t *testing.T) {
	clang := testenv.Need(t, "clang++-19", "apt install clang-19: the kernels' compiler")
	dir := t.TempDir()
	for _, pattern := range []string{"*.cu", "*.cuh", "testdata/host/*"} { // the last ones replace headers
		paths, err := filepath.Glob(pattern)
		if err != nil || len(paths) == 0 {
			t.Fatalf("%s: %d files, %v", pattern, len(paths), err)
		}
		for _, path := range paths {
			text, err := os.ReadFile(path)
			if err == nil {
				err = os.WriteFile(filepath.Join(dir, filepath.Base(path)), text, 0o644)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, name := range []string{"products", "attention"} {
		t.Run(name, func(t *testing.T) {
			program := filepath.Join(dir, name)
			cmd := exec.Command(clang, "-std=c++20", "-O1", "-ffp-contract=off", "-static", "-w", "-I", filepath.Join("..", "gputest", "c"), "-o", program, program+".cpp")
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			out, err := exec.Command(program).CombinedOutput()
			if err != nil {
				t.Errorf("%v", err)
			}
			t.Logf("%s", out)
		})
	}
}

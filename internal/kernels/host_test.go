//go:build linux && amd64 && !race

// The race detector has nothing to see in a program of another language.

package kernels

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"cotenant/internal/testenv"
	"cotenant/internal/weights"
	"cotenant/internal/weights/weightstest"
)

// The CUDA C of products, norms, attention and weights that stay quantised, compiled for the CPU with headers that play warps, blocks,
// clusters and the tensor memory accelerator (testdata/host): every kernel against float64, and to the bit against those that must have
// the same results.
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
	for _, name := range []string{"products", "attention", "quantized"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			program := filepath.Join(dir, name)
			cmd := exec.Command(clang, "-std=c++20", "-O1", "-ffp-contract=off", "-static", "-w", "-I", filepath.Join("..", "gputest", "c"), "-o", program, program+".cpp")
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			run := exec.Command(program)
			if name == "quantized" {
				run.Stdin = quantizedCases(t)
			}
			out, err := run.CombinedOutput()
			if err != nil {
				t.Errorf("%v", err)
			}
			t.Logf("%s", out)
		})
	}
}

// quantizedCases are weights of every format as quantized.cpp reads them: with what weights.Dequantize says that they stand for, as bf16.
func quantizedCases(t *testing.T) *bytes.Buffer {
	t.Helper()
	r := rand.New(rand.NewPCG(21, 22))
	in := new(bytes.Buffer)
	for i, f := range quantizedTypes {
		// Rows, blocks along a row or, from 8 on, as many times 256 columns; rows of x.
		for _, s := range [][3]int{{16, 1, 1}, {24, 3, 8}, {80, 2, 9}, {8, 8, 17}, {48, 1, 40}, {16, 1, 70}} {
			N, K, M := s[0], s[1]*f.BlockSize(), s[2]
			if s[1] >= 8 && f.BlockSize() == 32 {
				K = s[1]*256 + 32
			}
			size, ok := QuantizedBytes(f, N, K)
			if !ok {
				t.Fatalf("%v can't stay at %d × %d", f, N, K)
			}
			values := normalF32(r, N*K)
			file := weightstest.Quantize(f, values)
			weights.Dequantize(values, f, file)
			for _, v := range []int{i, N, K, M, int(size), len(file)} {
				in.Write(binary.LittleEndian.AppendUint32(nil, uint32(v)))
			}
			in.Write(file)
			for _, v := range values {
				in.Write(binary.LittleEndian.AppendUint16(nil, weights.F32ToBF16(v)))
			}
		}
	}
	return in
}

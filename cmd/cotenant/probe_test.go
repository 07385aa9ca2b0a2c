package main

import (
	"os"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"cotenant/internal/gputest"
)

// Scripts that need a GPU run on a machine whose driver libraries and tools are fakes; the program is the real one.
func TestProbeScripts(t *testing.T) {
	t.Cleanup(gputest.Cleanup)
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata/probe",
		RequireExplicitExec: true,
		Setup: func(e *testscript.Env) error {
			m := gputest.Start(e.T().(testing.TB), gputest.Host{
				CUDA: []gputest.CUDA{{Version: 13000}}, NVML: []gputest.NVML{{Driver: "580.159.04", CUDA: 13000}}, MPS: &gputest.MPS{Version: 13000},
				GPUs: []gputest.GPU{{UUID: "GPU-11111111-2222-3333-4444-555555555555", Name: "NVIDIA H200", Bus: "00000000:06:00.0", CC: "9.0", SMs: 132,
					Memory: 150754820096, Reserved: 600 << 20, ECC: true}},
			})
			for _, v := range m.Env {
				k, value, _ := strings.Cut(v, "=")
				if k == "PATH" {
					value += string(os.PathListSeparator) + e.Getenv("PATH")
				}
				e.Setenv(k, value)
			}
			e.Setenv(testRoot, m.Root)
			e.Setenv("UUID", m.Host.GPUs[0].UUID)
			return nil
		},
	})
}

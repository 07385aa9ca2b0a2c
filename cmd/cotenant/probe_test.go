package main

import (
	"os"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"cotenant/internal/gputest"
)

// h200 is a machine with an H200 whose driver libraries and tools are fakes.
func h200(t testing.TB) *gputest.Machine {
	return gputest.Start(t, gputest.Host{
		CUDA: []gputest.CUDA{{Version: 13000}}, NVML: []gputest.NVML{{Driver: "580.159.04", CUDA: 13000}}, MPS: &gputest.MPS{Version: 13000},
		GPUs: []gputest.GPU{{UUID: "GPU-11111111-2222-3333-4444-555555555555", Name: "NVIDIA H200", Bus: "00000000:06:00.0", CC: "9.0", SMs: 132,
			Memory: 150754820096, Reserved: 600 << 20, ECC: true}},
	})
}

// play makes a script run on a machine; its own PATH comes after the machine's.
func play(e *testscript.Env, m *gputest.Machine) {
	for _, v := range m.Env {
		k, value, _ := strings.Cut(v, "=")
		if k == "PATH" {
			value += string(os.PathListSeparator) + e.Getenv("PATH")
		}
		e.Setenv(k, value)
	}
	e.Setenv(testRoot, m.Root)
	e.Setenv("UUID", m.Host.GPUs[0].UUID)
}

// Scripts that need a GPU run on a machine whose driver libraries and tools are fakes; the program is the real one.
func TestProbeScripts(t *testing.T) { runOnFake(t, "testdata/probe") }

func TestInterfereScripts(t *testing.T) { runOnFake(t, "testdata/interfere") }

func runOnFake(t *testing.T, dir string) {
	t.Cleanup(gputest.Cleanup)
	testscript.Run(t, testscript.Params{
		Dir:                 dir,
		RequireExplicitExec: true,
		Setup: func(e *testscript.Env) error {
			play(e, h200(e.T().(testing.TB)))
			return nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){"replace": replace, "unpack": unpack},
	})
}

// unpack FROM TO writes what a compressed file holds.
func unpack(ts *testscript.TestScript, neg bool, args []string) {
	data, err := readAtMost(ts.MkAbs(args[0]), maxEvidence)
	if err == nil {
		err = os.WriteFile(ts.MkAbs(args[1]), data, 0o644)
	}
	if (err != nil) != neg {
		ts.Fatalf("unpacking: %v", err)
	}
}

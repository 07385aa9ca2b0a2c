package main

import (
	"io"
	"net/http"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"cotenant/internal/gputest"
)

// What --backend cuda does, on fake drivers. A script's name up to its first dash chooses the faults.
func TestCUDAScripts(t *testing.T) {
	t.Cleanup(gputest.Cleanup)
	testscript.Run(t, testscript.Params{
		Dir: "testdata/cuda", RequireExplicitExec: true,
		Setup: func(e *testscript.Env) error {
			m := gputest.Start(e.T().(testing.TB), gputest.Host{
				CUDA: []gputest.CUDA{{Version: 13000}},
				GPUs: []gputest.GPU{{UUID: "GPU-11111111-2222-3333-4444-555555555555", Name: "NVIDIA H200", Bus: "00000000:06:00.0", CC: "9.0", SMs: 132,
					Memory: 150754820096}},
			})
			e.Setenv("LD_LIBRARY_PATH", m.Path("/usr/lib/x86_64-linux-gnu"))
			return nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){"server": startServer, "drain": drainServer, "fetch": fetch},
	})
}

// fetch is `fetch PATH`: what the server answers becomes the script's stdout.
func fetch(ts *testscript.TestScript, neg bool, args []string) {
	resp, err := http.Get(ts.Getenv("URL") + args[0])
	ts.Check(err)
	defer resp.Body.Close()
	_, err = io.Copy(ts.Stdout(), resp.Body)
	ts.Check(err)
}

package main

import (
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"cotenant/internal/gputest"
)

// What --backend cuda does, on fake drivers.
func TestCUDAScripts(t *testing.T) {
	t.Cleanup(gputest.Cleanup)
	testscript.Run(t, testscript.Params{
		Dir: "testdata/cuda", RequireExplicitExec: true,
		Setup: func(e *testscript.Env) error {
			e.Values["test"] = e.T()
			return oneServer(e)
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){"gpu": machineWithGPU, "server": startServer, "drain": drainServer,
			"fetch": fetch, "dies": serverDies},
	})
}

// machineWithGPU is `gpu CAPABILITY MEMORY-MIB [FUNCTION:CALL:CODE]…`: from here on the script's machine has such a GPU, whose driver's
// functions fail at that call.
func machineWithGPU(ts *testscript.TestScript, neg bool, args []string) {
	mib, err := strconv.ParseUint(args[1], 10, 64)
	ts.Check(err)
	h := gputest.Host{CUDA: []gputest.CUDA{{Version: 13000}}, GPUs: []gputest.GPU{{UUID: "GPU-11111111-2222-3333-4444-555555555555",
		Name: "NVIDIA H200", Bus: "00000000:06:00.0", CC: args[0], SMs: 132, Memory: mib << 20}}}
	for _, a := range args[2:] {
		var f gputest.Fault
		_, err := fmt.Sscanf(strings.ReplaceAll(a, ":", " "), "%s %d %d", &f.Symbol, &f.Call, &f.Code)
		ts.Check(err)
		h.Faults = append(h.Faults, f)
	}
	m := gputest.Start(ts.Value("test").(testing.TB), h)
	ts.Setenv("LD_LIBRARY_PATH", m.Path("/usr/lib/x86_64-linux-gnu"))
}

// serverDies is `dies TEXT`: the server ends with exit code 1 by itself within a minute, and its log holds TEXT.
func serverDies(ts *testscript.TestScript, neg bool, args []string) {
	select {
	case err := <-serverOf(ts).done:
		if err == nil || err.Error() != "exit status 1" {
			ts.Fatalf("the server ended with %v, want exit status 1", err)
		}
	case <-time.After(time.Minute):
		ts.Fatalf("the server goes on")
	}
	if log := ts.ReadFile("serve.log"); !strings.Contains(log, args[0]) {
		ts.Fatalf("the log has no %q:\n%s", args[0], log)
	}
}

// fetch is `fetch PATH [BODY]`: what the server answers, its status first, becomes the script's stdout.
func fetch(ts *testscript.TestScript, neg bool, args []string) {
	ask := func() (*http.Response, error) { return http.Get(ts.Getenv("URL") + args[0]) }
	if len(args) > 1 {
		ask = func() (*http.Response, error) {
			return http.Post(ts.Getenv("URL")+args[0], "application/json", strings.NewReader(args[1]))
		}
	}
	resp, err := ask()
	ts.Check(err)
	defer resp.Body.Close()
	fmt.Fprintln(ts.Stdout(), resp.Status)
	_, err = io.Copy(ts.Stdout(), resp.Body)
	ts.Check(err)
}

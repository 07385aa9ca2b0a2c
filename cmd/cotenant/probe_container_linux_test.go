package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"cotenant/internal/container/enginetest"
	"cotenant/internal/gputest"
)

// Scripts with a real Docker engine, whose NVIDIA hook does nothing: the driver, a fake, is in the image, which comes from a registry
// on loopback. $BARE is the socket of an engine that has no hook. The program in the container is this test's, which is cotenant there.
func TestProbeContainerScripts(t *testing.T) {
	enginetest.Needs(t)
	t.Cleanup(gputest.Cleanup)
	m := h200(t)
	registry := enginetest.StartRegistry(t)
	t.Cleanup(registry.Stop)
	name, digest := registry.Push(t, "probe", enginetest.Config{Env: []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin"}}, enginetest.Rootfs(t),
		enginetest.Layer(t, m.ImageFiles(t)))
	engine, bare := enginetest.Start(t, enginetest.QuietHook), enginetest.Start(t, enginetest.NoHook)
	t.Cleanup(engine.Stop)
	t.Cleanup(bare.Stop)
	scripts, err := filepath.Glob("testdata/probe_container/*.txtar")
	if err != nil || len(scripts) == 0 {
		t.Fatalf("no scripts: %v", err)
	}
	setup := func(e *testscript.Env) error {
		play(e, m)
		e.Setenv("ENGINE", engine.Socket)
		e.Setenv("BARE", bare.Socket)
		e.Setenv("DOCKER_HOST", "unix://"+engine.Socket)
		e.Setenv("IMAGE", name+"@"+digest)
		e.Setenv(testImage, name+" "+digest)
		return nil
	}
	// One after another: they have one engine, and a container's name.
	for _, script := range scripts {
		t.Run(filepath.Base(script), func(t *testing.T) {
			testscript.Run(t, testscript.Params{Files: []string{script}, RequireExplicitExec: true, Setup: setup,
				Cmds: map[string]func(*testscript.TestScript, bool, []string){"engine": askEngine, "replace": replace}})
		})
	}
}

// askEngine is `engine METHOD PATH [BODY]`: asks the engine of $ENGINE, prints the answer; with !, it must be an error.
func askEngine(ts *testscript.TestScript, neg bool, args []string) {
	socket, body := ts.Getenv("ENGINE"), ""
	if len(args) > 2 {
		body = args[2]
	}
	client := http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", socket)
	}}}
	req, err := http.NewRequest(args[0], "http://engine"+args[1], bytes.NewReader([]byte(body)))
	ts.Check(err)
	req.Header.Set("Content-Type", "application/json")
	resp, err := client.Do(req)
	ts.Check(err)
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	ts.Check(err)
	if (resp.StatusCode >= 400) != neg {
		ts.Fatalf("%s: %s", resp.Status, answer)
	}
	fmt.Fprintf(ts.Stdout(), "%s\n", answer)
}

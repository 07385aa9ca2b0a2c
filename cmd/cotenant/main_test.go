package main

import (
	"bufio"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"cotenant/internal/bounded"
	"cotenant/internal/container"
	"cotenant/internal/testenv"
)

func TestMain(m *testing.M) {
	bounded.ServeChild(childTasks())
	testscript.Main(m, map[string]func(){"cotenant": func() { reviewTestImage(); main() }})
}

// testImage names an image that a script's engine can pull, for reviewTestImage: NAME DIGEST.
const testImage = "COTENANT_TEST_IMAGE"

// reviewTestImage makes the image of a script's registry a reviewed one. The program itself has no such variable.
func reviewTestImage() {
	if name, digest, ok := strings.Cut(os.Getenv(testImage), " "); ok {
		containerImages = []container.Image{{Name: name, Digest: digest, Platform: "linux/" + runtime.GOARCH, Why: "made by this test"}}
	}
}

// Each file under testdata is one behaviour of the command line.
func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata",
		RequireExplicitExec: true,
		Setup:               oneServer,
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"server": startServer, "drain": drainServer, "nudge": nudge, "replace": replace,
		},
	})
}

// SmolLM2 is served, soaked at rung 100 and verified, as its user would.
func TestSmolLM2(t *testing.T) {
	path := testenv.Model(t, "SmolLM2-135M-Instruct.Q4_1.gguf")
	testscript.Run(t, testscript.Params{
		Files:               []string{"testdata/model/smollm2.txtar"},
		RequireExplicitExec: true,
		Setup: func(e *testscript.Env) error {
			e.Setenv("MODEL", path)
			return oneServer(e)
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){"server": startServer, "drain": drainServer},
	})
}

// runningServer is a script's server; a script has at most one at a time. It is kept in the script's own values, since scripts of one test
// run side by side.
type runningServer struct {
	cmd  *exec.Cmd
	done chan error
}

// oneServer is the Setup of scripts that have the command `server`.
func oneServer(e *testscript.Env) error {
	e.Setenv("GORACE", "atexit_sleep_ms=0") // else each program sleeps for a second before it exits, under the race detector
	e.Values["server"] = &runningServer{}
	return nil
}

func serverOf(ts *testscript.TestScript) *runningServer { return ts.Value("server").(*runningServer) }

// startServer is the script command `server ARG…`: it starts `cotenant serve ARG…` on a free port and sets $URL once it is
// ready.
func startServer(ts *testscript.TestScript, neg bool, args []string) {
	self, err := exec.LookPath(filepath.Join(binFolder(ts), "cotenant"))
	ts.Check(err)
	cmd := exec.Command(self, append([]string{"serve", "--listen", "127.0.0.1:0", "--json"}, args...)...)
	cmd.Dir = ts.Getenv("WORK")
	cmd.Env = append(os.Environ(), "COTENANT_API_KEY="+ts.Getenv("COTENANT_API_KEY"), "LD_LIBRARY_PATH="+ts.Getenv("LD_LIBRARY_PATH"))
	log, err := os.Create(ts.MkAbs("serve.log"))
	ts.Check(err)
	cmd.Stderr = log
	out, err := cmd.StdoutPipe()
	ts.Check(err)
	ts.Check(cmd.Start())
	s := serverOf(ts)
	s.cmd, s.done = cmd, make(chan error, 1)
	ended := s.done
	ts.Defer(func() { cmd.Process.Kill() })
	var ready readyLine
	if err := json.NewDecoder(bufio.NewReader(out)).Decode(&ready); err != nil {
		text, _ := os.ReadFile(ts.MkAbs("serve.log"))
		ts.Fatalf("server not ready: %v\n%s", err, text)
	}
	go func() { ended <- cmd.Wait() }()
	ts.Setenv("URL", ready.Endpoint)
}

func binFolder(ts *testscript.TestScript) string {
	for _, dir := range filepath.SplitList(ts.Getenv("PATH")) {
		if _, err := os.Stat(filepath.Join(dir, "cotenant")); err == nil {
			return dir
		}
	}
	ts.Fatalf("cotenant is not on PATH")
	return ""
}

// drainServer is `drain`: SIGTERM, and the server must exit with 0 within a minute.
func drainServer(ts *testscript.TestScript, neg bool, args []string) {
	s := serverOf(ts)
	ts.Check(s.cmd.Process.Signal(syscall.SIGTERM))
	select {
	case err := <-s.done:
		ts.Check(err)
	case <-time.After(time.Minute):
		ts.Fatalf("the server didn't drain")
	}
}

// nudge is `nudge FILE KEY`: the first number after "KEY": in FILE grows by one.
func nudge(ts *testscript.TestScript, neg bool, args []string) {
	text := ts.ReadFile(args[0])
	at := strings.Index(text, `"`+args[1]+`":`)
	if at < 0 {
		ts.Fatalf("%s has no %s", args[0], args[1])
	}
	at += len(args[1]) + 3
	end := at
	for end < len(text) && text[end] >= '0' && text[end] <= '9' {
		end++
	}
	var n json.Number = json.Number(text[at:end])
	v, err := n.Int64()
	ts.Check(err)
	b, err := json.Marshal(v + 1)
	ts.Check(err)
	ts.Check(os.WriteFile(ts.MkAbs(args[0]), []byte(text[:at]+string(b)+text[end:]), 0o644))
}

// replace is `replace FILE OLD NEW`: the first OLD, which must be there, becomes NEW.
func replace(ts *testscript.TestScript, neg bool, args []string) {
	text := ts.ReadFile(args[0])
	if !strings.Contains(text, args[1]) {
		ts.Fatalf("%s doesn't hold %q", args[0], args[1])
	}
	ts.Check(os.WriteFile(ts.MkAbs(args[0]), []byte(strings.Replace(text, args[1], args[2], 1)), 0o644))
}

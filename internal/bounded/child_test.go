package bounded

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"
)

func TestMain(m *testing.M) {
	ServeChild(map[string]Task{
		"echo": func(req []byte, out *Reporter) error {
			out.Calling("first")
			fmt.Println("noise between")
			out.Part("said", json.RawMessage(req))
			fmt.Print("noise without an end")
			out.Part("env", os.Getenv("X"))
			return nil
		},
		"fail": func([]byte, *Reporter) error { return errors.New("it did not work") },
		"hang": func(_ []byte, out *Reporter) error {
			out.Part("a", 1)
			out.Calling("theCall")
			select {}
		},
		"crash": func(_ []byte, out *Reporter) error {
			out.Calling("theCall")
			panic("crash")
		},
		"exit": func(_ []byte, out *Reporter) error {
			out.Part("a", 1)
			os.Exit(0)
			return nil
		},
		"unencodable": func(_ []byte, out *Reporter) error {
			out.Part("a", func() {})
			return nil
		},
	})
	os.Exit(m.Run())
}

func TestChild(t *testing.T) {
	r := Child(context.Background(), "echo", map[string]int{"a": 1}, append(os.Environ(), "X=y"), 0)
	if !r.Done || r.Failure != "" || r.Calling != "" || r.Crashed() {
		t.Fatalf("%+v", r)
	}
	if len(r.Parts) != 2 || r.Parts[0].Kind != "said" || string(r.Parts[0].Value) != `{"a":1}` || string(r.Parts[1].Value) != `"y"` {
		t.Errorf("parts %+v", r.Parts)
	}
	if !strings.Contains(r.Noise, "noise between") || !strings.Contains(r.Noise, "noise without an end") {
		t.Errorf("noise %q", r.Noise)
	}
}

func TestChildFaults(t *testing.T) {
	for task, c := range map[string]struct {
		crashed, hung, bad bool
		calling, reason    string
		parts              int
	}{
		"fail":        {false, false, true, "", "it did not work", 0},
		"hang":        {false, true, true, "theCall", "did not answer by the deadline, in theCall", 1},
		"crash":       {true, false, true, "theCall", "ended the process in theCall", 0},
		"exit":        {true, false, true, "", "ended the process before the first call", 1},
		"absent":      {false, false, true, "", `no task "absent"`, 0},
		"unencodable": {false, false, false, "", "", 0},
	} {
		limit := 50 * time.Second
		if c.hung {
			limit = 4 * time.Second // until it has said what it calls, on a busy machine
		}
		r := Child(context.Background(), task, nil, os.Environ(), limit)
		reason, bad := r.Fault("the library")
		if bad != c.bad || r.Crashed() != c.crashed || r.Hung() != c.hung || r.Calling != c.calling || len(r.Parts) != c.parts || !strings.Contains(reason, c.reason) {
			t.Errorf("%s: %q, crashed %v, hung %v, calling %q, %d parts, failure %q", task, reason, r.Crashed(), r.Hung(), r.Calling, len(r.Parts), r.Failure)
		}
		if len(r.Stderr) > 64<<10 {
			t.Errorf("%s: %d bytes of stderr", task, len(r.Stderr))
		}
	}
}

// A request that doesn't fit is refused; nothing is started.
func TestChildRequest(t *testing.T) {
	r := Child(context.Background(), "echo", strings.Repeat("x", 5000), os.Environ(), 0)
	if r.Outcome != NotStarted {
		t.Errorf("%+v", r)
	}
	if r = Child(context.Background(), "echo", func() {}, os.Environ(), 0); r.Outcome != NotStarted || r.Err == nil {
		t.Errorf("%+v", r)
	}
}

// An orphan ends by itself.
func TestChildLife(t *testing.T) {
	in, _ := json.Marshal(childInput{LifeMS: 100, Request: json.RawMessage("null")})
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	r := Run(context.Background(), Command{Path: self, Env: append(os.Environ(), ChildVariable+"=hang"), Stdin: string(in), Timeout: 20 * time.Second})
	if r.Outcome != Exited || r.ExitCode != 124 {
		t.Errorf("%s %d", r.Outcome, r.ExitCode)
	}
}

func TestServe(t *testing.T) {
	var out bytes.Buffer
	if code := serve("x", map[string]Task{"x": func([]byte, *Reporter) error { return nil }}, strings.NewReader("not JSON"), &out); code != 1 {
		t.Errorf("code %d", code)
	}
	if r := decode(Result{Outcome: Exited, Stdout: out.Bytes()}); !strings.Contains(r.Failure, "reading the request") {
		t.Errorf("%+v", r)
	}
}

func TestSearched(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(dir+"/libx.so.1", nil, 0o644); err != nil {
		t.Fatal(err)
	}
	env := []string{"LD_LIBRARY_PATH=/nonexistent:" + dir + ":relative:"}
	if got := Searched("", env, "libx.so.1"); len(got) != 1 || got[0] != "libx.so.1" {
		t.Errorf("%q", got)
	}
	if got := Searched("/root", env, "libx.so.1"); len(got) != 1 || got[0] != dir+"/libx.so.1" {
		t.Errorf("%q", got)
	}
}

func TestWithoutVariables(t *testing.T) {
	got := WithoutVariables([]string{"A=1", "AB=2", "B=3", "C"}, "A", "C", "D")
	if strings.Join(got, " ") != "AB=2 B=3 C" {
		t.Errorf("%q", got)
	}
}

// What a child prints is foreign: records may be torn, doubled, or no JSON.
func FuzzDecode(f *testing.F) {
	f.Add([]byte("\x1e{\"part\":\"a\",\"value\":1}\n\x1e{\"done\":true}\n"))
	f.Add([]byte("noise\x1e{\"call\":\"cuInit\"}\nmore\x1e{\"part\":"))
	f.Add([]byte("\x1e\x1e\n\x1e{}\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		r := decode(Result{Outcome: Exited, Stdout: b})
		for _, p := range r.Parts {
			if p.Kind == "" || p.Value != nil && !json.Valid(p.Value) {
				t.Errorf("part %+v", p)
			}
		}
		if r.Done && r.Calling != "" {
			t.Error("done and calling")
		}
	})
}

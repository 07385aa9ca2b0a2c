package container

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"cotenant/internal/container/enginetest"
	"cotenant/internal/observe"
)

// between listens on a socket before an engine and lets a function answer instead of it, or change what passes.
func between(t *testing.T, e *enginetest.Engine, f func(w http.ResponseWriter, r *http.Request, next http.Handler)) string {
	t.Helper()
	dir, err := os.MkdirTemp("/tmp", "cf")
	if err != nil {
		t.Fatal(err)
	}
	socket := filepath.Join(dir, "s")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	next := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: "docker"})
	next.FlushInterval = -1
	next.ErrorHandler = func(http.ResponseWriter, *http.Request, error) { panic(http.ErrAbortHandler) }
	next.Transport = &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", e.Socket)
	}}
	s := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { f(w, r, next) })}
	go func() { _ = s.Serve(l) }()
	t.Cleanup(func() { s.Close(); os.RemoveAll(dir) })
	return socket
}

// ask matches a request: a method and the path's end, where {id}/json is that of one container.
func ask(r *http.Request, method, end string) bool {
	if end == "{id}/json" {
		return r.Method == method && strings.HasSuffix(r.URL.Path, "/json") && strings.Contains(r.URL.Path, "/containers/") && !strings.HasSuffix(r.URL.Path, "/containers/json")
	}
	return r.Method == method && strings.HasSuffix(r.URL.Path, end)
}

// answer writes what an engine would.
func answer(w http.ResponseWriter, code int, body string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	fmt.Fprint(w, body)
}

// rewritten passes a request on and changes the JSON of the answer.
func rewritten(w http.ResponseWriter, r *http.Request, next http.Handler, change func(map[string]any)) {
	got := &recorder{header: make(http.Header)}
	next.ServeHTTP(got, r)
	var m map[string]any
	if json.Unmarshal(got.body.Bytes(), &m) == nil && got.code < 400 {
		change(m)
	}
	b, _ := json.Marshal(m)
	answer(w, max(got.code, 200), string(b))
}

type recorder struct {
	header http.Header
	body   bytes.Buffer
	code   int
}

func (r *recorder) Header() http.Header         { return r.header }
func (r *recorder) Write(b []byte) (int, error) { return r.body.Write(b) }
func (r *recorder) WriteHeader(code int)        { r.code = code }

type fault struct {
	name   string
	mode   string // exit unless it says otherwise
	f      func(w http.ResponseWriter, r *http.Request, next http.Handler) bool
	ended  string
	status observe.Status
	want   string
	left   bool // the cleanup can't be proven: the engine refuses it
	limit  time.Duration
	stopAt string // the step soon after whose beginning the run is interrupted
}

// Whatever the engine answers, the run says what was wrong, and nothing stays.
func TestEngineFaults(t *testing.T) {
	e, image := engineWith(t, enginetest.QuietHook)
	have(t, e, image)
	instead := func(method, end string, code int, body string) func(http.ResponseWriter, *http.Request, http.Handler) bool {
		return func(w http.ResponseWriter, r *http.Request, _ http.Handler) bool {
			if ask(r, method, end) {
				answer(w, code, body)
				return true
			}
			return false
		}
	}
	changed := func(method, end string, change func(map[string]any)) func(http.ResponseWriter, *http.Request, http.Handler) bool {
		return func(w http.ResponseWriter, r *http.Request, next http.Handler) bool {
			if ask(r, method, end) {
				rewritten(w, r, next, change)
				return true
			}
			return false
		}
	}
	hang := func(method, end string) func(http.ResponseWriter, *http.Request, http.Handler) bool {
		return func(_ http.ResponseWriter, r *http.Request, _ http.Handler) bool {
			if ask(r, method, end) {
				<-r.Context().Done()
				return true
			}
			return false
		}
	}
	host := func(key string, value any) func(map[string]any) {
		return func(m map[string]any) { m["HostConfig"].(map[string]any)[key] = value }
	}
	const get, post = http.MethodGet, http.MethodPost
	for _, c := range []fault{
		{name: "an old engine", f: changed(get, "/version", func(m map[string]any) { m["ApiVersion"] = "1.40" }), ended: Blocked, status: observe.BlockedByRuntimeVersion, want: "API 1.40"},
		{name: "no version", f: instead(get, "/version", 200, `{}`), ended: Blocked, status: observe.BlockedByRuntimeVersion, want: "API"},
		{name: "no JSON", f: instead(get, "/version", 200, `<html>`), ended: Failed, status: observe.Unknown, want: "can't be read"},
		{name: "an error", f: instead(get, "/info", 500, `{"message":"oh"}`), ended: Failed, status: observe.Unknown, want: "500: oh"},
		{name: "an error that isn't JSON", f: instead(get, "/info", 502, "bad\x00gateway"), ended: Failed, status: observe.Unknown, want: "502: bad gateway"},
		{name: "an endless answer", f: instead(get, "/info", 200, strings.Repeat(" ", maxAnswer+2)), ended: Failed, status: observe.Unknown, want: "more than"},
		{name: "no answer", f: hang(get, "/info"), ended: Blocked, status: observe.Hung, want: "did not answer", limit: time.Second},
		{name: "no control groups", f: changed(get, "/info", func(m map[string]any) { m["MemoryLimit"] = false }), ended: Blocked, status: observe.BlockedByEnvironment, want: "can't bound memory"},
		{name: "another platform", f: changed(get, "/version", func(m map[string]any) { m["Arch"] = "riscv64" }), ended: Blocked, status: observe.BlockedByEnvironment, want: "linux/riscv64"},
		{name: "containers not listed", f: instead(get, "/containers/json", 500, `{"message":"oh"}`), ended: Failed, status: observe.Unknown, want: "oh"},
		{name: "volumes are no object", f: instead(get, "/volumes", 200, `[]`), ended: Failed, status: observe.Unknown, want: "can't be read"},
		{name: "another image", f: func(w http.ResponseWriter, r *http.Request, next http.Handler) bool {
			if !strings.Contains(r.URL.Path, "/images/") || r.Method != get {
				return false
			}
			rewritten(w, r, next, func(m map[string]any) {
				m["RepoDigests"] = []string{"x@sha256:" + strings.Repeat("1", 64)}
			})
			return true
		}, ended: Failed, status: observe.Unknown, want: "no image of digest"},
		{name: "not made", f: instead(post, "/containers/create", 500, `{"message":"no space left"}`), ended: Failed, status: observe.Unknown, want: "no space left"},
		{name: "program not seen", f: instead(post, "/containers/create", 400, `{"message":"invalid mount config for type \"bind\": bind source path does not exist: /x"}`), ended: Blocked, status: observe.BlockedByEnvironment, want: "doesn't see this program"},
		{name: "made, and the answer lost", f: func(w http.ResponseWriter, r *http.Request, next http.Handler) bool {
			if !ask(r, post, "/containers/create") {
				return false
			}
			next.ServeHTTP(&recorder{header: make(http.Header)}, r)
			panic(http.ErrAbortHandler)
		}, ended: Failed, status: observe.Unknown, want: "POST /containers/create"},
		{name: "made privileged", f: changed(get, "{id}/json", host("Privileged", true)), ended: Failed, status: observe.Unknown, want: "another Privileged"},
		{name: "made with a bind", f: changed(get, "{id}/json", host("Binds", []string{"/:/host"})), ended: Failed, status: observe.Unknown, want: "another Binds"},
		{name: "made in the host's network", f: changed(get, "{id}/json", host("NetworkMode", "host")), ended: Failed, status: observe.Unknown, want: "another NetworkMode"},
		{name: "made without limits", f: changed(get, "{id}/json", host("Memory", 0)), ended: Failed, status: observe.Unknown, want: "another Memory"},
		{name: "another program mounted", f: func(w http.ResponseWriter, r *http.Request, _ http.Handler) bool {
			if !ask(r, get, "/archive") {
				return false
			}
			var b bytes.Buffer
			tw := tar.NewWriter(&b)
			_ = tw.WriteHeader(&tar.Header{Name: "cotenant", Size: 3, Mode: 0o755, Typeflag: tar.TypeReg})
			_, _ = io.WriteString(tw, "abc")
			_ = tw.Close()
			answer(w, 200, b.String())
			return true
		}, ended: Failed, status: observe.Unknown, want: "another file"},
		{name: "nothing mounted", f: instead(get, "/archive", 404, `{"message":"no such file"}`), ended: Failed, status: observe.Unknown, want: "no such file"},
		{name: "no archive", f: instead(get, "/archive", 200, "no tar"), ended: Failed, status: observe.Unknown, want: "mounted program"},
		{name: "output that is none", f: instead(post, "/attach", 200, "HELLO WORLD HELLO"), ended: Failed, status: observe.Unknown, want: "not a frame"},
		{name: "output cut", f: instead(post, "/attach", 200, "\x01\x00\x00\x00\x00\x00\x00\x09abc"), ended: Failed, status: observe.Unknown, want: "unexpected EOF"},
		{name: "no output", f: instead(post, "/attach", 200, ""), ended: Exited, status: observe.SupportedProven},
		{name: "a device that CDI doesn't know", f: instead(post, "/start", 500, `{"message":"CDI device injection failed: unresolvable CDI devices nvidia.com/gpu=GPU-1"}`), ended: Blocked, status: observe.BlockedByEnvironment, want: "hook failed"},
		{name: "not started", f: instead(post, "/start", 500, `{"message":"cgroups: no such thing"}`), ended: Failed, status: observe.Unknown, want: "no such thing"},
		{name: "a wait without an answer", mode: "hang", f: instead(post, "/wait", 200, ""), ended: Failed, status: observe.Unknown, want: "waiting for the container"},
		{name: "a wait that fails", f: instead(post, "/wait", 404, `{"message":"gone"}`), ended: Failed, status: observe.Unknown, want: "gone"},
		{name: "made with another deadline", mode: "hang", f: func(w http.ResponseWriter, r *http.Request, next http.Handler) bool {
			if !ask(r, post, "/containers/create") {
				return false
			}
			b, _ := io.ReadAll(r.Body)
			b = bytes.Replace(b, []byte(`"`+DeadlineVariable+"="), []byte(`"`+DeadlineVariable+"=1h "), 1)
			r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(b)), int64(len(b))
			next.ServeHTTP(w, r)
			return true
		}, ended: Failed, status: observe.Unknown, want: "another Env"},
		{name: "a list that is none", f: func(w http.ResponseWriter, r *http.Request, _ http.Handler) bool {
			if !ask(r, get, "/containers/json") || r.URL.Query().Get("filters") == "" {
				return false
			}
			answer(w, 200, "null")
			return true
		}, ended: Failed, status: observe.SupportedProven, want: "no list", left: true},
		{name: "a list without the container", f: func(w http.ResponseWriter, r *http.Request, next http.Handler) bool {
			if ask(r, get, "/containers/json") && r.URL.Query().Get("filters") != "" {
				answer(w, 200, "[]")
				return true
			}
			if ask(r, post, "/start") {
				answer(w, 500, `{"message":"cgroups: no such thing"}`)
				return true
			}
			return false
		}, ended: Failed, status: observe.Unknown, want: "no such thing", left: true},
		{name: "not removed", mode: "hang", f: instead(http.MethodDelete, "", 500, `{"message":"device busy"}`), ended: Interrupted, status: observe.Unknown, left: true, stopAt: "start_container"},
	} {
		t.Run(c.name, func(t *testing.T) { c.play(t, e, image) })
	}
}

func (c fault) play(t *testing.T, e *enginetest.Engine, image Image) {
	socket := between(t, e, func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		if !c.f(w, r, next) {
			next.ServeHTTP(w, r)
		}
	})
	defer func() { // what one case left is not the next one's fault
		if got, err := Cleanup(t.Context(), CleanupOptions{Run: testRun, Socket: e.Socket}); err != nil {
			t.Errorf("%v: %+v", err, got)
		}
		nothingLeft(t, e)
	}()
	mode := c.mode
	if mode == "" {
		mode = "exit"
	}
	p := planFor(t, e, image, mode)
	p.o.Env = []string{"DOCKER_HOST=unix://" + socket}
	if c.left {
		p.o.patience = 500 * time.Millisecond
	}
	ctx := t.Context()
	if c.limit > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, c.limit)
		defer cancel()
	}
	if c.stopAt != "" {
		var cancel context.CancelFunc
		ctx, cancel = context.WithCancel(ctx)
		defer cancel()
		p.o.Journal.(*journal).before = func(step string) error {
			if step == c.stopAt {
				time.AfterFunc(500*time.Millisecond, cancel)
			}
			return nil
		}
	}
	o, err := p.Run(ctx)
	if (err == nil) != (c.ended == Exited) || err != nil && !strings.Contains(err.Error(), c.want) || o.Ended != c.ended || o.Status != c.status {
		t.Errorf("%v: %+v", err, o)
	}
	if c.left {
		if o.Cleanup.Complete || len(o.Cleanup.Left) == 0 {
			t.Errorf("cleanup: %+v", o.Cleanup)
		}
		return
	}
	if !o.Cleanup.Complete || o.ContainerID != "" && !o.Cleanup.Absent.Or(false) {
		t.Errorf("cleanup: %+v", o.Cleanup)
	}
	nothingLeft(t, e)
}

// Where no engine is, that is the environment's doing.
func TestNoEngine(t *testing.T) {
	dir := t.TempDir()
	dead := filepath.Join(dir, "dead")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: dead, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	l.Close()
	for name, host := range map[string]string{"absent": "unix://" + dir + "/none", "dead": "unix://" + dead, "remote": "tcp://127.0.0.1:2375", "ssh": "ssh://host"} {
		t.Run(name, func(t *testing.T) {
			o := testOptions("")
			o.Env = []string{"DOCKER_HOST=" + host}
			p, err := NewPlan(o)
			if err != nil {
				t.Fatal(err)
			}
			out, err := p.Run(t.Context())
			if err == nil || out.Ended != Blocked || out.Status != observe.BlockedByEnvironment || out.MutatedState || !out.Cleanup.Complete {
				t.Errorf("%v: %+v", err, out)
			}
			if f := p.Preflight(t.Context(), true); f.Status != observe.BlockedByEnvironment || f.Engine != nil {
				t.Errorf("%+v", f)
			}
		})
	}
}

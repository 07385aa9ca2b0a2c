package container

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"cotenant/internal/container/enginetest"
)

// crashVariable holds a crashing as JSON in the environment of a run that is to be killed.
const crashVariable = "COTENANT_CONTAINER_CRASH"

// crashing says when a run's process is killed: so long after it begins a step, not before.
type crashing struct {
	Env     []string
	Image   Image
	At      string
	AfterMS int
	Mode    string
}

// crash plays the supervisor: it prints each step, like a journal, and kills itself.
func crash(text string) {
	var c crashing
	if err := json.Unmarshal([]byte(text), &c); err != nil {
		panic(err)
	}
	o := testOptions("")
	o.Arguments, o.Env, o.Images, o.Deadline, o.grace = []string{"play", c.Mode}, c.Env, []Image{c.Image}, time.Millisecond, 4*time.Second
	o.Journal = &journal{before: func(step string) error {
		fmt.Println(step)
		if step == c.At {
			die := func() { _ = syscall.Kill(os.Getpid(), syscall.SIGKILL) }
			if c.AfterMS < 0 {
				die()
			}
			time.AfterFunc(time.Duration(c.AfterMS)*time.Millisecond, die)
		}
		return nil
	}}
	p, err := NewPlan(o)
	if err == nil {
		_, err = p.Run(context.Background())
	}
	fmt.Println("not killed:", err)
	os.Exit(0)
}

// crashed runs a plan in a process that kills itself, and returns its journal.
func crashed(t *testing.T, c crashing) []string {
	t.Helper()
	text, err := json.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), crashVariable+"="+string(text))
	out, err := cmd.CombinedOutput()
	if err == nil || !strings.Contains(err.Error(), "killed") {
		t.Fatalf("the run was not killed: %v\n%s", err, out)
	}
	return strings.Split(strings.TrimSpace(string(out)), "\n")
}

// Wherever the supervisor is killed, what it left is found by the run's label and the journal, and goes; what isn't the run's stays.
func TestKilledAnywhere(t *testing.T) {
	e, image := engineWith(t, enginetest.QuietHook)
	for _, c := range []struct {
		at    string
		after int
	}{
		{"pull_image", -1}, {"pull_image", 100}, {"pull_image", 400}, {"create_container", -1}, {"create_container", 1}, {"create_container", 20},
		{"create_container", 300}, {"start_container", -1}, {"start_container", 50}, {"start_container", 300}, {"start_container", 800}, {"remove_container", -1},
	} {
		t.Run(fmt.Sprintf("%s %d", c.at, c.after), func(t *testing.T) {
			mode := "hang"
			if c.at == "remove_container" {
				mode = "exit"
			}
			if c.at == "pull_image" {
				lack(t, e, image)
			} else {
				have(t, e, image)
			}
			steps := crashed(t, crashing{e.Env, image, c.at, c.after, mode})
			o := CleanupOptions{Run: testRun, Socket: e.Socket}
			if c.at == "create_container" && c.after >= 0 {
				o.Asked = time.Now().Add(10*time.Second - AnswerTime) // the engine may still be at it; where it never was asked, 10 s pass
			}
			if slices.Contains(steps, "pull_image") {
				o.Image = image.Reference()
			}
			o.Dry = true
			before, err := Cleanup(t.Context(), o)
			if err != nil || slices.ContainsFunc(before.Containers, func(c CleanedContainer) bool { return c.Removed != "would be removed" }) {
				t.Fatalf("%v: %+v", err, before)
			}
			o.Dry = false
			after, err := Cleanup(t.Context(), o)
			if err != nil || !after.Complete || after.Listed.Or(-1) != 0 {
				t.Errorf("steps %v: %v: %+v", steps, err, after)
			}
			nothingLeft(t, e)
			if o.Image != "" {
				if there, err := client(t, e).present(t.Context(), image); err != nil || there.Or(true) {
					t.Errorf("the image is still there: %+v %v", there, err)
				}
			}
		})
	}
}

// A container that the engine makes after its supervisor was killed, and after anybody would have looked for it, is found too.
func TestMadeAfterItsSupervisorsEnd(t *testing.T) {
	e, image := engineWith(t, enginetest.QuietHook)
	have(t, e, image)
	killed := make(chan struct{})
	socket := between(t, e, func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		if ask(r, http.MethodPost, "/containers/create") {
			body, err := io.ReadAll(r.Body)
			if err != nil {
				t.Error(err)
			}
			<-killed
			time.Sleep(time.Second) // by now a cleanup looks
			r = r.WithContext(context.WithoutCancel(r.Context()))
			r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
			w = &recorder{header: make(http.Header)}
		}
		next.ServeHTTP(w, r)
	})
	asked := time.Now()
	crashed(t, crashing{[]string{"DOCKER_HOST=unix://" + socket}, image, "create_container", 1000, "hang"})
	close(killed)
	got, err := Cleanup(t.Context(), CleanupOptions{Run: testRun, Socket: e.Socket, Asked: asked})
	if err != nil || !got.Complete || len(got.Containers) != 1 || got.Containers[0].State != "created" || got.Containers[0].Removed != "removed" {
		t.Errorf("%v: %+v", err, got)
	}
	nothingLeft(t, e)
}

// A container whose supervisor is killed ends by its own deadline, and the engine removes it, with nobody's help.
func TestEndsAlone(t *testing.T) {
	e, image := engineWith(t, enginetest.QuietHook)
	have(t, e, image)
	crashed(t, crashing{e.Env, image, "start_container", 700, "hang"})
	c := client(t, e)
	all, err := c.of(t.Context(), testRun)
	// The engine goes on with the start that was asked of it, on a busy machine for some seconds.
	for until := time.Now().Add(30 * time.Second); err == nil && len(all) == 1 && all[0].State == "created" && time.Now().Before(until); {
		time.Sleep(50 * time.Millisecond)
		all, err = c.of(t.Context(), testRun)
	}
	if err != nil || len(all) > 1 || len(all) == 1 && all[0].State == "created" {
		t.Fatalf("%v: %+v", err, all)
	}
	for until := time.Now().Add(time.Minute); len(all) > 0; time.Sleep(50 * time.Millisecond) {
		if time.Now().After(until) {
			t.Fatal("it is still there")
		}
		if all, err = c.of(t.Context(), testRun); err != nil {
			t.Fatal(err)
		}
	}
	nothingLeft(t, e)
}

// A cleanup touches what carries the run's label, whatever the engine lists, and nothing else.
func TestCleanupTouchesOnlyOurs(t *testing.T) {
	e, image := engineWith(t, enginetest.QuietHook)
	have(t, e, image)
	c := client(t, e)
	for name, run := range map[string]string{"theirs": "", "another": testRun + "0"} {
		body := map[string]any{"Image": image.Reference(), "Cmd": []string{"/bin/true"}, "Labels": map[string]string{labelRun: run}}
		if err := c.call(t.Context(), callTimeout, http.MethodPost, "/containers/create?name="+name, nil, body, nil); err != nil {
			t.Fatal(err)
		}
	}
	// This engine ignores filters.
	deaf := between(t, e, func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		query := r.URL.Query()
		query.Del("filters")
		r.URL.RawQuery = query.Encode()
		next.ServeHTTP(w, r)
	})
	for _, socket := range []string{e.Socket, deaf} {
		got, err := Cleanup(t.Context(), CleanupOptions{Run: testRun, Socket: socket})
		if err != nil || len(got.Containers) != 0 || !got.Complete {
			t.Errorf("%v: %+v", err, got)
		}
	}
	for _, name := range []string{"theirs", "another"} {
		if err := c.call(t.Context(), callTimeout, http.MethodDelete, "/containers/"+name, nil, nil, nil); err != nil {
			t.Errorf("%s is gone: %v", name, err)
		}
	}
	if _, err := Cleanup(t.Context(), CleanupOptions{Socket: e.Socket}); err == nil {
		t.Error("no error without a run id")
	}
}

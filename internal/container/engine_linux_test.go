package container

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"cotenant/internal/container/enginetest"
	"cotenant/internal/observe"
)

// journal keeps what a run recorded, and fails or calls to order.
type journal struct {
	steps  []string
	before func(step string) error
}

func (j *journal) Step(step string, _ int, _ map[string]string, f func() error) error {
	j.steps = append(j.steps, step)
	if j.before != nil {
		if err := j.before(step); err != nil {
			return err
		}
	}
	return f()
}

// planFor plans the playing of a mode with an engine; the image is there already unless fresh.
func planFor(t *testing.T, e *enginetest.Engine, image Image, mode string, changes ...string) *Plan {
	t.Helper()
	o := testOptions(changedFile(t, changes...))
	o.Arguments, o.Env, o.Images, o.Deadline, o.grace, o.Journal = []string{"play", mode}, e.Env, []Image{image}, 20*time.Second, 4*time.Second, &journal{}
	p, err := NewPlan(o)
	if err != nil {
		t.Fatal(err)
	}
	if len(p.Refusals) > 0 {
		t.Fatal(p.Refused())
	}
	return p
}

// have pulls the image for good, as a user would, so that runs leave it.
func have(t *testing.T, e *enginetest.Engine, image Image) {
	t.Helper()
	p := planFor(t, e, image, "report")
	c := client(t, e)
	if there, err := c.present(t.Context(), image); err != nil || there.Or(false) {
		return
	}
	r := &run{p: p, e: c, o: &Outcome{}}
	if err := r.pull(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// lack removes the image.
func lack(t *testing.T, e *enginetest.Engine, image Image) {
	t.Helper()
	if got := client(t, e).removeImage(t.Context(), image.Reference(), false); got != "removed" && got != "not there" {
		t.Fatal(got)
	}
}

func client(t *testing.T, e *enginetest.Engine) *engine {
	t.Helper()
	c, _, err := dial(t.Context(), e.Socket)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// nothingLeft fails where the engine has a container, or a network or volume beyond its own.
func nothingLeft(t *testing.T, e *enginetest.Engine) {
	t.Helper()
	c := client(t, e)
	var all []listed
	if err := c.call(t.Context(), callTimeout, http.MethodGet, "/containers/json", url.Values{"all": {"1"}}, nil, &all); err != nil {
		t.Fatal(err)
	}
	if len(all) > 0 {
		t.Errorf("containers left: %+v", all)
	}
	var networks []struct{ Name string }
	if err := c.call(t.Context(), callTimeout, http.MethodGet, "/networks", nil, nil, &networks); err != nil {
		t.Fatal(err)
	}
	for _, n := range networks {
		if !slices.Contains([]string{"bridge", "host", "none"}, n.Name) {
			t.Errorf("network left: %s", n.Name)
		}
	}
	var volumes struct{ Volumes []any }
	if err := c.call(t.Context(), callTimeout, http.MethodGet, "/volumes", nil, nil, &volumes); err != nil {
		t.Fatal(err)
	}
	if len(volumes.Volumes) > 0 {
		t.Errorf("volumes left: %v", volumes.Volumes)
	}
}

// The container is what the audit accepted, seen from inside; image and container are gone afterwards.
func TestRunFromInside(t *testing.T) {
	e, image := engineWith(t, enginetest.QuietHook)
	lack(t, e, image)
	p := planFor(t, e, image, "report", "mem_limit: 2g\n    memswap_limit: 2g", "mem_limit: 256m\n    memswap_limit: 256m")
	if f := p.Preflight(t.Context(), true); f.Status != observe.SupportedDeclared || f.ImagePresent.Or(true) {
		t.Fatalf("%+v", f)
	}
	o, err := p.Run(t.Context())
	if err != nil {
		t.Fatalf("%v\n%s\n%s", err, o.Stderr, e.Log())
	}
	var in inside
	if err := json.Unmarshal(o.Stdout, &in); err != nil {
		t.Fatalf("%v: %q, stderr %q", err, o.Stdout, o.Stderr)
	}
	for _, c := range []struct {
		what      string
		got, want any
	}{
		{"uid", in.UID, 65534}, {"gid", in.GID, 65534}, {"folder", in.Folder, "/tmp"}, {"processes", in.Processes, 1},
		{"effective capabilities", in.Status["CapEff"], "0000000000000000"}, {"bounding set", in.Status["CapBnd"], "0000000000000000"},
		{"no new privileges", in.Status["NoNewPrivs"], "1"}, {"groups", in.Status["Groups"], "65534"},
		{"interfaces", strings.Join(in.Interfaces, " "), "lo"}, {"/tmp writable", in.TmpWritable, "yes"}, {"size of /tmp", in.TmpSize, uint64(64 << 20)},
		{"memory limit", in.MemoryLimit, "268435456"}, {"arguments", strings.Join(in.Arguments, " "), "/cotenant play report"},
	} {
		if c.got != c.want {
			t.Errorf("%s: %v, want %v", c.what, c.got, c.want)
		}
	}
	for what, got := range map[string]string{"root": in.RootWritable, "program": in.BinWritable, "execution from /tmp": in.TmpExecutable} {
		if got == "yes" {
			t.Errorf("%s is possible", what)
		}
	}
	for _, v := range []string{"CUDA_DEVICE_ORDER=PCI_BUS_ID", "CUDA_VISIBLE_DEVICES=" + testUUID, "NVIDIA_VISIBLE_DEVICES=" + testUUID,
		"NVIDIA_DRIVER_CAPABILITIES=compute,utility", runVariable + "=" + testRun} {
		if !slices.Contains(in.Env, v) {
			t.Errorf("no %s in %v", v, in.Env)
		}
	}
	if o.Ended != Exited || o.ExitCode != 0 || !o.ImagePulled || o.Cleanup.Image != "removed" || !o.Cleanup.Complete || o.Cleanup.Listed.Or(-1) != 0 || !o.Cleanup.Absent.Or(false) || o.BinarySHA256.Or("") != p.Binary.SHA256 {
		t.Errorf("%+v", o)
	}
	var actions []string
	for _, v := range o.Events {
		actions = append(actions, v.Action)
	}
	for _, want := range []string{"create", "start", "die", "destroy"} {
		if !slices.Contains(actions, want) {
			t.Errorf("the engine's events have no %s: %v", want, actions)
		}
	}
	if want := []string{"pull_image", "create_container", "start_container", "remove_container"}; !slices.Equal(p.o.Journal.(*journal).steps, want) {
		t.Errorf("journal: %v, want %v", p.o.Journal.(*journal).steps, want)
	}
	if there, err := client(t, e).present(t.Context(), image); err != nil || there.Or(true) {
		t.Errorf("the image is still there: %+v %v", there, err)
	}
	nothingLeft(t, e)
}

const anyCode = -2

// However a container ends, it is told apart, and nothing stays.
func TestEnds(t *testing.T) {
	e, image := engineWith(t, enginetest.QuietHook)
	have(t, e, image)
	for _, c := range []struct {
		mode, ended string
		code        int
		changes     []string
		deadline    time.Duration
		check       func(*Outcome) bool
	}{
		{mode: "exit", ended: Exited, code: 7, check: func(o *Outcome) bool { return string(o.Stdout) == "bye\n" && string(o.Stderr) == "an error\n" }},
		{mode: "fill", ended: Exited, check: func(o *Outcome) bool { return len(o.Stdout) == MaxStdout }},
		{mode: "flood", ended: TooMuch, code: -1, check: func(o *Outcome) bool { return len(o.Stdout) == MaxStdout }},
		{mode: "flood-stderr", ended: TooMuch, code: -1, check: func(o *Outcome) bool { return len(o.Stderr) == MaxStderr }},
		{mode: "grow", ended: Exited, code: 137, changes: []string{"mem_limit: 2g\n    memswap_limit: 2g", "mem_limit: 128m\n    memswap_limit: 128m"},
			check: func(o *Outcome) bool { return o.OOMKilled }},
		{mode: "fork", ended: Exited, code: anyCode, changes: []string{"pids_limit: 512", "pids_limit: 32"},
			check: func(o *Outcome) bool { // threads count as well, and a Go program that gets none aborts
				var n int
				_, err := fmt.Sscanf(string(o.Stdout), "%d processes", &n)
				return err == nil && n < 32 || strings.Contains(string(o.Stderr), "Resource temporarily unavailable")
			}},
		{mode: "orphan", ended: Exited, check: func(o *Outcome) bool { return string(o.Stdout) == "<nil>\n" }},
		{mode: "hang", ended: OwnDeadline, code: 124, deadline: time.Millisecond, check: func(o *Outcome) bool { return string(o.Stdout) == "hanging\n" }},
	} {
		t.Run(c.mode, func(t *testing.T) {
			p := planFor(t, e, image, c.mode, c.changes...)
			if c.deadline > 0 {
				o := p.o
				o.Deadline = c.deadline
				var err error
				if p, err = NewPlan(o); err != nil {
					t.Fatal(err)
				}
			}
			o, err := p.Run(t.Context())
			if (err == nil) != (c.ended == Exited) {
				t.Errorf("error %v", err)
			}
			if o.Ended != c.ended || c.code != anyCode && o.ExitCode != c.code || !o.Cleanup.Complete || !c.check(o) {
				t.Errorf("ended %s with %d (%v), stdout %.100q stderr %.100q, events %v, cleanup %+v", o.Ended, o.ExitCode, err, o.Stdout, o.Stderr, o.Events, o.Cleanup)
			}
			if o.Cleanup.Image != "not pulled" {
				t.Errorf("image that was there before: %s", o.Cleanup.Image)
			}
			nothingLeft(t, e)
		})
	}
}

// An engine without the hook, or whose hook finds no driver, is the environment's fault.
func TestBlockedWithoutHook(t *testing.T) {
	for name, c := range map[string]struct {
		hook enginetest.Hook
		want string
	}{"none": {enginetest.NoHook, "nvidia-container-runtime-hook"}, "without a driver": {enginetest.FailedHook, "driver not loaded"}} {
		t.Run(name, func(t *testing.T) {
			e, image := engineWith(t, c.hook)
			p := planFor(t, e, image, "report")
			o, err := p.Run(t.Context())
			if err == nil || o.Ended != Blocked || o.Status != observe.BlockedByEnvironment || !strings.Contains(err.Error(), c.want) || !o.Cleanup.Complete {
				t.Errorf("%v: %+v", err, o)
			}
			nothingLeft(t, e)
		})
	}
}

// What isn't the run's stops it and stays.
func TestUnownedStops(t *testing.T) {
	e, image := engineWith(t, enginetest.QuietHook)
	have(t, e, image)
	c := client(t, e)
	post := func(t *testing.T, path string, query url.Values, body any) {
		t.Helper()
		if err := c.call(t.Context(), callTimeout, http.MethodPost, path, query, body, nil); err != nil {
			t.Fatal(err)
		}
	}
	remove := func(t *testing.T, path string) {
		t.Helper()
		if err := c.call(t.Context(), callTimeout, http.MethodDelete, path, nil, nil, nil); err != nil {
			t.Errorf("what stopped the run is gone: %v", err)
		}
	}
	container := func(labels map[string]string) map[string]any {
		return map[string]any{"Image": image.Reference(), "Cmd": []string{"/bin/true"}, "Labels": labels, "HostConfig": map[string]any{"NetworkMode": "none"}}
	}
	named := func(name string, labels map[string]string) func(*testing.T) func() {
		return func(t *testing.T) func() {
			post(t, "/containers/create", url.Values{"name": {name}}, container(labels))
			return func() { remove(t, "/containers/"+name) }
		}
	}
	for name, occupy := range map[string]func(*testing.T) func(){
		"container of the name": named("cotenant-probe", nil),
		"another run's":         named("elsewhere", map[string]string{labelRun: "20250101T000000Z-ffffffffffffffff"}),
		"of the project":        named("elsewhere", map[string]string{"com.docker.compose.project": "cotenant-probe"}),
		"volume": func(t *testing.T) func() {
			post(t, "/volumes/create", nil, map[string]any{"Name": "cotenant-probe_data"})
			return func() { remove(t, "/volumes/cotenant-probe_data") }
		},
		"network": func(t *testing.T) func() {
			post(t, "/networks/create", nil, map[string]any{"Name": "cotenant-probe_default", "Driver": "bridge"})
			return func() { remove(t, "/networks/cotenant-probe_default") }
		},
	} {
		t.Run(name, func(t *testing.T) {
			free := occupy(t)
			p := planFor(t, e, image, "report")
			if f := p.Preflight(t.Context(), true); f.Status != observe.Busy || len(f.Unowned) != 1 {
				t.Errorf("preflight: %+v", f)
			}
			o, err := p.Run(t.Context())
			if err == nil || o.Ended != Refused || o.MutatedState || len(p.o.Journal.(*journal).steps) > 0 {
				t.Errorf("%v: %+v", err, o)
			}
			free()
			nothingLeft(t, e)
		})
	}
	t.Run("taken meanwhile", func(t *testing.T) {
		p := planFor(t, e, image, "report")
		p.o.Journal.(*journal).before = func(step string) error {
			if step == "create_container" {
				post(t, "/containers/create", url.Values{"name": {"cotenant-probe"}}, container(nil))
			}
			return nil
		}
		o, err := p.Run(t.Context())
		if err == nil || o.Ended != Refused || o.MutatedState {
			t.Errorf("%v: %+v", err, o)
		}
		remove(t, "/containers/cotenant-probe")
		nothingLeft(t, e)
	})
}

// An image that is in use by others by then, stays.
func TestImageInUse(t *testing.T) {
	e, base := engineWith(t, enginetest.QuietHook)
	have(t, e, base)
	image := push(t, enginetest.Config{Env: []string{"A=1"}}, enginetest.Rootfs(t))
	c := client(t, e)
	p := planFor(t, e, image, "exit")
	p.o.Journal.(*journal).before = func(step string) error {
		if step != "start_container" {
			return nil
		}
		return c.call(t.Context(), callTimeout, http.MethodPost, "/containers/create", url.Values{"name": {"theirs"}},
			map[string]any{"Image": image.Reference(), "Cmd": []string{"/bin/true"}}, nil)
	}
	o, err := p.Run(t.Context())
	if err != nil || o.Cleanup.Image != "in use by others" || !o.Cleanup.Complete {
		t.Errorf("%v: %+v", err, o.Cleanup)
	}
	for _, path := range []string{"/containers/theirs", "/images/" + image.Reference()} {
		if err := c.call(t.Context(), callTimeout, http.MethodDelete, path, nil, nil, nil); err != nil {
			t.Error(err)
		}
	}
	nothingLeft(t, e)
}

// Images that aren't what they should be aren't run.
func TestUnfitImages(t *testing.T) {
	e, base := engineWith(t, enginetest.QuietHook)
	have(t, e, base)
	absent := base
	absent.Digest = "sha256:" + strings.Repeat("0", 64)
	for name, c := range map[string]struct {
		image  Image
		want   string
		status observe.Status
	}{
		"a volume":  {push(t, enginetest.Config{Volumes: map[string]struct{}{"/data": {}}}, enginetest.Rootfs(t)), "declares volumes", observe.Unknown},
		"a preload": {push(t, enginetest.Config{Env: []string{"LD_PRELOAD=/x.so"}}, enginetest.Rootfs(t)), "LD_PRELOAD", observe.Unknown},
		"absent":    {absent, "can't pull", observe.BlockedByEnvironment},
		"empty":     {push(t, enginetest.Config{}, enginetest.Layer(t, map[string][]byte{"etc/empty": nil})), "loader", observe.BlockedByEnvironment},
	} {
		t.Run(name, func(t *testing.T) {
			p := planFor(t, e, c.image, "exit")
			o, err := p.Run(t.Context())
			if err == nil || !strings.Contains(err.Error(), c.want) || o.Status != c.status || !o.Cleanup.Complete || o.Ended == Exited {
				t.Errorf("%v: %+v", err, o)
			}
			nothingLeft(t, e)
		})
	}
}

// A run that is interrupted at any step leaves nothing.
func TestInterrupted(t *testing.T) {
	e, image := engineWith(t, enginetest.QuietHook)
	for _, at := range []string{"pull_image", "create_container", "start_container", "running"} {
		t.Run(at, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			if at == "pull_image" {
				lack(t, e, image)
			} else {
				have(t, e, image)
			}
			p := planFor(t, e, image, "hang")
			p.o.Journal.(*journal).before = func(step string) error {
				if step == at {
					cancel()
				}
				if at == "running" && step == "start_container" {
					time.AfterFunc(1500*time.Millisecond, cancel)
				}
				return nil
			}
			o, err := p.Run(ctx)
			if err == nil || o.Ended != Interrupted || !o.Cleanup.Complete {
				t.Errorf("%v: %+v", err, o)
			}
			nothingLeft(t, e)
		})
	}
}

// Where the journal can't record a step it isn't taken.
func TestJournalFails(t *testing.T) {
	e, image := engineWith(t, enginetest.QuietHook)
	for _, at := range []string{"pull_image", "create_container", "start_container"} {
		t.Run(at, func(t *testing.T) {
			if at == "pull_image" {
				lack(t, e, image)
			} else {
				have(t, e, image)
			}
			p := planFor(t, e, image, "exit")
			p.o.Journal.(*journal).before = func(step string) error {
				if step == at {
					return context.DeadlineExceeded
				}
				return nil
			}
			o, err := p.Run(t.Context())
			if err == nil || o.Ended != Failed || !o.Cleanup.Complete || o.ExitCode != -1 || at == "create_container" && o.ContainerID != "" {
				t.Errorf("%v: %+v", err, o)
			}
			nothingLeft(t, e)
		})
	}
}

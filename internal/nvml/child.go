package nvml

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"cotenant/internal/bounded"
	"cotenant/internal/dl"
	"cotenant/internal/observe"
)

// Task is the name of the task that a program must serve by bounded.ServeChild for Inspect to work.
const Task = "nvml"

// Tasks returns this package's task for bounded.ServeChild.
func Tasks() map[string]bounded.Task { return map[string]bounded.Task{Task: Read} }

// Options say how to ask.
type Options struct {
	Root    string        // put before every absolute path; empty for the machine's own
	Env     []string      // the child's environment; nil means this process's
	Timeout time.Duration // 0 means bounded.DefaultTimeout
}

var libraryFolders = []string{
	"/usr/lib/wsl/lib",
	"/usr/lib/x86_64-linux-gnu",
	"/usr/lib/aarch64-linux-gnu",
	"/usr/lib64",
	"/usr/lib",
	"/usr/lib/aarch64-linux-gnu/nvidia",
	"/usr/local/nvidia/lib64",
	"/run/opengl-driver/lib",
	"/run/nvidia/driver/usr/lib/x86_64-linux-gnu",
	"/run/nvidia/driver/usr/lib64",
}

// Candidates returns the names to try in order: WSL2's own library first where /dev/dxg exists, then what the loader finds,
// then the usual folders where a file exists. Below another root the loader isn't asked, since it would answer for this
// machine: LD_LIBRARY_PATH of env is searched instead.
func Candidates(root string, env []string) []string {
	const file = "libnvidia-ml.so.1"
	exists := func(path string) bool {
		_, err := os.Stat(path)
		return err == nil
	}
	var names []string
	add := func(name string) {
		if !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	wsl := filepath.Join(root, "/usr/lib/wsl/lib", file)
	if exists(filepath.Join(root, "/dev/dxg")) && exists(wsl) {
		add(wsl)
	}
	for _, name := range bounded.Searched(root, env, file) {
		add(name)
	}
	for _, dir := range libraryFolders {
		if path := filepath.Join(root, dir, file); exists(path) {
			add(path)
		}
	}
	return names
}

type request struct {
	Names []string `json:"names"`
}

type unopened struct {
	Blocked string `json:"blocked,omitempty"`
	Said    string `json:"said,omitempty"`
}

// Read is the child's task.
func Read(req []byte, out *bounded.Reporter) error {
	var r request
	if err := json.Unmarshal(req, &r); err != nil {
		return fmt.Errorf("reading the request: %w", err)
	}
	s, err := load(r.Names, out.Calling)
	if err != nil {
		u := unopened{Said: err.Error()}
		var blocked *dl.BlockedError
		if errors.As(err, &blocked) {
			u = unopened{Blocked: blocked.Reason}
		}
		out.Part("unopened", u)
		return nil
	}
	out.Part("library", s.Library)
	s.initialise()
	out.Part("init", s.Init)
	// The driver's version can be had even where initialising failed with a version mismatch.
	out.Part("system", s.System())
	if s.Init.Code != 0 {
		return nil
	}
	count := s.DeviceCount()
	out.Part("device_count", count)
	for i := 0; i < min(count.Or(0), maxDevices); i++ {
		out.Part("device", s.Device(i))
	}
	return s.Close()
}

// Inspect asks NVML in a child process and returns by the deadline. What went wrong is in the report.
func Inspect(ctx context.Context, o Options) Report {
	r := Report{SideEffects: []string{}, Attempts: []Attempt{}, Answer: Answer{Devices: []Device{}}}
	if err := dl.Available(); err != nil {
		r.Status, r.Reason = observe.BlockedByEnvironment, err.Error()
		return r
	}
	r.SideEffects = []string{
		"initialising NVML may load the kernel module and create device nodes",
		"asking for a GPU that nobody holds initialises it, unless persistence mode is on",
	}
	env := o.Env
	if env == nil {
		env = os.Environ()
	}
	names := Candidates(o.Root, env)
	if len(names) == 0 {
		r.Status, r.Reason = observe.Unavailable, "no libnvidia-ml.so.1 was found"
		return r
	}
	res := bounded.Child(ctx, Task, request{names}, env, o.Timeout)
	at := Attempt{Asked: names, Outcome: res.Outcome, WallUS: res.WallUS, Calling: res.Calling, State: res.State, Noise: observe.Clip(res.Noise)}
	un := r.assemble(res.Parts)
	if r.Library != nil {
		at.Path = r.Library.Path
	}
	at.Init = r.Init
	r.Attempts = append(r.Attempts, at)
	r.judge(res, un)
	return r
}

func (r *Report) assemble(parts []bounded.Part) *unopened {
	var un *unopened
	for _, p := range parts {
		switch p.Kind {
		case "unopened":
			un = new(unopened)
			_ = json.Unmarshal(p.Value, un)
		case "library":
			r.Library = new(Library)
			_ = json.Unmarshal(p.Value, r.Library)
		case "init":
			r.Init = new(Call)
			_ = json.Unmarshal(p.Value, r.Init)
		case "system":
			r.System = new(System)
			_ = json.Unmarshal(p.Value, r.System)
		case "device_count":
			_ = json.Unmarshal(p.Value, &r.DeviceCount)
		case "device":
			var d Device
			if json.Unmarshal(p.Value, &d) == nil {
				r.Devices = append(r.Devices, d)
			}
		}
	}
	return un
}

func (r *Report) judge(res bounded.ChildResult, un *unopened) {
	if reason, bad := res.Fault("NVML"); bad {
		r.Status, r.Reason = observe.Unknown, observe.Clip(reason)
		switch {
		case res.Hung():
			r.Status = observe.Hung
		case res.Outcome == bounded.NotStarted:
			r.Status = observe.BlockedByEnvironment
		}
		return
	}
	switch {
	case un != nil && un.Blocked != "":
		r.Status, r.Reason = observe.BlockedByEnvironment, un.Blocked
	case un != nil:
		r.Status, r.Reason = observe.Unavailable, observe.Clip(un.Said)
	case r.Init == nil:
		r.Status, r.Reason = observe.Unknown, "the child reported no result of initialising"
	default:
		if r.Status = StatusOf(Return(r.Init.Code)); r.Status != observe.SupportedProven {
			r.Reason = fmt.Sprintf("%s returned %s (%d)", r.Init.Name, r.Init.Symbol, r.Init.Code)
		}
	}
}

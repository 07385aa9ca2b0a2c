package query

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"cotenant/internal/bounded"
	"cotenant/internal/dl"
	"cotenant/internal/observe"
)

// Names of the tasks that a program must serve by bounded.ServeChild for this package to work.
const (
	DriverTask  = "cuda-driver"
	RuntimeTask = "cuda-runtime"
)

// Tasks returns this package's tasks for bounded.ServeChild.
func Tasks() map[string]bounded.Task {
	return map[string]bounded.Task{DriverTask: ReadDriver, RuntimeTask: ReadRuntime}
}

// Options say how to ask.
type Options struct {
	// Root is put before every absolute path that is looked at; empty for the machine's own.
	Root string
	// Env is the environment that children start from; nil means this process's.
	Env []string
	// Timeout is the total, however many attempts are made; 0 means bounded.DefaultTimeout.
	Timeout time.Duration
}

func (o Options) env() []string {
	if o.Env == nil {
		return os.Environ()
	}
	return o.Env
}

// libraryFolders are where distributions, containers and WSL2 keep libcuda, beyond what the loader searches.
var libraryFolders = []string{
	"/usr/lib/wsl/lib",
	"/usr/lib/x86_64-linux-gnu",
	"/usr/lib/aarch64-linux-gnu",
	"/usr/lib64",
	"/usr/lib",
	"/usr/lib/aarch64-linux-gnu/nvidia",
	"/usr/lib/aarch64-linux-gnu/tegra",
	"/usr/local/nvidia/lib64",
	"/run/opengl-driver/lib",
	"/run/nvidia/driver/usr/lib/x86_64-linux-gnu",
	"/run/nvidia/driver/usr/lib64",
}

// Candidates returns the names of libcuda to try in order: under WSL2 (which has /dev/dxg) the shim first, since a Linux
// driver's libcuda beside it finds no device; then what the loader finds; then the usual folders where a file exists. Below
// another root the loader isn't asked, since it would answer for this machine: LD_LIBRARY_PATH of env is searched instead.
func Candidates(root string, env []string) []string {
	const file = "libcuda.so.1"
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

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// maxAttempts bounds how many libraries are tried.
const maxAttempts = 3

// Driver asks libcuda, in child processes, and returns by the deadline. It never returns an error: what went wrong is in
// the report.
func Driver(ctx context.Context, o Options) Report {
	r := Report{Attempts: []Attempt{}, Answer: Answer{Devices: []Device{}}, MPSBypassed: true, SideEffects: []string{
		"cuInit may load the kernel module and create device nodes, and initialises GPUs that no process holds",
	}}
	if err := dl.Available(); err != nil {
		r.MPSBypassed, r.SideEffects = false, []string{}
		r.Status, r.Reason = observe.BlockedByEnvironment, err.Error()
		return r
	}
	timeout := min(cmpTimeout(o.Timeout), bounded.MaxTimeout)
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	deadline := time.Now().Add(timeout)
	names := Candidates(o.Root, o.env())
	if len(names) == 0 {
		r.Status, r.Reason = observe.Unavailable, "no libcuda.so.1 was found"
		return r
	}
	for len(r.Attempts) < maxAttempts {
		attempt, answer, status, reason := o.attempt(ctx, names, time.Until(deadline))
		r.Attempts = append(r.Attempts, attempt)
		first := len(r.Attempts) == 1
		if first || status == observe.SupportedProven {
			r.Answer, r.Status, r.Reason = answer, status, reason
		}
		names = o.others(answer, r.Attempts)
		if len(names) == 0 || time.Until(deadline) <= 0 {
			break
		}
	}
	return r
}

func cmpTimeout(t time.Duration) time.Duration {
	if t <= 0 {
		return bounded.DefaultTimeout
	}
	return t
}

// others returns further libraries worth trying after an answer that may be the fault of the file: a stub, a compatibility
// package that doesn't fit, a driver library under WSL2.
func (o Options) others(a Answer, done []Attempt) []string {
	if a.Library == nil || a.Init == nil {
		return nil
	}
	code := Code(a.Init.Code)
	wrongFile := a.Library.Stub || code == StubLibrary ||
		a.Library.Compat && code != Success ||
		code == SystemDriverMismatch || code == CompatNotSupportedOnDevice ||
		code == NoDevice && !a.Library.WSL && exists(filepath.Join(o.Root, "/dev/dxg"))
	if !wrongFile {
		return nil
	}
	var names []string
	for _, name := range Candidates(o.Root, o.env()) {
		real, err := filepath.EvalSymlinks(name)
		if err != nil || !filepath.IsAbs(name) || strings.Contains(real, "/stubs/") {
			continue
		}
		if !slices.ContainsFunc(done, func(d Attempt) bool { return d.Path == real }) {
			names = append(names, name)
		}
	}
	return names
}

// attempt runs one child.
func (o Options) attempt(ctx context.Context, names []string, timeout time.Duration) (Attempt, Answer, observe.Status, string) {
	res, err := isolated(ctx, DriverTask, driverRequest{names}, o.env(), timeout)
	at := Attempt{Asked: names, Outcome: res.Outcome, WallUS: res.WallUS, Calling: res.Calling, State: res.State, Noise: observe.Clip(res.Noise)}
	if err != nil {
		return at, Answer{Devices: []Device{}}, observe.BlockedByEnvironment, err.Error()
	}
	a, un := assemble(res.Parts)
	if a.Library != nil {
		at.Path = a.Library.Path
	}
	at.Init = a.Init
	status, reason := judge(res, a, un)
	return at, a, status, reason
}

// assemble puts a child's parts together; a part that can't be decoded is left out.
func assemble(parts []bounded.Part) (Answer, *unopened) {
	a := Answer{Devices: []Device{}}
	var un *unopened
	for _, p := range parts {
		switch p.Kind {
		case "unopened":
			un = new(unopened)
			_ = json.Unmarshal(p.Value, un)
		case "library":
			a.Library = new(Library)
			_ = json.Unmarshal(p.Value, a.Library)
		case "symbols":
			_ = json.Unmarshal(p.Value, &a.Symbols)
		case "driver_version":
			_ = json.Unmarshal(p.Value, &a.DriverVersion)
		case "init":
			a.Init = new(Call)
			_ = json.Unmarshal(p.Value, a.Init)
		case "device_count":
			_ = json.Unmarshal(p.Value, &a.DeviceCount)
		case "device":
			var d Device
			if json.Unmarshal(p.Value, &d) == nil {
				a.Devices = append(a.Devices, d)
			}
		}
	}
	return a, un
}

// judge says in one status what the child's end and answer mean.
func judge(res bounded.ChildResult, a Answer, un *unopened) (observe.Status, string) {
	if status, reason, bad := broken(res, "libcuda"); bad {
		return status, reason
	}
	switch {
	case un != nil && un.Blocked != "":
		return observe.BlockedByEnvironment, un.Blocked
	case un != nil:
		return observe.Unavailable, (&dl.OpenError{Attempts: un.Attempts}).Error()
	case a.Init == nil:
		return observe.Unknown, "the child reported no result of cuInit"
	}
	if status := StatusOf(Code(a.Init.Code)); status != observe.SupportedProven {
		return status, fmt.Sprintf("cuInit returned %s (%d)", a.Init.Symbol, a.Init.Code)
	}
	return observe.SupportedProven, ""
}

// broken says what a child that didn't finish means; bad is false where it finished.
func broken(res bounded.ChildResult, what string) (status observe.Status, reason string, bad bool) {
	reason, bad = res.Fault(what)
	status = observe.Unknown
	switch {
	case res.Hung():
		status = observe.Hung
	case res.Outcome == bounded.NotStarted:
		status = observe.BlockedByEnvironment
	}
	return status, observe.Clip(reason), bad
}

// isolated runs a task in a child that can't reach an MPS daemon: its pipe folder is a new empty one that only this user can
// enter, removed afterwards. The folder's name is short, since a socket's path is limited to 108 bytes.
func isolated(ctx context.Context, task string, request any, env []string, timeout time.Duration) (bounded.ChildResult, error) {
	dir, err := privateFolder()
	if err != nil {
		return bounded.ChildResult{}, fmt.Errorf("making a private folder to keep libcuda from an MPS daemon: %w", err)
	}
	defer os.RemoveAll(dir)
	return bounded.Child(ctx, task, request, isolatedEnv(env, dir), timeout), nil
}

func privateFolder() (string, error) {
	var first error
	for _, parent := range []string{os.TempDir(), "/dev/shm", "/tmp", "/run"} {
		dir, err := os.MkdirTemp(parent, "cotenant-mps-")
		if err == nil {
			return dir, nil
		}
		if first == nil {
			first = err
		}
	}
	return "", first
}

// isolatedEnv hides MPS and whatever would hide GPUs: an inspection wants all that the driver has, in PCI order.
func isolatedEnv(env []string, pipeFolder string) []string {
	kept := env[:0:0]
	for _, e := range env {
		if !strings.HasPrefix(e, "CUDA_MPS_") {
			kept = append(kept, e)
		}
	}
	kept = bounded.WithoutVariables(kept, "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER")
	return append(kept, "CUDA_MPS_PIPE_DIRECTORY="+pipeFolder, "CUDA_DEVICE_ORDER=PCI_BUS_ID")
}

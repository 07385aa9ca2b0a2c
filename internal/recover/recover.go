// Package recover diagnoses a stale model server on this machine and saves its executable: a process that lists models while its
// completions hang, and whose executable was unlinked, so that it couldn't be started again once stopped. It reads /proc and asks
// the server's own loopback ports; it stops nothing, starts nothing and changes nothing but files in one folder. Linux only.
//
// What it writes down holds no secret: arguments are masked, of environment variables only the names are read out.
package recover

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"syscall"
	"time"

	"cotenant/internal/scrape"
)

// Errors that decide an exit code.
var (
	ErrNotPermitted = errors.New("not permitted")
	ErrNoProcess    = errors.New("no such process")
)

// Options of a diagnosis.
type Options struct {
	PID     int
	Out     string        // the folder that the executable will be saved in; it needn't be there
	APIKey  string        // sent to the server as a bearer token, empty if none
	Models  time.Duration // how long GET /v1/models may take; 0: 3 s
	Canary  time.Duration // how long a completion of one token may take before it counts as hanging; 0: 10 s
	NoAsk   bool          // ask the server nothing
	Started func(string)  // told what is being done, nil: nobody
}

// Report is recovery.json: schema_version 1, operation "recover".
type Report struct {
	SchemaVersion   int64      `json:"schema_version"`
	Operation       string     `json:"operation"`
	PID             int64      `json:"pid"`
	Stale           bool       `json:"stale"`     // the executable was unlinked
	Diagnosis       string     `json:"diagnosis"` // in a sentence
	Process         Process    `json:"process"`
	Executable      Executable `json:"executable"`
	DeletedMappings []string   `json:"deleted_mappings"` // other mapped files that were unlinked: the executable may need them too
	Listeners       []Listener `json:"listeners"`
	ListenersReason string     `json:"listeners_reason"` // why there are none, where they couldn't be read
	NoexecMounts    []Mount    `json:"noexec_mounts"`    // where a copy can't run
	OutMount        string     `json:"out_mount"`        // the mount point that Out lies under, empty if not known
	OutNoexec       bool       `json:"out_noexec"`
	Steps           []string   `json:"steps"` // what to do, in this order; none of it was done
}

// Process is what /proc says of it.
type Process struct {
	State             string     `json:"state"`       // R, S, D, T, Z and so on, see proc_pid_stat(5)
	StartUS           scrape.Opt `json:"-"`           // since boot: the same pid with another start is another process
	WorkingFolder     string     `json:"cwd"`         // empty: not permitted
	Argv              []string   `json:"argv"`        // masked
	ArgvMasked        int64      `json:"argv_masked"` // arguments whose value was masked
	Environment       []string   `json:"environment"` // names, sorted; never values
	EnvironmentReason string     `json:"environment_reason"`
}

// Executable is the file that the process runs.
type Executable struct {
	Path       string `json:"path"`     // where it was
	Unlinked   bool   `json:"unlinked"` // it is no longer there
	Replaced   bool   `json:"replaced"` // another file is
	Bytes      int64  `json:"bytes"`
	SHA256     string `json:"sha256"`       // of what was saved, empty before
	GNUBuildID string `json:"gnu_build_id"` // hex, empty: none
	GoBuildID  string `json:"go_build_id"`
	SavedAs    string `json:"saved_as"` // the file's name in the folder
}

// Diagnose looks at the process and asks its server. It changes nothing. The error wraps ErrNoProcess or ErrNotPermitted where it
// is one of these.
func Diagnose(ctx context.Context, o Options) (*Report, error) {
	say := o.Started
	if say == nil {
		say = func(string) {}
	}
	p := proc{pid: o.PID}
	r := &Report{SchemaVersion: 1, Operation: "recover", PID: int64(o.PID), DeletedMappings: []string{}, Listeners: []Listener{}, NoexecMounts: []Mount{}, Steps: []string{}}
	say("reading /proc")
	var err error
	if r.Process, err = p.process(); err != nil {
		return nil, err
	}
	if r.Executable, err = p.executable(); err != nil {
		return nil, err
	}
	r.DeletedMappings = p.deletedMappings(r.Executable.Path)
	if r.Listeners, err = p.listeners(); err != nil {
		r.Listeners, r.ListenersReason = []Listener{}, plain(err.Error())
	}
	if b, err := os.ReadFile("/proc/self/mountinfo"); err == nil {
		table := parseMountinfo(b)
		r.NoexecMounts = noexec(table)
		r.OutMount, r.OutNoexec = holds(table, o.Out)
	}
	r.Stale = r.Executable.Unlinked
	if !o.NoAsk {
		a := newAsker(o)
		for i := range r.Listeners {
			if l := &r.Listeners[i]; l.Reason == "" {
				say(fmt.Sprintf("asking port %d for its models", l.Port))
				a.ask(ctx, l, say)
			}
		}
	}
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	if again, err := p.process(); err != nil || again.StartUS != r.Process.StartUS {
		return nil, fmt.Errorf("process %d ended while it was looked at: %w", o.PID, ErrNoProcess)
	}
	r.Diagnosis = r.diagnose()
	r.Steps = r.steps(o.Out)
	return r, nil
}

// diagnose puts the finding into a sentence.
func (r *Report) diagnose() string {
	var parts []string
	switch e := &r.Executable; {
	case e.Unlinked && e.Replaced:
		parts = append(parts, "its executable was unlinked, and another file is in its place")
	case e.Unlinked:
		parts = append(parts, "its executable was unlinked")
	default:
		parts = append(parts, "its executable is still where it was")
	}
	models, states := 0, map[string]bool{}
	for _, l := range r.Listeners {
		models += len(l.Models)
		if l.Completion.State != "" {
			states[l.Completion.State] = true
		}
	}
	switch {
	case len(r.Listeners) == 0:
		parts = append(parts, "it listens on no TCP port that can be seen")
	case models == 0:
		parts = append(parts, "none of its ports lists models")
	case models == 1:
		parts = append(parts, "it lists one model")
	default:
		parts = append(parts, fmt.Sprintf("it lists %d models", models))
	}
	for _, s := range []struct{ state, text string }{{Hangs, "completions hang"}, {Answers, "completions are answered"}, {Refuses, "completions are refused"}, {Fails, "completions fail"}} {
		if states[s.state] {
			parts = append(parts, s.text)
		}
	}
	return strings.Join(parts, "; ")
}

// steps says what to do about it.
func (r *Report) steps(out string) []string {
	if !r.Stale {
		return []string{fmt.Sprintf("Nothing has to be saved: the executable is at %s.", quote(r.Executable.Path))}
	}
	saved := strings.TrimRight(out, "/") + "/" + savedName(r.Executable.Path)
	steps := []string{fmt.Sprintf("The exact executable is saved as %s; its SHA-256 is in recovery.json. It is the only copy once the process ends.", quote(saved))}
	if len(r.DeletedMappings) > 0 {
		steps = append(steps, fmt.Sprintf("The process has %d more unlinked files mapped (deleted_mappings), which weren't saved: see that the same versions are installed before it is stopped.", len(r.DeletedMappings)))
	}
	if r.OutNoexec {
		steps = append(steps, fmt.Sprintf("%s lies under %s, which is mounted noexec: a copy can't run there. Copy it to a mount that isn't (see noexec_mounts), or have that mount made executable by whoever may.", quote(out), quote(r.OutMount)))
	}
	steps = append(steps, fmt.Sprintf("Note what it needs while it still runs: its %d environment variables are named in recovery.json, their values are in /proc/%d/environ for its owner.", len(r.Process.Environment), r.PID))
	steps = append(steps, fmt.Sprintf("Stop the stale process when nothing depends on it: kill -TERM %d, and see that its ports are free.", r.PID))
	var args []string
	for _, a := range r.Process.Argv[min(1, len(r.Process.Argv)):] {
		args = append(args, quote(a))
	}
	start := strings.Join(append([]string{quote(saved)}, args...), " ")
	if r.Process.WorkingFolder != "" {
		start = "cd " + quote(r.Process.WorkingFolder) + " && " + start
	}
	if r.Process.ArgvMasked > 0 {
		start += fmt.Sprintf("   (put the %d masked values back)", r.Process.ArgvMasked)
	}
	return append(steps, "Start it again: "+start, "Ask it for a completion, not only for its models.")
}

// quote writes s for a POSIX shell.
func quote(s string) string {
	if s != "" && strings.Trim(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789/._-+:,=@%") == "" {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}

// classify names errors of /proc.
func classify(pid int, err error) error {
	switch {
	case errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("reading process %d: %w: its owner or root may", pid, ErrNotPermitted)
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ESRCH):
		// A /proc mounted with hidepid shows no processes of others.
		if p, err := os.FindProcess(pid); err == nil && errors.Is(p.Signal(syscall.Signal(0)), fs.ErrPermission) {
			return fmt.Errorf("reading process %d: %w: it is another user's", pid, ErrNotPermitted)
		}
		return fmt.Errorf("process %d: %w", pid, ErrNoProcess)
	}
	return fmt.Errorf("reading process %d: %w", pid, err)
}

package query

import (
	"context"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"cotenant/internal/bounded"
	"cotenant/internal/observe"
)

// Options say how to look.
type Options struct {
	Root    string   // put before every absolute path; empty for the machine's own
	Env     []string // nil means this process's; its PATH finds the control program
	Timeout time.Duration
	// Partitions asks `lspart` of daemons that were started for static partitioning. It makes the daemon initialise CUDA.
	Partitions bool
}

// maxServers bounds how many servers of one daemon are asked about.
const maxServers = 16

// Inspect looks at MPS and returns by the deadline. What went wrong is in the report.
func Inspect(ctx context.Context, o Options) Report {
	r := Report{SideEffects: []string{}, Daemons: []Daemon{}, Servers: []Daemon{}, Folders: []Folder{}, Answers: []Answer{}}
	r.Version = observe.None[int]("", 0, "no control program")
	r.Partitions = observe.None[[]Partition]("lspart", 0, "not_asked")
	if runtime.GOOS != "linux" {
		r.Status, r.Reason = observe.BlockedByEnvironment, "MPS exists on Linux and QNX, this is "+runtime.GOOS
		return r
	}
	if o.Env == nil {
		o.Env = os.Environ()
	}
	timeout := o.Timeout
	if timeout <= 0 {
		timeout = bounded.DefaultTimeout
	}
	ctx, cancel := context.WithTimeout(ctx, min(timeout, bounded.MaxTimeout))
	defer cancel()
	r.Daemons, r.Servers = Scan(o.Root)
	r.Folders = folders(o.Root, o.Env, r.Daemons)
	r.Control = findControl(o)
	if r.Control == "" {
		r.Status, r.Reason = observe.Unavailable, controlProgram+" is not on PATH or in the usual folders"
		return r
	}
	control := Control{Path: r.Control, Env: o.Env, Timeout: timeout}
	r.version(ctx, control)
	if o.Partitions {
		r.SideEffects = append(r.SideEffects, "lspart makes the daemon initialise CUDA")
	}
	for _, f := range r.Folders {
		// Where no daemon can be, one question shows that none answers; in the default folder alone.
		if f.Socket || f.PIDState == PIDLive || f.Why == "environment" || f.Path == "/tmp/nvidia-mps" {
			c := control
			c.Folder = filepath.Join(o.Root, f.Path)
			r.ask(ctx, c, f, o.Partitions)
		}
	}
	return r
}

// findControl searches PATH of the environment, then folders where drivers put their programs.
func findControl(o Options) string {
	var dirs []string
	for _, e := range o.Env {
		if v, ok := strings.CutPrefix(e, "PATH="); ok {
			dirs = filepath.SplitList(v)
		}
	}
	for _, d := range []string{"/usr/bin", "/usr/local/nvidia/bin", "/usr/lib/wsl/lib", "/run/nvidia/driver/usr/bin", "/run/current-system/sw/bin"} {
		dirs = append(dirs, filepath.Join(o.Root, d))
	}
	for _, d := range dirs {
		path := filepath.Join(d, controlProgram)
		if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0 && filepath.IsAbs(path) {
			return path
		}
	}
	return ""
}

func (r *Report) version(ctx context.Context, c Control) {
	a := c.Ask(ctx, Version, 0)
	r.Answers = append(r.Answers, a)
	v, ok := ParseVersion(a.full)
	switch {
	case ok:
		r.Version = observe.Got("-v", v)
		r.Status = observe.SupportedProven
	case a.Kind == Hung:
		r.Version = observe.None[int]("-v", 0, "no answer by the deadline")
		r.Status, r.Reason = observe.Hung, controlProgram+" -v did not answer by the deadline"
	default:
		r.Version = observe.None[int]("-v", 0, "no binary version in the answer")
		r.Status, r.Reason = observe.Unknown, controlProgram+" -v did not tell its version: "+a.Text
	}
}

// ask puts the read-only questions to the daemon of one folder, if any answers.
func (r *Report) ask(ctx context.Context, c Control, f Folder, partitions bool) {
	put := func(i Input, pid int) Answer {
		a := c.Ask(ctx, i, pid)
		a.Folder = f.Path
		r.Answers = append(r.Answers, a)
		return a
	}
	first := put(ServerList, 0)
	switch first.Kind {
	case Answered, Empty:
	case UnknownCommand, Usage:
		// A daemon of protocol 3 doesn't know protocol 2's commands.
		put(V3ServerList, 0)
		put(V3DeviceList, 0)
		if partitions {
			put(V3PartitionList, 0)
		}
		return
	default:
		return
	}
	pids, _ := ParseServerList(first.full)
	put(DefaultPercentage, 0)
	put(Processes, 0)
	put(DeviceQuery, 0)
	for _, pid := range pids[:min(len(pids), maxServers)] {
		put(ServerStatus, pid)
		put(Percentage, pid)
	}
	if !partitions {
		return
	}
	a := put(PartitionList, 0)
	rows, ok := ParsePartitions(a.full)
	switch {
	case ok:
		r.Partitions = observe.Got("lspart", rows)
	case !r.Partitions.OK():
		r.Partitions = observe.None[[]Partition]("lspart", 0, string(a.Kind)+": "+a.Text)
	}
}

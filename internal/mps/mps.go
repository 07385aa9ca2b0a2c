// Package mps starts and ends an MPS control daemon of this program's own, in a private pipe folder, and changes partitions and
// limits through it. It never speaks to another's daemon: a Daemon is only made by Start, and every input goes to its folder. What
// only asks is in mps/query.
package mps

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"

	"cotenant/internal/bounded"
	"cotenant/internal/mps/query"
)

// Options say how to start a daemon.
type Options struct {
	Control string // path of nvidia-cuda-mps-control
	// Pipe and Log are folders of the daemon's own; Pipe must exist, be empty and have a path of at most 75 bytes.
	Pipe, Log string
	Env       []string
	// Static starts it for static partitioning, which control binaries from 13010 on have.
	Static bool
	// StartTimeout is how long it may take until it answers; 0 means 10 s.
	StartTimeout time.Duration
}

// Daemon is a control daemon that this process started and that ends with this process.
type Daemon struct {
	PID int

	control query.Control
	o       Options
	ended   chan struct{} // closed when the process has ended
	err     error         // how it ended
}

// maxPipe leaves room for the socket's name in the 108 bytes of unix(7).
const maxPipe = 75

// ErrNotAnswering is a daemon that was started and isn't there: an old version prints its usage after an option that it doesn't know,
// and exits with 0.
var ErrNotAnswering = errors.New("the MPS control daemon does not answer")

// Start starts a daemon in the foreground as a child that the kernel ends when this process does, and returns when it answers. Its
// output is in daemon.txt of the log folder.
func Start(ctx context.Context, o Options) (*Daemon, error) {
	if len(o.Pipe) > maxPipe || !filepath.IsAbs(o.Pipe) {
		return nil, fmt.Errorf("MPS pipe folder %s: want an absolute path of at most %d bytes", o.Pipe, maxPipe)
	}
	if entries, err := os.ReadDir(o.Pipe); err != nil || len(entries) > 0 {
		return nil, fmt.Errorf("MPS pipe folder %s is not an empty folder", o.Pipe)
	}
	if o.StartTimeout == 0 {
		o.StartTimeout = 10 * time.Second
	}
	args := []string{"-f"}
	if o.Static {
		args = append(args, "-S")
	}
	env := append(bounded.WithoutVariables(o.Env, "CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY"),
		"CUDA_MPS_PIPE_DIRECTORY="+o.Pipe, "CUDA_MPS_LOG_DIRECTORY="+o.Log)
	d := &Daemon{o: o, ended: make(chan struct{}), control: query.Control{Path: o.Control, Env: env, Folder: o.Pipe, Timeout: 5 * time.Second}}
	if err := d.run(args, env); err != nil {
		return nil, fmt.Errorf("starting %s: %w", o.Control, err)
	}
	for until := time.Now().Add(o.StartTimeout); ; time.Sleep(50 * time.Millisecond) {
		select {
		case <-d.ended:
			return nil, fmt.Errorf("%w: it ended at once: %s", ErrNotAnswering, d.Output())
		default:
		}
		a := d.control.Ask(ctx, query.ServerList, 0)
		if a.Kind == query.Empty || a.Kind == query.Answered {
			return d, nil
		}
		if time.Now().After(until) || ctx.Err() != nil {
			d.Kill()
			return nil, fmt.Errorf("%w within %v: %s", ErrNotAnswering, o.StartTimeout, a.Text)
		}
	}
}

// Output is the end of what the daemon printed.
func (d *Daemon) Output() string {
	b, err := os.ReadFile(filepath.Join(d.o.Log, "daemon.txt"))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(strings.ToValidUTF8(string(b[max(0, len(b)-2000):]), "?"))
}

// Alive reports whether the daemon's process still runs.
func (d *Daemon) Alive() bool {
	select {
	case <-d.ended:
		return false
	default:
		return true
	}
}

// Ask puts one of the reading inputs.
func (d *Daemon) Ask(ctx context.Context, i query.Input, pid int) query.Answer {
	return d.control.Ask(ctx, i, pid)
}

// Servers returns the pids of the daemon's servers.
func (d *Daemon) Servers(ctx context.Context) []int {
	pids, _ := query.ParseServerList(d.control.Ask(ctx, query.ServerList, 0).Full())
	return pids
}

// Said is one exchange that changed something, or should have. Whether it did is told by asking again: the program exits with 0
// whatever it says.
type Said struct {
	Input string `json:"input"`
	Text  string `json:"text"`
	// Outcome is how the control program ended.
	Outcome bounded.Outcome `json:"outcome"`
}

// tell puts an input that changes something.
func (d *Daemon) tell(ctx context.Context, input string) Said {
	r := bounded.Run(ctx, bounded.Command{Path: d.o.Control, Env: d.control.Env, Stdin: input + "\n", Timeout: 10 * time.Second})
	return Said{input, strings.ToValidUTF8(r.Text(), "?"), r.Outcome}
}

// SetPercentage sets the share of SMs, in percent, that clients get from here on: those of the running server, where there is one,
// and those of servers that will be started.
func (d *Daemon) SetPercentage(ctx context.Context, percent int) []Said {
	n := strconv.Itoa(percent)
	said := []Said{d.tell(ctx, "set_default_active_thread_percentage "+n)}
	for _, pid := range d.Servers(ctx) {
		said = append(said, d.tell(ctx, "set_active_thread_percentage "+strconv.Itoa(pid)+" "+n))
	}
	return said
}

// SetPriority sets the priority of clients from here on: 0 normal, 1 below.
func (d *Daemon) SetPriority(ctx context.Context, priority int) Said {
	return d.tell(ctx, "set_default_client_priority "+strconv.Itoa(priority))
}

// partitionID finds what follows the first slash after a UUID: the id itself may hold slashes.
var partitionID = regexp.MustCompile(`GPU-[0-9a-fA-F-]+/(\S+)`)

// AddPartition makes a static partition of so many chunks. The id is empty where the daemon's text holds none.
func (d *Daemon) AddPartition(ctx context.Context, uuid string, chunks int) (id string, said Said) {
	said = d.tell(ctx, "sm_partition add "+uuid+" "+strconv.Itoa(chunks))
	if m := partitionID.FindStringSubmatch(said.Text); m != nil {
		id = m[1]
	}
	return id, said
}

// RemovePartition removes a static partition; while clients are in it the daemon says so and does nothing.
func (d *Daemon) RemovePartition(ctx context.Context, uuid, id string) Said {
	return d.tell(ctx, "sm_partition rm "+uuid+" "+id)
}

// Partitions lists static partitions, as the daemon sees them.
func (d *Daemon) Partitions(ctx context.Context) ([]query.Partition, query.Answer) {
	a := d.control.Ask(ctx, query.PartitionList, 0)
	rows, ok := query.ParsePartitions(a.Full())
	if !ok {
		return nil, a
	}
	return rows, a
}

// Quit asks the daemon to end with its servers and waits for its process. What it leaves is for the caller to look for.
func (d *Daemon) Quit(ctx context.Context, wait time.Duration) (Said, error) {
	said := d.tell(ctx, "quit")
	select {
	case <-d.ended:
		return said, nil
	case <-time.After(wait):
		return said, fmt.Errorf("the MPS control daemon did not end within %v of quit", wait)
	}
}

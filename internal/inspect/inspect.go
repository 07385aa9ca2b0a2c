// Package inspect tells which GPU sharing mechanisms a host really has, and changes nothing. Gather asks every source, each
// bounded and in parallel; Judge is a pure function from the facts to a report with one verdict a GPU and mechanism.
//
// Read-only means the machine too: no CUDA context, no MPS daemon or server, no mode, no container. What asking a source may
// do all the same is listed in its side effects. docs/formats/inspect.md is the report's format, docs/inspect.md says what
// each verdict means and what to do about it.
package inspect

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"time"

	"cotenant/internal/bounded"
	"cotenant/internal/cuda/query"
	"cotenant/internal/nvml"
)

// Limits of Options.Timeout.
const (
	DefaultTimeout = bounded.DefaultTimeout
	MaxTimeout     = bounded.MaxTimeout
)

// Options say how to look.
type Options struct {
	// Timeout is the whole inspection's; 0 means DefaultTimeout. Gather returns by it, whatever hangs.
	Timeout time.Duration
	// MPSPartitions asks `lspart` of a running MPS daemon, which makes the daemon initialise CUDA.
	MPSPartitions bool
	// Volatile adds to the report what changes between two runs: pids, memory in use, power, temperature, clocks, times.
	Volatile bool
	// Version is this program's, for the report.
	Version string

	// Root is put before every absolute path that is looked at, Env replaces this process's environment, and OS this
	// program's operating system. They are for tests, which play other hosts; a report says so in observed_root.
	Root string
	Env  []string
	OS   string
}

// Check refuses options that Gather can't keep.
func (o Options) Check() error {
	if o.Timeout < 0 || o.Timeout > MaxTimeout {
		return fmt.Errorf("timeout %v: want more than 0 and at most %v", o.Timeout, MaxTimeout)
	}
	return nil
}

func (o Options) withDefaults() Options {
	if o.Timeout == 0 {
		o.Timeout = DefaultTimeout
	}
	if o.Env == nil {
		o.Env = os.Environ()
	}
	if o.OS == "" {
		o.OS = runtime.GOOS
	}
	return o
}

// Tasks returns the child tasks that a program must serve by bounded.ServeChild for Gather to work.
func Tasks() map[string]bounded.Task {
	tasks := query.Tasks()
	for name, task := range nvml.Tasks() {
		tasks[name] = task
	}
	return tasks
}

// Run gathers and judges.
func Run(ctx context.Context, o Options) *Report { return Judge(Gather(ctx, o)) }

// Package probe proves sharing mechanisms by using them, under guard, and proves that nothing stays behind.
//
// Prerequisite asks and makes nothing. Create makes Green Contexts, and MPS a daemon of its own, each in three processes: the
// supervisor evaluates go/no-go gates, watches the GPU and writes the evidence; a worker, or clients, do the work and end with
// it, whatever happens; a guard cleans up where the supervisor itself is killed. Every step is in the journal, on disk, before it
// is taken. What we did not make we do not clean: a process or folder is ours only where it carries the run's random id.
package probe

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"time"

	"cotenant/internal/bounded"
	"cotenant/internal/probe/evidence"
	"cotenant/internal/topology"
)

// RunVariable is in the environment of every process that a run starts: what proves it ours.
const RunVariable = "COTENANT_PROBE_RUN"

// Exit codes of probes, as `cotenant probe` returns them.
const (
	ExitDone        = 0   // preview; or done, every check passes and cleanup is proven
	ExitFailed      = 1   // something was made and its cleanup is not proven
	ExitNo          = 3   // a gate said no; or a check failed, cleanup proven
	ExitBlocked     = 4   // blocked by the environment
	ExitInterrupted = 130 // cleanup proven
)

// Program describes the binary that runs.
type Program struct {
	Version, Revision string
}

// Common are options of every probe.
type Common struct {
	GPUUUID string
	// Confirm runs; without it a probe only says what it would do.
	Confirm bool
	// Out is the evidence folder; empty for the default under .cotenant.
	Out string
	// Topology is the operator's; nil for none. Where there is one it must give the GPU a role on this host.
	Topology *topology.Topology
	// Deadline is the worker's, at most MaxDeadline; 0 means DefaultDeadline.
	Deadline time.Duration
	// Overrides of gates.
	AllowDisplay, AllowProcesses, AllowMPS bool
	Program                                Program
	// Arguments are the command line, for the plan.
	Arguments []string

	// Root and Env play another host, for tests: see inspect.Options.
	Root string
	Env  []string
}

// Limits of Common.Deadline.
const (
	DefaultDeadline = 30 * time.Second
	MaxDeadline     = 55 * time.Second
)

func (c *Common) defaults() {
	if c.Env == nil {
		c.Env = os.Environ()
	}
	if c.Deadline == 0 {
		c.Deadline = DefaultDeadline
	}
}

var uuidPattern = regexp.MustCompile(`^(GPU|MIG)-[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}$`)

// CheckUUID refuses what isn't a whole UUID: prefixes and indexes name different GPUs at different times.
func CheckUUID(uuid string) error {
	if !uuidPattern.MatchString(uuid) {
		return fmt.Errorf("%q isn't a GPU's or MIG device's UUID: want GPU- or MIG- and 8-4-4-4-12 hexadecimal digits", uuid)
	}
	return nil
}

// Check refuses options that make no sense.
func (c Common) Check() error {
	if err := CheckUUID(c.GPUUUID); err != nil {
		return err
	}
	if c.Deadline < 0 || c.Deadline > MaxDeadline {
		return fmt.Errorf("a deadline of %v: want more than 0 and at most %v", c.Deadline, MaxDeadline)
	}
	return nil
}

// Tasks returns the child tasks that a program must serve by bounded.ServeChild for this package to work, beyond inspect's.
func Tasks() map[string]bounded.Task {
	return map[string]bounded.Task{
		createTask: createWorker,
		clientTask: mpsClient,
		guardTask:  guard,
	}
}

// newRunID returns a UTC time, for people, and 64 random bits, which prove that what carries it is the run's.
func newRunID(now time.Time) (string, error) {
	var b [8]byte
	if _, err := rand.Read(b[:]); err != nil {
		return "", fmt.Errorf("making a run id: %w", err)
	}
	return now.UTC().Format("20060102T150405Z") + "-" + hex.EncodeToString(b[:]), nil
}

var runIDPattern = regexp.MustCompile(`^[0-9]{8}T[0-9]{6}Z-[0-9a-f]{16}$`)

// defaultFolder is where evidence goes unless told otherwise.
func defaultFolder(runID string) string {
	return filepath.Join(".cotenant", "evidence", "gpu-sharing", runID)
}

// Outcome is what a probe returns to its caller.
type Outcome struct {
	Exit int
	// Plan is set in any case, Folder where evidence was written, Result where something ran.
	Plan   evidence.Plan
	Folder string
	Result any
	// Why says why Exit isn't 0.
	Why string
}

func interrupted(ctx context.Context) bool { return ctx.Err() != nil }

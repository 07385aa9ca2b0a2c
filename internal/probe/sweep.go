package probe

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"cotenant/internal/bounded"
	"cotenant/internal/container"
	mpsquery "cotenant/internal/mps/query"
	"cotenant/internal/observe"
	"cotenant/internal/probe/evidence"
)

// ownerFile marks a private folder as a run's; its content is the run's id.
const ownerFile = "cotenant-probe-run"

// pipeNames are the folders in a private folder where a run's MPS daemons have their pipes: of a probe's classic one, which is also where
// processes are sent that shall find none, of one with static partitions, and of a measurement's classic one.
var pipeNames = []string{"mps", "mps-static", "mps-clients"}

// folderPrefix begins the names of private folders. Short: a socket's path is limited to 108 bytes.
const folderPrefix = "cotenant-p"

// privateFolder makes a folder that only this user can enter, marked as the run's. Its name is in the journal before it exists.
func privateFolder(j *evidence.Journal, runID string) (string, error) {
	parent := os.TempDir()
	if len(parent) > 40 {
		parent = "/tmp"
	}
	path := filepath.Join(parent, folderPrefix+runID[len(runID)-16:])
	err := j.Step("make_private_folder", 0, map[string]string{"folder": path}, func() error {
		if err := os.Mkdir(path, 0o700); err != nil {
			return err
		}
		return os.WriteFile(filepath.Join(path, ownerFile), []byte(runID), 0o600)
	})
	if err != nil {
		return "", fmt.Errorf("making a private folder: %w", err)
	}
	return path, nil
}

// Swept is what a sweep did.
type Swept struct {
	// Processes that carried the run's id, and what became of them.
	Processes []SweptProcess `json:"processes"`
	Folders   []SweptFolder  `json:"folders"`
	// Container is what the engine was asked, and answered, about the run's container and image; null where the journal has none, or
	// has its removal.
	Container *container.Cleaned `json:"container"`
	// Left is what is still there.
	Left []string `json:"left"`
}

// SweptProcess is a process of the run.
type SweptProcess struct {
	PID     int    `json:"pid"`
	Program string `json:"program"`
	Ended   string `json:"ended"` // by itself, quit, terminated, killed, still there; would be ended, in a preview
}

// wouldBeEnded is a process that hasn't ended yet.
const wouldBeEnded = "would be ended"

// SweptFolder is a private folder of the run.
type SweptFolder struct {
	Path    string `json:"path"`
	Removed string `json:"removed"` // removed, not there, not ours, would be removed, or why it could not be
}

// sweeper knows a run by its journal.
type sweeper struct {
	runID   string
	folders []string
	servers map[int]string // pids of MPS servers that the run saw its daemon start, with their start times
	except  []int
	engine  *container.CleanupOptions // what to ask the engine for; nil where there is nothing
	env     []string                  // to find the MPS control program

	patience time.Duration // see execPatience
}

// newSweeper reads what a journal proves to be the run's.
func newSweeper(runID string, entries []evidence.Entry, env []string, except ...int) sweeper {
	s := sweeper{runID: runID, env: env, except: except, servers: make(map[int]string), patience: execPatience}
	for _, e := range entries {
		s.engineStep(e)
		if pid, err := strconv.Atoi(e.Detail["pid"]); err == nil && e.Step == "saw_mps_server" && e.Detail["start_ticks"] != "" {
			s.servers[pid] = e.Detail["start_ticks"]
		}
		if e.Step == "make_private_folder" && e.Phase == evidence.Begin && e.Detail["folder"] != "" {
			s.folders = append(s.folders, e.Detail["folder"])
		}
	}
	return s
}

// processes are what is left of the run: what carries its id, and servers that its daemon was seen to have started.
func (s sweeper) processes() []int {
	pids := ours(s.runID, s.except...)
	for pid, start := range s.servers {
		if startTicks(pid) == start && programOf(pid) == "nvidia-cuda-mps-server" && !slices.Contains(pids, pid) {
			pids = append(pids, pid)
		}
	}
	return pids
}

// engineStep reads what a step of the journal says about a container.
func (s *sweeper) engineStep(e evidence.Entry) {
	if e.Phase == evidence.Begin && (e.Step == "pull_image" || e.Step == "create_container") {
		if s.engine == nil {
			s.engine = &container.CleanupOptions{Run: s.runID, Env: s.env}
		}
		s.engine.Socket = e.Detail["socket"]
		s.engine.Image = cmp.Or(e.Detail["image"], s.engine.Image)
	}
	if s.engine != nil && e.Step == "create_container" {
		s.engine.Asked = time.Time{} // an answer came
		if at, err := time.Parse(time.RFC3339, e.Time); err == nil && e.Phase == evidence.Begin {
			s.engine.Asked = at
		}
	}
	if s.engine != nil && e.Phase == evidence.Begin && e.Step == "start_container" {
		s.engine.Container = e.Detail["id"]
	}
	if e.Phase == evidence.End && e.Step == "remove_container" && e.Error == "" {
		s.engine = nil // proven gone
	}
}

// removeContainer asks the engine that the journal names.
func (s sweeper) removeContainer(ctx context.Context, r *Swept, dry bool) {
	if s.engine == nil {
		return
	}
	o := *s.engine
	o.Dry = dry
	c, err := container.Cleanup(ctx, o)
	if err != nil && c.Complete { // it could not be asked
		c.Complete, c.Left = false, []string{"the container, if there is one: " + observe.Clip(err.Error())}
	}
	r.Container = &c
	if !dry {
		r.Left = append(r.Left, c.Left...)
	}
}

// sweep ends every process of the run and removes its folders: an MPS daemon is asked to quit first, so that it ends its servers.
// Where dry is true it only looks.
func (s sweeper) sweep(ctx context.Context, dry bool) Swept {
	r := Swept{Processes: []SweptProcess{}, Folders: []SweptFolder{}, Left: []string{}}
	s.removeContainer(ctx, &r, dry) // before its processes: it is the engine that ends them
	pids := s.processes()
	for _, pid := range pids {
		r.Processes = append(r.Processes, SweptProcess{pid, programOf(pid), wouldBeEnded})
	}
	if !dry {
		r.Processes = s.end(ctx, r.Processes)
		for _, p := range r.Processes {
			if p.Ended == "still there" {
				r.Left = append(r.Left, fmt.Sprintf("process %d (%s)", p.PID, p.Program))
			}
		}
	}
	for _, f := range s.folders {
		x := SweptFolder{f, s.remove(f, dry)}
		if x.Removed != "removed" && x.Removed != "not there" && x.Removed != "not ours" && !dry {
			r.Left = append(r.Left, "folder "+f+": "+x.Removed)
		}
		r.Folders = append(r.Folders, x)
	}
	return r
}

// end ends processes: quit to a daemon, then SIGTERM, then SIGKILL, each only to what still carries the id. It returns the list with
// those that came up meanwhile: a daemon may start a server, and a child of the supervisor's its program, after the first look.
func (s sweeper) end(ctx context.Context, list []SweptProcess) []SweptProcess {
	look := func() map[int]bool {
		left := make(map[int]bool)
		for _, pid := range s.processes() {
			left[pid] = alive(pid)
			if left[pid] && !slices.ContainsFunc(list, func(p SweptProcess) bool { return p.PID == pid && p.Ended == wouldBeEnded }) {
				list = append(list, SweptProcess{pid, programOf(pid), wouldBeEnded})
			}
		}
		return left
	}
	wait := func(how string, d time.Duration) bool {
		for until := time.Now().Add(d); ; time.Sleep(20 * time.Millisecond) {
			left, all := look(), true
			for i := range list {
				if list[i].Ended != wouldBeEnded {
					continue
				}
				if left[list[i].PID] {
					all = false
				} else {
					list[i].Ended = how
				}
			}
			if all && s.nothing() {
				return true
			}
			if time.Now().After(until) {
				return false
			}
		}
	}
	if wait("by itself", 0) {
		return list
	}
	if s.quit(ctx, list) && wait("quit", 5*time.Second) {
		return list
	}
	for _, x := range []struct {
		signal syscall.Signal
		how    string
		wait   time.Duration
	}{{syscall.SIGTERM, "terminated", time.Second}, {syscall.SIGKILL, "killed", 2 * time.Second}} {
		for pid := range look() {
			if p, err := os.FindProcess(pid); err == nil {
				_ = p.Signal(x.signal)
			}
		}
		if wait(x.how, x.wait) {
			return list
		}
	}
	for i := range list {
		if list[i].Ended == wouldBeEnded {
			list[i].Ended = "still there"
		}
	}
	return list
}

// execPatience is how long a sweep waits for processes that have no environment: they may be replacing their program.
const execPatience = 500 * time.Millisecond

// nothing reports that nothing of the run is left. A process that is replacing its program can't be known for a moment: it is waited for.
func (s sweeper) nothing() bool {
	for until := time.Now().Add(s.patience); ; time.Sleep(5 * time.Millisecond) {
		bare := bareProcesses()
		if slices.ContainsFunc(s.processes(), alive) {
			return false
		}
		if !bare || time.Now().After(until) {
			return true
		}
	}
}

// quit asks our MPS daemon, if there is one, to end with its servers.
func (s sweeper) quit(ctx context.Context, list []SweptProcess) bool {
	daemon := false
	for _, p := range list {
		daemon = daemon || p.Program == "nvidia-cuda-mps-control"
	}
	control := mpsquery.FindControl("", s.env)
	if !daemon || control == "" {
		return false
	}
	for _, f := range s.folders {
		if s.owned(f) != nil {
			continue
		}
		for _, name := range pipeNames {
			pipe := filepath.Join(f, name)
			if _, err := os.Stat(filepath.Join(pipe, "control")); err != nil {
				continue
			}
			env := append(bounded.WithoutVariables(s.env, "CUDA_MPS_PIPE_DIRECTORY"), "CUDA_MPS_PIPE_DIRECTORY="+pipe)
			bounded.Run(ctx, bounded.Command{Path: control, Env: env, Stdin: "quit\n", Timeout: 5 * time.Second})
		}
	}
	return true
}

var errNotOurs = errors.New("not ours")

// owned reports whether a folder is the run's: by its name, which holds the id, and by the mark in it.
func (s sweeper) owned(path string) error {
	if !strings.HasPrefix(filepath.Base(path), folderPrefix) || !strings.HasSuffix(path, s.runID[len(s.runID)-16:]) || !filepath.IsAbs(path) {
		return errNotOurs
	}
	info, err := os.Lstat(path)
	if err != nil {
		return err
	}
	if !info.IsDir() {
		return errNotOurs
	}
	mark, err := os.ReadFile(filepath.Join(path, ownerFile))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if string(mark) == s.runID {
		return nil
	}
	// The run can have ended between making the folder and marking it: then there is nothing in it but the mark's beginning. Its
	// name, which nobody knew before, is in the journal.
	entries, err := os.ReadDir(path)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if e.Name() != ownerFile || !strings.HasPrefix(s.runID, string(mark)) {
			return errNotOurs
		}
	}
	return nil
}

func (s sweeper) remove(path string, dry bool) string {
	err := s.owned(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return "not there"
	case err != nil:
		return err.Error()
	case dry:
		return "would be removed"
	}
	// A program that was asked something may still write its question or answer: it ends as soon as the folder isn't there.
	for until := time.Now().Add(removePatience); err == nil || errors.Is(err, syscall.ENOTEMPTY) && time.Now().Before(until); time.Sleep(20 * time.Millisecond) {
		if err = os.RemoveAll(path); err == nil {
			return "removed"
		}
	}
	return err.Error()
}

// removePatience is how long a folder is tried to be removed while something is still written to it.
const removePatience = 2 * time.Second

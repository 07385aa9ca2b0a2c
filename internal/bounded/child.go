package bounded

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"time"
)

// ChildVariable names the task that a child process runs. Its presence in the environment makes ServeChild take over.
const ChildVariable = "COTENANT_CHILD"

// Task is code that runs in a child process. It announces each risky call before it makes it and sends each part of its
// answer as soon as it has it, so that a hang or a crash loses only what was not yet asked, and names the culprit.
type Task func(request []byte, out *Reporter) error

// record is one line of the child's answer. A record starts with the byte 0x1e (RFC 7464) and ends with a newline: what a
// library prints on stdout in between is no record.
type record struct {
	Call  string          `json:"call,omitempty"`
	Part  string          `json:"part,omitempty"`
	Value json.RawMessage `json:"value,omitempty"`
	Done  bool            `json:"done,omitempty"`
	Error string          `json:"error,omitempty"`
}

const recordMark = 0x1e

// Reporter writes a task's answer. It may be used by one goroutine at a time.
type Reporter struct {
	mu  sync.Mutex
	w   io.Writer
	err error
}

// NewReporter returns a Reporter that writes to w. Only a test needs one of its own.
func NewReporter(w io.Writer) *Reporter { return &Reporter{w: w} }

func (r *Reporter) write(rec record) {
	line, err := json.Marshal(rec)
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.err == nil {
		r.err = err
	}
	if r.err == nil {
		_, r.err = r.w.Write(append(append([]byte{recordMark}, line...), '\n'))
	}
}

// Calling announces the call that comes next.
func (r *Reporter) Calling(call string) { r.write(record{Call: call}) }

// Part sends a part of the answer.
func (r *Reporter) Part(kind string, v any) {
	value, err := json.Marshal(v)
	if err != nil {
		r.write(record{Error: "encoding " + kind + ": " + err.Error()})
		return
	}
	r.write(record{Part: kind, Value: value})
}

// ServeChild returns at once in an ordinary process. In a child it runs the task that the environment names and exits: 0
// where the task finished, 1 where it failed, 124 where it outlived the deadline that its parent set. Call it first in main,
// and in TestMain of a package whose tests start children.
func ServeChild(tasks map[string]Task) {
	name := os.Getenv(ChildVariable)
	if name == "" {
		return
	}
	os.Exit(serve(name, tasks, os.Stdin, os.Stdout))
}

// childInput is what a child reads from stdin.
type childInput struct {
	// LifeMS is when the child must end by itself, should its parent have died.
	LifeMS  int64           `json:"life_ms"`
	Request json.RawMessage `json:"request"`
}

func serve(name string, tasks map[string]Task, stdin io.Reader, stdout io.Writer) int {
	out := NewReporter(stdout)
	fail := func(err error) int {
		out.write(record{Error: err.Error()})
		return 1
	}
	task, ok := tasks[name]
	if !ok {
		return fail(fmt.Errorf("no task %q in this program", name))
	}
	var in childInput
	if err := json.NewDecoder(io.LimitReader(stdin, 4096)).Decode(&in); err != nil {
		return fail(fmt.Errorf("reading the request: %w", err))
	}
	time.AfterFunc(time.Duration(in.LifeMS)*time.Millisecond, func() { os.Exit(124) })
	if err := task(in.Request, out); err != nil {
		return fail(err)
	}
	out.write(record{Done: true})
	if out.err != nil {
		return 1
	}
	return 0
}

// ChildResult is what came back from a child.
type ChildResult struct {
	Result
	// Done says that the task finished and everything that it sent is here.
	Done bool `json:"done"`
	// Calling is the call that a task that didn't finish had announced last.
	Calling string `json:"calling,omitempty"`
	// Failure is the error that the task returned.
	Failure string `json:"failure,omitempty"`
	// Parts are the parts received, in order.
	Parts []Part `json:"-"`
	// Noise is what libraries printed on stdout and stderr.
	Noise string `json:"noise,omitempty"`
}

// Fault says why the child of the library named what didn't finish, and during which call; bad is false where it finished.
func (r ChildResult) Fault(what string) (reason string, bad bool) {
	during := "before the first call"
	if r.Calling != "" {
		during = "in " + r.Calling
	}
	switch {
	case r.Done:
		return "", false
	case r.Outcome == NotStarted:
		return "the child process did not start: " + r.Err.Error(), true
	case r.Hung():
		reason = what + " did not answer by the deadline, " + during
		if r.State == "D" {
			reason += " (uninterruptible)"
		}
		return reason, true
	case r.Outcome == Canceled:
		return "canceled " + during, true
	case r.Failure != "":
		return r.Failure, true
	}
	return what + " ended the process " + during, true
}

// Part is one part of a child's answer.
type Part struct {
	Kind  string
	Value json.RawMessage
}

// Crashed reports whether the child ended without finishing and without an error of its own.
func (r ChildResult) Crashed() bool {
	return !r.Done && r.Failure == "" && (r.Outcome == Exited || r.Outcome == Signaled)
}

// Child runs the task of this name in a new process of this same program and returns by the deadline, the child abandoned
// where it hangs. env is its whole environment but for what Child adds. The request, as JSON, must fit in 4 KiB.
func Child(ctx context.Context, task string, request any, env []string, timeout time.Duration) ChildResult {
	return child(ctx, task, request, env, Command{Timeout: timeout})
}

// LongChild is Child for work of up to MaxLong.
func LongChild(ctx context.Context, task string, request any, env []string, timeout time.Duration) ChildResult {
	return child(ctx, task, request, env, Command{Timeout: timeout, Long: true})
}

func child(ctx context.Context, task string, request any, env []string, c Command) ChildResult {
	var err error
	if c.Path, err = selfPath(); err != nil {
		return ChildResult{Result: notStarted(err)}
	}
	if c.Timeout <= 0 {
		c.Timeout = DefaultTimeout
	}
	c.Timeout = min(c.Timeout, c.limit())
	req, err := json.Marshal(request)
	if err != nil {
		return ChildResult{Result: notStarted(fmt.Errorf("encoding the request: %w", err))}
	}
	in, err := json.Marshal(childInput{LifeMS: (c.Timeout + time.Second).Milliseconds(), Request: req})
	if err != nil {
		return ChildResult{Result: notStarted(err)}
	}
	c.Args, c.Stdin, c.StdoutLimit = []string{task + "-query"}, string(in), 8<<20
	c.Env = append(WithoutVariables(env, ChildVariable, "GOTRACEBACK"), ChildVariable+"="+task, "GOTRACEBACK=none")
	return decode(Run(ctx, c))
}

func selfPath() (string, error) {
	if runtime.GOOS == "linux" {
		// Works although the file was replaced or unlinked since.
		if _, err := os.Stat("/proc/self/exe"); err == nil {
			return "/proc/self/exe", nil
		}
	}
	path, err := os.Executable()
	if err != nil {
		return "", errors.New("this program can't find its own executable: " + err.Error())
	}
	return path, nil
}

// decode splits a child's stdout in records and noise. A torn last record is dropped.
func decode(run Result) ChildResult {
	r := ChildResult{Result: run}
	chunks := bytes.Split(run.Stdout, []byte{recordMark})
	noise := append([]byte(nil), chunks[0]...)
	for _, chunk := range chunks[1:] {
		line, rest, whole := bytes.Cut(chunk, []byte{'\n'})
		var rec record
		if !whole || json.Unmarshal(line, &rec) != nil {
			continue
		}
		noise = append(noise, rest...)
		switch {
		case rec.Done:
			r.Done = true
		case rec.Error != "":
			r.Failure = rec.Error
		case rec.Part != "":
			r.Parts = append(r.Parts, Part{rec.Part, rec.Value})
		case rec.Call != "":
			r.Calling = rec.Call
		}
	}
	if r.Done {
		r.Calling = ""
	}
	r.Noise = strings.TrimSpace(string(noise) + "\n" + string(run.Stderr))
	return r
}

// WithoutVariables returns a copy of env without the named variables.
func WithoutVariables(env []string, names ...string) []string {
	kept := make([]string, 0, len(env)+2)
next:
	for _, e := range env {
		for _, n := range names {
			if strings.HasPrefix(e, n+"=") {
				continue next
			}
		}
		kept = append(kept, e)
	}
	return kept
}

// Searched returns what to give the loader for a library without a path: its name, which the loader searches for; or, below
// another root, where the loader of that root would find it by LD_LIBRARY_PATH of env.
func Searched(root string, env []string, library string) []string {
	if root == "" {
		return []string{library}
	}
	var found []string
	for _, e := range env {
		dirs, ok := strings.CutPrefix(e, "LD_LIBRARY_PATH=")
		if !ok {
			continue
		}
		for _, dir := range filepath.SplitList(dirs) {
			path := filepath.Join(dir, library)
			if _, err := os.Stat(path); err == nil && filepath.IsAbs(path) {
				found = append(found, path)
			}
		}
	}
	return found
}

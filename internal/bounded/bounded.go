// Package bounded runs other programs so that nothing they do can keep the caller waiting: each has a deadline, its output
// is read up to a limit, and a process that can't be killed, or a descendant that keeps its pipes open, is abandoned and
// reported. Child runs a task of this same program in such a process, for libraries that can hang or crash.
package bounded

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"strings"
	"sync"
	"time"
)

// Timeouts and limits.
const (
	DefaultTimeout = 10 * time.Second
	MaxTimeout     = 60 * time.Second
	// MaxLong bounds work that is meant to take minutes: Command.Long, LongChild.
	MaxLong = 15 * time.Minute
	// Overrun is how long after its deadline Run may return: the time given to a killed process to die and to its pipes to
	// drain.
	Overrun = 500 * time.Millisecond

	defaultStdoutLimit = 1 << 20
	defaultStderrLimit = 64 << 10
	startGrace         = 50 * time.Millisecond
	killGrace          = 250 * time.Millisecond
	drainGrace         = 200 * time.Millisecond
	lagGrace           = time.Second
)

// Outcome is how a run ended.
type Outcome string

// The outcomes.
const (
	Exited     Outcome = "exited"
	Signaled   Outcome = "signaled"    // ended by a signal that we didn't send
	TimedOut   Outcome = "timed_out"   // killed at its deadline
	Canceled   Outcome = "canceled"    // killed because the context ended
	Abandoned  Outcome = "abandoned"   // past its deadline and not dead after SIGKILL; left behind
	NotStarted Outcome = "not_started" // absent, not executable, or exec itself hung
)

// Command says what to run.
type Command struct {
	// Path is an executable's name, searched on PATH of this process, or its path.
	Path string
	Args []string
	// Env is the whole environment; nil means this process's.
	Env []string
	// Stdin is what the program reads, at most 4 KiB; empty means /dev/null.
	Stdin string
	// Timeout is 0 for DefaultTimeout and is cut to MaxTimeout; to MaxLong where Long is true.
	Timeout time.Duration
	Long    bool
	// StdoutLimit and StderrLimit are in bytes; 0 means 1 MiB and 64 KiB. What exceeds them is read and thrown away.
	StdoutLimit, StderrLimit int
}

// Result is what happened.
type Result struct {
	Outcome  Outcome `json:"outcome"`
	ExitCode int     `json:"exit_code"` // -1 unless Outcome is Exited
	Signal   string  `json:"signal,omitempty"`
	WallUS   int64   `json:"wall_us"`
	// State is the process's state letter in /proc at the deadline ("D": uninterruptible); empty on other systems or where it
	// ended by itself.
	State string `json:"state,omitempty"`
	// PipesHeld says that the program ended but a descendant kept its output open, so output may be missing.
	PipesHeld                        bool `json:"pipes_held,omitempty"`
	StdoutTruncated, StderrTruncated bool
	Stdout, Stderr                   []byte `json:"-"`
	// Err is why it was not started.
	Err error `json:"-"`
}

// Hung reports whether the program had to be given up at its deadline.
func (r Result) Hung() bool { return r.Outcome == TimedOut || r.Outcome == Abandoned }

// Text is stdout, a newline, stderr: where a program puts its complaints on either.
func (r Result) Text() string {
	return strings.TrimSpace(string(r.Stdout) + "\n" + string(r.Stderr))
}

// Run runs the command and returns by its deadline plus Overrun, whatever the command does.
func Run(ctx context.Context, c Command) Result { return run(ctx, c, killTree) }

func run(ctx context.Context, c Command, kill func(*os.Process)) Result {
	timeout := c.Timeout
	if timeout <= 0 {
		timeout = DefaultTimeout
	}
	ctx, cancel := context.WithTimeout(ctx, min(timeout, c.limit()))
	defer cancel()
	start := time.Now()
	r := runUntil(ctx, c, kill)
	r.WallUS = time.Since(start).Microseconds()
	return r
}

func (c Command) limit() time.Duration {
	if c.Long {
		return MaxLong
	}
	return MaxTimeout
}

func notStarted(err error) Result { return Result{Outcome: NotStarted, ExitCode: -1, Err: err} }

func runUntil(ctx context.Context, c Command, kill func(*os.Process)) Result {
	if len(c.Stdin) > 4096 {
		return notStarted(errors.New("more than 4 KiB for stdin"))
	}
	if ctx.Err() != nil {
		return notStarted(ctx.Err())
	}
	cmd := exec.Command(c.Path, c.Args...)
	cmd.Env = c.Env
	if cmd.Err != nil {
		return notStarted(cmd.Err)
	}
	pipes, err := attach(cmd, c)
	if err != nil {
		return notStarted(err)
	}
	ownGroup(cmd)
	// exec can hang on a dead file system, and vfork waits for it.
	started := make(chan error, 1)
	go func() {
		err := cmd.Start()
		pipes.closeChildEnds()
		started <- err
	}()
	select {
	case err = <-started:
	case <-ctx.Done():
		// It may have started, and nobody has seen it yet.
		select {
		case err = <-started:
		case <-time.After(startGrace):
			pipes.close()
			go func() {
				if <-started == nil {
					kill(cmd.Process)
					_ = cmd.Wait()
				}
			}()
			return notStarted(errors.New("starting it did not return by the deadline"))
		}
	}
	if err != nil {
		pipes.close()
		return notStarted(err)
	}
	return pipes.follow(ctx, cmd, kill)
}

// stream collects the output of one pipe up to its limit.
type stream struct {
	r, w  *os.File
	limit int
	done  chan struct{}

	mu        sync.Mutex
	buf       []byte
	truncated bool
}

func newStream(limit, def int) (*stream, error) {
	if limit <= 0 {
		limit = def
	}
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	return &stream{r: r, w: w, limit: limit, done: make(chan struct{})}, nil
}

// read drains the pipe until its end, or until the read end is closed.
func (s *stream) read() {
	defer close(s.done)
	chunk := make([]byte, 32<<10)
	for {
		n, err := s.r.Read(chunk)
		s.mu.Lock()
		room := s.limit - len(s.buf)
		s.truncated = s.truncated || n > room
		s.buf = append(s.buf, chunk[:min(n, room)]...)
		s.mu.Unlock()
		if err != nil {
			return
		}
	}
}

func (s *stream) take() ([]byte, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]byte(nil), s.buf...), s.truncated
}

type pipes struct {
	out, err *stream
	stdin    *os.File
}

func attach(cmd *exec.Cmd, c Command) (*pipes, error) {
	var p pipes
	var err error
	if p.out, err = newStream(c.StdoutLimit, defaultStdoutLimit); err != nil {
		return nil, err
	}
	if p.err, err = newStream(c.StderrLimit, defaultStderrLimit); err != nil {
		p.out.w.Close()
		p.out.r.Close()
		return nil, err
	}
	cmd.Stdout, cmd.Stderr = p.out.w, p.err.w
	if c.Stdin != "" {
		// A pipe holds more than 4 KiB, so this can't block.
		r, w, err := os.Pipe()
		if err != nil {
			p.closeChildEnds()
			p.close()
			return nil, err
		}
		_, err = w.WriteString(c.Stdin)
		w.Close()
		p.stdin = r
		if err != nil {
			p.closeChildEnds()
			p.close()
			return nil, err
		}
		cmd.Stdin = r
	}
	return &p, nil
}

func (p *pipes) closeChildEnds() {
	p.out.w.Close()
	p.err.w.Close()
	if p.stdin != nil {
		p.stdin.Close()
	}
}

func (p *pipes) close() {
	p.out.r.Close()
	p.err.r.Close()
}

// follow reads the output and waits for the end, or kills and gives up.
func (p *pipes) follow(ctx context.Context, cmd *exec.Cmd, kill func(*os.Process)) Result {
	go p.out.read()
	go p.err.read()
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()

	r := Result{ExitCode: -1}
	gone, drain := true, drainGrace
	select {
	case <-ended:
		r.Outcome, r.ExitCode, r.Signal = fate(cmd.ProcessState)
		// On a busy machine the readers may lag behind; a descendant that holds a pipe must not take the whole time either.
		if deadline, ok := ctx.Deadline(); ok {
			drain = max(drain, min(lagGrace, time.Until(deadline)))
		}
	case <-ctx.Done():
		r.Outcome = TimedOut
		if !errors.Is(ctx.Err(), context.DeadlineExceeded) {
			r.Outcome = Canceled
		}
		r.State = processState(cmd.Process.Pid)
		kill(cmd.Process)
		select {
		case <-ended:
		case <-time.After(killGrace):
			r.Outcome, gone = Abandoned, false
		}
	}
	if gone {
		// Both streams share one deadline, so it must be one that can be seen twice.
		drained, stop := context.WithTimeout(context.Background(), drain)
		defer stop()
		for _, s := range []*stream{p.out, p.err} {
			select {
			case <-s.done:
			case <-drained.Done():
				r.PipesHeld = true
			}
		}
	}
	// Closing the read ends frees both readers, and a descendant that writes on gets SIGPIPE.
	p.close()
	r.Stdout, r.StdoutTruncated = p.out.take()
	r.Stderr, r.StderrTruncated = p.err.take()
	return r
}

package container

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"cotenant/internal/observe"
)

// waited is the engine's word that a container has ended and is removed.
type waited struct {
	StatusCode int
	Error      *struct{ Message string }
	err        error
}

// watch starts the container and reads it until the engine has removed it, it has written too much, its time is over or ctx ends.
func (r *run) watch(ctx context.Context, out *output) error {
	// Reading and waiting begin before the start, so that nothing is missed, and end with this function, so that nothing is left.
	ctx2, cancel := context.WithCancel(context.Background())
	defer cancel()
	id := r.o.ContainerID
	attached, err := r.e.open(ctx2, http.MethodPost, "/containers/"+id+"/attach", attachQuery, nil)
	if err != nil {
		return err
	}
	defer attached.Body.Close()
	removed, err := r.e.open(ctx2, http.MethodPost, "/containers/"+id+"/wait", url.Values{"condition": {"removed"}}, nil)
	if err != nil {
		return err
	}
	defer removed.Body.Close()
	read, gone := make(chan error, 1), make(chan waited, 1)
	go func() { read <- out.read(attached.Body) }()
	go func() {
		var w waited
		w.err = json.NewDecoder(io.LimitReader(removed.Body, 64<<10)).Decode(&w)
		gone <- w
	}()
	if ctx.Err() != nil {
		return r.interruptedOr(ctx, ctx.Err())
	}
	r.say("starting the container")
	start := time.Now()
	defer func() { r.o.WallMS = time.Since(start).Milliseconds() }()
	err = r.step("start_container", map[string]string{"id": id, "run": r.p.o.Run}, func() error {
		return startError(r.e.call(context.Background(), startTimeout, http.MethodPost, "/containers/"+id+"/start", nil, nil, nil))
	})
	if err != nil {
		// What the runtime wrote may say more.
		cancel()
		<-read
		return err
	}
	return r.until(ctx, read, gone)
}

// until waits for the first of what may end the container.
func (r *run) until(ctx context.Context, read <-chan error, gone <-chan waited) error {
	kill := time.NewTimer(r.p.w.deadline + r.p.o.grace)
	defer kill.Stop()
	stopped := func(ended, why string) error {
		r.o.Ended = ended
		return errors.New(why)
	}
	for {
		select {
		case err := <-read:
			if errors.Is(err, errTooMuch) {
				return stopped(TooMuch, fmt.Sprintf("%v of %d bytes on stdout, %d on stderr: it is killed", err, MaxStdout, MaxStderr))
			}
			if err != nil {
				return err
			}
			read = nil // its end alone doesn't say that the container is gone
		case w := <-gone:
			if read != nil && w.err == nil {
				select {
				case <-read:
				case <-time.After(drainTime):
				}
			}
			return r.ended(w)
		case <-kill.C:
			return stopped(Killed, fmt.Sprintf("the container still ran %v after its start: it is killed", r.p.w.deadline+r.p.o.grace))
		case <-ctx.Done():
			return stopped(Interrupted, "interrupted")
		}
	}
}

// ended takes the engine's word of how the container ended.
func (r *run) ended(w waited) error {
	if w.err != nil {
		return fmt.Errorf("waiting for the container: %w", w.err)
	}
	r.o.ExitCode, r.o.Status, r.o.Ended = w.StatusCode, observe.SupportedProven, Exited
	if w.Error != nil && w.Error.Message != "" {
		r.o.Warnings = append(r.o.Warnings, observe.Clip(w.Error.Message))
	}
	if w.StatusCode == deadlineExit {
		r.o.Ended = OwnDeadline
		return fmt.Errorf("the program ended itself at its container's deadline of %v", r.p.w.deadline)
	}
	return nil
}

// startError says which failures to start are the environment's: an engine without NVIDIA's hook, or a hook without a driver.
func startError(err error) error {
	var a *apiError
	if !errors.As(err, &a) {
		return err
	}
	text := strings.ToLower(a.Message)
	if i := max(strings.LastIndex(text, "nvidia-container"), strings.LastIndex(text, "error running hook")); i >= 0 {
		a.Message = a.Message[i:] // the runtime's own words before it say nothing
	}
	switch {
	case strings.Contains(text, "could not select device driver"):
		return blockedf(observe.BlockedByEnvironment, "the engine can't pass a GPU on: it found no nvidia-container-runtime-hook when it started (NVIDIA Container Toolkit): %v", err)
	case strings.Contains(text, "nvidia") || strings.Contains(text, "cdi"):
		return blockedf(observe.BlockedByEnvironment, "the engine's NVIDIA hook failed: %v", err)
	case strings.Contains(text, "exec: \""+binaryTarget+"\""):
		return notExecuted(a.Message)
	}
	return err
}

func notExecuted(text string) error {
	return blockedf(observe.BlockedByEnvironment, "the program can't be executed in the image, which may lack glibc's loader: %s", observe.Clip(text))
}

// executed says where the runtime could not execute the program. Some report that as the container's own output and end.
func (r *run) executed(stderr []byte) error {
	if r.o.Ended != Exited || r.o.ExitCode == 0 || !bytes.HasPrefix(stderr, []byte("exec "+binaryTarget+": ")) {
		return nil
	}
	r.o.Ended = Blocked
	return notExecuted(string(stderr))
}

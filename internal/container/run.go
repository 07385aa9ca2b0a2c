package container

import (
	"archive/tar"
	"context"
	"crypto/sha256"
	"encoding/hex"
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

// How a run ended.
const (
	Exited      = "exited"       // the program ended by itself; its exit code says the rest
	OwnDeadline = "own_deadline" // the program ended itself at its container's deadline
	Killed      = "killed"       // by the engine, as told here: past the deadline
	TooMuch     = "too_much"     // killed: it wrote more than the limit
	Interrupted = "interrupted"  // killed: the context ended
	Refused     = "refused"      // a rule, or something that isn't ours: nothing was made
	Blocked     = "blocked"      // the environment can't: nothing ran
	Failed      = "failed"       // a step failed
)

const (
	pullTimeout  = 10 * time.Minute
	readTimeout  = 2 * time.Minute // of the program, back through the engine
	startTimeout = 2 * time.Minute // hooks can be slow
	goneTimeout  = 30 * time.Second
	drainTime    = 5 * time.Second
)

// Outcome is what came of a run. It is complete also where the run failed.
type Outcome struct {
	Ended  string         `json:"ended"`
	Status observe.Status `json:"status"`
	// Reason says why Ended isn't exited.
	Reason    string    `json:"reason"`
	Preflight Preflight `json:"preflight"`
	// ExitCode is the program's; -1 where it didn't end by itself.
	ExitCode     int                   `json:"exit_code"`
	OOMKilled    bool                  `json:"oom_killed"`
	Stdout       []byte                `json:"-"`
	Stderr       []byte                `json:"-"`
	WallMS       int64                 `json:"wall_ms"` // from the start of the container until the engine had removed it
	ContainerID  string                `json:"container_id"`
	ImageID      string                `json:"image_id"`
	ImagePulled  bool                  `json:"image_pulled"`
	BinarySHA256 observe.Value[string] `json:"binary_sha256"` // of the mounted program, through the engine
	Warnings     []string              `json:"warnings"`      // the engine's
	Events       []Event               `json:"events"`        // the engine's, about the container
	Cleanup      Cleaned               `json:"cleanup"`
	MutatedState bool                  `json:"mutated_state"`
}

// Event is one of the engine's own records.
type Event struct {
	Time     string `json:"time"` // RFC 3339 with nanoseconds, UTC
	Action   string `json:"action"`
	ExitCode string `json:"exit_code,omitempty"`
}

// run is one confirmed run.
type run struct {
	p     *Plan
	e     *engine
	o     *Outcome
	began time.Time
	comes time.Time // when a container that the engine was asked for, without an answer, can't come up any more
}

// Run does what the plan says and takes everything away again, whatever happens and when ctx ends. The error says what kept the
// program from ending by itself; the outcome is never nil.
func (p *Plan) Run(ctx context.Context) (*Outcome, error) {
	o := &Outcome{Ended: Failed, Status: observe.Unknown, ExitCode: -1, Warnings: []string{}, Events: []Event{},
		BinarySHA256: observe.None[string]("GET /containers/{id}/archive", 0, "not asked"),
		Preflight:    Preflight{Status: observe.Unknown, Reason: "not asked", Unowned: []string{}}, Cleanup: nothing()}
	r := &run{p: p, o: o, began: time.Now()}
	err := r.all(ctx)
	if err != nil {
		o.Reason = observe.Clip(err.Error())
		var b *blocked
		if errors.As(err, &b) {
			o.Status = b.status
			if o.Ended == Failed {
				o.Ended = Blocked
			}
		}
	}
	return o, err
}

func (r *run) all(ctx context.Context) error {
	if err := r.p.Refused(); err != nil {
		r.o.Ended = Refused
		return err
	}
	r.say("asking the engine")
	e, pre, err := r.p.preflight(ctx, true)
	r.o.Preflight = pre
	if err != nil {
		return err
	}
	r.e = e
	if len(pre.Unowned) > 0 {
		r.o.Ended, r.o.Status = Refused, observe.Busy
		return errors.New("there already, and not this run's: " + strings.Join(pre.Unowned, ", "))
	}
	err = r.withImage(ctx)
	r.takeAway()
	r.events()
	if err == nil && !r.o.Cleanup.Complete {
		r.o.Ended = Failed
		err = errors.New("cleanup is not proven: " + strings.Join(r.o.Cleanup.Left, ", "))
	}
	return err
}

// takeAway removes what the run made, also where ctx has ended.
func (r *run) takeAway() {
	if !r.o.MutatedState {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*goneTimeout)
	defer cancel()
	image := ""
	if r.o.ImagePulled {
		image = r.p.Image.Reference()
	}
	err := r.step("remove_container", map[string]string{"run": r.p.o.Run, "name": r.p.Container, "image": image}, func() error {
		r.o.Cleanup = r.e.clean(ctx, r.p.o.Run, r.o.ContainerID, image, false, r.comes)
		if !r.o.Cleanup.Complete {
			return errors.New(strings.Join(r.o.Cleanup.Left, ", "))
		}
		return nil
	})
	if err != nil && len(r.o.Cleanup.Left) == 0 {
		r.o.Cleanup.Left, r.o.Cleanup.Complete = []string{observe.Clip(err.Error())}, false
	}
}

func (r *run) say(text string) {
	if r.p.o.Progress != nil {
		r.p.o.Progress(text)
	}
}

// step takes a step that the journal knows of first.
func (r *run) step(name string, detail map[string]string, f func() error) error {
	if r.p.o.Journal == nil {
		return f()
	}
	return r.p.o.Journal.Step(name, 0, detail, f)
}

// withImage brings the image, where it isn't there, and goes on.
func (r *run) withImage(ctx context.Context) error {
	image := r.p.Image
	if !r.o.Preflight.ImagePresent.Or(false) {
		r.say("pulling " + image.Reference())
		r.o.MutatedState = true
		err := r.step("pull_image", map[string]string{"image": image.Reference(), "run": r.p.o.Run, "socket": r.e.socket}, func() error {
			r.o.ImagePulled = true // as far as it came
			return r.pull(ctx)
		})
		if err != nil {
			return r.interruptedOr(ctx, err)
		}
	}
	f, err := r.e.image(ctx, image)
	if err != nil {
		return r.interruptedOr(ctx, err)
	}
	r.o.ImageID = f.ID
	if err := checkImage(f, image); err != nil {
		return fmt.Errorf("checking the image: %w", err)
	}
	return r.withContainer(ctx)
}

func (r *run) interruptedOr(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		r.o.Ended = Interrupted
	}
	return err
}

// pull asks for the image; the engine answers with progress, one JSON object after another, and an error among them.
func (r *run) pull(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, pullTimeout)
	defer cancel()
	resp, err := r.e.open(ctx, http.MethodPost, "/images/create", r.p.pullQuery(), nil)
	if err != nil {
		return pullError(err)
	}
	defer resp.Body.Close()
	progress := json.NewDecoder(io.LimitReader(resp.Body, 64<<20))
	for {
		var line struct{ Error string }
		switch err := progress.Decode(&line); {
		case err == io.EOF:
			return nil
		case err != nil:
			return r.e.unreachable(ctx, "POST /images/create", err)
		case line.Error != "":
			return pullError(errors.New("pulling " + r.p.Image.Reference() + ": " + observe.Clip(line.Error)))
		}
	}
}

// pullError says that an image that can't be had is the environment's doing.
func pullError(err error) error {
	var b *blocked
	if errors.As(err, &b) {
		return err
	}
	return blockedf(observe.BlockedByEnvironment, "the engine has not the image and can't pull it: %v", err)
}

// withContainer makes the container, checks it, runs it and reads it. Its removal is takeAway's, should it not remove itself.
func (r *run) withContainer(ctx context.Context) error {
	if ctx.Err() != nil {
		return r.interruptedOr(ctx, ctx.Err())
	}
	r.say("making the container " + r.p.Container)
	r.o.MutatedState = true
	err := r.step("create_container", map[string]string{"run": r.p.o.Run, "name": r.p.Container, "socket": r.e.socket}, func() error {
		return r.create()
	})
	if codeOf(err) >= 400 && !r.o.ImagePulled {
		r.o.MutatedState = false // it refused
	}
	if err == nil {
		err = r.check(ctx)
	}
	if err != nil {
		return r.interruptedOr(ctx, err)
	}
	out := &output{maxStdout: MaxStdout, maxStderr: MaxStderr}
	err = r.watch(ctx, out)
	r.o.Stdout, r.o.Stderr = out.stdout, out.stderr
	if err == nil {
		err = r.executed(out.stderr)
	}
	return err
}

// create isn't ended by ctx: an answer that nobody waited for would be a container that nobody knows.
func (r *run) create() error {
	var made struct {
		ID       string
		Warnings []string
	}
	err := r.e.call(context.Background(), callTimeout, http.MethodPost, "/containers/create", r.p.createQuery(), r.p.body, &made)
	if err != nil && codeOf(err) == 0 {
		r.comes = time.Now().Add(AnswerTime)
	}
	for _, w := range made.Warnings {
		r.o.Warnings = append(r.o.Warnings, observe.Clip(w))
	}
	r.o.ContainerID = made.ID
	switch {
	case codeOf(err) == http.StatusConflict:
		r.o.Ended, r.o.Status = Refused, observe.Busy
		return fmt.Errorf("another container took the name %s: %w", r.p.Container, err)
	case codeOf(err) == http.StatusBadRequest && strings.Contains(err.Error(), "bind source path"):
		return blockedf(observe.BlockedByEnvironment, "the engine doesn't see this program's file, so it has another file system than this process: %v", err)
	}
	return err
}

// check holds what the engine made against what it was asked for, and the mounted program against this one.
func (r *run) check(ctx context.Context) error {
	var got inspected
	if err := r.e.call(ctx, callTimeout, http.MethodGet, "/containers/"+r.o.ContainerID+"/json", nil, nil, &got); err != nil {
		return err
	}
	if what := got.differs(r.p.body); what != "" {
		return fmt.Errorf("checking the container: the engine made it with another %s than asked for", what)
	}
	sum, err := r.mounted(ctx)
	if err != nil {
		return fmt.Errorf("reading the mounted program back: %w", err)
	}
	r.o.BinarySHA256 = observe.Got("GET /containers/{id}/archive", sum)
	if sum != r.p.w.program.SHA256 {
		return errors.New("the engine mounts another file than this program: it has another file system than this process")
	}
	return nil
}

// mounted hashes the program as the container has it.
func (r *run) mounted(ctx context.Context) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	resp, err := r.e.open(ctx, http.MethodGet, "/containers/"+r.o.ContainerID+"/archive", url.Values{"path": {binaryTarget}}, nil)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	t := tar.NewReader(resp.Body)
	if h, err := t.Next(); err != nil {
		return "", err
	} else if h.Typeflag != tar.TypeReg {
		return "", errors.New("not a regular file")
	}
	sum := sha256.New()
	if _, err := io.Copy(sum, io.LimitReader(t, 1<<30)); err != nil {
		return "", err
	}
	return hex.EncodeToString(sum.Sum(nil)), nil
}

// events asks the engine what it recorded of the container. It keeps its last few hundred records.
func (r *run) events() {
	if r.o.ContainerID == "" {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
	defer cancel()
	query := filters(map[string][]string{"type": {"container"}, "container": {r.o.ContainerID}})
	query.Set("since", fmt.Sprint(r.began.Add(-time.Minute).Unix()))
	until := time.Now() // a later one would be waited for
	query.Set("until", fmt.Sprintf("%d.%09d", until.Unix(), until.Nanosecond()))
	resp, err := r.e.open(ctx, http.MethodGet, "/events", query, nil)
	if err != nil {
		return
	}
	defer resp.Body.Close()
	lines := json.NewDecoder(io.LimitReader(resp.Body, 1<<20))
	for len(r.o.Events) < 100 {
		var line struct {
			Action   string
			TimeNano int64
			Actor    struct{ Attributes map[string]string }
		}
		if lines.Decode(&line) != nil {
			return
		}
		r.o.OOMKilled = r.o.OOMKilled || line.Action == "oom"
		r.o.Events = append(r.o.Events, Event{time.Unix(0, line.TimeNano).UTC().Format(time.RFC3339Nano), observe.Clip(line.Action),
			observe.Clip(line.Actor.Attributes["exitCode"])})
	}
}

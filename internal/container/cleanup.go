package container

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"

	"cotenant/internal/observe"
)

// Cleaned is what a cleanup did, and the proof that nothing is left.
type Cleaned struct {
	// Complete: the engine lists no container of the run any more, nor an image that the run brought.
	Complete   bool               `json:"complete"`
	Containers []CleanedContainer `json:"containers"`
	Image      string             `json:"image"` // not pulled, removed, in use by others, would be removed, or why it could not be
	Left       []string           `json:"left"`
	Listed     observe.Value[int] `json:"listed"` // containers of the run that the engine lists at last
	// Absent: asked for the run's container by its id, the engine answers that it has none; no value where no id is known.
	Absent   observe.Value[bool] `json:"absent"`
	WaitedMS int64               `json:"waited_ms"`
}

// CleanedContainer is a container that carried the run's label and was still there.
type CleanedContainer struct {
	ID      string `json:"id"`
	Name    string `json:"name"`
	State   string `json:"state"`
	Removed string `json:"removed"` // removed, would be removed, or why it could not be
}

func nothing() Cleaned {
	return Cleaned{Complete: true, Containers: []CleanedContainer{}, Image: "not pulled", Left: []string{},
		Listed: observe.None[int]("GET /containers/json", 0, "nothing was made"), Absent: observe.None[bool]("GET /containers/{id}/json", 0, "no id is known")}
}

// CleanupOptions say what a journal proves to be a run's.
type CleanupOptions struct {
	Run string
	// Socket is the one in the journal's create_container; empty to look where a run would.
	Socket string
	// Image is the one in the journal's pull_image; empty where the run pulled none.
	Image string
	// Container is the id in the journal's start_container; empty where it got none.
	Container string
	// Asked is when the run was about to ask for its container, where the journal has no word of what came of that; else zero. The engine
	// may make it after its client has died, so it is looked for until it comes up or AnswerTime has passed since.
	Asked time.Time
	Env   []string // nil means this process's
	// Dry only looks.
	Dry bool
}

// AnswerTime is how long an engine may take to make a container: a run doesn't wait longer for it either.
const AnswerTime = callTimeout

// Cleanup removes the containers that carry a run's label and, where the run pulled it, its image. What another uses stays.
func Cleanup(ctx context.Context, o CleanupOptions) (Cleaned, error) {
	if o.Run == "" {
		return nothing(), errors.New("cleaning up: no run id")
	}
	if o.Env == nil {
		o.Env = os.Environ()
	}
	if o.Socket == "" {
		var err error
		if o.Socket, err = findSocket(o.Env); err != nil {
			return nothing(), err
		}
	}
	e, _, err := dial(ctx, o.Socket)
	if err != nil {
		return nothing(), err
	}
	var until time.Time
	if !o.Asked.IsZero() {
		until = time.Now().Add(min(AnswerTime, AnswerTime-time.Since(o.Asked))) // also where the clock was set back
	}
	c := e.clean(ctx, o.Run, o.Container, o.Image, o.Dry, until)
	if !c.Complete && !o.Dry {
		return c, errors.New("cleanup is not proven: " + strings.Join(c.Left, ", "))
	}
	return c, nil
}

// of lists the containers that carry the run's label. The engine's filter is checked: what it would list by mistake isn't ours.
func (e *engine) of(ctx context.Context, run string) ([]listed, error) {
	query := filters(map[string][]string{"label": {labelRun + "=" + run}})
	query.Set("all", "1")
	var all []listed
	if err := e.call(ctx, callTimeout, http.MethodGet, "/containers/json", query, nil, &all); err != nil {
		return nil, err
	}
	if all == nil { // not a list without entries
		return nil, errors.New("GET /containers/json: the engine answered no list")
	}
	return slices.DeleteFunc(all, func(c listed) bool { return c.Labels[labelRun] != run }), nil
}

// clean removes what is a run's and looks until the engine lists nothing of it, for at most its patience. A container that the engine may
// yet make is waited for until then.
func (e *engine) clean(ctx context.Context, run, id, image string, dry bool, until time.Time) Cleaned {
	c := nothing()
	start := time.Now()
	seen := make(map[string]int)
	quiet := 0
	for {
		all, err := e.of(ctx, run)
		if err != nil {
			c.Listed = observe.None[int]("GET /containers/json", int32(codeOf(err)), observe.Clip(err.Error()))
			c.Left = append(c.Left, "containers, which the engine doesn't list: "+observe.Clip(err.Error()))
			break
		}
		c.Listed = observe.Got("GET /containers/json", len(all))
		for _, x := range all {
			i, ok := seen[x.ID]
			if !ok {
				i = len(c.Containers)
				seen[x.ID] = i
				c.Containers = append(c.Containers, CleanedContainer{x.ID, strings.TrimPrefix(strings.Join(x.Names, " "), "/"), x.State, "would be removed"})
			}
			if !dry {
				c.Containers[i].Removed = e.remove(ctx, x.ID)
			}
		}
		if len(all) == 0 {
			quiet++
		} else {
			quiet = 0
		}
		// Twice: what the engine lists while it makes or removes something needn't be all.
		settled := quiet >= 2 && (len(seen) > 0 || !time.Now().Before(until))
		if dry || settled || quiet == 0 && time.Since(start) > e.patience || ctx.Err() != nil {
			for _, x := range all {
				c.Left = append(c.Left, "container "+x.ID)
			}
			break
		}
		time.Sleep(100 * time.Millisecond)
	}
	if id != "" {
		c.Absent = e.absent(ctx, id)
		if gone, ok := c.Absent.Get(); !dry && (!ok || !gone) && len(c.Left) == 0 {
			c.Left = append(c.Left, "container "+id+", which the engine doesn't list and still has")
		}
	}
	if image != "" {
		c.Image = e.removeImage(ctx, image, dry)
		if strings.HasPrefix(c.Image, "not removed") || dry {
			c.Left = append(c.Left, "image "+image)
		}
	}
	c.WaitedMS = time.Since(start).Milliseconds()
	c.Complete = len(c.Left) == 0
	return c
}

// absent asks for a container by its id.
func (e *engine) absent(ctx context.Context, id string) observe.Value[bool] {
	const call = "GET /containers/{id}/json"
	err := e.call(ctx, callTimeout, http.MethodGet, "/containers/"+id+"/json", nil, nil, nil)
	if err != nil && codeOf(err) != http.StatusNotFound {
		return observe.None[bool](call, int32(codeOf(err)), observe.Clip(err.Error()))
	}
	return observe.Got(call, err != nil)
}

// remove kills and removes a container with its anonymous volumes.
func (e *engine) remove(ctx context.Context, id string) string {
	err := e.call(ctx, callTimeout, http.MethodDelete, "/containers/"+id, removeQuery, nil, nil)
	switch codeOf(err) {
	case http.StatusNotFound, http.StatusConflict: // it is being removed, by the engine itself
		return "removed"
	}
	if err != nil {
		return "not removed: " + observe.Clip(err.Error())
	}
	return "removed"
}

// removeImage takes an image away that the run brought, unless another container or name uses it by now.
func (e *engine) removeImage(ctx context.Context, image string, dry bool) string {
	path := "/images/" + image
	err := e.call(ctx, callTimeout, http.MethodGet, path+"/json", nil, nil, nil)
	if codeOf(err) == http.StatusNotFound {
		return "not there"
	}
	if dry {
		return "would be removed"
	}
	if err == nil {
		err = e.call(ctx, time.Minute, http.MethodDelete, path, url.Values{}, nil, nil)
	}
	switch {
	case codeOf(err) == http.StatusConflict:
		return "in use by others"
	case err != nil:
		return "not removed: " + observe.Clip(err.Error())
	}
	if err = e.call(ctx, callTimeout, http.MethodGet, path+"/json", nil, nil, nil); codeOf(err) != http.StatusNotFound {
		return fmt.Sprintf("not removed: the engine still has it (%v)", err)
	}
	return "removed"
}

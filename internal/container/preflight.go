package container

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"cotenant/internal/observe"
)

// Engine is the engine that was asked.
type Engine struct {
	Version       string   `json:"version"`
	API           string   `json:"api_version"` // the one spoken
	Platform      string   `json:"platform"`
	Kernel        string   `json:"kernel"`
	OS            string   `json:"operating_system"`
	Storage       string   `json:"storage_driver"`
	CgroupVersion string   `json:"cgroup_version"`
	Security      []string `json:"security_options"`
	Runtimes      []string `json:"runtimes"`
	Default       string   `json:"default_runtime"`
}

// Preflight is what can be known without changing anything.
type Preflight struct {
	// Status is supported_declared where a run may go on, as far as can be told before: whether the engine can pass a GPU on shows
	// only when a container starts.
	Status observe.Status `json:"status"`
	Reason string         `json:"reason"`
	Engine *Engine        `json:"engine"` // null where none answered
	// Unowned are containers, networks and volumes of the project's names: any of them stops a run.
	Unowned []string `json:"unowned"`
	// ImagePresent says whether the engine has the image; it is pulled where not.
	ImagePresent observe.Value[bool] `json:"image_present"`
}

func (f *Preflight) fail(err error) {
	f.Status, f.Reason = statusOf(err), observe.Clip(err.Error())
}

// statusOf is the status of what went wrong.
func statusOf(err error) observe.Status {
	var b *blocked
	if errors.As(err, &b) {
		return b.status
	}
	return observe.Unknown
}

// Preflight asks the engine, with GET requests only. Where systemd would start the engine for being asked, it isn't asked unless wake
// is set.
func (p *Plan) Preflight(ctx context.Context, wake bool) Preflight {
	_, f, _ := p.preflight(ctx, wake)
	return f
}

// preflight also returns the engine, and the error that kept it from answering.
func (p *Plan) preflight(ctx context.Context, wake bool) (*engine, Preflight, error) {
	f := Preflight{Unowned: []string{}, ImagePresent: observe.None[bool]("GET /images/{name}/json", 0, "not asked")}
	socket, err := findSocket(p.o.Env)
	if err == nil && !wake && sleeping() {
		err = blockedf(observe.Unknown, "dockerd doesn't run; asking would make systemd start it, so it was not asked")
	}
	if err != nil {
		f.fail(err)
		return nil, f, err
	}
	e, v, err := dial(ctx, socket)
	if err == nil {
		if p.o.patience > 0 {
			e.patience = p.o.patience
		}
		f.Engine, err = e.facts(ctx, v)
	}
	if err == nil {
		err = p.fits(f.Engine)
	}
	if err == nil {
		f.Unowned, err = e.unowned(ctx, p.Project, p.Container)
	}
	if err == nil {
		f.ImagePresent, err = e.present(ctx, p.Image)
	}
	switch {
	case err != nil:
		f.fail(err)
		return nil, f, err
	case len(f.Unowned) > 0:
		f.Status, f.Reason = observe.Busy, "there already: "+strings.Join(f.Unowned, ", ")
	default:
		f.Status, f.Reason = observe.SupportedDeclared, "the engine answers; whether it passes the GPU on shows when the container starts"
	}
	return e, f, nil
}

func (p *Plan) fits(e *Engine) error {
	if e.Platform != p.w.platform {
		return blockedf(observe.BlockedByEnvironment, "the engine is of %s, this program of %s", e.Platform, p.w.platform)
	}
	return nil
}

// sleeping reports whether connecting to the socket would make systemd start the engine.
func sleeping() bool {
	if _, err := os.Stat("/run/systemd/system"); err != nil {
		return false
	}
	names, _ := filepath.Glob("/proc/[0-9]*/comm")
	return !slices.ContainsFunc(names, func(name string) bool {
		b, _ := os.ReadFile(name)
		return strings.TrimSpace(string(b)) == "dockerd"
	})
}

// facts asks who the engine is and whether it can hold a container to its bounds.
func (e *engine) facts(ctx context.Context, v version) (*Engine, error) {
	var info struct {
		OSType, Architecture, KernelVersion, OperatingSystem, Driver, CgroupVersion, DefaultRuntime string
		SecurityOptions                                                                             []string
		Runtimes                                                                                    map[string]any
		MemoryLimit, PidsLimit                                                                      bool
	}
	if err := e.call(ctx, callTimeout, http.MethodGet, "/info", nil, nil, &info); err != nil {
		return nil, err
	}
	f := &Engine{Version: observe.Clip(v.Version), API: strings.TrimPrefix(e.prefix, "/v"), Platform: observe.Clip(v.Os + "/" + v.Arch), Kernel: observe.Clip(info.KernelVersion),
		OS: observe.Clip(info.OperatingSystem), Storage: observe.Clip(info.Driver), CgroupVersion: observe.Clip(info.CgroupVersion), Default: observe.Clip(info.DefaultRuntime),
		Security: []string{}, Runtimes: []string{}}
	for _, s := range info.SecurityOptions {
		f.Security = append(f.Security, observe.Clip(s))
	}
	for name := range info.Runtimes {
		f.Runtimes = append(f.Runtimes, observe.Clip(name))
	}
	slices.Sort(f.Runtimes)
	if !info.MemoryLimit || !info.PidsLimit {
		return f, blockedf(observe.BlockedByEnvironment, "the engine can't bound memory (%v) and processes (%v): its control groups are missing", info.MemoryLimit, info.PidsLimit)
	}
	return f, nil
}

// unowned lists what has the project's names: the container's own name, and what `docker compose` would make.
func (e *engine) unowned(ctx context.Context, project, container string) ([]string, error) {
	found := []string{}
	var containers []listed
	if err := e.call(ctx, callTimeout, http.MethodGet, "/containers/json", url.Values{"all": {"1"}}, nil, &containers); err != nil {
		return found, err
	}
	ours := func(name string) bool { return name == project || strings.HasPrefix(name, project+"_") }
	for _, c := range containers {
		for _, name := range c.Names {
			name = strings.TrimPrefix(name, "/")
			if name != container && c.Labels["com.docker.compose.project"] != project && c.Labels[labelRun] == "" {
				continue
			}
			text := "container " + name
			if run := c.Labels[labelRun]; run != "" {
				text += " of run " + run
			}
			found = append(found, observe.Clip(text))
			break
		}
	}
	var networks []struct{ Name string }
	if err := e.call(ctx, callTimeout, http.MethodGet, "/networks", nil, nil, &networks); err != nil {
		return found, err
	}
	for _, n := range networks {
		if ours(n.Name) {
			found = append(found, observe.Clip("network "+n.Name))
		}
	}
	var volumes struct{ Volumes []struct{ Name string } }
	if err := e.call(ctx, callTimeout, http.MethodGet, "/volumes", nil, nil, &volumes); err != nil {
		return found, err
	}
	for _, v := range volumes.Volumes {
		if ours(v.Name) {
			found = append(found, observe.Clip("volume "+v.Name))
		}
	}
	slices.Sort(found)
	return found, nil
}

// imageFacts is what GET /images/{name}/json answers, as far as it is looked at.
type imageFacts struct {
	ID               string
	RepoDigests      []string
	Os, Architecture string
	Config           struct {
		Env                  []string
		Entrypoint           []string
		Volumes              map[string]any
		Healthcheck, OnBuild any
	}
}

func (e *engine) image(ctx context.Context, i Image) (imageFacts, error) {
	var f imageFacts
	err := e.call(ctx, callTimeout, http.MethodGet, "/images/"+i.Reference()+"/json", nil, nil, &f)
	return f, err
}

func (e *engine) present(ctx context.Context, i Image) (observe.Value[bool], error) {
	const call = "GET /images/{name}/json"
	_, err := e.image(ctx, i)
	switch {
	case codeOf(err) == http.StatusNotFound:
		return observe.Got(call, false), nil
	case err != nil:
		return observe.None[bool](call, int32(codeOf(err)), observe.Clip(err.Error())), err
	}
	return observe.Got(call, true), nil
}

// checkImage says why an image isn't the one asked for, or isn't fit.
func checkImage(f imageFacts, i Image) error {
	named := slices.ContainsFunc(f.RepoDigests, func(text string) bool {
		_, digest, ok := parseImage(text)
		return ok && digest == i.Digest
	})
	switch {
	case !named && f.ID != i.Digest: // engines that store images as registries do name them by the manifest
		return fmt.Errorf("the engine has no image of digest %s under %s, but %v", i.Digest, i.Name, f.RepoDigests)
	case f.Os+"/"+f.Architecture != i.Platform:
		return fmt.Errorf("the image is of %s/%s, not %s", f.Os, f.Architecture, i.Platform)
	case len(f.Config.Volumes) > 0:
		return errors.New("the image declares volumes: the engine would make them")
	}
	for _, v := range f.Config.Env {
		if name, _, _ := strings.Cut(v, "="); loaderVariable.MatchString(name) {
			return fmt.Errorf("the image sets %s, which changes what libraries are loaded", name)
		}
	}
	return nil
}

var loaderVariable = regexp.MustCompile(`^(LD_|CUDA_|COTENANT_|NVIDIA_VISIBLE|GODEBUG$|GLIBC_)`)

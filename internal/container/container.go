// Package container runs a probe in an audited Compose service and proves the container gone.
//
// A Compose file, the embedded one or the user's, says how the container is made. NewPlan loads one service of it, holds it against
// the rules (Rules), and refuses every setting that weakens the container or that no rule knows. Run then asks the Docker engine, over
// its local socket, for exactly that: what the audit has accepted and nothing else, so there is no second description that could
// differ. The program in the container is this one, bind-mounted read-only; its hash is checked on the host, and once more through the
// engine's eyes before the container starts. The container has a deadline of its own and the engine removes it when it ends, whoever
// still watches.
//
// Nothing that a run didn't make is touched: its container carries the run's id as a label, and where another container, a network
// or a volume of the project's names exists, nothing starts.
package container

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/compose-spec/compose-go/v2/types"
)

// Deadlines. The container's is its program's and Grace; the engine is told to kill it after another Grace.
const (
	DefaultDeadline = 2 * time.Minute
	MaxDeadline     = 10 * time.Minute
	Grace           = 10 * time.Second

	maxContainerDeadline = MaxDeadline + Grace
)

// Limits of what a run reads of a container's output, in bytes. A container that writes more is killed.
const (
	MaxStdout = 4 << 20
	MaxStderr = 256 << 10
)

// Journal records, on disk, each step before it is taken; where it can't the step isn't taken. *evidence.Journal is one.
type Journal interface {
	Step(step string, index int, detail map[string]string, f func() error) error
}

// Options say what to run.
type Options struct {
	// GPUUUID is the one device that the container gets: GPU-… or MIG-….
	GPUUUID string
	// Run is the run's id: not empty, and known to nobody before the run's journal.
	Run string
	// Arguments are what the program in the container is called with.
	Arguments []string
	// File is a Compose file; empty for the embedded one. Service is one of its services; empty for DefaultService.
	File, Service string
	// Deadline is the program's, at most MaxDeadline; 0 means DefaultDeadline.
	Deadline time.Duration
	// Env is where DOCKER_HOST and the like are looked up; nil means this process's environment.
	Env []string
	// Journal may be nil.
	Journal Journal
	// Progress is told what happens, from one goroutine; it may be nil.
	Progress func(string)

	// Images replaces the reviewed images, for tests.
	Images []Image

	// program replaces this program's file, grace Grace and patience the engine's, for tests.
	program         string
	grace, patience time.Duration
}

// Plan is what would run, or why it isn't run.
type Plan struct {
	File      string `json:"compose_file"` // empty for the embedded one
	SHA256    string `json:"compose_sha256"`
	Project   string `json:"project"`
	Service   string `json:"service"`
	Container string `json:"container"`
	// Image and Binary are what the service names; Image.Why is empty where it isn't a reviewed one.
	Image    Image     `json:"image"`
	Binary   Binary    `json:"binary"`
	Refusals []Refusal `json:"refusals"`
	// Rendered is the service after interpolation, as YAML.
	Rendered string `json:"rendered"`
	// Requests are those that change something, in order; none where there are refusals.
	Requests []Request `json:"requests"`
	// ContainerDeadlineMS is when the container ends by itself; KillDeadlineMS when the engine is told to kill it.
	ContainerDeadlineMS int64 `json:"container_deadline_ms"`
	KillDeadlineMS      int64 `json:"kill_deadline_ms"`
	MaxStdoutBytes      int64 `json:"max_stdout_bytes"`
	MaxStderrBytes      int64 `json:"max_stderr_bytes"`

	o    Options
	w    wanted
	m    *model
	body createBody
}

// Request is one to the engine.
type Request struct {
	When   string `json:"when"`
	Method string `json:"method"`
	Path   string `json:"path"`
	Body   any    `json:"body,omitempty"`
}

// NewPlan loads and audits; it asks no engine. An error means that the file can't be read as one; refusals are in the plan.
func NewPlan(o Options) (*Plan, error) {
	if o.Env == nil {
		o.Env = os.Environ()
	}
	if o.Deadline == 0 {
		o.Deadline = DefaultDeadline
	}
	if o.Service == "" {
		o.Service = DefaultService
	}
	if o.Images == nil {
		o.Images = reviewed
	}
	if o.grace == 0 {
		o.grace = Grace
	}
	if o.Run == "" || o.GPUUUID == "" || len(o.Arguments) == 0 || o.Deadline < 0 || o.Deadline > MaxDeadline {
		return nil, fmt.Errorf("planning a container: want a run id, a UUID, arguments and a deadline of at most %v", MaxDeadline)
	}
	content, err := readFile(o.File)
	if err != nil {
		return nil, err
	}
	p := &Plan{File: o.File, Service: o.Service, o: o, Refusals: []Refusal{}, Requests: []Request{}, MaxStdoutBytes: MaxStdout, MaxStderrBytes: MaxStderr}
	sum := sha256.Sum256(content)
	p.SHA256 = hex.EncodeToString(sum[:])
	p.w = wanted{uuid: o.GPUUUID, run: o.Run, command: o.Arguments, platform: platform(), images: o.Images, deadline: o.Deadline + o.grace}
	p.ContainerDeadlineMS, p.KillDeadlineMS = p.w.deadline.Milliseconds(), (p.w.deadline + o.grace).Milliseconds()
	if p.w.program, err = programOf(o.program); err != nil {
		return nil, err
	}
	variables, err := p.variables()
	if err != nil {
		return nil, err
	}
	if p.m, err = load(content, o.File, o.Service, variables); err != nil {
		return nil, err
	}
	return p, p.complete()
}

// variables are those that a file may name.
func (p *Plan) variables() (map[string]string, error) {
	image, ok := defaultImage(p.o.Images)
	if !ok {
		image = Image{Name: "no-image-reviewed-for-" + strings.ReplaceAll(platform(), "/", "-")}
	}
	return map[string]string{
		varImage: image.Reference(), varPlatform: platform(), varBinary: p.w.program.Path, varCommand: quote(p.o.Arguments), varUUID: p.o.GPUUUID,
		varDeadline: p.w.deadline.String(), varRun: p.o.Run,
	}, nil
}

// complete audits the model and fills in what comes of it.
func (p *Plan) complete() error {
	m := p.m
	p.Project, p.Container = m.project, m.container()
	if name, digest, ok := parseImage(m.service.Image); ok {
		p.Image = Image{Name: name, Digest: digest, Platform: m.service.Platform}
		for _, i := range p.o.Images {
			if i.Name == name && i.Digest == digest && i.Platform == m.service.Platform {
				p.Image = i
			}
		}
	}
	if len(m.service.Volumes) > 0 {
		p.Binary.Path = m.service.Volumes[0].Source
		p.Binary.SHA256, p.Binary.Bytes, p.w.unread = hashFile(p.Binary.Path)
		p.w.binary = p.Binary.SHA256
	}
	b, err := (&types.Project{Name: m.project, Services: types.Services{m.name: m.service}}).MarshalYAML()
	if err != nil {
		return fmt.Errorf("rendering the Compose service: %w", err)
	}
	p.Rendered = string(b)
	if p.Refusals = append(p.Refusals, auditModel(m, p.w)...); len(p.Refusals) > 0 {
		return nil
	}
	p.body = m.body(p.w)
	p.Requests = []Request{
		{"where the image isn't there", http.MethodPost, "/images/create?" + p.pullQuery().Encode(), nil},
		{"always", http.MethodPost, "/containers/create?" + p.createQuery().Encode(), p.body},
		{"always", http.MethodPost, "/containers/{id}/attach?" + attachQuery.Encode(), nil},
		{"always", http.MethodPost, "/containers/{id}/start", nil},
		{"where it hasn't removed itself", http.MethodDelete, "/containers/{id}?" + removeQuery.Encode(), nil},
		{"where the image wasn't there before", http.MethodDelete, "/images/" + p.Image.Reference(), nil},
	}
	return nil
}

func (p *Plan) pullQuery() url.Values {
	return url.Values{"fromImage": {p.Image.Name}, "tag": {p.Image.Digest}, "platform": {p.Image.Platform}}
}

func (p *Plan) createQuery() url.Values {
	return url.Values{"name": {p.Container}, "platform": {p.Image.Platform}}
}

var (
	attachQuery = url.Values{"stream": {"1"}, "stdout": {"1"}, "stderr": {"1"}}
	removeQuery = url.Values{"force": {"1"}, "v": {"1"}}
)

// Refused is the error of a Run whose plan has refusals; nil where it has none.
func (p *Plan) Refused() error {
	if len(p.Refusals) == 0 {
		return nil
	}
	var errs []error
	for _, r := range p.Refusals {
		errs = append(errs, r)
	}
	return fmt.Errorf("the Compose service is refused: %w", errors.Join(errs...))
}

// quote writes arguments as one line that a Compose file's command is split into again.
func quote(args []string) string {
	quoted := make([]string, len(args))
	for i, a := range args {
		quoted[i] = "'" + strings.ReplaceAll(a, "'", `'\''`) + "'"
	}
	return strings.Join(quoted, " ")
}

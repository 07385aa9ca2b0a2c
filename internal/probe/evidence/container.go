package evidence

import (
	"encoding/json"
	"slices"
	"strings"

	"cotenant/internal/container"
)

// ContainerOperation is that of the result of a probe that runs in a container.
const ContainerOperation = "gpu_sharing_container_probe"

// ContainerRequest is what was asked of one.
type ContainerRequest struct {
	// Probe is the operation of the document that the program in the container prints.
	Probe string `json:"probe"`
	// Arguments are what the program is called with.
	Arguments []string `json:"arguments"`
	// Container is the audited service and what would be sent to the engine.
	Container *container.Plan `json:"container"`
}

// ContainerResult is result.json of `cotenant probe … --container`.
type ContainerResult struct {
	SchemaVersion   int              `json:"schema_version"`
	Operation       string           `json:"operation"`
	RunID           string           `json:"run_id"`
	MutatedState    bool             `json:"mutated_state"` // a container or an image was made
	CleanupComplete bool             `json:"cleanup_complete"`
	Outcome         string           `json:"outcome"`
	Failure         string           `json:"failure"`
	GPUUUID         string           `json:"gpu_uuid"`
	Probe           string           `json:"probe"`
	Arguments       []string         `json:"arguments"`
	Image           container.Image  `json:"image"`
	Binary          container.Binary `json:"binary"` // what was to be mounted
	ComposeSHA256   string           `json:"compose_sha256"`
	// Container is how it went, by the engine.
	Container container.Outcome `json:"container"`
	// Create is what the program in the container printed where that is a result of create; else null.
	Create *CreateResult `json:"create"`
	// Document is what it printed otherwise: the prerequisite inspection, or a plan whose gates said no; null where that is no JSON.
	Document json.RawMessage `json:"document"`
	Health   Health          `json:"health"`
	Cleanup  Cleanup         `json:"cleanup"`
	Checks   []Check         `json:"checks"`
	Warnings []string        `json:"warnings"`
}

// inner is what is looked at in a document that isn't a result of create.
type inner struct {
	Operation        string `json:"operation"`
	GPUUUID          string `json:"gpu_uuid"`
	Met              bool   `json:"prerequisites_met"`
	CreatedContext   bool   `json:"created_context"`
	LaunchedWorkload bool   `json:"launched_workload"`
	Reason           string `json:"reason"`
	Gates            []Gate `json:"gates"`
}

func (r *ContainerResult) inner() (i inner) {
	if r.Create != nil {
		return inner{Operation: r.Create.Operation, GPUUUID: r.Create.GPUUUID}
	}
	_ = json.Unmarshal(r.Document, &i) // what can't be read says nothing, and no check passes
	return i
}

// Print takes what the program in the container printed.
func (r *ContainerResult) Print(stdout []byte) {
	var c CreateResult
	if err := Decode("stdout", stdout, &c); err == nil && c.Operation == CreateOperation {
		r.Create = &c
	} else if json.Valid(stdout) {
		r.Document = stdout
	}
}

// Judge computes what follows from the rest.
func (r *ContainerResult) Judge() {
	if r.Create != nil {
		r.Create.Judge()
	}
	r.Cleanup.Judge()
	r.CleanupComplete = r.Cleanup.Complete && r.Container.Cleanup.Complete
	r.Checks, r.Warnings = r.checks(), r.warnings()
}

func (r *ContainerResult) checks() []Check {
	o, i := r.Container, r.inner()
	list := []Check{check("completed", r.Outcome == Completed && r.Failure == "", "outcome %s %s", r.Outcome, r.Failure)}
	if o.ContainerID != "" {
		list = append(list, check("binary_same", o.BinarySHA256.Or("") == r.Binary.SHA256, "mounted is SHA-256 %s, this program's is %s", o.BinarySHA256.Or("unknown"), r.Binary.SHA256))
	}
	if o.Ended == container.Exited {
		list = append(list, check("document", i.Operation == r.Probe, "the program printed %q and ended with exit code %d%s", i.Operation, o.ExitCode, i.refusal()),
			check("one_gpu", i.GPUUUID == r.GPUUUID, "the program speaks of the GPU asked for"),
			check("exit_code", o.ExitCode == 0, "%d", o.ExitCode))
	}
	switch {
	case r.Create != nil:
		list = append(list, check("created", Passed(r.Create.Checks), "%d checks in the container; failed: %s", len(r.Create.Checks), strings.Join(FailedChecks(r.Create.Checks), "; ")))
	case i.Operation == r.Probe && r.Probe != CreateOperation:
		list = append(list, check("prerequisites_met", i.Met && !i.CreatedContext && !i.LaunchedWorkload, "%s", i.Reason))
	}
	c := o.Cleanup
	list = append(list, check("container_gone", c.Complete, "the engine lists %d of the run; asked by id it has none: %v; left %v", c.Listed.Or(0), c.Absent.Or(false), c.Left),
		check("health_kept", r.Health.Lost == "", "%d samples %s", r.Health.Samples, r.Health.Lost))
	return append(list, r.Cleanup.checks()...)
}

// refusal names gates that said no in a plan.
func (i inner) refusal() string {
	text := ""
	for _, g := range i.Gates {
		if !g.Passes() {
			text += "; " + g.ID + ": " + g.Detail
		}
	}
	return text
}

func (r *ContainerResult) warnings() []string {
	w := []string{}
	for _, text := range r.Container.Warnings {
		w = append(w, "engine: "+text)
	}
	if r.Create != nil {
		for _, text := range r.Create.Warnings {
			w = append(w, "in the container: "+text)
		}
	}
	return w
}

// Exit is the exit code that follows, and why it isn't 0.
func (r *ContainerResult) Exit() (code int, why string) {
	why = strings.Join(FailedChecks(r.Checks), "; ")
	switch {
	case r.MutatedState && !r.CleanupComplete:
		return 1, "cleanup is not proven: " + why
	case r.Outcome == Interrupted:
		return 130, "interrupted; cleanup is proven"
	case r.Container.Ended == container.Blocked:
		return 4, "blocked by the environment: " + r.Container.Reason
	case r.Container.Ended == container.Exited && r.Container.ExitCode != 0:
		return r.Container.ExitCode, why
	case !Passed(r.Checks):
		return 3, why
	}
	return 0, ""
}

// containerRule holds what ran against what was audited.
func (f *folder) containerRule() (string, string) {
	if f.manifest.Probe != ContainerOperation {
		if slices.ContainsFunc(f.entries, func(e Entry) bool { return e.Step == "create_container" }) {
			return fail("the journal has a container, the run is none in one")
		}
		return NotApplicable, "no container"
	}
	content, err := json.Marshal(f.plan.Request)
	var q ContainerRequest
	if err == nil {
		err = Decode("request", content, &q)
	}
	if err != nil || q.Container == nil {
		return fail("the plan's request can't be read: %v", err)
	}
	pinned := slices.ContainsFunc(f.plan.Gates, func(g Gate) bool {
		return g.ID == "image_digest" && g.Answer == Yes && strings.HasSuffix(g.Detail, " "+q.Container.Image.Digest)
	})
	audited := slices.ContainsFunc(f.plan.Gates, func(g Gate) bool { return g.ID == "container_audit" && g.Answer == Yes })
	if audited != (len(q.Container.Refusals) == 0) || audited && (!pinned || f.plan.ImageDigest.Or("") != q.Container.Image.Digest) {
		return fail("the gates say that the service is audited: %v, its image pinned: %v; the plan has %d refusals", audited, pinned, len(q.Container.Refusals))
	}
	if f.manifest.ImageDigest.Or("") != f.plan.ImageDigest.Or("") {
		return fail("plan and manifest have different images")
	}
	r := f.contained
	if r != nil && (!audited || r.Image != q.Container.Image || r.Binary != q.Container.Binary || r.ComposeSHA256 != q.Container.SHA256 ||
		r.Probe != q.Probe || !slices.Equal(r.Arguments, q.Arguments)) {
		return fail("image, program, Compose file or arguments of the result aren't the plan's")
	}
	if sum, ok := f.manifest.Program.SHA256.Get(); r != nil && ok && r.Binary.SHA256 != sum {
		return fail("the program in the container isn't the one that ran outside")
	}
	return Pass, ""
}

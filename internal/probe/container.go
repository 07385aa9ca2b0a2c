package probe

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"
	"time"

	"cotenant/internal/container"
	"cotenant/internal/observe"
	"cotenant/internal/partition"
	"cotenant/internal/probe/evidence"
)

// ContainerOptions say what to run in a container.
type ContainerOptions struct {
	Common
	// Create is what to make; nil for the prerequisite inspection.
	Create *CreateOptions
	// ComposeFile is a file of one's own; empty for the embedded one.
	ComposeFile string
	// Images replaces the reviewed images, for tests.
	Images   []container.Image
	Progress func(string)
}

// inspectionTime is what the container's program may take beyond its worker's deadline.
const inspectionTime = time.Minute

// ComposeError is a Compose file that can't be read as one.
type ComposeError struct{ Err error }

func (e *ComposeError) Error() string { return e.Err.Error() }
func (e *ComposeError) Unwrap() error { return e.Err }

// InContainer audits the Compose service and evaluates the gates and, where it is confirmed and they say yes, runs this program in the
// container, proves that it is gone, and judges what the program printed.
func InContainer(ctx context.Context, o ContainerOptions) (Outcome, error) {
	o.defaults()
	if o.Create != nil {
		o.Create.Common = o.Common
		if o.Create.Spin == 0 {
			o.Create.Spin = DefaultSpin
		}
		if err := o.Create.Check(); err != nil {
			return Outcome{}, err
		}
	} else if err := o.Common.Check(); err != nil {
		return Outcome{}, err
	}
	id, err := newRunID(time.Now())
	if err != nil {
		return Outcome{}, err
	}
	request := evidence.ContainerRequest{Probe: PrerequisiteOperation, Arguments: []string{"probe", "prerequisite", "--gpu-uuid", o.GPUUUID, "--json"}}
	deadline := inspectionTime
	if o.Create != nil {
		request.Probe, request.Arguments = evidence.CreateOperation, o.Create.arguments()
		deadline += o.Deadline
	}
	options := container.Options{GPUUUID: o.GPUUUID, Run: id, Arguments: request.Arguments, File: o.ComposeFile, Deadline: deadline, Env: o.Env,
		Images: o.Images, Progress: o.Progress}
	plan, err := container.NewPlan(options)
	if err != nil {
		return Outcome{}, &ComposeError{err}
	}
	request.Container = plan
	run, err := prepare(ctx, o.Common, id)
	if err != nil {
		return Outcome{}, err
	}
	run.plan.Probe, run.plan.Request = evidence.ContainerOperation, request
	run.plan.ImageDigest = observe.None[string]("", 0, "the image isn't pinned by digest")
	if plan.Image.Digest != "" {
		run.plan.ImageDigest = observe.Got("compose", plan.Image.Digest)
	}
	run.containerGates(ctx, o, plan)
	run.plan.Steps, run.plan.Cleanup, run.plan.Rollback = containerSteps, containerCleanup, rollback
	run.plan.Environment = []string{"CUDA_DEVICE_ORDER=PCI_BUS_ID", "CUDA_VISIBLE_DEVICES=" + o.GPUUUID, RunVariable + "=" + id}
	return run.execute(ctx, func(ctx context.Context, s *supervisor) any {
		options.Journal = s.journal
		return s.container(ctx, request, options)
	})
}

// arguments are those of the program that makes the same in a container.
func (o CreateOptions) arguments() []string {
	args := []string{"probe", "create", "--gpu-uuid", o.GPUUUID}
	if o.Plan.Groups > 0 {
		args = append(args, "--groups", strconv.Itoa(o.Plan.Groups))
	} else {
		var sizes []string
		for _, n := range o.Plan.SMs {
			if n == partition.Rest {
				sizes = append(sizes, "rest")
			} else {
				sizes = append(sizes, strconv.Itoa(n))
			}
		}
		args = append(args, "--sms", strings.Join(sizes, ","))
	}
	if o.Cycles > 0 {
		args = append(args, "--cycles", strconv.Itoa(o.Cycles))
	}
	for _, f := range []struct {
		given bool
		name  string
	}{{o.Plan.IgnoreCoscheduling, "--ignore-coscheduling"}, {o.Map, "--map"}, {o.AllowProcesses, "--allow-processes"},
		{o.AllowDisplay, "--allow-display"}, {o.AllowMPS, "--allow-mps"}} {
		if f.given {
			args = append(args, f.name)
		}
	}
	return append(args, "--spin", o.Spin.String(), "--deadline", o.Deadline.String(), "--confirm", "--json")
}

var containerSteps = []string{
	"ask the engine for containers, networks and volumes of the project's names, and for the image",
	"pull the image by digest where it isn't there, and check it",
	"make the container as audited, compare what the engine made with it, and the mounted program's SHA-256 with this one's",
	"start it: this program with the arguments of the request; read what it prints, up to a limit",
	"remove the container where it doesn't remove itself, and the image where it was pulled",
}

var containerCleanup = []string{
	"the container removes itself when its program ends, which it does by its own deadline, whoever watches",
	"the engine is asked for the run's label, twice, and for the container's id until it has neither",
	"the container is killed at its deadline, at too much output, and where the GPU or its display is lost or an Xid is reported",
	"a guard process removes it where the supervisor is killed; cotenant probe cleanup --run FOLDER does the same",
	"memory and processes of the GPU are compared from outside by NVML",
	"what carries this run's label is ours; nothing else is touched",
}

// containerGates are those of a container and, where it makes something on the GPU, those of whoever does.
func (r *run) containerGates(ctx context.Context, o ContainerOptions, p *container.Plan) {
	kept := []string{"uuid_bound", "role_bound", "cleanup_provable", "artifact_folder", "cleanup_contract", "rollback_plan"}
	gates := []evidence.Gate{}
	for _, g := range r.host.common(r.plan.Folder) {
		if g.ID != "image_digest" && g.ID != "no_unowned_container" && (o.Create != nil || slices.Contains(kept, g.ID)) {
			gates = append(gates, g)
		}
	}
	var broken []string
	pinned := true
	for _, x := range p.Refusals {
		if !slices.Contains(broken, x.Rule) {
			broken = append(broken, x.Rule)
		}
		pinned = pinned && !strings.HasPrefix(x.Rule, "image_")
	}
	audit := gate("container_audit", "does the Compose service keep every rule?")
	digest := gate("image_digest", "is the container's image pinned by digest, and a reviewed one?")
	unowned := gate("no_unowned_container", "is there no container, network or volume of these names that isn't ours?")
	if pinned {
		digest = yes(digest, p.Image.Name+", manifest "+p.Image.Digest)
	} else {
		digest = no(digest, "the rules say why not")
	}
	if len(broken) > 0 {
		gates = append(gates, no(audit, "broken: "+strings.Join(broken, ", ")), digest, unknown(unowned, "not asked: the service is refused"))
	} else {
		gates = append(gates, yes(audit, "the service "+p.Service+" keeps every rule"), digest, r.unownedGate(unowned, p.Preflight(ctx, o.Confirm)))
	}
	if o.Create != nil {
		gates = append(gates, r.host.planGate(o.Create.Plan))
	}
	r.plan.Gates = gates
}

// unownedGate also says, to the run, where no engine answers: then nothing can be asked at all.
func (r *run) unownedGate(g evidence.Gate, f container.Preflight) evidence.Gate {
	switch {
	case len(f.Unowned) > 0:
		return no(g, "there already: "+strings.Join(f.Unowned, ", "))
	case f.Status != observe.SupportedDeclared:
		r.noEngine = f.Reason
		return unknown(g, f.Reason)
	}
	return yes(g, "the engine lists none")
}

// container runs the container and makes the result.
func (s *supervisor) container(ctx context.Context, request evidence.ContainerRequest, options container.Options) any {
	p := request.Container
	r := &evidence.ContainerResult{SchemaVersion: evidence.SchemaVersion, Operation: evidence.ContainerOperation, RunID: s.plan.RunID, GPUUUID: s.plan.GPUUUID,
		Probe: request.Probe, Arguments: request.Arguments, Image: p.Image, Binary: p.Binary, ComposeSHA256: p.SHA256}
	// The plan once more, with the journal: the file may have changed since, and what runs is what was audited and recorded.
	again, err := container.NewPlan(options)
	if err == nil && again.SHA256 != p.SHA256 {
		err = errors.New("the Compose file changed since it was audited")
	}
	o := &container.Outcome{Ended: container.Failed, ExitCode: -1}
	var lost string
	if err == nil {
		lost = s.watched(ctx, container.MaxDeadline*3, func(ctx context.Context) { o, err = again.Run(ctx) })
	}
	r.Container, r.MutatedState = *o, o.MutatedState
	if err != nil {
		r.Failure = observe.Clip(err.Error())
	}
	r.Outcome = containerOutcome(ctx, o.Ended, lost)
	r.Failure = cmp.Or(lost, r.Failure)
	s.noise.Write(o.Stderr)
	if o.Ended == container.Exited {
		r.Print(o.Stdout)
	}
	swept := s.tidy()
	r.Cleanup.Left = append(append([]string{}, swept.Left...), o.Cleanup.Left...)
	r.Cleanup.Process.Ended = o.Cleanup.Complete || !o.MutatedState
	r.Cleanup.API = evidence.APICleanup{Verdict: "nothing_made", Failures: []string{}, PrimaryGone: observe.None[bool]("", 0, "no context was made")}
	switch {
	case r.Create != nil:
		r.Cleanup.API = r.Create.Cleanup.API
	case request.Probe == evidence.CreateOperation && o.WallMS > 0:
		r.Cleanup.API.Verdict = "by_process_end"
	}
	r.Cleanup.Memory.InProcess.Verdict = evidence.Unknown
	r.Cleanup.Memory.Outside, r.Cleanup.Process.Listed = s.settle()
	r.Health = s.watch.health
	r.Judge()
	s.verdict = verdict{outcome: r.Outcome, clean: r.CleanupComplete}
	s.verdict.exit, s.verdict.why = r.Exit()
	return r
}

func containerOutcome(ctx context.Context, ended, lost string) string {
	switch {
	case lost != "":
		return evidence.HealthLost
	case ctx.Err() != nil:
		return evidence.Interrupted
	case ended == container.Exited:
		return evidence.Completed
	case ended == container.OwnDeadline || ended == container.Killed:
		return evidence.Deadline
	}
	return evidence.Failed
}

package evidence

import (
	"testing"

	"cotenant/internal/container"
	"cotenant/internal/observe"
)

// A memory limit holds only where what it refuses fits without it, and what it allows fits beside the context.
func TestMemoryLimitJudged(t *testing.T) {
	const gib = 1 << 30
	tried := func(fits, exceeds int32) []Allocation {
		return []Allocation{{Bytes: gib, Code: fits}, {Bytes: 6 * gib, Code: exceeds}}
	}
	for _, tc := range []struct {
		name, want    string
		free, limited []Allocation
	}{
		{"holds", Pass, tried(0, 0), tried(0, 2)},
		{"refuses all", Fail, tried(0, 0), tried(2, 2)},
		{"ignored", Fail, tried(0, 0), tried(0, 0)},
		{"another error", Fail, tried(0, 0), tried(0, 1)},
		{"a small GPU", NotApplicable, tried(0, 2), tried(0, 2)},
		{"no client without a limit", NotApplicable, nil, tried(0, 2)},
		{"not tried", Fail, tried(0, 0), nil},
	} {
		r := MPSResult{Request: MPSRequest{MemoryLimit: 4 * gib, MemoryFits: gib, MemoryExceeds: 6 * gib}}
		if c := r.memoryCheck(&MPSClient{Allocations: tc.free}, &MPSClient{Allocations: tc.limited}); c.Result != tc.want {
			t.Errorf("%s: %+v", tc.name, c)
		}
	}
}

// contained is a run of the prerequisite inspection in a container in which all is well.
func contained() *ContainerResult {
	r := &ContainerResult{Outcome: Completed, GPUUUID: "GPU-1", Probe: "green_context_prerequisite_inspect", MutatedState: true,
		Binary: container.Binary{SHA256: "abc"}, Health: Health{Samples: 1}}
	r.Container = container.Outcome{Ended: container.Exited, ContainerID: "1", BinarySHA256: observe.Got("", "abc"), Cleanup: container.Cleaned{Complete: true}}
	r.Print([]byte(`{"operation":"green_context_prerequisite_inspect","gpu_uuid":"GPU-1","prerequisites_met":true}`))
	r.Cleanup.API.Verdict = "nothing_made"
	r.Cleanup.Process.Ended = true
	r.Cleanup.Memory.Outside.Verdict = Returned
	return r
}

// Whatever goes wrong in a container or around it fails a check, and gives the exit code that docs/formats/probe.md says.
func TestContainerJudged(t *testing.T) {
	for _, tc := range []struct {
		name  string
		spoil func(r *ContainerResult)
		check string
		code  int
	}{
		{"well", func(*ContainerResult) {}, "", 0},
		{"another program mounted", func(r *ContainerResult) { r.Container.BinarySHA256 = observe.Got("", "def") }, "binary_same", 3},
		{"another GPU", func(r *ContainerResult) { r.GPUUUID = "GPU-2" }, "one_gpu", 3},
		{"no document", func(r *ContainerResult) { r.Document = nil }, "document", 3},
		{"a context made", func(r *ContainerResult) {
			r.Document = []byte(`{"operation":"green_context_prerequisite_inspect","gpu_uuid":"GPU-1","prerequisites_met":true,"created_context":true}`)
		}, "prerequisites_met", 3},
		{"the program's exit code", func(r *ContainerResult) { r.Container.ExitCode = 4 }, "exit_code", 4},
		{"container left", func(r *ContainerResult) { r.Container.Cleanup.Complete = false }, "container_gone", 1},
		{"memory not returned", func(r *ContainerResult) { r.Cleanup.Memory.Outside.Verdict = NotReturned }, "memory_returned", 1},
		{"GPU lost", func(r *ContainerResult) { r.Outcome, r.Health.Lost = HealthLost, "gone" }, "health_kept", 3},
		{"interrupted", func(r *ContainerResult) { r.Outcome, r.Container.Ended = Interrupted, container.Interrupted }, "completed", 130},
		{"blocked", func(r *ContainerResult) { r.Outcome, r.Container.Ended = Failed, container.Blocked }, "completed", 4},
		{"refused by the engine's state", func(r *ContainerResult) {
			r.Outcome, r.Container.Ended, r.MutatedState = Failed, container.Refused, false
		}, "completed", 3},
	} {
		r := contained()
		tc.spoil(r)
		r.Judge()
		failed := false
		for _, c := range r.Checks {
			failed = failed || c.ID == tc.check && c.Result == Fail
		}
		if code, why := r.Exit(); code != tc.code || failed != (tc.check != "") {
			t.Errorf("%s: exit %d %s, checks %+v", tc.name, code, why, r.Checks)
		}
	}
}

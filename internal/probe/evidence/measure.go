package evidence

import (
	"bytes"
	"fmt"
)

// Worker is one process that a measurement started.
type Worker struct {
	Name string `json:"name"`
	Process
	// Failure is why it didn't end as it should have; empty.
	Failure string `json:"failure"`
}

// MeasureResult is result.json of work that another command does under a probe's guard: what became of its processes, not what it
// measured.
type MeasureResult struct {
	SchemaVersion   int      `json:"schema_version"`
	Operation       string   `json:"operation"`
	RunID           string   `json:"run_id"`
	MutatedState    bool     `json:"mutated_state"`
	CleanupComplete bool     `json:"cleanup_complete"`
	Outcome         string   `json:"outcome"`
	Failure         string   `json:"failure"` // why the work didn't go on; empty
	GPUUUID         string   `json:"gpu_uuid"`
	Request         any      `json:"request"` // what is measured, in the words of who asked
	Processes       []Worker `json:"processes"`
	Daemons         int      `json:"mps_daemons"` // of our own, that were started
	Health          Health   `json:"health"`
	Cleanup         Cleanup  `json:"cleanup"`
	Checks          []Check  `json:"checks"`
	Warnings        []string `json:"warnings"`
}

// Judge computes what follows from the rest.
func (r *MeasureResult) Judge() {
	r.Cleanup.Judge()
	r.CleanupComplete = r.Cleanup.Complete
	r.Checks = append([]Check{
		check("completed", r.Outcome == Completed && r.Failure == "", "outcome %s %s", r.Outcome, r.Failure),
		check("health_kept", r.Health.Lost == "", "%d samples %s", r.Health.Samples, r.Health.Lost),
	}, r.Cleanup.checks()[1:]...)
	r.Warnings = []string{}
	if !r.Cleanup.Memory.Outside.Attributed {
		r.Warnings = append(r.Warnings, "somebody else used the GPU: its memory can't be attributed")
	}
	if r.Health.Xid.Status != "supported_proven" {
		r.Warnings = append(r.Warnings, fmt.Sprintf("Xids could not be watched: %s", r.Health.Xid.Reason))
	}
}

// concluded returns the checks of a folder's result, whether anything was made, and the driver's code in a failure.
func (f *folder) concluded() (checks []Check, mutated bool, code int32) {
	switch {
	case f.create != nil:
		return f.create.Checks, f.create.MutatedState, f.create.FailureCode
	case f.mps != nil:
		return f.mps.Checks, f.mps.MutatedState, 0
	}
	return f.measure.Checks, f.measure.MutatedState, 0
}

func firstDifference(want, got []byte) string {
	a, b := bytes.Split(want, []byte{'\n'}), bytes.Split(got, []byte{'\n'})
	for i := range min(len(a), len(b)) {
		if !bytes.Equal(a[i], b[i]) {
			return fmt.Sprintf("at line %d: %s, want %s", i+1, bytes.TrimSpace(b[i]), bytes.TrimSpace(a[i]))
		}
	}
	return fmt.Sprintf("in length: %d lines, want %d", len(b), len(a))
}

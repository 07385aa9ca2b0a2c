package probe

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"time"

	"cotenant/internal/probe/evidence"
)

// CleanupReport is what `cotenant probe cleanup` prints, and cleanup.json where it did something.
type CleanupReport struct {
	SchemaVersion int    `json:"schema_version"`
	Operation     string `json:"operation"`
	RunID         string `json:"run_id"`
	// Confirmed: else it was a preview, and nothing was touched.
	Confirmed bool   `json:"confirmed"`
	Time      string `json:"time"` // RFC 3339, UTC
	// Began and Ended are steps that the journal has a beginning of, and those of them without an end.
	Steps      int      `json:"journal_steps"`
	Unfinished []string `json:"unfinished_steps"`
	Torn       bool     `json:"journal_torn"`
	// Supervised: the run's supervisor still lives, so that there is nothing to clean.
	Supervised bool  `json:"supervised"`
	Swept      Swept `json:"swept"`
}

// CleanupOptions say which run to clean.
type CleanupOptions struct {
	Run     string // its evidence folder
	Confirm bool
	Program Program
	Env     []string
}

// Cleanup ends processes and removes folders that a run's journal proves to be that run's; it looks at nothing else. It refuses
// while the run's supervisor lives. Where the run wrote no manifest it writes one that says so. The exit code is 0 where nothing
// is left or it is a preview, 1 where something is, 3 where the run still goes on, 4 where the journal can't be read.
func Cleanup(ctx context.Context, o CleanupOptions) (CleanupReport, int, error) {
	r := CleanupReport{SchemaVersion: evidence.SchemaVersion, Operation: evidence.CleanupOperation, Confirmed: o.Confirm, Unfinished: []string{},
		Time: time.Now().UTC().Format(time.RFC3339), Swept: Swept{Processes: []SweptProcess{}, Folders: []SweptFolder{}, Left: []string{}}}
	if o.Env == nil {
		o.Env = os.Environ()
	}
	entries, torn, err := evidence.ReadJournal(o.Run)
	if err != nil {
		return r, ExitBlocked, err
	}
	r.Torn = torn
	supervisor, start := 0, ""
	for _, e := range entries {
		if e.Phase == evidence.Begin {
			r.Steps++
		}
		if e.By == "supervisor" && e.Step == "run" && e.Phase == evidence.Begin {
			r.RunID, supervisor, start = e.Detail["run"], e.PID, e.Detail["start_ticks"]
		}
	}
	r.Unfinished = unfinished(entries)
	if !runIDPattern.MatchString(r.RunID) {
		return r, ExitBlocked, errors.New("the journal doesn't say which run it is of")
	}
	if start != "" && startTicks(supervisor) == start && supervisor != os.Getpid() {
		r.Supervised = true
		return r, ExitNo, fmt.Errorf("the run still goes on: its supervisor is process %d", supervisor)
	}
	s := newSweeper(r.RunID, entries, o.Env)
	if !o.Confirm {
		r.Swept = s.sweep(ctx, true)
		return r, ExitDone, nil
	}
	return r.confirmed(ctx, o, s)
}

// confirmed cleans.
func (r CleanupReport) confirmed(ctx context.Context, o CleanupOptions, s sweeper) (CleanupReport, int, error) {
	// The journal of a sealed run is hashed: it isn't added to.
	_, err := os.Stat(o.Run + "/" + evidence.ManifestFile)
	sealed := err == nil
	var journal *evidence.Journal
	waitForGuard(r.RunID)
	if !sealed {
		if journal, err = evidence.OpenJournal(o.Run, "cleanup"); err != nil {
			return r, ExitFailed, err
		}
		if err := journal.Begin("sweep", 0); err != nil {
			return r, ExitFailed, err
		}
	}
	r.Swept = s.sweep(ctx, false)
	if !sealed {
		journal.End("sweep", 0, nil)
		if err := journal.Close(); err != nil {
			return r, ExitFailed, err
		}
		if err := sealUnfinished(o, len(r.Swept.Left) == 0); err != nil {
			return r, ExitFailed, err
		}
	}
	if err := evidence.WriteDocument(o.Run, evidence.CleanupFile, r); err != nil {
		return r, ExitFailed, err
	}
	if len(r.Swept.Left) > 0 {
		return r, ExitFailed, nil
	}
	return r, ExitDone, nil
}

// waitForGuard lets the run's guard finish its own sweep, which takes seconds; one that takes longer is ended.
func waitForGuard(runID string) {
	mark := guardVariable + "=" + runID
	for until := time.Now().Add(sweepTime + 5*time.Second); time.Now().Before(until); time.Sleep(parentPoll) {
		if len(carrying(mark)) == 0 {
			return
		}
	}
	for _, pid := range carrying(mark) {
		if p, err := os.FindProcess(pid); err == nil {
			_ = p.Kill()
		}
	}
}

// sealUnfinished writes the manifest of a run whose supervisor ended first. What became of device memory isn't known.
func sealUnfinished(o CleanupOptions, clean bool) error {
	content, err := evidence.Read(o.Run, evidence.PlanFile)
	if err != nil {
		return fmt.Errorf("reading the plan: %w", err)
	}
	var p evidence.Plan
	if err := evidence.Decode(evidence.PlanFile, content, &p); err != nil {
		return err
	}
	exit := ExitFailed
	return evidence.Seal(o.Run, evidence.Manifest{Probe: p.Probe, RunID: p.RunID, Started: p.Started, Ended: time.Now().UTC().Format(time.RFC3339),
		Outcome: evidence.Unfinished, ExitCode: exit, ImageDigest: p.ImageDigest, GPUUUID: p.GPUUUID, GPULabel: evidence.Label(p.GPUUUID),
		CleanupComplete: false, Program: program(o.Program), Role: p.Role})
}

// unfinished names steps that began and have no end: how far a run got.
func unfinished(entries []evidence.Entry) []string {
	open := make(map[string]int)
	order := []string{}
	for _, e := range entries {
		key := e.By + " " + strconv.Itoa(e.PID) + ": " + e.Step + " " + strconv.Itoa(e.Index)
		switch e.Phase {
		case evidence.Begin:
			if open[key] == 0 {
				order = append(order, key)
			}
			open[key]++
		case evidence.End:
			open[key]--
		}
	}
	left := []string{}
	for _, key := range order {
		if open[key] > 0 {
			left = append(left, key)
		}
	}
	return left
}

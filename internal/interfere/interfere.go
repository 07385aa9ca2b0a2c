// Package interfere measures what sharing does to latency: victims beside aggressors, by every mechanism that a host has, against the
// same victims alone. The documents, what is computed of them, and the rules are in interfere/record.
//
// A run is one or more segments, each under a probe's guard. The supervisor, which never opens libcuda, goes through the plan's blocks
// and tells workers what to do; a worker is one process with one context, prepared once and kept. One worker holds everything that
// happens in one process; each mechanism between processes has a pair. A worker's victim runs on its first thread, its aggressor is
// fed by a thread of its own.
package interfere

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"cotenant/internal/bounded"
	"cotenant/internal/inspect"
	"cotenant/internal/interfere/record"
	"cotenant/internal/probe"
	"cotenant/internal/probe/evidence"
)

// Options say what to measure.
type Options struct {
	probe.Common // Out is the run's folder; Deadline isn't used
	// PlanFile replaces the built-in plan; Quick takes the small one of these.
	PlanFile string
	Quick    bool
	Resume   bool
	// TimeLimit ends the segment after the block under way; --resume goes on. At most probe.MaxLife less what ending takes.
	TimeLimit time.Duration
	// Progress is told of each block before it begins; nil for nobody.
	Progress func(done, total int64, cell string) `json:"-"`
}

// Limits of Options.TimeLimit.
const (
	DefaultTimeLimit = 9 * time.Minute
	// ending is what is left of a segment's life for workers and daemon to end.
	ending = 30 * time.Second
)

// Outcome is what a command returns.
type Outcome struct {
	probe.Outcome
	Plan *record.Plan
	// Blocks is how many are measured of Planned; Ledger is nil for a preview.
	Blocks, Planned int64
	Ledger          *record.Ledger
}

// ErrUsage is a folder or plan that doesn't fit what was asked.
var ErrUsage = errors.New("can't be done as asked")

// Run previews, measures, or goes on. Exit codes are those of probes.
func Run(ctx context.Context, o Options) (Outcome, error) {
	if o.TimeLimit == 0 {
		o.TimeLimit = DefaultTimeLimit
	}
	if o.TimeLimit < time.Second || o.TimeLimit > probe.MaxLife-ending {
		return Outcome{}, fmt.Errorf("%w: a time limit of %v: want 1s to %v", ErrUsage, o.TimeLimit, probe.MaxLife-ending)
	}
	r := &run{o: o, dir: o.Out}
	if err := r.open(); err != nil {
		return Outcome{}, err
	}
	if o.Resume {
		if done, out, err := r.before(ctx); done || err != nil {
			return out, err
		}
	}
	c := o.Common
	c.Out = r.guard(len(r.folder.Segments) + 1)
	out, err := probe.Measure(ctx, c, probe.Measurement{Steps: steps, Life: o.TimeLimit + ending, Prepare: r.prepare, Work: r.work})
	result := Outcome{Outcome: out, Plan: r.plan}
	if r.plan != nil {
		result.Planned = r.plan.Sampling.Repeats * int64(len(r.plan.Cells))
	}
	if err != nil || out.Folder == "" {
		return result, err
	}
	return result, r.finish(&result)
}

var steps = []string{
	"write the plan: workloads, mechanisms with the host's verdicts, cells, and the seed of their order",
	"start workers, each a process that sees this GPU alone: one for all that happens in one process, a pair for each mechanism between processes",
	"where MPS is there: an MPS daemon of our own in a private pipe folder, for the pairs that are its clients",
	"in each worker: initialise CUDA, retain the primary context, load kernels, allocate and fill buffers, make the Green Contexts once",
	"compare every kernel's output with a plain reference, before anything is timed",
	"measure what launching an empty kernel costs",
	"block by block, in random order: start the aggressor, wait until it runs, launch the victim again and again, stop the aggressor",
	"during each block sample clocks, clock reasons, power and temperature by NVML, and the energy counter at its ends",
	"end the workers and the daemon, compare the GPU's memory and processes with before",
	"compute the ledger from the rows",
}

// run is one command.
type run struct {
	o      Options
	dir    string
	folder *record.Folder // what is there already
	plan   *record.Plan
	rows   *os.File
}

// open looks at the folder: it is new or empty, or a run's where it is gone on with.
func (r *run) open() error {
	r.folder = &record.Folder{}
	if r.dir == "" {
		r.dir = filepath.Join(".cotenant", "interfere", time.Now().UTC().Format("20060102T150405Z"))
	}
	entries, err := os.ReadDir(r.dir)
	switch {
	case r.o.Resume:
		if r.o.PlanFile != "" || r.o.Quick {
			return fmt.Errorf("%w: --resume goes on with the folder's own plan", ErrUsage)
		}
		if r.folder, err = record.Load(r.dir); err != nil {
			return fmt.Errorf("%w: %w", ErrUsage, err)
		}
		r.plan = &r.folder.Plan
		if r.o.GPUUUID != r.plan.GPUUUID {
			return fmt.Errorf("%w: the folder's plan is for %s", ErrUsage, r.plan.GPUUUID)
		}
	case err != nil && !errors.Is(err, os.ErrNotExist):
		return fmt.Errorf("reading the folder: %w", err)
	case len(entries) > 0:
		return fmt.Errorf("%w: %s is not empty; --resume goes on with it", ErrUsage, r.dir)
	}
	return nil
}

// guard is the folder of a segment's guard.
func (r *run) guard(segment int) string {
	return filepath.Join(r.dir, record.GuardFolder, strconv.Itoa(segment))
}

// before looks at the segments that a run has already: one that was cut off is cleaned up, as far as its journal proves things to be
// its own. done says that there is nothing to measure, or that a segment still goes on.
func (r *run) before(ctx context.Context) (done bool, out Outcome, err error) {
	out.Plan, out.Planned = r.plan, r.plan.Sampling.Repeats*int64(len(r.plan.Cells))
	for n := max(1, len(r.folder.Segments)); n <= len(r.folder.Segments)+1; n++ {
		dir := r.guard(n)
		if _, err := os.Stat(filepath.Join(dir, evidence.ManifestFile)); err == nil || !exists(dir) {
			continue
		}
		if _, code, err := probe.Cleanup(ctx, probe.CleanupOptions{Run: dir, Confirm: true, Program: r.o.Program, Env: r.o.Env}); err != nil {
			out.Exit, out.Why = code, fmt.Sprintf("segment %d was cut off: %v", n, err)
			return true, out, nil
		}
	}
	// A segment that was cut off before its line was written measured nothing, and its number is taken again.
	if dir := r.guard(len(r.folder.Segments) + 1); exists(dir) {
		if err := os.Rename(dir, fmt.Sprintf("%s-cut-off-%d", dir, time.Now().UnixNano())); err != nil {
			return true, out, fmt.Errorf("putting a segment that was cut off aside: %w", err)
		}
	}
	if int64(len(r.folder.Rows)) < out.Planned {
		return false, out, nil
	}
	return true, out, r.finish(&out)
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// prepare makes the plan of the host and, where it will be carried out, writes it.
func (r *run) prepare(report *inspect.Report) (any, error) {
	if r.plan == nil {
		base := fullPlan()
		if r.o.Quick {
			base = quickPlan()
		}
		if r.o.PlanFile != "" {
			var err error
			if base, err = readPlanFile(r.o.PlanFile); err != nil {
				return nil, err
			}
		}
		var err error
		if r.plan, err = planFor(base, report, r.o.GPUUUID, time.Now()); err != nil {
			return nil, err
		}
	}
	planned := r.plan.Sampling.Repeats * int64(len(r.plan.Cells))
	return map[string]any{"plan": r.plan.Name, "run_id": r.plan.RunID, "cells": len(r.plan.Cells), "blocks": planned, "blocks_done": len(r.folder.Rows)}, nil
}

// finish computes and writes the ledger of what is on disk.
func (r *run) finish(out *Outcome) error {
	if _, err := os.Stat(filepath.Join(r.dir, record.PlanFile)); err != nil {
		return nil // refused before the plan was carried out
	}
	f, err := record.Load(r.dir)
	if err != nil {
		return err
	}
	l := f.Compute()
	content, err := record.Encode(l)
	if err == nil {
		err = replace(r.dir, record.LedgerFile, content)
	}
	out.Ledger, out.Blocks = l, l.Blocks
	return err
}

// replace writes a file whole or not at all.
func replace(dir, name string, content []byte) error {
	f, err := os.CreateTemp(dir, "."+name+"-*")
	if err != nil {
		return fmt.Errorf("writing %s: %w", name, err)
	}
	_, err = f.Write(content)
	if err == nil {
		err = f.Sync()
	}
	err = errors.Join(err, f.Close())
	if err == nil {
		err = os.Chmod(f.Name(), 0o644)
	}
	if err == nil {
		err = os.Rename(f.Name(), filepath.Join(dir, name))
	}
	if err != nil {
		os.Remove(f.Name())
		return fmt.Errorf("writing %s: %w", name, err)
	}
	return nil
}

// Tasks returns the child task that a program must serve by bounded.ServeChild for this package to work, beyond probe's.
func Tasks() map[string]bounded.Task { return map[string]bounded.Task{workerTask: worker} }

func appendLine(f *os.File, v any) error {
	line, err := json.Marshal(v)
	if err != nil {
		return err
	}
	_, err = f.Write(append(line, '\n'))
	return err
}

package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"cotenant/internal/interfere"
	"cotenant/internal/interfere/record"
)

// interfereFlags are what the command was told.
type interfereFlags struct {
	probeFlags
	o                 interfere.Options
	recommend         bool
	slo               string
	victim, aggressor string
}

func newInterfere() *cobra.Command {
	var f interfereFlags
	c := &cobra.Command{
		Use:   "interfere --gpu-uuid UUID [--confirm] [--out DIR]",
		Short: "Measure what sharing a GPU does to latency: victims beside aggressors, by every mechanism",
		Long: "Launches victims (a decode-like chain of small kernels, a short critical kernel, a matrix product) beside aggressors (matrix\n" +
			"products, arithmetic, memory, L2, copies, tiny launches, a kernel that stays), in streams, with priorities, in Green Contexts, in\n" +
			"processes, as MPS clients, and alone, in random order with repeats; every launch is a row. Without --confirm it says what it would\n" +
			"do. What the time limit leaves out, --resume measures. --recommend reads a folder that is there, or the one just measured, and\n" +
			"picks the smallest allocation that keeps an objective, with the price for the neighbour and the cells behind it.",
		Args: usageArgs(cobra.NoArgs),
		RunE: func(c *cobra.Command, _ []string) error { return f.run(c) },
	}
	fs := c.Flags()
	fs.StringVar(&f.common.GPUUUID, "gpu-uuid", "", "the GPU's UUID, GPU-…; `cotenant inspect` prints them")
	fs.BoolVar(&f.common.Confirm, "confirm", false, "do it; without it the command says what it would do")
	fs.BoolVar(&f.dryRun, "dry-run", false, "say what would be done (the default)")
	fs.StringVar(&f.common.Out, "out", "", "the run's folder; must be empty or new, but for --resume (default: .cotenant/interfere/TIME)")
	fs.BoolVar(&f.o.Quick, "quick", false, "the small matrix, some two minutes on an H200; without it the whole, an hour or two")
	fs.StringVar(&f.o.PlanFile, "plan", "", "a plan of your own: docs/interfere.md says its form")
	fs.BoolVar(&f.o.Resume, "resume", false, "go on with the run in --out")
	fs.DurationVar(&f.o.TimeLimit, "time-limit", interfere.DefaultTimeLimit, "begin no block after this; --resume goes on")
	fs.BoolVar(&f.common.AllowProcesses, "allow-processes", false, "go on although others use the GPU; recorded")
	fs.BoolVar(&f.common.AllowDisplay, "allow-display", false, "go on although a display is attached; recorded")
	fs.BoolVar(&f.common.AllowMPS, "allow-mps", false, "go on although an MPS daemon of somebody else's is there; recorded")
	fs.BoolVar(&f.recommend, "recommend", false, "pick an allocation from the run in --out, its folder or public form, after measuring where --confirm is given")
	fs.StringVar(&f.slo, "slo", "", "the objective, such as p99_us=500: p50, p90, p99 or p99.9 of a victim's latency, in _us or _ms")
	fs.StringVar(&f.victim, "victim", "", "recommend for this victim only")
	fs.StringVar(&f.aggressor, "aggressor", "", "recommend beside this aggressor only")
	fs.BoolVar(&f.asJSON, "json", false, "print JSON: the plan of a preview, the ledger of a run, the recommendation")
	return describe(c, "GPU contexts, an MPS daemon of its own, files under its folder", "0  preview; or measured, every check passes and cleanup is proven; or an allocation keeps the objective",
		"1  something was made and its cleanup is not proven", "3  go/no-go says no; a check failed; or no allocation keeps the objective",
		"4  blocked by the environment; or the ledger doesn't establish whether one keeps it")
}

func (f *interfereFlags) run(c *cobra.Command) error {
	var objective record.Objective
	if f.recommend != (f.slo != "") {
		return usagef(c, "--recommend and --slo go together: --recommend --slo p99_us=500")
	}
	if f.recommend {
		var err error
		if objective, err = record.ParseObjective(f.slo); err != nil {
			return usagef(c, "--slo: %v", err)
		}
	} else if f.victim != "" || f.aggressor != "" {
		return usagef(c, "--victim and --aggressor are for --recommend")
	}
	if f.recommend && !f.common.Confirm && !f.o.Resume {
		if f.common.Out == "" {
			return usagef(c, "--recommend reads a run's folder: say --out DIR")
		}
		l, err := readLedger(f.common.Out)
		if err != nil {
			return err
		}
		return f.advise(c, l, objective)
	}
	if err := f.complete(c); err != nil {
		return err
	}
	if f.o.Quick && f.o.PlanFile != "" {
		return usagef(c, "--quick and --plan contradict each other")
	}
	if f.o.Resume && !f.common.Confirm {
		return usagef(c, "--resume measures: it wants --confirm")
	}
	if f.common.Confirm && f.common.Out == "" && f.o.Resume {
		return usagef(c, "--resume goes on with a folder: say --out DIR")
	}
	f.o.Common = f.common
	bar := newProgress(c.ErrOrStderr(), 0)
	start := time.Now()
	f.o.Progress = func(done, total int64, cell string) {
		bar.count(done, total, fmt.Sprintf("%s  %s", time.Since(start).Round(time.Second), cell))
	}
	out, err := interfere.Run(c.Context(), f.o)
	bar.end()
	if errors.Is(err, interfere.ErrUsage) {
		return usageError(c, err)
	}
	if err != nil {
		return &exit{exitFailed, err, ""}
	}
	if err := f.print(c, out); err != nil {
		return err
	}
	if out.Exit != exitYes {
		return &exit{out.Exit, errors.New(out.Why), ""}
	}
	if f.recommend && out.Ledger != nil {
		return f.advise(c, out.Ledger, objective)
	}
	return nil
}

// readLedger reads the ledger of a run's folder, or of its public form, which must be what its rows make.
func readLedger(path string) (*record.Ledger, error) {
	unchecked := func(err error) error { return &exit{exitUnchecked, err, ""} }
	info, err := os.Stat(path)
	if err != nil {
		return nil, unchecked(fmt.Errorf("reading the run: %w", err))
	}
	var r *record.Report
	var f *record.Folder
	if info.IsDir() {
		r, f, err = interfere.Verify(path)
	} else {
		var data []byte
		if data, err = readAtMost(path, maxEvidence); err == nil {
			r, f, err = interfere.VerifyPublished(data)
		}
	}
	switch {
	case err != nil:
		return nil, unchecked(fmt.Errorf("%s: %w", path, err))
	case !r.Holds:
		return nil, unchecked(fmt.Errorf("%s: %d rules failed: see cotenant verify %s", path, len(r.Failed()), path))
	}
	return f.Ledger, nil
}

// print prints a preview, or what came of a run.
func (f *interfereFlags) print(c *cobra.Command, out interfere.Outcome) error {
	w := c.OutOrStdout()
	if out.Ledger == nil {
		if f.asJSON {
			return printJSON(w, map[string]any{"plan": out.Plan, "guard": out.Outcome.Plan})
		}
		printMatrix(w, out.Plan)
		printPlan(w, out.Outcome)
		return nil
	}
	if f.asJSON && !f.recommend {
		return printJSON(w, out.Ledger)
	}
	if !f.asJSON {
		printLedger(w, out.Ledger)
	}
	if out.Blocks < out.Planned {
		fmt.Fprintf(c.ErrOrStderr(), "%d of %d blocks: go on with --resume\n", out.Blocks, out.Planned)
	}
	return nil
}

func printMatrix(w io.Writer, p *record.Plan) {
	fmt.Fprintf(w, "Plan %s: %d cells, %d blocks of %d to %d ms\n", p.Name, len(p.Cells), int64(len(p.Cells))*p.Sampling.Repeats, p.Sampling.MinMS, p.Sampling.MaxMS)
	ids := func(list []record.Workload) string {
		var names []string
		for _, x := range list {
			names = append(names, x.ID)
		}
		return strings.Join(names, " ")
	}
	fmt.Fprintf(w, "Victims     %s\nAggressors  %s\nMechanisms\n", ids(p.Victims), ids(p.Aggressors))
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, m := range p.Mechanisms {
		fmt.Fprintf(t, "  %s\t%s\t%s\n", m.ID, m.Verdict, m.Reason)
	}
	t.Flush()
}

func us(ns *int64) string {
	if ns == nil {
		return "–"
	}
	return strconv.FormatFloat(float64(*ns)/1000, 'f', 1, 64)
}

func percent(ppm *int64) string {
	if ppm == nil {
		return "–"
	}
	return strconv.FormatFloat(float64(*ppm)/10_000, 'f', 0, 64) + " %"
}

// printLedger prints one table a victim: a row a mechanism and aggressor.
func printLedger(w io.Writer, l *record.Ledger) {
	fmt.Fprintf(w, "%s, %d SMs, driver %s: %d launches in %d of %d blocks\n", l.GPUName, l.SMs, l.Driver, l.Launches, l.Blocks, l.PlannedBlocks)
	var victims []string
	for _, c := range l.Cells {
		if c.Cell.Victim != "" && !slices.Contains(victims, c.Cell.Victim) {
			victims = append(victims, c.Cell.Victim)
		}
	}
	for _, v := range victims {
		fmt.Fprintf(w, "\n%s, by the host's clock, µs\n", v)
		t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
		fmt.Fprintln(t, "MECHANISM\tBESIDE\tP50\tP99\tP99.9\tMAX\tISOLATION\tNEIGHBOUR KEPT\tNOTE\t")
		for i := range l.Cells {
			c := &l.Cells[i]
			if c.Cell.Victim != v {
				continue
			}
			kept := "–"
			if c.Neighbour != nil {
				kept = percent(c.Neighbour.KeptPPM)
			}
			note := ""
			if c.State != record.Measured {
				note = c.State
			} else if c.PowerCapped {
				note = "power capped"
			}
			beside := c.Aggressor
			if beside == "" {
				if beside = "(alone)"; c.Twin {
					beside = "(alone, again)"
				}
			}
			fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t\n", c.Mechanism, beside, us(c.Host.Of("p50").Value), us(c.Host.Of("p99").Value), us(c.Host.Of("p99.9").Value), us(c.Host.Max),
				percent(c.IsolationPPM), kept, note)
		}
		t.Flush()
	}
	for _, m := range l.Mechanisms {
		if !m.Planned() {
			fmt.Fprintf(w, "%s: %s, %s\n", m.ID, m.Verdict, m.Reason)
		}
	}
}

// advise prints a recommendation; its exit code is that of the worst answer.
func (f *interfereFlags) advise(c *cobra.Command, l *record.Ledger, o record.Objective) error {
	r, err := record.Recommend(l, o, f.victim, f.aggressor)
	if err != nil {
		return usageError(c, err)
	}
	w := c.OutOrStdout()
	if f.asJSON {
		if err := printJSON(w, r); err != nil {
			return err
		}
	}
	code, why := exitYes, ""
	for _, a := range r.Advice {
		if !f.asJSON {
			printAdvice(w, a, o)
		}
		switch {
		case a.Answer == record.Misses:
			code, why = exitNo, a.Victim+": no allocation that was measured keeps the objective"
		case a.Answer == record.Unknown && code == exitYes:
			code, why = exitUnchecked, a.Victim+": the ledger doesn't establish whether an allocation keeps the objective"
		}
	}
	if !f.asJSON {
		for _, n := range r.Notes {
			fmt.Fprintf(w, "  %s\n", n)
		}
	}
	if code != exitYes {
		return &exit{code, errors.New(why), ""}
	}
	return nil
}

func printAdvice(w io.Writer, a record.Advice, o record.Objective) {
	pick := a.Pick
	if pick == "" {
		pick = "none (" + strings.ReplaceAll(a.Answer, "_", " ") + ")"
	}
	fmt.Fprintf(w, "%s, %s ≤ %s µs: %s\n", a.Victim, o.Percentile, us(&o.NS), pick)
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintf(t, "  ALLOCATION\tANSWER\tVICTIM'S SMS\t%s AT MOST, µS\tIN\tNEIGHBOURS KEEP, MEAN\tLEAST\tWHY\n", strings.ToUpper(o.Percentile))
	for _, x := range a.Candidates {
		sms := "all"
		if x.VictimSMs > 0 {
			sms = strconv.FormatInt(x.VictimSMs, 10)
		}
		fmt.Fprintf(t, "  %s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", x.Mechanism, strings.ReplaceAll(x.Answer, "_", " "), sms, us(x.WorstNS), x.WorstCell, percent(x.MeanKeptPPM), percent(x.LeastKeptPPM), x.Why)
	}
	t.Flush()
}

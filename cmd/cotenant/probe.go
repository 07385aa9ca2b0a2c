package main

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"cotenant/internal/bounded"
	"cotenant/internal/inspect"
	"cotenant/internal/interfere"
	"cotenant/internal/partition"
	"cotenant/internal/probe"
	"cotenant/internal/probe/evidence"
	"cotenant/internal/topology"
)

// childTasks are what this program does in child processes: driver libraries can hang, crash, or keep what they took.
func childTasks() map[string]bounded.Task {
	tasks := inspect.Tasks()
	for _, more := range []map[string]bounded.Task{probe.Tasks(), interfere.Tasks()} {
		maps.Copy(tasks, more)
	}
	return tasks
}

func newProbe() *cobra.Command {
	c := &cobra.Command{
		Use:   "probe",
		Short: "Prove GPU sharing mechanisms by using them, under guard",
		Long: "prerequisite asks and makes nothing. The others say what they would do until --confirm, and then do it under guard: go/no-go\n" +
			"gates first, a journal of every step, a worker that is ended at once where the GPU or its display is lost, and proof that\n" +
			"nothing stays behind.",
		Args: usageArgs(cobra.NoArgs),
		RunE: func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	c.AddCommand(newProbePrerequisite(), newProbeCreate(), newProbeMPS(), newProbeCleanup())
	return c
}

var probeExits = []string{"0  preview; or done, every check passes and cleanup is proven", "1  something was made and its cleanup is not proven",
	"3  go/no-go says no; or a check failed, cleanup proven", "4  blocked by the environment"}

func newProbePrerequisite() *cobra.Command {
	var f probeFlags
	var cf containerFlags
	var timeout time.Duration
	c := &cobra.Command{
		Use:   "prerequisite --gpu-uuid UUID [--container [--confirm]]",
		Short: "Tell whether one GPU has what Green Contexts need; make nothing",
		Long: "Reports versions, SM count and resource, and the presence of the driver's and the runtime's symbols for one GPU, which is named\n" +
			"by its UUID. No context is created and nothing is launched. Presence doesn't prove that creating works: `probe create` does.\n" +
			"With --container it does so in a container, which without --confirm is only audited and shown.",
		Args: usageArgs(cobra.NoArgs),
		RunE: func(c *cobra.Command, _ []string) error {
			if err := errors.Join(f.complete(c), cf.check(c)); err != nil {
				return err
			}
			if cf.container {
				return f.inContainer(c, cf.composeFile, nil)
			}
			if f.common.Confirm || f.dryRun || f.common.Out != "" {
				return usagef(c, "--confirm, --dry-run and --out are for --container: else nothing is made")
			}
			if timeout <= 0 || timeout > time.Minute {
				return usagef(c, "--timeout %v: want more than 0 and at most 60s", timeout)
			}
			p, code := probe.Prerequisite(c.Context(), f.common, timeout)
			if wasInterrupted(c.Context()) {
				return &exit{exitInterrupted, fmt.Errorf("interrupted"), ""}
			}
			if err := printPrerequisites(c.OutOrStdout(), p, f.asJSON); err != nil {
				return err
			}
			if code != exitYes {
				return &exit{code, fmt.Errorf("%s", p.Reason), ""}
			}
			return nil
		},
	}
	f.add(c)
	cf.add(c)
	c.Flags().DurationVar(&timeout, "timeout", 10*time.Second, "for the whole inspection, at most 60s")
	return describe(c, "nothing; with --container a container, and its evidence folder", "0  everything is there", "1  a container was made and its cleanup is not proven", "3  something is missing, or go/no-go says no",
		"4  the driver, or the container engine, could not be asked")
}

func needUUID(c *cobra.Command, uuid string) error {
	if uuid == "" {
		return usagef(c, "no GPU: say --gpu-uuid UUID; `cotenant inspect` prints them")
	}
	if err := probe.CheckUUID(uuid); err != nil {
		return usagef(c, "--gpu-uuid: %v", err)
	}
	return nil
}

func roleText(r *evidence.Role) string {
	switch {
	case r == nil:
		return "no topology was given"
	case r.Reason != "":
		return r.State + ": " + r.Reason
	}
	return r.Role + " of host " + r.Host
}

func printPrerequisites(w io.Writer, p probe.Prerequisites, asJSON bool) error {
	if asJSON {
		return printJSON(w, p)
	}
	runtime := p.RuntimeReason
	if p.RuntimeVersion != nil {
		runtime = *p.RuntimeVersion + " (" + p.RuntimePath + ")"
	}
	count := func(m map[string]bool) string {
		n := 0
		for _, there := range m {
			if there {
				n++
			}
		}
		return fmt.Sprintf("%d of %d", n, len(m))
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, row := range [][2]string{
		{"GPU", p.Name.Or(p.Name.Reason) + "  " + p.GPUUUID}, {"compute capability", p.ComputeCapability.Or("unknown")},
		{"SMs", strconv.FormatInt(p.SMCount.Or(0), 10)}, {"driver", p.DriverRelease.Or("unknown") + ", CUDA " + p.DriverVersion.Or("unknown")},
		{"role", roleText(p.Role)}, {"runtime", runtime}, {"driver symbols", count(p.DriverSymbols)}, {"visible devices", strings.Join(p.Visible.UUIDs, " ")},
		{"created a context", "no"}, {"verdict", string(p.Status) + ": " + p.Reason},
	} {
		fmt.Fprintf(t, "%s\t%s\n", row[0], row[1])
	}
	return t.Flush()
}

// probeFlags are those of every probe that makes something.
type probeFlags struct {
	common   probe.Common
	topology string
	dryRun   bool
	asJSON   bool
}

func (f *probeFlags) add(c *cobra.Command) {
	fs := c.Flags()
	fs.StringVar(&f.common.GPUUUID, "gpu-uuid", "", "the GPU's UUID, GPU-… or MIG-…; `cotenant inspect` prints them")
	fs.StringVar(&f.topology, "topology", "", "TOML file that declares GPU roles by UUID: the GPU must have one on this host; only read")
	fs.BoolVar(&f.common.Confirm, "confirm", false, "do it; without it the command says what it would do")
	fs.BoolVar(&f.dryRun, "dry-run", false, "say what would be done (the default)")
	fs.StringVar(&f.common.Out, "out", "", "evidence folder; must be empty or new (default: .cotenant/evidence/gpu-sharing/RUN)")
	fs.BoolVar(&f.asJSON, "json", false, "print JSON: the plan of a preview, the result of a run")
}

// addGuard adds what a probe that uses the GPU has besides.
func (f *probeFlags) addGuard(c *cobra.Command) {
	fs := c.Flags()
	fs.DurationVar(&f.common.Deadline, "deadline", probe.DefaultDeadline, "when whatever still works is killed, at most 55s")
	fs.BoolVar(&f.common.AllowProcesses, "allow-processes", false, "go on although others use the GPU; recorded")
	fs.BoolVar(&f.common.AllowDisplay, "allow-display", false, "go on although a display is attached; recorded")
	fs.BoolVar(&f.common.AllowMPS, "allow-mps", false, "go on although an MPS daemon of somebody else's is there; recorded")
}

func (f *probeFlags) complete(c *cobra.Command) error {
	if err := needUUID(c, f.common.GPUUUID); err != nil {
		return err
	}
	if f.common.Confirm && f.dryRun {
		return usagef(c, "--confirm and --dry-run contradict each other")
	}
	if f.topology != "" {
		var err error
		if f.common.Topology, err = topology.Read(f.topology); err != nil {
			return usageError(c, err)
		}
	}
	rev, _ := revision()
	f.common.Program = probe.Program{Version: version(), Revision: rev}
	f.common.Arguments = os.Args[1:]
	f.common.Root = os.Getenv(testRoot)
	return nil
}

func newProbeCreate() *cobra.Command {
	var f probeFlags
	var cf containerFlags
	var o probe.CreateOptions
	var sms string
	c := &cobra.Command{
		Use:   "create --gpu-uuid UUID (--sms A,B… | --groups N) [--confirm]",
		Short: "Make Green Contexts, prove that they are disjoint, undo them, prove that",
		Long: "Makes Green Contexts on one GPU in a process of its own, runs a short kernel with a known result in each, collects the SMs that\n" +
			"it ran on, holds that against what the driver says, destroys everything, and compares the GPU's memory with before from outside.\n" +
			"Without --confirm it evaluates the go/no-go gates and prints what it would do. The evidence is a folder: cotenant verify FOLDER.",
		Args: usageArgs(cobra.NoArgs),
		RunE: func(c *cobra.Command, _ []string) error {
			if err := errors.Join(f.complete(c), cf.check(c)); err != nil {
				return err
			}
			var err error
			if o.Plan.SMs, err = parseSMs(sms); err != nil {
				return usagef(c, "--sms %s: %v", sms, err)
			}
			o.Common = f.common
			if err := o.Check(); err != nil {
				return usageError(c, err)
			}
			if cf.container {
				return f.inContainer(c, cf.composeFile, &o)
			}
			out, err := probe.Create(c.Context(), o)
			return f.finish(c, out, err)
		},
	}
	f.add(c)
	f.addGuard(c)
	cf.add(c)
	fs := c.Flags()
	fs.StringVar(&sms, "sms", "", "sizes of the partitions, such as 16,64; the last may be rest; one size means that and the rest")
	fs.IntVar(&o.Plan.Groups, "groups", 0, "so many partitions of one size instead, the largest that fits")
	fs.BoolVar(&o.Plan.IgnoreCoscheduling, "ignore-coscheduling", false, "allow sizes that aren't multiples of the alignment, without large clusters")
	fs.IntVar(&o.Cycles, "cycles", 0, "make and destroy the partitions so often again, with time and memory for each")
	fs.BoolVar(&o.Map, "map", false, "also list every split that the GPU has, with and without coscheduling")
	fs.DurationVar(&o.Spin, "spin", probe.DefaultSpin, "how long each block of the kernel stays; longer than --deadline tests the watchdog")
	return describe(c, "GPU contexts, or a container; files under its evidence folder", probeExits...)
}

// parseSMs reads "16,64" or "16,rest"; one size means that and the rest.
func parseSMs(text string) ([]int, error) {
	if text == "" {
		return nil, nil
	}
	var sizes []int
	for _, part := range strings.Split(text, ",") {
		if part == "rest" {
			sizes = append(sizes, partition.Rest)
			continue
		}
		n, err := strconv.Atoi(part)
		if err != nil || n < 1 {
			return nil, fmt.Errorf("%q isn't a number of SMs", part)
		}
		sizes = append(sizes, n)
	}
	if len(sizes) == 1 {
		sizes = append(sizes, partition.Rest)
	}
	return sizes, nil
}

// finish prints a probe's outcome and turns it into an exit code.
func (f *probeFlags) finish(c *cobra.Command, out probe.Outcome, err error) error {
	w := c.OutOrStdout()
	if err != nil {
		return &exit{exitFailed, err, ""}
	}
	switch {
	case f.asJSON && out.Result != nil:
		err = printJSON(w, out.Result)
	case f.asJSON:
		err = printJSON(w, out.Plan)
	case out.Result != nil:
		printProbe(w, out)
	default:
		printPlan(w, out)
	}
	if err != nil {
		return err
	}
	if out.Folder != "" {
		fmt.Fprintf(c.ErrOrStderr(), "evidence: %s\n", out.Folder)
	}
	if out.Exit == exitYes {
		return nil
	}
	return &exit{out.Exit, fmt.Errorf("%s", out.Why), ""}
}

func printPlan(w io.Writer, out probe.Outcome) {
	p := out.Plan
	fmt.Fprintf(w, "Go/no-go for %s\n", p.GPUUUID)
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, g := range p.Gates {
		answer := g.Answer
		if g.Overridden {
			answer += ", overridden by " + g.Override
		} else if !g.Passes() && g.Override != "" {
			answer += " (" + g.Override + " goes on)"
		}
		fmt.Fprintf(t, "  %s\t%s\t%s\n", g.ID, answer, g.Detail)
	}
	t.Flush()
	printService(w, p)
	for _, part := range []struct {
		title string
		list  []string
	}{{"Would do", p.Steps}, {"Cleanup", p.Cleanup}, {"Rollback", p.Rollback}} {
		fmt.Fprintln(w, part.title)
		for _, line := range part.list {
			fmt.Fprintf(w, "  %s\n", line)
		}
	}
	verdict := "go: run it with --confirm"
	if !p.Go {
		verdict = "no-go: --confirm would refuse"
	}
	if out.Folder == "" {
		fmt.Fprintf(w, "Evidence would be in %s\n%s\n", p.Folder, verdict)
	}
}

func printProbe(w io.Writer, out probe.Outcome) {
	switch r := out.Result.(type) {
	case *evidence.CreateResult:
		printCreate(w, r)
	case *evidence.MPSResult:
		printMPS(w, r)
	case *evidence.ContainerResult:
		printContainer(w, r)
	}
}

func printCreate(w io.Writer, r *evidence.CreateResult) {
	fmt.Fprintf(w, "%s, %d SMs, driver %s (CUDA %s): %s\n", r.GPUName, r.Resources.TotalSMs, r.DriverRelease, r.DriverVersion, r.Outcome)
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "PARTITION\tASKED\tGRANTED\tSMS SEEN\tOUTPUT")
	for _, p := range r.Resources.Partitions {
		asked := strconv.Itoa(p.Requested)
		if p.Requested == partition.Rest {
			asked = "rest"
		}
		output := "wrong"
		if p.OutputCorrect {
			output = "correct"
		}
		fmt.Fprintf(t, "%d\t%s\t%d\t%d\t%s\n", p.Index, asked, p.Granted, len(p.SMIDs), output)
	}
	t.Flush()
	if c := r.Cycles; c != nil {
		fmt.Fprintf(w, "%d cycles of %d contexts: create p50 %.1f ms, destroy p50 %.1f ms, %d bytes of device memory kept a context\n", len(c.Rows), c.Contexts,
			float64(c.CreateP50US)/1e3, float64(c.DestroyP50US)/1e3, c.KeptPerContext)
	}
	printMap(w, r.Map)
	printChecks(w, r.Checks, r.Warnings)
}

// printMap prints the splits, sizes with one answer together.
func printMap(w io.Writer, rows []partition.Row) {
	if len(rows) == 0 {
		return
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "COSCHEDULED\tASKED\tGRANTED\tLEFT\tGROUPS\tLEFT\tRESULT")
	for i := 0; i < len(rows); {
		first := rows[i]
		same := func(r partition.Row) bool { r.Requested = first.Requested; return r == first }
		last := i
		for last+1 < len(rows) && same(rows[last+1]) {
			last++
		}
		asked := strconv.Itoa(first.Requested)
		if last > i {
			asked += "–" + strconv.Itoa(rows[last].Requested)
		}
		fmt.Fprintf(t, "%v\t%s\t%d\t%d\t%d\t%d\t%s\n", !first.IgnoreCoscheduling, asked, first.Granted, first.Left, first.Groups, first.GroupsLeft, first.Symbol)
		i = last + 1
	}
	t.Flush()
}

func printChecks(w io.Writer, checks []evidence.Check, warnings []string) {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, c := range checks {
		fmt.Fprintf(t, "  %s\t%s\t%s\n", c.Result, c.ID, c.Detail)
	}
	t.Flush()
	for _, text := range warnings {
		fmt.Fprintf(w, "  warning: %s\n", text)
	}
}

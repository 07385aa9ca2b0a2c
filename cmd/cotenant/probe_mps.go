package main

import (
	"fmt"
	"io"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"cotenant/internal/probe"
	"cotenant/internal/probe/evidence"
)

func newProbeMPS() *cobra.Command {
	var f probeFlags
	var noStatic bool
	c := &cobra.Command{
		Use:   "mps --gpu-uuid UUID [--confirm]",
		Short: "Start an MPS daemon of our own, run clients in it, end it, prove that",
		Long: "Starts an MPS control daemon in a private folder for one GPU, runs clients with the whole GPU, a share, a memory limit and a lower\n" +
			"priority, two at once, and Green Contexts in clients; where the control binary has static partitions, makes, uses and removes two.\n" +
			"Then it ends the daemon and proves that nothing is left. A daemon of somebody else's is never spoken to.\n" +
			"Without --confirm it evaluates the go/no-go gates and prints what it would do. The evidence is a folder: cotenant verify FOLDER.",
		Args: usageArgs(cobra.NoArgs),
		RunE: func(c *cobra.Command, _ []string) error {
			if err := f.complete(c); err != nil {
				return err
			}
			if !c.Flags().Changed("deadline") {
				f.common.Deadline = probe.DefaultMPSDeadline
			}
			out, err := probe.MPS(c.Context(), probe.MPSOptions{Common: f.common, NoStatic: noStatic})
			return f.finish(c, out, err)
		},
	}
	f.add(c)
	f.addGuard(c)
	c.Flags().BoolVar(&noStatic, "no-static", false, "leave static partitions out")
	return describe(c, "an MPS daemon of its own, GPU contexts, files under its evidence folder", probeExits...)
}

func printMPS(w io.Writer, r *evidence.MPSResult) {
	fmt.Fprintf(w, "MPS control %d, driver %s (CUDA %s): %s\n", r.ControlVersion.Or(0), r.DriverRelease, r.DriverVersion, r.Outcome)
	for _, m := range []struct {
		name string
		mode *evidence.MPSMode
	}{{"classic", &r.Classic}, {"static", &r.Static}} {
		fmt.Fprintf(w, "%s: %s %s\n", m.name, m.mode.Status, m.mode.Reason)
		if len(m.mode.Clients) == 0 {
			continue
		}
		t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
		fmt.Fprintln(t, "  CLIENT\tSMS TOLD\tSMS SEEN\tGREEN CONTEXTS\tOUTCOME")
		for _, c := range m.mode.Clients {
			green := "-"
			if c.Green != nil {
				green = fmt.Sprintf("%d, %d SMs in common", len(c.Green.Partitions), len(c.GreenOverlap.SMIDs))
			} else if c.GreenFailure != "" {
				green = c.GreenFailure
			}
			fmt.Fprintf(t, "  %s\t%d\t%d\t%s\t%s %s\n", c.Name, c.SMs, len(c.SMIDs), green, c.Outcome, c.Failure)
		}
		t.Flush()
	}
	printChecks(w, r.Checks, r.Warnings)
}

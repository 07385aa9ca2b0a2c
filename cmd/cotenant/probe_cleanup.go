package main

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"cotenant/internal/container"
	"cotenant/internal/probe"
)

func newProbeCleanup() *cobra.Command {
	var o probe.CleanupOptions
	var dryRun, asJSON bool
	c := &cobra.Command{
		Use:   "cleanup --run FOLDER [--confirm]",
		Short: "Remove what a probe's journal proves to be that probe's",
		Long: "For a probe whose supervisor was killed. Reads the journal in its evidence folder and ends the processes and removes the private\n" +
			"folder and the container that carry that run's id; nothing else is touched, and nothing at all while the probe still runs.",
		Args: usageArgs(cobra.NoArgs),
		RunE: func(c *cobra.Command, _ []string) error {
			if o.Run == "" {
				return usagef(c, "no run: say --run FOLDER, the probe's evidence folder")
			}
			if o.Confirm && dryRun {
				return usagef(c, "--confirm and --dry-run contradict each other")
			}
			rev, _ := revision()
			o.Program = probe.Program{Version: version(), Revision: rev}
			r, code, err := probe.Cleanup(c.Context(), o)
			if asJSON {
				if perr := printJSON(c.OutOrStdout(), r); perr != nil {
					return perr
				}
			} else if err == nil {
				w := c.OutOrStdout()
				fmt.Fprintf(w, "run %s: %d steps in the journal\n", r.RunID, r.Steps)
				for _, s := range r.Unfinished {
					fmt.Fprintf(w, "  unfinished  %s\n", s)
				}
				for _, p := range r.Swept.Processes {
					fmt.Fprintf(w, "  process %d  %s: %s\n", p.PID, p.Program, p.Ended)
				}
				for _, f := range r.Swept.Folders {
					fmt.Fprintf(w, "  folder %s: %s\n", f.Path, f.Removed)
				}
				printCleaned(w, r.Swept.Container)
			}
			if err == nil && code != exitYes {
				err = fmt.Errorf("still there: %v", r.Swept.Left)
			}
			if err != nil {
				return &exit{code, err, ""}
			}
			return nil
		},
	}
	c.Flags().StringVar(&o.Run, "run", "", "the probe's evidence folder")
	c.Flags().BoolVar(&o.Confirm, "confirm", false, "do it; without it the command says what it would do")
	c.Flags().BoolVar(&dryRun, "dry-run", false, "say what would be done (the default)")
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return describe(c, "what a journal proves to be ours", "0  preview; or nothing is left", "1  something is left", "3  the probe still runs", "4  the journal can't be read")
}

// printCleaned prints what the engine was asked about a run's container; nil where there was nothing to ask.
func printCleaned(w io.Writer, c *container.Cleaned) {
	if c == nil {
		return
	}
	for _, x := range c.Containers {
		fmt.Fprintf(w, "  container %s %s: %s\n", x.Name, x.ID, x.Removed)
	}
	if c.Image != "not pulled" {
		fmt.Fprintf(w, "  image: %s\n", c.Image)
	}
	for _, text := range c.Left {
		fmt.Fprintf(w, "  still there  %s\n", text)
	}
	if c.Complete {
		fmt.Fprintln(w, "  the engine has no container of the run")
	}
}

package main

import (
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"cotenant/internal/compare"
	"cotenant/internal/verify"
)

func newCompare() *cobra.Command {
	var vary string
	var asJSON bool
	var keys []string
	c := &cobra.Command{
		Use:   "compare A B --vary AXIS",
		Short: "Set two runs against each other, like for like or not at all",
		Long: "Compares two run folders of soak that differ in one declared thing: the server, the hardware, the model or the split of a GPU.\n" +
			"Both are verified first. Workload, contract, contexts, workers, sampling, load, timeouts and the client's build must be equal, and\n" +
			"what the axes were must have been said before the runs (soak --declare). Prints B over A with intervals, and what that doesn't\n" +
			"establish.",
		Args: usageArgs(cobra.ExactArgs(2)),
		RunE: func(c *cobra.Command, args []string) error {
			var opts verify.Options
			for _, path := range keys {
				key, err := readPublicKey(path)
				if err != nil {
					return &exit{exitUnchecked, err, ""}
				}
				opts.Keys = append(opts.Keys, key)
			}
			return runCompare(c, args[0], args[1], vary, opts, asJSON)
		},
	}
	c.Flags().StringVar(&vary, "vary", "", "what the runs differ in: "+strings.Join(compare.Axes(), ", "))
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	c.Flags().StringArrayVar(&keys, "key", nil, "PEM file with an ed25519 public key (SPKI) that must have signed both runs")
	return describe(c, "nothing", "0  compared", "3  the runs aren't alike", "4  a run can't be verified")
}

func runCompare(c *cobra.Command, a, b, vary string, opts verify.Options, asJSON bool) error {
	if vary == "" {
		return usagef(c, "no axis: say --vary %s", strings.Join(compare.Axes(), "|"))
	}
	r, err := compare.Folders(a, b, vary, opts)
	switch {
	case errors.Is(err, compare.ErrNotVerified):
		return &exit{exitUnchecked, err, "cotenant verify says more"}
	case err != nil:
		return usageError(c, err)
	}
	if asJSON {
		err = printJSON(c.OutOrStdout(), r)
	} else {
		err = printComparison(c.OutOrStdout(), r)
	}
	if err == nil && !r.Alike {
		return &exit{exitNo, errors.New("the runs aren't alike"), ""}
	}
	return err
}

func printComparison(w io.Writer, r *compare.Report) error {
	var b strings.Builder
	verdict := "ALIKE but for the " + r.Vary
	if !r.Alike {
		verdict = "NOT ALIKE"
	}
	fmt.Fprintf(&b, "%s\n", verdict)
	for i, run := range r.Runs {
		fmt.Fprintf(&b, "  %c  %s: %s, run %s\n", 'A'+i, run.Path, brief(run.Value), run.RunID)
	}
	for _, c := range r.Conditions {
		if !c.Holds {
			fmt.Fprintf(&b, "  REFUSED %s: %s\n          A %s\n          B %s\n", c.Name, c.Why, brief(c.A), brief(c.B))
		}
	}
	if len(r.Ratios) > 0 {
		fmt.Fprintf(&b, "\n%-28s %14s %14s  %-8s %s\n", "B over A", "A", "B", "ratio", "interval")
	}
	for _, x := range r.Ratios {
		interval := "none"
		if x.LowE6 != nil {
			interval = fmt.Sprintf("%.3f to %.3f (%d %%): %s", float64(*x.LowE6)/1e6, float64(*x.HighE6)/1e6, x.ConfidencePPM/10_000, strings.ReplaceAll(string(x.Verdict), "_", " "))
		}
		fmt.Fprintf(&b, "%-28s %14d %14d  %-8.3f %s\n", x.Name+", "+x.Unit, x.A, x.B, float64(x.RatioE6)/1e6, interval)
	}
	for _, s := range r.NotCompared {
		fmt.Fprintf(&b, "Not compared: %s\n", statementText(s))
	}
	if len(r.NonClaims) > 0 {
		b.WriteString("\nDoes not establish\n")
	}
	for _, s := range r.NonClaims {
		fmt.Fprintf(&b, "  %s\n", statementText(s))
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// brief shows a value of a config.
func brief(s string) string {
	if s == "" {
		return "(nothing)"
	}
	// Foreign text: quoted, it can't move a terminal's cursor.
	const most = 160
	if s = strings.Trim(strconv.Quote(s), `"`); len(s) > most {
		return s[:most] + "…"
	}
	return s
}

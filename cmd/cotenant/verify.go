package main

import (
	"crypto/ed25519"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"cotenant/internal/ledger"
	"cotenant/internal/verify"
)

func newVerify() *cobra.Command {
	var asJSON, explain bool
	var keys []string
	c := &cobra.Command{
		Use:   "verify PATH…",
		Short: "Check the evidence of a run, offline",
		Long: "Computes everything in a run folder's ledger again from its rows, and holds it against a table of rules. Says what the\n" +
			"ledger establishes, what it does not, and why. --explain prints the rules.",
		Args: func(c *cobra.Command, args []string) error {
			if len(args) == 0 && !explain {
				return usagef(c, "no run folder: say which, for instance `cotenant verify run/`")
			}
			return nil
		},
		RunE: func(c *cobra.Command, args []string) error {
			if explain {
				if err := explainRules(c.OutOrStdout(), asJSON); err != nil || len(args) == 0 {
					return err
				}
			}
			var opts verify.Options
			for _, path := range keys {
				key, err := readPublicKey(path)
				if err != nil {
					return &exit{exitUnchecked, err, ""}
				}
				opts.Keys = append(opts.Keys, key)
			}
			return verifyAll(c.OutOrStdout(), args, opts, asJSON)
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	c.Flags().BoolVar(&explain, "explain", false, "print the rules, and from which rung each applies")
	c.Flags().StringArrayVar(&keys, "key", nil, "PEM file with an ed25519 public key (SPKI) that must have signed the run")
	return describe(c, "nothing", "0  every rule holds", "3  a rule failed", "4  can't be read as a ledger")
}

func readPublicKey(path string) (ed25519.PublicKey, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("reading key: %w", err)
	}
	key, err := ledger.ParsePublicKey(data)
	if err != nil {
		return nil, fmt.Errorf("reading key %s: %w", path, err)
	}
	return key, nil
}

// verifyAll judges each path; the exit code is the worst.
func verifyAll(w io.Writer, paths []string, opts verify.Options, asJSON bool) error {
	code := exitYes
	var problems []string
	reports := []*verify.Report{}
	for _, path := range paths {
		r, err := verify.Dir(path, opts)
		if err != nil {
			if !errors.Is(err, verify.ErrUnreadable) {
				return err
			}
			code = max(code, exitUnchecked)
			problems = append(problems, fmt.Sprintf("%s: %v", path, err))
			continue
		}
		if c := r.ExitCode(); c != exitYes {
			code = max(code, c)
			problems = append(problems, fmt.Sprintf("%s: %d of %d rules failed", path, len(r.Failed()), len(r.Results)))
		}
		reports = append(reports, r)
		if !asJSON {
			printReport(w, path, r)
		}
	}
	if asJSON {
		var v any = reports
		if len(paths) == 1 && len(reports) == 1 {
			v = reports[0]
		}
		if err := printJSON(w, v); err != nil {
			return err
		}
	}
	if code == exitYes {
		return nil
	}
	return &exit{code, errors.New(strings.Join(problems, "\n")), ""}
}

func printReport(w io.Writer, path string, r *verify.Report) {
	counts := map[string]int{}
	for _, res := range r.Results {
		counts[res.Result]++
	}
	verdict := "HOLDS"
	if !r.Holds {
		verdict = "REFUSED"
	}
	fmt.Fprintf(w, "%s  %s: contract %s, %d contexts, run %s\n", verdict, path, r.Contract, r.Contexts, r.RunID)
	fmt.Fprintf(w, "grade %s; %d rules hold, %d failed, %d do not apply; rules version %d\n",
		r.Grade, counts[verify.Pass], counts[verify.Fail], counts[verify.NotApplicable], r.RulesVersion)
	if r.SignedBy != "" {
		fmt.Fprintf(w, "signed by %s\n", r.SignedBy)
	}
	for _, res := range r.Failed() {
		fmt.Fprintf(w, "  FAILED %s  %s\n         %s\n", res.Rule, res.Title, res.Detail)
	}
	printClaims(w, r)
	fmt.Fprintln(w)
}

func printClaims(w io.Writer, r *verify.Report) {
	if len(r.Establishes) > 0 {
		fmt.Fprintln(w, "Establishes")
		for _, c := range r.Establishes {
			fmt.Fprintf(w, "  %s\n", claimText(c))
		}
	}
	for _, part := range []struct {
		title string
		list  []ledger.Statement
	}{{"Does not establish", r.DoesNot}, {"Not exposed", r.NotExposed}} {
		if len(part.list) == 0 {
			continue
		}
		fmt.Fprintln(w, part.title)
		for _, s := range part.list {
			fmt.Fprintf(w, "  %s\n", statementText(s))
		}
	}
}

func explainRules(w io.Writer, asJSON bool) error {
	rules := verify.Rules()
	if asJSON {
		return printJSON(w, rules)
	}
	for _, r := range rules {
		where := "every run"
		if r.From > 0 {
			where = fmt.Sprintf("from %d contexts", r.From)
		}
		if len(r.Contracts) > 0 {
			where += ", contract " + strings.Join(r.Contracts, " or ")
		}
		fmt.Fprintf(w, "%s  %s (%s)\n    %s\n", r.ID, r.Title, where, r.Explain)
	}
	return nil
}

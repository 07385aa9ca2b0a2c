package main

import (
	"crypto/ed25519"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"cotenant/internal/interfere"
	"cotenant/internal/interfere/record"
	"cotenant/internal/ledger"
	"cotenant/internal/loadgen"
	"cotenant/internal/probe/evidence"
	"cotenant/internal/verify"
	"cotenant/internal/verify/fak"
)

func newVerify() *cobra.Command {
	var asJSON, explain bool
	var keys []string
	var prompts string
	c := &cobra.Command{
		Use:   "verify PATH…",
		Short: "Check the evidence of a run, offline",
		Long: "Computes everything in a run folder's ledger again from its rows, and holds it against a table of rules. Says what the\n" +
			"ledger establishes, what it does not, and why. --explain prints the rules.\n" +
			"A ledger.json without its folder is held to its own numbers alone, and establishes nothing. A ledger of the predecessor's\n" +
			"(fak-microcontext-*) is judged by its own rules, with what ours would ask for beside it. A probe's evidence folder is judged by\n" +
			"the rules of probes.",
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
			if prompts != "" {
				p, err := loadgen.ReadPrompts(prompts)
				if err != nil {
					return &exit{exitUnchecked, err, ""}
				}
				opts.Prompts = p
			}
			return verifyAll(c.OutOrStdout(), args, opts, asJSON)
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	c.Flags().BoolVar(&explain, "explain", false, "print the rules, and from which rung each applies")
	c.Flags().StringArrayVar(&keys, "key", nil, "PEM file with an ed25519 public key (SPKI) that must have signed the run")
	c.Flags().StringVar(&prompts, "prompts", "", "file with the prompts that a run made by `soak --prompts` sent; they are made again from it")
	return describe(c, "nothing", "0  every rule holds", "3  a rule failed", "4  can't be read as a ledger")
}

func readPublicKey(path string) (ed25519.PublicKey, error) {
	data, err := readKey(path)
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
	reports := []judged{}
	for _, path := range paths {
		r, err := judge(path, opts)
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
			problems = append(problems, path+": "+r.problem())
		}
		reports = append(reports, r)
		if !asJSON {
			r.print(w, path)
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

// judged is a report on one path.
type judged interface {
	ExitCode() int
	problem() string // why the exit code isn't 0
	print(w io.Writer, path string)
}

// maxEvidence bounds a file that is judged by itself.
const maxEvidence = 16 << 20

// judge reads what path is: a run folder, a ledger without its folder, or a ledger of the predecessor's.
func judge(path string, opts verify.Options) (judged, error) {
	info, err := os.Stat(path)
	if opts.Prompts != nil && (err != nil || !info.IsDir() || evidence.Is(path) || record.Is(path)) {
		return nil, fmt.Errorf("%w: a file of prompts was given, which can be held against a soak's run folder alone", verify.ErrUnreadable)
	}
	if err == nil && info.IsDir() && evidence.Is(path) {
		r, err := evidence.Verify(path)
		if err != nil {
			return nil, fmt.Errorf("%w: %w", verify.ErrUnreadable, err)
		}
		return probeReport{r}, nil
	}
	if err == nil && info.IsDir() && record.Is(path) {
		r, _, err := interfere.Verify(path)
		if err != nil {
			return nil, fmt.Errorf("%w: %w", verify.ErrUnreadable, err)
		}
		return interfereReport{r}, nil
	}
	if err != nil || info.IsDir() {
		r, err := verify.Dir(path, opts)
		return runReport{r}, err
	}
	data, err := readAtMost(path, maxEvidence)
	switch {
	case err != nil:
		return nil, fmt.Errorf("%w: %w", verify.ErrUnreadable, err)
	case evidence.IsPublished(data):
		r, err := evidence.VerifyPublished(data)
		if err != nil {
			return nil, fmt.Errorf("%w: %w", verify.ErrUnreadable, err)
		}
		return probeReport{r}, nil
	case record.IsPublished(data):
		r, _, err := interfere.VerifyPublished(data)
		if err != nil {
			return nil, fmt.Errorf("%w: %w", verify.ErrUnreadable, err)
		}
		return interfereReport{r}, nil
	case !fak.Is(data):
		r, err := verify.LedgerFile(data, opts)
		return runReport{r}, err
	case len(opts.Keys) > 0:
		return nil, fmt.Errorf("%w: a key was given, and ledgers of this kind aren't signed", verify.ErrUnreadable)
	}
	r, err := fak.Judge(data)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", verify.ErrUnreadable, err)
	}
	return fakReport{r}, nil
}

// runReport is the report on a run folder or on its ledger alone.
type runReport struct{ *verify.Report }

func (r runReport) problem() string {
	return fmt.Sprintf("%d of %d rules failed", len(r.Failed()), len(r.Results))
}

func (r runReport) print(w io.Writer, path string) { printReport(w, path, r.Report) }

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
	if len(r.States) > 0 {
		fmt.Fprintln(w, "States, without what would establish it")
		for _, c := range r.States {
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
	rules := append(verify.Rules(), verify.IntegrityRules()...) // these of a ledger without its folder
	if asJSON {
		return printJSON(w, rules)
	}
	for _, r := range rules {
		fmt.Fprintf(w, "%s  %s\n    %s\n", r.ID, r.Title, r.Explain)
	}
	ladder := verify.Ladder()
	fmt.Fprintln(w, "\nAsked of a run folder, by contract and from how many contexts")
	fmt.Fprint(w, "| rule       |")
	for _, at := range ladder {
		fmt.Fprintf(w, " %-19s |", fmt.Sprintf("%s %d", at.Contract, at.From))
	}
	fmt.Fprintln(w, " demands")
	for _, r := range verify.Rules() {
		fmt.Fprintf(w, "| %-10s |", r.ID)
		for _, at := range ladder {
			fmt.Fprintf(w, " %-19s |", map[bool]string{true: "yes", false: "-"}[r.Asks(at.Contract, at.From)])
		}
		fmt.Fprintln(w, " "+r.Title)
	}
	fmt.Fprintln(w, "\nRules of an interference run")
	for _, r := range record.Rules() {
		fmt.Fprintf(w, "%s  %s\n    %s\n", r[0], r[1], r[2])
	}
	fmt.Fprintln(w, "\nRules of a probe's evidence folder")
	for _, r := range evidence.Rules() {
		fmt.Fprintf(w, "%s  %s\n    %s\n", r[0], r[1], r[2])
	}
	return nil
}

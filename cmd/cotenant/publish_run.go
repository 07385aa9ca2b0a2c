package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"cotenant/internal/ledger"
	"cotenant/internal/verify"
)

// wholeRows is how large compressed rows may be before a sample is published in their place.
const wholeRows = 4 << 20

// runFlags are those of publishing a run.
type runFlags struct {
	rows       string
	sample     int64
	keepSecret bool
}

func (r *runFlags) add(c *cobra.Command) {
	c.Flags().StringVar(&r.rows, "rows", "auto", "of a run: auto (all rows up to 4 MiB compressed, else a sample), all, or sample")
	c.Flags().Int64Var(&r.sample, "sample", 1000, "of a run: rows of a sample")
	c.Flags().BoolVar(&r.keepSecret, "keep-secret", false, "of a run with generated tasks: leave the secret out with which anybody can make the prompts again")
}

// isRun reports whether a path is a soak's run folder.
func isRun(path string) bool {
	info, err := os.Stat(filepath.Join(path, ledger.ConfigFile))
	return err == nil && info.Mode().IsRegular()
}

// publishRun publishes a run folder whose files are those that its ledger binds, and verifies what it has written. A run that isn't
// admitted, or that failed, is published as such.
func publishRun(c *cobra.Command, path, out string, hosts []string, r runFlags, asJSON bool) error {
	o := ledger.PublishOptions{MaxRows: wholeRows, Sample: r.sample, HostNames: hosts}
	switch r.rows {
	case "auto":
	case "all":
		o.MaxRows = 1 << 40
	case "sample":
		o.MaxRows = 0
	default:
		return usagef(c, "--rows %q: want auto, all or sample", r.rows)
	}
	if r.sample < 1 || r.sample > ledger.MaxSample {
		return usagef(c, "--sample %d: want 1 to %d", r.sample, ledger.MaxSample)
	}
	before, err := verify.Dir(path, verify.Options{})
	if err != nil {
		return &exit{exitUnchecked, err, ""}
	}
	if broken := bindingFailures(before); broken != "" {
		return &exit{exitUnchecked, fmt.Errorf("%s isn't as it was written: %s", path, broken), "cotenant verify " + path}
	}
	f, err := ledger.OpenFolder(path)
	if err != nil {
		return &exit{exitUnchecked, err, ""}
	}
	o.OpenSecret = f.Config.Workload.Seed != "" && !r.keepSecret
	if err := newFolder(c, out); err != nil {
		return err
	}
	doc, err := ledger.Publish(path, out, o)
	if wrote := (*fs.PathError)(nil); errors.As(err, &wrote) && filepath.Dir(wrote.Path) == filepath.Clean(out) {
		return err
	}
	if err != nil {
		return &exit{exitUnchecked, err, ""}
	}
	after, err := verify.Dir(out, verify.Options{})
	if err != nil {
		return fmt.Errorf("the published form can't be read: %w", err)
	}
	if broken := bindingFailures(after); broken != "" || after.Holds != before.Holds {
		return fmt.Errorf("the published form in %s doesn't verify as the run does: %s", out, broken)
	}
	if asJSON {
		return printJSON(c.OutOrStdout(), doc)
	}
	return printPublishedRun(c, out, &doc, after)
}

// bindingFailures lists the rules about form, binding and leaks that failed.
func bindingFailures(r *verify.Report) string {
	var out []string
	for _, f := range r.Failed() {
		for _, kind := range []string{"R-FORM-", "R-FILE-", "R-CONF-", "R-LEAK-", "R-PUB-"} {
			if strings.HasPrefix(f.Rule, kind) {
				out = append(out, f.Rule+" "+f.Detail)
			}
		}
	}
	return strings.Join(out, "; ")
}

func printPublishedRun(c *cobra.Command, out string, doc *ledger.Published, r *verify.Report) error {
	w := c.OutOrStdout()
	total := int64(0)
	for _, f := range doc.Files {
		total += f.Bytes
	}
	fmt.Fprintf(w, "Written to %s: %d files, %.1f KiB, grade %s.\n", out, len(doc.Files)+1, float64(total)/1024, r.Grade)
	if s := doc.Sample; s != nil {
		fmt.Fprintf(w, "Rows: %d of %d, picked by the run's own hash, with their proofs.\n", s.Count, s.Of)
	}
	fmt.Fprintln(w, "Left out:")
	for _, x := range doc.Redactions {
		fmt.Fprintf(w, "  %s%s  %s\n", x.File, x.Pointer, x.Commitment)
	}
	f, err := ledger.OpenFolder(out)
	if err != nil {
		return err
	}
	names, err := json.Marshal(f.Config.HeaderNames)
	if err != nil {
		return err
	}
	fmt.Fprintf(w, "Readable: model %q, header names %s, extra body %q, what was declared (%q, %q, %q), tenants' names, texts of errors, addresses and keys taken out.\n",
		f.Config.Model, names, f.Config.Sampling.ExtraBody, f.Config.Declared.Server, f.Config.Declared.Hardware, f.Config.Declared.Split)
	return nil
}

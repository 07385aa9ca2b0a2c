package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"cotenant/internal/inspect"
	"cotenant/internal/interfere/record"
	"cotenant/internal/probe/evidence"
	"cotenant/internal/publish"
)

func newPublish() *cobra.Command {
	var out string
	var hosts []string
	var run runFlags
	var asJSON bool
	c := &cobra.Command{
		Use:   "publish REPORT|FOLDER --out DIR",
		Short: "Make a report public: private values replaced by labels, and a list of them",
		Long: "Reads what `cotenant inspect --json` printed (- reads stdin) and writes report.json and report.txt, in which UUIDs, host names,\n" +
			"paths and addresses are replaced by labels, and replaced.json, which lists each label and where it stands. This machine's\n" +
			"name is replaced wherever it stands; --host-name names more. Nothing is written where a private value would stay.\n" +
			"The folder of a probe or of an interference run, which must verify, becomes one evidence.json, which verifies too, with the hashes\n" +
			"of the originals.\n" +
			"A soak's run folder is published without endpoint and secrets, each listed with what commits to it, its rows compressed or, where they\n" +
			"are many, a proven sample of them; `cotenant verify` computes again what is there.",
		Args: func(c *cobra.Command, args []string) error {
			if len(args) != 1 {
				return usagef(c, "want one report, for instance `cotenant inspect --json >report.json; cotenant publish report.json --out public/`")
			}
			return nil
		},
		RunE: func(c *cobra.Command, args []string) error { return runPublish(c, args[0], out, hosts, run, asJSON) },
	}
	c.Flags().StringVar(&out, "out", "", "folder for the public files; must be empty or new")
	c.Flags().StringArrayVar(&hosts, "host-name", nil, "one more machine's name to replace; repeatable")
	run.add(c)
	c.Flags().BoolVar(&asJSON, "json", false, "print the list of replacements as JSON")
	return describe(c, "files", "0  written", "1  could not be written", "4  not a report, or a private value would have stayed")
}

func runPublish(c *cobra.Command, path, out string, hosts []string, run runFlags, asJSON bool) error {
	if name, err := os.Hostname(); err == nil {
		short, _, _ := strings.Cut(name, ".")
		hosts = append(hosts, name, short)
	}
	if path != "-" && evidence.Is(path) {
		return publishProbe(c, path, out, publish.Options{HostNames: hosts}, asJSON)
	}
	if path != "-" && record.Is(path) {
		return publishInterference(c, path, out, publish.Options{HostNames: hosts}, asJSON)
	}
	if path != "-" && isRun(path) {
		return publishRun(c, path, out, hosts, run, asJSON)
	}
	data, err := readReport(c, path)
	if err != nil {
		return &exit{exitUnchecked, err, ""}
	}
	p, err := publish.Report(data, publish.Options{HostNames: hosts})
	if err != nil {
		return &exit{exitUnchecked, err, ""}
	}
	var report inspect.Report
	if err := json.Unmarshal(p.Document, &report); err != nil {
		return &exit{exitUnchecked, fmt.Errorf("not a report of inspect: %w", err), ""}
	}
	if err := newFolder(c, out); err != nil {
		return err
	}
	return writePublished(c, out, []publicFile{
		{"report.json", func(w io.Writer) error { _, err := w.Write(p.Document); return err }},
		{"report.txt", report.WriteTable},
	}, p.List, asJSON)
}

type publicFile struct {
	name  string
	write func(io.Writer) error
}

// writePublished writes the public files and the list of what was replaced, and says so.
func writePublished(c *cobra.Command, out string, files []publicFile, list publish.List, asJSON bool) error {
	names := []string{}
	for _, f := range append(files, publicFile{"replaced.json", func(w io.Writer) error { return printJSON(w, list) }}) {
		if err := writeNew(filepath.Join(out, f.name), f.write); err != nil {
			return err
		}
		names = append(names, f.name)
	}
	if asJSON {
		return printJSON(c.OutOrStdout(), list)
	}
	w := c.OutOrStdout()
	fmt.Fprintf(w, "Written to %s: %s. Replaced:\n", out, strings.Join(names, ", "))
	for _, r := range list.Replaced {
		fmt.Fprintf(w, "  %s  %s, %d times\n", r.Label, strings.ReplaceAll(r.Kind, "_", " "), r.Count)
	}
	if len(list.Replaced) == 0 {
		fmt.Fprintln(w, "  nothing")
	}
	return nil
}

// publishProbe publishes a probe's evidence folder, which must verify, and verifies what it is about to write.
func publishProbe(c *cobra.Command, path, out string, o publish.Options, asJSON bool) error {
	r, err := evidence.Verify(path)
	if err != nil {
		return &exit{exitUnchecked, err, ""}
	}
	if !r.Holds {
		return &exit{exitUnchecked, fmt.Errorf("%s: %d rules failed: see cotenant verify %s", path, len(r.Failed()), path), ""}
	}
	files := make(map[string][]byte)
	for _, name := range evidence.Names() {
		data, err := evidence.Read(path, name)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return &exit{exitUnchecked, err, ""}
		}
		files[name] = data
	}
	p, err := publish.Folder(publish.ProbeOperation, files, o)
	if err != nil {
		return &exit{exitUnchecked, err, ""}
	}
	if r, err := evidence.VerifyPublished(p.Document); err != nil || !r.Holds {
		return &exit{exitUnchecked, fmt.Errorf("the public form doesn't verify: %v %+v", err, r), ""}
	}
	if err := newFolder(c, out); err != nil {
		return err
	}
	return writePublished(c, out, []publicFile{{"evidence.json", func(w io.Writer) error { _, err := w.Write(p.Document); return err }}}, p.List, asJSON)
}

// readReport reads a file, or stdin for "-".
func readReport(c *cobra.Command, path string) ([]byte, error) {
	if path == "-" {
		return io.ReadAll(io.LimitReader(c.InOrStdin(), 64<<20+1))
	}
	info, err := os.Stat(path)
	if err != nil {
		return nil, fmt.Errorf("reading the report: %w", err)
	}
	if info.IsDir() {
		return nil, errors.New("reading the report: " + path + " is a folder, and neither a run nor a probe's evidence")
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("reading the report: %w", err)
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, 64<<20+1))
	if err != nil {
		return nil, fmt.Errorf("reading the report: %w", err)
	}
	return data, nil
}

// writeNew makes a file that must not exist.
func writeNew(path string, write func(io.Writer) error) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return fmt.Errorf("writing: %w", err)
	}
	if err := write(f); err != nil {
		f.Close()
		return fmt.Errorf("writing %s: %w", path, err)
	}
	if err := f.Close(); err != nil {
		return fmt.Errorf("writing %s: %w", path, err)
	}
	return nil
}

package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"cotenant/internal/compare"
	"cotenant/internal/interfere"
	"cotenant/internal/interfere/record"
	"cotenant/internal/ledger"
	"cotenant/internal/probe/evidence"
	"cotenant/internal/report"
	"cotenant/internal/verify/fak"
)

// reportPage is the page's name in its folder, where no other is given.
const reportPage = "report.html"

// reportWritten is what `report --json` prints.
type reportWritten struct {
	SchemaVersion int      `json:"schema_version"`
	Operation     string   `json:"operation"` // "report"
	Kind          string   `json:"kind"`
	RunIDs        []string `json:"run_ids"`
	File          string   `json:"file"`
	Bytes         int      `json:"bytes"`
	SHA256        string   `json:"sha256"`
	Numbers       int      `json:"numbers"` // values on the page, each compared with its document
}

func newReport() *cobra.Command {
	var out, slo, vary string
	var overwrite, asJSON bool
	c := &cobra.Command{
		Use:   "report DIR [B --vary AXIS]",
		Short: "Draw a run's page: one HTML file with charts",
		Long: "Verifies DIR, the folder of a soak or of an interference run (or the latter's public form), and draws its page: one HTML file\n" +
			"that needs no network and no script, for a screen of any size and for print. Each number on it is a value of the ledger that\n" +
			"the page carries, and is read back and compared before the file is written. A folder that fails verification gets no page.\n" +
			"Of two soaks it draws one page, of B over DIR, where they are alike in all but the axis, as compare asks.\n" +
			"A page of ours is replaced; any other file only with --overwrite.",
		Args: usageArgs(cobra.RangeArgs(1, 2)),
		RunE: func(c *cobra.Command, args []string) error {
			if out == "" {
				if len(args) == 2 {
					return usagef(c, "a page of two runs belongs to neither's folder: say --out FILE")
				}
				if _, err := os.Stat(filepath.Join(args[0], ledger.PublishedFile)); err == nil {
					return usagef(c, "%s is a published form, in which nothing else may lie: say --out FILE", args[0])
				}
				out = filepath.Join(args[0], reportPage)
				if info, err := os.Stat(args[0]); err == nil && !info.IsDir() {
					out = filepath.Join(filepath.Dir(args[0]), reportPage)
				}
			}
			if !strings.HasSuffix(out, ".html") { // so that no evidence can be named
				return usagef(c, "--out %s: a page's name ends in .html", out)
			}
			page, err := drawPage(c, args, slo, vary)
			if err != nil {
				return err
			}
			if err := writePage(out, page.HTML, overwrite); err != nil {
				return err
			}
			if asJSON {
				sum := sha256.Sum256(page.HTML)
				return printJSON(c.OutOrStdout(), reportWritten{1, "report", page.Kind, page.RunIDs, out, len(page.HTML), hex.EncodeToString(sum[:]), page.Numbers})
			}
			fmt.Fprintf(c.OutOrStdout(), "%s: %d bytes; %d numbers, each compared with the ledger\n", out, len(page.HTML), page.Numbers)
			return nil
		},
	}
	c.Flags().StringVar(&out, "out", "", "file to write, ending in .html (default: DIR/report.html)")
	c.Flags().StringVar(&slo, "slo", "", "objective of an interference run's victims, such as p99_us=500: the page picks the smallest allocation that keeps it")
	c.Flags().StringVar(&vary, "vary", "", "what two runs differ in: "+strings.Join(compare.Axes(), ", "))
	c.Flags().BoolVar(&overwrite, "overwrite", false, "replace a file that isn't a page of ours")
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return describe(c, "a file", "0  written", "1  could not be written", "3  two runs aren't alike", "4  a folder fails verification, there are no pages of what DIR is, or it can't be read")
}

// drawPage makes the page of what paths name.
func drawPage(c *cobra.Command, paths []string, slo, vary string) (*report.Page, error) {
	matrix := false
	for _, path := range paths {
		is, err := drawable(path)
		if err != nil {
			return nil, err
		}
		matrix = matrix || is
	}
	var page *report.Page
	var err error
	switch {
	case len(paths) == 2 && matrix:
		return nil, usagef(c, "two interference runs have no page together")
	case len(paths) == 2 && vary == "":
		return nil, usagef(c, "no axis: say --vary %s", strings.Join(compare.Axes(), "|"))
	case len(paths) == 1 && vary != "":
		return nil, usagef(c, "--vary is for two runs")
	case !matrix && slo != "":
		return nil, usagef(c, "--slo is for an interference run, which %s isn't", paths[0])
	case matrix:
		page, err = drawMatrix(paths[0], slo)
	case len(paths) == 2:
		page, err = report.Compare(paths[0], paths[1], vary, version())
	default:
		page, err = report.Run(paths[0], version())
	}
	if err == nil {
		return page, nil
	}
	err = fmt.Errorf("%s: %w", strings.Join(paths, ", "), err)
	switch {
	case errors.Is(err, report.ErrObjective), errors.Is(err, report.ErrAxis):
		return nil, usageError(c, err)
	case errors.Is(err, report.ErrUnlike):
		return nil, &exit{exitNo, err, "cotenant compare shows both values"}
	case errors.Is(err, report.ErrRefused):
		return nil, &exit{exitUnchecked, err, "cotenant verify " + strings.Join(paths, " ")}
	case errors.Is(err, report.ErrUnreadable):
		return nil, &exit{exitUnchecked, err, ""}
	}
	return nil, err
}

// drawMatrix makes the page of an interference run, from its folder or its public form.
func drawMatrix(path, slo string) (*report.Page, error) {
	var judged *record.Report
	var f *record.Folder
	info, err := os.Stat(path)
	if err == nil && info.IsDir() {
		judged, f, err = interfere.Verify(path)
	} else if err == nil {
		var data []byte
		if data, err = readAtMost(path, maxEvidence); err == nil {
			judged, f, err = interfere.VerifyPublished(data)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %w", report.ErrUnreadable, err)
	}
	return report.Interfere(f, judged, version(), slo)
}

// drawable reports whether path is an interference run, and refuses evidence of kinds that have no page, by name.
func drawable(path string) (matrix bool, err error) {
	no := func(what, hint string) (bool, error) {
		return false, &exit{exitUnchecked, fmt.Errorf("%s: %s", path, what), hint}
	}
	info, err := os.Stat(path)
	if err != nil {
		return no(fmt.Sprintf("can't be read: %v", err), "")
	}
	const probe = "this is a probe's evidence, of which there are no pages"
	if info.IsDir() {
		if evidence.Is(path) {
			return no(probe, "cotenant verify "+path+" says what it establishes")
		}
		return record.Is(path), nil
	}
	data, err := readAtMost(path, maxEvidence)
	switch {
	case err != nil:
		return no(fmt.Sprintf("can't be read: %v", err), "")
	case record.IsPublished(data):
		return true, nil
	case fak.Is(data):
		return no("this is a ledger of the predecessor's, which has no rows to draw", "cotenant verify "+path+" judges it by its own rules")
	case evidence.IsPublished(data):
		return no(probe, "cotenant verify "+path+" says what it establishes")
	}
	return no("a page is drawn of a run's folder, which holds its rows, not of one file", "name the folder")
}

// writePage puts html at path at once, or leaves what is there. Another file than a page of ours is replaced only where overwrite says so.
func writePage(path string, html []byte, overwrite bool) error {
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, os.ErrNotExist):
	case err != nil:
		return fmt.Errorf("writing %s: %w", path, err)
	case info.IsDir():
		return fmt.Errorf("writing %s: it is a folder", path)
	case !overwrite:
		ours := false
		if info.Mode().IsRegular() {
			if ours, err = isPage(path); err != nil {
				return fmt.Errorf("writing %s: %w", path, err)
			}
		}
		if !ours {
			return &exit{exitFailed, fmt.Errorf("%s is there and isn't a page of ours: it stays as it is", path), "--out FILE names another, --overwrite replaces it"}
		}
	}
	f, err := os.CreateTemp(filepath.Dir(path), ".report-*.html")
	if err != nil {
		return fmt.Errorf("writing %s: %w", path, err)
	}
	defer os.Remove(f.Name()) // gone once it has its name
	_, err = f.Write(html)
	err = errors.Join(err, f.Chmod(0o644), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return fmt.Errorf("writing %s: %w", path, err)
	}
	return nil
}

// isPage reports whether path holds a page of ours.
func isPage(path string) (bool, error) {
	f, err := os.Open(path)
	if err != nil {
		return false, err
	}
	defer f.Close()
	head, err := io.ReadAll(io.LimitReader(f, report.MarkerWithin))
	return bytes.Contains(head, []byte(report.Marker)), err
}

package main

import (
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"cotenant/internal/ledger"
)

// claimText is one line for people; the ledger keeps whole numbers.
func claimText(c ledger.Claim) string {
	text := c.Statement + ": " + quantity(c.Value, c.Unit)
	if c.Bound != "" {
		text += "  [" + c.Bound + "]"
	}
	return text
}

// quantity writes a ledger's whole number in the unit that people think in.
func quantity(v int64, unit string) string {
	switch unit {
	case "per 10^6 s":
		return fmt.Sprintf("%.3f per second", float64(v)/1e6)
	case "us":
		return fmt.Sprintf("%.3f ms", float64(v)/1e3)
	case "bytes":
		return fmt.Sprintf("%.1f MiB", float64(v)/(1<<20))
	case "ppm":
		return fmt.Sprintf("%.2f %%", float64(v)/1e4)
	}
	return fmt.Sprintf("%d %s", v, unit)
}

func statementText(s ledger.Statement) string { return s.ID + ": " + s.Reason }

// newFolder makes an output folder, which must be new or empty.
func newFolder(c *cobra.Command, path string) error {
	if path == "" {
		return usagef(c, "no output folder: say --out DIR")
	}
	entries, err := os.ReadDir(path)
	switch {
	case err == nil && len(entries) > 0:
		return usagef(c, "output folder %s is not empty", path)
	case err != nil && !os.IsNotExist(err):
		return usagef(c, "output folder: %v", err)
	}
	if err := os.MkdirAll(path, 0o755); err != nil {
		return fmt.Errorf("making output folder: %w", err)
	}
	return nil
}

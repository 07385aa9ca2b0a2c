package main

import (
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"cotenant/internal/ledger"
)

// claimText is one line for people.
func claimText(c ledger.Claim) string {
	text := fmt.Sprintf("%s: %d", c.Statement, c.Value)
	if c.Unit != "" {
		text += " " + c.Unit
	}
	if c.Bound != "" {
		text += "  [" + c.Bound + "]"
	}
	return text
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

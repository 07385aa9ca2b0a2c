package main

import (
	"fmt"
	"text/tabwriter"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"
	"github.com/spf13/pflag"
)

// manifest is what `cotenant commands --json` prints: schema_version 1, operation "commands".
type manifest struct {
	SchemaVersion int               `json:"schema_version"`
	Operation     string            `json:"operation"`
	Version       string            `json:"version"`
	Commands      []manifestCommand `json:"commands"`
}

type manifestCommand struct {
	Name    string         `json:"name"` // words after the program's name
	Short   string         `json:"short"`
	Changes string         `json:"changes"`
	Exits   string         `json:"exits"`
	Flags   []manifestFlag `json:"flags"`
}

type manifestFlag struct {
	Name    string `json:"name"`
	Type    string `json:"type"`
	Default string `json:"default"`
	Usage   string `json:"usage"`
}

func newCommands(root *cobra.Command) *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use:   "commands",
		Short: "List every command, its flags and what it may change",
		Long:  "Prints the manifest, made from the command tree itself: every command with its flags and what it may change.",
		Args:  usageArgs(cobra.NoArgs),
		RunE: func(c *cobra.Command, _ []string) error {
			m := manifest{SchemaVersion: 1, Operation: "commands", Version: version(), Commands: listCommands(root)}
			if asJSON {
				return printJSON(c.OutOrStdout(), m)
			}
			w := tabwriter.NewWriter(c.OutOrStdout(), 0, 0, 2, ' ', 0)
			fmt.Fprintln(w, "COMMAND\tCHANGES\tDOES")
			for _, cmd := range m.Commands {
				fmt.Fprintf(w, "%s\t%s\t%s\n", cmd.Name, cmd.Changes, cmd.Short)
			}
			return w.Flush()
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return describe(c, "nothing", "0  printed")
}

// listCommands walks the tree in its own order and leaves out groups, which only hold other commands.
func listCommands(root *cobra.Command) []manifestCommand {
	list := []manifestCommand{}
	for _, c := range root.Commands() {
		if c.Name() == "help" || c.Name() == "completion" {
			continue // cobra's own: they print
		}
		if c.HasSubCommands() {
			for _, sub := range listCommands(c) {
				sub.Name = c.Name() + " " + sub.Name
				list = append(list, sub)
			}
			continue
		}
		m := manifestCommand{Name: c.Name(), Short: c.Short, Changes: c.Annotations[noteChanges], Exits: c.Annotations[noteExits], Flags: []manifestFlag{}}
		c.Flags().VisitAll(func(f *pflag.Flag) {
			if f.Name != "help" {
				m.Flags = append(m.Flags, manifestFlag{f.Name, f.Value.Type(), f.DefValue, f.Usage})
			}
		})
		list = append(list, m)
	}
	return list
}

func newMan(root *cobra.Command) *cobra.Command {
	var out string
	c := &cobra.Command{
		Use:   "man --out DIR",
		Short: "Write the manual pages",
		Long:  "Writes one manual page a command, made from the command tree, into a folder. Read one with man -l DIR/cotenant-soak.1.",
		Args:  usageArgs(cobra.NoArgs),
		RunE: func(c *cobra.Command, _ []string) error {
			if err := newFolder(c, out); err != nil {
				return err
			}
			header := &doc.GenManHeader{Title: "COTENANT", Section: "1", Source: "cotenant " + release, Manual: "Cotenant"}
			return doc.GenManTree(root, header, out)
		},
	}
	c.Flags().StringVar(&out, "out", "", "folder for the pages; must be empty or new")
	return describe(c, "files", "0  written", "1  could not be written")
}

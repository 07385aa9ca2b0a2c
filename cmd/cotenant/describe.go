package main

import (
	"encoding/json"
	"io"
	"runtime/debug"
	"strings"

	"github.com/spf13/cobra"
)

// release is the version of the next or present release.
const release = "0.1.0"

// version is the release with the revision that the binary was built from, where the build recorded one.
func version() string {
	rev, dirty := revision()
	if rev == "" {
		return release
	}
	v := release + "+" + rev[:min(12, len(rev))]
	if dirty {
		v += "-dirty"
	}
	return v
}

func revision() (rev string, dirty bool) {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "", false
	}
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			rev = s.Value
		case "vcs.modified":
			dirty = s.Value == "true"
		}
	}
	return rev, dirty
}

// Annotations of a command that the manifest and the help show.
const (
	noteChanges = "changes" // what it may change on the machine
	noteExits   = "exits"   // lines "code meaning"
)

// describe adds what every command must say: what it may change, and its exit codes.
func describe(c *cobra.Command, changes string, exits ...string) *cobra.Command {
	c.Annotations = map[string]string{noteChanges: changes, noteExits: strings.Join(exits, "\n")}
	var b strings.Builder
	b.WriteString(strings.TrimRight(c.Long, "\n"))
	b.WriteString("\n\nChanges: " + changes + "\n\nExit codes:\n")
	for _, e := range append(exits, "2  usage", "130  interrupted") {
		b.WriteString("  " + e + "\n")
	}
	c.Long = strings.TrimLeft(b.String(), "\n")
	c.DisableFlagsInUseLine = true
	return c
}

// printJSON writes v as indented JSON.
func printJSON(w io.Writer, v any) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	enc.SetEscapeHTML(false)
	return enc.Encode(v)
}

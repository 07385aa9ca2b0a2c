package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"cotenant/internal/recover"
)

type recoverFlags struct {
	pid     int
	out     string
	keyFile string
	canary  time.Duration
	asJSON  bool
}

func newRecover() *cobra.Command {
	var f recoverFlags
	c := &cobra.Command{
		Use:   "recover --pid N --out DIR",
		Short: "Save the executable of a stale server and say what to do about it",
		Long: "For a model server that lists models while its completions hang, and whose executable was unlinked, so that it couldn't be\n" +
			"started again once stopped. Saves the exact executable from /proc with its SHA-256 and build id, and a recovery.json: the\n" +
			"arguments (secrets masked), the names of environment variables, ports, models, whether a completion of one token is\n" +
			"answered, and the mounts where a copy couldn't run. Prints the steps to take. Stops nothing and starts nothing.",
		Args: usageArgs(cobra.NoArgs),
		RunE: func(c *cobra.Command, _ []string) error { return runRecover(c, &f) },
	}
	c.Flags().IntVar(&f.pid, "pid", 0, "the server's process")
	c.Flags().StringVar(&f.out, "out", "", "folder for the executable and recovery.json; must be empty or new")
	c.Flags().StringVar(&f.keyFile, "api-key-file", "", "file with the server's API key (default: COTENANT_API_KEY)")
	c.Flags().DurationVar(&f.canary, "canary-timeout", 10*time.Second, "how long a completion of one token may take before it counts as hanging; 0: ask the server nothing")
	c.Flags().BoolVar(&f.asJSON, "json", false, "print the report as JSON")
	return describe(c, "a file", "0  saved", "1  failed", "3  not a stale server", "4  not permitted")
}

func runRecover(c *cobra.Command, f *recoverFlags) error {
	switch {
	case f.pid < 1:
		return usagef(c, "no process: say --pid N")
	case f.out == "":
		return usagef(c, "no output folder: say --out DIR")
	case f.canary < 0:
		return usagef(c, "--canary-timeout %s: want 0 or more", f.canary)
	case runtime.GOOS != "linux":
		return &exit{exitUnchecked, fmt.Errorf("recover reads /proc, which %s doesn't have", runtime.GOOS), ""}
	}
	if entries, err := os.ReadDir(f.out); err == nil && len(entries) > 0 {
		return usagef(c, "output folder %s is not empty", f.out)
	}
	key, err := apiKey(f.keyFile)
	if err != nil {
		return usageError(c, err)
	}
	out, err := filepath.Abs(f.out)
	if err != nil {
		return fmt.Errorf("finding the output folder: %w", err)
	}
	r, err := recover.Diagnose(c.Context(), recover.Options{PID: f.pid, Out: out, APIKey: key, Canary: f.canary, NoAsk: f.canary == 0,
		Started: func(what string) { fmt.Fprintln(c.ErrOrStderr(), what) }})
	if err != nil {
		return recoverFailed(c, err)
	}
	if r.Stale {
		if err := newFolder(c, f.out); err != nil {
			return err
		}
		if err := recover.Save(r, f.out); err != nil {
			return recoverFailed(c, err)
		}
	}
	if f.asJSON {
		err = printJSON(c.OutOrStdout(), r)
	} else {
		err = printRecovery(c.OutOrStdout(), r, f.out)
	}
	if err == nil && !r.Stale {
		return &exit{exitNo, fmt.Errorf("process %d is not a stale server: %s", f.pid, r.Diagnosis), ""}
	}
	return err
}

// recoverFailed gives an error of package recover its exit code.
func recoverFailed(c *cobra.Command, err error) error {
	switch {
	case wasInterrupted(c.Context()):
		return &exit{exitInterrupted, errors.New("interrupted"), ""}
	case errors.Is(err, recover.ErrNotPermitted):
		return &exit{exitUnchecked, err, "run it as the process's owner or as root"}
	case errors.Is(err, recover.ErrNoProcess):
		return &exit{exitNo, err, ""}
	}
	return err
}

func printRecovery(w io.Writer, r *recover.Report, out string) error {
	verdict := "STALE"
	if !r.Stale {
		verdict = "NOT STALE"
	}
	var b strings.Builder
	line := func(name, format string, args ...any) {
		fmt.Fprintf(&b, "%-13s%s\n", name, fmt.Sprintf(format, args...))
	}
	fmt.Fprintf(&b, "%s  process %d (state %s): %s\n", verdict, r.PID, r.Process.State, r.Diagnosis)
	e := &r.Executable
	line("executable", "%s, %.1f MiB", e.Path, float64(e.Bytes)/(1<<20))
	if e.SavedAs != "" {
		line("saved as", "%s", filepath.Join(out, e.SavedAs))
		line("SHA-256", "%s", e.SHA256)
		line("build id", "GNU %s, Go %s", orNone(e.GNUBuildID), orNone(e.GoBuildID))
	}
	line("arguments", "%s", strings.Join(r.Process.Argv, " "))
	line("started in", "%s", orNone(r.Process.WorkingFolder))
	names := strings.Join(r.Process.Environment, ", ")
	if r.Process.EnvironmentReason != "" {
		names = r.Process.EnvironmentReason
	}
	line("environment", "%s (names alone)", orNone(names))
	for _, l := range r.Listeners {
		line("port", "%s", listenerText(&l))
	}
	if r.ListenersReason != "" {
		line("ports", "%s", r.ListenersReason)
	}
	for _, m := range r.DeletedMappings {
		line("unlinked too", "%s", m)
	}
	for _, m := range r.NoexecMounts {
		line("noexec", "%s (%s)", m.Path, m.Type)
	}
	b.WriteString("\nSteps, none of which was taken:\n")
	for i, s := range r.Steps {
		fmt.Fprintf(&b, "%2d. %s\n", i+1, s)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func orNone(s string) string {
	if s == "" {
		return "none"
	}
	return s
}

// listenerText says in a line what a port answered.
func listenerText(l *recover.Listener) string {
	text := fmt.Sprintf("%s, port %d: ", l.Address, l.Port)
	switch {
	case l.Reason != "":
		return text + "not asked, " + l.Reason
	case l.Listing.State == "":
		return text + "not asked"
	case len(l.Models) == 0:
		return text + "models " + answerText(&l.Listing) + ", none listed"
	}
	return text + "models " + strings.Join(l.Models, ", ") + "; a completion of one token " + answerText(&l.Completion)
}

func answerText(a *recover.Answer) string {
	text := a.State
	if a.HTTPStatus != 0 && a.HTTPStatus != 200 {
		text += fmt.Sprintf(" (HTTP %d)", a.HTTPStatus)
	}
	if a.Detail != "" && a.State != recover.Refuses {
		text += ", " + a.Detail
	}
	return text + fmt.Sprintf(", after %.3f s", float64(a.WallUS)/1e6)
}

// Cotenant is one program for people who put several language-model workloads on one NVIDIA GPU: it serves models, soaks
// endpoints, and verifies the evidence.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"cotenant/internal/bounded"
	"cotenant/internal/container"
)

func main() {
	container.ArmDeadline() // where this is a container's first process
	// In a child process of inspect or probe this runs its task and exits.
	bounded.ServeChild(childTasks())
	os.Exit(run(os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
}

// run is the program, apart from the process that it runs in.
func run(args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	ctx, stop := interruptible(stderr)
	defer stop()
	root := newRoot()
	root.SetArgs(args)
	root.SetIn(stdin)
	root.SetOut(stdout)
	root.SetErr(stderr)
	err := root.ExecuteContext(ctx)
	if err == nil {
		return exitYes
	}
	code := exitCode(err)
	if text := err.Error(); text != "" {
		fmt.Fprintf(stderr, "cotenant: %s\n", text)
	}
	if hint := hintOf(err); hint != "" {
		fmt.Fprintf(stderr, "hint: %s\n", hint)
	}
	return code
}

// interruptible returns a context that the first SIGINT or SIGTERM cancels; a second SIGINT ends the process at once.
func interruptible(stderr io.Writer) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(context.Background())
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	go func() {
		s, ok := <-signals
		if !ok {
			return
		}
		cancel(&interrupted{s})
		for s := range signals {
			if s == os.Interrupt {
				fmt.Fprintln(stderr, "cotenant: stopped at once")
				os.Exit(exitInterrupted)
			}
		}
	}()
	return ctx, func() {
		signal.Stop(signals)
		close(signals)
		cancel(nil)
	}
}

// interrupted is the cause of a context that a signal cancelled.
type interrupted struct{ signal os.Signal }

func (i *interrupted) Error() string { return i.signal.String() }

// wasInterrupted reports whether a signal cancelled ctx.
func wasInterrupted(ctx context.Context) bool {
	var i *interrupted
	return errors.As(context.Cause(ctx), &i)
}

func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:   "cotenant",
		Short: "Serve language models, soak endpoints and verify the evidence",
		Long: "Cotenant is for people who put several language-model workloads on one NVIDIA GPU. It serves language models, soaks any\n" +
			"OpenAI-compatible endpoint with up to a million logical contexts, and verifies such evidence offline.",
		Version:       version(),
		SilenceErrors: true,
		SilenceUsage:  true,
		Args:          usageArgs(cobra.NoArgs),
		RunE:          func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	root.SetVersionTemplate("{{.Name}} {{.Version}}\n")
	root.SetFlagErrorFunc(func(c *cobra.Command, err error) error { return usageError(c, err) })
	for _, c := range []*cobra.Command{newCompare(), newDemo(), newInspect(), newInterfere(), newProbe(), newPublish(), newRecover(), newReport(), newServe(), newSoak(), newVerify(), newCommands(root), newMan(root)} {
		root.AddCommand(c)
	}
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd()
	return root
}

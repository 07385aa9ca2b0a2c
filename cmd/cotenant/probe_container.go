package main

import (
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"cotenant/internal/container"
	"cotenant/internal/probe"
	"cotenant/internal/probe/evidence"
)

// containerImages are what --container may run; nil for the reviewed table. Tests have images of their own.
var containerImages []container.Image

// containerFlags are those of the probes that can run in a container.
type containerFlags struct {
	container   bool
	composeFile string
}

func (f *containerFlags) add(c *cobra.Command) {
	c.Flags().BoolVar(&f.container, "container", false, "in a container: audit a Compose service, run this program in exactly that, prove it gone")
	c.Flags().StringVar(&f.composeFile, "compose-file", "", "Compose file with a service probe, instead of the embedded one; with --container")
}

func (f *containerFlags) check(c *cobra.Command) error {
	if f.composeFile != "" && !f.container {
		return usagef(c, "--compose-file is for --container")
	}
	return nil
}

// inContainer runs a probe in a container; create is nil for the prerequisite inspection.
func (f *probeFlags) inContainer(c *cobra.Command, file string, create *probe.CreateOptions) error {
	out, err := probe.InContainer(c.Context(), probe.ContainerOptions{Common: f.common, Create: create, ComposeFile: file, Images: containerImages,
		Progress: func(text string) { fmt.Fprintln(c.ErrOrStderr(), text) }})
	var bad *probe.ComposeError
	if errors.As(err, &bad) {
		return &exit{exitUsage, err, "docs/formats/container.md says what a Compose file may hold"}
	}
	return f.finish(c, out, err)
}

// printService prints what would be sent to the engine, where a plan is a container's.
func printService(w io.Writer, p evidence.Plan) {
	if q, ok := p.Request.(evidence.ContainerRequest); ok {
		_ = q.Container.WritePreview(w)
	}
}

func printContainer(w io.Writer, r *evidence.ContainerResult) {
	fmt.Fprintf(w, "Container of %s: %s, exit code %d after %d ms\n", r.Image.Reference(), r.Container.Ended, r.Container.ExitCode, r.Container.WallMS)
	if r.Create != nil {
		fmt.Fprint(w, "In the container: ")
		printCreate(w, r.Create)
		fmt.Fprintln(w, "From outside:")
	}
	printChecks(w, r.Checks, nil)
}

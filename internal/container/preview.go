package container

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"
)

// WritePreview prints, for people, what would run, down to the requests, or why it wouldn't.
func (p *Plan) WritePreview(w io.Writer) error {
	file := p.File
	if file == "" {
		file = "the embedded Compose file"
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintf(t, "Container\t%s, service %s of project %s\n", p.Container, p.Service, p.Project)
	fmt.Fprintf(t, "Compose file\t%s, SHA-256 %s\n", file, p.SHA256)
	if p.Image.Digest != "" {
		fmt.Fprintf(t, "Image\t%s %s\n", p.Image.Reference(), p.Image.Platform)
	}
	if p.Image.Why != "" {
		fmt.Fprintf(t, "\t%s\n", p.Image.Why)
	}
	if p.Binary.SHA256 != "" {
		fmt.Fprintf(t, "Program\t%s, SHA-256 %s\n", p.Binary.Path, p.Binary.SHA256)
	}
	fmt.Fprintf(t, "Bounds\tends by itself after %v, killed after %v; stdout %d bytes, stderr %d bytes\n",
		time.Duration(p.ContainerDeadlineMS)*time.Millisecond, time.Duration(p.KillDeadlineMS)*time.Millisecond, p.MaxStdoutBytes, p.MaxStderrBytes)
	if err := t.Flush(); err != nil {
		return err
	}
	fmt.Fprintf(w, "Service\n%s", indent(p.Rendered))
	if len(p.Refusals) > 0 {
		fmt.Fprintln(w, "Refused")
		for _, r := range p.Refusals {
			fmt.Fprintf(w, "  %s\n    %s\n", r.Error(), r.Why)
		}
		return nil
	}
	fmt.Fprintln(w, "Requests to the engine that change something")
	for _, r := range p.Requests {
		fmt.Fprintf(w, "  %s %s (%s)\n", r.Method, r.Path, r.When)
		if r.Body == nil {
			continue
		}
		b, err := json.MarshalIndent(r.Body, "", "  ")
		if err != nil {
			return fmt.Errorf("printing a request: %w", err)
		}
		fmt.Fprint(w, indent(indent(string(b))))
	}
	return nil
}

func indent(text string) string {
	return "  " + strings.ReplaceAll(strings.TrimRight(text, "\n"), "\n", "\n  ") + "\n"
}

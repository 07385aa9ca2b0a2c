package main

import (
	"fmt"
	"io"

	"cotenant/internal/interfere/record"
	"cotenant/internal/probe/evidence"
)

// probeReport is the verdict on a probe's evidence folder.
type probeReport struct{ *evidence.Report }

func (r probeReport) problem() string {
	return fmt.Sprintf("%d of %d rules failed", len(r.Failed()), len(r.Results))
}

func (r probeReport) print(w io.Writer, path string) {
	verdict := "HOLDS"
	if !r.Holds {
		verdict = "REFUSED"
	}
	fmt.Fprintf(w, "%s  %s: %s, outcome %s, run %s\n", verdict, path, r.Probe, r.Outcome, r.RunID)
	for _, x := range r.Failed() {
		fmt.Fprintf(w, "  FAILED %s  %s\n         %s\n", x.Rule, x.Title, x.Detail)
	}
	printStatements(w, r.Establishes, r.DoesNot)
}

// interfereReport is the verdict on an interference run.
type interfereReport struct{ *record.Report }

func (r interfereReport) problem() string {
	return fmt.Sprintf("%d of %d rules failed", len(r.Failed()), len(r.Results))
}

func (r interfereReport) print(w io.Writer, path string) {
	verdict := "HOLDS"
	if !r.Holds {
		verdict = "REFUSED"
	}
	fmt.Fprintf(w, "%s  %s: interference, %s, run %s\n", verdict, path, r.State, r.RunID)
	for _, x := range r.Failed() {
		fmt.Fprintf(w, "  FAILED %s  %s\n         %s\n", x.Rule, x.Title, x.Detail)
	}
	printStatements(w, r.Establishes, r.DoesNot)
}

// printStatements prints what a verdict establishes and what it doesn't.
func printStatements(w io.Writer, establishes, doesNot []string) {
	for _, part := range []struct {
		title string
		list  []string
	}{{"Establishes", establishes}, {"Does not establish", doesNot}} {
		if len(part.list) == 0 {
			continue
		}
		fmt.Fprintln(w, part.title)
		for _, text := range part.list {
			fmt.Fprintf(w, "  %s\n", text)
		}
	}
	fmt.Fprintln(w)
}

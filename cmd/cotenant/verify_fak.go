package main

import (
	"fmt"
	"io"
	"strings"

	"cotenant/internal/verify/fak"
)

// fakReport is the report on a ledger of the predecessor's.
type fakReport struct{ *fak.Report }

func (r fakReport) problem() string {
	return fmt.Sprintf("%d of its own rules and of the checks beside them failed", len(r.Failed()))
}

func (r fakReport) print(w io.Writer, path string) {
	verdict := "ADMITTED"
	if !r.Holds {
		verdict = "REFUSED"
	}
	fmt.Fprintf(w, "%s  %s: %s (rung %s), %s\n", verdict, path, r.Schema, r.Rung, r.About)
	fmt.Fprintf(w, "grade %s: by its authors' own rules %s; %s\n", r.Grade, r.Compat, tally(r.Rules))
	if len(r.Checks) > 0 {
		fmt.Fprintf(w, "what it allows to check beyond them: %s\n", tally(r.Checks))
	}
	for _, res := range r.Failed() {
		fmt.Fprintf(w, "  FAILED %s  %s\n         %s\n", res.ID, res.Title, res.Detail)
	}
	fmt.Fprintf(w, "strict grade: %s; nothing is established\n", r.Strict)
	for _, g := range r.Gaps {
		fmt.Fprintf(w, "  %s: %s\n", g.Name, g.Detail)
	}
	fmt.Fprintln(w)
}

// tally counts results by what they are.
func tally(list []fak.Result) string {
	counts := map[string]int{}
	for _, res := range list {
		counts[res.Result]++
	}
	var parts []string
	for _, p := range []struct{ result, text string }{{fak.Pass, "hold"}, {fak.Fail, "failed"}, {fak.NotApplicable, "do not apply"}} {
		if p.result != fak.NotApplicable || counts[p.result] > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", counts[p.result], p.text))
		}
	}
	return strings.Join(parts, ", ")
}

// Package fak reads the ledgers of Cotenant's predecessor, the micro-context programme of fak: JSON documents whose member
// "schema" begins with "fak-microcontext-". It restates the rules by which their own verifiers admitted each kind (grade
// fak-compat), adds what a document lets anybody check beyond them, and sets our own grade beside it, with each thing that is
// missing by name. A document of theirs holds sums without rows, so that our grade is never better than "refuse".
//
// Like their decoders it accepts unknown members and reads an absent number as 0; unlike theirs it says so.
package fak

import (
	"fmt"
	"slices"
	"strings"
	"sync"
)

// Grade is what a report's verdict is worth: the predecessor's own rules, no more.
const Grade = "fak-compat"

// Verdicts.
const (
	Admit  = "admit"
	Refuse = "refuse"
)

// Outcomes of a rule or a check.
const (
	Pass          = "pass"
	Fail          = "fail"
	NotApplicable = "not_applicable"
)

// Result is what a rule or a check says of a document.
type Result struct {
	ID     string `json:"id"`
	Title  string `json:"title"`
	Result string `json:"result"` // Pass, Fail or NotApplicable
	Detail string `json:"detail"` // what failed or why it doesn't apply; empty for a pass
}

// Gap is something that our own rules demand and the document doesn't have.
type Gap struct {
	Name   string `json:"name"`
	Detail string `json:"detail"`
}

// Report is the verdict on one document.
type Report struct {
	SchemaVersion int64    `json:"schema_version"`
	Operation     string   `json:"operation"` // "verify"
	Schema        string   `json:"schema"`    // of the document
	Rung          string   `json:"rung"`      // what its authors called this kind, for instance "S5"
	About         string   `json:"about"`     // the document's kind in a sentence
	Grade         string   `json:"grade"`     // Grade
	Compat        string   `json:"compat"`    // Admit or Refuse: by their own rules
	Rules         []Result `json:"rules"`     // theirs
	Checks        []Result `json:"checks"`    // what the document allows to check beyond them
	Strict        string   `json:"strict"`    // Admit or Refuse: by ours
	Gaps          []Gap    `json:"gaps"`      // why Strict refuses
	Holds         bool     `json:"holds"`     // Compat admits and no check is contradicted
}

// Failed lists the rules and checks that failed.
func (r *Report) Failed() []Result {
	var out []Result
	for _, res := range slices.Concat(r.Rules, r.Checks) {
		if res.Result == Fail {
			out = append(out, res)
		}
	}
	return out
}

// ExitCode is 0 where the document's own rules admit it and nothing in it contradicts itself, else 3. Our grade stands beside it
// and doesn't change it: it would refuse every document of this kind.
func (r *Report) ExitCode() int {
	if r.Holds {
		return 0
	}
	return 3
}

// kind is one schema of theirs.
type kind struct {
	schema, rung, about string
	members             map[string]memberType
	rules               []rule
	checks              []check
	gaps                func(d doc) []Gap
	aliases             map[string]string // a member's present name by the name that published documents have
}

// rule restates one of their conditions. It returns what breaks it, empty if nothing does.
type rule struct {
	id, title string
	from      int64 // applies from this many logical_shards
	broken    func(d doc) string
}

// check is a condition that they didn't ask. It returns what contradicts it, or why it can't be asked.
type check struct {
	id, title string
	ask       func(d doc) (contradiction, notApplicable string)
}

var kinds = sync.OnceValue(func() []kind {
	return []kind{spine(), apiOnly(), prefixAB(), kernelPrefixAB(), hibernation(), descriptorBenchmark(), compatibility(), effects(),
		multiTurn(), batchExecution(), fairness(), qualityLedger(), healthScorecard()}
})

// Schemas lists the schemas that are read.
func Schemas() []string {
	var out []string
	for _, k := range kinds() {
		if !slices.Contains(out, k.schema) {
			out = append(out, k.schema)
		}
	}
	return out
}

// Is reports whether data looks like a document of the predecessor's: a JSON object with a schema of theirs. It is cheap and
// says nothing about whether Judge can read it.
func Is(data []byte) bool {
	d, _, err := decode(data)
	return err == nil && strings.HasPrefix(d.text("schema"), "fak-")
}

// Judge reads a document and judges it. The error says that it isn't JSON, or of a schema that isn't known.
func Judge(data []byte) (*Report, error) {
	d, duplicates, err := decode(data)
	if err != nil {
		return nil, err
	}
	k, err := kindOf(d)
	if err != nil {
		return nil, err
	}
	renamed := d.rename(k.aliases)
	r := &Report{SchemaVersion: 1, Operation: "verify", Schema: k.schema, Rung: k.rung, About: k.about, Grade: Grade, Compat: Admit, Strict: Admit,
		Checks: []Result{}, Gaps: []Gap{}, Holds: true}
	readable := d.typeErrors(k.members)
	r.Rules = append(r.Rules, result("F-TYPE-01", "members have the types that their decoder reads", readable, ""))
	for _, rule := range k.rules {
		switch {
		case readable != "":
			r.Rules = append(r.Rules, result(rule.id, rule.title, "", "not judged: a member has another type"))
		case d.integer("logical_shards") < rule.from:
			r.Rules = append(r.Rules, result(rule.id, rule.title, "", fmt.Sprintf("applies from %d logical shards", rule.from)))
		default:
			r.Rules = append(r.Rules, result(rule.id, rule.title, rule.broken(d), ""))
		}
	}
	for _, res := range r.Rules {
		if res.Result == Fail {
			r.Compat, r.Holds = Refuse, false
		}
	}
	if readable == "" {
		for _, c := range k.checks {
			contradiction, na := c.ask(d)
			r.Checks = append(r.Checks, result(c.id, c.title, contradiction, na))
			r.Holds = r.Holds && contradiction == ""
		}
		r.Gaps = append(k.gaps(d), formGaps(d, &k, duplicates, renamed)...)
	}
	if len(r.Gaps) > 0 || r.Compat == Refuse {
		r.Strict = Refuse
	}
	return r, nil
}

// kindOf finds a document's schema. A spine ledger with an adapter is the rung over a provider's API, which has rules of its own.
func kindOf(d doc) (kind, error) {
	name := d.text("schema")
	for _, k := range kinds() {
		if k.schema == name && (k.rung == rungAPI) == (name == spineSchema && d["adapter"] != nil) {
			return k, nil
		}
	}
	return kind{}, fmt.Errorf("schema %q isn't one that is read: %s", clip(name, 80), strings.Join(Schemas(), ", "))
}

func result(id, title, failure, notApplicable string) Result {
	switch {
	case failure != "":
		return Result{id, title, Fail, failure}
	case notApplicable != "":
		return Result{id, title, NotApplicable, notApplicable}
	}
	return Result{id, title, Pass, ""}
}

// formGaps names what is missing in a document's form.
func formGaps(d doc, k *kind, duplicates, renamed []string) []Gap {
	var out []Gap
	add := func(name, format string, args ...any) { out = append(out, Gap{name, fmt.Sprintf(format, args...)}) }
	var unknown, absent []string
	for name := range d {
		if _, ok := k.members[name]; !ok {
			unknown = append(unknown, name)
		}
	}
	for name, t := range k.members {
		if d[name] == nil && t.needed {
			absent = append(absent, name)
		}
	}
	slices.Sort(unknown)
	slices.Sort(absent)
	if len(unknown) > 0 {
		add("unknown-members", "%d members are read by no decoder of theirs and checked by no rule: %s", len(unknown), list(unknown))
	}
	if len(absent) > 0 {
		add("absent-reads-as-zero", "%d members that a rule asks for aren't there, which their decoder reads as 0 or empty: %s", len(absent), list(absent))
	}
	if len(duplicates) > 0 {
		add("duplicate-members", "%d members come twice, of which their decoder takes the last: %s", len(duplicates), list(duplicates))
	}
	if len(renamed) > 0 {
		add("renamed-members", "%d members have names that their later verifier doesn't read, so that it would refuse the document: %s", len(renamed), list(renamed))
	}
	return out
}

// list joins names, some of them where there are many.
func list(names []string) string {
	const most = 20
	text := strings.Join(names[:min(len(names), most)], ", ")
	if len(names) > most {
		text += ", …"
	}
	return clip(text, 400)
}

// Package verify judges a run folder from its files alone, offline. It computes the ledger again by ledger.Summarize and
// what matters most of it a second time by its own means, and holds both, and the rows themselves, against a table of
// rules. A report says what the ledger establishes, what it doesn't, and why.
package verify

import (
	"crypto/ed25519"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"cotenant/internal/ledger"
	"cotenant/internal/loadgen"
)

// RulesVersion changes with any rule. A config pre-registers it.
const RulesVersion = 1

// Grades of a report: how much of the ledger was computed again.
const (
	GradeRecomputed = "recomputed" // every aggregate from its rows
	GradeSampled    = "sampled"    // the ledger's form, what rests on samples and events, and a proven sample of its rows
	GradeIntegrity  = "integrity"  // the ledger alone: its form, and its numbers against each other
)

// Options of a verification.
type Options struct {
	Keys    []ed25519.PublicKey // one of which must have signed the run; empty: signatures aren't asked for
	Prompts *loadgen.Prompts    // the file that the run's prompts came from; nil: they aren't made again
}

// Outcomes of a rule.
const (
	Pass          = "pass"
	Fail          = "fail"
	NotApplicable = "not_applicable"
)

// Result is what a rule says of a run.
type Result struct {
	Rule   string `json:"rule"`
	Title  string `json:"title"`
	Result string `json:"result"` // Pass, Fail or NotApplicable
	Detail string `json:"detail"` // what failed or why it doesn't apply, with figures; empty for a pass
}

// Report is the verdict on a run folder.
type Report struct {
	SchemaVersion int64              `json:"schema_version"`
	Operation     string             `json:"operation"` // "verify"
	RunID         string             `json:"run_id"`
	Contract      string             `json:"contract"`
	Contexts      int64              `json:"contexts"`
	RulesVersion  int64              `json:"rules_version"`
	Grade         string             `json:"grade"`
	Holds         bool               `json:"holds"`     // every rule that applies holds
	SignedBy      string             `json:"signed_by"` // key id, empty if no signature was checked
	Results       []Result           `json:"results"`
	Establishes   []ledger.Claim     `json:"establishes"` // empty unless Holds
	States        []ledger.Claim     `json:"states"`      // what a ledger without its rows claims, none of it established
	DoesNot       []ledger.Statement `json:"does_not"`
	NotExposed    []ledger.Statement `json:"not_exposed"`
}

// Failed lists the rules that failed.
func (r *Report) Failed() []Result {
	var out []Result
	for _, res := range r.Results {
		if res.Result == Fail {
			out = append(out, res)
		}
	}
	return out
}

// ExitCode is 0 where every rule holds and 3 where one failed. A folder that can't be read as a ledger has no report; its
// exit code is 4.
func (r *Report) ExitCode() int {
	if r.Holds {
		return 0
	}
	return 3
}

// ErrUnreadable says that a path can't be read as a run's ledger, which is another answer than "a rule failed".
var ErrUnreadable = errors.New("can't be read as a run's ledger")

// Dir judges the run folder dir. An error wraps ErrUnreadable where config.json or ledger.json isn't there or isn't one
// that this program reads.
func Dir(dir string, opts Options) (*Report, error) {
	e, err := load(dir, opts)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrUnreadable, err)
	}
	return e.report(), nil
}

// report judges what was read.
func (e *evidence) report() *Report {
	if e.folder.Sampled() {
		return e.sampledReport()
	}
	r := &Report{SchemaVersion: 1, Operation: "verify", RunID: e.config.RunID, Contract: e.config.Contract, Contexts: e.config.Contexts,
		RulesVersion: RulesVersion, Grade: GradeRecomputed, Holds: true, Establishes: []ledger.Claim{}, States: []ledger.Claim{}, NotExposed: e.claimed.NotExposed}
	r.judge(e, Rules())
	r.SignedBy = e.signedBy
	if r.Holds {
		r.Establishes, r.DoesNot = e.claimed.Claims, e.claimed.NonClaims
		return r
	}
	r.refuse()
	return r
}

// judge applies rules in their order.
func (r *Report) judge(e *evidence, rules []Rule) {
	verdicts := map[string]string{}
	for _, rule := range rules {
		res := e.judge(&rule, verdicts)
		verdicts[rule.ID] = res.Result
		r.Holds = r.Holds && res.Result != Fail
		r.Results = append(r.Results, res)
	}
}

// refuse says for each failed rule that nothing is established.
func (r *Report) refuse() {
	for _, f := range r.Failed() {
		r.DoesNot = append(r.DoesNot, ledger.Statement{ID: f.Rule, Reason: "nothing is established while this fails: " + f.Detail})
	}
}

// judge applies a rule whose predecessors have been judged.
func (e *evidence) judge(rule *Rule, verdicts map[string]string) Result {
	res := Result{Rule: rule.ID, Title: rule.Title, Result: NotApplicable}
	if e.config.Contexts < rule.From {
		res.Detail = fmt.Sprintf("applies from %d contexts", rule.From)
		return res
	}
	if len(rule.Contracts) > 0 && !slices.Contains(rule.Contracts, e.config.Contract) {
		res.Detail = "applies to the contract " + strings.Join(rule.Contracts, ", ")
		return res
	}
	for _, id := range rule.After {
		if verdicts[id] == Fail {
			res.Detail = "not judged: it rests on " + id + ", which failed"
			return res
		}
	}
	switch failure, reason := rule.check(e); {
	case failure != "":
		res.Result, res.Detail = Fail, failure
	case reason != "":
		res.Detail = reason
	default:
		res.Result = Pass
	}
	return res
}

// evidence is a run folder, read once.
type evidence struct {
	opts   Options
	folder *ledger.Folder
	config *ledger.Config

	ledgerBytes []byte
	claimed     ledger.Ledger // as it stands in ledger.json
	computed    ledger.Ledger // by ledger.Summarize
	actual      []ledger.File
	filesErr    error
	readErr     error // of a line, or of summing up: computed and facts mean nothing
	facts       *facts
	sample      *sampleOfRows // of a published form that has some rows only
	signedBy    string
}

func load(dir string, opts Options) (*evidence, error) {
	if info, err := os.Stat(dir); err != nil {
		return nil, err
	} else if !info.IsDir() {
		return nil, errors.New("it isn't a folder: name the run's folder, which holds its rows too")
	}
	e := &evidence{opts: opts}
	var err error
	if e.folder, err = ledger.OpenFolder(dir); err != nil {
		return nil, err
	}
	e.config = &e.folder.Config
	if opts.Prompts != nil && !fromPrompts(e.config) {
		return nil, fmt.Errorf("a file of prompts was given, and the run's workload is %q: leave --prompts out", e.config.Workload.Name)
	}
	if e.ledgerBytes, err = e.folder.ReadFile(ledger.LedgerFile); errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("%w: the run hasn't ended, or was killed: cotenant soak --resume goes on with it", err)
	} else if err != nil {
		return nil, err
	}
	if e.claimed, err = ledger.ReadLedger(e.ledgerBytes); err != nil {
		return nil, fmt.Errorf("reading %s: %w", ledger.LedgerFile, err)
	}
	e.actual, e.filesErr = e.folder.Files()
	if e.filesErr != nil {
		e.readErr = e.filesErr
		return e, nil
	}
	if e.folder.Sampled() {
		e.readErr = e.computeSample()
		return e, nil
	}
	e.readErr = e.compute()
	return e, nil
}

// compute sums the run up twice. Rows are read once, for both computations: there may be a million.
func (e *evidence) compute() (err error) {
	if e.facts, err = gather(e.folder, e.claimed.FilesRoot, e.opts.Prompts); err != nil {
		return err
	}
	e.computed, err = ledger.Summarize(ledger.Run{Config: e.folder.Config, ConfigSHA256: e.folder.ConfigSHA256, Files: e.actual,
		Rows: e.rows(), Resources: e.folder.Resources(), Events: e.folder.Events()})
	return err
}

// rows yields the rows and gathers facts of them.
func (e *evidence) rows() iter.Seq2[ledger.Row, error] {
	return func(yield func(ledger.Row, error) bool) {
		var row ledger.Row
		for r, err := range e.folder.Rows() {
			if err == nil {
				row = r
				e.facts.row(&row)
			}
			if !yield(r, err) {
				return
			}
		}
	}
}

// hasEnvelope reports whether the run is signed.
func (e *evidence) hasEnvelope() bool {
	_, err := os.Stat(filepath.Join(e.folder.Dir, ledger.EnvelopeFile))
	return !errors.Is(err, fs.ErrNotExist)
}

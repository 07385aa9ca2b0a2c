package report

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"cotenant/internal/ledger"
	"cotenant/internal/verify"
)

// run is a run folder that verifies, or falls short of its contract alone, with its rows as charts need them.
type run struct {
	ledger  ledger.Ledger
	doc     *document // ledger.json
	verdict *document
	trace   *trace
}

// verdict is what verification came to, as a page embeds it.
type verdict struct {
	RulesVersion int64     `json:"rules_version"`
	Grade        string    `json:"grade"`
	Hold         int64     `json:"hold"`
	Failed       int64     `json:"failed"`
	NotApply     int64     `json:"not_applicable"`
	Failures     []failure `json:"failures"`
	Rules        []ruled   `json:"rules"` // all, in their order
}

type ruled struct {
	Rule   string `json:"rule"`
	Title  string `json:"title"`
	Result string `json:"result"`
}

// add files one rule's result.
func (v *verdict) add(rule, title, result, detail string) {
	v.Rules = append(v.Rules, ruled{rule, title, result})
	switch result {
	case verify.Pass:
		v.Hold++
	case verify.Fail:
		v.Failed++
		v.Failures = append(v.Failures, failure{rule, title, detail})
	default:
		v.NotApply++
	}
}

func (v *verdict) document() (*document, error) {
	data, err := json.Marshal(v)
	if err != nil {
		return nil, err
	}
	return newDocument("v", data)
}

type failure struct {
	Rule   string `json:"rule"`
	Title  string `json:"title"`
	Detail string `json:"detail"`
}

// ofTheRun are the rules by which a run can fall short while its ledger is true: such a run gets a page, which says so and establishes
// nothing. A run that fails any other rule gets none.
var ofTheRun = []string{"R-RUNG-01", "R-STAT-01", "R-CTX-01", "R-FAIL-01", "R-USAGE-01", "R-RES-01", "R-RES-02", "R-RES-03", "R-RES-04", "R-RES-05",
	"R-TERM-01", "R-CAN-01", "R-FAULT-01", "R-FAULT-02", "R-QUIET-01", "R-REC-01", "R-ORA-02", "R-MEM-01", "R-CONN-01"}

// fallsShort reports whether all that failed is of the run, and its ledger is not admitted by its own word.
func fallsShort(judged *verify.Report, l *ledger.Ledger) bool {
	for _, f := range judged.Failed() {
		if !slices.Contains(ofTheRun, f.Rule) {
			return false
		}
	}
	return !l.Admission.Admitted && len(l.Claims) == 0
}

// openRun verifies dir, and only then reads it for its page.
func openRun(dir, id string) (*run, error) {
	judged, err := verify.Dir(dir, verify.Options{})
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrUnreadable, err)
	}
	folder, err := ledger.OpenFolder(dir)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrUnreadable, err)
	}
	if folder.Sampled() {
		return nil, fmt.Errorf("%w: it has a sample of a run's rows, which charts can't be drawn of", ErrUnreadable)
	}
	data, err := folder.ReadFile(ledger.LedgerFile)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrUnreadable, err)
	}
	r := &run{}
	if r.ledger, err = ledger.ReadLedger(data); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrUnreadable, err)
	}
	if !judged.Holds {
		if !fallsShort(judged, &r.ledger) {
			return nil, refused(judged)
		}
		// R-STAT-01 and R-CTX-01 speak of the ledger too: whole, it has to be what the files make.
		if err := isComputed(folder, data); err != nil {
			return nil, fmt.Errorf("%w: %w", refused(judged), err)
		}
	}
	if r.doc, err = newDocument(id, data); err != nil {
		return nil, err
	}
	if r.trace, err = readTrace(folder, &r.ledger); err != nil {
		return nil, changed(err)
	}
	// What was verified, what the page quotes and what the charts were drawn from are one folder, unless it changed meanwhile.
	now, err := folder.Files()
	if err != nil {
		return nil, changed(err)
	}
	if !slices.Equal(now, r.ledger.Files) || judged.RunID != r.ledger.RunID {
		return nil, changed(errors.New("its files aren't those that were verified"))
	}
	if r.verdict, err = verdictOf(judged); err != nil {
		return nil, err
	}
	return r, nil
}

// isComputed reports where ledger.json isn't byte for byte what the folder's other files make.
func isComputed(folder *ledger.Folder, data []byte) error {
	l, err := folder.Summarize()
	if err != nil {
		return err
	}
	computed, err := ledger.Marshal(l)
	if err != nil {
		return err
	}
	if !bytes.Equal(computed, data) {
		return errors.New("the ledger isn't what the files make")
	}
	return nil
}

func changed(err error) error { return fmt.Errorf("the folder changed while it was read: %w", err) }

func verdictOf(judged *verify.Report) (*document, error) {
	v := verdict{RulesVersion: judged.RulesVersion, Grade: judged.Grade, Failures: []failure{}, Rules: []ruled{}}
	for _, x := range judged.Results {
		v.add(x.Rule, x.Title, x.Result, x.Detail)
	}
	return v.document()
}

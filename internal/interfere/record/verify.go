package record

import (
	"bytes"
	"fmt"
	"strings"
)

// Results of a rule.
const (
	Pass          = "pass"
	Fail          = "fail"
	NotApplicable = "not_applicable"
)

// RuleResult is what a rule says of a folder.
type RuleResult struct {
	Rule   string `json:"rule"`
	Title  string `json:"title"`
	Result string `json:"result"`
	Detail string `json:"detail"`
}

// Report is the verdict on a folder.
type Report struct {
	SchemaVersion int    `json:"schema_version"`
	Operation     string `json:"operation"` // "verify"
	Evidence      string `json:"evidence"`  // LedgerOperation
	RunID         string `json:"run_id"`
	State         string `json:"state"` // of the ledger
	// Holds: the ledger is what the rows make, and the documents agree with each other.
	Holds       bool         `json:"holds"`
	Results     []RuleResult `json:"results"`
	Establishes []string     `json:"establishes"`
	DoesNot     []string     `json:"does_not"`
}

// Failed lists the rules that failed.
func (r *Report) Failed() []RuleResult {
	var out []RuleResult
	for _, x := range r.Results {
		if x.Result == Fail {
			out = append(out, x)
		}
	}
	return out
}

// ExitCode is 0 where every rule holds, else 3.
func (r *Report) ExitCode() int {
	if r.Holds {
		return 0
	}
	return 3
}

// Add files one more rule's result.
func (r *Report) Add(rule, title, result, detail string) {
	r.Results = append(r.Results, RuleResult{rule, title, result, detail})
	if result == Fail && r.Holds {
		r.Holds = false
		r.Establishes = []string{}
	}
}

// rule is one thing that a folder's documents must agree on. Its check returns what is wrong; empty for nothing.
type rule struct {
	id, title, explain string
	check              func(f *Folder) string
}

var rules = []rule{
	{"I-PLAN", "the plan's figures follow from its sizes", "Work of every workload is computed again from its sizes; no cell is of a mechanism that the host lacks; a victim that stands beside aggressors stands alone on the whole GPU twice.", planRule},
	{"I-ORDER", "blocks were taken in the order of the seed", "Row i is block i of the order that the plan's seed makes: none left out, none chosen.", orderRule},
	{"I-ROWS", "every launch has two times", "Each block has as many host times as event times, as many launches as the plan allows, dropped what it says, and lasts at least as long as its launches.", rowsRule},
	{"I-CLOCKS", "the two clocks agree", "No event time is longer than its host time by more than 2 µs and a thousandth.", clocksRule},
	{"I-TIMES", "blocks don't overlap", "In a segment each block begins after the one before has ended; segments are numbered from 1, and rows go through them in order.", timesRule},
	{"I-SEGMENTS", "every segment measured the plan's GPU with one set of kernels", "GPU and SMs are the plan's, and the modules' hashes and the driver are the same in all.", segmentsRule},
	{"I-CHECKS", "kernels were right before they were timed", "Each segment with rows compared the output of every kernel with a reference, and all passed.", checksRule},
	{"I-TORN", "the last row is whole", "rows.jsonl ends in a newline.", tornRule},
	{"I-LEDGER", "the ledger is what the rows make", "Computed again from plan, segments and rows, it is the same byte for byte, hashes of the files included.", ledgerRule},
}

// Rules returns the rules' ids, titles and explanations; the last is checked by the caller of Verify, who can read a guard's evidence.
func Rules() [][3]string {
	var list [][3]string
	for _, r := range rules {
		list = append(list, [3]string{r.id, r.title, r.explain})
	}
	return append(list, [3]string{GuardRule, GuardTitle, "The evidence of each segment's guard holds by the rules of probes and is of this run, and its cleanup is complete; where its supervisor was killed, another segment followed, whose gates found nobody on the GPU."})
}

// The rule on guards.
const (
	GuardRule  = "I-GUARD"
	GuardTitle = "every segment was guarded and cleaned up"
)

// Verify judges a folder by every rule but that on guards.
func (f *Folder) Verify() *Report {
	r := &Report{SchemaVersion: SchemaVersion, Operation: "verify", Evidence: LedgerOperation, RunID: f.Plan.RunID, Holds: true, Results: []RuleResult{},
		Establishes: []string{}, DoesNot: []string{}}
	if f.Ledger != nil {
		r.State, r.Establishes, r.DoesNot = f.Ledger.State, f.Ledger.Establishes, f.Ledger.DoesNot
	}
	for _, x := range rules {
		result, detail := Pass, x.check(f)
		if detail != "" {
			result = Fail
		}
		r.Add(x.id, x.title, result, detail)
	}
	return r
}

func planRule(f *Folder) string {
	p := &f.Plan
	for _, list := range [][]Workload{p.Victims, p.Aggressors} {
		for _, w := range list {
			if want := w.Expected(p.SMs); w.Work != want.Work || w.Resource != want.Resource {
				return fmt.Sprintf("%s: work %d of %s, its sizes make %d of %s", w.ID, w.Work, w.Resource, want.Work, want.Resource)
			}
		}
	}
	mechanisms, ids, beside := make(map[string]Mechanism), make(map[string]bool), make(map[string]bool)
	for _, m := range p.Mechanisms {
		mechanisms[m.ID] = m
	}
	for _, c := range p.Cells {
		if m := mechanisms[c.Mechanism]; !m.Planned() {
			return fmt.Sprintf("cell %s is of a mechanism that the host lacks: %s", c.ID, m.Verdict)
		}
		ids[c.ID] = true
		if c.Victim != "" && c.Aggressor != "" {
			beside[c.Victim] = true
		}
	}
	for v := range beside {
		if !ids[CellID(v, "", Whole, false)] || !ids[CellID(v, "", Whole, true)] {
			return v + " doesn't stand alone twice: there is no noise floor"
		}
	}
	return ""
}

func orderRule(f *Folder) string {
	order := Order(&f.Plan)
	if len(f.Rows) > len(order) {
		return fmt.Sprintf("%d rows, the plan has %d blocks", len(f.Rows), len(order))
	}
	for i, r := range f.Rows {
		want := order[i]
		if r.Block != int64(i) || r.Cell != f.Plan.Cells[want.Cell].ID || r.Repeat != want.Repeat {
			return fmt.Sprintf("row %d is block %d, %s repeat %d: the order has %s repeat %d", i, r.Block, r.Cell, r.Repeat, f.Plan.Cells[want.Cell].ID, want.Repeat)
		}
	}
	return ""
}

func rowsRule(f *Folder) string {
	s := f.Plan.Sampling
	for i, r := range f.Rows {
		n := int64(len(r.HostNS))
		victim := !strings.HasPrefix(r.Cell, "-/")
		switch {
		case len(r.EventNS) != len(r.HostNS):
			return fmt.Sprintf("row %d: %d host times, %d event times", i, len(r.HostNS), len(r.EventNS))
		case r.Failure != "" && n > 0:
			return fmt.Sprintf("row %d failed and has launches", i)
		case r.Failure != "":
			continue
		case victim && (n < 1 || n > s.MaxLaunches || r.Dropped != s.Dropped) || !victim && (n > 0 || r.Dropped != 0):
			return fmt.Sprintf("row %d: %d launches, %d dropped", i, n, r.Dropped)
		case r.Units < 0 || r.UnitsUS < 0 || r.UnitsUS > r.EndedUS-r.BeganUS:
			return fmt.Sprintf("row %d: %d units in %d µs of a block of %d", i, r.Units, r.UnitsUS, r.EndedUS-r.BeganUS)
		}
		sum := int64(0)
		for _, ns := range r.HostNS {
			sum += ns
		}
		lasted := sum / 1000
		if lasted > r.EndedUS-r.BeganUS {
			return fmt.Sprintf("row %d: launches of %d µs in a block of %d", i, lasted, r.EndedUS-r.BeganUS)
		}
		// A block that ends early must have what the plan asks for.
		if victim && n < s.Launches && r.EndedUS-r.BeganUS < s.MaxMS*1000 {
			return fmt.Sprintf("row %d: %d launches, %d were to be taken", i, n, s.Launches)
		}
		for _, list := range [][]int64{r.Clocks.SMMHz, r.Clocks.MemoryMHz} {
			if len(list) != 0 && (len(list) != 3 || list[0] > list[1] || list[1] > list[2] || list[0] < 0) {
				return fmt.Sprintf("row %d: clocks %v", i, list)
			}
		}
	}
	return ""
}

func clocksRule(f *Folder) string {
	for i, r := range f.Rows {
		for k := range min(len(r.HostNS), len(r.EventNS)) {
			if h, e := r.HostNS[k], r.EventNS[k]; e > h+2000+h/1000 {
				return fmt.Sprintf("row %d, launch %d: %d ns by events, %d by the host", i, k, e, h)
			}
		}
	}
	return ""
}

func timesRule(f *Folder) string {
	for i, s := range f.Segments {
		if s.Segment != int64(i+1) {
			return fmt.Sprintf("segment %d stands at %d", s.Segment, i+1)
		}
	}
	segment, end := int64(1), int64(0)
	for i, r := range f.Rows {
		if r.Segment < segment || r.Segment > int64(len(f.Segments)) {
			return fmt.Sprintf("row %d is of segment %d", i, r.Segment)
		}
		if r.Segment > segment {
			segment, end = r.Segment, 0
		}
		if r.BeganUS < end || r.EndedUS < r.BeganUS {
			return fmt.Sprintf("row %d: from %d to %d µs, the one before ended at %d", i, r.BeganUS, r.EndedUS, end)
		}
		end = r.EndedUS
	}
	return ""
}

func segmentsRule(f *Folder) string {
	for i, s := range f.Segments {
		if s.GPUUUID != f.Plan.GPUUUID || s.GPUName != f.Plan.GPUName || s.SMs != f.Plan.SMs {
			return fmt.Sprintf("segment %d measured another GPU", s.Segment)
		}
		if len(s.Modules) == 0 {
			return fmt.Sprintf("segment %d names no kernels", s.Segment)
		}
		if detail := Differs(f.Segments[i], f.Segments[0]); detail != "" {
			return fmt.Sprintf("segment %d has %s than segment 1", s.Segment, detail)
		}
	}
	if len(f.Rows) > 0 && len(f.Segments) == 0 {
		return "rows without a segment"
	}
	return ""
}

// Differs says in what two segments of one run may not differ, and do; empty for nothing.
func Differs(a, b Segment) string {
	switch {
	case fmt.Sprint(a.Modules) != fmt.Sprint(b.Modules):
		return "other kernels"
	case a.Driver != b.Driver:
		return "another driver"
	}
	return ""
}

func checksRule(f *Folder) string {
	for _, s := range f.Segments {
		measured := false
		for _, r := range f.Rows {
			measured = measured || r.Segment == s.Segment
		}
		if !measured {
			continue
		}
		if len(s.Checks) == 0 {
			return fmt.Sprintf("segment %d checked no kernel", s.Segment)
		}
		for _, c := range s.Checks {
			if c.Result != Pass {
				return fmt.Sprintf("segment %d: %s: %s", s.Segment, c.Kernel, c.Detail)
			}
		}
	}
	return ""
}

func tornRule(f *Folder) string {
	if f.Torn {
		return fmt.Sprintf("%s ends in a line that isn't whole: --resume cuts it off", RowsFile)
	}
	return ""
}

func ledgerRule(f *Folder) string {
	if f.Ledger == nil {
		return LedgerFile + " is missing"
	}
	want, err := Encode(f.Compute())
	if err != nil {
		return err.Error()
	}
	if bytes.Equal(want, f.ledger) {
		return ""
	}
	a, b := bytes.Split(want, []byte{'\n'}), bytes.Split(f.ledger, []byte{'\n'})
	for i := range min(len(a), len(b)) {
		if !bytes.Equal(a[i], b[i]) {
			return fmt.Sprintf("line %d is %s, computed again %s", i+1, bytes.TrimSpace(b[i]), bytes.TrimSpace(a[i]))
		}
	}
	return fmt.Sprintf("%d lines, computed again %d", len(b), len(a))
}

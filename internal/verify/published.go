package verify

import (
	"cmp"
	"fmt"
	"math"
	"os"
	"slices"

	"cotenant/internal/ledger"
)

// sampleOfRows is what a published sample's rows say.
type sampleOfRows struct {
	indexes  []int64
	badProof violation
	badRow   violation
}

// computeSample reads a sample instead of the rows. What Summarize then gives of rows means nothing, and isn't asked.
func (e *evidence) computeSample() (err error) {
	if e.facts, err = gather(e.folder, e.claimed.FilesRoot, e.opts.Prompts); err != nil {
		return err
	}
	none := func(func(ledger.Row, error) bool) {}
	if e.computed, err = ledger.Summarize(ledger.Run{Config: e.folder.Config, ConfigSHA256: e.folder.ConfigSHA256, Files: e.actual,
		Rows: none, Resources: e.folder.Resources(), Events: e.folder.Events()}); err != nil {
		return err
	}
	s := &sampleOfRows{}
	e.sample = s
	n, root := e.actual[1].Lines, e.actual[1].MerkleRoot
	for x, err := range e.folder.SampledRows() {
		if err != nil {
			return err
		}
		s.indexes = append(s.indexes, x.Index)
		if x.Index >= n {
			s.badProof.add("row %d is beyond the run's %d", x.Index, n)
		} else if err := x.CheckProof(n, root); err != nil {
			s.badProof.add("row %d: %v", x.Index, err)
		}
		e.sampledRow(&x.Row)
	}
	return nil
}

// sampledRow asks what a row tells by itself.
func (e *evidence) sampledRow(r *ledger.Row) {
	f := e.facts
	who := attemptName{r, f.cfg.TurnsPerContext > 1}
	bad := func(why string) {
		if why != "" {
			e.sample.badRow.add("%s: %s", who, why)
		}
	}
	bad(timeOrder(r))
	bad(outcomeFits(r))
	if r.Base != f.base(r.Context) {
		bad("it carries another base than the config's")
	}
	if r.Worker >= f.cfg.Workers || r.Context >= f.cfg.Contexts || r.Turn >= f.cfg.TurnsPerContext {
		bad("its worker, context or turn is beyond the config's")
	}
	if !f.segments[r.Segment] {
		bad("its segment hasn't started")
	}
	if buffered(r) != r.Buffered {
		bad("buffered isn't what its times and tokens say")
	}
	if r.Outcome == ledger.OK && r.PromptTokens.OK && r.CompletionTokens.OK {
		bad(tokensFit(r, f.cfg.Sampling.MaxTokens))
	}
	f.clear(who.String(), r.Error, r.FinishReason, r.Task)
	f.promptFacts.row(r, who)
}

// rowless lists the rules that don't need all rows.
var rowless = []string{"R-FORM-01", "R-FORM-02", "R-FILE-01", "R-FILE-02", "R-FILE-03", "R-CONF-01", "R-CONF-02", "R-CONF-03", "R-CONF-04", "R-LEAK-01",
	"R-DEF-01", "R-RUNG-01", "R-STAT-01", "R-PROMPT-02", "R-RES-02", "R-RES-03", "R-RES-04", "R-RES-05", "R-RES-06", "R-GPU-01", "R-MEM-01", "R-COST-01", "R-CLAIM-01",
	"R-SIGN-01", "R-SIGN-02", "R-PUB-01", "R-PUB-02", "R-PUB-03", "R-PUB-04"}

// sampledRules are those, and what a lone ledger's numbers are held to.
func sampledRules() []Rule {
	rules := slices.DeleteFunc(Rules(), func(r Rule) bool { return !slices.Contains(rowless, r.ID) })
	for _, r := range IntegrityRules() {
		// The others have their like among the rules of folders.
		if slices.Contains([]string{"I-COUNT-01", "I-TOK-01", "I-RATE-01", "I-LAT-01", "I-ORA-01", "I-PEAK-01", "I-ADM-01", "I-LOAD-01", "I-CLAIM-02"}, r.ID) {
			rules = append(rules, r)
		}
	}
	return rules
}

// sampledReport judges a published form that has some rows only.
func (e *evidence) sampledReport() *Report {
	r := &Report{SchemaVersion: 1, Operation: "verify", RunID: e.config.RunID, Contract: e.config.Contract, Contexts: e.config.Contexts, RulesVersion: RulesVersion,
		Grade: GradeSampled, Holds: true, Establishes: []ledger.Claim{}, States: []ledger.Claim{}, NotExposed: e.claimed.NotExposed}
	r.judge(e, sampledRules())
	r.SignedBy = e.signedBy
	if !r.Holds {
		r.refuse()
		return r
	}
	r.States = e.claimed.Claims
	k := len(e.sample.indexes)
	r.DoesNot = append([]ledger.Statement{{ID: "what_it_states", Reason: fmt.Sprintf("%d of %d rows are here, picked by files_root and proven to be among them: sums over rows can't be computed again. "+
		"With 99 %% confidence fewer than %d ppm of the rows break a rule about single rows", k, e.actual[1].Lines, shareBelow(k))}}, e.claimed.NonClaims...)
	return r
}

// shareBelow bounds, in parts per million and with 99 % confidence, the share of bad rows among those that k good ones were drawn from:
// the smallest p with (1-p)^k <= 1/100, rounded up.
func shareBelow(k int) int64 {
	if k == 0 {
		return 1_000_000
	}
	return int64(math.Ceil(1e6 * (1 - math.Pow(0.01, 1/float64(k)))))
}

const notPublished = "the run isn't published"

func publishedFiles(e *evidence) (string, string) {
	p := e.folder.Published
	if p == nil {
		return "", notPublished
	}
	if p.RunID != e.config.RunID || p.RunID != e.claimed.RunID {
		return fmt.Sprintf("published.json is of run %s, the config of %s, the ledger of %s", p.RunID, e.config.RunID, e.claimed.RunID), ""
	}
	for _, f := range p.Files {
		if err := e.folder.CheckEntry(f); err != nil {
			return err.Error(), ""
		}
	}
	entries, err := os.ReadDir(e.folder.Dir)
	if err != nil {
		return err.Error(), ""
	}
	for _, x := range entries {
		listed := func(f ledger.PublishedEntry) bool { return f.As == x.Name() }
		if x.Name() != ledger.PublishedFile && !slices.ContainsFunc(p.Files, listed) {
			return fmt.Sprintf("%s lies here and isn't listed", x.Name()), ""
		}
	}
	return "", ""
}

func redactionsListed(e *evidence) (string, string) {
	if e.folder.Published == nil {
		return "", notPublished
	}
	if err := e.folder.CheckRedactions(); err != nil {
		return err.Error(), ""
	}
	if e.config.Endpoint != "" || e.config.PlaceSecret != "" || e.config.MetricsURL != "" {
		return "the published config has the endpoint, the metrics' address or place_secret in clear", ""
	}
	return "", ""
}

func sampleProven(e *evidence) (string, string) {
	if e.sample == nil {
		return "", "all rows are here"
	}
	p := e.folder.Published.Sample
	want := ledger.SampleIndexes(e.claimed.FilesRoot, e.actual[1].Lines, p.Count)
	switch {
	case p.Of != e.actual[1].Lines:
		return fmt.Sprintf("published.json says that the run has %d rows, the ledger %d", p.Of, e.actual[1].Lines), ""
	case !slices.Equal(e.sample.indexes, want):
		return fmt.Sprintf("the sample's %d rows aren't the %d that files_root picks", len(e.sample.indexes), len(want)), ""
	}
	return cmp.Or(first(&e.sample.badProof), ""), ""
}

func sampleTrue(e *evidence) (string, string) {
	if e.sample == nil {
		return "", "all rows are here"
	}
	return first(&e.sample.badRow), ""
}

func first(v *violation) string {
	if v.count == 0 {
		return ""
	}
	return v.String()
}

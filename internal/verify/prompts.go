package verify

import (
	"encoding/json"
	"fmt"
	"strconv"

	"cotenant/internal/ledger"
	"cotenant/internal/loadgen"
)

// rebuiltContexts is how many contexts' prompts are made again: of a larger run those that files_root picks.
const rebuiltContexts = 100_000

// promptFacts makes prompts again from what the config registered, and holds the rows' commitments against them.
type promptFacts struct {
	why     string // why they can't be made again
	wrong   violation
	rebuilt int64

	cfg    *ledger.Config
	source loadgen.Source
	commit *ledger.Committer
	every  int64 // contexts of which one is rebuilt
	first  int64
	head   []byte // of the body, up to the messages
	tail   []byte // from behind them
	body   []byte

	pattern []int // of tenants by context
}

// newPromptFacts finds out whether prompts can be made again: of generated work, where the secret is there.
func newPromptFacts(cfg *ledger.Config, filesRoot string) *promptFacts {
	p := &promptFacts{cfg: cfg, every: (cfg.Contexts + rebuiltContexts - 1) / rebuiltContexts}
	if p.every > 1 && len(filesRoot) >= 15 {
		if n, err := strconv.ParseInt(filesRoot[:15], 16, 64); err == nil {
			p.first = n % p.every
		}
	}
	seed, err := strconv.ParseUint(cfg.Workload.Seed, 10, 64)
	switch {
	case cfg.Workload.Name != loadgen.Version && cfg.Workload.Name != loadgen.PairsVersion:
		p.why = fmt.Sprintf("the prompts are of %q, which this program doesn't generate", cfg.Workload.Name)
		return p
	case cfg.Secret == "":
		p.why = "the run is published without the secret that its prompts' commitments need"
		return p
	case err != nil:
		p.wrong.add("the workload's seed %q isn't a number", cfg.Workload.Seed)
		return p
	}
	options := loadgen.Options{Seed: seed, BaseTokens: int(cfg.Workload.BaseTokens.Or(0)), Unique: cfg.Workload.Unique}
	var w loadgen.Source
	if w, err = loadgen.New(options); err == nil && cfg.Workload.Name == loadgen.PairsVersion {
		w, err = loadgen.NewPairs(options)
	}
	if err != nil {
		p.wrong.add("the workload: %v", err)
		return p
	}
	if w.Hash() != cfg.Workload.SHA256 {
		p.wrong.add("seed %s gives a workload of hash %s, the config has %s", cfg.Workload.Seed, w.Hash(), cfg.Workload.SHA256)
		return p
	}
	p.source = loadgen.Challenged(w, cfg.Nonce)
	if p.commit, err = ledger.NewCommitter(cfg.Secret); err != nil {
		p.wrong.add("%v", err)
		p.source = nil
		return p
	}
	if base := p.commit.Commit(ledger.LabelBase, []byte(p.source.Base())); base != cfg.Workload.BaseCommit {
		p.wrong.add("the base that seed and nonce give has the commitment %s, the config's is %s", base, cfg.Workload.BaseCommit)
	}
	if cfg.Load != nil {
		p.pattern = cfg.Load.Pattern()
	}
	p.frame()
	return p
}

// frame makes the request's bytes around the messages, as docs/formats/run.md has them.
func (p *promptFacts) frame() {
	s := &p.cfg.Sampling
	model, _ := json.Marshal(p.cfg.Model) // a string always can be
	p.head = fmt.Appendf(nil, `{"model":%s,"messages":`, model)
	tail := `,"stream":true`
	if s.IncludeUsage {
		tail += `,"stream_options":{"include_usage":true}`
	}
	tail += fmt.Sprintf(`,"%s":%d`, s.MaxTokensMember, s.MaxTokens)
	for _, f := range []struct {
		name string
		e6   ledger.Opt
	}{{"temperature", s.TemperatureE6}, {"top_p", s.TopPE6}} {
		if v, ok := f.e6.Get(); ok {
			tail += fmt.Sprintf(`,"%s":%s`, f.name, strconv.FormatFloat(float64(v)/1e6, 'g', -1, 64))
		}
	}
	if s.Seed.OK {
		tail += fmt.Sprintf(`,"seed":%d`, s.Seed.V)
	}
	if n := len(s.ExtraBody); n > 2 {
		tail += "," + s.ExtraBody[1:n-1]
	}
	p.tail = []byte(tail + "}")
}

// row makes a first turn's prompt again. Later turns hold what the server has answered, which isn't in the rows.
func (p *promptFacts) row(r *ledger.Row, who attemptName) {
	if p.source == nil || r.Turn != 0 || r.Context%p.every != p.first {
		return
	}
	messages, err := json.Marshal(p.source.Task(r.Context).Messages)
	if err != nil {
		p.wrong.add("%s: %v", who, err)
		return
	}
	p.body = append(append(p.body[:0], p.head...), messages...)
	if load := p.cfg.Load; load != nil && len(load.Tenants) > 0 {
		p.body = fmt.Appendf(p.body, `,"user":"%s"`, load.Tenants[tenantOf(p.pattern, r.Context)].Name)
	}
	p.body = append(p.body, p.tail...)
	p.rebuilt++
	if p.commit.Commit(ledger.LabelPrompt, p.body) != r.PromptCommit {
		p.wrong.add("%s sent another prompt than seed, nonce and sampling give", who)
	}
}

func promptsRebuilt(e *evidence) (string, string) {
	p := e.facts.promptFacts
	if p.wrong.count > 0 {
		return p.wrong.String(), ""
	}
	return "", p.why
}

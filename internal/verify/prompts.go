package verify

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"

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

// fromPrompts reports whether a run's prompts came from a file of the user's.
func fromPrompts(cfg *ledger.Config) bool {
	return strings.HasPrefix(cfg.Workload.Name, loadgen.PromptsName)
}

// newPromptFacts finds out whether prompts can be made again: of generated work, or of a file that is given, where the secret is there.
func newPromptFacts(cfg *ledger.Config, filesRoot string, prompts *loadgen.Prompts) *promptFacts {
	p := &promptFacts{cfg: cfg, every: (cfg.Contexts + rebuiltContexts - 1) / rebuiltContexts}
	if p.every > 1 && len(filesRoot) >= 15 {
		if n, err := strconv.ParseInt(filesRoot[:15], 16, 64); err == nil {
			p.first = n % p.every
		}
	}
	w := p.workload(prompts)
	if w == nil {
		return p
	}
	var err error
	p.source = loadgen.Challenged(w, cfg.Nonce)
	if p.commit, err = ledger.NewCommitter(cfg.Secret); err != nil {
		p.wrong.add("%v", err)
		p.source = nil
		return p
	}
	if base := p.commit.Commit(ledger.LabelBase, []byte(p.source.Base())); base != cfg.Workload.BaseCommit {
		p.wrong.add("the base that workload and nonce give has the commitment %s, the config's is %s", base, cfg.Workload.BaseCommit)
	}
	if cfg.Load != nil {
		p.pattern = cfg.Load.Pattern()
	}
	p.frame()
	return p
}

// workload is what the config registered. It is nil, and why or wrong says so, where it can't be had.
func (p *promptFacts) workload(prompts *loadgen.Prompts) loadgen.Source {
	work := &p.cfg.Workload
	generated := work.Name == loadgen.Version || work.Name == loadgen.PairsVersion
	var w loadgen.Source
	switch {
	case generated && p.cfg.Secret != "":
		if w = p.generated(); w == nil {
			return nil
		}
	case generated:
		// The hash is that of the base, which isn't made without a need.
	case !fromPrompts(p.cfg):
		p.why = fmt.Sprintf("the prompts are of %q, which this program doesn't generate", work.Name)
		return nil
	case prompts == nil:
		p.why = fmt.Sprintf("not computed again: the prompts are of a file, %q with SHA-256 %s; given by `cotenant verify --prompts FILE`, they are held against the rows",
			strings.TrimPrefix(work.Name, loadgen.PromptsName), work.SHA256)
		return nil
	case prompts.Hash() != work.SHA256:
		p.wrong.add("the file of prompts that was given has SHA-256 %s, the config registered %s: it isn't the file that this run says it sent", prompts.Hash(), work.SHA256)
		return nil
	default:
		w = prompts
	}
	if p.cfg.Secret == "" {
		p.why = "the run is published without the secret that its prompts' commitments need"
		if prompts != nil {
			p.why += "; the file of prompts that was given is the one that the config registered, and no row was held against it"
		}
		return nil
	}
	return w
}

// generated is the workload of the config's seed.
func (p *promptFacts) generated() loadgen.Source {
	work := &p.cfg.Workload
	seed, err := strconv.ParseUint(work.Seed, 10, 64)
	if err != nil {
		p.wrong.add("the workload's seed %q isn't a number", work.Seed)
		return nil
	}
	options := loadgen.Options{Seed: seed, BaseTokens: int(work.BaseTokens.Or(0)), Unique: work.Unique}
	var w loadgen.Source
	if w, err = loadgen.New(options); err == nil && work.Name == loadgen.PairsVersion {
		w, err = loadgen.NewPairs(options)
	}
	if err != nil {
		p.wrong.add("the workload: %v", err)
		return nil
	}
	if w.Hash() != work.SHA256 {
		p.wrong.add("seed %s gives a workload of hash %s, the config has %s", work.Seed, w.Hash(), work.SHA256)
		return nil
	}
	return w
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
		p.wrong.add("%s sent another prompt than workload, nonce and sampling give", who)
	}
}

func promptsRebuilt(e *evidence) (string, string) {
	p := e.facts.promptFacts
	if p.wrong.count > 0 {
		return p.wrong.String(), ""
	}
	return "", p.why
}

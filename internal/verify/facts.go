package verify

import (
	"encoding/hex"
	"fmt"

	"cotenant/internal/ledger"
	"cotenant/internal/loadgen"
	"cotenant/internal/stats"
)

// violation is the first row, sample or event that breaks a rule, and how many do.
type violation struct {
	count int64
	first string
}

func (v *violation) add(format string, args ...any) {
	if v.count == 0 {
		v.first = fmt.Sprintf(format, args...)
	}
	v.count++
}

// attemptName names a row's attempt to people, where it comes to that.
type attemptName struct {
	row   *ledger.Row
	turns bool
}

func (n attemptName) String() string {
	if n.turns {
		return fmt.Sprintf("context %d, turn %d, attempt %d", n.row.Context, n.row.Turn, n.row.Attempt)
	}
	return fmt.Sprintf("context %d, attempt %d", n.row.Context, n.row.Attempt)
}

func (v *violation) String() string {
	if v.count > 1 {
		return fmt.Sprintf("%s, and %d more", v.first, v.count-1)
	}
	return v.first
}

// facts is what this package finds in the rows by its own means, without ledger.Summarize, so that a mistake there doesn't
// confirm itself.
type facts struct {
	cfg *ledger.Config

	// Rules about single rows.
	badTime, badOutcome, badTokens, badBuffered, badBase, badWorker, badRetry, badPrompt, leak violation
	badCounter, badMemory, badServer                                                           violation

	contexts   []contextFacts
	strays     int64
	rows       int64
	retries    int64
	opened     int64 // attempts that opened a connection
	reconnects int64
	lanes      map[lane]*laneSpans
	edges      map[int64]*stats.Column // by segment; see edge
	sweeps     map[int64]int64         // what peak has found
	walls      map[int64]span
	prompts    map[[16]byte]int64 // commitment to context, where prompts must be unique
	failing    map[int64]lastTry
	names      []string // that must not show in clear
	firstKind  string   // of the first event
	segments   map[int64]bool
	peaks      map[int64]int64 // by segment, from peak events
	badStart   violation

	badConfigHash violation
	ended         map[int64]bool
	mostSpent     int64 // by one attempt

	gauges map[int64][]gaugeFacts // by segment, of the contract controlled

	trace        map[int64]*sampleFacts // by segment
	statedSeries int64                  // samples with series, or with the reason why there are none
	serverStart  ledger.Opt
	saidStart    ledger.Opt // of the server's process, by its own series

	promptFacts *promptFacts

	gpus   map[string]*gpuFacts
	badGPU violation

	control *controlFacts // nil unless the contract is controlled
	load    *loadFacts    // nil without a load plan
	resent  []attemptOf

	badQueue violation

	tokens   sums
	outcomes map[ledger.Outcome]int64
	series   map[string]*stats.Column // times by name
	oracle   struct{ passed, failed int64 }
	lastEnds stats.Column
}

type contextFacts struct {
	tries   uint16 // of the present turn, up to its result
	spent   uint16 // of them, those that count against max_attempts: all but interrupted ones
	turns   uint16 // with a result
	usage   uint16 // of them, with usage
	twice   uint16 // attempts of turns that had a result
	any     bool
	last    int64 // end of the last result
	segment int64 // and its segment
}

type lastTry struct {
	end, picked, segment int64
	outcome              ledger.Outcome
	prompt               string
}

type sums struct{ prompt, completion, cached, deltas, text, spent, wasted, eos int64 }

// gather reads events and samples; rows follow by row.
func gather(folder *ledger.Folder, filesRoot string, prompts *loadgen.Prompts) (*facts, error) {
	cfg := &folder.Config
	f := &facts{cfg: cfg, contexts: make([]contextFacts, cfg.Contexts), lanes: map[lane]*laneSpans{}, edges: map[int64]*stats.Column{}, sweeps: map[int64]int64{}, walls: map[int64]span{},
		failing: map[int64]lastTry{}, names: secrets(cfg), segments: map[int64]bool{}, peaks: map[int64]int64{}, ended: map[int64]bool{}, gauges: map[int64][]gaugeFacts{}, trace: map[int64]*sampleFacts{}, outcomes: map[ledger.Outcome]int64{}, series: map[string]*stats.Column{}}
	f.promptFacts = newPromptFacts(cfg, filesRoot, prompts)
	if cfg.Workload.Unique {
		f.prompts = map[[16]byte]int64{}
	}
	if cfg.Controlled != nil {
		f.control = newControlFacts(cfg)
	}
	if cfg.Load != nil {
		f.load = newLoadFacts(cfg)
	}
	for e, err := range folder.Events() {
		if err != nil {
			return nil, err
		}
		f.event(&e, folder.ConfigSHA256)
	}
	if err := f.samples(folder); err != nil {
		return nil, err
	}
	return f, nil
}

func (f *facts) event(e *ledger.Event, config string) {
	if f.firstKind == "" {
		f.firstKind = e.Kind
		if e.Kind != ledger.EventStart {
			f.badStart.add("the first event is %q", e.Kind)
		}
	}
	f.clear("an event of "+e.Kind, e.Detail)
	switch e.Kind {
	case ledger.EventStart:
		switch {
		case e.TUS != 0:
			f.badStart.add("segment %d starts at %d us of its own clock", e.Segment, e.TUS)
		case e.Segment != int64(len(f.segments)):
			f.badStart.add("segment %d starts where segment %d is due", e.Segment, len(f.segments))
		}
		f.segments[e.Segment] = true
		if e.ConfigSHA256 != config {
			f.badConfigHash.add("the start event of segment %d has config_sha256 %s, config.json's is %s", e.Segment, e.ConfigSHA256, config)
		}
	case ledger.EventEnd:
		f.ended[e.Segment] = true
	case ledger.EventResent:
		f.resent = append(f.resent, attemptOf{e.Context.Or(-1), e.Turn.Or(-1), e.Attempt.Or(-1), e.Segment})
	case ledger.EventPeak:
		f.peaks[e.Segment] = max(f.peaks[e.Segment], e.Value.Or(0))
	}
	if f.control != nil {
		f.control.event(e)
	}
	if f.load != nil {
		f.load.event(e)
	}
	if !f.segments[e.Segment] {
		f.badStart.add("an event of %s belongs to segment %d, which hasn't started", e.Kind, e.Segment)
	}
}

func (f *facts) row(r *ledger.Row) {
	f.rows++
	f.outcomes[r.Outcome]++
	if r.Attempt > 1 {
		f.retries++
	}
	if !r.ConnReused {
		f.opened++
	}
	f.reconnects += r.Reconnects
	who := attemptName{r, f.cfg.TurnsPerContext > 1}
	if why := timeOrder(r); why != "" {
		f.badTime.add("%s: %s", who, why)
	}
	if why := outcomeFits(r); why != "" {
		f.badOutcome.add("%s: %s", who, why)
	}
	if want := f.base(r.Context); r.Base != want {
		f.badBase.add("%s carries base %q, the config %q", who, r.Base, want)
	}
	f.promptFacts.row(r, who)
	if r.Worker >= f.cfg.Workers {
		f.badWorker.add("%s ran on worker %d of %d", who, r.Worker, f.cfg.Workers)
	}
	if !f.segments[r.Segment] {
		f.badStart.add("%s belongs to segment %d, which no event starts", who, r.Segment)
	}
	if want := buffered(r); r.Buffered != want {
		f.badBuffered.add("%s: buffered is %t, its times and tokens say %t", who, r.Buffered, want)
	}
	f.clear(who, r.Error, r.FinishReason, r.Task)
	spent := r.PromptTokens.Or(0) + r.CompletionTokens.Or(0)
	f.tokens.spent += spent
	f.mostSpent = max(f.mostSpent, spent)
	f.tokens.wasted += r.WastedTokens
	free, busy := f.placement(r)
	if r.Context >= f.cfg.Contexts || r.Turn >= f.cfg.TurnsPerContext {
		f.strays++
		return
	}
	c := &f.contexts[r.Context]
	switch done := int64(c.turns); {
	case r.Turn < done:
		c.twice++
		return
	case r.Turn > done:
		f.strays++
		return
	}
	c.any = true
	if c.tries == 0 && busy && r.SentUS.OK {
		f.time("slot_lag", max(0, r.SentUS.V-max(free, r.QueuedUS)))
	}
	f.attempt(r, c, who)
	f.prompt(r, who)
	if f.control != nil {
		f.control.row(r, who)
	}
	if f.load != nil {
		f.load.row(r)
	}
	f.queue(r, c, who)
	if r.Outcome != ledger.OK {
		return
	}
	c.turns++
	c.tries, c.spent, c.last, c.segment = 0, 0, r.EndUS, r.Segment
	f.result(r, c, who)
	delete(f.failing, r.Context)
}

// base is the commitment that a context's rows have to carry: none where the context has a base of its own.
func (f *facts) base(context int64) string {
	if f.cfg.Load != nil && f.cfg.Load.Paired && loadgen.UniqueArm(f.cfg.Workload.Seed, context) {
		return ""
	}
	return f.cfg.Workload.BaseCommit
}

// queue holds when a turn says that it could have run against what came before it.
func (f *facts) queue(r *ledger.Row, c *contextFacts, who attemptName) {
	if r.Turn == 0 || c.segment != r.Segment {
		if r.QueuedUS != 0 && !f.cfg.Load.Open() { // R-LOAD-01 has what an open loop's are
			f.badQueue.add("%s was queued at %d us: it was ready when its segment started", who, r.QueuedUS)
		}
	} else if r.QueuedUS != c.last {
		f.badQueue.add("%s was queued at %d us, the turn before it ended at %d us", who, r.QueuedUS, c.last)
	}
}

// attempt follows the tries of one context up to its result.
func (f *facts) attempt(r *ledger.Row, c *contextFacts, who attemptName) {
	last, failed := f.failing[r.Context]
	switch {
	case r.Attempt != int64(c.tries)+1:
		f.badRetry.add("%s follows attempt %d", who, c.tries)
	case r.Outcome != ledger.Interrupted && int64(c.spent) >= f.cfg.MaxAttempts:
		f.badRetry.add("%s comes after %d attempts that count: the config allows %d", who, c.spent, f.cfg.MaxAttempts)
	case failed && last.outcome == ledger.Interrupted && last.segment == r.Segment:
		f.badRetry.add("%s repeats an interrupted attempt in the same segment", who)
	case failed && last.outcome != ledger.Interrupted && !last.outcome.Retryable():
		f.badRetry.add("%s repeats an attempt that ended with %s", who, last.outcome)
	case failed && last.segment == r.Segment && r.PickedUS < last.end:
		f.badRetry.add("%s was picked at %d us, before the attempt before it ended at %d us", who, r.PickedUS, last.end)
	}
	if c.tries < 1<<16-1 {
		c.tries++
	}
	if r.Outcome != ledger.Interrupted && c.spent < 1<<16-1 {
		c.spent++
	}
	if c.tries == 1 {
		if r.SentUS.OK {
			f.time("queue_age", r.SentUS.V-r.QueuedUS)
			f.time("send_lag", r.SentUS.V-r.PickedUS)
		}
	}
	if r.Outcome != ledger.OK {
		picked, segment := r.PickedUS, r.Segment
		if failed {
			picked, segment = last.picked, last.segment
		}
		f.failing[r.Context] = lastTry{r.EndUS, picked, segment, r.Outcome, r.PromptCommit}
	}
}

func (f *facts) prompt(r *ledger.Row, who attemptName) {
	if last, ok := f.failing[r.Context]; ok && last.prompt != r.PromptCommit {
		f.badPrompt.add("%s sent another prompt than the attempt before it", who)
	}
	if f.prompts == nil {
		return
	}
	var key [16]byte // rows' commitments have so many bytes, by their form
	if _, err := hex.Decode(key[:], []byte(r.PromptCommit)); err != nil {
		return
	}
	if other, ok := f.prompts[key]; ok && other != r.Context {
		f.badPrompt.add("%s sent the prompt of context %d", who, other)
	}
	f.prompts[key] = r.Context
}

// time adds a value to a series.
func (f *facts) time(name string, us int64) {
	c := f.series[name]
	if c == nil {
		c = &stats.Column{}
		f.series[name] = c
	}
	c.Add(us)
}

// timed is how many values a series has.
func (f *facts) timed(name string) int64 {
	if c := f.series[name]; c != nil {
		return c.Len()
	}
	return 0
}

func (f *facts) result(r *ledger.Row, c *contextFacts, who attemptName) {
	s := &f.tokens
	s.deltas += r.Deltas
	s.text += r.TextBytes
	s.cached += r.CachedTokens.Or(0)
	if r.PromptTokens.OK && r.CompletionTokens.OK {
		c.usage++
		s.prompt += r.PromptTokens.V
		s.completion += r.CompletionTokens.V
		f.lastEnds.Add(r.EndUS)
		if why := tokensFit(r, f.cfg.Sampling.MaxTokens); why != "" {
			f.badTokens.add("%s: %s", who, why)
		}
		n := textTokens(r)
		s.eos += r.CompletionTokens.V - n
		if n > 1 && !r.Buffered && r.FirstTokenUS.OK && r.LastTokenUS.OK {
			f.time("inter_token", (r.LastTokenUS.V-r.FirstTokenUS.V)/(n-1))
		}
	}
	switch r.Oracle {
	case ledger.OraclePass:
		f.oracle.passed++
	case ledger.OracleFail:
		f.oracle.failed++
	}
	picked, same := r.PickedUS, true
	if last, ok := f.failing[r.Context]; ok {
		picked, same = last.picked, last.segment == r.Segment
	}
	if same {
		f.time("latency_from_picked", r.EndUS-picked)
	}
	if f.cfg.Load.Open() {
		f.time("latency_from_schedule", r.EndUS-r.QueuedUS)
		if r.FirstTokenUS.OK {
			f.time("ttft_from_schedule", r.FirstTokenUS.V-r.QueuedUS)
		}
	}
	if !r.SentUS.OK {
		return
	}
	for _, t := range []struct {
		name string
		at   ledger.Opt
	}{{"ttft", r.FirstTokenUS}, {"first_content", r.FirstContentUS}, {"last_token", r.LastTokenUS}, {"latency", ledger.Some(r.EndUS)}} {
		if t.at.OK {
			f.time(t.name, t.at.V-r.SentUS.V)
		}
	}
}

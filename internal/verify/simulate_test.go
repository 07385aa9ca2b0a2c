package verify

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"cotenant/internal/ledger"
)

// run is a run's content, to be changed and written.
type run struct {
	cfg       ledger.Config
	rows      []ledger.Row
	resources []ledger.Resource
	events    []ledger.Event
}

// simulate plays a closed loop in virtual time: four workers on a server that computes the shared base once a slot, with
// one retry, one reconnect and one answer that came in one piece. Equal arguments give equal runs.
func simulate(t testing.TB, contexts int64) *run {
	t.Helper()
	const workers, base = 4, "You keep this register and answer one question at a time."
	secret := fmt.Sprintf("%064x", contexts)
	commit, err := ledger.NewCommitter(secret)
	if err != nil {
		t.Fatal(err)
	}
	s := &simulation{rng: newRand(contexts), commit: commit, used: map[int64]bool{}}
	s.cfg = ledger.Config{
		SchemaVersion: ledger.SchemaVersion, Operation: ledger.Operation, Document: "config",
		RunID: fmt.Sprintf("%032x", contexts), RunOrdinal: 3, Secret: secret, PlaceSecret: fmt.Sprintf("%064x", contexts+1), StartedWallUS: 1_796_000_000_000_000,
		Contract: ledger.ContractPlain, Contexts: contexts, TurnsPerContext: 1, Workers: workers, MaxAttempts: 3,
		Endpoint: "http://127.0.0.1:18080/v1", EndpointScope: ledger.ScopeLoopback, API: "chat.completions", Model: "simulated",
		HeaderNames: []string{}, ConnectionPolicy: "keepalive",
		Workload: ledger.Workload{Name: "simulated-1", SHA256: fmt.Sprintf("%064x", 1), Seed: "7", BaseTokens: ledger.Some(690),
			BaseCommit: commit.Commit(ledger.LabelBase, []byte(base)), BaseBytes: int64(len(base)), Unique: true},
		Sampling:   ledger.Sampling{MaxTokens: 8, TemperatureE6: ledger.Some(0), Stream: true, IncludeUsage: true, MaxTokensMember: "max_tokens"},
		Timeouts:   ledger.Timeouts{HeadersUS: 60e6, IdleUS: 60e6, TotalUS: 300e6},
		MetricsURL: "http://127.0.0.1:18080/metrics", ServerPID: ledger.Some(4242), MaxSpend: ledger.Some(contexts * 900),
		ResourceUS: 1e6, TokenSource: ledger.TokenSourceUsage, Definitions: ledger.Definitions(), RulesVersion: RulesVersion,
		Client: ledger.Build{Version: "simulated", Go: "go1.26", OS: "linux", Arch: "amd64", CPUs: 2, BinarySHA256: fmt.Sprintf("%064x", 2)},
	}
	if err := s.cfg.Seal(); err != nil {
		t.Fatal(err)
	}
	if contexts >= ledger.DeepRung {
		s.cfg.EndpointScope = ledger.ScopePrivate
	}
	s.load(base)
	s.sample()
	s.log()
	return &s.run
}

func newRand(contexts int64) *rand.Rand { return rand.New(rand.NewPCG(7, uint64(contexts))) }

type simulation struct {
	run
	extra  func(r *ledger.Row) served // what the server counts of an attempt; nil: as the rows have it
	rng    *rand.Rand
	commit *ledger.Committer
	used   map[int64]bool // stamps of sent and end
	end    int64
}

// stamp moves t on until no other sent or end has it.
func (s *simulation) stamp(t int64) int64 {
	for s.used[t] {
		t++
	}
	s.used[t] = true
	return t
}

func (s *simulation) between(low, high int64) int64 { return low + s.rng.Int64N(high-low+1) }

func (s *simulation) load(base string) {
	free := make([]int64, s.cfg.Workers)
	for w := range free {
		free[w] = 2_000 + int64(w)*150
	}
	for c := range s.cfg.Contexts {
		w := int64(0)
		for i := range free {
			if free[i] < free[w] {
				w = int64(i)
			}
		}
		at := free[w] + s.between(20, 90)
		attempt := int64(1)
		if c == 17 {
			r := s.attempt(c, w, attempt, at, base)
			r.HTTPStatus, r.Outcome, r.Error, r.RetryAfterUS = ledger.Some(429), ledger.HTTP429, "queue is full", ledger.Some(1_000_000)
			r.HeadersUS = ledger.Some(r.SentUS.V + 900)
			r.EndUS = s.stamp(r.SentUS.V + 1_100)
			s.rows = append(s.rows, r)
			at, attempt = r.EndUS+1_000_000, 2
		}
		r := s.attempt(c, w, attempt, at, base)
		if attempt > 1 {
			r.BackoffUS = 1_000_000
		}
		s.answer(&r)
		s.rows = append(s.rows, r)
		free[w] = r.EndUS
		s.end = max(s.end, r.EndUS)
	}
	slices.SortStableFunc(s.rows, func(a, b ledger.Row) int { return cmp.Compare(a.EndUS, b.EndUS) })
}

func (s *simulation) attempt(c, w, attempt, at int64, base string) ledger.Row {
	r := ledger.Row{Context: c, Attempt: attempt, Worker: w, PickedUS: at, SentUS: ledger.Some(s.stamp(at + s.between(60, 400))),
		Base:         s.commit.Commit(ledger.LabelBase, []byte(base)),
		PromptCommit: s.commit.Commit(ledger.LabelPrompt, fmt.Append(nil, c)),
		Task:         []string{"lookup", "order", "repeat", "sum"}[c%4], Oracle: ledger.OracleNone, ConnReused: c >= s.cfg.Workers}
	if c == 30 {
		r.Reconnects, r.ConnReused = 1, false
	}
	return r
}

// answer lets the server answer an attempt.
func (s *simulation) answer(r *ledger.Row) {
	warm := r.Context >= s.cfg.Workers
	sent, first := r.SentUS.V, s.between(2_900_000, 3_100_000)
	if warm {
		first = s.between(250_000, 480_000)
	}
	tokens := s.between(2, 8)
	last := first + (tokens-1)*s.between(35_000, 60_000)
	if r.Context == 40 {
		first = last
	}
	r.HeadersUS, r.FirstEventUS = ledger.Some(sent+s.between(3_000, 9_000)), ledger.Some(sent+s.between(9_100, 12_000))
	r.FirstTokenUS, r.FirstContentUS, r.LastTokenUS = ledger.Some(sent+first), ledger.Some(sent+first), ledger.Some(sent+last)
	r.EndUS = s.stamp(sent + last + s.between(200, 1_500))
	r.HTTPStatus, r.Outcome, r.FinishReason, r.Done = ledger.Some(200), ledger.OK, "stop", true
	if tokens == 8 {
		r.FinishReason = "length"
	}
	r.PromptTokens, r.CompletionTokens, r.CachedTokens = ledger.Some(s.between(698, 712)), ledger.Some(tokens), ledger.Some(0)
	if warm {
		r.CachedTokens = ledger.Some(688)
	}
	r.Deltas = tokens - r.Context%2
	r.Events, r.TextBytes, r.Bytes = r.Deltas+3, r.Deltas*3, 2_000+r.Deltas*180
	r.Quirks = int64(ledger.QuirkRoleOnly | ledger.QuirkEmptyChoices)
	if r.Deltas < tokens {
		r.Quirks |= int64(ledger.QuirkMultiTokenDelta)
	}
	r.Buffered = r.IsBuffered()
	r.OutputCommit = s.commit.Commit(ledger.LabelOutput, fmt.Append(nil, r.Context, tokens))
	r.Oracle = ledger.OraclePass
	if r.Context%16 == 5 {
		r.Oracle = ledger.OracleFail
	}
}

// sample takes a sample a second, from before the first request to after the last end.
func (s *simulation) sample() {
	for at := int64(1_000); ; at += 1_000_000 + s.between(0, 2_000) {
		last := at > s.end
		s.resources = append(s.resources, s.at(at))
		if last {
			return
		}
	}
}

func (s *simulation) at(t int64) ledger.Resource {
	var open, most, prompt, out, hits, sent, gone int64
	type edge struct{ t, step int64 }
	var edges []edge
	for _, r := range s.rows {
		if r.SentUS.V <= t {
			edges = append(edges, edge{r.SentUS.V, 1})
		}
		x := served{1, 0, r.PromptTokens.V, r.CompletionTokens.V, r.CachedTokens.V}
		if s.extra != nil {
			x = s.extra(&r)
		}
		if r.SentUS.V <= t && s.extra == nil {
			sent++
		}
		if r.EndUS <= t {
			edges = append(edges, edge{r.EndUS, -1})
			prompt, out, hits = prompt+x.prompt, out+x.out, hits+x.hits
			if s.extra != nil {
				sent, gone = sent+x.requests, gone+x.aborted
			}
		}
	}
	slices.SortFunc(edges, func(a, b edge) int { return cmp.Or(cmp.Compare(a.t, b.t), cmp.Compare(a.step, b.step)) })
	for _, e := range edges {
		open += e.step
		most = max(most, open)
	}
	v := map[string]int64{ledger.SeriesRunning: open, ledger.SeriesWaiting: 0, ledger.SeriesQueueOldestAge: 0, ledger.SeriesQueueWaitCount: sent,
		ledger.SeriesQueueWaitSum: sent * 700, ledger.SeriesKVPagesUsed: 44 + open*2, ledger.SeriesKVPagesFree: 468 - open*2, ledger.SeriesKVPagesCached: 43,
		ledger.SeriesKVSlots: open, ledger.SeriesKVCapacityTokens: 8192, ledger.SeriesServerMemory: 300 << 20, ledger.SeriesPrefixQueries: prompt,
		ledger.SeriesPrefixHits: hits, ledger.SeriesPromptTokens: prompt, ledger.SeriesOutputTokens: out, ledger.SeriesRequests: sent, ledger.SeriesPreemptions: 0, ledger.SeriesAborted: gone, ledger.SeriesServerStart: 1_795_999_000_000_000}
	res := ledger.Resource{TUS: t,
		Client: ledger.ClientUsage{RSSBytes: ledger.Some(15<<20 + t/1e4), HWMBytes: ledger.Some(16<<20 + t/1e4), CPUUS: ledger.Some(20_000 + t/500),
			FDs: ledger.Some(14), HeapBytes: 3<<20 + t%4096, Goroutines: 17, InFlight: open, InFlightPeak: most, SchedLagUS: 90 + t%37, GCPauseUS: 20 + t%13},
		Server: &ledger.ServerUsage{RSSBytes: ledger.Some(310<<20 + t/1e3), HWMBytes: ledger.Some(320<<20 + t/1e3), CPUUS: ledger.Some(900_000 + t*19/10),
			StartUS: ledger.Some(77_000_000), Processes: ledger.Some(1), HeapBytes: ledger.Some(120<<20 + t%8192), SysBytes: ledger.Some(340 << 20), RunningSelf: ledger.Some(open)},
		Host: ledger.HostUsage{BusyUS: ledger.Some(5_000_000 + t*2), AvailableBytes: ledger.Some(20 << 30)},
		GPUs: []ledger.GPUUsage{{GPU: s.commit.Commit(ledger.LabelGPU, []byte("GPU-0")), Source: ledger.GPUByNVML, MemoryUsedBytes: ledger.Some(3<<30 + t/1e3), MemoryTotalBytes: ledger.Some(24 << 30),
			PowerMW: ledger.Some(30_000 + t%9_000), EnergyMJ: ledger.Some(123_456_789 + t/30), BusyPPM: ledger.Some(t % 7 * 100_000), SMMHz: ledger.Some(1_980)}}}
	for _, name := range ledger.SeriesNames() {
		reading := ledger.SeriesReading{Name: name, State: ledger.SeriesNotExposed}
		if x, ok := v[name]; ok {
			reading = ledger.SeriesReading{Name: name, Source: "sim_" + name, State: ledger.SeriesValue, Value: ledger.Some(x)}
		}
		res.Series = append(res.Series, reading)
	}
	return res
}

// served is what the server counts of one attempt.
type served struct{ requests, aborted, prompt, out, hits int64 }

func (s *simulation) log() {
	last := s.resources[len(s.resources)-1]
	wall := s.cfg.StartedWallUS
	s.events = []ledger.Event{
		{Kind: ledger.EventStart, WallUS: ledger.Some(wall)},
		{TUS: 500, Kind: ledger.EventReady, Value: ledger.Some(400)},
		{TUS: s.end + 10, Kind: ledger.EventPeak, Value: ledger.Some(last.Client.InFlightPeak)},
		{TUS: last.TUS, Kind: ledger.EventEnd, WallUS: ledger.Some(wall + last.TUS), Detail: ledger.StatusFinished},
	}
}

package verify

import (
	"crypto/ed25519"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"cotenant/internal/ledger"
	"cotenant/internal/loadgen"
)

// A fixture is a good run with one thing wrong: everything else, hashes included, is made to fit again.
type fixture struct {
	rule     string
	contexts int64                          // 0: 100
	load     string                         // a run under the plan of that name
	control  bool                           // a run of the contract controlled, which is good but for its number of contexts
	orch     bool                           // the same of the contract orchestration
	run      func(r *run)                   // changes the run before its ledger is computed
	ledger   func(l *ledger.Ledger)         // changes the ledger
	files    func(t *testing.T, dir string) // changes what was written
	options  func(t *testing.T, dir string) Options
}

var fixtures = []fixture{
	{rule: "R-FORM-01", files: func(t *testing.T, dir string) {
		path := filepath.Join(dir, ledger.LedgerFile)
		write(t, path, append(read(t, path), '\n'))
	}},
	{rule: "R-FORM-02", files: func(t *testing.T, dir string) {
		path := filepath.Join(dir, ledger.RowsFile)
		write(t, path, []byte(strings.Replace(string(read(t, path)), `{"attempt":1,`, `{"attempt":1,"audit":0,`, 1)))
		rehash(t, dir)
	}},
	{rule: "R-FILE-01", ledger: func(l *ledger.Ledger) {
		l.Files[1].SHA256 = strings.Repeat("0", 64)
		l.FilesRoot = root(l.Files)
	}},
	{rule: "R-FILE-02", ledger: func(l *ledger.Ledger) {
		l.Files[1].MerkleRoot = l.Files[2].MerkleRoot
		l.FilesRoot = root(l.Files)
	}},
	{rule: "R-FILE-03", ledger: func(l *ledger.Ledger) { l.FilesRoot = l.Files[1].MerkleRoot }},
	{rule: "R-CONF-01", run: func(r *run) { r.events[0].ConfigSHA256 = strings.Repeat("a", 64) }},
	{rule: "R-CONF-02", run: func(r *run) {
		r.events[0], r.events[1] = r.events[1], r.events[0]
	}},
	{rule: "R-CONF-03", ledger: func(l *ledger.Ledger) { l.Model = "another" }},
	{rule: "R-CONF-04", run: func(r *run) { r.cfg.Endpoint += "/" }},
	{rule: "R-LEAK-01", run: func(r *run) { r.events[1].Detail = "answered by " + r.cfg.Endpoint }},
	{rule: "R-DEF-01", ledger: func(l *ledger.Ledger) { l.Definitions.Percentile = "linear interpolation" }},
	{rule: "R-RUNG-01", run: func(r *run) {
		r.cfg.Contexts--
		r.rows = slices.DeleteFunc(r.rows, func(x ledger.Row) bool { return x.Context == r.cfg.Contexts })
		r.settle()
	}},
	{rule: "R-STAT-01", run: func(r *run) { r.events[len(r.events)-1].Detail = ledger.StatusInterrupted }},
	{rule: "R-CTX-01", run: func(r *run) {
		// Context a's result is given a second time as context b's.
		a, b := r.ok(20), r.ok(21)
		b.Context = a.Context
	}},
	{rule: "R-FAIL-01", run: func(r *run) {
		x := r.ok(20)
		x.Outcome, x.Error, x.Oracle = ledger.InbandError, "out of memory", ledger.OracleNone
		x.WastedTokens = x.CompletionTokens.V
	}},
	{rule: "R-USAGE-01", run: func(r *run) {
		x := r.ok(20)
		x.PromptTokens, x.CompletionTokens, x.CachedTokens = ledger.Opt{}, ledger.Opt{}, ledger.Opt{}
		x.Buffered = x.IsBuffered()
	}},
	{rule: "R-RETRY-01", run: func(r *run) { r.ok(20).Attempt = 2 }},
	{rule: "R-SENT-01", run: func(r *run) {
		r.events = slices.Insert(r.events, 2, ledger.Event{TUS: 600, Kind: ledger.EventResent, Context: ledger.Some(3), Turn: ledger.Some(0), Attempt: ledger.Some(1)})
	}},
	{rule: "R-QUEUE-01", run: func(r *run) { r.ok(20).QueuedUS = r.ok(20).PickedUS - 1 }},
	{rule: "R-OUT-01", run: func(r *run) { r.ok(20).HTTPStatus = ledger.Some(500) }},
	{rule: "R-WORK-01", run: func(r *run) { r.ok(20).Worker = r.cfg.Workers }},
	{rule: "R-LANE-01", run: func(r *run) {
		x := r.ok(20)
		x.Worker = (x.Worker + 1) % r.cfg.Workers
	}},
	{rule: "R-PEAK-01", run: func(r *run) {
		for i := range r.events {
			if r.events[i].Kind == ledger.EventPeak {
				r.events[i].Value.V--
			}
		}
	}},
	{rule: "R-PEAK-02", run: func(r *run) { r.resources[len(r.resources)-1].Client.InFlightPeak++ }},
	{rule: "R-TIME-01", run: func(r *run) {
		x := r.ok(20)
		x.HeadersUS.V = x.SentUS.V - 1
	}},
	{rule: "R-BASE-01", run: func(r *run) { r.ok(20).Base = r.ok(20).PromptCommit }},
	{rule: "R-PROMPT-01", run: func(r *run) { r.ok(20).PromptCommit = r.ok(21).PromptCommit }},
	{rule: "R-PROMPT-02", run: func(r *run) {
		w, err := loadgen.New(loadgen.Options{Seed: 7})
		if err != nil {
			panic(err)
		}
		r.cfg.Workload.Name, r.cfg.Workload.SHA256, r.cfg.Workload.Unique = loadgen.Version, w.Hash(), false
	}},
	{rule: "R-TOK-01", run: func(r *run) {
		x := r.ok(20)
		x.Deltas = x.CompletionTokens.V + 1
	}},
	{rule: "R-TOK-02", ledger: func(l *ledger.Ledger) { l.Tokens.TextBytes++ }},
	{rule: "R-TOK-03", run: func(r *run) { r.cfg.MaxSpend = ledger.Some(1000) }},
	{rule: "R-COUNT-01", ledger: func(l *ledger.Ledger) { l.Counts.Reconnects++ }},
	{rule: "R-LAT-01", ledger: func(l *ledger.Ledger) { l.Times.SendLag.P90.ValueUS.V++ }},
	{rule: "R-RATE-01", ledger: func(l *ledger.Ledger) { l.Rates.WarmResultsPer1e6s.V++ }},
	{rule: "R-ORA-01", ledger: func(l *ledger.Ledger) { l.Oracle.WilsonLowPPM.V++ }},
	{rule: "R-BUF-01", run: func(r *run) {
		x := r.ok(20)
		x.Buffered = !x.Buffered
	}},
	{rule: "R-TTFT-01", run: func(r *run) {
		for n := range 8 {
			x := r.ok(20 + n)
			x.FirstTokenUS, x.FirstContentUS = x.LastTokenUS, x.LastTokenUS
			x.Buffered = x.IsBuffered()
		}
	}, ledger: func(l *ledger.Ledger) {
		l.Claims = append(l.Claims, ledger.Claim{ID: ledger.ClaimTTFT, Statement: "median time to first token", Value: l.Times.TTFT.P50.ValueUS.V,
			Unit: "us", Evidence: "/times/ttft/p50/value_us", Bound: "of this run's sample"})
	}},
	{rule: "R-RES-01", run: func(r *run) {
		// The last two samples go: the trace ends before the run.
		r.resources = r.resources[:len(r.resources)-2]
	}},
	{rule: "R-RES-02", run: func(r *run) { r.resources = slices.Delete(r.resources, 5, 8) }},
	{rule: "R-RES-03", contexts: 1000, run: func(r *run) { r.resources[5].Client.RSSBytes = ledger.Opt{} }},
	{rule: "R-RES-04", contexts: 1000, run: func(r *run) {
		for i := range r.resources {
			r.resources[i].Series = nil
		}
	}},
	{rule: "R-RES-05", run: func(r *run) {
		for i := range r.resources[5:] {
			server := *r.resources[5+i].Server
			server.StartUS = ledger.Some(server.StartUS.Or(0) + 1e6)
			r.resources[5+i].Server = &server
		}
	}},
	{rule: "R-RES-06", run: func(r *run) { r.resources[5].Client.CPUUS = ledger.Some(1) }},
	{rule: "R-SUM-01", ledger: func(l *ledger.Ledger) { l.Series[7].Min.V++ }},
	{rule: "R-GPU-01", ledger: func(l *ledger.Ledger) { l.GPUs[0].BusyMeanPPM.V++ }},
	{rule: "R-TERM-01", control: true, run: func(r *run) { r.cfg.MaxAttempts = 4 }},
	{rule: "R-CAN-01", control: true, run: func(r *run) { r.first(ledger.EventRollback).Detail = r.cfg.Controlled.BadBaseCommit }},
	{rule: "R-FAULT-01", control: true, run: func(r *run) { r.first(ledger.EventFault).Detail = "stall_mid_stream" }},
	{rule: "R-FAULT-02", control: true, run: func(r *run) {
		for i := range r.rows {
			if x := &r.rows[i]; x.Outcome == ledger.TimeoutIdle {
				x.Outcome = ledger.TimeoutTotal
			}
		}
	}},
	{rule: "R-PARK-01", control: true, run: func(r *run) {
		for i := range r.rows {
			if x := &r.rows[i]; x.Turn == 1 {
				x.Restored = x.PromptCommit
				break
			}
		}
	}},
	{rule: "R-PARK-02", control: true, files: func(t *testing.T, dir string) {
		path := filepath.Join(dir, ledger.ParkFile)
		b := read(t, path)
		b[len(b)-1] ^= 1
		write(t, path, b)
	}},
	{rule: "R-QUIET-01", control: true, run: func(r *run) {
		at := r.first(ledger.EventQuiet).TUS
		last := 0
		for i, s := range r.resources {
			if s.TUS <= at {
				last = i
			}
		}
		r.resources[last].Series = slices.Clone(r.resources[last].Series)
		r.resources[last].Series[0].Value = ledger.Some(1) // requests_running
	}},
	{rule: "R-REC-01", control: true, run: func(r *run) {
		s := &r.resources[len(r.resources)-1]
		s.Series = slices.Clone(s.Series)
		for i := range s.Series {
			if s.Series[i].Name == ledger.SeriesPromptTokens {
				s.Series[i].Value.V += 100_000
			}
		}
	}},
	{rule: "R-ORA-02", orch: true, run: func(r *run) { r.ok(20).Oracle = ledger.OracleFail }},
	{rule: "R-MEM-01", orch: true, run: func(r *run) { r.resources[len(r.resources)-1].Client.HWMBytes = ledger.Some(ledger.MaxClientBytes) }},
	{rule: "R-CONN-01", orch: true, run: func(r *run) {
		for n := range 8 {
			r.ok(20 + n).ConnReused = false
		}
	}},
	{rule: "R-CTL-01", control: true, ledger: func(l *ledger.Ledger) { l.Controlled.Faults[3].Recovered++ }},
	{rule: "R-LOAD-01", load: "open", run: func(r *run) {
		// A late one is called punctual.
		x := r.ok(90)
		x.QueuedUS = x.PickedUS
	}},
	{rule: "R-LOAD-02", load: "search", run: func(r *run) {
		for i := range r.events {
			if e := &r.events[i]; e.Kind == ledger.EventStage && e.Context.V == 75 {
				e.Value.V = 3
			}
		}
	}},
	{rule: "R-LOAD-03", load: "tenants", run: func(r *run) {
		for i := range r.rows {
			if x := &r.rows[i]; x.Context == 99 {
				r.moveTo(x, (x.Worker+1)%4)
				for r.cfg.Load.Pattern()[x.Worker] == ledger.TenantOf(r.cfg.Load.Pattern(), 99) {
					r.moveTo(x, (x.Worker+1)%4)
				}
			}
		}
	}},
	{rule: "R-LOAD-04", load: "tenants", ledger: func(l *ledger.Ledger) { l.Load.Tenants[0].Service++ }},
	{rule: "R-PAIR-01", load: "paired", run: func(r *run) {
		var first *ledger.Row
		for i := range r.rows {
			x := &r.rows[i]
			if x.Base != "" {
				continue
			}
			if first == nil {
				first = x
				continue
			}
			x.PromptCommit = first.PromptCommit
			break
		}
	}},
	{rule: "R-PUB-01", files: func(t *testing.T, dir string) {
		inPlace(t, dir, 0, func(p *ledger.Published) { p.Files[4].Bytes++ })
	}},
	{rule: "R-PUB-02", files: func(t *testing.T, dir string) {
		inPlace(t, dir, 0, func(p *ledger.Published) { p.Redactions[0].Method = ledger.MethodHash })
	}},
	{rule: "R-PUB-03", files: func(t *testing.T, dir string) {
		inPlace(t, dir, 8, func(p *ledger.Published) { p.Sample.Count-- })
	}},
	{rule: "R-PUB-04", run: func(r *run) {
		x := r.ok(20)
		x.HeadersUS.V = x.SentUS.V - 1
	}, files: func(t *testing.T, dir string) { inPlace(t, dir, 1000, func(*ledger.Published) {}) }},
	{rule: "R-COST-01", run: func(r *run) {
		for i := range r.resources {
			r.resources[i].Client.CPUUS = ledger.Some(r.resources[i].TUS)
		}
	}, ledger: func(l *ledger.Ledger) {
		l.Claims = append(l.Claims, ledger.Claim{ID: "latency_p50", Statement: "median time from sent to end", Value: l.Times.Latency.P50.ValueUS.V,
			Unit: "us", Evidence: "/times/latency/p50/value_us", Bound: "of this run's sample"})
	}},
	{rule: "R-CLAIM-01", ledger: func(l *ledger.Ledger) { l.Claims[1].Value++ }},
	{rule: "R-CLAIM-02", ledger: func(l *ledger.Ledger) { l.NonClaims = l.NonClaims[1:] }},
	{rule: "R-ADM-01", run: func(r *run) { r.cfg.RunOrdinal++ }, ledger: func(l *ledger.Ledger) { l.Admission.Rung = ledger.Some(1000) }},
	{rule: "R-SIGN-01", files: func(t *testing.T, dir string) {
		sign(t, dir)
		// The ledger is replaced by another one that holds as well.
		r := readRun(t, dir)
		r.events[1].Value.V++
		r.write(t, dir, nil)
	}},
	{rule: "R-SIGN-02", files: func(t *testing.T, dir string) { sign(t, dir) }, options: func(t *testing.T, dir string) Options {
		return Options{Keys: []ed25519.PublicKey{key(2).Public().(ed25519.PublicKey)}}
	}},
}

// settle makes a run end where its rows do: peaks, samples and counters beyond them go.
func (r *run) settle() {
	end := int64(0)
	for _, x := range r.rows {
		end = max(end, x.EndUS)
	}
	keep := slices.IndexFunc(r.resources, func(s ledger.Resource) bool { return s.TUS > end })
	r.resources = r.resources[:keep+1]
}

// rehash makes the ledger's files[] fit the files.
func rehash(t *testing.T, dir string) {
	f, err := ledger.OpenFolder(dir)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, ledger.LedgerFile)
	l, err := ledger.ReadLedger(read(t, path))
	if err != nil {
		t.Fatal(err)
	}
	if l.Files, err = f.Files(); err != nil {
		t.Fatal(err)
	}
	l.FilesRoot = root(l.Files)
	write(t, path, marshal(t, l))
}

func root(files []ledger.File) string {
	r, err := ledger.FilesRoot(files)
	if err != nil {
		panic(err)
	}
	return r
}

func key(n byte) ed25519.PrivateKey {
	seed := make([]byte, ed25519.SeedSize)
	seed[0] = n
	return ed25519.NewKeyFromSeed(seed)
}

func sign(t *testing.T, dir string) {
	if err := ledger.Sign(dir, key(1)); err != nil {
		t.Fatal(err)
	}
}

// TestEachRuleHasItsFixture holds the one-to-one map: a rule without a fixture proves nothing, and a fixture that breaks
// two rules doesn't show that each of them works.
func TestEachRuleHasItsFixture(t *testing.T) {
	var ids, covered []string
	for _, r := range Rules() {
		ids = append(ids, r.ID)
		if r.Title == "" || len(r.Explain) < 40 {
			t.Errorf("%s isn't explained", r.ID)
		}
		for _, id := range r.After {
			if !slices.Contains(ids, id) {
				t.Errorf("%s rests on %s, which isn't judged before it", r.ID, id)
			}
		}
	}
	for _, f := range fixtures {
		covered = append(covered, f.rule)
	}
	if !slices.Equal(ids, covered) {
		t.Errorf("rules %v\nfixtures %v", ids, covered)
	}
}

func TestFixtures(t *testing.T) {
	for _, f := range fixtures {
		t.Run(f.rule, func(t *testing.T) {
			t.Parallel()
			dir, opts := f.build(t)
			r, err := Dir(dir, opts)
			if err != nil {
				t.Fatal(err)
			}
			failed := r.Failed()
			if f.control || f.orch { // of which a small run is no rung
				failed = slices.DeleteFunc(failed, func(x Result) bool { return x.Rule == "R-RUNG-01" })
			}
			if len(failed) != 1 || failed[0].Rule != f.rule {
				t.Errorf("failed rules: %+v", failed)
			}
			if r.ExitCode() != 3 || len(r.Establishes) != 0 {
				t.Errorf("exit code %d, %d claims", r.ExitCode(), len(r.Establishes))
			}
			if len(failed) > 0 {
				t.Log(failed[0].Detail)
			}
		})
	}
}

func (f *fixture) build(t *testing.T) (string, Options) {
	dir := t.TempDir()
	contexts := f.contexts
	if contexts == 0 {
		contexts = 100
	}
	r := good(t, contexts)
	if f.load != "" {
		r = simulateLoad(t, f.load)
	}
	if f.control {
		r = simulateControlled(t, smallControlled, 16)
		r.parkFile(t, dir)
	}
	if f.orch {
		r = simulateOrchestration(t, 100)
	}
	// The config's hash is filled in anew, since fixtures change configs.
	for i := range r.events {
		r.events[i].ConfigSHA256 = ""
	}
	if f.run != nil {
		f.run(r)
	}
	r.write(t, dir, f.ledger)
	if f.files != nil {
		f.files(t, dir)
	}
	if f.options != nil {
		return dir, f.options(t, dir)
	}
	return dir, Options{}
}

// smallControlled is a number of contexts that has a fault of each kind, one of 16 contexts.
const smallControlled = 160

// first returns the first event of a kind.
func (r *run) first(kind string) *ledger.Event {
	for i := range r.events {
		if r.events[i].Kind == kind {
			return &r.events[i]
		}
	}
	panic("no such event")
}

// TestControlled: a run under the contract holds at its lowest rung, and a small one but for its size.
func TestControlled(t *testing.T) {
	for _, c := range []struct {
		contexts, block int64
		failed          string
	}{{smallControlled, 16, "R-RUNG-01"}, {ledger.ControlledRung, 64, ""}} {
		dir := t.TempDir()
		r := simulateControlled(t, c.contexts, c.block)
		r.write(t, dir, nil)
		r.parkFile(t, dir)
		report, err := Dir(dir, Options{})
		if err != nil {
			t.Fatal(err)
		}
		var failed []string
		for _, f := range report.Failed() {
			failed = append(failed, f.Rule)
			t.Logf("%s: %s", f.Rule, f.Detail)
		}
		if strings.Join(failed, " ") != c.failed {
			t.Errorf("%d contexts: %v", c.contexts, failed)
		}
		if c.failed != "" {
			continue
		}
		ids := map[string]bool{}
		for _, claim := range report.Establishes {
			ids[claim.ID] = true
		}
		for _, want := range []string{"rollback", "faults_recovered", "restored", "gauges_returned", "queue_age_p95_upper", "reconciled_prompt_tokens_total",
			"reconciled_completion_tokens_total", "reconciled_requests_total", "reconciled_prefix_hit_tokens_total", "reconciled_requests_aborted_total"} {
			if !ids[want] {
				t.Errorf("%s isn't established", want)
			}
		}
	}
}

// TestEveryMemberIsCompared makes sure that a member of the ledger that is added later has a rule.
func TestEveryMemberIsCompared(t *testing.T) {
	var l map[string]json.RawMessage
	b, err := os.ReadFile("testdata/good-100/ledger.json")
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(b, &l); err != nil {
		t.Fatal(err)
	}
	for name := range l {
		if owners[name] == "" {
			t.Errorf("no rule compares %s", name)
		}
	}
	for name, id := range owners {
		if _, ok := l[name]; !ok {
			t.Errorf("%s isn't in the ledger", name)
		}
		if _, ok := RuleByID(id); !ok && id != "load" {
			t.Errorf("%s is compared by %s, which isn't a rule", name, id)
		}
	}
}

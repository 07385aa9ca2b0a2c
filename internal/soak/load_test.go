package soak

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"cotenant/internal/ledger"
	"cotenant/internal/loadgen"
)

// withPlan gives options with a plan, as a user gives it.
func withPlan(t testing.TB, m *memory, contexts int64, spec LoadSpec) Options {
	t.Helper()
	o := options(t, m, contexts)
	spec.Seed = "1"
	var err error
	if o.Load, err = spec.Plan(o.Workers, nil); err != nil {
		t.Fatal(err)
	}
	if spec.Paired {
		if o.Source, err = loadgen.NewPairs(loadgen.Options{Seed: 1}); err != nil {
			t.Fatal(err)
		}
	}
	return o
}

// soaked makes a run that has to finish and hold.
func soaked(t testing.TB, o Options) *ledger.Ledger {
	t.Helper()
	res, err := Run(context.Background(), o)
	if err != nil {
		t.Fatal(err)
	}
	if failed := failedRules(t, o.Out); failed != "" && failed != "R-RUNG-01" {
		t.Errorf("rules that fail: %s", failed)
	}
	if res.Ledger.Counts.Completed != o.Contexts {
		t.Errorf("%d of %d contexts completed: %s", res.Ledger.Counts.Completed, o.Contexts, outcomes(&res.Ledger))
	}
	return &res.Ledger
}

func claims(l *ledger.Ledger, id string) bool {
	return slices.ContainsFunc(l.Claims, func(c ledger.Claim) bool { return c.ID == id })
}

func disclaims(l *ledger.Ledger, id string) bool {
	return slices.ContainsFunc(l.NonClaims, func(s ledger.Statement) bool { return s.ID == id })
}

func TestOpenLoop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		e := &endpoint{t: t, answer: solver}
		defer e.serve(m)()
		o := withPlan(t, m, 100, LoadSpec{Shape: "constant:5"})
		l := soaked(t, o)
		// Contexts come 200 ms apart, and a server that answers in less leaves a worker free for each.
		if l.Load.WorkersOut != 0 || l.Load.StartLag.MaxUS.V > 1000 || l.Times.LatencySchedule.N != 100 {
			t.Errorf("%d found no worker, start lag %+v", l.Load.WorkersOut, l.Load.StartLag)
		}
		rows := rowsOf(t, o.Out)
		slices.SortFunc(rows, func(a, b ledger.Row) int { return int(a.Context - b.Context) })
		for i := 1; i < len(rows); i++ {
			if gap := rows[i].QueuedUS - rows[i-1].QueuedUS; gap != 200_000 {
				t.Fatalf("contexts %d and %d are due %d us apart", i-1, i, gap)
			}
		}
		if !claims(l, "latency_from_schedule_p50") || disclaims(l, "open_loop") {
			t.Errorf("claims %+v", l.Claims)
		}
	})
}

// TestWorkersRunOut: a server that is too slow for the rate makes contexts wait for a worker; what they wait stands in the times from the
// schedule, and that the loop was closed is said.
func TestWorkersRunOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		e := &endpoint{t: t, answer: func(w *reply) { w.normal(solve(w.request.Messages), time.Second, 0) }}
		defer e.serve(m)()
		l := soaked(t, withPlan(t, m, 100, LoadSpec{Shape: "poisson:20"}))
		if l.Load.WorkersOut < 80 || !disclaims(l, "open_loop") {
			t.Errorf("%d of 100 found no worker", l.Load.WorkersOut)
		}
		sent, due := l.Times.Latency.MaxUS.V, l.Times.LatencySchedule.MaxUS.V
		if sent > 1_100_000 || due < 10_000_000 || l.Times.TTFTSchedule.P50.ValueUS.V < 5_000_000 {
			t.Errorf("the longest took %d us from sent and %d us from the schedule", sent, due)
		}
	})
}

// TestFailuresAreInfinite: what never came counts as slower than anything.
func TestFailuresAreInfinite(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		e := &endpoint{t: t, answer: func(w *reply) {
			if w.n%5 == 0 {
				w.WriteHeader(400)
				return
			}
			solver(w)
		}}
		defer e.serve(m)()
		o := withPlan(t, m, 100, LoadSpec{Shape: "constant:50", Objectives: "ttft_p50_us=60000000,latency_p99_us=60000000"})
		res, err := Run(context.Background(), o)
		if err != nil {
			t.Fatal(err)
		}
		l := &res.Ledger
		if failed := failedRules(t, o.Out); failed != "R-FAIL-01" {
			t.Errorf("rules that fail: %s", failed)
		}
		if q := l.Times.TTFTAdjusted.P90; q.ValueUS.OK || q.Evidence != ledger.EvidenceInfinite || l.Times.TTFTSchedule.N != 100 || l.Times.TTFT.N != l.Counts.Turns {
			t.Errorf("%d failed, adjusted p90 %+v", l.Counts.Failed, q)
		}
		// The median may lie within a minute; the 99th percentile of a run that loses one in five doesn't.
		if s := l.Load.Stages[0]; s.Verdict != ledger.VerdictBroken || l.Load.Answer.Level.OK {
			t.Errorf("verdict %s", s.Verdict)
		}
	})
}

// TestSearch: of a server whose answers take 20 ms for each request that is open, the search finds how many it bears.
func TestSearch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		e := &endpoint{t: t}
		e.answer = func(w *reply) {
			w.normal(solve(w.request.Messages), time.Duration(e.open.Load())*20*time.Millisecond, gap)
		}
		defer e.serve(m)()
		spec := LoadSpec{Shape: "closed:1..16*8", Objectives: "ttft_p95_us=110000"}
		o := options(t, m, 1600)
		o.Workers = 16
		var err error
		if o.Load, err = spec.Plan(o.Workers, nil); err != nil {
			t.Fatal(err)
		}
		l := soaked(t, o)
		var levels []int64
		for _, s := range l.Load.Stages {
			levels = append(levels, s.Level.V)
		}
		if want := []int64{1, 2, 4, 8, 6, 5, 5, 5}; !slices.Equal(levels, want) {
			t.Errorf("levels %v, want %v", levels, want)
		}
		if a := l.Load.Answer; a.Level != ledger.Some(5) || a.BrokenAt != ledger.Some(6) || a.Results != 600 {
			t.Errorf("answer %+v", a)
		}
	})
}

// TestSmallSearch: a sample that can't carry the percentile's bound gives no answer.
func TestSmallSearch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		e := &endpoint{t: t, answer: solver}
		defer e.serve(m)()
		l := soaked(t, withPlan(t, m, 100, LoadSpec{Shape: "poisson:10..80*2", Objectives: "ttft_p99_us=1000000"}))
		if a := l.Load.Answer; a.Level.OK || l.Load.Stages[1].Verdict != ledger.VerdictNotEstablished || !disclaims(l, "objective_level") {
			t.Errorf("answer %+v, stages %+v", a, l.Load.Stages)
		}
	})
}

func TestTenants(t *testing.T) {
	user := func(w *reply) string {
		var body struct {
			User string `json:"user"`
		}
		if err := json.Unmarshal(w.raw, &body); err != nil {
			w.r.Context()
		}
		return body.User
	}
	for _, c := range []struct {
		name      string
		wait      func(user string) time.Duration
		low, high int64 // of Jain's index
	}{
		{"fair", func(string) time.Duration { return 100 * time.Millisecond }, 980_000, 1_000_000},
		{"one starves", func(u string) time.Duration {
			if u == "b" {
				return 2 * time.Second
			}
			return 50 * time.Millisecond
		}, 500_000, 600_000},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := newMemory()
				e := &endpoint{t: t, answer: func(w *reply) { w.normal(solve(w.request.Messages), c.wait(user(w)), gap) }}
				defer e.serve(m)()
				l := soaked(t, withPlan(t, m, 400, LoadSpec{Tenants: "a=1,b=1"}))
				if j := l.Load.JainPPM; j.V < c.low || j.V > c.high {
					t.Errorf("Jain's index %v, tenants %+v", j, l.Load.Tenants)
				}
				if l.Load.Tenants[0].Contexts != 200 || l.Load.Tenants[1].Contexts != 200 {
					t.Errorf("tenants %+v", l.Load.Tenants)
				}
			})
		})
	}
}

// TestPaired: a server that computes a base once saves what that takes, and a run of pairs says how much.
func TestPaired(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		seen := map[string]bool{}
		e := &endpoint{t: t}
		e.answer = func(w *reply) {
			e.mu.Lock()
			base := w.request.Messages[0].Content
			cost := 180 * time.Millisecond
			if seen[base] {
				cost = 30 * time.Millisecond
			}
			seen[base] = true
			e.mu.Unlock()
			w.normal(solve(w.request.Messages), cost, gap)
		}
		defer e.serve(m)()
		l := soaked(t, withPlan(t, m, 100, LoadSpec{Paired: true}))
		p := l.Load.Paired
		if q := p.TTFTDiff.P50; p.Pairs != 50 || q.ValueUS.V < 149_000 || q.ValueUS.V > 151_000 || q.LowerUS.V < 149_000 || !claims(l, "prefix_cache_benefit") {
			t.Errorf("%d pairs differ by %+v; claims %+v", p.Pairs, q, l.Claims)
		}
		if len(seen) != 52 { // one base of their own each, the shared one, and the canary's
			t.Errorf("%d bases were sent", len(seen))
		}
	})
}

const traceText = `{"at_us":0,"prompt_tokens":100,"output_tokens":2}
{"at_us":500000,"prompt":"What is 3 + 4?","output_tokens":3}
{"at_us":500000,"messages":[{"role":"user","content":"hello"}],"output_tokens":9}
{"at_us":2500000,"prompt_tokens":40,"output_tokens":4}
`

func TestTrace(t *testing.T) {
	path := filepath.Join(t.TempDir(), "trace.jsonl")
	if err := os.WriteFile(path, []byte(traceText), 0o600); err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		e := &endpoint{t: t, answer: func(w *reply) { w.normal("two words", 10*time.Millisecond, gap) }}
		defer e.serve(m)()
		trace, err := loadgen.ReadTrace(path)
		if err != nil {
			t.Fatal(err)
		}
		o := options(t, m, 4)
		o.Source, o.Trace, o.Workload, o.Nonce = trace, trace, WorkloadInfo{}, "n-1"
		if o.Load, err = (LoadSpec{Shape: "trace"}).Plan(o.Workers, trace); err != nil {
			t.Fatal(err)
		}
		o.Workers = 3
		soaked(t, o)
		rows := rowsOf(t, o.Out)
		slices.SortFunc(rows, func(a, b ledger.Row) int { return int(a.Context - b.Context) })
		for i, want := range []int64{0, 500_000, 500_000, 2_500_000} {
			if got := rows[i].QueuedUS - rows[0].QueuedUS; got != want {
				t.Errorf("context %d is due %d us after the first, want %d", i, got, want)
			}
		}
		asked := ""
		for _, b := range e.bodies {
			var body struct {
				MaxTokens int `json:"max_tokens"`
			}
			if err := json.Unmarshal(b, &body); err != nil {
				t.Fatal(err)
			}
			asked += fmt.Sprint(body.MaxTokens, " ")
		}
		if want := []string{"1 2 3 9 4 ", "1 2 9 3 4 "}; !slices.Contains(want, asked) {
			t.Errorf("answers of %s tokens were asked for", asked)
		}
		// The schedule belongs to the evidence: without it, or with another, the run doesn't hold.
		schedule := filepath.Join(o.Out, ledger.ScheduleFile)
		b, err := os.ReadFile(schedule)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(schedule, []byte(strings.Replace(string(b), "2500000", "2500001", 1)), 0o600); err != nil {
			t.Fatal(err)
		}
		if failed := failedRules(t, o.Out); failed != "R-RUNG-01 R-LOAD-01" {
			t.Errorf("rules that fail: %s", failed)
		}
		if err := os.Remove(schedule); err != nil {
			t.Fatal(err)
		}
		if failed := failedRules(t, o.Out); failed != "R-RUNG-01 R-LOAD-01" {
			t.Errorf("rules that fail: %s", failed)
		}
	})
}

// TestPlansGoOn: a run under each kind of plan that was killed goes on, and holds.
func TestPlansGoOn(t *testing.T) {
	for _, spec := range []LoadSpec{
		{Shape: "poisson:40,80"}, {Shape: "closed:1,4"}, {Shape: "poisson:20..80*4", Objectives: "latency_p50_us=400000"},
		{Shape: "closed:1..4*4", Objectives: "latency_p50_us=400000"}, {Tenants: "a=1,b=3"}, {Paired: true},
	} {
		t.Run(fmt.Sprintf("%+v", spec), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := newMemory()
				e := &endpoint{t: t, answer: solver}
				defer e.serve(m)()
				o := withPlan(t, m, 100, spec)
				soaked(t, o)
				asKilled(t, o.Out, 57)
				o.Resume = true
				l := soaked(t, o)
				if l.Segments != 2 || l.Counts.Duplicates != 0 || !l.Admission.Admitted {
					t.Errorf("%d segments, %+v", l.Segments, l.Admission)
				}
				other := o
				other.Load = &ledger.LoadPlan{Arrival: ledger.ArrivalClosed, Levels: []int64{2}}
				if _, err := Run(context.Background(), other); err == nil {
					t.Error("the run went on under another plan")
				}
			})
		})
	}
}

// TestOpenLoopIsInterrupted: workers that wait for a context's time don't keep a run that is to end.
func TestOpenLoopIsInterrupted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		e := &endpoint{t: t, answer: solver}
		defer e.serve(m)()
		o := withPlan(t, m, 100, LoadSpec{Shape: "constant:0.01"})
		ctx, cancel := context.WithCancel(context.Background())
		time.AfterFunc(250*time.Second, cancel)
		began := time.Now()
		res, err := Run(ctx, o)
		if err != nil || !res.Interrupted || time.Since(began) > 260*time.Second {
			t.Fatalf("%v after %v", err, time.Since(began))
		}
		if c := res.Ledger.Counts; c.Completed != 2 || c.Submitted != 2 {
			t.Errorf("%+v", c)
		}
		o.Resume = true
		res, err = Run(context.Background(), o)
		if err != nil || res.Ledger.Counts.Completed != 100 {
			t.Errorf("%v, %+v", err, res)
		}
		if failed := failedRules(t, o.Out); failed != "" {
			t.Errorf("rules that fail: %s", failed)
		}
	})
}

func TestLoadSpecs(t *testing.T) {
	for _, good := range []struct {
		spec LoadSpec
		want string
	}{
		{LoadSpec{}, "null"}, {LoadSpec{Shape: "closed"}, "null"},
		{LoadSpec{Shape: "poisson:0.5,2", Seed: "9"}, `"levels":[500000,2000000],`},
		{LoadSpec{Shape: "constant:20", Seed: "9"}, `"seed":"",`},
		{LoadSpec{Shape: "closed:1..4", Objectives: "latency_p999_us=7"}, `"search":{"high":4,"low":1,"steps":10}`},
		{LoadSpec{Shape: "closed:1..4*3", Objectives: "ttft_p50_us=5,latency_p90_us=6"}, `"objectives":[{"limit_us":5,"metric":"ttft","percentile":500},{"limit_us":6,"metric":"latency","percentile":900}]`},
		{LoadSpec{Tenants: "quiet=1,noisy=1x7"}, `"tenants":[{"name":"quiet","share":1,"weight":1},{"name":"noisy","share":7,"weight":1}]`},
		{LoadSpec{Paired: true}, `"paired":true`},
	} {
		p, err := good.spec.Plan(4, nil)
		if err != nil {
			t.Errorf("%+v: %v", good.spec, err)
			continue
		}
		b := []byte("null")
		if p != nil {
			if b, err = ledger.Marshal(p); err != nil {
				t.Fatal(err)
			}
		}
		if !strings.Contains(string(b), good.want) {
			t.Errorf("%+v is %s, want %s", good.spec, b, good.want)
		}
	}
	for _, bad := range []LoadSpec{
		{Shape: "burst:3"}, {Shape: "poisson"}, {Shape: "poisson:"}, {Shape: "poisson:-1"}, {Shape: "poisson:NaN"}, {Shape: "constant:1e9"}, {Shape: "poisson:0"},
		{Shape: "closed:x"}, {Shape: "closed:1.5"}, {Shape: "closed:1..4"}, {Shape: "closed:1..4*0", Objectives: "ttft_p50_us=5"}, {Shape: "closed:..4", Objectives: "ttft_p50_us=5"},
		{Shape: "trace"}, {Objectives: "ttft=5"}, {Objectives: "ttft_p42_us=5"}, {Objectives: "ttft_p50_ms=5"}, {Objectives: "ttft_p50_us="},
		{Tenants: "a"}, {Tenants: "a=x,b=1"}, {Tenants: "a=1x,b=1"}, {Tenants: "=1"},
	} {
		if p, err := bad.Plan(4, nil); err == nil {
			t.Errorf("%+v is taken as %+v", bad, p)
		}
	}
	// What only the run's other numbers show.
	for _, c := range []struct {
		spec              LoadSpec
		contexts, workers int64
		contract          string
	}{
		{LoadSpec{Shape: "closed:8"}, 100, 4, ""}, {LoadSpec{Shape: "poisson:1,2,3"}, 100, 4, ""}, {LoadSpec{Tenants: "a=1,b=9"}, 100, 4, ""}, {LoadSpec{Tenants: "a=1,a=1"}, 100, 4, ""},
		{LoadSpec{Tenants: "a=1,b=0"}, 100, 4, ""}, {LoadSpec{Tenants: "a=1"}, 100, 4, ""}, {LoadSpec{Tenants: "a b=1,c=1"}, 100, 4, ""}, {LoadSpec{Paired: true}, 101, 4, ""},
		{LoadSpec{Shape: "closed:4..1", Objectives: "ttft_p50_us=5"}, 80, 4, ""}, {LoadSpec{Objectives: "speed_p50_us=5"}, 100, 4, ""}, {LoadSpec{Objectives: "ttft_p50_us=0"}, 100, 4, ""},
		{LoadSpec{Shape: "poisson:2"}, 10_000, 4, ledger.ContractControlled}, {LoadSpec{Shape: "poisson:0.001"}, 10_000, 4, ""},
	} {
		o := options(t, nil, c.contexts)
		o.Workers, o.Contract = c.workers, c.contract
		var err error
		c.spec.Seed = "1"
		if o.Load, err = c.spec.Plan(o.Workers, nil); err != nil {
			t.Errorf("%+v: %v", c.spec, err)
		}
		if err := o.fill(); err == nil {
			t.Errorf("%+v is taken for %d contexts and %d workers", c.spec, c.contexts, c.workers)
		}
	}
}

package soak

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
	"unsafe"

	"cotenant/internal/ledger"
	"cotenant/internal/loadgen"
	"cotenant/internal/scrape"
	"cotenant/internal/verify"
)

func TestSeriesNamesMatch(t *testing.T) {
	got, want := strings.Join(scrape.Names(), " "), strings.Join(ledger.SeriesNames(), " ")
	if got != want {
		t.Errorf("scrape has %s\nledger has %s", got, want)
	}
	if scrape.StateValue != ledger.SeriesValue || scrape.StateNaN != ledger.SeriesNaN || scrape.StateNotExposed != ledger.SeriesNotExposed || scrape.StateError != ledger.SeriesError {
		t.Error("the states of scrape and ledger differ")
	}
}

// options are those of a small run against m.
func options(t testing.TB, m *memory, contexts int64) Options {
	t.Helper()
	w, err := loadgen.New(loadgen.Options{Seed: 1})
	if err != nil {
		t.Fatal(err)
	}
	o := Options{Endpoint: "http://127.0.0.1:8080", Model: "m", Contexts: contexts, Workers: 4, Source: w, Out: filepath.Join(t.TempDir(), "run"),
		Workload: WorkloadInfo{Seed: "1", BaseTokens: ledger.Some(690)}, Build: BuildInfo("test"), RulesVersion: 1}
	if m != nil {
		o.Dial = m.dial
	}
	return o
}

// solver answers tasks rightly, a token a word, after the first at once.
func solver(w *reply) { w.normal(solve(w.request.Messages), first, gap) }

func outcomes(l *ledger.Ledger) string {
	var s []string
	for _, o := range l.Counts.Outcomes {
		s = append(s, fmt.Sprintf("%s=%d", o.Outcome, o.Count))
	}
	return strings.Join(s, " ")
}

func rowsOf(t testing.TB, dir string) []ledger.Row {
	t.Helper()
	f, err := ledger.OpenFolder(dir)
	if err != nil {
		t.Fatal(err)
	}
	var rows []ledger.Row
	for r, err := range f.Rows() {
		if err != nil {
			t.Fatal(err)
		}
		rows = append(rows, r)
	}
	return rows
}

func eventsOf(t testing.TB, dir string) string {
	t.Helper()
	f, err := ledger.OpenFolder(dir)
	if err != nil {
		t.Fatal(err)
	}
	var s []string
	for e, err := range f.Events() {
		if err != nil {
			t.Fatal(err)
		}
		name := e.Kind
		if e.Kind == ledger.EventEnd {
			name += ":" + e.Detail
		}
		s = append(s, name)
	}
	return strings.Join(s, " ")
}

// failedRules is what package verify finds against a run.
func failedRules(t testing.TB, dir string) string {
	t.Helper()
	report, err := verify.Dir(dir, verify.Options{})
	if err != nil {
		t.Fatal(err)
	}
	var ids []string
	for _, r := range report.Failed() {
		ids = append(ids, r.Rule)
		t.Logf("%s: %s", r.Rule, r.Detail)
	}
	return strings.Join(ids, " ")
}

func TestRungOf100(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		e := &endpoint{t: t, answer: solver}
		e.metrics = func() string { return fmt.Sprintf("vllm:num_requests_running{engine=\"0\"} %d\n", e.open.Load()) }
		defer e.serve(m)()
		o := options(t, m, 100)
		var last Progress
		o.Progress = func(p Progress) { last = p }
		res, err := Run(context.Background(), o)
		if err != nil {
			t.Fatal(err)
		}
		l := &res.Ledger
		if code := ExitCode(res, nil); code != ExitAdmitted {
			t.Errorf("exit code %d, %v", code, l.Admission.Why)
		}
		c := &l.Counts
		if c.Submitted != 100 || c.Completed != 100 || c.Turns != 100 || c.UsageResponses != 100 || c.Failed != 0 || c.Attempts != 100 {
			t.Errorf("counts %+v", c)
		}
		if l.Oracle.Checked != 100 || l.Oracle.Passed != 100 {
			t.Errorf("oracle %+v", l.Oracle)
		}
		if l.Peaks.InFlight != 4 || l.Peaks.InFlightObserved != ledger.Some(4) || e.peak.Load() != 4 {
			t.Errorf("peak %d, counted %+v, the server saw %d", l.Peaks.InFlight, l.Peaks.InFlightObserved, e.peak.Load())
		}
		if p50 := l.Times.TTFT.P50.ValueUS.V; p50 < 99_900 || p50 > 100_100 {
			t.Errorf("median time to first token %d us, want 100000", p50)
		}
		if l.Samples.Count < 3 || !l.Samples.Covered || l.Samples.MaxGapUS.V > 1_100_000 {
			t.Errorf("samples %+v", l.Samples)
		}
		if s := l.Series[0]; s.Values != l.Samples.Count || s.Max.V < 1 || s.Source != "vllm:num_requests_running" {
			t.Errorf("series %+v", s)
		}
		if last.Completed != 100 || last.OraclePassed != 100 || last.Peak != 4 || last.InFlight != 0 {
			t.Errorf("last progress %+v", last)
		}
		if got, want := eventsOf(t, o.Out), "start ready canary peak end:finished"; got != want {
			t.Errorf("events %s, want %s", got, want)
		}
		checkBodies(t, e, o.Source)
		if failed := failedRules(t, o.Out); failed != "" {
			t.Errorf("rules that fail: %s", failed)
		}
		var table strings.Builder
		if err := WriteTable(&table, l); err != nil || !strings.Contains(table.String(), "100 / 100 / 0") || !strings.Contains(table.String(), "Admitted at rung 100") {
			t.Errorf("table: %v\n%s", err, table.String())
		}
	})
}

// checkBodies holds that each context was sent once, as the source has it, and that the canary came first.
func checkBodies(t *testing.T, e *endpoint, source loadgen.Source) {
	t.Helper()
	var canary struct {
		MaxTokens int `json:"max_tokens"`
	}
	json.Unmarshal(e.bodies[0], &canary)
	if canary.MaxTokens != 1 {
		t.Errorf("the first request asks for %d tokens, want the canary's 1", canary.MaxTokens)
	}
	seen := map[string]int{}
	for _, b := range e.bodies[1:] {
		var req struct {
			Messages      []loadgen.Message `json:"messages"`
			Stream        bool              `json:"stream"`
			MaxTokens     int               `json:"max_tokens"`
			Temperature   *float64          `json:"temperature"`
			StreamOptions struct {
				IncludeUsage bool `json:"include_usage"`
			} `json:"stream_options"`
		}
		if err := json.Unmarshal(b, &req); err != nil {
			t.Fatal(err)
		}
		if !req.Stream || !req.StreamOptions.IncludeUsage || req.MaxTokens != 8 || req.Temperature == nil || *req.Temperature != 0 || req.Messages[0].Content != source.Base() {
			t.Fatalf("request %.200s", b)
		}
		seen[req.Messages[1].Content]++
	}
	for n := range int64(100) {
		question := source.Task(n).Messages[1].Content
		if seen[question]--; seen[question] < 0 {
			t.Errorf("context %d was not sent", n)
		}
	}
}

func TestRetriesAreRows(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		tries := map[string]int{}
		e := &endpoint{t: t}
		e.answer = func(w *reply) {
			if w.request.MaxTokens == 1 {
				solver(w)
				return
			}
			key := w.request.Messages[1].Content
			e.mu.Lock()
			tries[key]++
			n := tries[key]
			e.mu.Unlock()
			switch {
			case strings.HasPrefix(key, "Repeat") && n == 1:
				w.Header().Set("Retry-After", "7")
				w.WriteHeader(429)
			case strings.HasPrefix(key, "What") && n < 3:
				w.begin()
				w.send(w.content("x"))
			default:
				solver(w)
			}
		}
		defer e.serve(m)()
		o := options(t, m, 20)
		res, err := Run(context.Background(), o)
		if err != nil {
			t.Fatal(err)
		}
		l := &res.Ledger
		if got, want := outcomes(l), "ok=20 truncated=10 http_429=5"; got != want || l.Counts.Retries != 15 || l.Tokens.Wasted != 10 {
			t.Errorf("outcomes %s, %d retries, %d wasted; want %s", got, l.Counts.Retries, l.Tokens.Wasted, want)
		}
		// 20 contexts is no rung; nothing else stands against this run.
		if why := strings.Join(l.Admission.Why, " "); why != ledger.WhyNotARung || ExitCode(res, nil) != ExitNotAdmitted {
			t.Errorf("admission %s", why)
		}
		if failed := failedRules(t, o.Out); failed != "R-RUNG-01" {
			t.Errorf("rules that fail: %s", failed)
		}
		ends := map[int64]int64{}
		for _, r := range rowsOf(t, o.Out) {
			wait := r.PickedUS - ends[r.Context]
			switch {
			case r.Attempt == 1 && r.BackoffUS != 0:
				t.Errorf("a first attempt waited: %+v", r)
			case r.Attempt > 1 && (wait < r.BackoffUS || wait > r.BackoffUS+1000):
				t.Errorf("attempt %d was taken up %d us after the last, its backoff is %d", r.Attempt, wait, r.BackoffUS)
			case r.Attempt > 1 && r.Task == "repeat" && (r.BackoffUS < 7_000_000 || r.BackoffUS > 7_700_000):
				t.Errorf("Retry-After 7 became %d us", r.BackoffUS)
			}
			ends[r.Context] = r.EndUS
		}
	})
}

func TestEverythingFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		e := &endpoint{t: t, answer: func(w *reply) {
			if w.request.MaxTokens == 1 {
				solver(w)
				return
			}
			w.WriteHeader(500)
			w.send(`{"error":{"message":"no memory at 127.0.0.1:8080"}}`)
		}}
		defer e.serve(m)()
		o := options(t, m, 100)
		res, err := Run(context.Background(), o)
		if err != nil {
			t.Fatal(err)
		}
		l := &res.Ledger
		if l.Counts.Submitted != 100 || l.Counts.Failed != 100 || l.Counts.Attempts != 300 || l.Status != ledger.StatusFinished || ExitCode(res, nil) != ExitFailed {
			t.Errorf("%+v, status %s, exit %d", l.Counts, l.Status, ExitCode(res, nil))
		}
		if failed := failedRules(t, o.Out); failed != "R-FAIL-01" {
			t.Errorf("rules that fail: %s", failed)
		}
		if _, err := os.Stat(filepath.Join(o.Out, ledger.LedgerFile)); err != nil {
			t.Errorf("no ledger: %v", err)
		}
		if rows := rowsOf(t, o.Out); strings.Contains(rows[0].Error, "127.0.0.1") || !strings.Contains(rows[0].Error, "no memory") {
			t.Errorf("error %q", rows[0].Error)
		}
	})
}

func TestDeadServerIsGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		e := &endpoint{t: t, answer: func(w *reply) {
			if w.n > 50 {
				panic(http.ErrAbortHandler)
			}
			solver(w)
		}}
		defer e.serve(m)()
		o := options(t, m, 1000)
		res, err := Run(context.Background(), o)
		if err != nil {
			t.Fatal(err)
		}
		l := &res.Ledger
		if l.Status != ledger.StatusFailed || l.Counts.Completed != 49 || l.Counts.Failed < failuresInARow || l.Counts.Failed > failuresInARow+4 || ExitCode(res, nil) != ExitNotAdmitted {
			t.Errorf("status %s (%s), %+v", l.Status, l.StatusDetail, l.Counts)
		}
	})
}

func TestInterruptDrainsAndResumes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		var stuck atomic.Bool
		stuck.Store(true)
		e := &endpoint{t: t, answer: func(w *reply) {
			if w.n == 30 && stuck.Load() {
				w.begin()
				w.sleep(first)
				w.send(w.content("half "))
				w.sleep(50 * time.Second)
			}
			solver(w)
		}}
		defer e.serve(m)()
		o := options(t, m, 100)
		ctx, cancel := context.WithCancel(context.Background())
		go func() {
			time.Sleep(time.Second + 500*time.Millisecond)
			cancel()
		}()
		res, err := Run(ctx, o)
		if err != nil {
			t.Fatal(err)
		}
		l := res.Ledger
		if !res.Interrupted || l.Status != ledger.StatusInterrupted || ExitCode(res, nil) != ExitInterrupted || l.Counts.Submitted == 0 || l.Counts.Submitted == 100 {
			t.Fatalf("status %s, %+v", l.Status, l.Counts)
		}
		if got := outcomes(&l); !strings.HasSuffix(got, " interrupted=1") || l.Counts.Failed != 1 {
			t.Errorf("outcomes %s, %d failed", got, l.Counts.Failed)
		}
		// A torn last row, as a kill leaves it, costs that row alone.
		f, err := os.OpenFile(filepath.Join(o.Out, ledger.RowsFile), os.O_APPEND|os.O_WRONLY, 0)
		if err != nil {
			t.Fatal(err)
		}
		f.WriteString(`{"attempt":1,"backo`)
		f.Close()

		stuck.Store(false)
		before := e.served.Load()
		o.Resume = true
		if res, err = Run(context.Background(), o); err != nil {
			t.Fatal(err)
		}
		l = res.Ledger
		if l.Status != ledger.StatusFinished || l.Segments != 2 || l.Counts.Completed != 100 || l.Counts.Duplicates != 0 || l.Counts.Attempts != 101 {
			t.Errorf("status %s, %d segments, %+v", l.Status, l.Segments, l.Counts)
		}
		if ExitCode(res, nil) != ExitAdmitted {
			t.Errorf("admission %v", l.Admission.Why)
		}
		if failed := failedRules(t, o.Out); failed != "" {
			t.Errorf("rules that fail: %s", failed)
		}
		// The canary, what was left, and the context that was cut.
		if sent, want := e.served.Load()-before, 1+100-int64(countOK(rowsOf(t, o.Out), 0)); sent != want {
			t.Errorf("the second segment sent %d requests, want %d", sent, want)
		}
		if got := eventsOf(t, o.Out); !strings.Contains(got, "interrupt peak end:interrupted start torn_row ready") {
			t.Errorf("events %s", got)
		}
		if res, err := Run(context.Background(), o); ExitCode(res, err) != ExitUsage {
			t.Errorf("resuming a finished run: %v", err)
		}
	})
}

func countOK(rows []ledger.Row, segment int64) (n int) {
	for _, r := range rows {
		if r.Segment == segment && r.Outcome == ledger.OK {
			n++
		}
	}
	return n
}

func TestSpendingStops(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		e := &endpoint{t: t, answer: func(w *reply) {
			w.begin()
			w.sleep(first)
			w.send(w.content(solve(w.request.Messages)) + w.finish("stop") + w.usage(700, 1) + done)
		}}
		defer e.serve(m)()
		o := options(t, m, 1000)
		o.MaxSpendTokens = 50_000
		res, err := Run(context.Background(), o)
		if err != nil {
			t.Fatal(err)
		}
		l := &res.Ledger
		if l.Tokens.Spent > 50_000 || l.Tokens.Spent < 40_000 || l.Status != ledger.StatusFailed || !strings.Contains(l.StatusDetail, "spending limit") || ExitCode(res, nil) != ExitNotAdmitted {
			t.Errorf("%d tokens spent, status %s (%s)", l.Tokens.Spent, l.Status, l.StatusDetail)
		}
	})
}

func TestOwnPromptsKeysAndFields(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		e := &endpoint{t: t, models: []string{"m"}}
		e.answer = func(w *reply) {
			if got := w.r.Header.Get("Authorization"); got != "Bearer sk-secret" {
				t.Errorf("authorization %q", got)
			}
			if got := w.r.Header.Get("X-Team"); got != "blue" {
				t.Errorf("extra header %q", got)
			}
			if got := w.r.Header.Get("Accept-Encoding"); got != "identity" {
				t.Errorf("Accept-Encoding %q", got)
			}
			if w.n > 1 && !strings.HasSuffix(string(w.raw), `"temperature":0.5,"seed":-3,"top_k":1,"logit_bias":{}}`) {
				t.Errorf("body %s", w.raw)
			}
			w.begin()
			w.sleep(first)
			w.send(w.content("4.") + w.finish("stop") + w.usage(5, 1) + done)
		}
		defer e.serve(m)()
		path := filepath.Join(t.TempDir(), "prompts.jsonl")
		if err := os.WriteFile(path, []byte(`{"prompt":"2+2?","expect":"4"}`+"\n"+`{"messages":[{"role":"user","content":"3+3?"}],"expect":"6"}`+"\n"+`{"prompt":"hello"}`+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		prompts, err := loadgen.ReadPrompts(path)
		if err != nil {
			t.Fatal(err)
		}
		o := options(t, m, 6)
		o.Source, o.Workload = prompts, WorkloadInfo{}
		o.APIKey, o.Header = "sk-secret", http.Header{"x-team": {"blue"}}
		temperature, seed := 0.5, int64(-3)
		o.Temperature, o.Seed, o.BodyJSON = &temperature, &seed, []byte(` {"top_k":1,"logit_bias":{}} `)
		res, err := Run(context.Background(), o)
		if err != nil {
			t.Fatal(err)
		}
		if s := res.Ledger.Oracle; s.Checked != 4 || s.Passed != 2 || s.None != 2 {
			t.Errorf("oracle %+v", s)
		}
		for _, name := range []string{ledger.RowsFile, ledger.ResourcesFile, ledger.EventsFile, ledger.LedgerFile, ledger.ConfigFile} {
			b, err := os.ReadFile(filepath.Join(o.Out, name))
			if err != nil {
				t.Fatal(err)
			}
			for _, secret := range []string{"sk-secret", "blue", "2+2", "hello"} {
				if strings.Contains(string(b), secret) {
					t.Errorf("%s shows %q", name, secret)
				}
			}
		}
	})
}

// A context is a record, so that a million of them fit where a goroutine each would need gigabytes.
func TestMemoryGrowsWithWorkersNotContexts(t *testing.T) {
	size := int64(unsafe.Sizeof(record{}))
	if parked := int64(unsafe.Sizeof(parkedRef{})); size+parked+4 > 64 { // and its place in the queue
		t.Errorf("a record has %d bytes, what is parked of it %d: want at most 64 in all", size, parked)
	}
	if total := size * 100_000; total > 1<<20 {
		t.Errorf("100,000 contexts take %d bytes", total)
	}
	if r := newRecords(100_000, 1); int64(cap(r.list))*size > 1<<20 {
		t.Errorf("the list of 100,000 records has room for %d", cap(r.list))
	}
}

package soak

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"cotenant/internal/ledger"
	"cotenant/internal/loadgen"
)

// counted is an endpoint that solves tasks a token a word and counts as a real server does, cancels among it.
type counted struct {
	endpoint
	first, gap time.Duration
	leak       bool // a request that was cancelled stays in the gauge

	mu                                                 sync.Mutex
	running, success, cancelled, prompt, out, leftover int64
}

func (c *counted) note(f func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	f()
}

func (c *counted) text() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return fmt.Sprintf("cotenant_requests_running %d\ncotenant_requests_waiting 0\ncotenant_prompt_tokens_total %d\ncotenant_generation_tokens_total %d\n"+
		"# TYPE cotenant_request_success_total counter\ncotenant_request_success_total %d\n"+
		"# TYPE cotenant_requests_failed_total counter\ncotenant_requests_failed_total{reason=\"cancelled\"} %d\n",
		c.running+c.leftover, c.prompt, c.out, c.success, c.cancelled)
}

func (c *counted) serve(w *reply) {
	c.note(func() { c.running++; c.prompt += 200 })
	ended := false
	defer func() {
		c.note(func() {
			c.running--
			switch {
			case ended:
				c.success++
			default:
				c.cancelled++
				if c.leak {
					c.leftover++
				}
			}
		})
	}()
	w.begin()
	w.sleep(c.first)
	words := strings.SplitAfter(solve(w.request.Messages), " ")
	if len(words) == 1 && len(words[0]) > 1 {
		words = []string{words[0][:1], words[0][1:]}
	}
	w.send(w.role())
	for i, word := range words {
		if i > 0 {
			w.sleep(c.gap)
		}
		c.note(func() { c.out++ })
		w.send(w.content(word))
	}
	w.send(w.finish("stop") + w.usage(200, len(words)))
	w.send(done)
	ended = true
}

// start serves on a loopback port.
func (c *counted) start(t testing.TB) string {
	t.Helper()
	c.endpoint.t, c.endpoint.metrics = t, c.text
	if c.endpoint.answer == nil {
		c.endpoint.answer = c.serve
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.endpoint.serve(l))
	return "http://" + l.Addr().String()
}

func controlledOptions(t testing.TB, url string, contexts int64) Options {
	o := options(t, nil, contexts)
	o.Endpoint, o.Contract, o.FaultBlock, o.Period = url, ledger.ContractControlled, 8, 100*time.Millisecond
	o.Timeouts.Idle = 2 * time.Second // of a stalled stream; a busy machine keeps the others waiting too
	return o
}

func TestControlled(t *testing.T) {
	t.Parallel()
	c := &counted{first: 4 * time.Millisecond, gap: 2 * time.Millisecond}
	o := controlledOptions(t, c.start(t), 80)
	o.Turns = 3
	res, err := Run(context.Background(), o)
	if err != nil {
		t.Fatal(err)
	}
	l := &res.Ledger
	if why := strings.Join(l.Admission.Why, " "); why != ledger.WhyNotARung {
		t.Errorf("admission %s", why)
	}
	k := l.Controlled
	if l.Counts.Completed != 80 || l.Counts.Turns != 240 || l.Counts.Retries != 10 || k.FaultContexts != 10 || k.FaultsRecovered != 10 || k.FaultsWithoutRow != 0 {
		t.Errorf("counts %+v, controlled %+v", l.Counts, k)
	}
	for _, f := range k.Faults {
		if f.Planned < 1 || f.Done != f.Planned || f.Recovered != f.Planned {
			t.Errorf("%+v", f)
		}
	}
	if k.Canaries != 3 || k.CanariesFailed != 1 || k.Rollbacks != 1 || k.Parked != 160 || k.Restored != 160 || k.RestoredAcross != 0 || k.QuietPoints != 4 || k.QuietReturned != 4 {
		t.Errorf("controlled %+v", k)
	}
	if len(l.Reconciliation) != 4 {
		t.Errorf("reconciliation %+v", l.Reconciliation)
	}
	if l.Times.QueueAge.N != 240 || l.Oracle.Passed != 240 {
		t.Errorf("queue age %+v, oracle %+v", l.Times.QueueAge, l.Oracle)
	}
	if failed := failedRules(t, o.Out); failed != "R-RUNG-01" {
		t.Errorf("rules that fail: %s", failed)
	}
	if _, err := os.Stat(filepath.Join(o.Out, ledger.OpenFile)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the file of open attempts: %v", err)
	}
	var table strings.Builder
	if err := WriteTable(&table, l); err != nil || !strings.Contains(table.String(), "10 / 10") {
		t.Errorf("%v\n%s", err, table.String())
	}
	conversations(t, c, o)
}

// conversations holds that each turn's request has what was said before it, word for word, and that the proxy's header stays away from
// the server.
func conversations(t *testing.T, c *counted, o Options) {
	t.Helper()
	work := o.Source.(loadgen.Conversations)
	sent := map[string]bool{}
	for _, b := range c.bodies {
		var req struct {
			Messages json.RawMessage `json:"messages"`
		}
		if err := json.Unmarshal(b, &req); err != nil {
			t.Fatal(err)
		}
		sent[string(req.Messages)] = true
	}
	for n := range o.Contexts {
		messages := work.Task(n).Messages[:1]
		for turn := range o.Turns {
			task := work.Turn(n, turn)
			messages = append(messages, task.Messages[1])
			b, err := json.Marshal(messages)
			if err != nil {
				t.Fatal(err)
			}
			if !sent[string(b)] {
				t.Fatalf("context %d, turn %d was not sent as it should be: %s", n, turn, b[len(b)-200:])
			}
			messages = append(messages, loadgen.Message{Role: "assistant", Content: task.Expect})
		}
	}
}

// A server whose gauge doesn't come back after a cancel isn't quiet, and a counter that runs away isn't reconciled.
func TestControlledSeesAServerThatLeaks(t *testing.T) {
	t.Parallel()
	c := &counted{first: 4 * time.Millisecond, gap: 5 * time.Millisecond, leak: true}
	o := controlledOptions(t, c.start(t), 80)
	o.QuietLimit = 200 * time.Millisecond
	o.Progress = func(Progress) { c.note(func() { c.prompt += 1000 }) }
	res, err := Run(context.Background(), o)
	if err != nil {
		t.Fatal(err)
	}
	if why := strings.Join(res.Ledger.Admission.Why, " "); why != "not_a_rung not_quiet counters" {
		t.Errorf("admission %s, %+v, %+v", why, res.Ledger.Controlled, res.Ledger.Reconciliation)
	}
	if failed := failedRules(t, o.Out); failed != "R-RUNG-01 R-QUIET-01 R-REC-01" {
		t.Errorf("rules that fail: %s", failed)
	}
}

// A base that can't pass, and a canary that can't tell, end a run before anything is measured.
func TestControlledCanary(t *testing.T) {
	t.Parallel()
	for name, answer := range map[string]string{"the base failed its canary": "no idea", "can't tell": ""} {
		c := &counted{}
		url := c.start(t)
		work, err := loadgen.New(loadgen.Options{Seed: 1})
		if err != nil {
			t.Fatal(err)
		}
		known := map[string]string{}
		for n := range int64(canaryAsked) {
			task := work.Canary(n, work.Base())
			known[task.Messages[1].Content] = task.Expect
		}
		c.answer = func(w *reply) {
			text := answer
			if text == "" {
				text = known[w.request.Messages[1].Content] + "." // a server that has the list by heart
			}
			w.normal(text, 0, 0)
		}
		o := controlledOptions(t, url, 16)
		res, err := Run(context.Background(), o)
		if err != nil {
			t.Fatal(err)
		}
		if l := &res.Ledger; l.Status != ledger.StatusFailed || !strings.Contains(l.StatusDetail, name) || l.Counts.Attempts != 0 || ExitCode(res, nil) != ExitFailed {
			t.Errorf("status %s (%s), %+v", l.Status, l.StatusDetail, l.Counts)
		}
	}
}

func TestControlledRefuses(t *testing.T) {
	path := filepath.Join(t.TempDir(), "p.jsonl")
	if err := os.WriteFile(path, []byte(`{"prompt":"x"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	prompts, err := loadgen.ReadPrompts(path)
	if err != nil {
		t.Fatal(err)
	}
	unique, err := loadgen.New(loadgen.Options{Unique: true})
	if err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(o *Options){
		"generated tasks": func(o *Options) { o.Source = prompts },
		"base that all":   func(o *Options) { o.Source = unique },
		"turns 1":         func(o *Options) { o.Turns = 1 },
		"turns 65":        func(o *Options) { o.Turns = 65 },
		"attempts 4":      func(o *Options) { o.MaxAttempts = 4 },
		"one fault in":    func(o *Options) { o.FaultBlock = 101 },
		"has one turn":    func(o *Options) { o.Contract, o.Turns = ledger.ContractPlain, 2 },
	} {
		o := controlledOptions(t, "http://127.0.0.1:1", 100)
		change(&o)
		_, err := Run(context.Background(), o)
		var u *UsageError
		if !errors.As(err, &u) || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// What was parked comes back byte for byte, or not at all.
func TestParking(t *testing.T) {
	commit, err := ledger.NewCommitter(ledger.NewSecret())
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	p, err := createPark(dir, 3, commit)
	if err != nil {
		t.Fatal(err)
	}
	said := []loadgen.Message{{Role: "user", Content: "a \"question\"\n"}, {Role: "assistant", Content: "an answer, é"}}
	name, err := p.park(1, 0, said)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.park(2, 0, said[:1]); err != nil {
		t.Fatal(err)
	}
	got, restored, err := p.restore(1, 1)
	if err != nil || restored != name || fmt.Sprint(got) != fmt.Sprint(said) {
		t.Errorf("%v, %s, %v", got, restored, err)
	}
	if _, _, err := p.restore(0, 1); err == nil {
		t.Error("a context that wasn't parked came back")
	}
	p.close()
	// Another process, after a kill in the middle of a third record.
	path := filepath.Join(dir, ledger.ParkFile)
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	refs := func() []parkedRef { return []parkedRef{{}, {digest: p.refs[1].digest}, {digest: p.refs[2].digest}} }
	turn := func(context int64) int64 { return min(context, 1) - 1 } // contexts 1 and 2 have parked turn 0
	write := func(b []byte) {
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(append(bytes.Clone(b), b[16:40]...))
	q, err := reopenPark(dir, commit, refs(), turn)
	if err != nil || q.end != int64(len(b)) {
		t.Fatalf("%v", err)
	}
	if got, restored, err = q.restore(1, 1); err != nil || restored != name || fmt.Sprint(got) != fmt.Sprint(said) {
		t.Errorf("%v, %s, %v", got, restored, err)
	}
	q.close()
	for at := range b {
		bad := bytes.Clone(b)
		bad[at] ^= 1
		write(bad)
		q, err := reopenPark(dir, commit, refs(), turn)
		if err != nil {
			continue
		}
		_, _, err1 := q.restore(1, 1)
		_, _, err2 := q.restore(2, 1)
		if err1 == nil && err2 == nil {
			t.Fatalf("byte %d was changed and nothing was noticed", at)
		}
		q.close()
	}
}

// FuzzParkFile: any bytes are refused or read, and nothing is restored that the rows don't commit to.
func FuzzParkFile(f *testing.F) {
	commit, err := ledger.NewCommitter(strings.Repeat("0", 64))
	if err != nil {
		f.Fatal(err)
	}
	dir := f.TempDir()
	p, err := createPark(dir, 1, commit)
	if err != nil {
		f.Fatal(err)
	}
	if _, err := p.park(0, 0, []loadgen.Message{{Role: "user", Content: "x"}}); err != nil {
		f.Fatal(err)
	}
	b, err := os.ReadFile(filepath.Join(dir, ledger.ParkFile))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Add(b[:20])
	f.Fuzz(func(t *testing.T, b []byte) {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, ledger.ParkFile), b, 0o600); err != nil {
			t.Fatal(err)
		}
		q, err := reopenPark(dir, commit, []parkedRef{{digest: p.refs[0].digest}}, func(int64) int64 { return 0 })
		if err != nil {
			return
		}
		defer q.close()
		if said, _, err := q.restore(0, 1); err != nil || len(said) != 1 || said[0].Content != "x" {
			t.Errorf("%v, %v", said, err)
		}
	})
}

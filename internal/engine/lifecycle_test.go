package engine

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"cotenant/internal/server"
)

func TestOneThreadOwnsTheModel(t *testing.T) {
	m := newFake()
	e := newEngine(t, Config{}, m)
	must(t, e, ids("hello"), server.Sampling{MaxTokens: 5, IgnoreEOS: true})
	e.Stats()
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	for _, what := range []string{"open", "kv", "memory", "forward", "close"} {
		if tid := m.threads[what]; tid == 0 || tid != m.threads["open"] || tid == unix.Gettid() {
			t.Errorf("%s ran on thread %d, open on %d, the test on %d", what, tid, m.threads["open"], unix.Gettid())
		}
	}
}

func TestCancelFreesPagesWithinAStep(t *testing.T) {
	for name, how := range map[string]func(cancel context.CancelFunc, st server.Stream){
		"context": func(cancel context.CancelFunc, _ server.Stream) { cancel() },
		"close":   func(_ context.CancelFunc, st server.Stream) { st.Close(); st.Close() },
	} {
		m := newFake()
		m.gate = make(chan struct{})
		m.eosOdds = 0
		e := newEngine(t, Config{MaxSeqs: 1, QueueSeqs: 4}, m)
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		st, err := e.Generate(ctx, server.Prompt{Tokens: rep("x", 40)}, server.Sampling{MaxTokens: -1})
		if err != nil {
			t.Fatal(err)
		}
		wait, err := e.Generate(context.Background(), server.Prompt{Tokens: rep("y", 40)}, server.Sampling{MaxTokens: 1})
		if err != nil {
			t.Fatal(err)
		}
		m.gate <- struct{}{}
		if c, err := st.Next(context.Background()); err != nil || c.Usage.CompletionTokens != 1 {
			t.Fatalf("%s: first chunk %+v, %v", name, c, err)
		}
		waitFor(t, "the second step", func() bool { return e.Stats().Steps == 2 })
		if got := e.Stats(); got.Slots != 1 || got.Running != 1 || got.QueueDepth != 1 || got.Waiting != 1 || got.PagesUsed != 3 {
			t.Errorf("%s: while it runs: %+v", name, got)
		}
		how(cancel, st)
		if _, err := st.Next(context.Background()); err == nil || err == io.EOF {
			for err == nil { // a chunk that was there before
				_, err = st.Next(context.Background())
			}
			if err == io.EOF {
				t.Errorf("%s: a cancelled stream ends as if it were whole", name)
			}
		}
		m.gate <- struct{}{} // the step that was running
		waitFor(t, "the third step", func() bool { return e.Stats().Steps == 3 })
		if got := e.Stats(); got.Slots != 1 || got.Running != 1 || got.QueueDepth != 0 || got.PagesCached != 2 {
			t.Errorf("%s: one step later: %+v", name, got)
		}
		m.gate <- struct{}{}
		if _, err := collect(wait, 1); err != nil {
			t.Errorf("%s: the one that waited: %v", name, err)
		}
	}
}

func TestCancelledBeforeItIsComputed(t *testing.T) {
	m := newFake()
	m.gate = make(chan struct{})
	e := newEngine(t, Config{MaxSeqs: 1, QueueSeqs: 4}, m)
	first, err := e.Generate(context.Background(), server.Prompt{Tokens: rep("x", 4)}, server.Sampling{MaxTokens: 1})
	if err != nil {
		t.Fatal(err)
	}
	waitFor(t, "the first step", func() bool { return e.Stats().Steps == 1 })
	ctx, cancel := context.WithCancel(context.Background())
	if _, err = e.Generate(ctx, server.Prompt{Tokens: rep("y", 40)}, server.Sampling{MaxTokens: 1}); err != nil {
		t.Fatal(err)
	}
	cancel()
	waitFor(t, "the cancellation", func() bool { e.mu.Lock(); defer e.mu.Unlock(); return len(e.cancels) > 0 })
	m.gate <- struct{}{}
	if _, err := collect(first, 1); err != nil {
		t.Fatal(err)
	}
	waitFor(t, "an idle engine", func() bool { return e.Stats().Waiting == 0 })
	if m.rows != 4 || e.Stats().PromptTokens != 4 {
		t.Errorf("%d rows were computed for 4 tokens that somebody wanted", m.rows)
	}
	if _, err := e.Generate(ctx, server.Prompt{Tokens: rep("y", 4)}, server.Sampling{MaxTokens: 1}); !errors.Is(err, context.Canceled) {
		t.Errorf("a context that is over: %v", err)
	}
}

func TestDeviceErrorIsLatched(t *testing.T) {
	for name, token := range map[string]int32{"error": tokenError, "panic": tokenPanic} {
		m := newFake()
		m.gate = make(chan struct{}, 1000)
		m.eosOdds = 0
		e := newEngine(t, Config{}, m)
		var streams []server.Stream
		for range 3 {
			st, err := e.Generate(context.Background(), server.Prompt{Tokens: rep("a", 20)}, server.Sampling{MaxTokens: -1})
			if err != nil {
				t.Fatal(err)
			}
			streams = append(streams, st)
		}
		m.gate <- struct{}{}
		bad, err := e.Generate(context.Background(), server.Prompt{Tokens: []int32{token}}, server.Sampling{MaxTokens: 1})
		if err != nil {
			t.Fatal(err)
		}
		for range 3 {
			m.gate <- struct{}{}
		}
		for _, st := range append(streams, bad) {
			if _, err := collect(st, 1); !errors.Is(err, server.ErrUnavailable) {
				t.Errorf("%s: a request of a broken device ended with %v", name, err)
			}
		}
		want := e.Health()
		if want == nil || !strings.Contains(want.Error(), map[string]string{"error": "illegal address", "panic": "as a bug"}[name]) {
			t.Errorf("%s: health is %v", name, want)
		}
		if _, err := e.Generate(context.Background(), server.Prompt{Tokens: ids("a")}, server.Sampling{MaxTokens: 1}); !errors.Is(err, server.ErrUnavailable) {
			t.Errorf("%s: afterwards: %v", name, err)
		}
		if st := e.Stats(); st.Running+st.Waiting != 0 || e.Health() != want {
			t.Errorf("%s: %d and %d requests are left, health %v", name, st.Running, st.Waiting, e.Health())
		}
		if err := e.Drain(context.Background()); err != nil {
			t.Errorf("%s: drain: %v", name, err)
		}
	}
}

func TestOpenFails(t *testing.T) {
	broken := errors.New("no such file")
	if _, err := New(Config{}, func() (Runtime, error) { return Runtime{}, broken }); err != broken {
		t.Errorf("got %v", err)
	}
	closed := 0
	for _, cfg := range []Config{{MaxBatchTokens: 513}, {MaxSeqs: 513}, {KVMemory: 7}, {ContextLength: 401}, {KVMemory: 800, ContextLength: 200},
		{PageSize: -1}, {MaxSeqs: -1}, {ContextLength: -1}} {
		m := newFake()
		_, err := New(cfg, func() (Runtime, error) {
			return Runtime{Model: m, Device: m, LogitsWidth: vocabSize + padding, Tokenizer: testTokenizer(t, false),
				Close: func() error { closed++; return nil }}, nil
		})
		if err == nil {
			t.Errorf("%+v is taken", cfg)
		}
	}
	if closed != 8 {
		t.Errorf("%d of 8 runtimes were closed", closed)
	}
}

func TestDrain(t *testing.T) {
	m := newFake()
	m.gate = make(chan struct{}, 1000)
	m.eosOdds = 0
	e := newEngine(t, Config{MaxSeqs: 2}, m)
	start := func(n int) server.Stream {
		st, err := e.Generate(context.Background(), server.Prompt{Tokens: rep("a", 20)}, server.Sampling{MaxTokens: n})
		if err != nil {
			t.Fatal(err)
		}
		return st
	}
	quick, slow, waits := start(2), start(-1), start(-1)
	done := make(chan error)
	ctx, grace := context.WithCancel(context.Background())
	go func() { done <- e.Drain(ctx) }()
	waitFor(t, "the end of admission", func() bool { e.mu.Lock(); defer e.mu.Unlock(); return e.draining })
	if _, err := e.Generate(context.Background(), server.Prompt{Tokens: ids("a")}, server.Sampling{MaxTokens: 1}); !errors.Is(err, server.ErrUnavailable) {
		t.Errorf("while it drains: %v", err)
	}
	for range 10 {
		m.gate <- struct{}{}
	}
	if out, err := collect(quick, 1); err != nil || out[0].usage.CompletionTokens != 2 {
		t.Errorf("one that ends in time: %+v, %v", out, err)
	}
	if e.Health() != nil {
		t.Error("draining is taken for an error")
	}
	select {
	case err := <-done:
		t.Fatalf("drained with two requests left: %v", err)
	case <-time.After(20 * time.Millisecond):
	}
	grace()
	waitFor(t, "the cut", func() bool { e.mu.Lock(); defer e.mu.Unlock(); return len(e.cancels) > 0 })
	for range 10 {
		m.gate <- struct{}{}
	}
	for _, st := range []server.Stream{slow, waits} {
		if _, err := collect(st, 1); !errors.Is(err, server.ErrUnavailable) {
			t.Errorf("one that was cut: %v", err)
		}
	}
	if err := <-done; err == nil || !strings.Contains(err.Error(), "2 requests were cut") {
		t.Errorf("drain: %v", err)
	}
}

func TestCloseEndsWhatRuns(t *testing.T) {
	m := newFake()
	m.eosOdds = 0
	m.ctx = 100000
	e := newEngine(t, Config{MaxSeqs: 2}, m)
	var wg sync.WaitGroup
	for range 4 {
		st, err := e.Generate(context.Background(), server.Prompt{Tokens: rep("a", 20)}, server.Sampling{MaxTokens: -1})
		if err != nil {
			t.Fatal(err)
		}
		wg.Go(func() {
			if _, err := collect(st, 1); !errors.Is(err, server.ErrUnavailable) {
				t.Errorf("ended with %v", err)
			}
		})
	}
	for range 2 {
		if err := e.Close(); err != nil {
			t.Fatal(err)
		}
	}
	wg.Wait()
	if _, err := e.Generate(context.Background(), server.Prompt{Tokens: ids("a")}, server.Sampling{MaxTokens: 1}); !errors.Is(err, server.ErrUnavailable) {
		t.Errorf("after Close: %v", err)
	}
}

func TestReaderThatSleepsStallsNobody(t *testing.T) {
	m := newFake()
	m.gate = make(chan struct{})
	m.eosOdds = 0
	e := newEngine(t, Config{}, m)
	asleep, err := e.Generate(context.Background(), server.Prompt{Tokens: ids("a")}, server.Sampling{MaxTokens: 300})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Millisecond)
	defer cancel()
	if _, err := asleep.Next(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("nothing was computed, and Next gives %v", err)
	}
	m.open()
	for i := range 5 {
		must(t, e, ids(fmt.Sprint("b", i)), server.Sampling{MaxTokens: 50})
	}
	out, err := collect(asleep, 1)
	if err != nil || out[0].usage.CompletionTokens != 300 {
		t.Errorf("after it woke up: %+v, %v", out, err)
	}
	if _, err := asleep.Next(context.Background()); err != io.EOF {
		t.Errorf("after the end: %v", err)
	}
}

func TestPanicBesideTheLoopEndsItsRequestAlone(t *testing.T) {
	e := newEngine(t, Config{}, newFake())
	r, err := e.newRequest(server.Prompt{Tokens: ids("a")}, server.Sampling{MaxTokens: 200, IgnoreEOS: true})
	if err != nil {
		t.Fatal(err)
	}
	if err := e.admit(r); err != nil {
		t.Fatal(err)
	}
	r.unhook = func() bool { return true }
	r.choices[0].answer = nil // a bug
	r.pump()
	if _, err := r.Next(t.Context()); err == nil || !strings.Contains(err.Error(), "panic") || errors.Is(err, server.ErrUnavailable) {
		t.Errorf("the stream ends with %v", err)
	}
	if e.Health() != nil {
		t.Errorf("health is %v", e.Health())
	}
	must(t, e, ids("b"), server.Sampling{MaxTokens: 5})
}

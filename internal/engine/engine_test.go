package engine

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"strings"
	"sync"
	"testing"

	"cotenant/internal/server"
)

type task struct {
	prompt []int32
	s      server.Sampling
}

// tasks makes requests of all kinds whose prompts share beginnings.
func tasks(r *rand.Rand, n int) []task {
	bases := [][]int32{rep("once upon a time ", 7), rep("the quick brown fox ", 3), nil}
	var out []task
	for i := range n {
		seed := int64(i)
		p := append([]int32(nil), bases[r.IntN(3)]...)
		if len(p) > 0 {
			p = p[:r.IntN(len(p))+1]
		}
		for range 1 + r.IntN(20) {
			p = append(p, 'a'+r.Int32N(3))
		}
		s := server.Sampling{MaxTokens: 1 + r.IntN(40), Seed: &seed, N: []int{1, 1, 1, 3}[r.IntN(4)]}
		switch r.IntN(5) {
		case 0:
			s.Temperature, s.TopP = 1, 0.9
		case 1:
			s.Temperature, s.TopK, s.RepetitionPenalty, s.PresencePenalty = 0.8, 20, 1.2, 0.5
		case 2:
			s.Logprobs, s.TopLogprobs = true, 3
		case 3:
			s.Logprobs, s.PromptLogprobs = true, true
		}
		if r.IntN(4) == 0 {
			s.Stop = []string{"a", "bc"}
		}
		if r.IntN(4) == 0 {
			s.IgnoreEOS = true
		}
		if r.IntN(6) == 0 {
			s.CacheSalt = "other"
		}
		out = append(out, task{p, s})
	}
	return out
}

// TestBatchedEqualsAlone: whatever else runs, however prompts are cut into chunks, whatever is reused, preempted or
// cancelled, every request gets what it gets alone.
func TestBatchedEqualsAlone(t *testing.T) {
	all := tasks(rand.New(rand.NewPCG(7, 7)), 120)
	want := make([][]output, len(all))
	for i, q := range all {
		alone := newEngine(t, Config{MaxSeqs: 1, QueueSeqs: 8}, newFake())
		outs, err := generate(alone, q.prompt, q.s)
		if err != nil {
			t.Fatal(err)
		}
		want[i] = outs
		if err := alone.Close(); err != nil {
			t.Fatal(err)
		}
	}
	for name, c := range map[string]struct {
		cfg       Config
		preempted bool
		device    bool
	}{
		"roomy":                {Config{MaxSeqs: 8, MaxBatchTokens: 256, KVMemory: 1 << 20}, false, false},
		"one by one":           {Config{MaxSeqs: 1, MaxBatchTokens: 1}, false, false},
		"small chunks":         {Config{MaxSeqs: 16, MaxBatchTokens: 17, PageSize: 4, KVMemory: 1 << 20}, false, false},
		"tight memory":         {Config{MaxSeqs: 12, MaxBatchTokens: 40, PageSize: 4, KVMemory: 8 * 260}, true, false},
		"device":               {Config{MaxSeqs: 8, MaxBatchTokens: 256, KVMemory: 1 << 20}, false, true},
		"device, small chunks": {Config{MaxSeqs: 16, MaxBatchTokens: 17, PageSize: 4, KVMemory: 1 << 20}, false, true},
		"device, tight memory": {Config{MaxSeqs: 12, MaxBatchTokens: 40, PageSize: 4, KVMemory: 8 * 260}, true, true},
	} {
		t.Run(name, func(t *testing.T) {
			c.cfg.QueueSeqs = 10000
			m := newFake()
			if c.device {
				m = newDevice()
			}
			e := newEngine(t, c.cfg, m)
			var wg sync.WaitGroup
			for i, q := range all {
				wg.Go(func() {
					if i%5 == 0 { // company that goes away
						ctx, cancel := context.WithCancel(context.Background())
						if st, err := e.Generate(ctx, server.Prompt{Tokens: all[(i+3)%len(all)].prompt}, q.s); err == nil {
							_, _ = st.Next(ctx)
							cancel()
							defer st.Close()
						}
						cancel()
					}
					got, err := generate(e, q.prompt, q.s)
					if err != nil {
						t.Errorf("task %d: %v", i, err)
						return
					}
					compare(t, i, got, want[i])
				})
			}
			wg.Wait()
			st := e.Stats()
			if st.PrefixHitTokens == 0 || (st.Preemptions == 0) == c.preempted {
				t.Errorf("%d tokens reused, %d preemptions", st.PrefixHitTokens, st.Preemptions)
			}
			if name == "device" && m.device.ahead == 0 {
				t.Error("no step was started while another one ran")
			}
		})
	}
}

func compare(t *testing.T, task int, got, want []output) {
	t.Helper()
	for i := range want {
		g, w := got[i], want[i]
		g.chunks, w.chunks = 0, 0
		g.usage.CachedTokens, w.usage.CachedTokens = 0, 0
		if !reflect.DeepEqual(g, w) {
			t.Errorf("task %d choice %d:\n got %q %v %+v %s %q\nwant %q %v %+v %s %q", task, i,
				g.text, g.ids(), g.usage, g.finish, g.stop, w.text, w.ids(), w.usage, w.finish, w.stop)
		}
	}
}

func TestChoicesShareOnePrefill(t *testing.T) {
	m := newFake()
	m.eosOdds = 0
	e := newEngine(t, Config{}, m)
	seed := int64(5)
	s := server.Sampling{N: 8, Temperature: 1, MaxTokens: 10, Seed: &seed}
	outs, err := generate(e, rep("base ", 20), s)
	if err != nil {
		t.Fatal(err)
	}
	texts := map[string]bool{}
	for i, o := range outs {
		texts[o.text] = true
		if want := 96 * min(i, 1); o.usage.CachedTokens != want || o.usage.PromptTokens != 100 || o.usage.CompletionTokens != 10 {
			t.Errorf("choice %d: %+v, want %d cached", i, o.usage, want)
		}
	}
	if len(texts) != 8 {
		t.Errorf("8 choices of one seed gave %d texts", len(texts))
	}
	if want := 100 + 7*4 + 8*9; m.rows != want {
		t.Errorf("%d rows were computed, want %d", m.rows, want)
	}
	st := e.Stats()
	if st.PromptTokens != 100 || st.PrefixQueryTokens != 100 || st.PrefixHitTokens != 0 || st.GeneratedTokens != 80 {
		t.Errorf("stats: prompt %d, query %d, hit %d, generated %d", st.PromptTokens, st.PrefixQueryTokens, st.PrefixHitTokens, st.GeneratedTokens)
	}
	again, err := generate(e, rep("base ", 20), s)
	if err != nil {
		t.Fatal(err)
	}
	compare(t, 0, again, outs)
	if st := e.Stats(); st.PromptTokens != 200 || st.PrefixQueryTokens != 200 || st.PrefixHitTokens != 96 || again[0].usage.CachedTokens != 96 {
		t.Errorf("stats: prompt %d, query %d, hit %d, usage %+v", st.PromptTokens, st.PrefixQueryTokens, st.PrefixHitTokens, again[0].usage)
	}
	other := int64(6)
	s.Seed = &other
	if again, _ = generate(e, rep("base ", 20), s); texts[again[0].text] {
		t.Error("another seed gave the same text")
	}
}

func TestNonFiniteRowEndsItsRequestAlone(t *testing.T) {
	for name, m := range map[string]*fakeModel{"host": newFake(), "device": newDevice()} {
		t.Run(name, func(t *testing.T) { nonFiniteRow(t, m) })
	}
}

func nonFiniteRow(t *testing.T, m *fakeModel) {
	e := newEngine(t, Config{}, m)
	var wg sync.WaitGroup
	base := rep("shared base ", 4)
	want := must(t, e, append(base, 'q'), server.Sampling{MaxTokens: 20})
	for i := range 12 {
		wg.Go(func() {
			if i%3 == 0 {
				if out, err := generate(e, append(base[:len(base):len(base)], tokenNaN, 'x'), server.Sampling{MaxTokens: 20, N: 2}); !errors.Is(err, errNonFinite) {
					t.Errorf("a row with NaN gave %+v, %v", out, err)
				}
				return
			}
			if got := must(t, e, append(base[:len(base):len(base)], 'q'), server.Sampling{MaxTokens: 20}); got.text != want.text {
				t.Errorf("text %q beside bad rows, %q without", got.text, want.text)
			}
		})
	}
	wg.Wait()
	if n := e.Stats().NonFiniteRows; n < 4 {
		t.Errorf("%d bad rows were counted, at least 4 there were", n)
	}
	if e.Health() != nil {
		t.Errorf("one bad row is taken for a broken device: %v", e.Health())
	}
	if _, err := generate(e, append(rep("z", 40), tokenNaN), server.Sampling{MaxTokens: 1}); !errors.Is(err, errNonFinite) {
		t.Fatal(err)
	}
	if out := must(t, e, append(rep("z", 40), 'x'), server.Sampling{MaxTokens: 1}); out.usage.CachedTokens != 0 {
		t.Errorf("%d tokens of a bad request are reused", out.usage.CachedTokens)
	}
	if _, err := generate(e, append(rep("z", 4), tokenNaN, 'x'), server.Sampling{MaxTokens: 1, PromptLogprobs: true}); !errors.Is(err, errNonFinite) {
		t.Errorf("NaN in a prompt's row: %v", err)
	}
}

func TestMemoryBoundsTheContext(t *testing.T) {
	e := newEngine(t, Config{KVMemory: 8 * 16 * 10}, newFake())
	if got := e.Model().ContextLength; got != 160 {
		t.Fatalf("10 pages of 16 give a context of %d", got)
	}
	if out := must(t, e, rep("a", 100), server.Sampling{MaxTokens: -1, IgnoreEOS: true}); out.finish != "length" || out.usage.CompletionTokens != 60 {
		t.Errorf("%s after %d tokens, want length after 60", out.finish, out.usage.CompletionTokens)
	}
}

func TestSizesThatDontFit(t *testing.T) {
	for flag, cfg := range map[string]Config{
		"--max-seqs": {MaxSeqs: 513}, "--kv-memory": {KVMemory: 100}, "the model's is 400": {ContextLength: 401},
		"hold 160": {ContextLength: 161, KVMemory: 8 * 16 * 10},
	} {
		m := newFake()
		e, err := New(cfg, func() (Runtime, error) {
			return Runtime{Model: m, Device: m, LogitsWidth: vocabSize + padding, Tokenizer: testTokenizer(t, false)}, nil
		})
		if e != nil || err == nil || !strings.Contains(err.Error(), flag) {
			t.Errorf("%+v: %v, want %q", cfg, err, flag)
		}
	}
}

func TestContextRules(t *testing.T) {
	e := newEngine(t, Config{}, newFake()) // context 400
	for _, c := range []struct {
		prompt, most int
		explicit     bool
		tokens       int // 0: refused
		param        string
	}{
		{399, -1, false, 1, ""},
		{399, 1, true, 1, ""},
		{390, 50, false, 10, ""},
		{390, 11, true, 0, "max_tokens"},
		{400, -1, false, 0, ""},
		{400, 1, true, 0, ""},
		{704, -1, false, 0, ""},
	} {
		outs, err := generate(e, rep("a", c.prompt), server.Sampling{MaxTokens: c.most, MaxTokensExplicit: c.explicit, IgnoreEOS: true})
		if c.tokens > 0 {
			if err != nil || outs[0].usage.CompletionTokens != c.tokens || outs[0].finish != "length" {
				t.Errorf("%+v: %+v, %v", c, outs, err)
			}
			continue
		}
		var refused *server.RequestError
		if !errors.As(err, &refused) || refused.Code != "context_length_exceeded" || refused.Param != c.param ||
			!strings.Contains(refused.Message, "400") || !strings.Contains(refused.Message, fmt.Sprint(c.prompt)) {
			t.Errorf("%+v: %v", c, err)
		}
	}
}

func TestBadRequestsAreRefused(t *testing.T) {
	e := newEngine(t, Config{}, newFake())
	for param, s := range map[string]server.Sampling{
		"temperature": {Temperature: -1}, "top_p": {TopP: 1.5}, "min_p": {MinP: -0.1}, "n": {N: 9}, "top_k": {TopK: -1},
		"min_tokens": {MinTokens: -1}, "top_logprobs": {TopLogprobs: 21}, "repetition_penalty": {RepetitionPenalty: -1},
		"presence_penalty": {PresencePenalty: 1000}, "frequency_penalty": {FrequencyPenalty: -1000},
		"logit_bias": {LogitBias: map[int32]float32{vocabSize: 1}}, "stop_token_ids": {StopTokens: []int32{-1}},
		"stop": {Stop: []string{"a", ""}},
	} {
		s.MaxTokens = 1
		_, err := generate(e, ids("a"), s)
		var refused *server.RequestError
		if !errors.As(err, &refused) || refused.Param != param {
			t.Errorf("%s: %v", param, err)
		}
	}
	if _, err := generate(e, ids("a"), server.Sampling{MaxTokens: 1, Stop: []string{"\xff"}}); err == nil {
		t.Error("a stop string that isn't UTF-8 is taken")
	}
	for _, prompt := range [][]int32{nil, {-1}, {vocabSize}} {
		var refused *server.RequestError
		if _, err := generate(e, prompt, server.Sampling{MaxTokens: 1}); !errors.As(err, &refused) || refused.Param != "prompt" {
			t.Errorf("prompt %v: %v", prompt, err)
		}
	}
	if _, err := generate(e, ids("a"), server.Sampling{MaxTokens: 1, Stop: []string{strings.Repeat("a", maxStopBytes+1)}}); err == nil {
		t.Error("a stop string without bound is taken")
	}
}

func TestQueueIsBounded(t *testing.T) {
	m := newFake()
	m.gate = make(chan struct{}, 100)
	e := newEngine(t, Config{MaxSeqs: 1, QueueSeqs: 2, QueueTokens: 100}, m)
	var streams []server.Stream
	for range 3 {
		st, err := e.Generate(context.Background(), server.Prompt{Tokens: rep("a", 40)}, server.Sampling{MaxTokens: 1})
		if err != nil {
			t.Fatal(err)
		}
		streams = append(streams, st)
		waitFor(t, "the first to run", func() bool { return e.Stats().Running == 1 })
	}
	if _, err := e.Generate(context.Background(), server.Prompt{Tokens: ids("a")}, server.Sampling{MaxTokens: 1}); !errors.Is(err, server.ErrQueueFull) {
		t.Errorf("a third in a queue of two: %v", err)
	}
	waitFor(t, "an age", func() bool { return e.Stats().QueueOldestAge > 0 })
	if st := e.Stats(); st.QueueDepth != 2 || st.Waiting != 2 || st.Running != 1 {
		t.Errorf("stats: %+v", st)
	}
	for range 3 {
		m.gate <- struct{}{}
	}
	for _, st := range streams {
		if _, err := collect(st, 1); err != nil {
			t.Error(err)
		}
	}
	st := e.Stats()
	if w := st.QueueWait; w.Count != 3 || w.Sum <= 0 || len(w.Bounds) != len(w.Counts) || w.Counts[len(w.Counts)-1] != 3 {
		t.Errorf("queue waits: %+v", w)
	}
	if st.QueueOldestAge != 0 || st.Steps != 3 || st.StepTokens.Count != 3 || st.StepTokens.Sum != float64(m.rows) {
		t.Errorf("steps: %+v", st)
	}
	if st.Memory["weights"] != 100 || st.Memory["kv"] != 7 || st.Memory["logits"] == 0 || st.DeviceMemory != nil || st.Device != "a fake" {
		t.Errorf("memory: %v on %s", st.Memory, st.Device)
	}
}

func TestMainJob(t *testing.T) {
	m := newFake()
	m.ctx, m.eosOdds = 2000, 0
	e := newEngine(t, Config{}, m)
	base := rep("0123456789", 69)
	var wg sync.WaitGroup
	const requests, workers = 40, 4
	next := make(chan int)
	for range workers {
		wg.Go(func() {
			for i := range next {
				p := append(base[:len(base):len(base)], ids(fmt.Sprintf("task %09d", i))...)
				out := must(t, e, p, server.Sampling{MaxTokens: 8})
				if out.usage.PromptTokens != 704 || out.usage.CompletionTokens != 8 || i > 0 && out.usage.CachedTokens != 688 {
					t.Errorf("request %d: %+v", i, out.usage)
				}
			}
		})
	}
	for i := range requests {
		next <- i
	}
	close(next)
	wg.Wait()
	if want := 704 + (requests-1)*16 + requests*7; m.rows != want {
		t.Errorf("%d rows were computed, want %d", m.rows, want)
	}
	st := e.Stats()
	if st.PrefixQueryTokens != requests*704 || st.PrefixHitTokens != (requests-1)*688 || st.GeneratedTokens != requests*8 {
		t.Errorf("query %d, hit %d, generated %d", st.PrefixQueryTokens, st.PrefixHitTokens, st.GeneratedTokens)
	}
}

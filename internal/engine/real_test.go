package engine

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"

	"cotenant/internal/backend/cpu"
	"cotenant/internal/model"
	"cotenant/internal/server"
	"cotenant/internal/testenv"
)

// realEngine serves a real model on the CPU: SmolLM2 from path, the embedded one where path is empty.
func realEngine(t testing.TB, cfg Config, path string) *Engine {
	t.Helper()
	e, err := New(cfg, func() (Runtime, error) {
		be, err := cpu.New(cpu.Options{})
		if err != nil {
			return Runtime{}, err
		}
		load := func() (*model.Model, error) { return model.Load(path, be, model.Options{}) }
		if path == "" {
			load = func() (*model.Model, error) { return model.LoadEmbedded(be, model.Options{}) }
		}
		m, err := load()
		if err != nil {
			_ = be.Close()
			return Runtime{}, err
		}
		return FromModel(m, be), nil
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		waitFor(t, "an idle engine", func() bool { return e.Stats().Slots == 0 })
		checkIdle(t, e)
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	})
	return e
}

func chatPrompt(t testing.TB, e *Engine, text string) server.Prompt {
	t.Helper()
	p, err := e.Prepare(context.Background(), server.Input{Messages: []server.Message{{Role: "user", Content: text}}})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// TestRealModelBatchedEqualsAlone: the promise of backend/cpu, that a row doesn't depend on its company, holds through the
// whole engine, log-probabilities included.
func TestRealModelBatchedEqualsAlone(t *testing.T) {
	prompt := func(e *Engine, i int) server.Prompt {
		return chatPrompt(t, e, strings.Repeat("The list says: amber is 12, birch is 7. ", 1+i%3)+fmt.Sprintf("What is %d + %d?", i, 2*i))
	}
	s := server.Sampling{MaxTokens: 12, Logprobs: true, TopLogprobs: 2}
	const n = 12
	var want [n]output
	alone := realEngine(t, Config{MaxSeqs: 1}, "")
	for i := range n {
		alone.mu.Lock()
		alone.cache.Flush()
		alone.mu.Unlock()
		want[i] = must(t, alone, prompt(alone, i).Tokens, s)
	}
	page := alone.rt.Model.KVBytesPerToken() * 16
	for _, cfg := range []Config{{}, {MaxBatchTokens: 13}, {MaxSeqs: 6, KVMemory: 14 * page}} {
		e := realEngine(t, cfg, "")
		var wg sync.WaitGroup
		for i := range n {
			wg.Go(func() { compare(t, i, []output{must(t, e, prompt(e, i).Tokens, s)}, []output{want[i]}) })
		}
		wg.Wait()
		if st := e.Stats(); st.PrefixHitTokens == 0 {
			t.Errorf("%+v: nothing was reused", cfg)
		}
	}
}

func TestSmolLM2Answers(t *testing.T) {
	e := realEngine(t, Config{}, testenv.Model(t, "SmolLM2-135M-Instruct.Q4_1.gguf"))
	p := chatPrompt(t, e, "What is the capital of France?")
	if len(p.Tokens) != 37 {
		t.Errorf("the prompt has %d tokens, want 37", len(p.Tokens))
	}
	for range 2 { // the second time from the prefix cache
		if o := must(t, e, p.Tokens, server.Sampling{MaxTokens: 20}); o.text != "The capital of France is Paris." || o.finish != "stop" {
			t.Errorf("%q, %s", o.text, o.finish)
		}
	}
	if o := must(t, e, p.Tokens, server.Sampling{MaxTokens: 1}); o.usage.CachedTokens != 32 {
		t.Errorf("%d tokens of 37 are reused, want 32", o.usage.CachedTokens)
	}
	if st := e.Stats(); st.Memory["kv"] == 0 || st.Memory["weights_mapped"] == 0 || st.Backend != "cpu" {
		t.Errorf("memory %v on %s", st.Memory, st.Backend)
	}
}

// BenchmarkMainJob is the main job on SmolLM2: prompts of 704 tokens that share 690, 8 new tokens, 4 workers.
func BenchmarkMainJob(b *testing.B) {
	for _, c := range []struct {
		name  string
		batch int
	}{{"128", 128}, {"256", 256}, {"512", 512}} {
		b.Run("step tokens "+c.name, func(b *testing.B) {
			e := realEngine(b, Config{MaxBatchTokens: c.batch}, testenv.Model(b, "SmolLM2-135M-Instruct.Q4_1.gguf"))
			base := chatPrompt(b, e, strings.Repeat("All work and no play makes Jack a dull boy. ", 70)).Tokens[:690]
			next := make(chan int)
			var wg sync.WaitGroup
			for range 4 {
				wg.Go(func() {
					for i := range next {
						tail := e.rt.Tokenizer.Encode(fmt.Sprintf(" Task %08d goes like this, and so on and on.", i))[:14]
						if _, err := generate(e, append(base[:690:690], tail...), server.Sampling{MaxTokens: 8, IgnoreEOS: true}); err != nil {
							b.Error(err)
						}
					}
				})
			}
			i := 0
			for b.Loop() {
				next <- i
				i++
			}
			close(next)
			wg.Wait()
			b.ReportMetric(float64(i)/b.Elapsed().Seconds(), "results/s")
		})
	}
}

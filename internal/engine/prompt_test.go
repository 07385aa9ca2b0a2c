package engine

import (
	"bytes"
	"errors"
	"runtime"
	"strings"
	"testing"

	"cotenant/internal/chat"
	"cotenant/internal/server"
)

// TestHugePromptsCostLittle: what can't fit is refused without being counted, kept or rendered to its end.
func TestHugePromptsCostLittle(t *testing.T) {
	m := newFake()
	tmpl, err := chat.New(testTemplate, chat.Options{})
	if err != nil {
		t.Fatal(err)
	}
	e, err := New(Config{}, func() (Runtime, error) {
		return Runtime{Model: m, Device: m, LogitsWidth: vocabSize + padding, Tokenizer: testTokenizer(t, true), Template: tmpl}, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = e.Close() }()
	const size = 4 << 20
	words := strings.Repeat("some words ", size/11)
	for name, in := range map[string]server.Input{
		"text":       {HasText: true, Text: words},
		"one letter": {HasText: true, Text: strings.Repeat("a", size)},
		"tokens":     {Tokens: make([]int32, size)},
		"message":    {Messages: []server.Message{{Role: "user", Content: words[:size/2]}}},
		"template":   {Messages: []server.Message{{Role: "user", Content: words + words}}},
		"messages":   {Messages: make([]server.Message, size/10)},
	} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, err := e.Prepare(t.Context(), in)
		runtime.ReadMemStats(&after)
		var refused *server.RequestError
		if !errors.As(err, &refused) || refused.Code != codeTooLong {
			t.Errorf("%s: %v", name, err)
		}
		if got := after.TotalAlloc - before.TotalAlloc; got > 5*size {
			t.Errorf("%s: %d bytes allocated for a prompt of %d", name, got, size)
		}
	}
	// A little too long is counted, so that its author learns by how much.
	p, err := e.Prepare(t.Context(), server.Input{HasText: true, Text: strings.Repeat("a", 404)})
	if err != nil {
		t.Fatal(err)
	}
	if _, err = e.Generate(t.Context(), p, server.Sampling{MaxTokens: 1}); !isRequestError(err) || !strings.Contains(err.Error(), "405") {
		t.Errorf("405 tokens with BOS: %v", err)
	}
}

// TestTokensJoinToText: with log-probabilities, the tokens' bytes are the prompt's text and the answer's, whatever begins or
// ends them. Evaluators count on one token more than the prompt has when they ask for one.
func TestTokensJoinToText(t *testing.T) {
	for _, c := range []struct {
		name, script string
		s            server.Sampling
		answer       string
		tokens       int
	}{
		{"eos", "yes", server.Sampling{MaxTokens: 9}, "yes", 4},
		{"eos at once", "", server.Sampling{MaxTokens: 1}, "", 1},
		{"stop token", "abcd", server.Sampling{MaxTokens: 9, StopTokens: []int32{'c'}}, "ab", 3},
		{"length", "abcd", server.Sampling{MaxTokens: 2}, "ab", 2},
		{"nothing", "abcd", server.Sampling{}, "", 0},
	} {
		m := newFake()
		m.eosOdds, m.script = 0, scripted(c.script, 4)
		e, err := New(Config{}, func() (Runtime, error) {
			return Runtime{Model: m, Device: m, LogitsWidth: vocabSize + padding, Tokenizer: testTokenizer(t, true)}, nil
		})
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = e.Close() }()
		p, err := e.Prepare(t.Context(), server.Input{HasText: true, Text: "how"}) // four tokens with BOS
		if err != nil {
			t.Fatal(err)
		}
		c.s.Logprobs, c.s.TopLogprobs, c.s.PromptLogprobs = true, 2, true
		st, err := e.Generate(t.Context(), p, c.s)
		if err != nil {
			t.Fatal(err)
		}
		outs, err := collect(st, 1)
		if err != nil {
			t.Fatal(err)
		}
		o, prompt, answer := outs[0], "", ""
		for _, k := range o.prompt {
			prompt += string(k.Bytes)
		}
		for _, k := range o.tokens {
			answer += string(k.Bytes)
			if len(k.Top) != 2 || k.Logprob > 0 || k.Top[0].ID == k.ID && !bytes.Equal(k.Top[0].Bytes, k.Bytes) {
				t.Errorf("%s: token %+v", c.name, k)
			}
		}
		if prompt != p.Text || len(o.prompt) != 4 || answer != c.answer || o.text != c.answer || len(o.tokens) != c.tokens {
			t.Errorf("%s: prompt %q for %q, answer %q for %q, %d tokens", c.name, prompt, p.Text, answer, o.text, len(o.tokens))
		}
	}
}

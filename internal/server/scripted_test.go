package server

import (
	"context"
	"hash/fnv"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// scripted is a Generator whose answers a test writes down. Its tokens are words with the spaces before them.
type scripted struct {
	info ModelInfo
	// answer is what one request gets; nil: words(p, s).
	answer func(p Prompt, s Sampling) ([]step, error)
	// prepare may refuse; nil: nothing is refused.
	prepare func(in Input) error

	mu       sync.Mutex
	inputs   []Input
	sampling []Sampling
	health   error
	stats    Stats

	open      atomic.Int64 // streams that weren't closed
	cancelled atomic.Int64 // streams whose context ended before they did
	generated atomic.Uint64
	prompted  atomic.Uint64
}

// step is one call of Next: after wait and delay it returns chunk or err.
type step struct {
	chunk Chunk
	err   error
	delay time.Duration
	wait  <-chan struct{}
}

func newScripted() *scripted {
	return &scripted{info: ModelInfo{ID: "scripted", Created: time.Unix(1700000000, 0), ContextLength: 4096, VocabSize: 50000}}
}

func (g *scripted) Model() ModelInfo { return g.info }

func (g *scripted) Health() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.health
}

func (g *scripted) Stats() Stats {
	g.mu.Lock()
	defer g.mu.Unlock()
	st := g.stats
	st.GeneratedTokens = g.generated.Load()
	st.PromptTokens = g.prompted.Load()
	return st
}

var wordPattern = regexp.MustCompile(`\s*\S+|\s+$`)

func wordID(word string) int32 {
	h := fnv.New32a()
	io.WriteString(h, word)
	return int32(h.Sum32() % 50000)
}

func (g *scripted) Prepare(ctx context.Context, in Input) (Prompt, error) {
	g.mu.Lock()
	g.inputs = append(g.inputs, in)
	g.mu.Unlock()
	if g.prepare != nil {
		if err := g.prepare(in); err != nil {
			return Prompt{}, err
		}
	}
	var p Prompt
	switch {
	case in.Tokens != nil:
		p = Prompt{Tokens: in.Tokens, Text: strings.Repeat("?", len(in.Tokens))}
	case in.HasText:
		p.Text = in.Text
	default:
		for _, m := range in.Messages {
			p.Text += m.Role + ": " + m.Content + "\n"
		}
		p.Text += "assistant:"
	}
	if in.Tokens == nil {
		for _, w := range wordPattern.FindAllString(p.Text, -1) {
			p.Tokens = append(p.Tokens, wordID(w))
		}
	}
	if len(p.Tokens) >= g.info.ContextLength {
		return Prompt{}, &RequestError{Code: "context_length_exceeded", Param: "messages", Message: "too long"}
	}
	return p, nil
}

func (g *scripted) Generate(ctx context.Context, p Prompt, s Sampling) (Stream, error) {
	g.mu.Lock()
	g.sampling = append(g.sampling, s)
	g.mu.Unlock()
	if s.MaxTokensExplicit && len(p.Tokens)+s.MaxTokens > g.info.ContextLength {
		return nil, &RequestError{Code: "context_length_exceeded", Param: "max_tokens", Message: "too long"}
	}
	answer := g.answer
	if answer == nil {
		answer = func(p Prompt, s Sampling) ([]step, error) { return words(p, s), nil }
	}
	steps, err := answer(p, s)
	if err != nil {
		return nil, err
	}
	g.open.Add(1)
	g.prompted.Add(uint64(len(p.Tokens)))
	return &scriptedStream{g: g, ctx: ctx, steps: steps}, nil
}

// last returns what the generator was last asked for.
func (g *scripted) last() (Input, Sampling) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.inputs[len(g.inputs)-1], g.sampling[len(g.sampling)-1]
}

type scriptedStream struct {
	g      *scripted
	ctx    context.Context
	steps  []step
	closed atomic.Bool
}

func (st *scriptedStream) Next(ctx context.Context) (Chunk, error) {
	if len(st.steps) == 0 {
		return Chunk{}, io.EOF
	}
	s := st.steps[0]
	var timer <-chan time.Time
	if s.delay > 0 {
		timer = time.After(s.delay)
	}
	for s.wait != nil || timer != nil {
		select {
		case <-s.wait:
			s.wait = nil
		case <-timer:
			timer = nil
		case <-ctx.Done():
			return Chunk{}, ctx.Err()
		case <-st.ctx.Done():
			return Chunk{}, st.ctx.Err()
		}
	}
	if st.ctx.Err() != nil {
		return Chunk{}, st.ctx.Err()
	}
	st.steps = st.steps[1:]
	st.g.generated.Add(uint64(len(s.chunk.Tokens)))
	return s.chunk, s.err
}

func (st *scriptedStream) Close() {
	if !st.closed.Swap(true) {
		st.g.open.Add(-1)
		if len(st.steps) > 0 {
			st.g.cancelled.Add(1)
		}
	}
}

// words answers every choice with " word0 word1 …", one token a chunk, up to 8 tokens, MaxTokens or a stop string.
func words(p Prompt, s Sampling) []step {
	n, reason, stop := 8, "stop", ""
	if s.MaxTokens >= 0 && (s.MaxTokens < n || s.IgnoreEOS) {
		n, reason = s.MaxTokens, "length"
	}
	var all strings.Builder
	var texts []string
	for i := 0; i < n && stop == ""; i++ {
		word, before := " word"+string(rune('0'+i%10)), all.Len()
		all.WriteString(word)
		for _, st := range s.Stop {
			if at := strings.Index(all.String(), st); at >= 0 {
				word, reason, stop = word[:max(at-before, 0)], "stop", st
				break
			}
		}
		texts = append(texts, word)
	}
	usage := Usage{PromptTokens: len(p.Tokens), CachedTokens: len(p.Tokens) / 2}
	var steps []step
	for _, text := range texts {
		usage.CompletionTokens++
		for choice := range s.N {
			c := Chunk{Index: choice, Text: text, Usage: usage}
			if text != "" {
				c.Tokens = []Token{token(text, s)}
			}
			steps = append(steps, step{chunk: c})
		}
	}
	for choice := range s.N {
		steps = append(steps, step{chunk: Chunk{Index: choice, FinishReason: reason, StopReason: stop, Usage: usage}})
	}
	if s.PromptLogprobs {
		for i, w := range wordPattern.FindAllString(p.Text, -1) {
			t := token(w, s)
			t.First = i == 0
			steps[0].chunk.Prompt = append(steps[0].chunk.Prompt, t)
		}
	}
	return steps
}

func token(word string, s Sampling) Token {
	t := Token{ID: wordID(word), Bytes: []byte(word)}
	if s.Logprobs {
		t.Logprob = -0.5
		for i := range s.TopLogprobs {
			alt := word
			if i > 0 {
				alt = word + strings.Repeat("x", i)
			}
			t.Top = append(t.Top, TopToken{ID: wordID(alt), Bytes: []byte(alt), Logprob: -0.5 - float32(i)})
		}
	}
	return t
}

// start serves g on loopback.
func start(t testing.TB, cfg Config) (*Server, *httptest.Server) {
	t.Helper()
	if cfg.Version == "" {
		cfg.Version = "test"
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.NewTextHandler(t.Output(), nil))
	}
	s, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ts := httptest.NewUnstartedServer(nil)
	ts.Config = s.HTTPServer(s.Handler())
	ts.Start()
	t.Cleanup(ts.Close)
	return s, ts
}

// post sends a JSON body and returns the status, headers and body of the answer.
func post(t testing.TB, url, body string) (int, http.Header, string) {
	t.Helper()
	resp, err := http.Post(url, "application/json", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, resp.Header, string(b)
}

func get(t testing.TB, url string) (int, http.Header, string) {
	t.Helper()
	resp, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, resp.Header, string(b)
}

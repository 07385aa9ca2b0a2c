package server

import (
	"context"
	"crypto/rand"
	"net/http"
	"strconv"
	"time"

	"cotenant/internal/openai"
)

// chat answers POST /v1/chat/completions.
func (s *Server) chat(w http.ResponseWriter, r *http.Request) error {
	return s.generate(w, r, true, openai.DecodeChat)
}

// complete answers POST /v1/completions.
func (s *Server) complete(w http.ResponseWriter, r *http.Request) error {
	return s.generate(w, r, false, openai.DecodeCompletion)
}

func (s *Server) generate(w http.ResponseWriter, r *http.Request, chat bool, decode func([]byte) (*openai.Request, error)) error {
	began := time.Now()
	ctx, cancel, finish, err := s.begin(r)
	if err != nil {
		return err
	}
	defer finish()
	a, err := s.receive(ctx, w, r, chat, decode)
	if err != nil {
		return err
	}
	a.began, a.cancel = began, cancel
	src, err := a.start(ctx)
	if err != nil {
		return cause(ctx, err)
	}
	defer src.close()
	if a.q.Stream {
		return a.stream(ctx, w, src)
	}
	return a.collect(ctx, w, src)
}

// bigBody is what one body may have before only a few are prepared at once: a prompt takes many times its text while it is
// tokenised, and far more of it than fits the context takes seconds to count.
const bigBody = 256 << 10

// receive turns a request into a prepared answer. The body and its share of the memory budget are gone when it returns.
func (s *Server) receive(ctx context.Context, w http.ResponseWriter, r *http.Request, chat bool, decode func([]byte) (*openai.Request, error)) (*answer, error) {
	body, release, err := s.readBody(w, r)
	if err != nil {
		return nil, err // not ctx's cause: net/http cancels the context of a request whose body it can't read
	}
	defer release()
	if len(body) > bigBody {
		select {
		case s.preparing <- struct{}{}:
			defer func() { <-s.preparing }()
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
	a, err := s.prepare(ctx, body, chat, decode)
	if err != nil {
		return nil, cause(ctx, err)
	}
	return a, nil
}

// cause prefers why ctx was cancelled to the errors that follow from it.
func cause(ctx context.Context, err error) error {
	if c := context.Cause(ctx); c != nil {
		return c
	}
	return err
}

// answer is one generation request while it is served. One goroutine uses it.
type answer struct {
	s       *Server
	gen     Generator
	metrics *modelMetrics
	q       *openai.Request
	env     openai.Envelope
	prompts []Prompt
	began   time.Time
	cancel  context.CancelCauseFunc
	ttft    bool // observed
	choices []choice
	left    int // choices that haven't finished
}

// choice is what has come of one choice. Choices are numbered prompt by prompt.
type choice struct {
	begun, finished bool
	usage           Usage
	pace            pace
	text            []byte
	logprobs        []openai.TokenLogprob
	finish, stop    string
}

// prepare decodes and tokenises.
func (s *Server) prepare(ctx context.Context, body []byte, chat bool, decode func([]byte) (*openai.Request, error)) (*answer, error) {
	q, err := decode(body)
	if err != nil {
		return nil, err
	}
	gen, err := s.generator(q.Model)
	if err != nil {
		return nil, err
	}
	if err := checkVocabulary(q, gen.Model().VocabSize); err != nil {
		return nil, err
	}
	a := &answer{s: s, gen: gen, metrics: s.metrics.models[q.Model], q: q}
	for _, in := range inputs(q) {
		p, err := gen.Prepare(ctx, in)
		if err != nil {
			return nil, err
		}
		a.prompts = append(a.prompts, p)
	}
	prefix := "cmpl-"
	if chat {
		prefix = "chatcmpl-"
	}
	a.env = openai.Envelope{Chat: chat, ID: prefix + rand.Text(), Created: time.Now().Unix(), Model: q.Model, Fingerprint: s.fingerprints[q.Model]}
	a.left = len(a.prompts) * q.N
	a.choices = make([]choice, a.left)
	q.Messages, q.Prompts = nil, nil // tokens are all that is needed from here on
	return a, nil
}

func inputs(q *openai.Request) []Input {
	if q.Messages != nil {
		in := Input{ContinueFinal: q.ContinueFinal}
		for _, m := range q.Messages {
			in.Messages = append(in.Messages, Message(m))
		}
		return []Input{in}
	}
	list := make([]Input, len(q.Prompts))
	for i, p := range q.Prompts {
		if p.Tokens != nil {
			list[i] = Input{Tokens: p.Tokens}
		} else {
			list[i] = Input{Text: p.Text, HasText: true, ParseSpecial: q.ParseSpecial}
		}
	}
	return list
}

// checkVocabulary refuses token ids that the model doesn't have. size 0 means that it isn't known.
func checkVocabulary(q *openai.Request, size int) error {
	if size <= 0 {
		return nil
	}
	check := func(param string, id int32) error {
		if int(id) >= size {
			return openai.BadRequest(param, "%s: token id %d is not in the vocabulary of %d", param, id, size)
		}
		return nil
	}
	for _, p := range q.Prompts {
		for _, id := range p.Tokens {
			if err := check("prompt", id); err != nil {
				return err
			}
		}
	}
	for _, id := range q.StopTokens {
		if err := check("stop_token_ids", id); err != nil {
			return err
		}
	}
	for id := range q.LogitBias {
		if err := check("logit_bias."+strconv.Itoa(int(id)), id); err != nil {
			return err
		}
	}
	return nil
}

func (a *answer) sampling() Sampling {
	q := a.q
	return Sampling{
		MaxTokens: q.MaxTokens, MaxTokensExplicit: q.MaxTokensExplicit, MinTokens: q.MinTokens, N: q.N,
		Temperature: float32(q.Temperature), TopK: q.TopK, TopP: float32(q.TopP), MinP: float32(q.MinP),
		PresencePenalty: float32(q.PresencePenalty), FrequencyPenalty: float32(q.FrequencyPenalty),
		RepetitionPenalty: float32(q.RepetitionPenalty), Seed: q.Seed, LogitBias: q.LogitBias,
		Stop: q.Stop, StopTokens: q.StopTokens, IgnoreEOS: q.IgnoreEOS,
		Logprobs: q.Logprobs, TopLogprobs: q.TopLogprobs, PromptLogprobs: q.Echo && q.Logprobs, CacheSalt: q.CacheSalt,
	}
}

// start queues every prompt, or none.
func (a *answer) start(ctx context.Context) (source, error) {
	streams := make([]Stream, 0, len(a.prompts))
	for _, p := range a.prompts {
		st, err := a.gen.Generate(ctx, p, a.sampling())
		if err != nil {
			for _, open := range streams {
				open.Close()
			}
			return nil, err
		}
		streams = append(streams, st)
	}
	src := join(ctx, streams)
	if a.q.Echo && a.q.Logprobs && a.q.N > 1 {
		src = newPromptFirst(src, len(a.prompts))
	}
	return src, nil
}

// observe books what a chunk brings and returns its choice.
func (a *answer) observe(prompt int, c *Chunk) (*choice, int, error) {
	index := prompt*a.q.N + c.Index
	if c.Index < 0 || c.Index >= a.q.N || a.choices[index].finished {
		return nil, 0, errBadChunk
	}
	ch := &a.choices[index]
	ch.usage = c.Usage
	now := time.Now()
	if !a.ttft && c.Usage.CompletionTokens > 0 {
		a.ttft = true
		a.metrics.ttft.Observe(now.Sub(a.began).Seconds())
	}
	ch.pace.observe(a.metrics, c.Usage.CompletionTokens, now)
	if c.FinishReason != "" {
		ch.finished, ch.finish, ch.stop = true, c.FinishReason, c.StopReason
		ch.pace.done(a.metrics)
		a.left--
	}
	return ch, index, nil
}

// usage adds the choices up. A prompt counts once, however many choices it has, and so do its cached tokens: those of the first
// choice, since the others may have found what that one computed.
func (a *answer) usage() openai.Usage {
	var u openai.Usage
	for i := range a.choices {
		ch := &a.choices[i]
		u.Completion += ch.usage.CompletionTokens
		if i%a.q.N == 0 {
			u.Prompt += len(a.prompts[i/a.q.N].Tokens)
			u.Cached += ch.usage.CachedTokens
		}
	}
	return u
}

// succeeded books a whole answer.
func (a *answer) succeeded() {
	u := a.usage()
	a.metrics.latency.Observe(time.Since(a.began).Seconds())
	a.metrics.promptTokens.Observe(float64(u.Prompt))
	a.metrics.generationTokens.Observe(float64(u.Completion))
	if c := a.metrics.success[a.choices[0].finish]; c != nil {
		c.Inc()
	}
}

// tokenLogprobs converts, never to nil.
func tokenLogprobs(tokens []Token) []openai.TokenLogprob {
	list := make([]openai.TokenLogprob, len(tokens))
	for i, t := range tokens {
		list[i] = openai.TokenLogprob{Bytes: t.Bytes, Logprob: t.Logprob, First: t.First}
		for _, top := range t.Top {
			list[i].Top = append(list[i].Top, openai.TopLogprob{Bytes: top.Bytes, Logprob: top.Logprob})
		}
	}
	return list
}

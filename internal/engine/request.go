package engine

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"time"
	"unicode/utf8"

	"cotenant/internal/scheduler"
	"cotenant/internal/server"
)

const (
	maxChoices   = 8
	maxTop       = 20
	maxStopBytes = 1 << 16 // of all stop strings together
)

// finish is how a choice ended.
type finish uint8

const (
	running finish = iota
	finishStop
	finishLength
)

func (f finish) String() string { return [...]string{"", "stop", "length"}[f] }

// request is one call of Generate; it is the server.Stream that the call returns.
type request struct {
	e       *Engine
	s       server.Sampling
	prompt  []int32
	hidden  int     // leading tokens of the prompt that its text doesn't hold
	most    int     // tokens of an answer
	ends    []int32 // tokens that end an answer
	choices []*choice

	left    int           // choices that have not ended; Engine.mu
	started bool          // some choice has left the queue; Engine.mu
	added   time.Duration // Engine.mu

	unhook func() bool // from the caller's context

	mu     sync.Mutex
	events []event // from the loop, for the pump
	failed error   // what the request is to end with
	chunks []server.Chunk
	read   int           // chunks that were read
	over   error         // after the chunks: io.EOF, or what failed
	wake   chan struct{} // capacity 1: events or failed has changed
	ready  chan struct{} // capacity 1: chunks or over has changed
}

// choice is one answer of a request.
type choice struct {
	r       *request
	index   int
	seq     *scheduler.Sequence
	sampler *sampler // the loop's
	length  int      // tokens of the answer so far; the loop's
	scores  []scored // prompt tokens that were scored and not sent; the loop's
	ended   bool     // Engine.mu
	answer  *answer  // the pump's
}

// event is what a step gave for a choice.
type event struct {
	choice   *choice
	hasToken bool
	token    scored
	prompt   []scored // log-probabilities of the prompt's tokens from the second on
	cached   int
	finish   finish
}

// take counts a token of the answer and says whether the answer ends with it.
func (c *choice) take(id int32) finish {
	c.length++
	if slices.Contains(c.r.ends, id) {
		return finishStop
	}
	if c.length >= c.r.most {
		return finishLength
	}
	return running
}

// Generate implements server.Generator.
func (e *Engine) Generate(ctx context.Context, p server.Prompt, s server.Sampling) (server.Stream, error) {
	r, err := e.newRequest(p, s)
	if err != nil {
		return nil, err
	}
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	if err := e.admit(r); err != nil {
		return nil, err
	}
	r.unhook = context.AfterFunc(ctx, func() {
		r.fail(context.Cause(ctx))
		e.cancel(r.choices...)
	})
	go r.pump()
	return r, nil
}

// admit queues a request.
func (e *Engine) admit(r *request) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.failed != nil {
		return unavailable(e.failed)
	}
	if e.draining {
		return errShutdown
	}
	seqs := make([]*scheduler.Sequence, len(r.choices))
	for i, c := range r.choices {
		seqs[i] = c.seq
	}
	r.added = e.now()
	if err := e.sched.Add(r.added, seqs...); errors.Is(err, scheduler.ErrQueueFull) {
		return fmt.Errorf("%w (%w)", server.ErrQueueFull, err)
	} else if err != nil {
		return &server.RequestError{Message: err.Error(), Code: codeTooLong}
	}
	e.live[r] = struct{}{}
	e.nudge()
	return nil
}

// newRequest checks a request; what is wrong with it is a *server.RequestError.
func (e *Engine) newRequest(p server.Prompt, s server.Sampling) (*request, error) {
	if s.N == 0 {
		s.N = 1
	}
	if err := e.checkSampling(&s); err != nil {
		return nil, err
	}
	if len(p.Tokens) == 0 {
		return nil, &server.RequestError{Message: "the prompt is empty", Param: "prompt"}
	}
	for _, id := range p.Tokens {
		if id < 0 || int(id) >= e.vocab {
			return nil, &server.RequestError{Param: "prompt",
				Message: fmt.Sprintf("token %d of the prompt is not in the vocabulary of %d", id, e.vocab)}
		}
	}
	most, err := e.answerLength(len(p.Tokens), &s)
	if err != nil {
		return nil, err
	}
	r := &request{e: e, s: s, prompt: p.Tokens, hidden: p.Added, most: most, left: s.N,
		wake: make(chan struct{}, 1), ready: make(chan struct{}, 1)}
	if !s.IgnoreEOS {
		r.ends = append(r.ends, e.rt.Model.EOS()...)
	}
	r.ends = append(r.ends, s.StopTokens...)
	r.ends = slices.DeleteFunc(r.ends, func(id int32) bool { return int(id) >= e.vocab })
	seed := rand.Uint64()
	if s.Seed != nil {
		seed = uint64(*s.Seed)
	}
	for i := range s.N {
		c := &choice{r: r, index: i, sampler: newSampler(&s, p.Tokens, r.ends, i, seed)}
		c.answer = newAnswer(e.rt.Tokenizer, &s, i, len(p.Tokens))
		c.seq = &scheduler.Sequence{
			Tokens:        append(make([]int32, 0, len(p.Tokens)+min(most, 256)), p.Tokens...),
			MaxLen:        len(p.Tokens) + most,
			Salt:          s.CacheSalt,
			PromptOutputs: s.PromptLogprobs && i == 0,
			NoSample:      most == 0,
			Data:          c,
		}
		r.choices = append(r.choices, c)
	}
	return r, nil
}

// answerLength returns how many tokens an answer to a prompt of n may have. Nothing is cut silently: what doesn't fit is refused.
func (e *Engine) answerLength(n int, s *server.Sampling) (int, error) {
	room := e.info.ContextLength - n
	if room < 0 || room == 0 && s.MaxTokens != 0 {
		return 0, e.tooLong("%d tokens", n)
	}
	if s.MaxTokens < 0 || s.MaxTokens > room && !s.MaxTokensExplicit {
		return room, nil
	}
	if s.MaxTokens > room {
		return 0, &server.RequestError{Param: "max_tokens", Code: codeTooLong, Message: fmt.Sprintf(
			"the prompt has %d tokens and %d are asked for, but the context is %d tokens for both together",
			n, s.MaxTokens, e.info.ContextLength)}
	}
	return s.MaxTokens, nil
}

func (e *Engine) checkSampling(s *server.Sampling) error {
	inRange := func(param string, v float32, lo, hi float64) error {
		if f := float64(v); !(f >= lo && f <= hi) {
			return &server.RequestError{Param: param, Message: fmt.Sprintf("%s is %v, want %v to %v", param, v, lo, hi)}
		}
		return nil
	}
	err := errors.Join(
		inRange("temperature", s.Temperature, 0, math.MaxFloat32),
		inRange("top_p", s.TopP, 0, 1),
		inRange("min_p", s.MinP, 0, 1),
		inRange("presence_penalty", s.PresencePenalty, -100, 100),
		inRange("frequency_penalty", s.FrequencyPenalty, -100, 100),
		inRange("repetition_penalty", s.RepetitionPenalty, 0, math.MaxFloat32),
		inRange("n", float32(s.N), 1, maxChoices),
		inRange("top_k", float32(s.TopK), 0, math.MaxInt32),
		inRange("min_tokens", float32(s.MinTokens), 0, math.MaxInt32),
		inRange("top_logprobs", float32(s.TopLogprobs), 0, maxTop),
	)
	for id, v := range s.LogitBias {
		if id < 0 || int(id) >= e.vocab {
			err = errors.Join(err, &server.RequestError{Param: "logit_bias",
				Message: fmt.Sprintf("logit_bias: token %d is not in the vocabulary of %d", id, e.vocab)})
			break
		}
		err = errors.Join(err, inRange("logit_bias", v, -100, 100))
	}
	for _, id := range s.StopTokens {
		if id < 0 || int(id) >= e.vocab {
			err = errors.Join(err, &server.RequestError{Param: "stop_token_ids",
				Message: fmt.Sprintf("stop_token_ids: token %d is not in the vocabulary of %d", id, e.vocab)})
			break
		}
	}
	bytes := 0
	for _, stop := range s.Stop {
		bytes += len(stop)
		if stop == "" {
			err = errors.Join(err, &server.RequestError{Param: "stop", Message: "stop: an empty string would stop at once"})
			break
		}
		if !utf8.ValidString(stop) { // it could match in the middle of a character
			err = errors.Join(err, &server.RequestError{Param: "stop", Message: "stop: not valid UTF-8"})
			break
		}
	}
	if bytes > maxStopBytes {
		err = errors.Join(err, &server.RequestError{Param: "stop", Message: fmt.Sprintf("stop: %d bytes, at most %d", bytes, maxStopBytes)})
	}
	var first *server.RequestError
	if errors.As(err, &first) {
		return first // one at a time, as OpenAI does
	}
	return nil
}

package server

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"

	"cotenant/internal/openai"
)

// Faults of a Generator.
var (
	errEndedEarly = errors.New("the stream ended before every choice had finished")
	errBadChunk   = errors.New("the stream brought a chunk of a choice that doesn't exist or has finished")
)

// collect answers in one piece.
func (a *answer) collect(ctx context.Context, w http.ResponseWriter, src source) error {
	promptLogprobs := make([][]openai.TokenLogprob, len(a.prompts))
	for a.left > 0 {
		prompt, c, err := src.next(ctx)
		if err != nil {
			return a.broken(ctx, err)
		}
		if c.Prompt != nil && a.q.Logprobs {
			promptLogprobs[prompt] = tokenLogprobs(c.Prompt)
		}
		ch, _, err := a.observe(prompt, &c)
		if err != nil {
			return err
		}
		ch.text = append(ch.text, c.Text...)
		if a.q.Logprobs {
			ch.logprobs = append(ch.logprobs, tokenLogprobs(c.Tokens)...)
		}
	}
	choices := make([]openai.Choice, len(a.choices))
	for i := range a.choices {
		ch := &a.choices[i]
		choices[i] = openai.Choice{Index: i, Text: string(ch.text), HasLogprobs: a.q.Logprobs, Logprobs: ch.logprobs,
			FinishReason: ch.finish, StopReason: ch.stop}
		if prompt := i / a.q.N; a.q.Echo {
			choices[i].Text = a.prompts[prompt].Text + choices[i].Text
			choices[i].Logprobs = append(promptLogprobs[prompt : prompt+1 : prompt+1][0], ch.logprobs...)
		}
	}
	a.succeeded()
	writeJSON(w, http.StatusOK, a.env.AppendAnswer(nil, choices, a.usage()))
	return nil
}

// broken is why a stream of chunks ended early.
func (a *answer) broken(ctx context.Context, err error) error {
	if errors.Is(err, io.EOF) {
		err = errEndedEarly
	}
	return cause(ctx, fmt.Errorf("generating: %w", err))
}

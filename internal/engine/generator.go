package engine

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"cotenant/internal/chat"
	"cotenant/internal/server"
	"cotenant/internal/tokenizer"
)

// An Engine is what the server serves.
var _ server.Generator = (*Engine)(nil)

// Model implements server.Generator.
func (e *Engine) Model() server.ModelInfo { return e.info }

// countedContexts: a prompt is counted to its end where it is no longer than so many contexts. Beyond, nobody needs to know
// by how much it is too long.
const countedContexts = 2

// Prepare implements server.Generator. A chat's prompt is what the model's template makes of it: the template's own text may
// hold control tokens, a message's never becomes one, and BOS comes from the template or not at all. A plain prompt gets
// BOS where the model expects it and the prompt doesn't begin with it; token ids are taken as they are.
func (e *Engine) Prepare(ctx context.Context, in server.Input) (server.Prompt, error) {
	tok := e.rt.Tokenizer
	switch {
	case in.Messages != nil:
		return e.prepareChat(in)
	case in.HasText:
		tokens, err := e.encode([]tokenizer.Segment{{Text: in.Text, Trusted: in.ParseSpecial}})
		if err != nil {
			return server.Prompt{}, err
		}
		p := server.Prompt{Tokens: tokens, Text: in.Text}
		if tok.AddBOS() && (len(tokens) == 0 || tokens[0] != tok.BOS()) {
			p.Tokens, p.Added = append([]int32{tok.BOS()}, tokens...), 1
		}
		return p, ctx.Err()
	case len(in.Tokens) > e.info.ContextLength:
		return server.Prompt{}, e.tooLong("%d tokens", len(in.Tokens))
	default:
		return server.Prompt{Tokens: in.Tokens, Text: tok.ToText(in.Tokens)}, ctx.Err()
	}
}

func (e *Engine) encode(segments []tokenizer.Segment) ([]int32, error) {
	most := countedContexts * e.info.ContextLength
	tokens, ok := e.rt.Tokenizer.EncodeWithin(segments, most)
	if !ok {
		return nil, e.tooLong("more than %d tokens", most)
	}
	return tokens, nil
}

const codeTooLong = "context_length_exceeded"

// tooLong refuses a prompt whose size the format and its arguments say.
func (e *Engine) tooLong(format string, args ...any) error {
	return &server.RequestError{Code: codeTooLong, Message: fmt.Sprintf("the prompt has "+format+
		", but the context is %d tokens for prompt and answer together", append(args, e.info.ContextLength)...)}
}

func (e *Engine) prepareChat(in server.Input) (server.Prompt, error) {
	if e.rt.Template == nil {
		why := "the model has no chat template"
		if e.rt.NoTemplate != nil {
			why = e.rt.NoTemplate.Error()
		}
		return server.Prompt{}, &server.RequestError{Param: "messages", Message: why + "; /v1/completions takes plain text"}
	}
	if len(in.Messages) > e.info.ContextLength {
		return server.Prompt{}, e.tooLong("%d messages", len(in.Messages)) // each of which takes at least a token
	}
	messages := make([]chat.Message, len(in.Messages))
	for i, m := range in.Messages {
		messages[i] = chat.Message{Role: m.Role, Name: m.Name, Content: m.Content}
	}
	rendered, err := e.rt.Template.Render(messages,
		chat.RenderOptions{AddGenerationPrompt: !in.ContinueFinal, ContinueFinal: in.ContinueFinal})
	if err != nil {
		refused := &server.RequestError{Param: "messages", Message: err.Error()}
		var failed *chat.TemplateError
		if errors.As(err, &failed) && failed.TooLong {
			refused.Code = codeTooLong
		}
		return server.Prompt{}, refused
	}
	segments := make([]tokenizer.Segment, len(rendered))
	var text strings.Builder
	for i, s := range rendered {
		segments[i] = tokenizer.Segment(s)
		text.WriteString(s.Text)
	}
	tokens, err := e.encode(segments)
	if err != nil {
		return server.Prompt{}, err
	}
	return server.Prompt{Tokens: tokens, Text: text.String()}, nil
}

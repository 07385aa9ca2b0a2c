package engine

import (
	"context"
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

// Prepare implements server.Generator. A chat's prompt is what the model's template makes of it: the template's own text may
// hold control tokens, a message's never becomes one, and BOS comes from the template or not at all. A plain prompt gets
// BOS where the model expects it and the prompt doesn't begin with it; token ids are taken as they are.
func (e *Engine) Prepare(ctx context.Context, in server.Input) (server.Prompt, error) {
	tok := e.rt.Tokenizer
	switch {
	case in.Messages != nil:
		return e.prepareChat(in)
	case in.HasText:
		p := server.Prompt{Text: in.Text}
		if in.ParseSpecial {
			p.Tokens = tok.EncodeSpecial(in.Text)
		} else {
			p.Tokens = tok.Encode(in.Text)
		}
		if tok.AddBOS() && (len(p.Tokens) == 0 || p.Tokens[0] != tok.BOS()) {
			p.Tokens = append([]int32{tok.BOS()}, p.Tokens...)
		}
		return p, ctx.Err()
	default:
		for _, id := range in.Tokens {
			if id < 0 || int(id) >= e.vocab {
				return server.Prompt{}, &server.RequestError{Param: "prompt",
					Message: fmt.Sprintf("token %d of the prompt is not in the vocabulary of %d", id, e.vocab)}
			}
		}
		return server.Prompt{Tokens: in.Tokens, Text: tok.ToText(in.Tokens)}, ctx.Err()
	}
}

func (e *Engine) prepareChat(in server.Input) (server.Prompt, error) {
	if e.rt.Template == nil {
		why := "the model has no chat template"
		if e.rt.NoTemplate != nil {
			why = e.rt.NoTemplate.Error()
		}
		return server.Prompt{}, &server.RequestError{Param: "messages", Message: why + "; /v1/completions takes plain text"}
	}
	messages := make([]chat.Message, len(in.Messages))
	for i, m := range in.Messages {
		messages[i] = chat.Message{Role: m.Role, Name: m.Name, Content: m.Content}
	}
	rendered, err := e.rt.Template.Render(messages,
		chat.RenderOptions{AddGenerationPrompt: !in.ContinueFinal, ContinueFinal: in.ContinueFinal})
	if err != nil {
		return server.Prompt{}, &server.RequestError{Param: "messages", Message: err.Error()}
	}
	segments := make([]tokenizer.Segment, len(rendered))
	var text strings.Builder
	for i, s := range rendered {
		segments[i] = tokenizer.Segment(s)
		text.WriteString(s.Text)
	}
	return server.Prompt{Tokens: e.rt.Tokenizer.EncodeSegments(segments), Text: text.String()}, nil
}

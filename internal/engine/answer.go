package engine

import (
	"unicode/utf8"

	"cotenant/internal/server"
	"cotenant/internal/tokenizer"
)

// answer is the text of a choice: it decodes tokens, holds what is not a whole character yet or may become a stop string, and
// makes chunks of the rest. Offsets are bytes of the decoded text.
type answer struct {
	tok     *tokenizer.Tokenizer
	dec     *tokenizer.Stream
	stops   stopper
	minimum int // tokens before which no stop string counts

	text    []byte // decoded and not out: [out, out+len(text))
	out     int
	waiting []heldToken

	next   server.Chunk // being made; Index and Usage are kept
	finish finish
	news   bool // next is worth sending
}

// heldToken is a token whose text isn't all out.
type heldToken struct {
	server.Token
	start, end int // of its text; end is -1 while its last character is incomplete
}

func newAnswer(tok *tokenizer.Tokenizer, s *server.Sampling, index, prompt int) *answer {
	a := &answer{tok: tok, dec: tok.Stream(), stops: newStopper(s.Stop), minimum: s.MinTokens}
	a.next.Index = index
	a.next.Usage.PromptTokens = prompt
	return a
}

// take adds what a step gave.
func (a *answer) take(ev *event) {
	a.next.Usage.CachedTokens = ev.cached
	if r := ev.choice.r; r.s.PromptLogprobs && ev.choice.index == 0 && a.next.Usage.CompletionTokens == 0 {
		a.takePrompt(ev)
	}
	end := ev.hasToken && ev.finish == finishStop // its text is no part of the answer
	if ev.hasToken {
		a.next.Usage.CompletionTokens++
	}
	if ev.hasToken && !end {
		text := a.decode(ev.token)
		if a.search(text) {
			return
		}
	}
	if ev.finish != running {
		if a.flush(ev.finish) && end {
			a.next.Tokens = append(a.next.Tokens, a.token(ev.token, nil))
		}
		return
	}
	a.release(a.out + len(a.text) - a.stops.held())
}

// takePrompt makes the prompt's tokens, whose first has no log-probability.
func (a *answer) takePrompt(ev *event) {
	r := ev.choice.r
	a.next.Prompt = make([]server.Token, len(r.prompt))
	for i, id := range r.prompt {
		var bytes []byte
		if i >= r.hidden {
			bytes = a.tok.TokenBytes(id)
		}
		if i == 0 {
			a.next.Prompt[i] = server.Token{ID: id, Bytes: bytes, First: true}
		} else {
			a.next.Prompt[i] = a.token(ev.prompt[i-1], bytes)
		}
	}
	a.news = true
}

// token makes a token that stands for bytes in the text; among its alternatives it has the same.
func (a *answer) token(s scored, bytes []byte) server.Token {
	t := server.Token{ID: s.id, Bytes: bytes, Logprob: s.logprob}
	for _, c := range s.top {
		top := server.TopToken{ID: c.id, Bytes: bytes, Logprob: c.weight}
		if c.id != s.id {
			top.Bytes = a.tok.TokenBytes(c.id)
		}
		t.Top = append(t.Top, top)
	}
	return t
}

// textBytes are what a token adds to an answer: nothing for control tokens.
func (a *answer) textBytes(id int32) []byte {
	if a.tok.IsControl(id) {
		return nil
	}
	return a.tok.TokenBytes(id)
}

// decode adds a token and returns the text that it completes.
func (a *answer) decode(s scored) string {
	at := a.out + len(a.text)
	h := heldToken{Token: a.token(s, a.textBytes(s.id)), start: at + a.dec.Held()}
	text := ""
	if len(h.Bytes) > 0 {
		text = a.dec.Push(s.id)
	}
	if text != "" {
		// What was held before was one incomplete character: it is the first of text.
		_, n := utf8.DecodeRuneInString(text)
		a.settle(at + n)
	}
	a.text = append(a.text, text...)
	h.end = -1
	if a.dec.Held() == 0 {
		h.end = a.out + len(a.text)
	}
	a.waiting = append(a.waiting, h)
	return text
}

// settle says where the text of tokens ends whose last character was incomplete.
func (a *answer) settle(end int) {
	for i := len(a.waiting) - 1; i >= 0 && a.waiting[i].end < 0; i-- {
		a.waiting[i].end = end
		a.waiting[i].start = min(a.waiting[i].start, end)
	}
}

// search looks for a stop string in the newest text and ends the answer in front of it.
func (a *answer) search(text string) bool {
	if a.next.Usage.CompletionTokens < a.minimum {
		return false
	}
	i, n, stop := a.stops.feed(text)
	if stop == "" {
		return false
	}
	at := a.out + len(a.text) - len(text) + i - n // where the stop string begins
	for len(a.waiting) > 0 && (a.waiting[0].start < at || a.waiting[0].end >= 0 && a.waiting[0].end <= at) {
		a.next.Tokens = append(a.next.Tokens, a.waiting[0].Token)
		a.waiting = a.waiting[1:]
	}
	a.next.Text += string(a.text[:at-a.out])
	a.end(finishStop)
	a.next.StopReason = stop
	return true
}

// flush ends an answer whose last token was sampled: nothing is held any more. It returns false where a stop string ended it
// before that token.
func (a *answer) flush(f finish) bool {
	text := a.dec.Flush()
	a.text = append(a.text, text...)
	a.settle(a.out + len(a.text))
	if a.search(text) {
		return false
	}
	a.release(a.out + len(a.text))
	a.end(f)
	return true
}

func (a *answer) end(f finish) {
	a.finish = f
	a.next.FinishReason = f.String()
	a.news = true
	a.text, a.waiting = nil, nil
}

// release moves text up to an offset, and the tokens that it completes, to the chunk.
func (a *answer) release(to int) {
	if n := to - a.out; n > 0 {
		a.next.Text += string(a.text[:n])
		a.text = append(a.text[:0], a.text[n:]...)
		a.out = to
		a.news = true
	}
	n := 0
	for n < len(a.waiting) && a.waiting[n].end >= 0 && a.waiting[n].end <= to {
		a.next.Tokens = append(a.next.Tokens, a.waiting[n].Token)
		a.news = true
		n++
	}
	a.waiting = append(a.waiting[:0], a.waiting[n:]...)
}

// chunk returns what is new, false where nothing is.
func (a *answer) chunk() (server.Chunk, bool) {
	if !a.news {
		return server.Chunk{}, false
	}
	c := a.next
	a.next = server.Chunk{Index: c.Index, Usage: c.Usage}
	a.news = false
	return c, true
}

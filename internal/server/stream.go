package server

import (
	"context"
	"errors"
	"net/http"
	"sync"
	"time"

	"cotenant/internal/openai"
)

// sse writes one answer as server-sent events: one write and one flush for what one chunk brings.
type sse struct {
	w        http.ResponseWriter
	rc       *http.ResponseController
	timeout  time.Duration
	deadline time.Time // of writes, as it was last set
	sent     bool      // headers are out
}

// begin sends the headers.
func (s *sse) begin() {
	h := s.w.Header()
	h.Set("Content-Type", "text/event-stream; charset=utf-8")
	h.Set("Cache-Control", "no-cache")
	h.Set("X-Accel-Buffering", "no") // nginx would hold the stream back
	s.w.WriteHeader(http.StatusOK)
	s.sent, s.deadline = true, time.Now().Add(s.timeout) // see recorder
}

// write sends b. Setting a deadline costs about as much as rendering a chunk, so it is moved on only when a second of it is gone.
func (s *sse) write(b []byte) error {
	if now := time.Now(); s.deadline.Sub(now) < s.timeout-time.Second {
		s.deadline = now.Add(s.timeout)
		s.rc.SetWriteDeadline(s.deadline) //nolint:errcheck // a writer without deadlines (tests) has no slow client
	}
	if len(b) > 0 {
		if _, err := s.w.Write(b); err != nil {
			return writeFailure(err)
		}
	}
	if err := s.rc.Flush(); err != nil {
		return writeFailure(err)
	}
	return nil
}

func writeFailure(err error) error {
	var timeout interface{ Timeout() bool }
	if errors.As(err, &timeout) && timeout.Timeout() {
		return errSlowClient
	}
	return errClientGone
}

var buffers = sync.Pool{New: func() any { b := make([]byte, 0, 4096); return &b }}

// stream answers by server-sent events. An error before the first byte is returned and gets its status; one after it ends the
// stream in an error object without [DONE].
func (a *answer) stream(ctx context.Context, w http.ResponseWriter, src source) error {
	out := &sse{w: w, rc: http.NewResponseController(w), timeout: a.s.cfg.WriteTimeout}
	enc := a.env.NewStream(a.q.IncludeUsage)
	pooled := buffers.Get().(*[]byte)
	buf := *pooled
	defer func() {
		if cap(buf) <= 1<<20 {
			*pooled = buf
			buffers.Put(pooled)
		}
	}()
	echo := newEcho(a)
	for a.left > 0 {
		prompt, c, err := a.nextOrBegin(ctx, src, out, enc)
		if err != nil {
			return a.cut(out, a.broken(ctx, err))
		}
		buf = buf[:0]
		if !out.sent {
			out.begin()
			buf = a.roles(buf, enc)
		}
		if buf, err = a.render(buf, enc, echo, prompt, &c); err != nil {
			return a.cut(out, err)
		}
		if a.left == 0 {
			if a.q.IncludeUsage {
				buf = enc.Usage(buf, a.usage())
			}
			buf = append(buf, openai.Done...)
		}
		if len(buf) == 0 {
			continue
		}
		if err := out.write(buf); err != nil {
			a.cancel(err)
			return a.cut(out, err)
		}
	}
	a.succeeded()
	return nil
}

// nextOrBegin waits for a chunk. While the headers aren't out it waits Config.HeaderDelay for one, then sends them first.
func (a *answer) nextOrBegin(ctx context.Context, src source, out *sse, enc *openai.StreamEncoder) (int, Chunk, error) {
	if out.sent {
		return src.next(ctx)
	}
	wait, cancel := context.WithTimeout(ctx, a.s.cfg.HeaderDelay)
	prompt, c, err := src.next(wait)
	late := wait.Err() != nil && ctx.Err() == nil
	cancel()
	if err == nil || !late || !errors.Is(err, context.DeadlineExceeded) {
		return prompt, c, err
	}
	out.begin()
	if err := out.write(a.roles(nil, enc)); err != nil {
		a.cancel(err)
		return 0, Chunk{}, err
	}
	return src.next(ctx)
}

func (a *answer) roles(buf []byte, enc *openai.StreamEncoder) []byte {
	for i := range a.choices {
		buf = enc.Role(buf, i)
	}
	return buf
}

// render appends what a chunk brings: text, the end of its choice, both or nothing.
func (a *answer) render(buf []byte, enc *openai.StreamEncoder, echo *echo, prompt int, c *Chunk) ([]byte, error) {
	ch, index, err := a.observe(prompt, c)
	if err != nil {
		return buf, err
	}
	var running *openai.Usage
	first := !ch.begun
	ch.begun = true
	if a.q.ContinuousUsage {
		u := a.usage()
		running = &u
	}
	text := c.Text
	var logprobs []openai.TokenLogprob
	if a.q.Logprobs {
		logprobs = tokenLogprobs(c.Tokens)
	}
	if a.q.Echo {
		text, logprobs = echo.add(prompt, first, c, text, logprobs)
	}
	if text != "" || len(logprobs) > 0 {
		buf = enc.Content(buf, index, text, logprobs, running)
	}
	if ch.finished {
		buf = enc.Finish(buf, index, ch.finish, ch.stop, running)
	}
	return buf, nil
}

// echo puts prompts before the first text of their choices.
type echo struct {
	texts    []string
	logprobs [][]openai.TokenLogprob
}

func newEcho(a *answer) *echo {
	if !a.q.Echo {
		return nil
	}
	e := &echo{logprobs: make([][]openai.TokenLogprob, len(a.prompts))}
	for _, p := range a.prompts {
		e.texts = append(e.texts, p.Text)
	}
	return e
}

func (e *echo) add(prompt int, first bool, c *Chunk, text string, logprobs []openai.TokenLogprob) (string, []openai.TokenLogprob) {
	if c.Prompt != nil && logprobs != nil {
		e.logprobs[prompt] = tokenLogprobs(c.Prompt)
	}
	if !first {
		return text, logprobs
	}
	if logprobs != nil {
		head := e.logprobs[prompt]
		logprobs = append(head[:len(head):len(head)], logprobs...)
	}
	return e.texts[prompt] + text, logprobs
}

// cut ends a stream early. The failure is booked here when headers are out, else by whoever answers with it.
func (a *answer) cut(out *sse, err error) error {
	if !out.sent {
		return err
	}
	f := a.s.failure(err)
	if f.reason != reasonCancelled && f.reason != reasonSlowClient {
		out.write(f.err.AppendEvent(nil)) //nolint:errcheck // the stream is over either way
	}
	return err
}

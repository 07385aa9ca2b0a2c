package server

import (
	"context"
	"errors"
	"io"
	"sync"
)

// source joins the streams of a request's prompts. next has the rules of Stream.Next; prompt says whose chunk it is.
type source interface {
	next(ctx context.Context) (prompt int, c Chunk, err error)
	close()
}

// join makes one source of streams, in the order of their prompts.
func join(ctx context.Context, streams []Stream) source {
	if len(streams) == 1 {
		return single{streams[0]}
	}
	m := &merged{streams: streams, events: make(chan event), left: len(streams)}
	m.ctx, m.cancel = context.WithCancel(ctx)
	for i := range streams {
		m.wait.Go(func() { m.pump(i) })
	}
	return m
}

type single struct{ Stream }

func (s single) next(ctx context.Context) (int, Chunk, error) {
	c, err := s.Next(ctx)
	return 0, c, err
}

func (s single) close() { s.Close() }

// merged reads each stream with a goroutine of its own. The channel has no buffer, so that streams wait for the client as a single
// one does.
type merged struct {
	ctx     context.Context
	cancel  context.CancelFunc
	streams []Stream
	events  chan event
	wait    sync.WaitGroup
	left    int
}

type event struct {
	prompt int
	chunk  Chunk
	err    error
}

func (m *merged) pump(i int) {
	for {
		c, err := m.streams[i].Next(m.ctx)
		select {
		case m.events <- event{i, c, err}:
		case <-m.ctx.Done():
			return
		}
		if err != nil {
			return
		}
	}
}

func (m *merged) next(ctx context.Context) (int, Chunk, error) {
	for m.left > 0 {
		select {
		case e := <-m.events:
			if errors.Is(e.err, io.EOF) {
				m.left--
				continue
			}
			return e.prompt, e.chunk, e.err
		case <-ctx.Done():
			return 0, Chunk{}, ctx.Err()
		}
	}
	return 0, Chunk{}, io.EOF
}

func (m *merged) close() {
	m.cancel()
	for _, s := range m.streams {
		s.Close()
	}
	m.wait.Wait()
}

// promptFirst holds chunks of a prompt's other choices back until the chunk that carries its prompt tokens has come: with echo and
// log-probabilities every choice begins with them.
type promptFirst struct {
	source
	seen  []bool
	held  []event // of prompts not seen
	ready []event
}

func newPromptFirst(src source, prompts int) *promptFirst {
	return &promptFirst{source: src, seen: make([]bool, prompts)}
}

func (p *promptFirst) next(ctx context.Context) (int, Chunk, error) {
	for {
		if len(p.ready) > 0 {
			e := p.ready[0]
			p.ready = p.ready[1:]
			return e.prompt, e.chunk, nil
		}
		i, c, err := p.source.next(ctx)
		switch {
		case err != nil:
			return i, c, err
		case p.seen[i]:
			return i, c, nil
		case c.Index != 0:
			p.held = append(p.held, event{prompt: i, chunk: c})
			continue
		}
		p.seen[i] = true
		kept := p.held[:0]
		for _, e := range p.held {
			if e.prompt == i {
				p.ready = append(p.ready, e)
			} else {
				kept = append(kept, e)
			}
		}
		p.held = kept
		return i, c, nil
	}
}

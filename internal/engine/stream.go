package engine

import (
	"context"
	"errors"
	"io"

	"cotenant/internal/server"
)

// errClosed is what Next returns after Close.
var errClosed = errors.New("the stream was closed")

// send gives an event of the loop to the pump. It never blocks: a reader that is slow costs memory, bounded by the answer,
// not steps.
func (r *request) send(ev event) {
	r.mu.Lock()
	r.events = append(r.events, ev)
	r.mu.Unlock()
	signal(r.wake)
}

// fail makes err the end of the stream, unless it has one.
func (r *request) fail(err error) {
	r.mu.Lock()
	if r.failed == nil {
		r.failed = err
	}
	r.mu.Unlock()
	signal(r.wake)
}

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// pump makes chunks of the loop's events until the stream is over. It runs beside the loop, so that text and stop strings
// cost no step time, and ahead of the reader, so that a stop string ends a choice however slowly it is read.
func (r *request) pump() {
	defer r.unhook()
	if err := r.e.guard(r.digestAll); err != nil {
		r.publish(err)
		r.e.cancel(r.choices...)
	}
}

// digestAll is pump but for what happens when it panics.
func (r *request) digestAll() error {
	var spare []event
	open := len(r.choices)
	for {
		<-r.wake
		r.mu.Lock()
		events, failed := r.events, r.failed
		r.events = spare[:0]
		r.mu.Unlock()
		if failed != nil {
			r.publish(failed)
			return nil
		}
		// A chunk per event, however many have piled up: a reader counts and times tokens by chunks.
		var chunks []server.Chunk
		for i := range events {
			if r.digest(&events[i]) {
				open--
			}
			if chunk, ok := events[i].choice.answer.chunk(); ok {
				chunks = append(chunks, chunk)
			}
		}
		if open == 0 {
			r.publish(io.EOF, chunks...)
			return nil
		}
		r.publish(nil, chunks...)
		clear(events)
		spare = events
	}
}

// digest turns an event into text and reports whether its choice ended by it.
func (r *request) digest(ev *event) bool {
	a := ev.choice.answer
	if a.finish != running {
		return false // computed before the loop learnt of a stop string
	}
	if ev.hasToken {
		r.e.generated.Add(1)
	}
	if a.take(ev); a.finish == running {
		return false
	}
	if ev.finish == running {
		r.e.cancel(ev.choice)
	}
	return true
}

// publish hands chunks to the reader, and the end where over isn't nil.
func (r *request) publish(over error, chunks ...server.Chunk) {
	if over == nil && len(chunks) == 0 {
		return
	}
	r.mu.Lock()
	r.chunks = append(r.chunks, chunks...)
	if r.over == nil {
		r.over = over
	}
	r.mu.Unlock()
	signal(r.ready)
}

// Next implements server.Stream.
func (r *request) Next(ctx context.Context) (server.Chunk, error) {
	for {
		r.mu.Lock()
		if r.read < len(r.chunks) {
			c := r.chunks[r.read]
			r.chunks[r.read] = server.Chunk{}
			if r.read++; r.read == len(r.chunks) {
				r.chunks, r.read = r.chunks[:0], 0
			}
			r.mu.Unlock()
			return c, nil
		}
		over := r.over
		r.mu.Unlock()
		if over != nil {
			return server.Chunk{}, over
		}
		select {
		case <-r.ready:
		case <-ctx.Done():
			return server.Chunk{}, ctx.Err()
		}
	}
}

// Close implements server.Stream.
func (r *request) Close() {
	r.mu.Lock()
	over := r.over != nil
	r.mu.Unlock()
	if over {
		return // every choice has ended by itself
	}
	r.fail(errClosed)
	r.e.cancel(r.choices...)
}

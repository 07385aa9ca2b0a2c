package server

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"cotenant/internal/openai"
)

// begin counts a generation request in. The context ends when the client goes away or a drain runs out of patience; its cause says
// which. finish must be called once.
func (s *Server) begin(r *http.Request) (ctx context.Context, cancel context.CancelCauseFunc, finish func(), err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.draining:
		return nil, nil, nil, errDraining
	case s.running >= s.cfg.MaxRequests:
		return nil, nil, nil, &failure{reason: reasonBusy, retryAfter: time.Second, err: &openai.Error{Status: 429,
			Type: openai.TypeRateLimit, Code: "rate_limit_exceeded", Message: "too many requests at once; try again later"}}
	}
	s.running++
	ctx, cancel = context.WithCancelCause(r.Context())
	unhook := context.AfterFunc(s.stop, func() { cancel(errDraining) })
	return ctx, cancel, func() {
		unhook()
		cancel(context.Canceled)
		s.mu.Lock()
		defer s.mu.Unlock()
		s.running--
		if s.draining && s.running == 0 {
			close(s.idle)
		}
	}, nil
}

// Drain stops admission for good: generation requests get a 503 and /health says so. It waits for those that run until ctx is
// done, then cancels the rest, whose streams end in an error event, and waits a little for them to end. The error says how many were
// cut. Calling it again waits again. Afterwards call http.Server.Shutdown, not Close: the last bytes of an answer may still be with
// net/http.
func (s *Server) Drain(ctx context.Context) error {
	s.mu.Lock()
	if !s.draining {
		s.draining = true
		if s.running == 0 {
			close(s.idle)
		}
	}
	s.mu.Unlock()
	select {
	case <-s.idle:
		return nil
	case <-ctx.Done():
	}
	s.mu.Lock()
	cut := s.running
	s.mu.Unlock()
	s.stopAll()
	select {
	case <-s.idle:
	case <-time.After(s.cfg.WriteTimeout + 5*time.Second): // a client that takes no bytes holds its handler that long
	}
	if cut > 0 {
		return fmt.Errorf("drain: %d requests were cut after the grace period", cut)
	}
	return nil
}

func (s *Server) isDraining() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.draining
}

package server

import (
	"net/http"
	"time"

	"cotenant/internal/openai"
)

// health says whether requests can be served. Its refusals aren't failed requests: they answer a probe.
func (s *Server) health(w http.ResponseWriter, _ *http.Request) error {
	if s.isDraining() {
		refuse(w, s.failure(errDraining))
		return nil
	}
	for _, g := range s.models {
		if err := g.Health(); err != nil {
			refuse(w, &failure{retryAfter: time.Second, err: &openai.Error{Status: 503, Type: openai.TypeServer,
				Code: "unavailable", Message: "model " + g.Model().ID + ": " + clip(err.Error())}})
			return nil
		}
	}
	writeJSON(w, http.StatusOK, []byte(`{"status":"ok"}`))
	return nil
}

// live says that the process answers.
func (s *Server) live(w http.ResponseWriter, _ *http.Request) error {
	writeJSON(w, http.StatusOK, []byte(`{"status":"live"}`))
	return nil
}

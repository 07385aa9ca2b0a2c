package server

import (
	"net/http"
	"strconv"
	"strings"

	"cotenant/internal/openai"
)

func model(g Generator) openai.Model {
	m := g.Model()
	return openai.Model{ID: m.ID, Created: m.Created.Unix(), OwnedBy: "cotenant", ContextLength: m.ContextLength}
}

func (s *Server) listModels(w http.ResponseWriter, _ *http.Request) error {
	list := make([]openai.Model, len(s.models))
	for i, g := range s.models {
		list[i] = model(g)
	}
	writeJSON(w, http.StatusOK, openai.AppendModels(nil, list))
	return nil
}

// getModel takes all that follows the prefix for the id: ids may hold slashes, escaped or not.
func (s *Server) getModel(w http.ResponseWriter, r *http.Request) error {
	g, err := s.generator(strings.TrimPrefix(r.URL.Path, "/v1/models/"))
	if err != nil {
		return err
	}
	m := model(g)
	writeJSON(w, http.StatusOK, m.Append(nil))
	return nil
}

func (s *Server) generator(id string) (Generator, error) {
	if g := s.byID[id]; g != nil {
		return g, nil
	}
	return nil, &failure{reason: reasonNotFound, err: &openai.Error{Status: 404, Type: openai.TypeInvalidRequest, Param: "model",
		Code: "model_not_found", Message: "the model " + strconv.Quote(clip(id)) + " is not served here; GET /v1/models lists what is"}}
}

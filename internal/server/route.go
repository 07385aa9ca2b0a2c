package server

import (
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"cotenant/internal/openai"
)

// route is one path. A path that ends in a slash is a prefix.
type route struct {
	methods string // as in an Allow header
	key     bool   // needs the API key
	handle  func(w http.ResponseWriter, r *http.Request) error
}

type routes map[string]route

func (t routes) find(path string) (route, bool) {
	if rt, ok := t[path]; ok && !strings.HasSuffix(path, "/") {
		return rt, true
	}
	for prefix, rt := range t {
		if strings.HasSuffix(prefix, "/") && len(path) > len(prefix) && strings.HasPrefix(path, prefix) {
			return rt, true
		}
	}
	return route{}, false
}

func (rt route) allows(method string) bool {
	for m := range strings.SplitSeq(rt.methods, ", ") {
		if m == method {
			return true
		}
	}
	return false
}

// recorder remembers what has been sent of a response, and gives a client timeout to take it: streams move that deadline on,
// net/http lifts it after the request. It hides nothing: http.ResponseController unwraps it.
type recorder struct {
	http.ResponseWriter
	timeout time.Duration
	status  int // 0: nothing was sent
	reason  string
}

func (w *recorder) WriteHeader(status int) {
	if w.status == 0 {
		w.begin(status)
	}
	w.ResponseWriter.WriteHeader(status)
}

func (w *recorder) Write(b []byte) (int, error) {
	if w.status == 0 {
		w.begin(http.StatusOK)
	}
	return w.ResponseWriter.Write(b)
}

func (w *recorder) begin(status int) {
	w.status = status
	rc := http.NewResponseController(w.ResponseWriter)
	rc.SetWriteDeadline(time.Now().Add(w.timeout)) //nolint:errcheck // a writer without deadlines (tests) has no slow client
}

func (w *recorder) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// wrap turns a table of routes into a handler: request ids, routing, the key, errors in OpenAI's shape, panics, one log line.
func (s *Server) wrap(table routes) http.Handler {
	return http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		began := time.Now()
		id := requestID(r)
		rw.Header().Set("X-Request-Id", id)
		rw.Header().Set("X-Content-Type-Options", "nosniff")
		w := &recorder{ResponseWriter: rw, timeout: s.cfg.WriteTimeout}
		s.limitReads(w, r)
		s.metrics.inFlight.Inc()
		defer func() {
			s.metrics.inFlight.Dec()
			p := recover()
			if p == http.ErrAbortHandler {
				panic(p)
			}
			if p != nil {
				s.log.Error("panic in a handler", "request", id, "path", r.URL.Path, "panic", p, "stack", stack())
				w.reason = reasonInternal
				s.metrics.failed.WithLabelValues(reasonInternal).Inc()
				if w.status != 0 {
					panic(http.ErrAbortHandler) // the body is torn: the client must not take it for whole
				}
				writeError(w, errInternal)
			}
			s.log.Debug("request", "request", id, "method", r.Method, "path", r.URL.Path, "status", w.status, "failed", w.reason,
				"ms", time.Since(began).Milliseconds())
		}()
		if err := s.serve(w, r, table); err != nil {
			s.fail(w, r, err)
		}
	})
}

// serve answers one request or returns why not.
func (s *Server) serve(w http.ResponseWriter, r *http.Request, table routes) error {
	rt, ok := table.find(r.URL.Path)
	if !ok {
		return &failure{reason: reasonNotFound, err: &openai.Error{Status: 404, Type: openai.TypeInvalidRequest, Code: "unknown_url",
			Message: "unknown URL: " + r.Method + " " + clip(r.URL.Path)}}
	}
	if !rt.allows(r.Method) {
		w.Header().Set("Allow", rt.methods)
		return &failure{reason: reasonMethod, err: &openai.Error{Status: 405, Type: openai.TypeInvalidRequest,
			Code: "method_not_allowed", Message: r.Method + " is not allowed here; allowed: " + rt.methods}}
	}
	if rt.key && !s.authorized(r) {
		w.Header().Set("WWW-Authenticate", "Bearer")
		return &failure{reason: reasonUnauthorized, err: &openai.Error{Status: 401, Type: openai.TypeInvalidRequest,
			Code: "invalid_api_key", Message: "missing or wrong API key: send it as `Authorization: Bearer KEY`"}}
	}
	return rt.handle(w, r)
}

// authorized compares hashes, so that neither the key's bytes nor its length show in the time it takes.
func (s *Server) authorized(r *http.Request) bool {
	if s.cfg.APIKey == "" {
		return true
	}
	scheme, key, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	hash := sha256.Sum256([]byte(strings.TrimSpace(key)))
	return subtle.ConstantTimeCompare(hash[:], s.keyHash[:]) == 1 && strings.EqualFold(scheme, "Bearer")
}

// requestID takes over the client's X-Request-Id where it is harmless, so that both sides' logs can be joined.
func requestID(r *http.Request) string {
	id := r.Header.Get("X-Request-Id")
	if id == "" || len(id) > 128 {
		return "req_" + rand.Text()
	}
	for _, c := range []byte(id) {
		if (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && c != '-' && c != '_' && c != '.' {
			return "req_" + rand.Text()
		}
	}
	return id
}

// fail books a request that failed, and answers it unless something was sent already.
func (s *Server) fail(w *recorder, r *http.Request, err error) {
	f := s.failure(err)
	if f.reason == reasonCancelled && r.Context().Err() == nil && !errors.Is(err, errClientGone) {
		f = s.failure(fmt.Errorf("cancelled, though the client is there: %v", err))
	}
	w.reason = f.reason
	s.metrics.failed.WithLabelValues(f.reason).Inc()
	if f.reason == reasonInternal {
		s.log.Error("request failed", "request", w.Header().Get("X-Request-Id"), "path", r.URL.Path, "error", err)
	}
	if w.status != 0 {
		return
	}
	if !passOver(r) {
		w.Header().Set("Connection", "close")
	}
	refuse(w, f)
}

func refuse(w http.ResponseWriter, f *failure) {
	if f.retryAfter > 0 {
		w.Header().Set("Retry-After", retryAfter(f.retryAfter))
	}
	writeError(w, f.err)
}

func writeError(w http.ResponseWriter, e *openai.Error) {
	writeJSON(w, e.Status, e.Append(nil))
}

func writeJSON(w http.ResponseWriter, status int, body []byte) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	w.Write(append(body, '\n')) //nolint:errcheck // the client is gone; nobody is left to tell
}

func clip(s string) string {
	if len(s) > 200 {
		return strings.ToValidUTF8(s[:200], "") + "…"
	}
	return s
}

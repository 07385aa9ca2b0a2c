package server

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// errorObject reads an error in OpenAI's shape, all four members there.
func errorObject(t testing.TB, body string) (message, kind, param, code string) {
	t.Helper()
	var e struct{ Error map[string]any }
	if err := json.Unmarshal([]byte(body), &e); err != nil || len(e.Error) != 4 {
		t.Fatalf("not an error object: %v: %s", err, body)
	}
	text := func(name string) string {
		v, ok := e.Error[name]
		if !ok {
			t.Fatalf("no %s in %s", name, body)
		}
		s, _ := v.(string)
		return s
	}
	return text("message"), text("type"), text("param"), text("code")
}

const good = `{"model":"scripted","messages":[{"role":"user","content":"hi"}]}`

func TestErrors(t *testing.T) {
	g := newScripted()
	g.prepare = func(in Input) error {
		switch {
		case in.Text == "template":
			return &RequestError{Message: "roles must alternate", Param: "messages"}
		case in.Text == "fault":
			return errors.New("secret detail")
		}
		return nil
	}
	g.answer = func(p Prompt, s Sampling) ([]step, error) {
		switch p.Text {
		case "full":
			return nil, fmt.Errorf("engine: %w", ErrQueueFull)
		case "down":
			return nil, ErrUnavailable
		case "long":
			return nil, &RequestError{Message: "5 + 10 tokens, context 12", Code: "context_length_exceeded", Param: "max_tokens"}
		case "late":
			return []step{{err: errors.New("secret detail")}}, nil
		case "panic":
			panic("secret detail")
		}
		return words(p, s), nil
	}
	_, ts := start(t, Config{Generators: []Generator{g}, MaxBody: 1000})
	prompt := func(s string) string { return `{"model":"scripted","prompt":"` + s + `"}` }
	for _, tt := range []struct {
		name, method, path, contentType, body string
		status                                int
		kind, param, code, message            string
	}{
		{"unknown URL", "GET", "/v1/nope", "", "", 404, "invalid_request_error", "", "unknown_url", "GET /v1/nope"},
		{"root", "GET", "/", "", "", 404, "invalid_request_error", "", "unknown_url", ""},
		{"trailing slash", "GET", "/v1/models/", "", "", 404, "invalid_request_error", "", "unknown_url", ""},
		{"embeddings", "POST", "/v1/embeddings", "application/json", good, 404, "invalid_request_error", "", "unknown_url", ""},
		{"method", "GET", "/v1/chat/completions", "", "", 405, "invalid_request_error", "", "method_not_allowed", "allowed: POST"},
		{"method on models", "DELETE", "/v1/models/scripted", "", "", 405, "invalid_request_error", "", "method_not_allowed", "GET"},
		{"form", "POST", "/v1/completions", "application/x-www-form-urlencoded", good, 415, "invalid_request_error", "", "unsupported_media_type", "application/json"},
		{"plain text", "POST", "/v1/completions", "text/plain", good, 415, "invalid_request_error", "", "unsupported_media_type", ""},
		{"charset", "POST", "/v1/completions", "application/json; charset=latin1", good, 415, "invalid_request_error", "", "unsupported_media_type", "UTF-8"},
		{"too large", "POST", "/v1/completions", "application/json", prompt(strings.Repeat("x", 1000)), 413, "invalid_request_error", "", "request_too_large", "1000 bytes"},
		{"not JSON", "POST", "/v1/completions", "application/json", "{", 400, "invalid_request_error", "", "", "not valid JSON"},
		{"no body", "POST", "/v1/chat/completions", "application/json", "", 400, "invalid_request_error", "", "", "not valid JSON"},
		{"range", "POST", "/v1/chat/completions", "application/json", `{"model":"scripted","temperature":3}`, 400, "invalid_request_error", "temperature", "", "between 0 and 2"},
		{"tools", "POST", "/v1/chat/completions", "", `{"tools":[1]}`, 400, "invalid_request_error", "tools", "unsupported_parameter", "tools"},
		{"unknown model", "POST", "/v1/chat/completions", "application/json", strings.Replace(good, "scripted", "gpt-4", 1), 404, "invalid_request_error", "model", "model_not_found", "gpt-4"},
		{"unknown model, GET", "GET", "/v1/models/a/b", "", "", 404, "invalid_request_error", "model", "model_not_found", "a/b"},
		{"token beyond the vocabulary", "POST", "/v1/completions", "", `{"model":"scripted","prompt":[50000]}`, 400, "invalid_request_error", "prompt", "", "50000"},
		{"bias beyond the vocabulary", "POST", "/v1/completions", "", `{"model":"scripted","prompt":"x","logit_bias":{"50000":1}}`, 400, "invalid_request_error", "logit_bias.50000", "", "vocabulary"},
		{"stop token beyond", "POST", "/v1/completions", "", `{"model":"scripted","prompt":"x","stop_token_ids":[50000]}`, 400, "invalid_request_error", "stop_token_ids", "", "vocabulary"},
		{"template", "POST", "/v1/completions", "application/json", prompt("template"), 400, "invalid_request_error", "messages", "", "alternate"},
		{"context", "POST", "/v1/completions", "application/json", prompt("long"), 400, "invalid_request_error", "max_tokens", "context_length_exceeded", "5 + 10"},
		{"queue full", "POST", "/v1/completions", "application/json", prompt("full"), 429, "rate_limit_error", "", "rate_limit_exceeded", "queue"},
		{"unavailable", "POST", "/v1/completions", "application/json", prompt("down"), 503, "server_error", "", "unavailable", ""},
		{"fault", "POST", "/v1/completions", "application/json", prompt("fault"), 500, "server_error", "", "internal_error", ""},
		{"late fault", "POST", "/v1/completions", "application/json", prompt("late"), 500, "server_error", "", "internal_error", ""},
		{"fault of a stream that hasn't begun", "POST", "/v1/completions", "application/json", strings.Replace(prompt("late"), "{", `{"stream":true,`, 1), 500, "server_error", "", "internal_error", ""},
		{"panic", "POST", "/v1/completions", "application/json", prompt("panic"), 500, "server_error", "", "internal_error", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			req, _ := http.NewRequest(tt.method, ts.URL+tt.path, strings.NewReader(tt.body))
			if tt.contentType != "" {
				req.Header.Set("Content-Type", tt.contentType)
			}
			resp, err := http.DefaultClient.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			b, _ := io.ReadAll(resp.Body)
			message, kind, param, code := errorObject(t, string(b))
			if resp.StatusCode != tt.status || kind != tt.kind || param != tt.param || code != tt.code || !strings.Contains(message, tt.message) {
				t.Errorf("got %d %s", resp.StatusCode, b)
			}
			if strings.Contains(string(b), "secret") {
				t.Errorf("internals leak: %s", b)
			}
			if resp.Header.Get("Content-Type") != "application/json" || resp.Header.Get("X-Request-Id") == "" {
				t.Errorf("headers %v", resp.Header)
			}
			retry := resp.Header.Get("Retry-After")
			if want := tt.status == 429 || tt.status == 503; want != (retry != "") {
				t.Errorf("Retry-After is %q", retry)
			}
			if (tt.status == 405) != (resp.Header.Get("Allow") != "") {
				t.Errorf("Allow is %q", resp.Header.Get("Allow"))
			}
			if g.open.Load() != 0 {
				t.Errorf("%d streams are left open", g.open.Load())
			}
		})
	}
}

// TestSecondPromptRefused: a request whose second prompt finds the queue full leaves nothing running.
func TestSecondPromptRefused(t *testing.T) {
	g := newScripted()
	g.answer = func(p Prompt, s Sampling) ([]step, error) {
		if p.Text == "b" {
			return nil, ErrQueueFull
		}
		return words(p, s), nil
	}
	_, ts := start(t, Config{Generators: []Generator{g}})
	status, _, body := post(t, ts.URL+"/v1/completions", `{"model":"scripted","prompt":["a","b"]}`)
	if status != 429 || g.open.Load() != 0 {
		t.Errorf("%d %s; %d open", status, body, g.open.Load())
	}
}

func TestRetryAfterFollowsTheQueue(t *testing.T) {
	g := newScripted()
	g.stats.QueueOldestAge = 2100 * time.Millisecond
	g.answer = func(Prompt, Sampling) ([]step, error) { return nil, ErrQueueFull }
	_, ts := start(t, Config{Generators: []Generator{g}})
	if _, h, _ := post(t, ts.URL+"/v1/chat/completions", good); h.Get("Retry-After") != "3" {
		t.Errorf("Retry-After is %q", h.Get("Retry-After"))
	}
	g.mu.Lock()
	g.stats.QueueOldestAge = time.Hour
	g.mu.Unlock()
	if _, h, _ := post(t, ts.URL+"/v1/chat/completions", good); h.Get("Retry-After") != "30" {
		t.Errorf("Retry-After is %q", h.Get("Retry-After"))
	}
}

func TestAPIKey(t *testing.T) {
	s, ts := start(t, Config{Generators: []Generator{newScripted()}, APIKey: "k-123\n"})
	admin := httptest.NewServer(s.AdminHandler())
	defer admin.Close()
	for _, tt := range []struct {
		url, header string
		status      int
	}{
		{ts.URL + "/v1/models", "", 401},
		{ts.URL + "/v1/models", "Bearer ", 401},
		{ts.URL + "/v1/models", "Bearer k-12", 401},
		{ts.URL + "/v1/models", "Bearer k-1234", 401},
		{ts.URL + "/v1/models", "Basic k-123", 401},
		{ts.URL + "/v1/models", "k-123", 401},
		{ts.URL + "/v1/models", "Bearer k-123", 200},
		{ts.URL + "/v1/models", "bearer  k-123", 200},
		{ts.URL + "/v1/models/scripted", "", 401},
		{ts.URL + "/health", "", 200},
		{ts.URL + "/health/live", "", 200},
		{ts.URL + "/metrics", "", 200},
		{admin.URL + "/metrics", "", 200},
		{admin.URL + "/v1/models", "Bearer k-123", 404},
	} {
		req, _ := http.NewRequest("GET", tt.url, nil)
		if tt.header != "" {
			req.Header.Set("Authorization", tt.header)
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		b, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		if resp.StatusCode != tt.status {
			t.Errorf("%s with %q: %d", tt.url, tt.header, resp.StatusCode)
		}
		if tt.status == 401 {
			if _, _, _, code := errorObject(t, string(b)); code != "invalid_api_key" || resp.Header.Get("WWW-Authenticate") != "Bearer" {
				t.Errorf("%s %v", b, resp.Header)
			}
		}
	}
}

func TestRequestID(t *testing.T) {
	_, ts := start(t, Config{Generators: []Generator{newScripted()}})
	for sent, kept := range map[string]bool{"abc-1_2.Z": true, "": false, "a b": false, "<x>": false, strings.Repeat("a", 129): false} {
		req, _ := http.NewRequest("GET", ts.URL+"/health", nil)
		req.Header.Set("X-Request-Id", sent)
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if got := resp.Header.Get("X-Request-Id"); (got == sent) != kept || got == "" {
			t.Errorf("sent %q, got %q", sent, got)
		}
	}
}

// FuzzChat sends any bytes as a body, by way of the whole handler: never a 500, always JSON or a stream.
func FuzzChat(f *testing.F) {
	files, err := filepath.Glob("../openai/testdata/requests/*.json")
	if err != nil || len(files) == 0 {
		f.Fatalf("no request corpus: %v", err)
	}
	for _, name := range files {
		b, err := os.ReadFile(name)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(bytes.ReplaceAll(b, []byte(`"m"`), []byte(`"scripted"`)))
	}
	f.Add([]byte(good))
	s, err := New(Config{Generators: []Generator{newScripted()}})
	if err != nil {
		f.Fatal(err)
	}
	h := s.Handler()
	f.Fuzz(func(t *testing.T, body []byte) {
		for _, path := range []string{"/v1/chat/completions", "/v1/completions"} {
			w := httptest.NewRecorder()
			h.ServeHTTP(w, httptest.NewRequest("POST", path, bytes.NewReader(body)))
			switch w.Code {
			case 400, 404:
				errorObject(t, w.Body.String())
			case 200:
				if strings.HasPrefix(w.Header().Get("Content-Type"), "text/event-stream") {
					if !strings.HasSuffix(w.Body.String(), "data: [DONE]\n\n") {
						t.Fatalf("stream ends in %q", w.Body.String())
					}
				} else if !json.Valid(w.Body.Bytes()) {
					t.Fatalf("not JSON: %s", w.Body)
				}
			default:
				t.Fatalf("%d %s", w.Code, w.Body)
			}
		}
	})
}

package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	"cotenant/internal/loadgen"
)

// mode is a way in which an endpoint deceives, and what is true of each request.
type mode struct {
	name  string
	truth string
	good  bool // requests are results
	play  func(s *stream)
}

// stream is one answer that is being written. The normal pace: role and first content at 100 ms, a content each 20 ms.
type stream struct {
	w io.Writer
	f http.Flusher
}

func (s *stream) send(data string) {
	io.WriteString(s.w, "data: "+data+"\n\n")
	s.f.Flush()
}

func (s *stream) delta(fields string) {
	s.send(`{"id":"c","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,"delta":{` + fields + `},"finish_reason":null}]}`)
}

func (s *stream) contents(n int) {
	time.Sleep(100 * time.Millisecond)
	s.delta(`"role":"assistant","content":""`)
	for i := range n {
		if i > 0 {
			time.Sleep(20 * time.Millisecond)
		}
		s.delta(fmt.Sprintf(`"content":" w%d"`, i))
	}
}

func (s *stream) finish() {
	s.send(`{"id":"c","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,"delta":{},"finish_reason":"length"}]}`)
}

func (s *stream) usage(n int) {
	s.send(fmt.Sprintf(`{"id":"c","object":"chat.completion.chunk","created":1,"model":"m","choices":[],"usage":{"prompt_tokens":200,"completion_tokens":%d,"total_tokens":%d}}`, n, 200+n))
}

func (s *stream) done() { s.send("[DONE]") }

var modes = []mode{
	{"normal", "good, 8 tokens", true, func(s *stream) { s.contents(8); s.finish(); s.usage(8); s.done() }},
	{"error object after the first token", "bad", false, func(s *stream) {
		s.contents(1)
		s.send(`{"error":{"message":"CUDA out of memory","type":"server_error","code":500}}`)
	}},
	{"truncated: 3 contents, then the body ends as if it were whole", "bad", false, func(s *stream) { s.contents(3) }},
	{"usage missing", "good, tokens not exposed", true, func(s *stream) { s.contents(8); s.finish(); s.done() }},
	{"8 empty contents, usage says 8", "bad", false, func(s *stream) {
		time.Sleep(100 * time.Millisecond)
		for range 8 {
			s.delta(`"content":""`)
			time.Sleep(20 * time.Millisecond)
		}
		s.finish()
		s.usage(8)
		s.done()
	}},
	{"one event isn't JSON", "bad", false, func(s *stream) {
		s.contents(4)
		s.send(`{"id":"c","choices":[{"index":0,"del`)
		for i := 4; i < 8; i++ {
			time.Sleep(20 * time.Millisecond)
			s.delta(fmt.Sprintf(`"content":" w%d"`, i))
		}
		s.finish()
		s.usage(8)
		s.done()
	}},
	{"usage says 8, 3 contents came", "3 tokens were seen", true, func(s *stream) { s.contents(3); s.finish(); s.usage(8); s.done() }},
	{"all of it in one write at 240 ms", "good, no time to first token", true, func(s *stream) {
		time.Sleep(240 * time.Millisecond)
		var whole strings.Builder
		b := &stream{&whole, nothing{}}
		b.delta(`"role":"assistant","content":""`)
		for i := range 8 {
			b.delta(fmt.Sprintf(`"content":" w%d"`, i))
		}
		b.finish()
		b.usage(8)
		b.done()
		io.WriteString(s.w, whole.String())
		s.f.Flush()
	}},
}

type nothing struct{}

func (nothing) Flush() {}

// badRequests is how many each client sends to each mode.
const badRequests = 20

// endpoint serves one mode. A client's readiness question is answered well, so that the run itself meets the mode: the first completion of
// each client is its canary where it sends one.
func (m mode) endpoint(answered *atomic.Int64) *httptest.Server {
	mux := http.NewServeMux()
	mux.HandleFunc("/health", func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, `{"status":"ok"}`) })
	mux.HandleFunc("/v1/models", func(w http.ResponseWriter, _ *http.Request) {
		io.WriteString(w, `{"object":"list","data":[{"id":"m","object":"model","created":1,"owned_by":"bench"}]}`)
	})
	mux.HandleFunc("/v1/chat/completions", func(w http.ResponseWriter, r *http.Request) {
		var body struct {
			MaxTokens int `json:"max_tokens"`
		}
		if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
			http.Error(w, err.Error(), 400)
			return
		}
		w.Header().Set("Content-Type", "text/event-stream")
		s := &stream{w, w.(http.Flusher)}
		if strings.HasPrefix(r.UserAgent(), "cotenant/") && answered.Add(1) == 1 {
			modes[0].play(s)
			return
		}
		m.play(s)
	})
	return httptest.NewServer(mux)
}

// misbehaving runs each client on each mode and prints what each makes of it.
func misbehaving(o options) error {
	prompts, err := writePrompts(filepath.Join(o.out, "bad"), badRequests, loadgen.MinBaseTokens)
	if err != nil {
		return err
	}
	clients := []client{cotenantClient{o}, aiperfClient{o}, guidellmClient{o}}
	fmt.Printf("### An endpoint that misbehaves: %d requests, 4 at a time\n\n", badRequests)
	fmt.Println("good / bad, TTFT p50 and ITL p50 in ms, output tokens, as each client reports them.")
	fmt.Println()
	fmt.Println("| the endpoint | truth | cotenant soak | AIPerf | GuideLLM |")
	fmt.Println("|---|---|---|---|---|")
	for i, m := range modes {
		row := fmt.Sprintf("| %s | %s |", m.name, m.truth)
		for _, c := range clients {
			srv := m.endpoint(new(atomic.Int64))
			r, err := c.run(target{url: srv.URL, model: "m", requests: badRequests, prompts: prompts, seconds: 300}, filepath.Join(o.out, fmt.Sprintf("bad-%d-%s", i, c.name())))
			srv.Close()
			if err != nil {
				return fmt.Errorf("%s, %s: %w", m.name, c.name(), err)
			}
			row += " " + cell(r, m) + " |"
		}
		fmt.Println(row)
	}
	return nil
}

// cell is what one client makes of a mode; what is wrong in it is bold.
func cell(r report, m mode) string {
	counts := fmt.Sprintf("%d / %d", r.good, r.bad)
	if (r.good > 0) != m.good {
		counts = "**" + counts + "**"
	}
	out := counts
	if r.good > 0 {
		out += fmt.Sprintf("; %s; %s; %s", number(r.ttft, 1), number(r.itl, 1), number(r.tokens, 0))
	}
	if r.note != "" {
		out += " (" + r.note + ")"
	}
	return out
}

// waitHealthy waits until a server answers 200.
func waitHealthy(url string) error {
	for end := time.Now().Add(2 * time.Minute); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		resp, err := http.Get(url)
		if err != nil {
			continue
		}
		resp.Body.Close()
		if resp.StatusCode == http.StatusOK {
			return nil
		}
	}
	return fmt.Errorf("%s isn't healthy after two minutes", url)
}

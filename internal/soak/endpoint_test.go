package soak

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"cotenant/internal/loadgen"
)

// memory is a network of one listener inside the process, for tests in virtual time.
type memory struct {
	conns  chan net.Conn
	closed chan struct{}
	once   sync.Once
}

func newMemory() *memory { return &memory{conns: make(chan net.Conn), closed: make(chan struct{})} }

func (m *memory) Accept() (net.Conn, error) {
	select {
	case c := <-m.conns:
		return c, nil
	case <-m.closed:
		return nil, net.ErrClosed
	}
}

func (m *memory) Close() error {
	m.once.Do(func() { close(m.closed) })
	return nil
}

func (m *memory) Addr() net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 9} }

func (m *memory) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	here, there := net.Pipe()
	select {
	case m.conns <- there:
		return here, nil
	case <-m.closed:
		return nil, &net.OpError{Op: "dial", Err: fmt.Errorf("connection refused")}
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// reply writes one misbehaving (or well-behaved) response.
type reply struct {
	http.ResponseWriter
	r       *http.Request
	request struct {
		Model         string            `json:"model"`
		Messages      []loadgen.Message `json:"messages"`
		Stream        bool              `json:"stream"`
		MaxTokens     int               `json:"max_tokens"`
		StreamOptions *struct {
			IncludeUsage bool `json:"include_usage"`
		} `json:"stream_options"`
	}
	raw []byte
	n   int64 // of this request to the endpoint, from 1
	id  string
}

func (w *reply) flush() { w.ResponseWriter.(http.Flusher).Flush() }

// send writes text as it is and flushes it.
func (w *reply) send(text string) {
	io.WriteString(w.ResponseWriter, text)
	w.flush()
}

// begin sends the headers of a stream.
func (w *reply) begin() {
	w.Header().Set("Content-Type", "text/event-stream")
	w.WriteHeader(http.StatusOK)
	w.flush()
}

func (w *reply) chunk(choices, rest string) string {
	return fmt.Sprintf("data: {\"id\":%q,\"object\":\"chat.completion.chunk\",\"choices\":[%s]%s}\n\n", w.id, choices, rest)
}

func (w *reply) delta(members string) string {
	return w.chunk(`{"index":0,"delta":{`+members+`},"finish_reason":null}`, "")
}

func (w *reply) role() string { return w.delta(`"role":"assistant","content":""`) }

func (w *reply) content(text string) string {
	b, _ := json.Marshal(text)
	return w.delta(`"content":` + string(b))
}

func (w *reply) finish(reason string) string {
	return w.chunk(`{"index":0,"delta":{},"finish_reason":"`+reason+`"}`, "")
}

func (w *reply) usage(prompt, completion int) string {
	return w.chunk("", fmt.Sprintf(`,"usage":{"prompt_tokens":%d,"completion_tokens":%d,"total_tokens":%d,"prompt_tokens_details":{"cached_tokens":%d}}`,
		prompt, completion, prompt+completion, prompt/2))
}

const done = "data: [DONE]\n\n"

// sleep waits, or ends the handler when the client has gone.
func (w *reply) sleep(d time.Duration) {
	select {
	case <-time.After(d):
	case <-w.r.Context().Done():
		panic(http.ErrAbortHandler)
	}
}

// normal answers text in one token a word: the first after first, the others a gap apart.
func (w *reply) normal(text string, first, gap time.Duration) {
	w.begin()
	w.sleep(first)
	words := strings.SplitAfter(text, " ")
	w.send(w.role() + w.content(words[0]))
	for _, word := range words[1:] {
		w.sleep(gap)
		w.send(w.content(word))
	}
	w.send(w.finish("stop") + w.usage(200, len(words)) + done)
}

// endpoint is an OpenAI-compatible server in this process that answers as it is told, and counts.
type endpoint struct {
	t       testing.TB
	answer  func(w *reply)
	served  atomic.Int64 // chat requests
	open    atomic.Int64
	peak    atomic.Int64
	metrics func() string
	models  []string
	key     string // that the list of models demands; "": none

	mu     sync.Mutex
	bodies [][]byte
}

func (e *endpoint) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch r.URL.Path {
	case "/v1/chat/completions":
		e.chat(w, r)
	case "/v1/models":
		if e.key != "" && r.Header.Get("Authorization") != "Bearer "+e.key {
			w.WriteHeader(401)
			return
		}
		var list []string
		for _, m := range e.models {
			list = append(list, fmt.Sprintf(`{"id":%q,"object":"model"}`, m))
		}
		fmt.Fprintf(w, `{"object":"list","data":[%s]}`, strings.Join(list, ","))
	case "/metrics":
		if e.metrics == nil {
			http.NotFound(w, r)
			return
		}
		io.WriteString(w, e.metrics())
	default:
		http.NotFound(w, r)
	}
}

func (e *endpoint) chat(w http.ResponseWriter, r *http.Request) {
	p := &reply{ResponseWriter: w, r: r, n: e.served.Add(1)}
	p.id = fmt.Sprintf("chatcmpl-%d", p.n)
	var err error
	if p.raw, err = io.ReadAll(r.Body); err != nil {
		panic(http.ErrAbortHandler)
	}
	if err := json.Unmarshal(p.raw, &p.request); err != nil {
		e.t.Errorf("request %d isn't JSON: %v", p.n, err)
	}
	e.mu.Lock()
	e.bodies = append(e.bodies, p.raw)
	e.mu.Unlock()
	open := e.open.Add(1)
	defer e.open.Add(-1)
	for {
		peak := e.peak.Load()
		if open <= peak || e.peak.CompareAndSwap(peak, open) {
			break
		}
	}
	e.answer(p)
}

// serve starts the endpoint on l until the test ends.
func (e *endpoint) serve(l net.Listener) (stop func()) {
	srv := &http.Server{Handler: e, ErrorLog: nil}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		srv.Serve(l)
	}()
	return func() {
		srv.Close()
		<-ended
	}
}

// solve answers the tasks of package loadgen from what stands in the prompt, as a right model would.
func solve(messages []loadgen.Message) string {
	question := messages[len(messages)-1].Content
	var a, b int
	switch {
	case strings.HasPrefix(question, "Repeat the code word "):
		return strings.TrimSuffix(strings.TrimPrefix(question, "Repeat the code word "), ".")
	case strings.HasPrefix(question, "What is "):
		fmt.Sscanf(question, "What is %d + %d?", &a, &b)
		return fmt.Sprint(a + b)
	case strings.HasPrefix(question, "Which number does the list give for "):
		name := strings.TrimSuffix(strings.TrimPrefix(question, "Which number does the list give for "), "?")
		for line := range strings.Lines(messages[0].Content) {
			if rest, ok := strings.CutPrefix(line, name+" "); ok {
				return strings.TrimSpace(rest)
			}
		}
	case strings.HasPrefix(question, "Put in alphabetical order: "):
		letters := bytes.Fields([]byte(strings.TrimPrefix(question, "Put in alphabetical order: ")))
		for i := range letters {
			for j := i + 1; j < len(letters); j++ {
				if letters[j][0] < letters[i][0] {
					letters[i], letters[j] = letters[j], letters[i]
				}
			}
		}
		return string(bytes.Join(letters, []byte(" ")))
	}
	return "ready"
}

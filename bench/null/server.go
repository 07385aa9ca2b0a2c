package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"cotenant/internal/openai"
)

// maxBody caps a request's body.
const maxBody = 8 << 20

// server answers on connections that it reads and writes itself: net/http's server takes about twice the time, which the client would lack.
type server struct {
	model string
	flush bool
	began time.Time

	running, connections, answered, cut, refused, prompt, completion atomic.Int64
}

func newServer(model string, flush bool) *server {
	return &server{model: model, flush: flush, began: time.Now()}
}

// serve answers until l is closed, and then closes what is open.
func (s *server) serve(l net.Listener) {
	var open sync.Map
	var done sync.WaitGroup
	for {
		c, err := l.Accept()
		if errors.Is(err, net.ErrClosed) {
			break
		}
		if err != nil {
			time.Sleep(10 * time.Millisecond) // no descriptor left, perhaps: one may become free
			continue
		}
		s.connections.Add(1)
		open.Store(c, nil)
		done.Go(func() {
			defer open.Delete(c)
			defer c.Close()
			s.connection(c)
		})
	}
	open.Range(func(c, _ any) bool { c.(net.Conn).Close(); return true })
	done.Wait()
}

// buffers are what a connection reuses from answer to answer.
type buffers struct{ body, events, out []byte }

// connection answers one request after the other.
func (s *server) connection(c net.Conn) {
	in := bufio.NewReaderSize(c, 16<<10)
	var b buffers
	for {
		r, err := http.ReadRequest(in)
		if err != nil {
			return // gone, or no HTTP
		}
		if r.Header.Get("Expect") == "100-continue" {
			if _, err := io.WriteString(c, "HTTP/1.1 100 Continue\r\n\r\n"); err != nil {
				return
			}
		}
		if b.body, err = readAll(b.body[:0], io.LimitReader(r.Body, maxBody+1)); err != nil {
			return
		}
		if err := s.answer(c, r, &b); err != nil || r.Close || len(b.body) > maxBody {
			return
		}
	}
}

func readAll(b []byte, r io.Reader) ([]byte, error) {
	for {
		if len(b) == cap(b) {
			b = append(b, make([]byte, max(4096, len(b)))...)[:len(b)]
		}
		n, err := r.Read(b[len(b):cap(b)])
		b = b[:len(b)+n]
		if err == io.EOF {
			return b, nil
		}
		if err != nil {
			return b, err
		}
	}
}

func (s *server) answer(c net.Conn, r *http.Request, b *buffers) error {
	switch {
	case r.Method == http.MethodHead:
		return errors.New("a response without a body isn't written here")
	case r.URL.Path == "/v1/chat/completions" && r.Method == http.MethodPost:
		return s.complete(c, b)
	case r.Method != http.MethodGet:
	case r.URL.Path == "/v1/models":
		list := openai.AppendModels(nil, []openai.Model{{ID: s.model, Created: s.began.Unix(), OwnedBy: "cotenant", ContextLength: 1 << 20}})
		return whole(c, b, http.StatusOK, "application/json", list)
	case r.URL.Path == "/metrics":
		return whole(c, b, http.StatusOK, "text/plain; version=0.0.4", s.metrics())
	case r.URL.Path == "/health":
		return whole(c, b, http.StatusOK, "application/json", []byte(`{"status":"ok"}`))
	}
	return refuse(c, b, &openai.Error{Status: http.StatusNotFound, Type: openai.TypeInvalidRequest, Message: "this endpoint has POST /v1/chat/completions, GET /v1/models, /metrics and /health"})
}

func refuse(c net.Conn, b *buffers, e *openai.Error) error {
	return whole(c, b, e.Status, "application/json", e.Append(nil))
}

// whole writes a response that is no stream.
func whole(c net.Conn, b *buffers, status int, mediaType string, body []byte) error {
	b.out = fmt.Appendf(b.out[:0], "HTTP/1.1 %d %s\r\nContent-Type: %s\r\nContent-Length: %d\r\n\r\n", status, http.StatusText(status), mediaType, len(body))
	b.out = append(b.out, body...)
	_, err := c.Write(b.out)
	return err
}

// complete answers a chat completion.
func (s *server) complete(c net.Conn, b *buffers) error {
	q, err := openai.DecodeChat(b.body)
	if err != nil || !q.Stream {
		s.refused.Add(1)
		var e *openai.Error
		if !errors.As(err, &e) {
			e = openai.BadRequest("stream", "stream: this endpoint only streams")
		}
		return refuse(c, b, e)
	}
	s.running.Add(1)
	pieces, reason := pieces(reply(q.Messages), q.MaxTokens)
	usage := openai.Usage{Prompt: promptTokens(q.Messages), Completion: len(pieces)}
	env := openai.Envelope{Chat: true, ID: "chatcmpl-" + strconv.FormatInt(s.answered.Load()+1, 10), Created: time.Now().Unix(), Model: q.Model}
	w := stream{c: c, b: b, flush: s.flush}
	w.begin()
	enc := env.NewStream(q.IncludeUsage)
	w.event(enc.Role(b.events[:0], 0))
	for _, p := range pieces {
		w.event(enc.Content(b.events[:0], 0, p, nil, nil))
	}
	w.event(enc.Finish(b.events[:0], 0, reason, "", nil))
	if q.IncludeUsage {
		w.event(enc.Usage(b.events[:0], usage))
	}
	// All is counted before the last bytes leave: a client that has read them must find it on /metrics.
	s.prompt.Add(int64(usage.Prompt))
	s.completion.Add(int64(usage.Completion))
	s.running.Add(-1)
	if w.err != nil {
		s.cut.Add(1)
		return w.err
	}
	s.answered.Add(1)
	w.end()
	return w.err
}

// stream writes events as chunks (RFC 9112, 7.1).
type stream struct {
	c     net.Conn
	b     *buffers
	flush bool
	err   error
}

func (w *stream) begin() {
	w.b.out = append(w.b.out[:0], "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nCache-Control: no-cache\r\nTransfer-Encoding: chunked\r\n\r\n"...)
}

func (w *stream) event(b []byte) {
	w.b.events = b
	w.b.out = strconv.AppendInt(w.b.out, int64(len(b)), 16)
	w.b.out = append(append(append(w.b.out, '\r', '\n'), b...), '\r', '\n')
	if w.flush {
		w.write()
	}
}

func (w *stream) end() {
	w.b.out = append(w.b.out, "e\r\n"+openai.Done+"\r\n0\r\n\r\n"...)
	w.write()
}

func (w *stream) write() {
	if w.err == nil {
		_, w.err = w.c.Write(w.b.out)
	}
	w.b.out = w.b.out[:0]
}

// metrics has the names of `cotenant serve` for what both have.
func (s *server) metrics() []byte {
	var b []byte
	for _, m := range []struct {
		name, kind, label string
		v                 int64
	}{
		{"cotenant_requests_running", "gauge", "", s.running.Load()},
		{"cotenant_requests_waiting", "gauge", "", 0},
		{"cotenant_request_success_total", "counter", `{finish_reason="stop"}`, s.answered.Load()},
		{"cotenant_requests_failed_total", "counter", `{reason="cancelled"}`, s.cut.Load()},
		{"cotenant_prompt_tokens_total", "counter", "", s.prompt.Load()},
		{"cotenant_generation_tokens_total", "counter", "", s.completion.Load()},
		{"cotenant_null_refused_total", "counter", "", s.refused.Load()},
		{"cotenant_null_connections_total", "counter", "", s.connections.Load()},
	} {
		b = fmt.Appendf(b, "# TYPE %s %s\n%s%s %d\n", m.name, m.kind, m.name, m.label, m.v)
	}
	return b
}

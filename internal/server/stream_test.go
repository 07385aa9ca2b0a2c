package server

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"strings"
	"testing"
	"time"
)

const goodStream = `{"model":"scripted","stream":true,"stream_options":{"include_usage":true},"messages":[{"role":"user","content":"hi"}]}`

// eventually waits for cond, which others make true.
func eventually(t testing.TB, what string, cond func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(time.Millisecond) {
		if cond() {
			return
		}
	}
	t.Fatalf("never: %s", what)
}

// endless answers with a token each millisecond.
func endless(p Prompt, s Sampling) ([]step, error) {
	steps := make([]step, 100000)
	for i := range steps {
		steps[i] = step{delay: time.Millisecond, chunk: Chunk{Text: " word", Usage: Usage{CompletionTokens: i + 1}}}
	}
	return steps, nil
}

// TestDisconnect: a client that goes away cancels its request, streamed or not, and whatever it is waiting for.
func TestDisconnect(t *testing.T) {
	for name, body := range map[string]string{"stream": goodStream, "whole": good,
		"prompts": `{"model":"scripted","prompt":["a","b"],"stream":true,"max_tokens":5}`} {
		t.Run(name, func(t *testing.T) {
			g := newScripted()
			g.answer = endless
			s, ts := start(t, Config{Generators: []Generator{g}})
			ctx, cancel := context.WithCancel(t.Context())
			path := "/v1/chat/completions"
			if name == "prompts" {
				path = "/v1/completions"
			}
			req, _ := http.NewRequestWithContext(ctx, "POST", ts.URL+path, strings.NewReader(body))
			req.Header.Set("Content-Type", "application/json")
			go func() {
				eventually(t, "the request runs", func() bool { return g.open.Load() > 0 })
				time.Sleep(20 * time.Millisecond)
				cancel()
			}()
			resp, err := http.DefaultClient.Do(req)
			if err == nil {
				_, err = io.Copy(io.Discard, resp.Body)
				resp.Body.Close()
			}
			if !errors.Is(err, context.Canceled) {
				t.Errorf("client's error is %v", err)
			}
			eventually(t, "its streams are closed", func() bool { return g.open.Load() == 0 })
			eventually(t, "it is booked", func() bool { return metric(t, s, `cotenant_requests_failed_total{reason="cancelled"}`) == 1 })
			if g.cancelled.Load() == 0 {
				t.Error("nothing was cancelled")
			}
		})
	}
}

// TestHalfClosed: a client that closes its sending side has gone away for all that can be known, but it may still read.
func TestHalfClosed(t *testing.T) {
	g := newScripted()
	g.answer = endless
	s, ts := start(t, Config{Generators: []Generator{g}})
	conn, err := net.Dial("tcp", ts.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	fmt.Fprintf(conn, "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s", len(good), good)
	if err := conn.(*net.TCPConn).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	b, err := io.ReadAll(conn)
	if err != nil || !strings.HasPrefix(string(b), "HTTP/1.1 400 ") || !strings.Contains(string(b), `"code":"cancelled"`) {
		t.Errorf("%v, %q", err, b)
	}
	if metric(t, s, `cotenant_requests_failed_total{reason="cancelled"}`) != 1 {
		t.Error("not booked as cancelled")
	}
}

// TestSlowClient: a client that takes no bytes is cut after the write timeout.
func TestSlowClient(t *testing.T) {
	g := newScripted()
	g.answer = func(p Prompt, s Sampling) ([]step, error) {
		steps := make([]step, 10000)
		for i := range steps {
			steps[i] = step{chunk: Chunk{Text: strings.Repeat("x", 10000), Usage: Usage{CompletionTokens: i + 1}}}
		}
		return steps, nil
	}
	s, ts := start(t, Config{Generators: []Generator{g}, WriteTimeout: 300 * time.Millisecond})
	conn, err := net.Dial("tcp", ts.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	io.WriteString(conn, "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: "+
		itoa(len(goodStream))+"\r\n\r\n"+goodStream)
	eventually(t, "it is cut", func() bool { return metric(t, s, `cotenant_requests_failed_total{reason="slow_client"}`) == 1 })
	if g.open.Load() != 0 || g.cancelled.Load() != 1 {
		t.Errorf("%d open, %d cancelled", g.open.Load(), g.cancelled.Load())
	}
}

// TestSlowClientOfAWholeAnswer: neither does one hold a handler that answers in one piece.
func TestSlowClientOfAWholeAnswer(t *testing.T) {
	g := newScripted()
	g.answer = func(p Prompt, s Sampling) ([]step, error) {
		return []step{{chunk: Chunk{Text: strings.Repeat("x", 16<<20), FinishReason: "stop", Usage: Usage{CompletionTokens: 1}}}}, nil
	}
	s, ts := start(t, Config{Generators: []Generator{g}, WriteTimeout: 200 * time.Millisecond})
	conn, err := net.Dial("tcp", ts.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	io.WriteString(conn, "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: "+
		itoa(len(good))+"\r\n\r\n"+good)
	eventually(t, "the request runs", func() bool { return metric(t, s, "cotenant_http_requests_in_flight") == 2 }) // with the scrape
	eventually(t, "it is over", func() bool { return metric(t, s, "cotenant_http_requests_in_flight") == 1 })
}

// TestHeadersWaitForTheFirstChunk: they wait a little, then go out with the role.
func TestHeadersWaitForTheFirstChunk(t *testing.T) {
	g := newScripted()
	first := make(chan struct{})
	g.answer = func(p Prompt, s Sampling) ([]step, error) {
		steps := words(p, s)
		steps[0].wait = first
		return steps, nil
	}
	_, ts := start(t, Config{Generators: []Generator{g}, HeaderDelay: 20 * time.Millisecond})
	resp, err := http.Post(ts.URL+"/v1/chat/completions", "application/json", strings.NewReader(goodStream))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	r := bufio.NewReader(resp.Body)
	line, err := r.ReadString('\n')
	if err != nil || !strings.Contains(line, `"role":"assistant"`) {
		t.Fatalf("%q %v", line, err)
	}
	close(first)
	tr := readStream(t, io.MultiReader(strings.NewReader(line), r), true, true, false)
	if tr.texts[0] != " word0 word1 word2 word3 word4 word5 word6 word7" {
		t.Errorf("%q", tr.texts[0])
	}
}

// TestErrorsInStreams: once headers are out an error is an event, and no [DONE] follows.
func TestErrorsInStreams(t *testing.T) {
	usage := Usage{PromptTokens: 1, CompletionTokens: 1}
	headers := make(chan struct{}) // gets a value when a client has them
	for name, tt := range map[string]struct {
		steps []step
		code  string
	}{
		"fault":         {[]step{{chunk: Chunk{Text: "a", Usage: usage}}, {err: errors.New("secret detail")}}, "internal_error"},
		"device":        {[]step{{chunk: Chunk{Text: "a", Usage: usage}}, {err: ErrUnavailable}}, "unavailable"},
		"early end":     {[]step{{chunk: Chunk{Text: "a", Usage: usage}}}, "internal_error"},
		"after the end": {[]step{{chunk: Chunk{Text: "a", Usage: usage}}, {chunk: Chunk{Index: -1, Text: "b"}}}, "internal_error"},
		"bad index":     {[]step{{chunk: Chunk{Text: "a", Usage: usage}}, {chunk: Chunk{Index: 1, Text: "b"}}}, "internal_error"},
		"late headers":  {[]step{{wait: headers, err: errors.New("secret detail")}}, "internal_error"},
		"early headers": {[]step{{wait: headers, err: &RequestError{Message: "m", Code: "c"}}}, "c"},
	} {
		t.Run(name, func(t *testing.T) {
			g := newScripted()
			g.answer = func(Prompt, Sampling) ([]step, error) { return tt.steps, nil }
			s, ts := start(t, Config{Generators: []Generator{g}, HeaderDelay: 10 * time.Millisecond})
			resp, err := http.Post(ts.URL+"/v1/chat/completions", "application/json", strings.NewReader(goodStream))
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			if tt.steps[0].wait != nil {
				headers <- struct{}{}
			}
			b, err := io.ReadAll(resp.Body)
			if err != nil {
				t.Fatal(err)
			}
			status, body := resp.StatusCode, string(b)
			tr := readStream(t, strings.NewReader(body), true, true, false)
			if status != 200 || tr.err != tt.code || tr.done || strings.Contains(body, "secret") {
				t.Errorf("%d %s", status, body)
			}
			if g.open.Load() != 0 {
				t.Error("the stream is left open")
			}
			if n := metric(t, s, `cotenant_requests_failed_total{reason="internal"}`); (n == 1) != (tt.code == "internal_error") {
				t.Errorf("%v internal errors are booked", n)
			}
			if n := metric(t, s, `cotenant_request_success_total{finish_reason="stop",model_name="scripted"}`); n != 0 {
				t.Errorf("counted as %v successes", n)
			}
		})
	}
}

// TestKeepAlive: one connection serves streams, answers and errors, also errors within streams.
func TestKeepAlive(t *testing.T) {
	g := newScripted()
	g.answer = func(p Prompt, s Sampling) ([]step, error) {
		if strings.Contains(p.Text, "break") {
			return []step{{chunk: Chunk{Text: "a"}}, {err: errors.New("broken on purpose")}}, nil
		}
		return words(p, s), nil
	}
	_, ts := start(t, Config{Generators: []Generator{g}, WriteTimeout: 500 * time.Millisecond, BodyTimeout: 500 * time.Millisecond})
	client := &http.Client{Transport: &http.Transport{}}
	for i, body := range []string{goodStream, good, strings.Replace(goodStream, "hi", "break", 1), `{}`, goodStream, good} {
		reused := false
		trace := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{GotConn: func(c httptrace.GotConnInfo) { reused = c.Reused }})
		req, _ := http.NewRequestWithContext(trace, "POST", ts.URL+"/v1/chat/completions", strings.NewReader(body))
		req.Header.Set("Content-Type", "application/json")
		resp, err := client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		io.Copy(io.Discard, resp.Body)
		resp.Body.Close()
		if i < 2 {
			time.Sleep(600 * time.Millisecond) // no deadline of one request may reach into the next
		}
		if resp.Close || reused != (i > 0) {
			t.Errorf("request %d: reused %v, close %v", i, reused, resp.Close)
		}
	}
}

// countingWriter counts what reaches the connection.
type countingWriter struct {
	*httptest.ResponseRecorder
	writes, flushes int
}

func (w *countingWriter) Write(b []byte) (int, error) { w.writes++; return w.ResponseRecorder.Write(b) }
func (w *countingWriter) FlushError() error           { w.flushes++; return nil }

// TestOneWriteAChunk: what a chunk of the generator brings goes out in one write and one flush, the end of the answer with the
// last of them.
func TestOneWriteAChunk(t *testing.T) {
	g := newScripted()
	g.answer = func(Prompt, Sampling) ([]step, error) {
		return []step{
			{chunk: Chunk{Text: "a", Usage: Usage{CompletionTokens: 1}}},
			{chunk: Chunk{Usage: Usage{CompletionTokens: 2}}}, // half a character: nothing to show yet
			{chunk: Chunk{Text: "é", Usage: Usage{CompletionTokens: 3}}},
			{chunk: Chunk{Text: "c", FinishReason: "stop", StopReason: "END", Usage: Usage{CompletionTokens: 5}}},
		}, nil
	}
	s, err := New(Config{Generators: []Generator{g}})
	if err != nil {
		t.Fatal(err)
	}
	w := &countingWriter{ResponseRecorder: httptest.NewRecorder()}
	s.Handler().ServeHTTP(w, httptest.NewRequest("POST", "/v1/chat/completions", strings.NewReader(goodStream)))
	tr := readStream(t, w.Body, true, true, false)
	if w.writes != 3 || w.flushes != 3 {
		t.Errorf("%d writes, %d flushes", w.writes, w.flushes)
	}
	if tr.texts[0] != "aéc" || tr.usage.CompletionTokens != 5 || len(tr.chunks) != 6 || *(*tr.chunks[4].Choices)[0].StopReason != "END" {
		t.Errorf("%+v", tr)
	}
}

// BenchmarkStream is chunks a second over loopback, client included, one connection.
func BenchmarkStream(b *testing.B) {
	g := newScripted()
	const chunks = 1000
	steps := make([]step, chunks)
	for i := range steps {
		steps[i] = step{chunk: Chunk{Text: " word", Usage: Usage{PromptTokens: 1, CompletionTokens: i + 1}}}
	}
	steps[chunks-1].chunk.FinishReason = "length"
	g.answer = func(Prompt, Sampling) ([]step, error) { return append([]step(nil), steps...), nil }
	s, err := New(Config{Generators: []Generator{g}})
	if err != nil {
		b.Fatal(err)
	}
	ts := httptest.NewUnstartedServer(nil)
	ts.Config = s.HTTPServer(s.Handler())
	ts.Start()
	defer ts.Close()
	b.ReportAllocs()
	for b.Loop() {
		resp, err := http.Post(ts.URL+"/v1/chat/completions", "application/json", strings.NewReader(goodStream))
		if err != nil {
			b.Fatal(err)
		}
		io.Copy(io.Discard, resp.Body)
		resp.Body.Close()
	}
	b.ReportMetric(float64(chunks*b.N)/b.Elapsed().Seconds(), "chunks/s")
}

package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"cotenant/internal/loadgen"
	"cotenant/internal/openai"
)

// start serves on a port of its own until the test ends.
func start(t *testing.T, flush bool) (url string, s *server) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s = newServer("null", flush)
	done := make(chan struct{})
	go func() {
		s.serve(l)
		close(done)
	}()
	t.Cleanup(func() {
		l.Close()
		<-done
	})
	return "http://" + l.Addr().String(), s
}

// ask sends messages and returns the answer's text, its chunks and its usage.
func ask(t *testing.T, url string, messages []loadgen.Message, more string) (text string, events int, last map[string]any) {
	t.Helper()
	list, err := json.Marshal(messages)
	if err != nil {
		t.Fatal(err)
	}
	body := fmt.Sprintf(`{"model":"null","messages":%s,"stream":true,"stream_options":{"include_usage":true}%s}`, list, more)
	resp, err := http.Post(url+"/v1/chat/completions", "application/json", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		b, _ := io.ReadAll(resp.Body)
		t.Fatalf("HTTP %d: %s", resp.StatusCode, b)
	}
	sse := openai.NewSSEReader(resp.Body, 0)
	done := false
	for {
		e, err := sse.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		events++
		if done = string(e.Data) == "[DONE]"; done {
			continue
		}
		last = nil
		if err := json.Unmarshal(e.Data, &last); err != nil {
			t.Fatal(err)
		}
		var c openai.StreamChunk
		if err := c.Decode(e.Data); err != nil {
			t.Fatal(err)
		}
		text += string(c.Content)
	}
	if !done {
		t.Fatal("the stream doesn't end with [DONE]")
	}
	return text, events, last
}

// Each generated task is answered right, in eight tokens, and counted as usage has it.
func TestTasks(t *testing.T) {
	for _, flush := range []bool{false, true} {
		url, s := start(t, flush)
		w, err := loadgen.New(loadgen.Options{Seed: 3})
		if err != nil {
			t.Fatal(err)
		}
		prompt := 0
		for n := range int64(40) {
			task := w.Task(n)
			text, events, last := ask(t, url, task.Messages, `,"max_tokens":8`)
			if !task.Check(text) {
				t.Errorf("%s: %q to %q, want %q", task.Kind, text, task.Messages[1].Content, task.Expect)
			}
			usage := last["usage"].(map[string]any)
			if events != 12 || usage["completion_tokens"] != 8.0 {
				t.Errorf("%d events, usage %v", events, usage)
			}
			words := len(strings.Fields(task.Messages[0].Content + " " + task.Messages[1].Content))
			if usage["prompt_tokens"] != float64(words) {
				t.Errorf("prompt tokens %v, want %d", usage["prompt_tokens"], words)
			}
			prompt += words
		}
		want := []string{"cotenant_request_success_total{finish_reason=\"stop\"} 40", fmt.Sprintf("cotenant_prompt_tokens_total %d", prompt),
			"cotenant_generation_tokens_total 320", "cotenant_requests_running 0", "cotenant_requests_failed_total{reason=\"cancelled\"} 0"}
		page := get(t, url+"/metrics")
		for _, line := range want {
			if !strings.Contains(page, line+"\n") {
				t.Errorf("metrics lack %q:\n%s", line, page)
			}
		}
		if n := s.connections.Load(); n != 1 {
			t.Errorf("%d connections for requests that followed each other", n)
		}
		if models := get(t, url+"/v1/models"); !strings.Contains(models, `"id":"null"`) {
			t.Errorf("models: %s", models)
		}
	}
}

func get(t *testing.T, url string) string {
	t.Helper()
	resp, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("HTTP %d: %v", resp.StatusCode, err)
	}
	return string(b)
}

func TestLength(t *testing.T) {
	url, _ := start(t, false)
	text, _, last := ask(t, url, []loadgen.Message{{Role: "user", Content: "What is 100 + 17?"}}, `,"max_tokens":2`)
	if text != "11" || last["usage"].(map[string]any)["completion_tokens"] != 2.0 {
		t.Errorf("%q, %v", text, last)
	}
}

// Requests that no client of ours sends are refused, and the connection goes on.
func TestRefusals(t *testing.T) {
	url, s := start(t, true)
	for _, c := range []struct {
		method, path, body string
		status             int
	}{
		{"POST", "/v1/chat/completions", "{", 400}, {"POST", "/v1/chat/completions", `{"model":"null","messages":[{"role":"user","content":"a"}]}`, 400},
		{"GET", "/v1/chat/completions", "", 404}, {"POST", "/v1/embeddings", "{}", 404}, {"GET", "/", "", 404},
	} {
		req, err := http.NewRequest(c.method, url+c.path, strings.NewReader(c.body))
		if err != nil {
			t.Fatal(err)
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		b, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		if resp.StatusCode != c.status || !bytes.HasPrefix(b, []byte(`{"error":{`)) {
			t.Errorf("%s %s %s: HTTP %d %s", c.method, c.path, c.body, resp.StatusCode, b)
		}
	}
	if n := s.refused.Load(); n != 2 || s.answered.Load() != 0 {
		t.Errorf("%d refused, %d answered", n, s.answered.Load())
	}
}

// Two requests in one write are answered in their order; a client that asks to close is closed; one that goes is counted, and is no answer.
func TestConnections(t *testing.T) {
	url, s := start(t, true)
	address := strings.TrimPrefix(url, "http://")
	request := func(question, header string) string {
		body := fmt.Sprintf(`{"model":"null","stream":true,"messages":[{"role":"user","content":%q}]}`, question)
		return fmt.Sprintf("POST /v1/chat/completions HTTP/1.1\r\nHost: null\r\n%sContent-Length: %d\r\n\r\n%s", header, len(body), body)
	}
	c, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := io.WriteString(c, request("What is 20 + 1?", "")+request("What is 20 + 2?", "Connection: close\r\n")); err != nil {
		t.Fatal(err)
	}
	in := bufio.NewReader(c)
	for _, want := range []string{`"content":"1"`, `"content":"2"`} {
		resp, err := http.ReadResponse(in, nil)
		if err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(resp.Body)
		if err != nil || !strings.Contains(string(b), want) || !strings.HasSuffix(string(b), openai.Done) {
			t.Errorf("%v: %s", err, b)
		}
	}
	if _, err := in.ReadByte(); err != io.EOF {
		t.Errorf("the connection isn't closed: %v", err)
	}
	// A client that resets its connection before it reads: writes fail sooner or later.
	for s.cut.Load() == 0 {
		c, err := net.Dial("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(c, request("What is 20 + 3?", "")); err != nil {
			t.Fatal(err)
		}
		c.(*net.TCPConn).SetLinger(0)
		c.Close()
	}
	if n := s.running.Load(); n < 0 {
		t.Errorf("%d running", n)
	}
}

package server

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

func TestNewRefuses(t *testing.T) {
	bad := newScripted()
	bad.info.ID = "\xff"
	for name, gens := range map[string][]Generator{"none": nil, "twice": {newScripted(), newScripted()}, "not UTF-8": {bad}} {
		if _, err := New(Config{Generators: gens}); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	if _, err := New(Config{Generators: []Generator{newScripted()}, APIKey: " \n"}); err == nil {
		t.Error("a blank key would let everybody in")
	}
}

func TestModels(t *testing.T) {
	slash := newScripted()
	slash.info.ID = "org/model"
	_, ts := start(t, Config{Generators: []Generator{newScripted(), slash}})
	const entry = `"object":"model","created":1700000000,"owned_by":"cotenant","max_model_len":4096}`
	for path, want := range map[string]string{
		"/v1/models":             `{"object":"list","data":[{"id":"scripted",` + entry + `,{"id":"org/model",` + entry + `]}`,
		"/v1/models/scripted":    `{"id":"scripted",` + entry,
		"/v1/models/org/model":   `{"id":"org/model",` + entry,
		"/v1/models/org%2Fmodel": `{"id":"org/model",` + entry,
	} {
		if status, _, body := get(t, ts.URL+path); status != 200 || body != want+"\n" {
			t.Errorf("%s: %d %s", path, status, body)
		}
	}
	if status, _, _ := post(t, ts.URL+"/v1/chat/completions", strings.Replace(good, "scripted", "org/model", 1)); status != 200 {
		t.Errorf("second model: %d", status)
	}
	if len(slash.inputs) != 1 {
		t.Error("the second model wasn't asked")
	}
}

// TestSamplingReachesTheGenerator: what a request says arrives, field by field.
func TestSamplingReachesTheGenerator(t *testing.T) {
	g := newScripted()
	_, ts := start(t, Config{Generators: []Generator{g}})
	seed := int64(-7)
	for _, tt := range []struct {
		path, body string
		input      Input
		want       Sampling
	}{
		{"/v1/chat/completions", good, Input{Messages: []Message{{"user", "", "hi"}}},
			Sampling{MaxTokens: -1, N: 1, Temperature: 1, TopP: 1, RepetitionPenalty: 1}},
		{"/v1/chat/completions", `{"model":"scripted","messages":[{"role":"user","name":"u","content":[{"type":"text","text":"a"}]},{"role":"assistant","content":"b"}],"continue_final_message":true,
			"max_completion_tokens":9,"min_tokens":2,"n":2,"temperature":0,"top_k":5,"top_p":0.5,"min_p":0.25,"presence_penalty":1,"frequency_penalty":-1,"repetition_penalty":1.5,
			"seed":-7,"logit_bias":{"3":-100},"stop":["x"],"stop_token_ids":[4],"ignore_eos":true,"logprobs":true,"top_logprobs":2,"cache_salt":"s"}`,
			Input{Messages: []Message{{"user", "u", "a"}, {"assistant", "", "b"}}, ContinueFinal: true},
			Sampling{MaxTokens: 9, MaxTokensExplicit: true, MinTokens: 2, N: 2, TopK: 5, TopP: 0.5, MinP: 0.25, PresencePenalty: 1, FrequencyPenalty: -1, RepetitionPenalty: 1.5,
				Seed: &seed, LogitBias: map[int32]float32{3: -100}, Stop: []string{"x"}, StopTokens: []int32{4}, IgnoreEOS: true, Logprobs: true, TopLogprobs: 2, CacheSalt: "s"}},
		{"/v1/completions", `{"model":"scripted","prompt":"<|x|>","parse_special":true}`, Input{Text: "<|x|>", HasText: true, ParseSpecial: true},
			Sampling{MaxTokens: 16, N: 1, Temperature: 1, TopP: 1, RepetitionPenalty: 1}},
		{"/v1/completions", `{"model":"scripted","prompt":"","max_tokens":0,"echo":true,"logprobs":3}`, Input{HasText: true},
			Sampling{MaxTokensExplicit: true, N: 1, Temperature: 1, TopP: 1, RepetitionPenalty: 1, Logprobs: true, TopLogprobs: 3, PromptLogprobs: true}},
		{"/v1/completions", `{"model":"scripted","prompt":[5,6]}`, Input{Tokens: []int32{5, 6}},
			Sampling{MaxTokens: 16, N: 1, Temperature: 1, TopP: 1, RepetitionPenalty: 1}},
	} {
		g.answer = func(p Prompt, s Sampling) ([]step, error) {
			s.PromptLogprobs = false
			return words(p, s), nil
		}
		if status, _, body := post(t, ts.URL+tt.path, tt.body); status != 200 {
			t.Fatalf("%d %s", status, body)
		}
		in, s := g.last()
		if !reflect.DeepEqual(in, tt.input) || !reflect.DeepEqual(s, tt.want) {
			t.Errorf("%s\ngot  %+v %+v\nwant %+v %+v", tt.body, in, s, tt.input, tt.want)
		}
	}
}

// answerObject is a whole answer of either API.
type answerObject struct {
	ID, Object, Model string
	Created           int64
	Fingerprint       string `json:"system_fingerprint"`
	Choices           []struct {
		Index    int
		Text     *string
		Message  *struct{ Role, Content string }
		Logprobs *struct {
			Content       []struct{ Token string }
			Tokens        []string
			TokenLogprobs []*float64            `json:"token_logprobs"`
			TopLogprobs   []map[string]*float64 `json:"top_logprobs"`
			TextOffset    []int                 `json:"text_offset"`
		}
		FinishReason string `json:"finish_reason"`
	}
	Usage usageObject
}

func ask(t *testing.T, url, body string) answerObject {
	t.Helper()
	status, h, text := post(t, url, body)
	if status != 200 || h.Get("Content-Type") != "application/json" {
		t.Fatalf("%d %v %s", status, h, text)
	}
	var a answerObject
	if err := json.Unmarshal([]byte(text), &a); err != nil {
		t.Fatal(err)
	}
	return a
}

func TestAnswers(t *testing.T) {
	_, ts := start(t, Config{Generators: []Generator{newScripted()}})
	a := ask(t, ts.URL+"/v1/chat/completions", strings.Replace(good, "{", `{"n":3,"max_tokens":2,"logprobs":true,`, 1))
	if !strings.HasPrefix(a.ID, "chatcmpl-") || a.Object != "chat.completion" || a.Model != "scripted" || a.Created == 0 || a.Fingerprint == "" || len(a.Choices) != 3 {
		t.Errorf("%+v", a)
	}
	for i, c := range a.Choices {
		if c.Index != i || c.Message.Role != "assistant" || c.Message.Content != " word0 word1" || c.FinishReason != "length" || len(c.Logprobs.Content) != 2 {
			t.Errorf("choice %d: %+v", i, c)
		}
	}
	if u := a.Usage; u.PromptTokens != 3 || u.CompletionTokens != 6 || u.TotalTokens != 9 || *u.Details.CachedTokens != 1 {
		t.Errorf("usage %+v", u)
	}
	a = ask(t, ts.URL+"/v1/completions", `{"model":"scripted","prompt":["a b c d","e"],"n":2,"max_tokens":1,"echo":true,"logprobs":2}`)
	if !strings.HasPrefix(a.ID, "cmpl-") || a.Object != "text_completion" || len(a.Choices) != 4 {
		t.Errorf("%+v", a)
	}
	for i, want := range []string{"a b c d word0", "a b c d word0", "e word0", "e word0"} {
		c := a.Choices[i]
		if *c.Text != want || strings.Join(c.Logprobs.Tokens, "") != want || c.Logprobs.TokenLogprobs[0] != nil || c.Logprobs.TopLogprobs[0] != nil {
			t.Errorf("choice %d: %q %+v", i, *c.Text, c.Logprobs)
		}
		for j, tok := range c.Logprobs.Tokens {
			if at := c.Logprobs.TextOffset[j]; !strings.HasPrefix(want[at:], tok) {
				t.Errorf("choice %d: token %q is not at %d", i, tok, at)
			}
			if top := c.Logprobs.TopLogprobs[j]; j > 0 && (top[tok] == nil || len(top) != 2) {
				t.Errorf("choice %d: top of %q is %v", i, tok, top)
			}
		}
	}
	if u := a.Usage; u.PromptTokens != 5 || u.CompletionTokens != 4 || *u.Details.CachedTokens != 2 {
		t.Errorf("usage %+v", u)
	}
	a = ask(t, ts.URL+"/v1/completions", `{"model":"scripted","prompt":"a b","max_tokens":0,"echo":true,"logprobs":1}`)
	if *a.Choices[0].Text != "a b" || len(a.Choices[0].Logprobs.Tokens) != 2 || a.Choices[0].FinishReason != "length" || a.Usage.CompletionTokens != 0 {
		t.Errorf("echo alone: %+v", a)
	}
}

// TestStreamEqualsAnswer: the same request gives the same text, finish and usage either way.
func TestStreamEqualsAnswer(t *testing.T) {
	_, ts := start(t, Config{Generators: []Generator{newScripted()}})
	const body = `{"model":"scripted","prompt":["a b","c"],"n":2,"max_tokens":5,"echo":true`
	whole := ask(t, ts.URL+"/v1/completions", body+"}")
	_, _, text := post(t, ts.URL+"/v1/completions", body+`,"stream":true,"stream_options":{"include_usage":true}}`)
	tr := readStream(t, strings.NewReader(text), false, true, false)
	for i, c := range whole.Choices {
		if tr.texts[i] != *c.Text || tr.finishes[i] != c.FinishReason {
			t.Errorf("choice %d: %q %s, streamed %q %s", i, *c.Text, c.FinishReason, tr.texts[i], tr.finishes[i])
		}
	}
	if !reflect.DeepEqual(*tr.usage, whole.Usage) {
		t.Errorf("usage %+v, streamed %+v", whole.Usage, *tr.usage)
	}
}

func TestHealth(t *testing.T) {
	g := newScripted()
	_, ts := start(t, Config{Generators: []Generator{g}})
	check := func(path string, want int) {
		t.Helper()
		if status, _, body := get(t, ts.URL+path); status != want {
			t.Errorf("%s: %d %s", path, status, body)
		}
	}
	check("/health", 200)
	g.mu.Lock()
	g.health = errors.New("device error 700")
	g.mu.Unlock()
	check("/health", 503)
	check("/health/live", 200)
	if resp, err := http.Head(ts.URL + "/health"); err != nil || resp.StatusCode != 503 {
		t.Errorf("HEAD: %v %v", resp, err)
	}
}

// TestBodyLimits: declared and chunked bodies end at the same limit, and the memory of all of them is bounded.
func TestBodyLimits(t *testing.T) {
	s, ts := start(t, Config{Generators: []Generator{newScripted()}, MaxBody: 2000, MaxBodies: 3000})
	send := func(size int, chunked bool) int {
		body := io.Reader(strings.NewReader(good + strings.Repeat(" ", size-len(good))))
		if chunked {
			body = io.MultiReader(body)
		}
		resp, err := http.Post(ts.URL+"/v1/chat/completions", "application/json", body)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		return resp.StatusCode
	}
	for _, chunked := range []bool{false, true} {
		for size, want := range map[int]int{2000: 200, 2001: 413, 100000: 413} {
			if got := send(size, chunked); got != want {
				t.Errorf("%d bytes, chunked %v: %d", size, chunked, got)
			}
		}
	}
	s.bodies.Add(2000) // as if another request held them
	if got := send(1500, false); got != 429 {
		t.Errorf("beyond the budget: %d", got)
	}
	if got := send(900, false); got != 200 {
		t.Errorf("within the budget: %d", got)
	}
	if s.bodies.Load() != 2000 {
		t.Errorf("%d bytes are still booked", s.bodies.Load()-2000)
	}
}

// TestRefusalsReachBigSenders: many clients read nothing before their whole body is out. Closing on them would lose the answer.
func TestRefusalsReachBigSenders(t *testing.T) {
	_, ts := start(t, Config{Generators: []Generator{newScripted()}, APIKey: "k"})
	const size = 24 << 20 // more than the sockets' buffers take
	body := strings.Repeat(" ", size)
	for head, want := range map[string]string{
		"POST /v1/completions HTTP/1.1\r\nAuthorization: Bearer k\r\n":                             "413",
		"POST /v1/completions HTTP/1.1\r\n":                                                        "401",
		"POST /v1/completions HTTP/1.1\r\nAuthorization: Bearer k\r\nContent-Type: text/plain\r\n": "415",
		"POST /v1/nope HTTP/1.1\r\n":                                                               "404",
	} {
		for _, framing := range []string{fmt.Sprintf("Content-Length: %d\r\n\r\n%s", size, body), fmt.Sprintf("Transfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n", size, body)} {
			conn, err := net.Dial("tcp", ts.Listener.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			_, err = io.WriteString(conn, head+"Host: x\r\n"+framing)
			io.WriteString(conn, "GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
			b, _ := io.ReadAll(conn)
			if text := string(b); err != nil || !strings.HasPrefix(text, "HTTP/1.1 "+want) || !strings.Contains(text, "HTTP/1.1 200") {
				t.Errorf("%q: %v, %.300q", head, err, text)
			}
		}
	}
}

// TestBigBodiesTakeTurns: only a few big prompts are prepared at once, small ones pass them by, and a client that waits may leave.
func TestBigBodiesTakeTurns(t *testing.T) {
	g := newScripted()
	hold := make(chan struct{})
	release := sync.OnceFunc(func() { close(hold) })
	var now, tooMany atomic.Int64
	g.prepare = func(in Input) error {
		if len(in.Text) > bigBody {
			if now.Add(1) > 2 {
				tooMany.Add(1)
			}
			<-hold
			now.Add(-1)
		}
		return nil
	}
	s, ts := start(t, Config{Generators: []Generator{g}})
	t.Cleanup(release) // before the server is closed, which waits for all
	big := `{"model":"scripted","prompt":"` + strings.Repeat("x", bigBody+1) + `"}`
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			if status, _, body := post(t, ts.URL+"/v1/completions", big); status != 200 {
				t.Errorf("%d %s", status, body)
			}
		})
	}
	eventually(t, "two are prepared", func() bool { return now.Load() == 2 })
	if status, _, _ := post(t, ts.URL+"/v1/completions", `{"model":"scripted","prompt":"x"}`); status != 200 {
		t.Errorf("a small one waits: %d", status)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	// It goes once its whole body is out: before, it would be a body that ends too early.
	traced := httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{WroteRequest: func(httptrace.WroteRequestInfo) { cancel() }})
	req, _ := http.NewRequestWithContext(traced, "POST", ts.URL+"/v1/completions", strings.NewReader(big))
	if _, err := http.DefaultClient.Do(req); err == nil {
		t.Error("an answer, though there was no turn")
	}
	eventually(t, "it is booked", func() bool { return metric(t, s, `cotenant_requests_failed_total{reason="cancelled"}`) == 1 })
	release()
	wg.Wait()
	if tooMany.Load() != 0 || s.bodies.Load() != 0 || len(s.preparing) != 0 {
		t.Errorf("%d too many, %d bytes and %d turns are still booked", tooMany.Load(), s.bodies.Load(), len(s.preparing))
	}
}

func TestSlowBody(t *testing.T) {
	s, ts := start(t, Config{Generators: []Generator{newScripted()}, BodyTimeout: 50 * time.Millisecond})
	for head, want := range map[string]string{
		"POST /v1/chat/completions HTTP/1.1\r\n":                             "HTTP/1.1 408 ",
		"POST /v1/chat/completions HTTP/1.1\r\nContent-Type: text/plain\r\n": "HTTP/1.1 415 ",
		"POST /v1/nope HTTP/1.1\r\n":                                         "HTTP/1.1 404 ",
	} {
		conn, err := net.Dial("tcp", ts.Listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		io.WriteString(conn, head+"Host: x\r\nContent-Length: 100\r\n\r\n{")
		b, err := io.ReadAll(conn)
		if err != nil || !strings.HasPrefix(string(b), want) {
			t.Errorf("%q: %q %v", head, b, err)
		}
	}
	if metric(t, s, `cotenant_requests_failed_total{reason="slow_client"}`) != 1 {
		t.Error("not booked")
	}
}

// TestAnswerOutlivesTheBodyTimeout: the deadline for the body doesn't end what follows it.
func TestAnswerOutlivesTheBodyTimeout(t *testing.T) {
	g := newScripted()
	g.answer = func(p Prompt, s Sampling) ([]step, error) {
		steps := words(p, s)
		steps[3].delay = 700 * time.Millisecond
		return steps, nil
	}
	_, ts := start(t, Config{Generators: []Generator{g}, BodyTimeout: 500 * time.Millisecond})
	for _, body := range []string{good, goodStream} {
		if status, _, text := post(t, ts.URL+"/v1/chat/completions", body); status != 200 || strings.Contains(text, `"error"`) {
			t.Errorf("%d %s", status, text)
		}
	}
}

func TestExpectContinue(t *testing.T) {
	_, ts := start(t, Config{Generators: []Generator{newScripted()}})
	req, _ := http.NewRequest("POST", ts.URL+"/v1/chat/completions", strings.NewReader(good))
	req.Header.Set("Expect", "100-continue")
	resp, err := (&http.Client{Transport: &http.Transport{ExpectContinueTimeout: time.Minute}}).Do(req)
	if err != nil || resp.StatusCode != 200 {
		t.Errorf("%v %v", resp, err)
	}
}

func TestTooManyRequests(t *testing.T) {
	g := newScripted()
	hold := make(chan struct{})
	g.answer = func(p Prompt, s Sampling) ([]step, error) {
		steps := words(p, s)
		steps[0].wait = hold
		return steps, nil
	}
	_, ts := start(t, Config{Generators: []Generator{g}, MaxRequests: 2})
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() {
			if status, _, _ := post(t, ts.URL+"/v1/chat/completions", good); status != 200 {
				t.Errorf("%d", status)
			}
		})
	}
	eventually(t, "both run", func() bool { return g.open.Load() == 2 })
	if status, h, _ := post(t, ts.URL+"/v1/chat/completions", good); status != 429 || h.Get("Retry-After") != "1" {
		t.Errorf("%d %v", status, h)
	}
	if status, _, _ := get(t, ts.URL+"/v1/models"); status != 200 {
		t.Errorf("models: %d", status)
	}
	close(hold)
	wg.Wait()
}

// TestDrain: admission ends at once, what runs may finish within the grace period, the rest is cut with an error.
func TestDrain(t *testing.T) {
	g := newScripted()
	hold := make(chan struct{})
	g.answer = func(p Prompt, s Sampling) ([]step, error) {
		steps := words(p, s)
		if strings.Contains(p.Text, "forever") {
			steps[1].wait = make(chan struct{})
		} else {
			steps[1].wait = hold
		}
		return steps, nil
	}
	s, ts := start(t, Config{Generators: []Generator{g}})
	type result struct {
		status int
		body   string
	}
	results := map[string]chan result{}
	for name, body := range map[string]string{
		"finishes": goodStream, "cut": strings.Replace(goodStream, "hi", "forever", 1), "cut whole": strings.Replace(good, "hi", "forever", 1),
	} {
		ch := make(chan result, 1)
		results[name] = ch
		go func() {
			status, _, text := post(t, ts.URL+"/v1/chat/completions", body)
			ch <- result{status, text}
		}()
	}
	eventually(t, "all run", func() bool { return g.open.Load() == 3 })
	ctx, cancel := context.WithCancel(t.Context())
	drained := make(chan error, 1)
	go func() { drained <- s.Drain(ctx) }()
	eventually(t, "draining", s.isDraining)
	for _, path := range []string{"/v1/chat/completions", "/v1/completions"} {
		status, h, body := post(t, ts.URL+path, good)
		if _, _, _, code := errorObject(t, body); status != 503 || code != "draining" || h.Get("Retry-After") == "" {
			t.Errorf("%d %s", status, body)
		}
	}
	if status, _, _ := get(t, ts.URL+"/health"); status != 503 {
		t.Errorf("health: %d", status)
	}
	if status, _, _ := get(t, ts.URL+"/health/live"); status != 200 {
		t.Errorf("live: %d", status)
	}
	close(hold)
	if r := <-results["finishes"]; !readStream(t, strings.NewReader(r.body), true, true, false).done {
		t.Errorf("%+v", r)
	}
	cancel()
	if r := <-results["cut"]; readStream(t, strings.NewReader(r.body), true, true, false).err != "draining" {
		t.Errorf("%+v", r)
	}
	if r := <-results["cut whole"]; r.status != 503 {
		t.Errorf("%+v", r)
	}
	if err := <-drained; err == nil || !strings.Contains(err.Error(), "2 requests") {
		t.Errorf("drain: %v", err)
	}
	if err := s.Drain(t.Context()); err != nil {
		t.Errorf("second drain: %v", err)
	}
}

func TestDrainIdle(t *testing.T) {
	s, _ := start(t, Config{Generators: []Generator{newScripted()}})
	if err := s.Drain(t.Context()); err != nil {
		t.Error(err)
	}
}

package server

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"cotenant/internal/openai"
)

// chunk is a chunk of either API as a strict client reads it: unknown members fail the test.
type chunk struct {
	ID                string         `json:"id"`
	Object            string         `json:"object"`
	Created           int64          `json:"created"`
	Model             string         `json:"model"`
	SystemFingerprint *string        `json:"system_fingerprint"`
	Choices           *[]chunkChoice `json:"choices"`
	Usage             *usageObject   `json:"usage"`
}

type chunkChoice struct {
	Index        int              `json:"index"`
	Delta        map[string]any   `json:"delta"`
	Text         *string          `json:"text"`
	Logprobs     *json.RawMessage `json:"logprobs"`
	FinishReason *string          `json:"finish_reason"`
	StopReason   *string          `json:"stop_reason"`
}

type usageObject struct {
	PromptTokens     int `json:"prompt_tokens"`
	CompletionTokens int `json:"completion_tokens"`
	TotalTokens      int `json:"total_tokens"`
	Details          *struct {
		CachedTokens *int `json:"cached_tokens"`
	} `json:"prompt_tokens_details"`
}

// transcript is what a stream said.
type transcript struct {
	texts    map[int]string
	finishes map[int]string
	usage    *usageObject
	chunks   []chunk
	err      string // the error object's code
	done     bool
}

// readStream checks a stream against the grammar that clients rely on (see openai.StreamEncoder) and returns what it said.
func readStream(t testing.TB, body io.Reader, chat, includeUsage, continuous bool) transcript {
	t.Helper()
	tr, err := parseStream(body, chat, includeUsage, continuous)
	if err != nil {
		t.Fatalf("stream breaks the grammar: %v", err)
	}
	return tr
}

func parseStream(body io.Reader, chat, includeUsage, continuous bool) (transcript, error) {
	tr := transcript{texts: map[int]string{}, finishes: map[int]string{}}
	r := openai.NewSSEReader(body, 0)
	begun := map[int]bool{}
	last := 0
	for {
		e, err := r.Next()
		if err == io.EOF {
			if !tr.done && tr.err == "" {
				return tr, errors.New("ends without [DONE] or an error")
			}
			return tr, nil
		}
		if err != nil {
			return tr, err
		}
		if tr.done || tr.err != "" {
			return tr, fmt.Errorf("%q after the end", e.Data)
		}
		if len(e.Type) > 0 || e.Unterminated {
			return tr, fmt.Errorf("event %q is typed or unterminated", e.Data)
		}
		if string(e.Data) == "[DONE]" {
			tr.done = true
			if len(tr.finishes) == 0 || len(tr.finishes) != len(begun) {
				return tr, fmt.Errorf("%d choices began, %d finished", len(begun), len(tr.finishes))
			}
			if includeUsage != (tr.usage != nil) {
				return tr, fmt.Errorf("usage chunk: %v, asked for: %v", tr.usage != nil, includeUsage)
			}
			continue
		}
		var fault struct {
			Error *struct {
				Message, Type string
				Code          string
			}
		}
		if json.Unmarshal(e.Data, &fault) == nil && fault.Error != nil {
			tr.err = fault.Error.Code
			continue
		}
		var c chunk
		dec := json.NewDecoder(bytes.NewReader(e.Data))
		dec.DisallowUnknownFields()
		if err := dec.Decode(&c); err != nil {
			return tr, fmt.Errorf("%s: %w", e.Data, err)
		}
		if err := tr.step(&c, chat, includeUsage, continuous, begun, &last); err != nil {
			return tr, fmt.Errorf("%s: %w", e.Data, err)
		}
		tr.chunks = append(tr.chunks, c)
	}
}

func (tr *transcript) step(c *chunk, chat, includeUsage, continuous bool, begun map[int]bool, last *int) error {
	object, prefix := "text_completion", "cmpl-"
	if chat {
		object, prefix = "chat.completion.chunk", "chatcmpl-"
	}
	switch first := tr.chunks; {
	case c.Object != object || !strings.HasPrefix(c.ID, prefix) || c.Created == 0 || c.Model == "" || c.SystemFingerprint == nil:
		return errors.New("envelope is wrong")
	case len(first) > 0 && (c.ID != first[0].ID || c.Created != first[0].Created || c.Model != first[0].Model || *c.SystemFingerprint != *first[0].SystemFingerprint):
		return errors.New("envelope changes")
	case c.Choices == nil:
		return errors.New("no choices")
	case tr.usage != nil:
		return errors.New("chunk after the usage chunk")
	}
	if c.Usage != nil {
		if !includeUsage || c.Usage.TotalTokens != c.Usage.PromptTokens+c.Usage.CompletionTokens || c.Usage.Details == nil || c.Usage.Details.CachedTokens == nil {
			return errors.New("usage is wrong")
		}
		if c.Usage.CompletionTokens < *last {
			return errors.New("usage falls")
		}
		*last = c.Usage.CompletionTokens
	}
	if len(*c.Choices) == 0 {
		if c.Usage == nil {
			return errors.New("neither choices nor usage")
		}
		tr.usage = c.Usage
		return nil
	}
	if len(*c.Choices) != 1 {
		return errors.New("several choices in a chunk")
	}
	ch := (*c.Choices)[0]
	if _, over := tr.finishes[ch.Index]; over {
		return errors.New("choice goes on after its finish")
	}
	role, text := "", ""
	if chat {
		role, _ = ch.Delta["role"].(string)
		text, _ = ch.Delta["content"].(string)
		if ch.Text != nil || ch.Delta == nil {
			return errors.New("chat chunk without delta")
		}
	} else {
		if ch.Text == nil || ch.Delta != nil {
			return errors.New("completion chunk without text")
		}
		text = *ch.Text
	}
	if (c.Usage != nil) != (continuous && role == "") {
		return errors.New("running usage where it wasn't asked for, or none where it was")
	}
	switch {
	case chat && !begun[ch.Index]:
		if role != "assistant" || text != "" || ch.Delta["content"] == nil || len(ch.Delta) != 2 {
			return errors.New("choice doesn't begin with its role")
		}
	case role != "":
		return errors.New("role again")
	case ch.FinishReason != nil:
		if text != "" || chat && len(ch.Delta) != 0 {
			return errors.New("finish carries text")
		}
		tr.finishes[ch.Index] = *ch.FinishReason
	}
	begun[ch.Index] = true
	tr.texts[ch.Index] += text
	return nil
}

func TestStreamGrammar(t *testing.T) {
	g := newScripted()
	_, ts := start(t, Config{Generators: []Generator{g}})
	for _, tt := range []struct {
		name, path, members string
		choices             int
		text                string // of choice 0
		usage, continuous   bool
	}{
		{"chat", "/v1/chat/completions", `"max_tokens":3`, 1, " word0 word1 word2", false, false},
		{"chat usage", "/v1/chat/completions", `"max_tokens":2,"stream_options":{"include_usage":true}`, 1, " word0 word1", true, false},
		{"chat running usage", "/v1/chat/completions", `"max_tokens":2,"stream_options":{"include_usage":true,"continuous_usage_stats":true}`, 1, " word0 word1", true, true},
		{"chat n", "/v1/chat/completions", `"n":8,"max_tokens":2,"stream_options":{"include_usage":true}`, 8, " word0 word1", true, false},
		{"chat logprobs", "/v1/chat/completions", `"logprobs":true,"top_logprobs":2,"max_tokens":2`, 1, " word0 word1", false, false},
		{"completion", "/v1/completions", `"prompt":"a b","max_tokens":2`, 1, " word0 word1", false, false},
		{"completion running usage", "/v1/completions", `"prompt":"a b","max_tokens":2,"stream_options":{"include_usage":true,"continuous_usage_stats":true}`, 1, " word0 word1", true, true},
		{"prompts", "/v1/completions", `"prompt":["a b","c","d"],"n":2,"max_tokens":2,"stream_options":{"include_usage":true}`, 6, " word0 word1", true, false},
		{"echo", "/v1/completions", `"prompt":["a b","c"],"echo":true,"max_tokens":2`, 2, "a b word0 word1", false, false},
		{"echo logprobs n", "/v1/completions", `"prompt":["a b","c"],"n":3,"echo":true,"logprobs":2,"max_tokens":1`, 6, "a b word0", false, false},
		{"echo alone", "/v1/completions", `"prompt":"a b","echo":true,"logprobs":1,"max_tokens":0`, 1, "a b", false, false},
		{"tokens", "/v1/completions", `"prompt":[[1,2],[3]],"echo":true,"max_tokens":1`, 2, "?? word0", false, false},
		{"stop after 8", "/v1/chat/completions", `"max_tokens":100`, 1, " word0 word1 word2 word3 word4 word5 word6 word7", false, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			chat := strings.Contains(tt.path, "chat")
			body := `{"model":"scripted","stream":true,` + tt.members
			if chat {
				body += `,"messages":[{"role":"user","content":"a b"}]`
			}
			resp, err := http.Post(ts.URL+tt.path, "application/json", strings.NewReader(body+"}"))
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			if resp.StatusCode != 200 || resp.Header.Get("Content-Type") != "text/event-stream; charset=utf-8" || resp.Header.Get("Cache-Control") != "no-cache" || resp.Header.Get("X-Accel-Buffering") != "no" {
				t.Fatalf("%d %v", resp.StatusCode, resp.Header)
			}
			tr := readStream(t, resp.Body, chat, tt.usage, tt.continuous)
			if !tr.done || len(tr.texts) != tt.choices || tr.texts[0] != tt.text {
				t.Errorf("%+v", tr)
			}
			want := "length"
			if strings.HasPrefix(tt.name, "stop") {
				want = "stop"
			}
			for i, reason := range tr.finishes {
				if reason != want {
					t.Errorf("choice %d finished by %q", i, reason)
				}
			}
			if g.open.Load() != 0 || g.cancelled.Load() != 0 {
				t.Errorf("%d streams are open, %d were cancelled", g.open.Load(), g.cancelled.Load())
			}
		})
	}
}

// TestGrammarRefuses keeps the checker honest: each stream breaks one rule.
func TestGrammarRefuses(t *testing.T) {
	enc := (&openai.Envelope{Chat: true, ID: "chatcmpl-1", Created: 1, Model: "m", Fingerprint: "f"}).NewStream(true)
	other := (&openai.Envelope{Chat: true, ID: "chatcmpl-2", Created: 1, Model: "m", Fingerprint: "f"}).NewStream(true)
	u := openai.Usage{Prompt: 1, Completion: 1}
	role, text, finish := enc.Role(nil, 0), enc.Content(nil, 0, "a", nil, nil), enc.Finish(nil, 0, "stop", "", nil)
	usage, done := enc.Usage(nil, u), []byte(openai.Done)
	if _, err := parseStream(bytes.NewReader(bytes.Join([][]byte{role, text, finish, usage, done}, nil)), true, true, false); err != nil {
		t.Fatalf("good stream: %v", err)
	}
	for name, events := range map[string][][]byte{
		"nothing":          {},
		"no done":          {role, text, finish, usage},
		"no finish":        {role, text, usage, done},
		"no role":          {text, finish, usage, done},
		"role twice":       {role, role, text, finish, usage, done},
		"no usage":         {role, text, finish, done},
		"text after end":   {role, text, finish, text, usage, done},
		"finish twice":     {role, text, finish, finish, usage, done},
		"chunk after done": {role, text, finish, usage, done, text},
		"usage early":      {role, usage, text, finish, done},
		"other id":         {role, other.Content(nil, 0, "a", nil, nil), finish, usage, done},
		"running usage":    {role, enc.Content(nil, 0, "a", nil, &u), finish, usage, done},
	} {
		if _, err := parseStream(bytes.NewReader(bytes.Join(events, nil)), true, true, false); err == nil {
			t.Errorf("%s: the checker took it", name)
		}
	}
}

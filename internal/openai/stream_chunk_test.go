package openai

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
)

// describe prints what a chunk holds, zero values left out.
func describe(c *StreamChunk) string {
	var parts []string
	add := func(ok bool, format string, args ...any) {
		if ok {
			parts = append(parts, fmt.Sprintf(format, args...))
		}
	}
	add(len(c.ID) > 0, "id=%s", c.ID)
	add(c.HasChoice, "choices=%d", c.Choices)
	add(c.Role, "role")
	add(len(c.Content) > 0, "content=%q", c.Content)
	add(len(c.Reasoning) > 0, "reasoning=%q", c.Reasoning)
	add(len(c.Refusal) > 0, "refusal=%q", c.Refusal)
	add(c.ToolBytes > 0, "tool=%d", c.ToolBytes)
	add(len(c.FinishReason) > 0, "finish=%s", c.FinishReason)
	u := c.Usage
	add(c.HasUsage, "usage=%d/%d/%d/%d/%d", u.Prompt, u.Completion, u.Total, u.Cached, u.Reasoning)
	add(c.NullUsage, "null-usage")
	add(c.IndexDrift, "index")
	add(c.HasTimings, "cache_n=%d", c.TimingsCached)
	add(c.HasError, "error=%q/%d/%s", c.ErrorMessage, c.ErrorCode, c.ErrorType)
	add(c.InvalidUTF8, "invalid-utf8")
	return strings.Join(parts, " ")
}

func TestStreamChunk(t *testing.T) {
	c := new(StreamChunk) // one chunk for all: Decode must forget what came before
	for _, test := range []struct{ in, want string }{
		{`{"id":"a","choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}],"usage":null}`, `id=a choices=1 role null-usage`},
		{`{"id":"","choices":[{"index":197,"delta":{"content":"hi \u00e9\ud83d\ude00"}}]}`, `choices=1 content="hi é😀" index`},
		{`{"choices":[{"delta":{"reasoning_content":"x","content":""}}]}`, `choices=1 reasoning="x"`},
		{`{"choices":[{"delta":{"reasoning":"x","reasoning_content":"x"}}]}`, `choices=1 reasoning="x"`},
		{`{"choices":[{"delta":{"content":[{"type":"text","text":"a"},{"text":"b"},3]}}]}`, `choices=1 content="ab"`},
		{`{"choices":[{"delta":{"tool_calls":[{"function":{"name":"f","arguments":"{"}}]}}]}`, `choices=1 tool=2`},
		{`{"choices":[{"delta":{"function_call":{"arguments":"abc"}}}]}`, `choices=1 tool=3`},
		{`{"choices":[{"delta":{},"finish_reason":"length"}]}`, `choices=1 finish=length`},
		{`{"choices":[{"text":"abc","finish_reason":"stop"}]}`, `choices=1 content="abc" finish=stop`},
		{`{"choices":[{"message":{"role":"assistant","content":"whole","refusal":null},"finish_reason":"stop"}],"usage":{"prompt_tokens":1,"completion_tokens":0,"total_tokens":1}}`, `choices=1 role content="whole" finish=stop usage=1/0/1/-1/-1`},
		{`{"choices":[],"usage":{"prompt_tokens":704,"completion_tokens":8,"total_tokens":712,"prompt_tokens_details":{"cached_tokens":690},"completion_tokens_details":{"reasoning_tokens":3}}}`, `choices=0 usage=704/8/712/690/3`},
		{`{"choices":[],"usage":{"prompt_tokens":704.0,"completion_tokens":"8","total_tokens":-1,"prompt_tokens_details":null}}`, `choices=0 usage=704/-1/-1/-1/-1`},
		{`{"choices":[],"usage":{},"timings":{"cache_n":690,"prompt_ms":12.5e1}}`, `choices=0 usage=-1/-1/-1/-1/-1 cache_n=690`},
		{`{"choices":null}`, ``},
		{`{}`, ``},
		{`{"error":{"message":"boom","type":"server_error","code":500}}`, `error="boom"/500/server_error`},
		{`{"error":{"message":"slow down","code":"429","param":null}}`, `error="slow down"/429/`},
		{`{"error":{"code":"rate_limited"}}`, `error=""/-1/`},
		{`{"error":"boom"}`, `error="boom"/-1/`},
		{`{"error":null,"choices":[]}`, `choices=0`},
		{`{"error":"","choices":[]}`, `choices=0`},
		{`{"error":{},"choices":[]}`, `choices=0`},
		{`{"error":[1]}`, `error=""/-1/`},
		{`{"object":"error","message":"old vLLM","code":400}`, `error="old vLLM"/400/`},
		{`{"object":"chat.completion.chunk","message":"not an error","code":3}`, ``},
		{`{"id":7,"choices":[{"delta":null},{"delta":"x"},null,{"text":3}]}`, `choices=4`},
		{"{\"choices\":[{\"delta\":{\"content\":\"a\xffb\"}}]}", `choices=1 content="a�b" invalid-utf8`},
		{`{"choices":[{"delta":{"content":"\ud83d x \ude00"}}]}`, `choices=1 content="� x �" invalid-utf8`},
		{`{"choices":[{"delta":{"content":"\ud83d\u0041"}}]}`, `choices=1 content="�A" invalid-utf8`},
		{" \n{\"choices\" : [ ] } \t", `choices=0`},
	} {
		if err := c.Decode([]byte(test.in)); err != nil {
			t.Errorf("%s: %v", test.in, err)
		} else if got := describe(c); got != test.want {
			t.Errorf("%s:\n got %s\nwant %s", test.in, got, test.want)
		}
	}
}

func TestStreamChunkRefuses(t *testing.T) {
	c := new(StreamChunk)
	for _, in := range []string{
		``, `[DONE]`, `[]`, `"x"`, `null`, `{`, `{"a":}`, `{"a":1,}`, `{"a" 1}`, `{a:1}`, `{"a":01}`, `{"a":+1}`, `{"a":.5}`, `{"a":1.}`,
		`{"a":nul}`, `{"a":"\x"}`, `{"a":"\u12"}`, "{\"a\":\"\n\"}", `{"a":"`, `{}x`, `{"choices":[{"delta":{"content":"cut`, `{"choices":[,]}`,
		`{"a":` + strings.Repeat("[", 1000) + strings.Repeat("]", 1000) + `}`, strings.Repeat(`{"a":`, 100000), `{"id":"a\`,
	} {
		if err := c.Decode([]byte(in)); err == nil {
			t.Errorf("accepted %.60q", in)
		}
	}
}

// FuzzStreamChunk holds that what is accepted as JSON is what encoding/json accepts, and that strings are read alike.
func FuzzStreamChunk(f *testing.F) {
	for _, s := range []string{
		`{"id":"a","choices":[{"delta":{"content":"x"}}]}`, `{"error":{"message":"m","code":500}}`, `{"usage":{"prompt_tokens":1e3}}`,
		`[1,-0.5e+7,true,false,null,"\u00e9"]`, `{"id":"\ud83d\ude00\ud83d"}`, `{"a":-}`, "\xff", `{"choices":[{"delta":{"tool_calls":[{"function":{}}]}}]}`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		c := new(StreamChunk)
		err := c.Decode(b)
		valid := json.Valid(b)
		if err == nil && !valid {
			t.Fatalf("accepted what is not JSON: %q", b)
		}
		var object map[string]json.RawMessage
		if json.Unmarshal(b, &object) != nil || object == nil {
			return
		}
		if err != nil && strings.Contains(err.Error(), errJSONDepth.Error()) {
			return
		}
		if err != nil {
			t.Fatalf("refused an object: %q: %v", b, err)
		}
		var id string
		// Member names are compared exactly here and without case in encoding/json's structs, hence the map.
		if raw, ok := object["id"]; ok && json.Unmarshal(raw, &id) == nil && raw[0] == '"' && id != string(c.ID) && !duplicate(b, "id") {
			t.Fatalf("id %q, encoding/json reads %q", c.ID, id)
		}
	})
}

// duplicate reports whether the top-level object may name key twice: which one wins isn't defined.
func duplicate(b []byte, key string) bool {
	return strings.Count(string(b), key) > 1 || strings.Contains(string(b), `\u`)
}

package openai

import (
	"encoding/json"
	"math"
	"strings"
	"testing"
	"unicode/utf8"
)

func TestErrorObject(t *testing.T) {
	for _, tt := range []struct {
		e    Error
		want string
	}{
		{Error{Message: "m", Type: TypeServer}, `{"error":{"message":"m","type":"server_error","param":null,"code":null}}`},
		{Error{Message: `a"b`, Type: TypeInvalidRequest, Param: "n", Code: "c"}, `{"error":{"message":"a\"b","type":"invalid_request_error","param":"n","code":"c"}}`},
	} {
		if got := string(tt.e.Append(nil)); got != tt.want {
			t.Errorf("got %s\nwant %s", got, tt.want)
		}
		if got := string(tt.e.AppendEvent(nil)); got != "data: "+tt.want+"\n\n" {
			t.Errorf("event is %q", got)
		}
	}
}

// TestStringEscapes compares with encoding/json, but for what is escaped on purpose.
func TestStringEscapes(t *testing.T) {
	var all strings.Builder
	for r := rune(0); r < 0x3000; r++ {
		if utf8.ValidRune(r) {
			all.WriteRune(r)
		}
	}
	all.WriteString("😀\U0010ffff")
	var back string
	got := appendString(nil, all.String())
	if err := json.Unmarshal(got, &back); err != nil || back != all.String() {
		t.Fatalf("does not come back: %v", err)
	}
	for _, r := range "\n\r\x0b\x0c\x1c\x1d\x1e\x7f\u0085\u2028\u2029" {
		if strings.ContainsRune(string(got), r) {
			t.Errorf("%U is not escaped", r)
		}
	}
	if got := string(appendString(nil, "a\xffb\xe2\x82")); got != "\"a\ufffdb\ufffd\ufffd\"" {
		t.Errorf("invalid UTF-8 gives %q", got)
	}
}

func FuzzAppendString(f *testing.F) {
	f.Add("plain")
	f.Add("\xff\u2028\"\\\x00")
	f.Fuzz(func(t *testing.T, s string) {
		got := appendString(nil, s)
		var back string
		if err := json.Unmarshal(got, &back); err != nil || !utf8.Valid(got) {
			t.Fatalf("%q: %v", got, err)
		}
		var want string
		std, _ := json.Marshal(s)
		json.Unmarshal(std, &want)
		if back != want {
			t.Fatalf("%q comes back as %q", s, back)
		}
	})
}

var testEnvelope = Envelope{Chat: true, ID: "chatcmpl-1", Created: 1700000000, Model: "m", Fingerprint: "fp_1"}

var testTokens = []TokenLogprob{
	{Bytes: []byte(" é"), Logprob: -0.25, Top: []TopLogprob{{[]byte(" é"), -0.25}, {[]byte("\xe2\x98"), float32(math.Inf(-1))}}},
	{Bytes: []byte("\xe2\x98"), Logprob: float32(math.NaN())},
	{Bytes: []byte("\x83!"), Logprob: 1e-9},
}

func TestStreamGolden(t *testing.T) {
	completion := testEnvelope
	completion.Chat, completion.ID, completion.Fingerprint = false, "cmpl-1", ""
	const chatHead = `data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1700000000,"model":"m","system_fingerprint":"fp_1","choices":[`
	const textHead = `data: {"id":"cmpl-1","object":"text_completion","created":1700000000,"model":"m","system_fingerprint":null,"choices":[`
	const usage = `"usage":{"prompt_tokens":7,"completion_tokens":3,"total_tokens":10,"prompt_tokens_details":{"cached_tokens":4}}`
	u := Usage{Prompt: 7, Completion: 3, Cached: 4}
	chat, quiet, text := testEnvelope.NewStream(true), testEnvelope.NewStream(false), completion.NewStream(true)
	for _, tt := range []struct {
		name, got, want string
	}{
		{"role", string(chat.Role(nil, 0)), chatHead + `{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}],"usage":null}`},
		{"content", string(chat.Content(nil, 1, "a\n\"", nil, nil)), chatHead + `{"index":1,"delta":{"content":"a\n\""},"logprobs":null,"finish_reason":null}],"usage":null}`},
		{"running usage", string(chat.Content(nil, 0, "a", nil, &u)), chatHead + `{"index":0,"delta":{"content":"a"},"logprobs":null,"finish_reason":null}],` + usage + `}`},
		{"no usage", string(quiet.Content(nil, 0, "a", nil, nil)), chatHead + `{"index":0,"delta":{"content":"a"},"logprobs":null,"finish_reason":null}]}`},
		{"finish", string(chat.Finish(nil, 0, "stop", "END", nil)), chatHead + `{"index":0,"delta":{},"logprobs":null,"finish_reason":"stop","stop_reason":"END"}],"usage":null}`},
		{"usage", string(chat.Usage(nil, u)), chatHead + `],` + usage + `}`},
		{"logprobs", string(quiet.Content(nil, 0, " é", testTokens[:1], nil)), chatHead + `{"index":0,"delta":{"content":" é"},"logprobs":{"content":[{"token":" é","logprob":-0.25,"bytes":[32,195,169],"top_logprobs":[` +
			`{"token":" é","logprob":-0.25,"bytes":[32,195,169]},{"token":"` + "\ufffd\ufffd" + `","logprob":-9999,"bytes":[226,152]}]}],"refusal":null},"finish_reason":null}]}`},
		{"text role", string(text.Role(nil, 0)), ""},
		{"text", string(text.Content(nil, 0, "a", nil, nil)), textHead + `{"index":0,"text":"a","logprobs":null,"finish_reason":null}],"usage":null}`},
		{"text finish", string(text.Finish(nil, 0, "length", "", nil)), textHead + `{"index":0,"text":"","logprobs":null,"finish_reason":"length"}],"usage":null}`},
		{"text logprobs", string(text.Content(nil, 2, " é☃!", testTokens, nil)), textHead + `{"index":2,"text":" é☃!","logprobs":{"tokens":[" é","bytes:\\xe2\\x98","bytes:\\x83\\x21"],` +
			`"token_logprobs":[-0.25,-9999,0],"top_logprobs":[{" é":-0.25,"bytes:\\xe2\\x98":-9999},{"bytes:\\xe2\\x98":-9999},{"bytes:\\x83\\x21":0}],"text_offset":[0,2,2]},"finish_reason":null}],"usage":null}`},
		{"text offsets go on", string(text.Content(nil, 2, "x", []TokenLogprob{{Bytes: []byte("x")}}, nil)), textHead + `{"index":2,"text":"x","logprobs":{"tokens":["x"],` +
			`"token_logprobs":[0],"top_logprobs":[{"x":0}],"text_offset":[4]},"finish_reason":null}],"usage":null}`},
	} {
		got, ended := strings.CutSuffix(tt.got, "\n\n")
		if tt.want != "" && !ended {
			t.Errorf("%s: no blank line after the event", tt.name)
		}
		if got != tt.want {
			t.Errorf("%s:\ngot  %s\nwant %s", tt.name, got, tt.want)
		}
		if data, ok := strings.CutPrefix(got, "data: "); ok && !json.Valid([]byte(data)) {
			t.Errorf("%s is not JSON", tt.name)
		}
	}
}

func TestAnswerGolden(t *testing.T) {
	u := Usage{Prompt: 7, Completion: 3, Cached: 4}
	const usage = `"usage":{"prompt_tokens":7,"completion_tokens":3,"total_tokens":10,"prompt_tokens_details":{"cached_tokens":4}}}`
	text := testEnvelope
	text.Chat, text.ID = false, "cmpl-1"
	for _, tt := range []struct{ got, want string }{
		{string(testEnvelope.AppendAnswer(nil, []Choice{{Text: "hi", FinishReason: "stop"}}, u)),
			`{"id":"chatcmpl-1","object":"chat.completion","created":1700000000,"model":"m","system_fingerprint":"fp_1","choices":[{"index":0,` +
				`"message":{"role":"assistant","content":"hi","refusal":null},"logprobs":null,"finish_reason":"stop"}],` + usage},
		{string(testEnvelope.AppendAnswer(nil, []Choice{{Index: 0, HasLogprobs: true, FinishReason: "length"}, {Index: 1, Text: "x", StopReason: "y", FinishReason: "stop"}}, u)),
			`{"id":"chatcmpl-1","object":"chat.completion","created":1700000000,"model":"m","system_fingerprint":"fp_1","choices":[{"index":0,` +
				`"message":{"role":"assistant","content":"","refusal":null},"logprobs":{"content":[],"refusal":null},"finish_reason":"length"},{"index":1,` +
				`"message":{"role":"assistant","content":"x","refusal":null},"logprobs":null,"finish_reason":"stop","stop_reason":"y"}],` + usage},
		{string(text.AppendAnswer(nil, []Choice{{Text: "ab", HasLogprobs: true, Logprobs: []TokenLogprob{{Bytes: []byte("a"), First: true}, {Bytes: []byte("b"), Logprob: -1}}, FinishReason: "length"}}, u)),
			`{"id":"cmpl-1","object":"text_completion","created":1700000000,"model":"m","system_fingerprint":"fp_1","choices":[{"index":0,"text":"ab",` +
				`"logprobs":{"tokens":["a","b"],"token_logprobs":[null,-1],"top_logprobs":[null,{"b":-1}],"text_offset":[0,1]},"finish_reason":"length"}],` + usage},
		{string(AppendModels(nil, []Model{{"m/1", 5, "o", 10}, {"n", 6, "o", 11}})),
			`{"object":"list","data":[{"id":"m/1","object":"model","created":5,"owned_by":"o","max_model_len":10},{"id":"n","object":"model","created":6,"owned_by":"o","max_model_len":11}]}`},
	} {
		if tt.got != tt.want || !json.Valid([]byte(tt.got)) {
			t.Errorf("got  %s\nwant %s", tt.got, tt.want)
		}
	}
}

// TestOwnStreamDecodes feeds what is written to the reader that judges other servers.
func TestOwnStreamDecodes(t *testing.T) {
	enc := testEnvelope.NewStream(true)
	stream := enc.Role(nil, 0)
	stream = enc.Content(stream, 0, "a\u2028\x00😀", nil, nil)
	stream = enc.Finish(stream, 0, "stop", "", nil)
	stream = enc.Usage(stream, Usage{7, 3, 4})
	stream = append(stream, Done...)
	r := NewSSEReader(strings.NewReader(string(stream)), 0)
	var list []string
	for {
		e, err := r.Next()
		if err != nil {
			t.Fatal(err)
		}
		if string(e.Data) == "[DONE]" {
			break
		}
		var c StreamChunk
		if err := c.Decode(e.Data); err != nil {
			t.Fatal(err)
		}
		list = append(list, describe(&c))
	}
	want := []string{"id=chatcmpl-1 choices=1 role null-usage", `id=chatcmpl-1 choices=1 content="a\u2028\x00😀" null-usage`,
		"id=chatcmpl-1 choices=1 finish=stop null-usage", "id=chatcmpl-1 choices=0 usage=7/3/10/4/-1"}
	if strings.Join(list, "\n") != strings.Join(want, "\n") {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(list, "\n"), strings.Join(want, "\n"))
	}
}

func BenchmarkContentChunk(b *testing.B) {
	enc := testEnvelope.NewStream(true)
	var buf []byte
	for b.Loop() {
		buf = enc.Content(buf[:0], 0, " word", nil, nil)
	}
	b.SetBytes(int64(len(buf)))
	b.ReportAllocs()
}

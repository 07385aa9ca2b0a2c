package openai

import (
	"encoding/json"
	"errors"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
)

const hello = `"model":"m","messages":[{"role":"user","content":"hi"}]`

// chatWith is a good chat request with more members, completionWith likewise.
func chatWith(members string) string       { return `{` + hello + `,` + members + `}` }
func completionWith(members string) string { return `{"model":"m","prompt":"hi",` + members + `}` }

// refusals are bodies that must be refused, with the field that the error must name and a part of its message.
var refusals = []struct{ name, api, body, param, message string }{
	// the body as JSON
	{"empty", "both", ``, "", "not valid JSON"},
	{"not an object", "both", `[]`, "", "expected an object, got an array"},
	{"a string", "both", `"x"`, "", "expected an object, got a string"},
	{"cut", "both", `{"model":"m"`, "", "not valid JSON at byte 12"},
	{"trailing", "both", chatWith(`"x":1`) + `x`, "", "not valid JSON"},
	{"two objects", "chat", `{` + hello + `}{}`, "", "not valid JSON"},
	{"NaN", "both", `{"temperature":NaN}`, "", "not valid JSON"},
	{"single quotes", "both", `{'model':'m'}`, "", "not valid JSON"},
	{"trailing comma", "both", `{"model":"m",}`, "", "not valid JSON"},
	{"control character", "both", "{\"model\":\"a\nb\"}", "", "not valid JSON"},
	{"bad literal", "both", `{"stream":tru}`, "", "not valid JSON"},
	{"endless arrays", "both", `{"x":` + strings.Repeat("[", 100000), "x", "nested deeper"},
	{"endless objects", "both", strings.Repeat(`{"x":`, 100000), "x", "nested deeper"},
	{"invalid UTF-8", "both", "{\"model\":\"\xff\"}", "", "not valid UTF-8 at byte 10"},
	{"UTF-8 surrogate", "both", "{\"model\":\"\xed\xa0\x80\"}", "", "not valid UTF-8"},
	{"cut rune", "both", "{\"model\":\"\xe2\x82\"}", "", "not valid UTF-8"},
	{"lone surrogate", "chat", `{"model":"m","messages":[{"role":"user","content":"\ud83d"}]}`, "messages[0].content", "surrogate"},
	{"low surrogate first", "completion", `{"model":"m","prompt":"\ude00\ud83d"}`, "prompt", "surrogate"},
	{"twice", "both", `{"model":"m","model":"n"}`, "model", "given twice"},
	{"twice, by escape", "both", `{"model":"m","mod\u0065l":"n"}`, "model", "given twice"},
	{"twice, null", "both", `{"n":null,"n":2}`, "n", "given twice"},

	// what must be there
	{"no model", "chat", `{"messages":[{"role":"user","content":"hi"}]}`, "model", "missing"},
	{"null model", "completion", `{"model":null,"prompt":"x"}`, "model", "missing"},
	{"model type", "both", `{"model":5}`, "model", "expected a string, got a number"},
	{"no messages", "chat", `{"model":"m"}`, "messages", "at least one"},
	{"empty messages", "chat", `{"model":"m","messages":[]}`, "messages", "at least one"},
	{"messages type", "chat", `{"model":"m","messages":"hi"}`, "messages", "expected an array, got a string"},
	{"message type", "chat", `{"model":"m","messages":["hi"]}`, "messages[0]", "expected an object, got a string"},
	{"no role", "chat", `{"model":"m","messages":[{"content":"x"}]}`, "messages[0].role", "missing"},
	{"unknown role", "chat", `{"model":"m","messages":[{"role":"user","content":"x"},{"role":"robot","content":"x"}]}`, "messages[1].role", `unknown role "robot"`},
	{"tool role", "chat", `{"model":"m","messages":[{"role":"tool","content":"x","tool_call_id":"1"}]}`, "messages[0].role", "not supported"},
	{"tool calls", "chat", `{"model":"m","messages":[{"role":"assistant","content":"x","tool_calls":[{}]}]}`, "messages[0].tool_calls", "not supported"},
	{"no content", "chat", `{"model":"m","messages":[{"role":"user"}]}`, "messages[0].content", "missing"},
	{"null content", "chat", `{"model":"m","messages":[{"role":"assistant","content":null}]}`, "messages[0].content", "missing"},
	{"content type", "chat", `{"model":"m","messages":[{"role":"user","content":5}]}`, "messages[0].content", "expected a string or an array of parts, got a number"},
	{"no parts", "chat", `{"model":"m","messages":[{"role":"user","content":[]}]}`, "messages[0].content", "no parts"},
	{"image part", "chat", `{"model":"m","messages":[{"role":"user","content":[{"type":"text","text":"x"},{"type":"image_url","image_url":{"url":"x"}}]}]}`, "messages[0].content[1].type", `"image_url" is not supported`},
	{"part without text", "chat", `{"model":"m","messages":[{"role":"user","content":[{"type":"text"}]}]}`, "messages[0].content[0].text", "missing"},
	{"part without type", "chat", `{"model":"m","messages":[{"role":"user","content":[{"text":"x"}]}]}`, "messages[0].content[0].type", "missing"},
	{"name type", "chat", `{"model":"m","messages":[{"role":"user","content":"x","name":[]}]}`, "messages[0].name", "expected a string, got an array"},
	{"no prompt", "completion", `{"model":"m"}`, "prompt", "missing"},
	{"null prompt", "completion", `{"model":"m","prompt":null}`, "prompt", "missing"},
	{"empty prompt list", "completion", `{"model":"m","prompt":[]}`, "prompt", "missing or empty"},
	{"prompt type", "completion", `{"model":"m","prompt":{}}`, "prompt", "expected a string, an array"},
	{"prompt of booleans", "completion", `{"model":"m","prompt":[true]}`, "prompt[0]", "got a boolean"},
	{"mixed prompt", "completion", `{"model":"m","prompt":["a",1]}`, "prompt[1]", "can't mix"},
	{"mixed prompt tokens", "completion", `{"model":"m","prompt":[1,[2]]}`, "prompt[1]", "can't mix"},
	{"negative token", "completion", `{"model":"m","prompt":[1,-1]}`, "prompt[1]", "at least 0"},
	{"fractional token", "completion", `{"model":"m","prompt":[[1,1.5]]}`, "prompt[0][1]", "expected an integer, got 1.5"},
	{"huge token", "completion", `{"model":"m","prompt":[99999999999999999999]}`, "prompt[0]", "at least 0"},
	{"empty tokens", "completion", `{"model":"m","prompt":[[]]}`, "prompt[0]", "no tokens"},
	{"many prompts", "completion", `{"model":"m","prompt":["x"` + strings.Repeat(`,"x"`, MaxAllChoices) + `]}`, "prompt", "at most 128"},
	{"many choices", "completion", `{"model":"m","n":8,"prompt":["x"` + strings.Repeat(`,"x"`, 16) + `]}`, "prompt", "at most 128"},

	// types and ranges
	{"stream type", "both", `{"stream":"yes"}`, "stream", "expected a boolean, got a string"},
	{"stream number", "both", `{"stream":1}`, "stream", "expected a boolean, got a number"},
	{"stream_options type", "both", `{"stream":true,"stream_options":true}`, "stream_options", "expected an object"},
	{"include_usage type", "both", `{"stream_options":{"include_usage":1}}`, "stream_options.include_usage", "expected a boolean"},
	{"stream_options alone", "chat", chatWith(`"stream_options":{"include_usage":true}`), "stream_options", "only with stream"},
	{"n 0", "both", `{"n":0}`, "n", "between 1 and 8"},
	{"n 9", "both", `{"n":9}`, "n", "between 1 and 8, got 9"},
	{"n string", "both", `{"n":"2"}`, "n", "expected an integer, got a string"},
	{"n fraction", "both", `{"n":1.5}`, "n", "expected an integer, got 1.5"},
	{"n boolean", "both", `{"n":true}`, "n", "expected an integer, got a boolean"},
	{"max_tokens negative", "both", `{"max_tokens":-1}`, "max_tokens", "at least 0"},
	{"max_tokens 0", "chat", chatWith(`"max_tokens":0`), "max_tokens", "at least 1"},
	{"max_completion_tokens 0", "chat", chatWith(`"max_completion_tokens":0,"max_tokens":5`), "max_completion_tokens", "at least 1"},
	{"max_tokens 0 without echo", "completion", completionWith(`"max_tokens":0`), "max_tokens", "only with echo"},
	{"max_tokens beyond int64", "both", `{"max_tokens":1e30}`, "max_tokens", "got 1e30"},
	{"min_tokens above", "chat", chatWith(`"max_tokens":2,"min_tokens":3`), "min_tokens", "more than the 2"},
	{"min_tokens above the default", "completion", completionWith(`"min_tokens":17`), "min_tokens", "more than the 16"},
	{"stop empty", "both", `{"stop":""}`, "stop", "must not be empty"},
	{"stop empty in list", "both", `{"stop":["a",""]}`, "stop[1]", "must not be empty"},
	{"stop type", "both", `{"stop":5}`, "stop", "expected a string or an array of strings"},
	{"stop element", "both", `{"stop":[null]}`, "stop[0]", "expected a string, got null"},
	{"stop count", "both", `{"stop":["a"` + strings.Repeat(`,"a"`, MaxStops) + `]}`, "stop", "at most 16"},
	{"stop length", "both", `{"stop":"` + strings.Repeat("a", MaxStopBytes+1) + `"}`, "stop", "at most 1024"},
	{"stop_token_ids", "both", `{"stop_token_ids":["a"]}`, "stop_token_ids[0]", "expected an integer"},
	{"ignore_eos", "both", `{"ignore_eos":"true"}`, "ignore_eos", "expected a boolean"},
	{"temperature low", "both", `{"temperature":-0.1}`, "temperature", "between 0 and 2, got -0.1"},
	{"temperature high", "both", `{"temperature":2.01}`, "temperature", "between 0 and 2"},
	{"temperature huge", "both", `{"temperature":1e999}`, "temperature", "between 0 and 2"},
	{"temperature string", "both", `{"temperature":"hot"}`, "temperature", "expected a number, got a string"},
	{"top_p 0", "both", `{"top_p":0}`, "top_p", "above 0"},
	{"top_p 1.1", "both", `{"top_p":1.1}`, "top_p", "between 0 and 1"},
	{"top_k -2", "both", `{"top_k":-2}`, "top_k", "at least -1"},
	{"min_p", "both", `{"min_p":1.5}`, "min_p", "between 0 and 1"},
	{"presence_penalty", "both", `{"presence_penalty":3}`, "presence_penalty", "between -2 and 2"},
	{"frequency_penalty", "both", `{"frequency_penalty":-3}`, "frequency_penalty", "between -2 and 2"},
	{"repetition_penalty", "both", `{"repetition_penalty":0}`, "repetition_penalty", "above 0"},
	{"seed fraction", "both", `{"seed":1.5}`, "seed", "expected an integer, got 1.5"},
	{"seed beyond, with a point", "both", `{"seed":9223372036854775808.0}`, "seed", "integer of 64 bits"},
	{"token ids without end", "completion", `{"model":"m","prompt":[` + strings.Repeat("7,", MaxPromptTokens) + `7]}`, "prompt[1048576]", "at most 1048576"},
	{"token ids without end, in a list", "completion", `{"model":"m","prompt":[[1],[` + strings.Repeat("7,", MaxPromptTokens) + `7]]}`, "prompt[1][1048576]", "at most 1048576"},
	{"seed beyond", "both", `{"seed":9223372036854775808}`, "seed", "integer of 64 bits"},
	{"seed type", "both", `{"seed":"1"}`, "seed", "expected an integer, got a string"},
	{"logit_bias type", "both", `{"logit_bias":[]}`, "logit_bias", "expected an object, got an array"},
	{"logit_bias key", "both", `{"logit_bias":{"cat":1}}`, "logit_bias.cat", "must be a token id"},
	{"logit_bias range", "both", `{"logit_bias":{"5":101}}`, "logit_bias.5", "between -100 and 100"},
	{"logit_bias twice", "both", `{"logit_bias":{"5":1,"05":1}}`, "logit_bias.05", "given twice"},
	{"cache_salt empty", "both", `{"cache_salt":""}`, "cache_salt", "1 to 1024 bytes"},
	{"cache_salt type", "both", `{"cache_salt":1}`, "cache_salt", "expected a string"},
	{"logprobs number in chat", "chat", chatWith(`"logprobs":5`), "logprobs", "expected a boolean, got a number"},
	{"logprobs boolean", "completion", completionWith(`"logprobs":true`), "logprobs", "expected an integer, got a boolean"},
	{"logprobs 21", "completion", completionWith(`"logprobs":21`), "logprobs", "between 0 and 20"},
	{"top_logprobs 21", "chat", chatWith(`"logprobs":true,"top_logprobs":21`), "top_logprobs", "between 0 and 20"},
	{"top_logprobs alone", "chat", chatWith(`"top_logprobs":2`), "top_logprobs", "needs logprobs"},
	{"echo type", "completion", completionWith(`"echo":"x"`), "echo", "expected a boolean"},
	{"parse_special type", "completion", completionWith(`"parse_special":1`), "parse_special", "expected a boolean"},
	{"continue user", "chat", chatWith(`"continue_final_message":true`), "continue_final_message", "must be the assistant's"},
	{"no generation prompt", "chat", chatWith(`"add_generation_prompt":false`), "add_generation_prompt", "opposite"},

	// known, and not supported
	{"tools", "chat", chatWith(`"tools":[{"type":"function","function":{"name":"f"}}]`), "tools", "not supported"},
	{"tool_choice auto", "chat", chatWith(`"tool_choice":"auto"`), "tool_choice", "not supported"},
	{"tool_choice function", "chat", chatWith(`"tool_choice":{"type":"function"}`), "tool_choice", "not supported"},
	{"functions", "chat", chatWith(`"functions":[{"name":"f"}]`), "functions", "not supported"},
	{"function_call", "chat", chatWith(`"function_call":"auto"`), "function_call", "not supported"},
	{"response_format json", "both", `{"response_format":{"type":"json_object"}}`, "response_format", "not supported"},
	{"response_format schema", "both", `{"response_format":{"type":"json_schema","json_schema":{"name":"x","schema":{}}}}`, "response_format", "not supported"},
	{"response_format string", "both", `{"response_format":"text"}`, "response_format", "not supported"},
	{"audio", "chat", chatWith(`"audio":{"voice":"x","format":"mp3"}`), "audio", "not supported"},
	{"modalities", "chat", chatWith(`"modalities":["text","audio"]`), "modalities", "not supported"},
	{"web_search_options", "chat", chatWith(`"web_search_options":{}`), "web_search_options", "not supported"},
	{"best_of", "completion", completionWith(`"best_of":2`), "best_of", "not supported"},
	{"suffix", "completion", completionWith(`"suffix":"x"`), "suffix", "not supported"},
	{"guided_json", "both", `{"guided_json":{}}`, "guided_json", "not supported"},
	{"structured_outputs", "both", `{"structured_outputs":{"json":{}}}`, "structured_outputs", "not supported"},
	{"beam search", "both", `{"use_beam_search":true}`, "use_beam_search", "not supported"},
	{"special tokens shown", "both", `{"skip_special_tokens":false}`, "skip_special_tokens", "not supported"},
	{"stop shown", "both", `{"include_stop_str_in_output":true}`, "include_stop_str_in_output", "not supported"},
	{"prompt_logprobs", "both", `{"prompt_logprobs":1}`, "prompt_logprobs", "not supported"},
	{"truncation", "both", `{"truncate_prompt_tokens":5}`, "truncate_prompt_tokens", "not supported"},
	{"template kwargs", "chat", chatWith(`"chat_template_kwargs":{"enable_thinking":false}`), "chat_template_kwargs", "not supported"},
	{"own template", "chat", chatWith(`"chat_template":"{{x}}"`), "chat_template", "not supported"},
	{"chat echo", "chat", chatWith(`"echo":true`), "echo", "not supported"},
	{"chat parse_special", "chat", chatWith(`"parse_special":true`), "parse_special", "not supported"},
	{"broken in unsupported", "chat", `{"tools":[{]}`, "", "not valid JSON"},
}

type decoder func([]byte) (*Request, error)

var decoders = map[string]decoder{"chat": DecodeChat, "completion": DecodeCompletion}

func TestRefusals(t *testing.T) {
	for _, tt := range refusals {
		for api, decode := range decoders {
			if tt.api != api && tt.api != "both" {
				continue
			}
			t.Run(tt.name+"/"+api, func(t *testing.T) {
				q, err := decode([]byte(tt.body))
				var e *Error
				if !errors.As(err, &e) {
					t.Fatalf("got %+v and error %v, want an *Error", q, err)
				}
				if e.Status != 400 || e.Type != TypeInvalidRequest {
					t.Errorf("status %d, type %q", e.Status, e.Type)
				}
				param := e.Param
				if strings.HasPrefix(tt.name, "endless objects") { // x.x.x…
					param = param[:1]
				}
				if param != tt.param {
					t.Errorf("param is %q, want %q (%s)", param, tt.param, e.Message)
				}
				if !strings.Contains(e.Message, tt.message) {
					t.Errorf("message is %q, want %q in it", e.Message, tt.message)
				}
			})
		}
	}
}

func TestChatRequest(t *testing.T) {
	q, err := DecodeChat([]byte(`{
		"model": "m", "stream": true, "stream_options": {"include_usage": true, "continuous_usage_stats": true, "include_obfuscation": false},
		"messages": [
			{"role": "developer", "content": "be brief"},
			{"role": "user", "name": "ann", "content": [{"type": "text", "text": "a\u0000\ud83d\ude00"}, {"type": "text", "text": "b"}]},
			{"role": "assistant", "content": "c", "refusal": null, "tool_calls": null, "function_call": null, "audio": null, "annotations": []}
		],
		"n": 2.0, "max_tokens": 5, "max_completion_tokens": 1e1, "min_tokens": 1, "stop": ["x", "y"], "stop_token_ids": [7], "ignore_eos": true,
		"temperature": 0.5, "top_p": 0.9, "top_k": 40, "min_p": 0.1, "presence_penalty": -1, "frequency_penalty": 1, "repetition_penalty": 1.1,
		"logit_bias": {"50256": -100}, "seed": -9223372036854775808, "logprobs": true, "top_logprobs": 3, "cache_salt": "s",
		"continue_final_message": true, "add_generation_prompt": false,
		"tools": [], "tool_choice": "none", "response_format": { "type" : "text" }, "modalities": ["text"], "audio": null,
		"user": 5, "metadata": {"a": "b"}, "store": true, "service_tier": "auto", "parallel_tool_calls": true, "reasoning_effort": "low", "a_field_of_next_year": [{}]
	}`))
	if err != nil {
		t.Fatal(err)
	}
	seed := int64(math.MinInt64)
	want := &Request{
		Model: "m", Stream: true, IncludeUsage: true, ContinuousUsage: true, N: 2, MaxTokens: 10, MaxTokensExplicit: true, MinTokens: 1,
		Messages: []Message{{"system", "", "be brief"}, {"user", "ann", "a\x00😀\nb"}, {"assistant", "", "c"}},
		Stop:     []string{"x", "y"}, StopTokens: []int32{7}, IgnoreEOS: true,
		Temperature: 0.5, TopP: 0.9, TopK: 40, MinP: 0.1, PresencePenalty: -1, FrequencyPenalty: 1, RepetitionPenalty: 1.1,
		LogitBias: map[int32]float32{50256: -100}, Seed: &seed, Logprobs: true, TopLogprobs: 3, CacheSalt: "s", ContinueFinal: true,
	}
	q.maxTokens, q.maxCompletionTokens, q.streamOptions, q.addGenerationPrompt, q.topLogprobs = nil, nil, false, nil, nil
	if !reflect.DeepEqual(q, want) {
		t.Errorf("got  %+v\nwant %+v", q, want)
	}
}

func TestDefaults(t *testing.T) {
	q, err := DecodeChat([]byte(`{` + hello + `,"stream":null,"n":null,"max_tokens":null,"stop":null,"temperature":null,"logit_bias":null,"seed":null,"tools":null,"stream_options":null}`))
	if err != nil {
		t.Fatal(err)
	}
	want := &Request{Model: "m", Messages: []Message{{"user", "", "hi"}}, N: 1, MaxTokens: -1, Temperature: 1, TopP: 1, RepetitionPenalty: 1}
	if !reflect.DeepEqual(q, want) {
		t.Errorf("chat: got %+v\nwant %+v", q, want)
	}
	q, err = DecodeCompletion([]byte(`{"model":"m","prompt":"hi"}`))
	if err != nil {
		t.Fatal(err)
	}
	want.Messages, want.Prompts, want.MaxTokens = nil, []Prompt{{Text: "hi"}}, DefaultCompletionTokens
	if !reflect.DeepEqual(q, want) {
		t.Errorf("completion: got %+v\nwant %+v", q, want)
	}
}

func TestPromptForms(t *testing.T) {
	for body, want := range map[string][]Prompt{
		`"a"`:           {{Text: "a"}},
		`""`:            {{Text: ""}},
		`["a","b"]`:     {{Text: "a"}, {Text: "b"}},
		`[1,2.0,3]`:     {{Tokens: []int32{1, 2, 3}}},
		`[[1],[2,3]]`:   {{Tokens: []int32{1}}, {Tokens: []int32{2, 3}}},
		` [ "a" , "" ]`: {{Text: "a"}, {Text: ""}},
	} {
		q, err := DecodeCompletion([]byte(`{"model":"m","prompt":` + body + `}`))
		if err != nil || !reflect.DeepEqual(q.Prompts, want) {
			t.Errorf("%s: got %+v, %v; want %+v", body, q, err, want)
		}
	}
}

func TestAccepted(t *testing.T) {
	for _, tt := range []struct {
		api, members string
		check        func(q *Request) bool
	}{
		{"both", `"max_tokens":99999999999`, func(q *Request) bool { return q.MaxTokens == math.MaxInt32 && q.MaxTokensExplicit }},
		{"both", `"seed":12.0`, func(q *Request) bool { return *q.Seed == 12 }},
		{"both", `"top_k":-1`, func(q *Request) bool { return q.TopK == 0 }},
		{"both", `"stop":"x"`, func(q *Request) bool { return len(q.Stop) == 1 }},
		{"both", `"temperature":0`, func(q *Request) bool { return q.Temperature == 0 }},
		{"both", `"temperature":-0`, func(q *Request) bool { return q.Temperature == 0 }},
		{"both", `"stream":true,"stream_options":{"continuous_usage_stats":true}`, func(q *Request) bool { return !q.IncludeUsage && !q.ContinuousUsage }},
		{"both", `"skip_special_tokens":true,"length_penalty":1.0,"guided_json":null`, func(q *Request) bool { return true }},
		{"completion", `"max_tokens":0,"echo":true,"logprobs":10`, func(q *Request) bool { return q.MaxTokens == 0 && q.Echo && q.TopLogprobs == 10 }},
		{"completion", `"logprobs":0`, func(q *Request) bool { return q.Logprobs && q.TopLogprobs == 0 }},
		{"completion", `"best_of":1,"suffix":"","suffix_x":1`, func(q *Request) bool { return true }},
		{"completion", `"parse_special":true`, func(q *Request) bool { return q.ParseSpecial }},
		{"completion", `"max_tokens":20,"min_tokens":20`, func(q *Request) bool { return q.MinTokens == 20 }},
		{"chat", `"max_tokens":0,"max_completion_tokens":4`, func(q *Request) bool { return q.MaxTokens == 4 }},
		{"chat", `"logprobs":true,"top_logprobs":0`, func(q *Request) bool { return q.Logprobs && q.TopLogprobs == 0 }},
		{"chat", `"logprobs":false`, func(q *Request) bool { return !q.Logprobs }},
		{"chat", `"add_generation_prompt":true`, func(q *Request) bool { return !q.ContinueFinal }},
	} {
		if tt.api != "completion" {
			if q, err := DecodeChat([]byte(chatWith(tt.members))); err != nil || !tt.check(q) {
				t.Errorf("chat %s: %+v, %v", tt.members, q, err)
			}
		}
		if tt.api != "chat" {
			if q, err := DecodeCompletion([]byte(completionWith(tt.members))); err != nil || !tt.check(q) {
				t.Errorf("completion %s: %+v, %v", tt.members, q, err)
			}
		}
	}
}

// requestCorpus reads testdata/requests: bodies as clients send them (ok-*) and broken ones (bad-*).
func requestCorpus(t testing.TB) map[string][]byte {
	t.Helper()
	files, err := filepath.Glob("testdata/requests/*.json")
	if err != nil || len(files) == 0 {
		t.Fatalf("no request corpus: %v", err)
	}
	corpus := map[string][]byte{}
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		corpus[strings.TrimSuffix(filepath.Base(f), ".json")] = b
	}
	return corpus
}

func TestRequestCorpus(t *testing.T) {
	for name, body := range requestCorpus(t) {
		decode := DecodeChat
		if strings.Contains(name, "completion") {
			decode = DecodeCompletion
		}
		_, err := decode(body)
		if ok := strings.HasPrefix(name, "ok-"); ok != (err == nil) {
			t.Errorf("%s: error %v", name, err)
		}
	}
}

func FuzzDecodeRequest(f *testing.F) {
	for _, body := range requestCorpus(f) {
		f.Add(body)
	}
	for _, tt := range refusals {
		if len(tt.body) < 2000 {
			f.Add([]byte(tt.body))
		}
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		for api, decode := range decoders {
			q, err := decode(body)
			if err != nil {
				var e *Error
				if !errors.As(err, &e) || e.Status != 400 || !json.Valid(e.Append(nil)) {
					t.Fatalf("%s: error %#v", api, err)
				}
				continue
			}
			if !json.Valid(body) {
				t.Fatalf("%s: took what is not JSON", api)
			}
			checkRanges(t, api, q)
		}
	})
}

// checkRanges fails where a decoded request breaks a promise of Request.
func checkRanges(t *testing.T, api string, q *Request) {
	t.Helper()
	in := func(v, lo, hi float64) bool { return v >= lo && v <= hi }
	ok := q.Model != "" && q.N >= 1 && q.N <= MaxChoices && q.TopK >= 0 && in(q.Temperature, 0, 2) && in(q.TopP, 1e-320, 1) && in(q.MinP, 0, 1) &&
		in(q.PresencePenalty, -2, 2) && in(q.FrequencyPenalty, -2, 2) && in(q.RepetitionPenalty, 1e-320, 10) &&
		len(q.Stop) <= MaxStops && len(q.LogitBias) <= MaxBiases && q.TopLogprobs >= 0 && q.TopLogprobs <= MaxTopLogprobs &&
		q.MinTokens >= 0 && (q.MaxTokens < 0 || q.MinTokens <= q.MaxTokens) && (q.TopLogprobs == 0 || q.Logprobs) && (!q.ContinuousUsage || q.Stream)
	for _, s := range q.Stop {
		ok = ok && s != ""
	}
	if api == "chat" {
		ok = ok && len(q.Messages) > 0 && q.Prompts == nil && q.MaxTokens != 0
	} else {
		ok = ok && len(q.Prompts) > 0 && q.Messages == nil && len(q.Prompts)*q.N <= MaxAllChoices
	}
	if !ok {
		t.Fatalf("%s: broken promise in %+v", api, q)
	}
}

func BenchmarkDecodeChat(b *testing.B) {
	body := []byte(chatWith(`"max_completion_tokens":8,"stream":true,"stream_options":{"include_usage":true},"temperature":0`))
	body = []byte(strings.Replace(string(body), `"hi"`, `"`+strings.Repeat("word ", 700)+`"`, 1))
	b.SetBytes(int64(len(body)))
	for b.Loop() {
		if _, err := DecodeChat(body); err != nil {
			b.Fatal(err)
		}
	}
}

package engine

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"unicode/utf8"

	"cotenant/internal/chat"
	"cotenant/internal/server"
	"cotenant/internal/tokenizer"
)

// cut is the plain reference: the text in front of the stop string that ends first, the longest of those.
func cut(text string, stops []string) (string, string) {
	for end := 1; end <= len(text); end++ {
		best := ""
		for _, stop := range stops {
			if strings.HasSuffix(text[:end], stop) && len(stop) > len(best) {
				best = stop
			}
		}
		if best != "" {
			return text[:end-len(best)], best
		}
	}
	return text, ""
}

// tell feeds tokens to an answer, and returns what a reader sees.
func tell(t testing.TB, tok *tokenizer.Tokenizer, s server.Sampling, tokens []int32, last finish) output {
	t.Helper()
	a := newAnswer(tok, &s, 0, 1)
	c := &choice{r: &request{s: s}}
	var o output
	for i, id := range tokens {
		ev := event{choice: c, hasToken: true, token: scored{id: id}}
		if i == len(tokens)-1 {
			ev.finish = last
		}
		a.take(&ev)
		chunk, ok := a.chunk()
		if !ok {
			continue
		}
		if !utf8.ValidString(chunk.Text) {
			t.Fatalf("chunk %q is not whole UTF-8", chunk.Text)
		}
		o.text += chunk.Text
		o.tokens = append(o.tokens, chunk.Tokens...)
		o.finish, o.stop, o.usage = chunk.FinishReason, chunk.StopReason, chunk.Usage
		o.chunks++
		if a.finish != running {
			break
		}
	}
	return o
}

func checkAnswer(t testing.TB, tok *tokenizer.Tokenizer, stops []string, tokens []int32) {
	t.Helper()
	whole := tok.ToText(tokens)
	text, stop := cut(whole, stops)
	o := tell(t, tok, server.Sampling{Stop: stops}, tokens, finishLength)
	reason := "length"
	if stop != "" {
		reason = "stop"
	}
	if o.text != text || o.stop != stop || o.finish != reason {
		t.Fatalf("tokens %q, stops %q: text %q, %s by %q; want %q, %s by %q", whole, stops, o.text, o.finish, o.stop, text, reason, stop)
	}
	var joined []byte
	for i, k := range o.tokens {
		if k.ID != tokens[i] {
			t.Fatalf("token %d of the chunks is %d, want %d", i, k.ID, tokens[i])
		}
		joined = append(joined, k.Bytes...)
	}
	if utf8.Valid(tok.Decode(tokens)) { // one byte a token: they are exactly the text
		if string(joined) != text {
			t.Fatalf("tokens %q of the text %q", joined, text)
		}
	}
	if stop == "" && len(o.tokens) != len(tokens) {
		t.Fatalf("%d of %d tokens became visible", len(o.tokens), len(tokens))
	}
}

func TestStopStringsAgainstReference(t *testing.T) {
	tok := testTokenizer(t, false)
	r := rand.New(rand.NewPCG(1, 9))
	piece := func(n int) string {
		var b strings.Builder
		for range 1 + r.IntN(n) {
			b.WriteString([]string{"a", "b", "ab", "é", "€", "😀"}[r.IntN(6)])
		}
		return b.String()
	}
	for range 4000 {
		var stops []string
		for range r.IntN(4) {
			stops = append(stops, piece(4))
		}
		tokens := ids(piece(20))
		if r.IntN(4) == 0 {
			tokens[r.IntN(len(tokens))] = 0x80 + r.Int32N(128)
		}
		checkAnswer(t, tok, stops, tokens)
	}
}

func FuzzAnswer(f *testing.F) {
	tok := testTokenizer(f, false)
	f.Add([]byte("some text with a stop"), "stop", "top")
	f.Add([]byte("caf\xc3\xa9 \xf0\x9f\x98\x80\xf0\x9f"), "é ", "\ufffd")
	f.Add([]byte("aaaaab"), "aab", "aaab")
	f.Fuzz(func(t *testing.T, text []byte, stop, other string) {
		if len(text) == 0 || stop == "" || other == "" || !utf8.ValidString(stop) || !utf8.ValidString(other) {
			return // Generate refuses such stop strings
		}
		checkAnswer(t, tok, []string{stop, other}, ids(string(text)))
	})
}

func TestHeldTextComesAsSoonAsItCan(t *testing.T) {
	tok := testTokenizer(t, false)
	s := server.Sampling{Stop: []string{"END"}}
	a := newAnswer(tok, &s, 0, 1)
	c := &choice{r: &request{s: s}}
	for _, step := range []struct {
		token int32
		text  string
	}{{'x', "x"}, {'E', ""}, {'N', ""}, {'x', "ENx"}, {0xc3, ""}, {0xa9, "é"}, {'E', ""}, {'E', "E"}, {'N', ""}} {
		a.take(&event{choice: c, hasToken: true, token: scored{id: step.token}})
		chunk, ok := a.chunk()
		if chunk.Text != step.text || ok != (step.text != "") {
			t.Fatalf("token %q gives %q, want %q", rune(step.token), chunk.Text, step.text)
		}
	}
	a.take(&event{choice: c, hasToken: true, token: scored{id: 'D'}})
	chunk, _ := a.chunk()
	if chunk.Text != "" || chunk.FinishReason != "stop" || chunk.StopReason != "END" || len(chunk.Tokens) != 0 || chunk.Usage.CompletionTokens != 10 {
		t.Errorf("the end is %+v", chunk)
	}
}

func TestControlTokensAreNoText(t *testing.T) {
	tok := testTokenizer(t, false)
	o := tell(t, tok, server.Sampling{Stop: []string{"<|"}}, []int32{'a', controlID, 'b', eosID}, finishStop)
	if o.text != "ab" || len(o.tokens) != 4 || len(o.tokens[1].Bytes) != 0 || len(o.tokens[3].Bytes) != 0 || o.usage.CompletionTokens != 4 || o.finish != "stop" {
		t.Errorf("%+v", o)
	}
	o = tell(t, tok, server.Sampling{}, []int32{0xe2, controlID, 0x82, 0xac, 'x'}, finishLength)
	if o.text != "€x" || len(o.tokens) != 5 {
		t.Errorf("a control token inside a character: %+v", o)
	}
}

func TestEndOfAnswer(t *testing.T) {
	const prompt = "say it"
	for _, c := range []struct {
		name, script string
		s            server.Sampling
		text, finish string
		stop         string
		tokens       int
	}{
		{"eos", "hello", server.Sampling{MaxTokens: 50}, "hello", "stop", "", 6},
		{"eos ignored", "hi", server.Sampling{MaxTokens: 4, IgnoreEOS: true}, "hi", "length", "", 4},
		{"length", "hello", server.Sampling{MaxTokens: 3}, "hel", "length", "", 3},
		{"length at eos", "hello", server.Sampling{MaxTokens: 6}, "hello", "stop", "", 6},
		{"stop string", "one, two, three", server.Sampling{MaxTokens: 50, Stop: []string{", th", "x"}}, "one, two", "stop", ", th", 12},
		{"stop string at the length", "abc", server.Sampling{MaxTokens: 3, Stop: []string{"bc"}}, "a", "stop", "bc", 3},
		{"start of a stop string at eos", "one,", server.Sampling{MaxTokens: 50, Stop: []string{", th"}}, "one,", "stop", "", 5},
		{"start of a stop string at the length", "one, t", server.Sampling{MaxTokens: 6, Stop: []string{", th"}}, "one, t", "length", "", 6},
		{"stop token", "abcd", server.Sampling{MaxTokens: 50, StopTokens: []int32{'c'}}, "ab", "stop", "", 3},
		{"half a character at the end", "a\xf0\x9f", server.Sampling{MaxTokens: 3}, "a\ufffd", "length", "", 3},
		{"emoji", "a😀b", server.Sampling{MaxTokens: 50}, "a😀b", "stop", "", 7},
		{"stop string too early", "abxabc", server.Sampling{MaxTokens: 50, MinTokens: 4, Stop: []string{"ab"}}, "abx", "stop", "ab", 5},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := newFake()
			m.eosOdds = 0
			m.script = scripted(c.script, len(prompt))
			e := newEngine(t, Config{}, m)
			o := must(t, e, ids(prompt), c.s)
			if c.name == "eos ignored" { // behind the script comes EOS for ever: it is no text
				if o.text != c.text || o.usage.CompletionTokens != 4 || o.finish != c.finish {
					t.Errorf("%+v", o)
				}
				return
			}
			if o.text != c.text || o.finish != c.finish || o.stop != c.stop || o.usage.CompletionTokens != c.tokens {
				t.Errorf("%q, %s by %q after %d tokens", o.text, o.finish, o.stop, o.usage.CompletionTokens)
			}
			waitFor(t, "the count", func() bool { return e.Stats().GeneratedTokens == uint64(c.tokens) })
		})
	}
}

func TestMinTokensHoldsEOSBack(t *testing.T) {
	m := newFake()
	m.eosOdds = 1
	e := newEngine(t, Config{}, m)
	if o := must(t, e, ids("a"), server.Sampling{MaxTokens: 50, MinTokens: 7}); o.usage.CompletionTokens != 8 || o.finish != "stop" {
		t.Errorf("%d tokens, %s; want 7 and the end", o.usage.CompletionTokens, o.finish)
	}
}

func TestStopStringEndsAnUnreadStream(t *testing.T) {
	m := newFake()
	m.eosOdds = 0
	m.script = scripted(strings.Repeat("a", 300), 1)
	e := newEngine(t, Config{}, m)
	st, err := e.Generate(t.Context(), server.Prompt{Tokens: ids("x")}, server.Sampling{MaxTokens: 300, Stop: []string{"aaaaa"}})
	if err != nil {
		t.Fatal(err)
	}
	waitFor(t, "the end of a stream that nobody reads", func() bool { return e.Stats().Running == 0 })
	if out, err := collect(st, 1); err != nil || out[0].text != "" || out[0].usage.CompletionTokens != 5 {
		t.Errorf("%+v, %v", out, err)
	}
}

func TestPromptLogprobs(t *testing.T) {
	m := newFake()
	m.eosOdds = 0
	e := newEngine(t, Config{MaxBatchTokens: 16}, m)
	prompt := append(rep("abc", 20), controlID, 'x')
	for _, most := range []int{0, 2} {
		s := server.Sampling{MaxTokens: most, PromptLogprobs: true, Logprobs: true, TopLogprobs: 2, N: 2}
		outs, err := generate(e, prompt, s)
		if err != nil {
			t.Fatal(err)
		}
		o := outs[0]
		if len(o.prompt) != len(prompt) || len(o.tokens) != most || o.usage.CompletionTokens != most || o.finish != "length" || outs[1].prompt != nil {
			t.Fatalf("max_tokens %d: %d prompt tokens, %d tokens, %s", most, len(o.prompt), len(o.tokens), o.finish)
		}
		for i, k := range o.prompt {
			if k.ID != prompt[i] || k.First != (i == 0) || len(k.Bytes) == 0 {
				t.Fatalf("prompt token %d is %+v", i, k)
			}
			if i == 0 {
				continue
			}
			want := logprobAlone(t, m, prompt[:i], prompt[i])
			if math.Abs(float64(k.Logprob)-want) > 1e-5 || len(k.Top) != 2 || k.Top[0].Logprob < k.Top[1].Logprob {
				t.Fatalf("prompt token %d has log-probability %v, want %v; %+v", i, k.Logprob, want, k.Top)
			}
		}
		for i, k := range o.tokens {
			if want := logprobAlone(t, m, append(prompt[:len(prompt):len(prompt)], o.ids()[:i]...), k.ID); math.Abs(float64(k.Logprob)-want) > 1e-5 {
				t.Fatalf("token %d has log-probability %v, want %v", i, k.Logprob, want)
			}
		}
	}
	one := must(t, e, ids("x"), server.Sampling{PromptLogprobs: true})
	if len(one.prompt) != 1 || !one.prompt[0].First {
		t.Errorf("a prompt of one token: %+v", one.prompt)
	}
}

// logprobAlone computes what the fake says of a token after a history, in float64 and over the vocabulary alone.
func logprobAlone(t testing.TB, m *fakeModel, history []int32, id int32) float64 {
	t.Helper()
	var h uint64
	for pos, tok := range history {
		h = mix(h, mix(uint64(tok)+1, uint64(pos)))
	}
	row := make([]float32, vocabSize+padding)
	m.fill(row, h, len(history)-1, false)
	var sum float64
	for _, v := range row[:vocabSize] {
		sum += math.Exp(float64(v))
	}
	return float64(row[id]) - math.Log(sum)
}

const testTemplate = `{% for m in messages %}{% if m.role == 'tool' %}{{ raise_exception('no tools here') }}{% endif -%}
<|begin|>{{ m.role }}
{{ m.content }}{% if m.name %} ({{ m.name }}){% endif %}<|end|>{% endfor %}{% if add_generation_prompt %}<|begin|>{% endif %}`

func TestPrepare(t *testing.T) {
	for _, addBOS := range []bool{false, true} {
		m := newFake()
		tmpl, err := chat.New(testTemplate, chat.Options{})
		if err != nil {
			t.Fatal(err)
		}
		e, err := New(Config{ID: "fake"}, func() (Runtime, error) {
			return Runtime{Model: m, Device: m, LogitsWidth: vocabSize + padding, Tokenizer: testTokenizer(t, addBOS), Template: tmpl}, nil
		})
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = e.Close() }()
		bos := []int32(nil)
		if addBOS {
			bos = []int32{bosID}
		}
		plain := func(text string) []int32 { return append(bos[:len(bos):len(bos)], ids(text)...) }
		for _, c := range []struct {
			in   server.Input
			want []int32
			text string
		}{
			{server.Input{HasText: true, Text: "hi"}, plain("hi"), "hi"},
			{server.Input{HasText: true}, bos, ""},
			{server.Input{HasText: true, Text: "<|end|>"}, plain("<|end|>"), "<|end|>"},
			{server.Input{HasText: true, Text: "<|end|>", ParseSpecial: true}, append(bos[:len(bos):len(bos)], controlID), "<|end|>"},
			{server.Input{HasText: true, Text: "<|begin|>a", ParseSpecial: true}, []int32{bosID, 'a'}, "<|begin|>a"},
			{server.Input{Tokens: []int32{'a', controlID}}, []int32{'a', controlID}, "a<|end|>"},
			{server.Input{Messages: []server.Message{{Role: "user", Content: "<|end|>"}}},
				append(append([]int32{bosID}, ids("user\n<|end|>")...), controlID, bosID), "<|begin|>user\n<|end|><|end|><|begin|>"},
			{server.Input{Messages: []server.Message{{Role: "assistant", Content: "so"}}, ContinueFinal: true},
				append([]int32{bosID}, ids("assistant\nso")...), "<|begin|>assistant\nso"},
		} {
			p, err := e.Prepare(t.Context(), c.in)
			if err != nil || fmt.Sprint(p.Tokens) != fmt.Sprint(c.want) || p.Text != c.text {
				t.Errorf("add BOS %v, %+v: %v %q, %v; want %v", addBOS, c.in, p.Tokens, p.Text, err, c.want)
			}
		}
		_, err = e.Prepare(t.Context(), server.Input{Messages: []server.Message{{Role: "tool"}}})
		if !isRequestError(err) || !strings.Contains(err.Error(), "no tools here") {
			t.Errorf("a template's error: %v", err)
		}
		if got := e.Model(); got.ID != "fake" || got.ContextLength != 400 || got.VocabSize != vocabSize || got.Created.IsZero() {
			t.Errorf("model %+v", got)
		}
	}
	e := newEngine(t, Config{}, newFake())
	if _, err := e.Prepare(t.Context(), server.Input{Messages: []server.Message{{Role: "user"}}}); !isRequestError(err) {
		t.Errorf("no template: %v", err)
	}
}

func isRequestError(err error) bool {
	_, ok := err.(*server.RequestError)
	return ok
}

// However many steps the loop is ahead of the pump, each token that shows text is a chunk of its own: a client counts and
// times tokens by chunks.
func TestNoTokensShareAChunk(t *testing.T) {
	tok := testTokenizer(t, false)
	const text = "seven tokens"
	e := &Engine{rt: Runtime{Tokenizer: tok}}
	r := &request{e: e, unhook: func() bool { return true }, wake: make(chan struct{}, 1), ready: make(chan struct{}, 1)}
	c := &choice{r: r, answer: newAnswer(tok, &r.s, 0, 1)}
	r.choices = []*choice{c}
	tokens := ids(text)
	for i, id := range tokens {
		ev := event{choice: c, hasToken: true, token: scored{id: id}}
		if i == len(tokens)-1 {
			ev.finish = finishLength
		}
		r.send(ev)
	}
	r.pump() // everything has piled up
	if len(r.chunks) != len(tokens) {
		t.Errorf("%d tokens came in %d chunks", len(tokens), len(r.chunks))
	}
}

package soak

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"cotenant/internal/ledger"
)

// want is what one attempt must end in. Times are ms after sent; -1 is null. Zero quirks aren't asked about.
type want struct {
	outcome    ledger.Outcome
	ttft       int64
	content    int64
	last       int64
	deltas     int64
	prompt     int64 // -1: not exposed
	completion int64
	buffered   bool
	quirks     ledger.Quirk // must all be set
	finish     string
	done       bool
	wasted     int64
	retry      bool
}

// good is the normal answer of facts/clients: first content at 100 ms, eight tokens 20 ms apart.
var good = want{outcome: ledger.OK, ttft: 100, content: 100, last: 240, deltas: 8, prompt: 200, completion: 8, finish: "stop", done: true}

func but(change func(w *want)) want {
	w := good
	change(&w)
	return w
}

// bad is an attempt that told nothing.
func bad(o ledger.Outcome, change ...func(w *want)) want {
	w := want{outcome: o, ttft: -1, content: -1, last: -1, prompt: -1, completion: -1}
	for _, c := range change {
		c(&w)
	}
	return w
}

const eight = "one two three four five six seven eight"

const (
	first = 100 * time.Millisecond
	gap   = 20 * time.Millisecond
)

// eightContents sends the first of eight tokens, and the others 20 ms apart.
func eightContents(w *reply) {
	for i, word := range strings.SplitAfter(eight, " ") {
		if i > 0 {
			w.sleep(gap)
		}
		w.send(w.content(word))
	}
}

// misbehaviours are servers seen in the wild. The names are those of the notes on other clients and of reader quirks.
var misbehaviours = []struct {
	name   string
	answer func(w *reply)
	want   want
}{
	{"a normal", func(w *reply) { w.normal(eight, first, gap) }, good},
	{"b error object in a 200 stream", func(w *reply) {
		w.begin()
		w.send(`data: {"error":{"message":"out of memory","code":500}}` + "\n\n")
	}, bad(ledger.InbandError, func(w *want) { w.retry = true })},
	{"b1 error event", func(w *reply) {
		w.begin()
		w.send("event: error\ndata: {\"message\":\"boom\"}\n\n" + done)
	}, bad(ledger.InbandError, func(w *want) { w.retry, w.done = true, true })},
	{"b2 error after three contents", func(w *reply) {
		w.begin()
		w.sleep(first)
		w.send(w.role() + w.content("one "))
		w.sleep(gap)
		w.send(w.content("two "))
		w.sleep(gap)
		w.send(w.content("three "))
		w.send(`data: {"error":{"message":"lost","code":400}}` + "\n\n" + done)
	}, want{outcome: ledger.InbandError, ttft: 100, content: 100, last: 140, deltas: 3, prompt: -1, completion: -1, wasted: 3, done: true}},
	{"b3 error and the stream stays open", func(w *reply) {
		w.begin()
		w.send(`data: {"error":"boom"}` + "\n\n")
		w.sleep(time.Hour)
	}, bad(ledger.InbandError, func(w *want) { w.retry = true })},
	{"b4 finish_reason error", func(w *reply) {
		w.begin()
		w.sleep(first)
		w.send(w.content("one ") + w.finish("error") + done)
	}, want{outcome: ledger.InbandError, ttft: 100, content: 100, last: 100, deltas: 1, prompt: -1, completion: -1, wasted: 1, finish: "error", done: true, retry: true}},
	{"c three contents, clean end", func(w *reply) {
		w.begin()
		w.sleep(first)
		w.send(w.role() + w.content("one "))
		w.sleep(gap)
		w.send(w.content("two "))
		w.sleep(gap)
		w.send(w.content("three "))
	}, want{outcome: ledger.Truncated, ttft: 100, content: 100, last: 140, deltas: 3, prompt: -1, completion: -1, wasted: 3, retry: true}},
	{"c2 role only, clean end", func(w *reply) {
		w.begin()
		w.send(w.role())
	}, bad(ledger.Truncated, func(w *want) { w.retry, w.quirks = true, ledger.QuirkRoleOnly })},
	{"c3 headers only", func(w *reply) { w.begin() }, bad(ledger.Truncated, func(w *want) { w.retry = true })},
	{"c4 end inside an event", func(w *reply) {
		w.begin()
		w.sleep(first)
		w.send(w.content("one ") + `data: {"choices":[{"del`)
	}, want{outcome: ledger.Truncated, ttft: 100, content: 100, last: 100, deltas: 1, prompt: -1, completion: -1, wasted: 1, retry: true}},
	{"d eight empty contents and usage", func(w *reply) {
		w.begin()
		for range 8 {
			w.sleep(gap)
			w.send(w.content(""))
		}
		w.send(w.finish("stop") + w.usage(200, 8) + done)
	}, bad(ledger.Empty, func(w *want) { w.prompt, w.completion, w.finish, w.done, w.wasted = 200, 8, "stop", true, 8 })},
	{"d2 the same, usage 0", func(w *reply) {
		w.begin()
		for range 8 {
			w.send(w.content(""))
		}
		w.send(w.finish("stop") + w.usage(200, 0) + done)
	}, bad(ledger.Empty, func(w *want) { w.prompt, w.completion, w.finish, w.done = 200, 0, "stop", true })},
	{"e no usage", func(w *reply) {
		w.begin()
		w.sleep(first)
		w.send(w.role())
		eightContents(w)
		w.send(w.finish("stop") + done)
	}, but(func(w *want) { w.prompt, w.completion = -1, -1 })},
	{"f whole answer in one write", func(w *reply) {
		w.begin()
		w.sleep(240 * time.Millisecond)
		var all strings.Builder
		for word := range strings.SplitAfterSeq(eight, " ") {
			all.WriteString(w.content(word))
		}
		w.send(w.role() + all.String() + w.finish("stop") + w.usage(200, 8) + done)
	}, but(func(w *want) { w.ttft, w.content, w.last, w.buffered = 240, 240, 240, true })},
	{"h 429", func(w *reply) {
		w.Header().Set("Retry-After", "1")
		w.WriteHeader(429)
		w.send(`{"error":{"message":"slow down"}}`)
	}, bad(ledger.HTTP429, func(w *want) { w.retry = true })},
	{"i usage 8, three contents", func(w *reply) {
		w.begin()
		w.sleep(first)
		w.send(w.role() + w.content("one "))
		w.sleep(gap)
		w.send(w.content("two "))
		w.sleep(gap)
		w.send(w.content("three ") + w.finish("stop") + w.usage(200, 8) + done)
	}, but(func(w *want) { w.last, w.deltas, w.quirks = 140, 3, ledger.QuirkMultiTokenDelta })},
	{"j role at once, content at 300 ms", func(w *reply) {
		w.begin()
		w.send(w.role())
		w.sleep(300 * time.Millisecond)
		eightContents(w)
		w.send(w.finish("stop") + w.usage(200, 8) + done)
	}, but(func(w *want) { w.ttft, w.content, w.last, w.quirks = 300, 300, 440, ledger.QuirkRoleOnly })},
	{"k reasoning, then content", func(w *reply) {
		w.begin()
		for i := range 3 {
			w.sleep(100 * time.Millisecond)
			w.send(w.delta([]string{`"reasoning_content":"x"`, `"reasoning":"y","content":""`, `"reasoning_content":"z","content":null`}[i]))
		}
		w.sleep(100 * time.Millisecond)
		w.send(w.content("one") + w.finish("stop") + w.usage(200, 4) + done)
	}, but(func(w *want) {
		w.content, w.last, w.deltas, w.completion, w.quirks = 400, 400, 4, 4, ledger.QuirkReasoning
	})},
	{"k2 nothing but reasoning", func(w *reply) {
		w.begin()
		w.sleep(first)
		w.send(w.delta(`"reasoning_content":"x"`) + w.finish("length") + w.usage(200, 1) + done)
	}, but(func(w *want) { w.content, w.last, w.deltas, w.completion, w.finish = -1, 100, 1, 1, "length" })},
	{"m eight tokens in two contents", func(w *reply) {
		w.begin()
		w.sleep(first)
		w.send(w.role() + w.content("one two three four "))
		w.sleep(gap)
		w.send(w.content("five six seven eight") + w.finish("stop") + w.usage(200, 8) + done)
	}, but(func(w *want) { w.last, w.deltas, w.quirks = 120, 2, ledger.QuirkMultiTokenDelta })},
	{"n an event that isn't JSON", func(w *reply) {
		w.begin()
		w.sleep(first)
		w.send(w.role() + w.content("one ") + "data: {\"choices\":[oops\n\n")
		w.send(w.finish("stop") + w.usage(200, 1) + done)
	}, want{outcome: ledger.BadJSON, ttft: 100, content: 100, last: 100, deltas: 1, prompt: 200, completion: 1, finish: "stop", done: true, wasted: 1}},
	{"p comments before the content", func(w *reply) {
		w.begin()
		for range 3 {
			w.send(": OPENROUTER PROCESSING\n\n")
			w.sleep(80 * time.Millisecond)
		}
		eightContents(w)
		w.send(w.finish("stop") + w.usage(200, 8) + done)
	}, but(func(w *want) { w.ttft, w.content, w.last, w.quirks = 240, 240, 380, ledger.QuirkComment })},
	{"q tool deltas", func(w *reply) {
		w.begin()
		w.sleep(first)
		w.send(w.delta(`"tool_calls":[{"function":{"name":"f","arguments":"{"}}]`))
		w.sleep(gap)
		w.send(w.delta(`"tool_calls":[{"index":0,"function":{"arguments":"}"}}]`) + w.finish("tool_calls") + w.usage(200, 2) + done)
	}, but(func(w *want) {
		w.content, w.last, w.deltas, w.completion, w.finish, w.quirks = -1, 120, 2, 2, "tool_calls", ledger.QuirkTools
	})},
	{"s CRLF, no space, events cut in three", func(w *reply) {
		w.begin()
		w.sleep(first)
		raw := func(text string) {
			text = strings.ReplaceAll(strings.ReplaceAll(text, "data: ", "data:"), "\n", "\r\n")
			third := len(text) / 3
			w.send(text[:third])
			w.send(text[third : 2*third])
			w.send(text[2*third:])
		}
		for i, word := range strings.SplitAfter(eight, " ") {
			if i > 0 {
				w.sleep(gap)
			}
			raw(w.content(word))
		}
		raw(w.finish("stop") + w.usage(200, 8) + done)
	}, but(func(w *want) { w.quirks = ledger.QuirkCR | ledger.QuirkNoSpace })},
	{"s2 CR alone, byte-order mark, JSON over two lines", func(w *reply) {
		w.begin()
		w.sleep(first)
		w.send("\uFEFFdata: {\"choices\":\rdata: [{\"delta\":{\"content\":\"x\"}}]}\r\r")
		w.send(strings.ReplaceAll(w.finish("stop")+w.usage(200, 1)+done, "\n", "\r"))
	}, but(func(w *want) {
		w.last, w.deltas, w.completion, w.quirks = 100, 1, 1, ledger.QuirkCR|ledger.QuirkBOM|ledger.QuirkMultiLine
	})},
	{"t character split between writes", func(w *reply) {
		w.begin()
		w.sleep(first)
		text := w.content("中文")
		cut := strings.Index(text, "中") + 1
		w.send(text[:cut])
		w.sleep(gap)
		w.send(text[cut:] + w.finish("stop") + w.usage(200, 1) + done)
	}, but(func(w *want) { w.ttft, w.content, w.last, w.deltas, w.completion = 120, 120, 120, 1, 1 })},
	{"u usage on each chunk, none at the end", func(w *reply) {
		w.begin()
		w.sleep(first)
		for i, word := range strings.SplitAfter(eight, " ") {
			if i > 0 {
				w.sleep(gap)
			}
			w.send(w.chunk(`{"index":0,"delta":{"content":"`+word+`"},"finish_reason":null}`, fmt.Sprintf(`,"usage":{"prompt_tokens":200,"completion_tokens":%d}`, i+1)))
		}
		w.send(w.finish("stop") + done)
	}, but(func(w *want) { w.quirks = ledger.QuirkContinuousUsage | ledger.QuirkUsageInContent })},
	{"u2 usage grows before text", func(w *reply) {
		w.begin()
		w.sleep(first)
		w.send(w.chunk(`{"index":0,"delta":{"content":""}}`, `,"usage":{"prompt_tokens":200,"completion_tokens":1}`))
		w.sleep(gap)
		w.send(w.chunk(`{"index":0,"delta":{"content":"x"}}`, `,"usage":{"prompt_tokens":200,"completion_tokens":2}`) + w.finish("stop") + done)
	}, but(func(w *want) { w.content, w.last, w.deltas, w.completion = 120, 120, 1, 2 })},
	{"u3 usage null in each chunk", func(w *reply) {
		w.begin()
		w.sleep(first)
		w.send(w.chunk(`{"index":0,"delta":{"content":"x"},"finish_reason":"stop"}`, `,"usage":null`) + w.usage(200, 1) + done)
	}, but(func(w *want) {
		w.last, w.deltas, w.completion, w.quirks = 100, 1, 1, ledger.QuirkNullUsage|ledger.QuirkEmptyChoices
	})},
	{"15 no [DONE]", func(w *reply) {
		w.begin()
		w.sleep(first)
		eightContents(w)
		w.send(w.usage(200, 8) + w.finish("stop"))
	}, but(func(w *want) { w.done, w.quirks = false, ledger.QuirkNoDone })},
	{"15 last event without a blank line", func(w *reply) {
		w.begin()
		w.sleep(first)
		eightContents(w)
		w.send(w.usage(200, 8) + w.finish("stop") + "data: [DONE]")
	}, but(func(w *want) { w.quirks = ledger.QuirkNoFinalBlank })},
	{"16 [DONE] without finish_reason", func(w *reply) {
		w.begin()
		w.sleep(first)
		eightContents(w)
		w.send(w.usage(200, 8) + done)
	}, but(func(w *want) { w.finish, w.quirks = "", ledger.QuirkNoFinish })},
	{"23 invalid UTF-8", func(w *reply) {
		w.begin()
		w.sleep(first)
		w.send("data: {\"choices\":[{\"delta\":{\"content\":\"a\xff\"},\"finish_reason\":\"stop\"}]}\n\n" + w.usage(200, 1) + done)
	}, but(func(w *want) { w.last, w.deltas, w.completion, w.quirks = 100, 1, 1, ledger.QuirkBadUTF8 })},
	{"24 an event of 2 MiB", func(w *reply) {
		w.begin()
		w.sleep(first)
		w.send(w.content(strings.Repeat("x", 2<<20)) + w.finish("length") + w.usage(200, 1) + done)
	}, but(func(w *want) { w.last, w.deltas, w.completion, w.finish = 100, 1, 1, "length" })},
	{"24 an event beyond the cap", func(w *reply) {
		w.begin()
		for range 20 {
			w.send("data: " + strings.Repeat("x", 1<<20))
		}
	}, bad(ledger.Oversize)},
	{"25 gzip without a header", func(w *reply) {
		w.begin()
		w.send("\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x03")
	}, bad(ledger.Compressed, func(w *want) { w.quirks = ledger.QuirkCompressedUnasked })},
	{"25 Content-Encoding", func(w *reply) {
		w.Header().Set("Content-Encoding", "br")
		w.begin()
		w.send("\x0b\x02\x80")
	}, bad(ledger.Compressed, func(w *want) { w.quirks = ledger.QuirkCompressedUnasked })},
	{"26 body stays open after [DONE]", func(w *reply) {
		w.begin()
		w.sleep(first)
		eightContents(w)
		w.send(w.finish("stop") + w.usage(200, 8) + done)
		w.sleep(time.Hour)
	}, but(func(w *want) { w.quirks = ledger.QuirkDrainTimeout })},
	{"26 more after [DONE]", func(w *reply) {
		w.normal(eight, first, gap)
		w.send(w.content("late"))
	}, but(func(w *want) { w.quirks = ledger.QuirkDataAfterDone })},
	{"28 loading", func(w *reply) {
		w.WriteHeader(503)
		w.send(`{"error":{"message":"Loading model","code":503}}`)
	}, bad(ledger.HTTP5xx, func(w *want) { w.retry = true })},
	{"32 ids and indexes drift", func(w *reply) {
		w.begin()
		w.sleep(first)
		for i := range 2 {
			w.id = fmt.Sprint(i)
			w.send(w.chunk(fmt.Sprintf(`{"index":%d,"delta":{"content":"x"}}`, 197+i), ""))
		}
		w.send(w.finish("stop") + w.usage(200, 2) + done)
	}, but(func(w *want) {
		w.last, w.deltas, w.completion, w.buffered, w.quirks = 100, 2, 2, true, ledger.QuirkIDChanged|ledger.QuirkIndexDrift
	})},
	{"33 template", func(w *reply) {
		w.WriteHeader(400)
		w.send(`{"error":{"message":"Conversation roles must alternate user/assistant","type":"BadRequestError"}}`)
	}, bad(ledger.Template)},
	{"400", func(w *reply) {
		w.WriteHeader(400)
		w.send(`{"error":{"message":"prompt too long"}}`)
	}, bad(ledger.HTTP4xx)},
	{"307", func(w *reply) {
		w.Header().Set("Location", "http://192.0.2.1/steal")
		w.WriteHeader(307)
	}, bad(ledger.HTTP4xx)},
	{"34 whole JSON", func(w *reply) {
		w.Header().Set("Content-Type", "application/json; charset=utf-8")
		w.send(`{"id":"x","choices":[{"message":{"role":"assistant","content":"hi"},"finish_reason":"stop"}],"usage":{"prompt_tokens":200,"completion_tokens":1}}`)
	}, bad(ledger.NonStreamed, func(w *want) { w.deltas, w.prompt, w.completion, w.finish, w.wasted = 1, 200, 1, "stop", 1 })},
	{"34 JSON error under 200", func(w *reply) {
		w.Header().Set("Content-Type", "application/json")
		w.send(`{"error":{"message":"quota","code":403}}`)
	}, bad(ledger.InbandError)},
	{"34 JSON error as event-stream", func(w *reply) {
		w.begin()
		w.send(`{"error":{"message":"quota","code":403}}`)
	}, bad(ledger.InbandError)},
	{"34 HTML", func(w *reply) {
		w.Header().Set("Content-Type", "text/html")
		w.send("<!doctype html><title>Welcome</title>")
	}, bad(ledger.BadBody)},
	{"34 plain text", func(w *reply) {
		w.Header().Set("Content-Type", "text/plain")
		w.send("upstream connect error")
	}, bad(ledger.BadBody)},
	{"34 JSON without choices", func(w *reply) {
		w.Header().Set("Content-Type", "application/json")
		w.send(`{"status":"ok"}`)
	}, bad(ledger.BadBody)},
	{"events under another media type", func(w *reply) {
		w.Header().Set("Content-Type", "text/plain")
		w.WriteHeader(200)
		w.flush()
		w.sleep(first)
		eightContents(w)
		w.send(w.finish("stop") + w.usage(200, 8) + done)
	}, but(func(w *want) { w.quirks = ledger.QuirkMediaType })},
	{"no headers", func(w *reply) { w.sleep(time.Hour) }, bad(ledger.TimeoutHeaders, func(w *want) { w.retry = true })},
	{"stands still", func(w *reply) {
		w.begin()
		w.sleep(first)
		w.send(w.content("one "))
		w.sleep(time.Hour)
	}, want{outcome: ledger.TimeoutIdle, ttft: 100, content: 100, last: 100, deltas: 1, prompt: -1, completion: -1, wasted: 1, retry: true}},
	{"keep-alives without end", func(w *reply) {
		w.begin()
		for {
			w.send(": ping\n\n")
			w.sleep(10 * time.Second)
		}
	}, bad(ledger.TimeoutTotal, func(w *want) { w.retry, w.quirks = true, ledger.QuirkComment })},
	{"handler aborts", func(w *reply) {
		w.begin()
		w.sleep(first)
		w.send(w.content("one "))
		panic(http.ErrAbortHandler)
	}, want{outcome: ledger.TransportMid, ttft: 100, content: 100, last: 100, deltas: 1, prompt: -1, completion: -1, wasted: 1, retry: true}},
	{"handler aborts before headers", func(w *reply) { panic(http.ErrAbortHandler) }, bad(ledger.TransportBefore, func(w *want) { w.retry = true })},
	{"empty body", func(w *reply) { w.WriteHeader(200) }, bad(ledger.Truncated, func(w *want) { w.retry = true })},
	{"204", func(w *reply) { w.WriteHeader(204) }, bad(ledger.BadBody)},
}

func newTestClient(m *memory) *client {
	u, _ := url.Parse("http://model.test:8000")
	return &client{http: &http.Client{Transport: newTransport(4, time.Second, m.dial), CheckRedirect: noRedirect}, url: u.String() + "/v1/chat/completions",
		header: defaultHeader("test"), timeouts: Timeouts{Headers: 30 * time.Second, Idle: 20 * time.Second, Total: 300 * time.Second},
		drain: 250 * time.Millisecond, redact: newRedactor(u)}
}

func TestMisbehaviours(t *testing.T) {
	for _, test := range misbehaviours {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := newMemory()
				e := &endpoint{t: t, answer: test.answer}
				defer e.serve(m)()
				c := newTestClient(m)
				defer c.http.CloseIdleConnections()
				clk := newClock()
				row := ledger.Row{Attempt: 1, Oracle: ledger.OracleNone, PromptCommit: strings.Repeat("0", 32)}
				v := c.do(context.Background(), newScratch(), clk, []byte(`{"stream":true}`), &row)
				compare(t, &row, v, test.want)
				if open, peak := clk.inFlight(); open != 0 || peak != 1 {
					t.Errorf("%d open, peak %d; want 0, 1", open, peak)
				}
				if n := e.served.Load(); n != 1 {
					t.Errorf("the server saw %d requests", n)
				}
			})
		})
	}
}

// compare holds a row against what is wanted, and against what must hold of every row.
func compare(t *testing.T, row *ledger.Row, v verdict, w want) {
	t.Helper()
	if row.Outcome != w.outcome {
		t.Fatalf("outcome %s (%s), want %s", row.Outcome, row.Error, w.outcome)
	}
	ms := func(name string, o ledger.Opt, want int64) {
		t.Helper()
		got := int64(-1)
		if o.OK {
			got = (o.V - row.SentUS.V + 500) / 1000
		}
		if got != want {
			t.Errorf("%s at %d ms, want %d", name, got, want)
		}
	}
	count := func(name string, o ledger.Opt, want int64) {
		t.Helper()
		if o != ledger.Some(want) && (o.OK || want >= 0) {
			t.Errorf("%s %+v, want %d", name, o, want)
		}
	}
	ms("first token", row.FirstTokenUS, w.ttft)
	ms("first content", row.FirstContentUS, w.content)
	ms("last token", row.LastTokenUS, w.last)
	count("prompt tokens", row.PromptTokens, w.prompt)
	count("completion tokens", row.CompletionTokens, w.completion)
	if row.Deltas != w.deltas || row.Buffered != w.buffered || row.FinishReason != w.finish || row.Done != w.done || row.WastedTokens != w.wasted {
		t.Errorf("deltas %d, buffered %v, finish %q, done %v, wasted %d; want %d, %v, %q, %v, %d", row.Deltas, row.Buffered, row.FinishReason, row.Done,
			row.WastedTokens, w.deltas, w.buffered, w.finish, w.done, w.wasted)
	}
	if q := ledger.Quirk(row.Quirks); q&w.quirks != w.quirks {
		t.Errorf("quirks %b, want %b among them", q, w.quirks)
	}
	if retryable(row.Outcome, v) != w.retry {
		t.Errorf("retryable %v, want %v", !w.retry, w.retry)
	}
	if (row.Error == "") != (row.Outcome == ledger.OK) {
		t.Errorf("error %q with outcome %s", row.Error, row.Outcome)
	}
	if row.EndUS <= row.SentUS.V || row.HeadersUS.OK && row.HeadersUS.V < row.SentUS.V || row.LastTokenUS.OK && row.LastTokenUS.V > row.EndUS {
		t.Errorf("times out of order: %+v", row)
	}
	if strings.Contains(row.Error, "model.test") || strings.Contains(row.Error, "192.0.2.1") {
		t.Errorf("the error shows an address: %q", row.Error)
	}
	if err := row.Check(); err != nil {
		t.Error(err)
	}
}

package faultproxy

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"cotenant/internal/loadgen"
)

func delta(text string) string {
	return fmt.Sprintf("data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":%q},\"finish_reason\":null}]}\n\n", text)
}

const (
	role   = "data: {\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"\"}}]}\n\n"
	finish = "data: {\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n"
	done   = "data: [DONE]\n\n"
)

// upstream is a server of one stream, which knows how each request to it ended.
type upstream struct {
	events []string
	holds  bool // of every other request, from the first, the last event is kept until its client has gone

	mu    sync.Mutex
	seen  []string // the requests' headers of the proxy's, which must not come through
	whole int      // answers written to their end
	gone  int      // requests whose client went
}

func (u *upstream) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	io.Copy(io.Discard, r.Body)
	var held bool
	u.note(func() {
		held = u.holds && len(u.seen)%2 == 0
		u.seen = append(u.seen, r.Header.Get(Header)+"|"+r.URL.Path+"|"+r.Header.Get("Authorization"))
	})
	if r.Header.Get("Refuse") != "" {
		w.WriteHeader(http.StatusTeapot)
		io.WriteString(w, "short and stout")
		return
	}
	w.Header().Set("Content-Type", "text/event-stream")
	for i, e := range u.events {
		if held && i == len(u.events)-1 {
			<-r.Context().Done()
		}
		if _, err := io.WriteString(w, e); err != nil {
			break
		}
		w.(http.Flusher).Flush()
		select {
		case <-time.After(2 * time.Millisecond):
		case <-r.Context().Done():
		}
	}
	u.note(func() {
		if r.Context().Err() != nil {
			u.gone++
		} else {
			u.whole++
		}
	})
}

func (u *upstream) note(f func()) {
	u.mu.Lock()
	defer u.mu.Unlock()
	f()
}

func (u *upstream) ends() (whole, gone int) {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.whole, u.gone
}

type journal struct {
	mu     sync.Mutex
	events []Event
}

func (l *journal) add(e Event) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.events = append(l.events, e)
	return nil
}

func (l *journal) all() []Event {
	l.mu.Lock()
	defer l.mu.Unlock()
	return append([]Event(nil), l.events...)
}

var plan = loadgen.FaultPlan{Seed: "1", Contexts: 1000, Turns: 1, Block: 2}

func serve(t testing.TB, u *upstream) (*Proxy, *journal) {
	t.Helper()
	srv := httptest.NewServer(u)
	t.Cleanup(srv.Close)
	target, err := url.Parse(srv.URL + "/prefix")
	if err != nil {
		t.Fatal(err)
	}
	var l journal
	p, err := New(Options{Upstream: target, Plan: plan, OnFault: l.add})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	return p, &l
}

func send(t testing.TB, ctx context.Context, p *Proxy, name string) (*http.Response, string, error) {
	t.Helper()
	return sendSeeing(t, ctx, p, name, func(string) {})
}

// sendSeeing calls seen with the body as far as it has come, whenever more of it has.
func sendSeeing(t testing.TB, ctx context.Context, p *Proxy, name string, seen func(body string)) (*http.Response, string, error) {
	t.Helper()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, p.URL()+"/v1/chat/completions", strings.NewReader(`{"stream":true}`))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set(Header, name)
	req.Header.Set("Authorization", "Bearer k")
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Do(req)
	if err != nil {
		return nil, "", err
	}
	defer resp.Body.Close()
	var body strings.Builder
	for buf := make([]byte, 4096); ; {
		n, err := resp.Body.Read(buf)
		body.Write(buf[:n])
		seen(body.String())
		if err == io.EOF {
			err = nil
		} else if err == nil {
			continue
		}
		return resp, body.String(), err
	}
}

// contextOf finds the n-th context that meets a kind.
func contextOf(kind loadgen.FaultKind, n int64) int64 {
	for b := range plan.Len() {
		if f := plan.At(b); f.Kind == kind {
			if n--; n < 0 {
				return f.Context
			}
		}
	}
	panic("no such fault")
}

func TestFaults(t *testing.T) {
	text := []string{role, delta("a"), delta("b"), delta("c"), finish, done}
	first, second := role+delta("a"), role+delta("a")+delta("b")
	long := append(slices.Clone(text[:4]), slices.Repeat([]string{delta("d")}, 200)...)
	short := []string{role, delta("a"), finish, done}
	for _, c := range []struct {
		kind      loadgen.FaultKind
		events    []string
		status    int // 0: no response
		body      string
		err       error // of the request or of its body; nil: none
		forwarded bool
		after     int64 // events before it
		whole     bool  // the server writes its answer to its end
	}{
		{kind: loadgen.ResetBeforeHeaders, events: text, err: syscall.ECONNRESET},
		{kind: loadgen.HTTP503, events: text, status: 503, body: `{"error":{"message":"planned fault: http_503","type":"planned_fault","code":503}}`},
		{kind: loadgen.HTTP429, events: text, status: 429, body: `{"error":{"message":"planned fault: http_429","type":"planned_fault","code":429}}`},
		{kind: loadgen.ResetAfterFirstToken, events: text, status: 200, body: first, err: syscall.ECONNRESET, forwarded: true, after: 2},
		{kind: loadgen.ResetMidStream, events: text, status: 200, body: second, err: syscall.ECONNRESET, forwarded: true, after: 2},
		{kind: loadgen.ResetMidStream, events: short, status: 200, body: first, err: syscall.ECONNRESET, forwarded: true, after: 2},
		{kind: loadgen.TruncatedMidStream, events: text, status: 200, body: first, forwarded: true, after: 2, whole: true},
		{kind: loadgen.StallMidStream, events: text, status: 200, body: first, err: context.Canceled, forwarded: true, after: 2, whole: true},
		{kind: loadgen.StallMidStream, events: long, status: 200, body: first, err: context.Canceled, forwarded: true, after: 2},
	} {
		t.Run(fmt.Sprintf("%s of %d", c.kind, len(c.events)), func(t *testing.T) {
			t.Parallel()
			u := &upstream{events: c.events, holds: c.forwarded && !c.whole}
			p, l := serve(t, u)
			for n := range int64(20) {
				ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
				at := contextOf(c.kind, n)
				resp, body, err := sendSeeing(t, ctx, p, Name(at, 0, 2), func(body string) {
					if c.kind != loadgen.StallMidStream || body != c.body {
						return
					}
					// Nothing more may come, also once the fault is noted and the server has done what it does.
					for whole, _ := u.ends(); (int64(len(l.all())) == n || c.whole && int64(whole) < 2*n+1) && ctx.Err() == nil; whole, _ = u.ends() {
						time.Sleep(time.Millisecond)
					}
					time.AfterFunc(20*time.Millisecond, cancel)
				})
				cancel()
				if !errors.Is(err, c.err) {
					t.Fatalf("error %v, want %v", err, c.err)
				}
				if (resp != nil) != (c.status != 0) || resp != nil && resp.StatusCode != c.status || body != c.body {
					t.Fatalf("response %+v, body %q, want %d, %q", resp, body, c.status, c.body)
				}
				if c.kind == loadgen.HTTP429 && resp.Header.Get("Retry-After") != "1" {
					t.Errorf("headers %v", resp.Header)
				}
				if events := l.all(); int64(len(events)) != n+1 || events[n] != (Event{at, 0, 2, c.kind, c.forwarded, c.after}) {
					t.Fatalf("events %+v", events)
				}
				// The same context once more: its fault was done.
				_, body, err = send(t, context.Background(), p, Name(at, 0, 3))
				if err != nil || body != strings.Join(c.events, "") {
					t.Fatalf("the attempt after it: %v, %q", err, body)
				}
				if n == 2 && c.kind == loadgen.StallMidStream {
					break // slow
				}
			}
			n := len(l.all())
			for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(time.Millisecond) {
				whole, gone := u.ends()
				want, left := n, 0
				if c.whole {
					want = 2 * n
				} else if c.forwarded {
					left = n
				}
				if whole == want && gone == left {
					break
				}
				if time.Now().After(deadline) {
					t.Fatalf("the server ended %d answers whole and saw %d clients go; want %d and %d", whole, gone, want, left)
				}
			}
		})
	}
}

// What isn't planned passes byte for byte, the proxy's header apart.
func TestPasses(t *testing.T) {
	u := &upstream{events: []string{": hello\n\n", role, "data: half", " an event\r\n\r\n", delta("a"), "event: x\ndata\n\n", "rest without an end"}}
	p, l := serve(t, u)
	want := strings.Join(u.events, "")
	cancel := contextOf(loadgen.CancelAfterFirstToken, 0) // the client's own affair
	for _, name := range []string{"", Name(cancel, 0, 1), Name(5000, 0, 1), Name(contextOf(loadgen.HTTP503, 0), 1, 1)} {
		resp, body, err := send(t, context.Background(), p, name)
		if err != nil || resp.StatusCode != 200 || body != want || resp.Header.Get("Content-Type") != "text/event-stream" {
			t.Errorf("%q: %v, %q", name, err, body)
		}
	}
	if len(l.all()) != 0 {
		t.Errorf("events %+v", l.all())
	}
	for _, s := range u.seen {
		if s != "|/prefix/v1/chat/completions|Bearer k" {
			t.Errorf("the server saw %q", s)
		}
	}
	if resp, _, err := send(t, context.Background(), p, "1.2"); err != nil || resp.StatusCode != 400 {
		t.Errorf("a bad name: %+v, %v", resp, err)
	}
	resp, err := http.Get("http://" + p.addr + "/v1/models")
	if err != nil || resp.StatusCode != 404 {
		t.Errorf("without the secret: %+v, %v", resp, err)
	}
}

// A refusal of the server's own is no stream: it passes, and the fault waits for the next attempt.
func TestServerRefuses(t *testing.T) {
	u := &upstream{events: []string{delta("a"), delta("b"), done}}
	p, l := serve(t, u)
	at := contextOf(loadgen.ResetAfterFirstToken, 0)
	req, err := http.NewRequest(http.MethodPost, p.URL()+"/x", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set(Header, Name(at, 0, 1))
	req.Header.Set("Refuse", "yes")
	resp, err := http.DefaultClient.Do(req)
	if err != nil || resp.StatusCode != http.StatusTeapot || len(l.all()) != 0 {
		t.Fatalf("%+v, %v, %v", resp, err, l.all())
	}
	if _, _, err := send(t, context.Background(), p, Name(at, 0, 2)); !errors.Is(err, syscall.ECONNRESET) || len(l.all()) != 1 {
		t.Errorf("%v, %v", err, l.all())
	}
}

func TestNobodyUpstream(t *testing.T) {
	p, err := New(Options{Upstream: &url.URL{Scheme: "http", Host: "127.0.0.1:1"}, Plan: plan})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	if resp, _, err := send(t, context.Background(), p, ""); err == nil {
		t.Errorf("an answer from nobody: %+v", resp)
	}
	if _, err := New(Options{Upstream: &url.URL{Scheme: "http", Host: "127.0.0.1:1"}}); err == nil {
		t.Error("a plan without blocks was taken")
	}
}

// sink is a response writer without a connection: a reset shows as a panic.
type sink struct{ bytes.Buffer }

func (s *sink) Header() http.Header { return http.Header{} }
func (s *sink) WriteHeader(int)     {}

// pieces hands bytes out in random pieces.
type pieces struct {
	b []byte
	r *rand.Rand
}

func (p *pieces) Read(b []byte) (int, error) {
	if len(p.b) == 0 {
		return 0, io.EOF
	}
	n := copy(b, p.b[:1+p.r.IntN(len(p.b))])
	p.b = p.b[n:]
	return n, nil
}

func FuzzStream(f *testing.F) {
	for _, s := range []string{role + delta("a") + delta("b") + finish + done, "data: x\r\n\r\ndata: y\r\rdata", "\n\n\n", ":\n\ndata: [DONE]\n\n", delta("a") + "data: {\"choices\":[{\"delta\":{\"tool_calls\":[{\"function\":{\"arguments\":\"{\"}}]}}]}\n\n"} {
		f.Add([]byte(s), uint64(1))
	}
	p := &Proxy{o: Options{Plan: plan}, done: map[int64]bool{}}
	f.Fuzz(func(t *testing.T, b []byte, seed uint64) {
		var cuts []string
		for range 2 { // any split gives the same
			for _, kind := range []loadgen.FaultKind{"", loadgen.TruncatedMidStream, loadgen.ResetMidStream} {
				clear(p.done)
				var w sink
				x := &exchange{p: p, w: &w, kind: kind}
				seed++
				func() {
					defer func() {
						if e := recover(); e != nil && e != http.ErrAbortHandler {
							panic(e)
						}
					}()
					x.stream(&pieces{b, rand.New(rand.NewPCG(seed, 1))})
				}()
				if kind == "" && w.String() != string(b) {
					t.Errorf("%q passed as %q", b, w.String())
				}
				if !strings.HasPrefix(string(b), w.String()) {
					t.Errorf("%q isn't a part of %q", w.String(), b)
				}
				cuts = append(cuts, w.String())
			}
		}
		for i := range 3 {
			if cuts[i] != cuts[i+3] {
				t.Errorf("%q and %q, by the pieces that it came in", cuts[i], cuts[i+3])
			}
		}
	})
}

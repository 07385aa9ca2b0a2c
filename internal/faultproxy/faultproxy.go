// Package faultproxy is an HTTP reverse proxy on a loopback port of this process that spoils planned attempts on their way: it
// refuses them before headers, resets or stalls their streams at a named event, or ends their bodies early. A stream that
// meets no fault passes byte for byte, event by event.
//
// A request says which attempt it is in the header Header; the plan says which context meets which fault in which turn. Each fault is
// done once, to the first attempt that gets so far, and is reported before the client can see it.
package faultproxy

import (
	"context"
	"crypto/rand"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"cotenant/internal/loadgen"
)

// Header carries "CONTEXT.TURN.ATTEMPT" of a request. It isn't passed on.
const Header = "Cotenant-Attempt"

// Name is Header's value for an attempt.
func Name(context, turn, attempt int64) string {
	return fmt.Sprintf("%d.%d.%d", context, turn, attempt)
}

// RetryAfter is what a 429 of the proxy's asks for.
const RetryAfter = time.Second

// Event is a fault that is about to be done.
type Event struct {
	Context, Turn, Attempt int64
	Kind                   loadgen.FaultKind
	Forwarded              bool  // the server has the request
	Events                 int64 // events with data that the client got before
}

// Options of a proxy.
type Options struct {
	Upstream *url.URL // scheme, host and a path that is put before a request's
	Plan     loadgen.FaultPlan
	Dial     func(ctx context.Context, network, addr string) (net.Conn, error) // nil dials
	// OnFault is called from the request's goroutine before the fault shows. An error keeps the fault from being done. Nil: not called.
	OnFault func(Event) error
}

// Proxy serves until Close.
type Proxy struct {
	o      Options
	secret string // first element of each path: other programs of this machine can't use the proxy
	addr   string
	server *http.Server
	client *http.Transport
	ended  chan struct{}

	mu   sync.Mutex
	done map[int64]bool // contexts whose fault was done
}

// New starts a proxy on a free loopback port.
func New(o Options) (*Proxy, error) {
	if o.Plan.Block < 1 || o.Plan.Turns < 1 {
		return nil, fmt.Errorf("fault plan of blocks of %d and %d turns: want at least 1 of each", o.Plan.Block, o.Plan.Turns)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("listening for the fault proxy: %w", err)
	}
	p := &Proxy{o: o, secret: rand.Text(), addr: l.Addr().String(), done: map[int64]bool{}, ended: make(chan struct{})}
	// Keep-alive upstream only: a fault closes the connection that it spoils.
	p.client = &http.Transport{DialContext: o.Dial, DisableCompression: true, MaxIdleConnsPerHost: 64}
	p.server = &http.Server{Handler: p, ReadHeaderTimeout: 10 * time.Second, ErrorLog: log.New(io.Discard, "", 0)}
	go func() {
		defer close(p.ended)
		p.server.Serve(l)
	}()
	return p, nil
}

// URL is the base under which the upstream's paths are reached.
func (p *Proxy) URL() string { return "http://" + p.addr + "/" + p.secret }

// Close cuts what is open and ends the proxy.
func (p *Proxy) Close() error {
	err := p.server.Close()
	<-p.ended
	p.client.CloseIdleConnections()
	return err
}

// ServeHTTP answers one request: a fault before headers, or what the upstream says up to its fault.
func (p *Proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	path, ok := strings.CutPrefix(r.URL.Path, "/"+p.secret+"/")
	if !ok {
		http.NotFound(w, r)
		return
	}
	x := &exchange{p: p, w: w, r: r}
	if err := x.identify(); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	switch x.kind {
	case loadgen.ResetBeforeHeaders, loadgen.HTTP503, loadgen.HTTP429:
		x.refuse()
	default:
		x.forward(path)
	}
}

// exchange is one request and its answer.
type exchange struct {
	p    *Proxy
	w    http.ResponseWriter
	r    *http.Request
	at   Event
	kind loadgen.FaultKind // empty: none is due
	sent int64             // events with data that the client got
}

// identify reads which attempt this is, and whether a fault of the proxy's is due.
func (x *exchange) identify() error {
	name := x.r.Header.Get(Header)
	if name == "" {
		return nil
	}
	if _, err := fmt.Sscanf(name, "%d.%d.%d", &x.at.Context, &x.at.Turn, &x.at.Attempt); err != nil || name != Name(x.at.Context, x.at.Turn, x.at.Attempt) {
		return fmt.Errorf("%s is %q: want context.turn.attempt", Header, name)
	}
	f, ok := x.p.o.Plan.Of(x.at.Context, x.at.Turn)
	if !ok || f.Kind.ByClient() || x.p.isDone(x.at.Context) {
		return nil
	}
	x.kind, x.at.Kind = f.Kind, f.Kind
	return nil
}

func (p *Proxy) isDone(context int64) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.done[context]
}

// claim reports a fault; false: it must not be done.
func (x *exchange) claim() bool {
	p := x.p
	p.mu.Lock()
	if p.done[x.at.Context] {
		p.mu.Unlock()
		return false
	}
	p.done[x.at.Context] = true
	p.mu.Unlock()
	x.at.Events = x.sent
	if p.o.OnFault != nil {
		return p.o.OnFault(x.at) == nil
	}
	return true
}

// refuse ends the request before any header of the server's. Its body is read first, so that the client has sent it whole.
func (x *exchange) refuse() {
	if _, err := io.Copy(io.Discard, x.r.Body); err != nil || !x.claim() {
		panic(http.ErrAbortHandler)
	}
	if x.kind == loadgen.ResetBeforeHeaders {
		x.reset()
		return
	}
	status := http.StatusServiceUnavailable
	h := x.w.Header()
	if x.kind == loadgen.HTTP429 {
		status = http.StatusTooManyRequests
		h.Set("Retry-After", fmt.Sprint(int(RetryAfter.Seconds())))
	}
	h.Set("Content-Type", "application/json")
	x.w.WriteHeader(status)
	fmt.Fprintf(x.w, `{"error":{"message":"planned fault: %s","type":"planned_fault","code":%d}}`, x.kind, status)
}

// reset ends the client's connection by a TCP reset.
func (x *exchange) reset() {
	conn, _, err := http.NewResponseController(x.w).Hijack()
	if err != nil {
		panic(http.ErrAbortHandler) // the connection is closed, its body torn
	}
	if tcp, ok := conn.(*net.TCPConn); ok {
		tcp.SetLinger(0)
	}
	conn.Close()
}

// hopByHop are headers of one connection (RFC 9110, 7.6.1) and what the proxy sets itself.
var hopByHop = []string{"Connection", "Keep-Alive", "Proxy-Connection", "Te", "Trailer", "Transfer-Encoding", "Upgrade", Header}

// forward sends the request on and hands its answer back.
func (x *exchange) forward(path string) {
	ctx, cancel := context.WithCancel(x.r.Context())
	defer cancel() // a fault that leaves the body unread takes the upstream's connection with it
	u := *x.p.o.Upstream
	u.Path = strings.TrimSuffix(u.Path, "/") + "/" + path
	u.RawQuery = x.r.URL.RawQuery
	req, err := http.NewRequestWithContext(ctx, x.r.Method, u.String(), x.r.Body)
	if err != nil {
		http.Error(x.w, err.Error(), http.StatusBadGateway)
		return
	}
	req.Header = x.r.Header.Clone()
	req.ContentLength = x.r.ContentLength
	for _, name := range hopByHop {
		req.Header.Del(name)
	}
	resp, err := x.p.client.RoundTrip(req)
	if err != nil {
		// The client meets what the proxy met: a connection that ended before any header.
		panic(http.ErrAbortHandler)
	}
	defer resp.Body.Close()
	x.at.Forwarded = true
	for name, values := range resp.Header {
		x.w.Header()[name] = values
	}
	for _, name := range hopByHop {
		x.w.Header().Del(name)
	}
	x.w.WriteHeader(resp.StatusCode)
	x.flush()
	if resp.StatusCode != http.StatusOK {
		x.kind = "" // no stream to spoil
	}
	if err := x.stream(resp.Body); err != nil {
		panic(http.ErrAbortHandler)
	}
}

func (x *exchange) flush() { http.NewResponseController(x.w).Flush() }

// stream copies a body event by event until it ends or its fault is due.
func (x *exchange) stream(body io.Reader) error {
	buf := make([]byte, 0, 8<<10)
	texts := 0 // events with text that the client got
	for {
		if len(buf) == cap(buf) {
			buf = append(buf, 0)[:len(buf)]
		}
		n, err := body.Read(buf[len(buf):cap(buf)])
		buf = buf[:len(buf)+n]
		for {
			end := eventEnd(buf)
			if end == 0 {
				break
			}
			e := examine(buf[:end])
			if texts > 0 && e.data && x.kind != "" && x.kind != loadgen.ResetAfterFirstToken && x.spoil(body, buf[:end]) {
				return nil
			}
			if err := x.pass(buf[:end], e.data); err != nil {
				return err
			}
			if e.text {
				texts++
			}
			if texts == 1 && x.kind == loadgen.ResetAfterFirstToken && x.spoil(body, nil) {
				return nil
			}
			buf = append(buf[:0], buf[end:]...)
		}
		// What isn't a stream of events, or no event that anybody could hold, passes as it is.
		if len(buf) > 0 && (err != nil || x.kind == "" || len(buf) > maxEvent) {
			if err := x.pass(buf, false); err != nil {
				return err
			}
			buf = buf[:0]
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

const maxEvent = 1 << 20

func (x *exchange) pass(b []byte, data bool) error {
	if _, err := x.w.Write(b); err != nil {
		return err
	}
	x.flush()
	if data {
		x.sent++
	}
	return nil
}

// spoil does the fault that is due; next is the event that would come. False: it was kept from being done, or there is none.
func (x *exchange) spoil(body io.Reader, next []byte) bool {
	switch x.kind {
	case loadgen.ResetAfterFirstToken:
		if !x.claimed() {
			return false
		}
		x.reset()
	case loadgen.ResetMidStream:
		if !x.claimed() {
			return false
		}
		// One more event, so that this isn't the phase of the first token. The event that ends an answer is not handed out.
		if e := examine(next); e.text && !e.last {
			x.pass(next, true)
		}
		x.reset()
	case loadgen.TruncatedMidStream:
		if !x.claimed() {
			return false
		}
		io.Copy(io.Discard, body) // the server ends its answer in peace
	case loadgen.StallMidStream:
		if !x.claimed() {
			return false
		}
		<-x.r.Context().Done()
		panic(http.ErrAbortHandler)
	default:
		return false
	}
	return true
}

// claimed is claim, and no further fault where it says no.
func (x *exchange) claimed() bool {
	ok := x.claim()
	if !ok {
		x.kind = ""
	}
	return ok
}

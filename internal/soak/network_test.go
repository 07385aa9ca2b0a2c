package soak

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"runtime"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"cotenant/internal/ledger"
)

// listen opens a loopback port.
func listen(t testing.TB) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

// rawServer answers each request on a connection by handle, which gets the connection and the number of the request on it; it
// returns false to stop reading.
func rawServer(t testing.TB, handle func(c *net.TCPConn, n int) bool) string {
	l := listen(t)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				r := bufio.NewReader(c)
				for n := 1; ; n++ {
					req, err := http.ReadRequest(r)
					if err != nil {
						return
					}
					io.Copy(io.Discard, req.Body)
					if !handle(c.(*net.TCPConn), n) {
						return
					}
				}
			}()
		}
	}()
	return "http://" + l.Addr().String()
}

// readConn sends on a channel once it has handed out bytes that hold a token.
type readConn struct {
	net.Conn
	read chan<- struct{}
}

func (c *readConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if bytes.Contains(b[:n], []byte(`"content"`)) {
		c.read <- struct{}{}
	}
	return n, err
}

func networkClient(t testing.TB, endpoint string) *client { return readingClient(t, endpoint, nil) }

// readingClient is a client that says on read, unless that is nil, when it has the bytes of a token.
func readingClient(t testing.TB, endpoint string, read chan<- struct{}) *client {
	u, err := url.Parse(endpoint)
	if err != nil {
		t.Fatal(err)
	}
	tr := newTransport(2, 30*time.Second, func(ctx context.Context, network, addr string) (net.Conn, error) {
		c, err := new(net.Dialer).DialContext(ctx, network, addr)
		if err != nil || read == nil {
			return c, err
		}
		return &readConn{c, read}, nil
	})
	t.Cleanup(tr.CloseIdleConnections)
	return &client{http: &http.Client{Transport: tr, CheckRedirect: noRedirect}, url: endpoint + "/v1/chat/completions", header: defaultHeader("test"),
		timeouts: Timeouts{Headers: time.Minute, Idle: time.Minute}, drain: 250 * time.Millisecond, redact: newRedactor(u)}
}

func attemptOnce(c *client) (*ledger.Row, verdict) {
	row := &ledger.Row{Attempt: 1, Oracle: ledger.OracleNone}
	v := c.do(context.Background(), newScratch(), newClock(), []byte(`{}`), row)
	return row, v
}

const (
	streamHead = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\nKeep-Alive: timeout=5, max=100\r\n\r\n"
	oneContent = "data: {\"choices\":[{\"delta\":{\"content\":\"x\"}}]}\n\n"
	restOfIt   = "data: {\"choices\":[{\"delta\":{},\"finish_reason\":\"stop\"}],\"usage\":{\"prompt_tokens\":3,\"completion_tokens\":1}}\n\ndata: [DONE]\n\n"
)

func chunked(s string) string { return fmt.Sprintf("%x\r\n%s\r\n", len(s), s) }

func TestMisbehavingConnections(t *testing.T) {
	read := make(chan struct{}, 100)
	for _, test := range []struct {
		name   string
		handle func(c *net.TCPConn, n int) bool
		want   ledger.Outcome
		deltas int64
	}{
		{"g reset after the first token", func(c *net.TCPConn, n int) bool {
			io.WriteString(c, streamHead+chunked(oneContent))
			<-read // a reset throws away what wasn't read
			c.SetLinger(0)
			return false
		}, ledger.TransportMid, 1},
		{"l end in the middle of a chunked body", func(c *net.TCPConn, n int) bool {
			io.WriteString(c, streamHead+chunked(oneContent))
			return false
		}, ledger.TransportMid, 1},
		{"l2 end inside a chunk", func(c *net.TCPConn, n int) bool {
			io.WriteString(c, streamHead+"100\r\ndata: {\"cho")
			return false
		}, ledger.TransportMid, 0},
		{"l3 finish_reason came, the body's end did not", func(c *net.TCPConn, n int) bool {
			io.WriteString(c, streamHead+chunked(oneContent+strings.TrimSuffix(restOfIt, "data: [DONE]\n\n")))
			return false
		}, ledger.TransportMid, 1},
		{"closed before headers", func(c *net.TCPConn, n int) bool { return false }, ledger.TransportBefore, 0},
		{"reset before headers", func(c *net.TCPConn, n int) bool {
			c.SetLinger(0)
			return false
		}, ledger.TransportBefore, 0},
		{"closed within headers", func(c *net.TCPConn, n int) bool {
			io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Ty")
			return false
		}, ledger.TransportMid, 0},
		{"not HTTP", func(c *net.TCPConn, n int) bool {
			io.WriteString(c, "SSH-2.0-OpenSSH_9.2\r\n")
			return false
		}, ledger.TransportMid, 0},
		{"HTTP/1.0 without a length", func(c *net.TCPConn, n int) bool {
			io.WriteString(c, "HTTP/1.0 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"+oneContent+restOfIt)
			return false
		}, ledger.OK, 1},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			var says chan<- struct{}
			if strings.HasPrefix(test.name, "g reset") {
				says = read
			}
			row, _ := attemptOnce(readingClient(t, rawServer(t, test.handle), says))
			if row.Outcome != test.want || row.Deltas != test.deltas || row.Reconnects != 0 {
				t.Errorf("%s (%s), %d deltas, %d reconnects; want %s, %d, 0", row.Outcome, row.Error, row.Deltas, row.Reconnects, test.want, test.deltas)
			}
			if strings.Contains(row.Error, "127.0.0.1") {
				t.Errorf("the error shows the address: %q", row.Error)
			}
		})
	}
}

// A server that promises to keep a connection and then closes it with the next request on its way, as llama-server does after a
// streamed answer: the attempt is sent again and counted as a reconnect.
func TestStaleConnectionIsAReconnect(t *testing.T) {
	var requests atomic.Int64
	endpoint := rawServer(t, func(c *net.TCPConn, n int) bool {
		requests.Add(1)
		if n == 2 {
			c.SetLinger(0)
			return false
		}
		io.WriteString(c, streamHead+chunked(oneContent)+chunked(restOfIt)+"0\r\n\r\n")
		return true
	})
	c := networkClient(t, endpoint)
	first, _ := attemptOnce(c)
	second, _ := attemptOnce(c)
	for i, row := range []*ledger.Row{first, second} {
		if row.Outcome != ledger.OK || row.Reconnects != int64(i) || row.ConnReused {
			t.Errorf("attempt %d: %s (%s), %d reconnects, reused %v", i+1, row.Outcome, row.Error, row.Reconnects, row.ConnReused)
		}
	}
	if requests.Load() != 3 {
		t.Errorf("the server read %d requests, want 3", requests.Load())
	}
}

// A server that closes each connection after its answer, without saying so: nobody loses anything.
func TestClosedAfterEachAnswer(t *testing.T) {
	endpoint := rawServer(t, func(c *net.TCPConn, n int) bool {
		io.WriteString(c, streamHead+chunked(oneContent)+chunked(restOfIt)+"0\r\n\r\n")
		return false
	})
	c := networkClient(t, endpoint)
	for i := range 50 {
		if row, _ := attemptOnce(c); row.Outcome != ledger.OK {
			t.Fatalf("attempt %d: %s (%s), %d reconnects", i, row.Outcome, row.Error, row.Reconnects)
		}
	}
}

// A server that dies over a request is no stale connection, however often it was used before.
func TestSlowDeathIsAFailure(t *testing.T) {
	var requests atomic.Int64
	endpoint := rawServer(t, func(c *net.TCPConn, n int) bool {
		requests.Add(1)
		if n == 2 {
			time.Sleep(staleFor + 200*time.Millisecond)
			return false
		}
		io.WriteString(c, streamHead+chunked(oneContent)+chunked(restOfIt)+"0\r\n\r\n")
		return true
	})
	c := networkClient(t, endpoint)
	attemptOnce(c)
	row, _ := attemptOnce(c)
	if row.Outcome != ledger.TransportBefore || row.Reconnects != 0 || requests.Load() != 2 {
		t.Errorf("%s (%s), %d reconnects, %d requests", row.Outcome, row.Error, row.Reconnects, requests.Load())
	}
}

func TestKeptConnectionsAreReused(t *testing.T) {
	e := &endpoint{t: t, answer: func(w *reply) {
		w.begin()
		w.send(oneContent + restOfIt)
	}}
	l := listen(t)
	defer e.serve(l)()
	c := networkClient(t, "http://"+l.Addr().String())
	for i := range 5 {
		row, _ := attemptOnce(c)
		if row.Outcome != ledger.OK || row.ConnReused != (i > 0) || row.Reconnects != 0 {
			t.Errorf("attempt %d: %s, reused %v, %d reconnects", i, row.Outcome, row.ConnReused, row.Reconnects)
		}
	}
}

func TestNobodyListens(t *testing.T) {
	l := listen(t)
	endpoint := "http://" + l.Addr().String()
	l.Close()
	row, v := attemptOnce(networkClient(t, endpoint))
	if row.Outcome != ledger.TransportBefore || row.SentUS.OK || !retryable(row.Outcome, v) || !strings.Contains(row.Error, "refused") {
		t.Errorf("%s (%s)", row.Outcome, row.Error)
	}
	if strings.Contains(row.Error, strings.TrimPrefix(endpoint, "http://")) {
		t.Errorf("the error shows the address: %q", row.Error)
	}
}

func TestOwnExhaustion(t *testing.T) {
	for _, code := range []syscall.Errno{syscall.EMFILE, syscall.EADDRNOTAVAIL} {
		m := newMemory()
		c := newTestClient(m)
		c.http.Transport = newTransport(1, time.Second, func(context.Context, string, string) (net.Conn, error) {
			return nil, &net.OpError{Op: "dial", Net: "tcp", Err: os.NewSyscallError("socket", code)}
		})
		if row, v := attemptOnce(c); row.Outcome != ledger.ClientExhausted || retryable(row.Outcome, v) {
			t.Errorf("%v: %s (%s)", code, row.Outcome, row.Error)
		}
	}
}

func TestExhaustionEndsTheRun(t *testing.T) {
	l := listen(t)
	e := &endpoint{t: t, answer: solver}
	defer e.serve(l)()
	o := options(t, nil, 100)
	o.Endpoint = "http://" + l.Addr().String()
	o.MetricsURL = "none"
	var dials atomic.Int64
	o.Dial = func(ctx context.Context, network, addr string) (net.Conn, error) {
		if dials.Add(1) > 1 { // the canary's is the first
			return nil, &net.OpError{Op: "dial", Err: os.NewSyscallError("connect", syscall.EADDRNOTAVAIL)}
		}
		return new(net.Dialer).DialContext(ctx, network, addr)
	}
	o.Workers = 2
	res, err := Run(context.Background(), o)
	if err != nil {
		t.Fatal(err)
	}
	if res.Ledger.Status != ledger.StatusFailed || ExitCode(res, nil) != ExitFailed {
		t.Errorf("status %s (%s), exit %d", res.Ledger.Status, res.Ledger.StatusDetail, ExitCode(res, nil))
	}
}

// The process behind a loopback port is found; when it is this very process, the ledger says so.
func TestServerIsFound(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("processes are found through /proc")
	}
	l := listen(t)
	e := &endpoint{t: t, answer: func(w *reply) { w.normal(solve(w.request.Messages), 2*time.Millisecond, 2*time.Millisecond) }}
	defer e.serve(l)()
	o := options(t, nil, 100)
	o.Endpoint = "http://" + l.Addr().String() + "/v1"
	o.Period = 50 * time.Millisecond
	res, err := Run(context.Background(), o)
	if err != nil {
		t.Fatal(err)
	}
	r := &res.Ledger
	if !r.InProcess || r.Peaks.ServerRSSBytes.V < 1<<20 || r.Samples.ServerSamples != r.Samples.Count || r.EndpointScope != ledger.ScopeLoopback {
		t.Errorf("in process %v, peaks %+v, samples %+v", r.InProcess, r.Peaks, r.Samples)
	}
	if ExitCode(res, nil) != ExitAdmitted {
		t.Errorf("admission %v", r.Admission.Why)
	}
	if failed := failedRules(t, o.Out); failed != "" {
		t.Errorf("rules that fail: %s", failed)
	}
	if r.Series[0].NotExposed != r.Samples.Count {
		t.Errorf("a server without metrics: %+v", r.Series[0])
	}
}

func TestRunOrdinalsCount(t *testing.T) {
	l := listen(t)
	e := &endpoint{t: t, answer: func(w *reply) { w.normal("a b", time.Millisecond, time.Millisecond) }}
	defer e.serve(l)()
	dir := t.TempDir()
	for i := range int64(3) {
		o := options(t, nil, 2)
		o.Workers, o.Out, o.Endpoint = 1, fmt.Sprintf("%s/run%d", dir, i), "http://"+l.Addr().String()
		res, err := Run(context.Background(), o)
		if err != nil {
			t.Fatal(err)
		}
		if res.Ledger.RunOrdinal != i+1 {
			t.Errorf("run %d has ordinal %d", i+1, res.Ledger.RunOrdinal)
		}
	}
}

func TestResumeIsRefused(t *testing.T) {
	l := listen(t)
	e := &endpoint{t: t, answer: func(w *reply) { w.normal("a b", time.Millisecond, time.Millisecond) }}
	defer e.serve(l)()
	o := options(t, nil, 4)
	o.Endpoint = "http://" + l.Addr().String()
	if _, err := Run(context.Background(), o); err != nil {
		t.Fatal(err)
	}
	o.Resume = true
	for _, change := range []func(o *Options){
		func(o *Options) { o.Contexts = 5 }, func(o *Options) { o.Workers = 3 }, func(o *Options) { o.Model = "other" }, func(o *Options) { o.MaxTokens = 9 },
		func(o *Options) { o.Source = options(t, nil, 4).Source; o.Endpoint = "http://127.0.0.1:1" },
	} {
		other := o
		change(&other)
		_, err := Run(context.Background(), other)
		if u := (*UsageError)(nil); !errors.As(err, &u) || !strings.Contains(err.Error(), "registered with") {
			t.Errorf("error %v", err)
		}
	}
	if _, err := Run(context.Background(), o); err == nil || !strings.Contains(err.Error(), "is finished") {
		t.Errorf("a finished run was resumed: %v", err)
	}
	if err := os.Remove(o.Out + "/" + ledger.LedgerFile); err != nil {
		t.Fatal(err)
	}
	lock, err := lockFolder(o.Out + "/" + ledger.ConfigFile)
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	if _, err := Run(context.Background(), o); err == nil || !strings.Contains(err.Error(), "another process") {
		t.Errorf("a locked run was resumed: %v", err)
	}
}

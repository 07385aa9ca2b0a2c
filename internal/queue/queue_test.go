package queue

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"cotenant/internal/ledger"
	"cotenant/internal/loadgen"
	"cotenant/internal/soak"
	"cotenant/internal/verify"
)

const childVariable = "COTENANT_QUEUE_CHILD"

func TestMain(m *testing.M) {
	if join := os.Getenv(childVariable); join != "" {
		if err := takePart(context.Background(), join); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func takePart(ctx context.Context, join string) error {
	m, err := Join(ctx, join)
	if err != nil {
		return err
	}
	defer m.Close()
	o, err := m.Options(nil)
	if err != nil {
		return err
	}
	_, err = soak.Run(ctx, o)
	return err
}

// endpoint answers after a while, and counts requests.
type endpoint struct {
	requests atomic.Int64
	delay    time.Duration
	arrived  chan struct{} // gets a value for each request, if there is room

	processes int64         // the run's requests wait until so many processes have asked whether it is ready
	asked     atomic.Int64  // so many have
	together  chan struct{} // closed then

	own    sync.Map      // addresses of the host's own connections, where dial made them
	others atomic.Int64  // requests of the run from elsewhere
	share  int64         // the host's wait until there are so many
	shared chan struct{} // closed then
}

// dial is the host's.
func (e *endpoint) dial(ctx context.Context, network, address string) (net.Conn, error) {
	c, err := new(net.Dialer).DialContext(ctx, network, address)
	if err == nil {
		e.own.Store(c.LocalAddr().String(), true)
	}
	return c, err
}

func (e *endpoint) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path != "/v1/chat/completions" {
		http.NotFound(w, r)
		return
	}
	body, _ := io.ReadAll(r.Body)
	e.requests.Add(1)
	if e.together != nil {
		if !strings.Contains(string(body), "register") {
			if e.asked.Add(1) == e.processes {
				close(e.together)
			}
		} else {
			<-e.together
		}
	}
	if e.shared != nil && strings.Contains(string(body), "register") {
		if _, own := e.own.Load(r.RemoteAddr); own {
			<-e.shared
		} else if e.others.Add(1) == e.share {
			close(e.shared)
		}
	}
	select {
	case e.arrived <- struct{}{}:
	default:
	}
	time.Sleep(e.delay)
	w.Header().Set("Content-Type", "text/event-stream")
	for _, s := range []string{`{"choices":[{"index":0,"delta":{"content":"a"}}]}`, `{"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}`,
		`{"choices":[],"usage":{"prompt_tokens":10,"completion_tokens":1,"total_tokens":11}}`, "[DONE]"} {
		fmt.Fprintf(w, "data: %s\n\n", s)
		w.(http.Flusher).Flush()
	}
}

// host begins a run on an endpoint and says how to join it.
type hosted struct {
	dir  string
	join string
	done chan error
	res  *soak.Result
}

func startHost(t *testing.T, e *endpoint, contexts int64, wait time.Duration) *hosted {
	t.Helper()
	srv := httptest.NewServer(e)
	t.Cleanup(srv.Close)
	w, err := loadgen.New(loadgen.Options{Seed: 1, BaseTokens: 160})
	if err != nil {
		t.Fatal(err)
	}
	joins := make(chan string, 1)
	h, err := NewHost(HostOptions{Log: func(s string) {
		if _, join, ok := strings.Cut(s, "--join "); ok {
			joins <- join
		}
	}})
	if err != nil {
		t.Fatal(err)
	}
	h.ackWait = wait
	run := &hosted{dir: filepath.Join(t.TempDir(), "run"), done: make(chan error, 1)}
	o := soak.Options{Endpoint: srv.URL, Model: "m", Contexts: contexts, Workers: 2, Source: w, Out: run.dir, MetricsURL: "none", GPU: soak.GPUOptions{From: soak.GPUNone},
		Workload: soak.WorkloadInfo{Seed: "1", BaseTokens: ledger.Some(160)}, Build: soak.BuildInfo("test"), RulesVersion: verify.RulesVersion, Share: h, Period: 100 * time.Millisecond, Dial: e.dial}
	go func() {
		var err error
		run.res, err = soak.Run(context.Background(), o)
		run.done <- errors.Join(err, h.Close())
	}()
	select {
	case run.join = <-joins:
	case err := <-run.done:
		t.Fatalf("the host ended: %v", err)
	}
	return run
}

// check verifies the run and counts segments with rows, and results by context.
func (run *hosted) check(t *testing.T, contexts int64) (segments map[int64]int64) {
	t.Helper()
	if err := <-run.done; err != nil {
		t.Fatal(err)
	}
	report, err := verify.Dir(run.dir, verify.Options{})
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range report.Failed() {
		t.Errorf("%s: %s", f.Rule, f.Detail)
	}
	if c := run.res.Ledger.Counts; c.Completed != contexts || c.Duplicates != 0 || !run.res.Ledger.Admission.Admitted || !run.res.Ledger.Shared {
		t.Errorf("%+v, admission %+v", c, run.res.Ledger.Admission)
	}
	for _, claim := range run.res.Ledger.Claims {
		if strings.HasSuffix(claim.ID, "_rate") || strings.HasPrefix(claim.ID, "latency") {
			t.Errorf("%s is claimed of processes that ran at the same time", claim.ID)
		}
	}
	f, err := ledger.OpenFolder(run.dir)
	if err != nil {
		t.Fatal(err)
	}
	segments = map[int64]int64{}
	for r, err := range f.Rows() {
		if err != nil {
			t.Fatal(err)
		}
		segments[r.Segment]++
	}
	return segments
}

func TestProcessesShareARun(t *testing.T) {
	e := &endpoint{delay: 5 * time.Millisecond, processes: 3, together: make(chan struct{})}
	run := startHost(t, e, 100, time.Minute) // nobody dies, however busy the machine is
	var members sync.WaitGroup
	for range 2 {
		members.Go(func() {
			if err := takePart(context.Background(), run.join); err != nil {
				t.Error(err)
			}
		})
	}
	segments := run.check(t, 100)
	members.Wait()
	if len(segments) != 3 || segments[1] == 0 || segments[2] == 0 {
		t.Errorf("rows by segment: %v", segments)
	}
	if n := e.requests.Load(); n != 103 { // each process asks once whether the endpoint is ready
		t.Errorf("the endpoint had %d requests", n)
	}
	if err := takePart(context.Background(), run.join); err == nil {
		t.Error("a run that has ended can be joined")
	}
}

// A process that is killed loses nothing but what it had open, which another sends again and says so.
func TestAWorkerIsKilled(t *testing.T) {
	e := &endpoint{delay: 30 * time.Millisecond, arrived: make(chan struct{}, 1000), share: 4, shared: make(chan struct{})} // as many as it has rows when it is killed
	run := startHost(t, e, 100, 3*time.Second)                                                                              // the host waits twice as long for the other, and is sampled meanwhile
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), childVariable+"="+run.join)
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	// It is killed when it has rows and is at others: the host's own two workers and its question make up the rest.
	f := func() (n int64) {
		folder, err := ledger.OpenFolder(run.dir)
		if err != nil {
			return 0
		}
		for r, err := range folder.Rows() {
			if err == nil && r.Segment == 1 {
				n++
			}
		}
		return n
	}
	for f() < 4 {
		select {
		case <-e.arrived:
		case err := <-run.done:
			t.Fatalf("the run ended before the other process had its share: %v", err)
		}
	}
	cmd.Process.Kill()
	cmd.Wait()
	segments := run.check(t, 100)
	if segments[1] < 4 || segments[0]+segments[1] != 100 {
		t.Errorf("rows by segment: %v", segments)
	}
	l := &run.res.Ledger
	if sent := e.requests.Load() - 2; l.Counts.Resent > 2 || sent < 100 || sent > 100+l.Counts.Resent {
		t.Errorf("%d requests were sent for 100 contexts, %d of them declared as sent again", sent, l.Counts.Resent)
	}
}

// Of two processes that believe to hold a context, one can write.
func TestAProcessThatWasTakenForDead(t *testing.T) {
	h, err := NewHost(HostOptions{})
	if err != nil {
		t.Fatal(err)
	}
	b, err := connect(h.address, strings.Repeat("a", 32))
	if err != nil {
		t.Fatal(err)
	}
	h.share.bus = b
	defer h.Close()
	b.ackWait = time.Second
	ctx := context.Background()
	if err := b.createStreams(ctx); err != nil {
		t.Fatal(err)
	}
	if _, err := b.js.Publish(ctx, b.subject(workWord, 0), nil); err != nil {
		t.Fatal(err)
	}
	var shares [2]*share
	for i := range shares {
		shares[i] = &share{bus: b, held: map[int64]*hold{}}
		if shares[i].consumer, err = b.js.Consumer(ctx, b.stream(work), "workers"); err != nil {
			t.Fatal(err)
		}
	}
	slow, quick := shares[0], shares[1] // neither says that it is alive
	row := ledger.Row{Attempt: 1, Outcome: ledger.HTTP429, Oracle: ledger.OracleNone, PromptCommit: strings.Repeat("0", 32)}
	w, ok, err := slow.Take(ctx)
	if err != nil || !ok || w != (soak.Work{}) {
		t.Fatalf("%+v, %t, %v", w, ok, err)
	}
	if err := errors.Join(slow.Open(0, 1), slow.Row(row, 1, false), slow.Open(0, 2)); err != nil {
		t.Fatal(err)
	}
	w, ok, err = quick.Take(ctx) // waits until the slow one's time is over
	if err != nil || !ok || w != (soak.Work{Attempts: 1, Tries: 1, Resent: true}) {
		t.Fatalf("%+v, %t, %v", w, ok, err)
	}
	row.Attempt, row.Segment = 2, 1
	if err := errors.Join(quick.Open(0, 2), quick.Row(row, 2, true)); err != nil {
		t.Fatal(err)
	}
	row.Segment = 0
	if err := slow.Row(row, 2, true); !errors.Is(err, soak.ErrLost) {
		t.Errorf("the slow one's row: %v", err)
	}
	if err := slow.Release(0, true); err != nil {
		t.Errorf("the slow one lets go: %v", err)
	}
	// The quick one dies too, between its row and saying so: nobody gets the context again.
	if w, ok, err := slow.Take(ctx); ok || err != nil {
		t.Errorf("a retired context is handed out: %+v, %v", w, err)
	}
}

func TestParseJoin(t *testing.T) {
	run := strings.Repeat("0a", 16)
	address, got, err := ParseJoin("nats://token@10.0.0.1:4222/" + run)
	if err != nil || address != "nats://token@10.0.0.1:4222" || got != run {
		t.Errorf("%q, %q, %v", address, got, err)
	}
	for _, bad := range []string{"", "nats://h:1", "nats://h:1/", "nats://h:1/xyz", "http://h:1/" + run, "h:1/" + run, "nats:///" + run} {
		if _, _, err := ParseJoin(bad); err == nil {
			t.Errorf("%q was read", bad)
		}
	}
	if _, err := NewHost(HostOptions{Listen: "nowhere"}); err == nil {
		t.Error("an address without a port")
	}
	if _, err := NewHost(HostOptions{Address: "nats://127.0.0.1:1"}); err == nil {
		t.Error("a cluster that isn't there")
	}
}

func TestLineKeepsAbsence(t *testing.T) {
	b, err := json.Marshal(line{Segment: 3, Resource: &ledger.Resource{ServerReason: "x", GPUReason: "y"}})
	if err != nil {
		t.Fatal(err)
	}
	var l line
	if err := json.Unmarshal(b, &l); err != nil || l.Resource == nil || l.Resource.Client.RSSBytes.OK || l.Resource.Server != nil {
		t.Errorf("%+v, %v", l, err)
	}
}

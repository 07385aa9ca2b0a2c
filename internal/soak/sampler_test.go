package soak

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"cotenant/internal/ledger"
	"cotenant/internal/scrape"
)

// process writes what /proc has of a process that started at tick start.
func process(t *testing.T, root string, pid int, start, rss int64) {
	t.Helper()
	dir := filepath.Join(root, fmt.Sprint(pid))
	if err := os.MkdirAll(filepath.Join(dir, "fd"), 0o755); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"stat":   fmt.Sprintf("%d (server) S 1 1 1 0 -1 0 0 0 0 0 7 3 0 0 20 0 1 0 %d 0 0 0\n", pid, start),
		"status": fmt.Sprintf("VmHWM:\t%d kB\nVmRSS:\t%d kB\n", rss, rss),
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// newTestSampler samples into a run folder, with root as /proc and an endpoint that answers by handle.
func newTestSampler(t *testing.T, root string, handle http.HandlerFunc) (s *sampler, dir string, resources func() []ledger.Resource) {
	t.Helper()
	srv := httptest.NewServer(handle)
	t.Cleanup(srv.Close)
	cfg := ledger.Config{RunID: ledger.NewRunID(), RunOrdinal: 1, Secret: ledger.NewSecret(), PlaceSecret: ledger.NewSecret(), Contract: ledger.ContractPlain, Contexts: 1, TurnsPerContext: 1,
		Workers: 1, MaxAttempts: 1, Endpoint: srv.URL, EndpointScope: ledger.ScopeLoopback, ResourceUS: 1_000_000, HeaderNames: []string{}}
	dir = filepath.Join(t.TempDir(), "run")
	w, err := ledger.Create(dir, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { w.Abandon() })
	u, err := url.Parse(srv.URL)
	if err != nil {
		t.Fatal(err)
	}
	s = &sampler{clk: newClock(), w: w, redact: newRedactor(u), period: time.Second, self: scrape.NewSelf(), proc: scrape.Proc{Root: root},
		http: &scrape.Client{HTTP: srv.Client()}, metrics: srv.URL + "/metrics", vars: srv.URL + "/debug/vars", last: -1}
	return s, dir, func() []ledger.Resource {
		f, err := ledger.OpenFolder(dir)
		if err != nil {
			t.Fatal(err)
		}
		var out []ledger.Resource
		for r, err := range f.Resources() {
			if err != nil {
				t.Fatal(err)
			}
			out = append(out, r)
		}
		return out
	}
}

func TestSamplerSeesARestart(t *testing.T) {
	root := t.TempDir()
	s, dir, resources := newTestSampler(t, root, http.NotFound)
	s.pid, s.port = 50, 8080
	process(t, root, 50, 1000, 100)
	sample := func() {
		t.Helper()
		if err := s.sample(context.Background()); err != nil {
			t.Fatal(err)
		}
	}
	sample()
	os.RemoveAll(filepath.Join(root, "50"))
	sample() // gone, and nobody listens
	process(t, root, 60, 2000, 300)
	if err := os.MkdirAll(filepath.Join(root, "net"), 0o755); err != nil {
		t.Fatal(err)
	}
	os.WriteFile(filepath.Join(root, "net", "tcp"), []byte("sl local\n 0: 0100007F:1F90 0:0 0A 0:0 0:0 0 0 0 777 1\n"), 0o644)
	if err := os.Symlink("socket:[777]", filepath.Join(root, "60", "fd", "3")); err != nil {
		t.Fatal(err)
	}
	sample()
	r := resources()
	if r[0].Server == nil || r[0].Server.RSSBytes != ledger.Some(100<<10) || r[0].Server.StartUS != ledger.Some(10_000_000) || r[0].Server.CPUUS != ledger.Some(100_000) {
		t.Errorf("first sample: %+v", r[0].Server)
	}
	if r[1].Server != nil || !strings.Contains(r[1].ServerReason, "port 8080") {
		t.Errorf("without a server: %+v, %q", r[1].Server, r[1].ServerReason)
	}
	if r[2].Server == nil || r[2].Server.RSSBytes != ledger.Some(300<<10) || s.pid != 60 {
		t.Errorf("after a restart: %+v", r[2].Server)
	}
	if got := eventsOf(t, dir); got != "start server_restart" {
		t.Errorf("events %s", got)
	}
	for _, x := range r {
		if len(x.Series) != len(ledger.SeriesNames()) || x.Series[0].State != ledger.SeriesNotExposed || x.ScrapeError != "" {
			t.Errorf("a server without metrics: %+v, %q", x.Series, x.ScrapeError)
		}
	}
}

func TestSamplerKeepsErrorsApart(t *testing.T) {
	answers := []string{"", "llamacpp:requests_processing 2\nllamacpp:requests_deferred nan\n", "garbage {"}
	n := 0
	s, _, resources := newTestSampler(t, t.TempDir(), func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/debug/vars" {
			io.WriteString(w, `{"memstats":{"HeapAlloc":5000}}`)
			return
		}
		if answers[n] == "" {
			w.WriteHeader(500)
		}
		io.WriteString(w, answers[n])
		n++
	})
	s.reason = "the endpoint isn't on this machine"
	for range answers {
		if err := s.sample(context.Background()); err != nil {
			t.Fatal(err)
		}
	}
	var got []string
	for _, r := range resources() {
		got = append(got, fmt.Sprintf("%s %v, %s, %v", r.Series[0].State, r.Series[0].Value.OK, r.Series[1].State, r.ScrapeError != ""))
		if r.Server == nil || r.Server.HeapBytes != ledger.Some(5000) || r.Server.RSSBytes.OK {
			t.Errorf("server %+v", r.Server)
		}
		if strings.Contains(r.ScrapeError, "127.0.0.1") {
			t.Errorf("scrape error %q", r.ScrapeError)
		}
	}
	want := []string{"error false, error, true", "value true, nan, false", "error false, error, true"}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func TestInterruptWhileWaiting(t *testing.T) {
	o := options(t, nil, 5)
	l := listen(t)
	o.Endpoint = "http://" + l.Addr().String() // accepts and never answers
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	_, err := Run(ctx, o)
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("error %v", err)
	}
	if ExitCode(nil, context.Canceled) != ExitInterrupted {
		t.Error("an interrupt while waiting isn't exit 130")
	}
}

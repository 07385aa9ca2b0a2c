package scrape

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// exposed lists what is exposed, in the form of the .want files.
func exposed(readings []Reading) string {
	var s strings.Builder
	for _, r := range readings {
		switch r.State {
		case StateValue:
			fmt.Fprintf(&s, "%s %d %s\n", r.Name, r.Value.V, r.Source)
		case StateNaN:
			fmt.Fprintf(&s, "%s nan %s\n", r.Name, r.Source)
		}
	}
	return s.String()
}

func TestGoldenScrapes(t *testing.T) {
	files, err := filepath.Glob("testdata/*.prom")
	if err != nil || len(files) == 0 {
		t.Fatalf("no scrapes under testdata (%v)", err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		want, err := os.ReadFile(strings.TrimSuffix(file, ".prom") + ".want")
		if err != nil {
			t.Fatal(err)
		}
		readings, err := ParseMetrics(text)
		if err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		if got := exposed(readings); got != string(want) {
			t.Errorf("%s:\n%s\nwant\n%s", file, got, want)
		}
		for i, name := range Names() {
			r := readings[i]
			if r.Name != name || r.Value.OK != (r.State == StateValue) || (r.Source == "") != (r.State == StateNotExposed) {
				t.Errorf("%s: reading %d is %+v, of %s", file, i, r, name)
			}
		}
	}
}

func TestMetricsOverHTTP(t *testing.T) {
	status, body := 200, "vllm:num_requests_running 2\n"
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer k" {
			t.Error("the header was not sent")
		}
		w.WriteHeader(status)
		w.Write([]byte(body))
	}))
	defer srv.Close()
	c := &Client{HTTP: srv.Client(), Header: http.Header{"Authorization": {"Bearer k"}}}
	for _, test := range []struct {
		status int
		body   string
		state  string // of every reading; empty: the first has a value
		absent bool
	}{
		{200, body, "", false},
		{404, "", StateNotExposed, true},
		{501, `{"error":{"message":"This server does not support metrics endpoint."}}`, StateNotExposed, true},
		{500, "", StateError, false},
		{200, "<html>", StateError, false},
	} {
		status, body = test.status, test.body
		readings, err := c.Metrics(context.Background(), srv.URL)
		if len(readings) != len(Names()) {
			t.Fatalf("%d: %d readings", test.status, len(readings))
		}
		if test.state == "" {
			if err != nil || readings[0].Value != Some(2) {
				t.Errorf("%d %q: %+v, %v", test.status, test.body, readings[0], err)
			}
			continue
		}
		for _, r := range readings {
			if r.State != test.state || r.Value.OK {
				t.Errorf("%d %q: %+v, want state %s", test.status, test.body, r, test.state)
			}
		}
		if err == nil || errors.Is(err, ErrAbsent) != test.absent {
			t.Errorf("%d %q: error %v", test.status, test.body, err)
		}
	}
}

func TestSlowScrapeEnds(t *testing.T) {
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { <-r.Context().Done() }))
	defer srv.Close()
	c := &Client{HTTP: srv.Client(), Timeout: 20 * time.Millisecond}
	if _, err := c.Metrics(context.Background(), srv.URL); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a server that hangs: %v", err)
	}
}

func TestVars(t *testing.T) {
	for _, test := range []struct {
		in   string
		want Vars
	}{
		{`{"cmdline":["x"],"memstats":{"HeapAlloc":5198000000,"Sys":10,"NumGC":3}}`, Vars{HeapBytes: Some(5198000000), SysBytes: Some(10), GCs: Some(3)}},
		{`{"runtime":{"memory":{"heap_alloc_bytes":1e3,"sys_bytes":2,"num_gc":0}},"gateway":{"inflight_requests":2}}`, Vars{HeapBytes: Some(1000), SysBytes: Some(2), GCs: Some(0), Running: Some(2)}},
		{`{"memstats":{"HeapAlloc":"5","Sys":1.5,"NumGC":null}}`, Vars{}},
		{`{"memstats":3}`, Vars{}},
		{`{}`, Vars{}},
	} {
		got, err := ParseVars([]byte(test.in))
		if err != nil || got != test.want {
			t.Errorf("%s: %+v, %v; want %+v", test.in, got, err, test.want)
		}
	}
	for _, in := range []string{``, `[`, `[]`, `"x"`} {
		if _, err := ParseVars([]byte(in)); err == nil {
			t.Errorf("%q was read as vars", in)
		}
	}
}

func FuzzParseMetrics(f *testing.F) {
	files, _ := filepath.Glob("testdata/*.prom")
	for _, file := range files {
		b, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		readings, err := ParseMetrics(b)
		if err == nil && len(readings) != len(Names()) {
			t.Errorf("%d readings", len(readings))
		}
	})
}

func FuzzParseVars(f *testing.F) {
	f.Add([]byte(`{"memstats":{"HeapAlloc":1}}`))
	f.Fuzz(func(t *testing.T, b []byte) { ParseVars(b) })
}

package server

import (
	"bytes"
	"encoding/json"
	"net/http/httptest"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"cotenant/internal/testenv"
)

func itoa(n int) string { return strconv.Itoa(n) }

func scrape(t testing.TB, s *Server) string {
	t.Helper()
	w := httptest.NewRecorder()
	s.AdminHandler().ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	if w.Code != 200 {
		t.Fatalf("/metrics: %d %s", w.Code, w.Body)
	}
	return w.Body.String()
}

// metric returns a series' value; it fails where the series is absent.
func metric(t testing.TB, s *Server, series string) float64 {
	t.Helper()
	text := scrape(t, s)
	for line := range strings.Lines(text) {
		if v, ok := strings.CutPrefix(line, series+" "); ok {
			f, err := strconv.ParseFloat(strings.TrimSpace(v), 64)
			if err != nil {
				t.Fatal(err)
			}
			return f
		}
	}
	t.Fatalf("no series %s in\n%s", series, text)
	return 0
}

func statsExample() Stats {
	return Stats{
		PagesUsed: 3, PagesFree: 5, PagesCached: 2, PageTokens: 16, Slots: 1, Running: 2, Waiting: 4, QueueDepth: 4, QueueOldestAge: 1500 * time.Millisecond,
		QueueWait: Histogram{Bounds: []float64{0.1, 1}, Counts: []uint64{5, 7}, Count: 9, Sum: 12.5},
		Memory:    map[string]int64{"weights": 1000, "kv": 2000}, PrefixQueryTokens: 700, PrefixHitTokens: 600,
		Preemptions: 1, NonFiniteRows: 2, Steps: 11, StepTokens: Histogram{Bounds: []float64{1, 8}, Counts: []uint64{1, 2}, Count: 3, Sum: 40},
		Backend: "cpu", Device: "AVX2",
	}
}

func TestMetrics(t *testing.T) {
	g := newScripted()
	g.stats = statsExample()
	s, ts := start(t, Config{Generators: []Generator{g}, Version: "1.2"})
	post(t, ts.URL+"/v1/chat/completions", good)
	post(t, ts.URL+"/v1/chat/completions", goodStream)
	post(t, ts.URL+"/v1/chat/completions", "{")
	const m = `model_name="scripted"`
	for series, want := range map[string]float64{
		`cotenant_kv_pages{` + m + `,state="used"}`:                        3,
		`cotenant_kv_pages{` + m + `,state="free"}`:                        5,
		`cotenant_kv_pages{` + m + `,state="cached"}`:                      2,
		`cotenant_kv_page_tokens{` + m + `}`:                               16,
		`cotenant_kv_slots{` + m + `}`:                                     1,
		`cotenant_kv_cache_usage_ratio{` + m + `}`:                         0.3,
		`cotenant_memory_bytes{kind="kv",` + m + `}`:                       2000,
		`cotenant_prefix_cache_query_tokens_total{` + m + `}`:              700,
		`cotenant_prefix_cache_hit_tokens_total{` + m + `}`:                600,
		`cotenant_queue_depth{` + m + `}`:                                  4,
		`cotenant_queue_oldest_age_seconds{` + m + `}`:                     1.5,
		`cotenant_queue_wait_seconds_bucket{` + m + `,le="0.1"}`:           5,
		`cotenant_queue_wait_seconds_bucket{` + m + `,le="1"}`:             7,
		`cotenant_queue_wait_seconds_bucket{` + m + `,le="+Inf"}`:          9,
		`cotenant_queue_wait_seconds_sum{` + m + `}`:                       12.5,
		`cotenant_requests_running{` + m + `}`:                             2,
		`cotenant_requests_waiting{` + m + `}`:                             4,
		`cotenant_num_preemptions_total{` + m + `}`:                        1,
		`cotenant_non_finite_rows_total{` + m + `}`:                        2,
		`cotenant_prompt_tokens_total{` + m + `}`:                          6,
		`cotenant_generation_tokens_total{` + m + `}`:                      16,
		`cotenant_request_success_total{finish_reason="stop",` + m + `}`:   2,
		`cotenant_request_success_total{finish_reason="length",` + m + `}`: 0,
		`cotenant_requests_failed_total{reason="bad_request"}`:             1,
		`cotenant_requests_failed_total{reason="queue_full"}`:              0,
		`cotenant_time_to_first_token_seconds_count{` + m + `}`:            2,
		`cotenant_inter_token_latency_seconds_count{` + m + `}`:            14,
		`cotenant_time_per_output_token_seconds_count{` + m + `}`:          2,
		`cotenant_e2e_request_latency_seconds_count{` + m + `}`:            2,
		`cotenant_request_prompt_tokens_sum{` + m + `}`:                    6,
		`cotenant_request_generation_tokens_sum{` + m + `}`:                16,
		`cotenant_model_info{backend="cpu",device="AVX2",` + m + `}`:       1,
		`cotenant_build_info{version="1.2"}`:                               1,
		`cotenant_http_requests_in_flight`:                                 1,
		`cotenant_step_tokens_sum{` + m + `}`:                              40,
	} {
		if got := metric(t, s, series); got != want {
			t.Errorf("%s is %v, want %v", series, got, want)
		}
	}
	text := scrape(t, s)
	if strings.Contains(text, "cotenant_device_memory_bytes") {
		t.Error("device memory is exposed where there is no device")
	}
	for _, name := range []string{"process_resident_memory_bytes", "process_start_time_seconds", "go_memstats_heap_alloc_bytes"} {
		if !strings.Contains(text, "\n"+name+" ") {
			t.Errorf("no %s", name)
		}
	}
	g.mu.Lock()
	g.stats.DeviceMemory = map[string]int64{"weights": 5}
	g.stats.GPUMemory = map[string]int64{"own": 5, "other": 6, "free": 7}
	g.mu.Unlock()
	if got := metric(t, s, `cotenant_gpu_memory_bytes{holder="other",`+m+`}`); got != 6 {
		t.Errorf("memory of others is %v", got)
	}
	if got := metric(t, s, `cotenant_device_memory_bytes{kind="weights",`+m+`}`); got != 5 {
		t.Errorf("device memory is %v", got)
	}
}

func TestPromtool(t *testing.T) {
	promtool := testenv.Need(t, "promtool", "apt-get install prometheus")
	g := newScripted()
	g.stats = statsExample()
	g.stats.DeviceMemory, g.stats.GPUMemory = map[string]int64{"weights": 5}, map[string]int64{"free": 7}
	s, ts := start(t, Config{Generators: []Generator{g}})
	post(t, ts.URL+"/v1/chat/completions", goodStream)
	text := scrape(t, s)
	cmd := exec.Command(promtool, "check", "metrics")
	cmd.Stdin = strings.NewReader(text)
	if out, err := cmd.CombinedOutput(); err != nil || len(bytes.TrimSpace(out)) > 0 {
		t.Errorf("promtool: %v\n%s", err, out)
	}
}

// TestAdminSeparate: what operators read isn't on a listener that others reach.
func TestAdminSeparate(t *testing.T) {
	_, ts := start(t, Config{Generators: []Generator{newScripted()}, AdminSeparate: true})
	for _, path := range []string{"/metrics", "/debug/vars"} {
		if status, _, _ := get(t, ts.URL+path); status != 404 {
			t.Errorf("%s: %d", path, status)
		}
	}
	_, ts = start(t, Config{Generators: []Generator{newScripted()}})
	for _, path := range []string{"/metrics", "/debug/vars"} {
		if status, _, _ := get(t, ts.URL+path); status != 200 {
			t.Errorf("%s: %d", path, status)
		}
	}
}

func TestDebugVars(t *testing.T) {
	g := newScripted()
	g.stats = statsExample()
	_, ts := start(t, Config{Generators: []Generator{g}})
	_, _, body := get(t, ts.URL+"/debug/vars")
	var vars struct {
		Cmdline  []string
		Memstats struct{ HeapAlloc, Sys, NumGC, PauseTotalNs *uint64 }
		Cotenant struct {
			Models map[string]map[string]any
		}
	}
	if err := json.Unmarshal([]byte(body), &vars); err != nil {
		t.Fatal(err)
	}
	m := vars.Memstats
	if m.HeapAlloc == nil || *m.HeapAlloc == 0 || m.Sys == nil || m.NumGC == nil || m.PauseTotalNs == nil {
		t.Errorf("memstats: %+v", m)
	}
	if got := vars.Cotenant.Models["scripted"]; got["kv_slots"] != 1.0 || got["prefix_cache_hit_tokens_total"] != 600.0 {
		t.Errorf("models: %v", vars.Cotenant.Models)
	}
	if len(vars.Cmdline) == 0 || strings.Contains(strings.Join(vars.Cmdline, " "), "/") {
		t.Errorf("cmdline: %q", vars.Cmdline)
	}
}

func TestMaskedArgs(t *testing.T) {
	got := maskedArgs([]string{"/opt/cotenant", "serve", "--api-key=s3cret", "--header", "X: s3cret", "-ks3cret", "--listen", ":8080"})
	if s := strings.Join(got, " "); s != "cotenant *** --api-key=*** --header *** *** --listen ***" {
		t.Errorf("%s", s)
	}
}

package server

import (
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// metrics is what the server itself counts; what the engines count is read from Generator.Stats at each scrape (stats.go). Series
// have the label model_name, as vLLM's have, and none that grows with requests.
type metrics struct {
	handler  http.Handler
	inFlight prometheus.Gauge
	failed   *prometheus.CounterVec
	models   map[string]*modelMetrics
}

// modelMetrics are the series of one model.
type modelMetrics struct {
	success          map[string]prometheus.Counter // by finish reason
	ttft             prometheus.Observer
	interToken       prometheus.Observer
	timePerToken     prometheus.Observer
	latency          prometheus.Observer
	promptTokens     prometheus.Observer
	generationTokens prometheus.Observer
}

// latencyBuckets go from a cached prompt on a GPU to a cold one on a busy CPU; tokenBuckets from a token to a step of many.
var (
	latencyBuckets = []float64{0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 40, 80, 160, 320, 640}
	tokenBuckets   = []float64{0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1, 2.5, 5, 10}
	countBuckets   = []float64{1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000, 100000}
)

func newMetrics(s *Server) *metrics {
	reg := prometheus.NewRegistry()
	histogram := func(name, help string, buckets []float64) *prometheus.HistogramVec {
		h := prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets}, []string{"model_name"})
		reg.MustRegister(h)
		return h
	}
	m := &metrics{
		inFlight: prometheus.NewGauge(prometheus.GaugeOpts{Name: "cotenant_http_requests_in_flight",
			Help: "HTTP requests that are being answered, this scrape included."}),
		failed: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "cotenant_requests_failed_total",
			Help: "Requests that did not end in a whole answer, by reason."}, []string{"reason"}),
		models: map[string]*modelMetrics{},
	}
	success := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "cotenant_request_success_total",
		Help: "Requests answered whole, by the finish reason of their first choice."}, []string{"model_name", "finish_reason"})
	build := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "cotenant_build_info", Help: "Always 1; the label is the program's version."}, []string{"version"})
	started := prometheus.NewGauge(prometheus.GaugeOpts{Name: "cotenant_start_time_seconds", Help: "Unix time at which this server was made; counters began at 0 then."})
	reg.MustRegister(m.inFlight, m.failed, success, build, started, &statsCollector{models: s.models},
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	build.WithLabelValues(s.cfg.Version).Set(1)
	started.Set(float64(s.started.UnixMilli()) / 1000)
	for _, r := range reasons {
		m.failed.WithLabelValues(r) // a reason that never occurred is 0, not absent
	}
	ttft := histogram("cotenant_time_to_first_token_seconds", "From a request's arrival to its first generated token.", latencyBuckets)
	inter := histogram("cotenant_inter_token_latency_seconds", "Between successive tokens of one choice; a chunk of k tokens counts k times a k-th of its gap.", tokenBuckets)
	perToken := histogram("cotenant_time_per_output_token_seconds", "A choice's mean time per token after its first.", tokenBuckets)
	latency := histogram("cotenant_e2e_request_latency_seconds", "From a request's arrival to the end of its answer.", latencyBuckets)
	prompt := histogram("cotenant_request_prompt_tokens", "Prompt tokens of an answered request.", countBuckets)
	generated := histogram("cotenant_request_generation_tokens", "Generated tokens of an answered request.", countBuckets)
	for _, g := range s.models {
		id := g.Model().ID
		mm := &modelMetrics{success: map[string]prometheus.Counter{}, ttft: ttft.WithLabelValues(id),
			interToken: inter.WithLabelValues(id), timePerToken: perToken.WithLabelValues(id), latency: latency.WithLabelValues(id),
			promptTokens: prompt.WithLabelValues(id), generationTokens: generated.WithLabelValues(id)}
		for _, reason := range []string{"stop", "length"} {
			mm.success[reason] = success.WithLabelValues(id, reason)
		}
		m.models[id] = mm
	}
	m.handler = promhttp.HandlerFor(reg, promhttp.HandlerOpts{Registry: reg, MaxRequestsInFlight: 8})
	return m
}

func (m *metrics) serve(w http.ResponseWriter, r *http.Request) error {
	m.handler.ServeHTTP(w, r)
	return nil
}

// pace measures the tokens of one choice.
type pace struct {
	first, last time.Time
	tokens      int // at last
}

// observe notes that the choice has n tokens in all at time now. Tokens that come with the first have no gap.
func (p *pace) observe(m *modelMetrics, n int, now time.Time) {
	fresh := n - p.tokens
	switch {
	case fresh <= 0:
		return
	case p.tokens == 0:
		p.first = now
	default:
		gap := now.Sub(p.last).Seconds() / float64(fresh)
		for range fresh {
			m.interToken.Observe(gap)
		}
	}
	p.last, p.tokens = now, n
}

// done notes the choice's mean.
func (p *pace) done(m *modelMetrics) {
	if p.tokens > 1 {
		m.timePerToken.Observe(p.last.Sub(p.first).Seconds() / float64(p.tokens-1))
	}
}

package server

import (
	"strings"

	"github.com/prometheus/client_golang/prometheus"
)

// statsCollector renders Generator.Stats. A kind of memory that isn't measured is absent, not 0.
type statsCollector struct{ models []Generator }

func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("cotenant_"+name, help, append([]string{"model_name"}, labels...), nil)
}

// plainStat is a series with no label but the model's name.
type plainStat struct {
	name    string // without prefix
	help    string
	counter bool
	value   func(st *Stats) float64
}

var plainStats = []plainStat{
	{"kv_page_tokens", "Tokens that one KV page holds.", false, func(st *Stats) float64 { return float64(st.PageTokens) }},
	{"kv_slots", "Sequences that hold KV pages.", false, func(st *Stats) float64 { return float64(st.Slots) }},
	{"kv_cache_usage_ratio", "KV pages in use over all of them.", false, usageRatio},
	{"requests_running", "Requests that are being computed.", false, func(st *Stats) float64 { return float64(st.Running) }},
	{"requests_waiting", "Requests that wait to be computed.", false, func(st *Stats) float64 { return float64(st.Waiting) }},
	{"queue_depth", "Entries of the admission queue.", false, func(st *Stats) float64 { return float64(st.QueueDepth) }},
	{"queue_oldest_age_seconds", "How long the queue's oldest entry has waited; 0 when it is empty.", false, func(st *Stats) float64 { return st.QueueOldestAge.Seconds() }},
	{"prefix_cache_query_tokens_total", "Prompt tokens looked up in the prefix cache, once a request; those of requests that want their prompt's log-probabilities are not.", true, func(st *Stats) float64 { return float64(st.PrefixQueryTokens) }},
	{"prefix_cache_hit_tokens_total", "Prompt tokens found in the prefix cache: the sum of cached_tokens in usage.", true, func(st *Stats) float64 { return float64(st.PrefixHitTokens) }},
	{"prompt_tokens_total", "Prompt tokens of admitted requests, computed or cached.", true, func(st *Stats) float64 { return float64(st.PromptTokens) }},
	{"generation_tokens_total", "Tokens generated.", true, func(st *Stats) float64 { return float64(st.GeneratedTokens) }},
	{"num_preemptions_total", "Sequences that lost their KV pages to others and were computed again.", true, func(st *Stats) float64 { return float64(st.Preemptions) }},
	{"non_finite_rows_total", "Rows of logits with NaN or infinity; each ended its request.", true, func(st *Stats) float64 { return float64(st.NonFiniteRows) }},
	{"step_weight_bytes", "Bytes of weight matrices that a step of one row reads.", false, func(st *Stats) float64 { return float64(st.StepWeightBytes) }},
	{"engine_steps_total", "Steps of the engine.", true, func(st *Stats) float64 { return float64(st.Steps) }},
}

func usageRatio(st *Stats) float64 {
	all := st.PagesUsed + st.PagesFree + st.PagesCached
	if all == 0 {
		return 0
	}
	return float64(st.PagesUsed) / float64(all)
}

var (
	plainDescs = func() []*prometheus.Desc {
		list := make([]*prometheus.Desc, len(plainStats))
		for i, p := range plainStats {
			list[i] = desc(p.name, p.help)
		}
		return list
	}()
	pagesDesc      = desc("kv_pages", "KV pages by state: used by sequences, cached (a reusable prefix that no sequence holds), free.", "state")
	memoryDesc     = desc("memory_bytes", "Host memory by kind.", "kind")
	deviceDesc     = desc("device_memory_bytes", "Device memory by kind.", "kind")
	gpuDesc        = desc("gpu_memory_bytes", "All memory of the GPU by holder: own (this model), other (contexts and other processes), free.", "holder")
	queueWaitDesc  = desc("queue_wait_seconds", "Time that requests spent in the queue.")
	stepTokensDesc = desc("step_tokens", "Tokens computed in one step of the engine.")
	contextDesc    = desc("model_context_tokens", "Tokens of prompt and answer together that the model takes.")
	modelDesc      = desc("model_info", "Always 1; the labels say what computes.", "backend", "device")
)

func (c *statsCollector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range plainDescs {
		ch <- d
	}
	for _, d := range []*prometheus.Desc{pagesDesc, memoryDesc, deviceDesc, gpuDesc, queueWaitDesc, stepTokensDesc, contextDesc, modelDesc} {
		ch <- d
	}
}

func (c *statsCollector) Collect(ch chan<- prometheus.Metric) {
	for _, g := range c.models {
		info, st := g.Model(), g.Stats()
		gauge := func(d *prometheus.Desc, v float64, labels ...string) {
			ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, append([]string{info.ID}, labels...)...)
		}
		for i, p := range plainStats {
			kind := prometheus.GaugeValue
			if p.counter {
				kind = prometheus.CounterValue
			}
			ch <- prometheus.MustNewConstMetric(plainDescs[i], kind, p.value(&st), info.ID)
		}
		gauge(pagesDesc, float64(st.PagesUsed), "used")
		gauge(pagesDesc, float64(st.PagesFree), "free")
		gauge(pagesDesc, float64(st.PagesCached), "cached")
		for kind, n := range st.Memory {
			gauge(memoryDesc, float64(n), kind)
		}
		for kind, n := range st.DeviceMemory {
			gauge(deviceDesc, float64(n), kind)
		}
		for holder, n := range st.GPUMemory {
			gauge(gpuDesc, float64(n), holder)
		}
		gauge(contextDesc, float64(info.ContextLength))
		gauge(modelDesc, 1, strings.ToValidUTF8(st.Backend, "?"), strings.ToValidUTF8(st.Device, "?"))
		ch <- histogram(queueWaitDesc, &st.QueueWait, info.ID)
		ch <- histogram(stepTokensDesc, &st.StepTokens, info.ID)
	}
}

func histogram(d *prometheus.Desc, h *Histogram, id string) prometheus.Metric {
	buckets := make(map[float64]uint64, len(h.Bounds))
	for i, b := range h.Bounds {
		if i < len(h.Counts) {
			buckets[b] = h.Counts[i]
		}
	}
	return prometheus.MustNewConstHistogram(d, h.Count, h.Sum, buckets, id)
}

package scrape

// How samples of one family become one number.
type fold int

const (
	sum        fold = iota // counters, and counts of disjoint engines
	largest                // ratios and ages: of several engines the worst
	histSum                // a histogram's _sum
	histCount              // a histogram's _count
	labelsProd             // an info gauge: the product of two labels that hold numbers
)

// rule says where one server keeps a canonical series.
type rule struct {
	family string  // as TYPE lines name it; a counter is found with and without _total
	label  string  // "name=value": only samples with it; for labelsProd "name*name"
	fold   fold    //
	scale  float64 // from the family's unit to the canonical one; 0 means 1
	times  string  // a gauge of the same model_name that each sample is multiplied with
	plus   string  // a family that is added; the rule needs both
}

const (
	seconds = 1e6 // to microseconds
	ratio   = 1e6 // to parts per million
)

// series is one canonical name and its sources, tried in order: the first that the server exposes is taken. Sources: each
// server's documentation or code; vLLM vllm/v1/metrics/loggers.py, llama.cpp tools/server (--metrics).
type series struct {
	name    string
	sources []rule
}

var table = []series{
	{"requests_running", []rule{
		{family: "cotenant_requests_running"},
		{family: "vllm:num_requests_running"},
		{family: "llamacpp:requests_processing"},
	}},
	{"requests_waiting", []rule{
		{family: "cotenant_requests_waiting"},
		{family: "vllm:num_requests_waiting"},
		{family: "llamacpp:requests_deferred"},
	}},
	{"queue_oldest_age_us", []rule{
		{family: "cotenant_queue_oldest_age_seconds", fold: largest, scale: seconds},
	}},
	{"queue_wait_total", []rule{
		{family: "cotenant_queue_wait_seconds", fold: histCount},
		{family: "vllm:request_queue_time_seconds", fold: histCount},
	}},
	{"queue_wait_total_us", []rule{
		{family: "cotenant_queue_wait_seconds", fold: histSum, scale: seconds},
		{family: "vllm:request_queue_time_seconds", fold: histSum, scale: seconds},
	}},
	{"kv_usage_ppm", []rule{
		{family: "cotenant_kv_cache_usage_ratio", fold: largest, scale: ratio},
		{family: "vllm:kv_cache_usage_perc", fold: largest, scale: ratio},
		{family: "vllm:gpu_cache_usage_perc", fold: largest, scale: ratio},
	}},
	{"kv_pages_used", []rule{{family: "cotenant_kv_pages", label: "state=used"}}},
	{"kv_pages_free", []rule{{family: "cotenant_kv_pages", label: "state=free"}}},
	{"kv_pages_cached", []rule{{family: "cotenant_kv_pages", label: "state=cached"}}},
	{"kv_slots", []rule{{family: "cotenant_kv_slots"}}},
	{"kv_capacity_tokens", []rule{
		{family: "cotenant_kv_pages", times: "cotenant_kv_page_tokens"},
		{family: "vllm:cache_config_info", label: "num_gpu_blocks*block_size", fold: labelsProd},
	}},
	{"server_memory_bytes", []rule{
		{family: "cotenant_memory_bytes"},
		{family: "process_resident_memory_bytes"},
	}},
	{"device_memory_bytes", []rule{{family: "cotenant_device_memory_bytes"}}},
	{"prefix_query_tokens_total", []rule{
		{family: "cotenant_prefix_cache_query_tokens_total"},
		{family: "llamacpp:prompt_tokens_total", plus: "llamacpp:prompt_tokens_cached_total"},
		{family: "vllm:prefix_cache_queries_total"},
		{family: "vllm:gpu_prefix_cache_queries_total"},
	}},
	{"prefix_hit_tokens_total", []rule{
		{family: "cotenant_prefix_cache_hit_tokens_total"},
		{family: "llamacpp:prompt_tokens_cached_total"},
		{family: "vllm:prefix_cache_hits_total"},
		{family: "vllm:gpu_prefix_cache_hits_total"},
	}},
	{"prompt_tokens_total", []rule{
		{family: "cotenant_prompt_tokens_total"},
		{family: "vllm:prompt_tokens_total"},
		// The first counts only what was computed; older versions don't expose the second.
		{family: "llamacpp:prompt_tokens_total", plus: "llamacpp:prompt_tokens_cached_total"},
		{family: "llamacpp:prompt_tokens_total"},
	}},
	{"completion_tokens_total", []rule{
		{family: "cotenant_generation_tokens_total"},
		{family: "vllm:generation_tokens_total"},
		{family: "llamacpp:tokens_predicted_total"},
	}},
	{"requests_total", []rule{
		{family: "cotenant_request_success_total"},
		{family: "vllm:request_success_total"},
	}},
	{"preemptions_total", []rule{
		{family: "cotenant_num_preemptions_total"},
		{family: "vllm:num_preemptions_total"},
	}},
	{"requests_aborted_total", []rule{
		{family: "cotenant_requests_failed_total", label: "reason=cancelled"},
		{family: "vllm:request_success_total", label: "finished_reason=abort"},
	}},
}

// Names lists the canonical names in the order of every sample.
func Names() []string {
	names := make([]string, len(table))
	for i, s := range table {
		names[i] = s.name
	}
	return names
}

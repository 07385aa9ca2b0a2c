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
	times  string  // a gauge of the same model that each sample is multiplied with
	plus   string  // a family that is added; the rule needs both
}

const (
	seconds = 1e6 // to microseconds
	ratio   = 1e6 // to parts per million
)

// series is one canonical name and its sources, tried in order: the first that the server exposes is taken. The names are those of
// each server's documentation or code (vLLM vllm/v1/metrics/loggers.py, llama.cpp tools/server, SGLang --enable-metrics, TGI
// docs/reference/metrics, trtllm-serve /prometheus/metrics, Dynamo's frontend and workers, fak's gateway). Where a server's own is not
// what the canonical name means, it is left out: a gauge of paused requests is no count of preemptions, and a count of reused blocks no
// count of tokens.
type series struct {
	name    string
	sources []rule
}

var table = []series{
	{"requests_running", []rule{
		{family: "cotenant_requests_running"},
		{family: "vllm:num_requests_running"},
		{family: "llamacpp:requests_processing"},
		{family: "sglang:num_running_reqs"},
		{family: "tgi_batch_current_size"},
		{family: "trtllm_num_requests_running"},
		{family: "dynamo_frontend_inflight_requests"},
		{family: "dynamo_component_inflight_requests"},
		{family: "fak_sched_running"},
		{family: "fak_gateway_inflight_requests"},
	}},
	{"requests_waiting", []rule{
		{family: "cotenant_requests_waiting"},
		{family: "vllm:num_requests_waiting"},
		{family: "llamacpp:requests_deferred"},
		{family: "sglang:num_queue_reqs"},
		{family: "tgi_queue_size"},
		{family: "trtllm_num_requests_waiting"},
		{family: "dynamo_frontend_queued_requests"},
		{family: "fak_sched_waiting"},
		{family: "fak_queue_depth"},
	}},
	{"queue_oldest_age_us", []rule{
		{family: "cotenant_queue_oldest_age_seconds", fold: largest, scale: seconds},
	}},
	{"queue_wait_total", each(histCount, 1, queueWaits...)},
	{"queue_wait_total_us", each(histSum, seconds, queueWaits...)},
	{"kv_usage_ppm", each(largest, ratio, "cotenant_kv_cache_usage_ratio", "vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc", "sglang:token_usage",
		"trtllm_kv_cache_utilization", "dynamo_component_kvstats_gpu_cache_usage_percent", "fak_serving_kv_cache_usage_ratio")},
	{"kv_pages_used", []rule{
		{family: "cotenant_kv_pages", label: "state=used"},
		{family: "trtllm_kv_cache_used_blocks"},
		{family: "dynamo_component_kvstats_active_blocks"},
	}},
	{"kv_pages_free", []rule{
		{family: "cotenant_kv_pages", label: "state=free"},
		{family: "trtllm_kv_cache_free_blocks"},
	}},
	{"kv_pages_cached", []rule{{family: "cotenant_kv_pages", label: "state=cached"}}},
	{"kv_slots", []rule{{family: "cotenant_kv_slots"}}},
	{"kv_capacity_tokens", []rule{
		{family: "cotenant_kv_pages", times: "cotenant_kv_page_tokens"},
		{family: "vllm:cache_config_info", label: "num_gpu_blocks*block_size", fold: labelsProd},
		{family: "sglang:max_total_num_tokens"},
		{family: "trtllm_kv_cache_max_blocks", times: "trtllm_kv_cache_tokens_per_block"},
		{family: "dynamo_frontend_model_total_kv_blocks", times: "dynamo_frontend_model_kv_cache_block_size"},
		{family: "fak_gateway_kv_memory_budget_tokens"},
	}},
	{"server_memory_bytes", []rule{
		{family: "cotenant_memory_bytes"},
		{family: "fak_harness_rss_bytes"},
		{family: "trtllm_cpu_memory_usage_bytes"},
		{family: "process_resident_memory_bytes"},
	}},
	{"device_memory_bytes", []rule{
		{family: "cotenant_device_memory_bytes"},
		{family: "trtllm_gpu_memory_usage_bytes"},
		{family: "fak_harness_gpu_vram_bytes"},
	}},
	{"prefix_query_tokens_total", []rule{
		{family: "cotenant_prefix_cache_query_tokens_total"},
		{family: "llamacpp:prompt_tokens_total", plus: "llamacpp:prompt_tokens_cached_total"},
		{family: "vllm:prefix_cache_queries_total"},
		{family: "vllm:gpu_prefix_cache_queries_total"},
		{family: "fak_gateway_kv_prefix_prompt_tokens_total"},
		{family: "fak_serving_prefix_cache_queries_total"},
	}},
	{"prefix_hit_tokens_total", []rule{
		{family: "cotenant_prefix_cache_hit_tokens_total"},
		{family: "llamacpp:prompt_tokens_cached_total"},
		{family: "vllm:prefix_cache_hits_total"},
		{family: "vllm:gpu_prefix_cache_hits_total"},
		{family: "vllm:prompt_tokens_cached_total"},
		{family: "sglang:cached_tokens_total"},
		{family: "trtllm_prompt_cached_tokens_total"},
		{family: "fak_gateway_kv_prefix_reused_tokens_total"},
		{family: "fak_gateway_inference_cached_prompt_tokens_total"},
		{family: "fak_serving_prefix_cache_hits_total"},
	}},
	{"prompt_tokens_total", []rule{
		{family: "cotenant_prompt_tokens_total"},
		{family: "vllm:prompt_tokens_total"},
		// The first counts only what was computed; older versions don't expose the second.
		{family: "llamacpp:prompt_tokens_total", plus: "llamacpp:prompt_tokens_cached_total"},
		{family: "llamacpp:prompt_tokens_total"},
		{family: "sglang:prompt_tokens_total"},
		{family: "tgi_request_input_length", fold: histSum},
		{family: "trtllm_prompt_tokens_total"},
		{family: "dynamo_frontend_input_sequence_tokens", fold: histSum},
		{family: "fak_gateway_inference_prompt_tokens_total"},
	}},
	{"completion_tokens_total", []rule{
		{family: "cotenant_generation_tokens_total"},
		{family: "vllm:generation_tokens_total"},
		{family: "llamacpp:tokens_predicted_total"},
		{family: "sglang:generation_tokens_total"},
		{family: "tgi_request_generated_tokens", fold: histSum},
		{family: "trtllm_generation_tokens_total"},
		{family: "dynamo_frontend_output_tokens_total"},
		{family: "fak_gateway_inference_completion_tokens_total"},
	}},
	{"requests_total", []rule{
		{family: "cotenant_request_success_total"},
		{family: "vllm:request_success_total"},
		{family: "sglang:num_requests_total"},
		{family: "tgi_request_success"},
		{family: "trtllm_request_success_total"},
		{family: "dynamo_frontend_requests_total", label: "status=success"},
		{family: "fak_gateway_inference_requests_total"},
	}},
	{"preemptions_total", []rule{
		{family: "cotenant_num_preemptions_total"},
		{family: "vllm:num_preemptions_total"},
		{family: "sglang:num_retracted_requests_total"},
		{family: "fak_sched_preempt_total"},
	}},
	{"requests_aborted_total", []rule{
		{family: "cotenant_requests_failed_total", label: "reason=cancelled"},
		{family: "vllm:request_success_total", label: "finished_reason=abort"},
		{family: "sglang:num_aborted_requests_total"},
	}},
	// A Prometheus client library's own: that it changed is the one sign of a restart between two samples of a server on another machine.
	{"server_start_us", []rule{{family: "process_start_time_seconds", fold: largest, scale: seconds}}},
}

// queueWaits are histograms of the time from arrival to the first scheduling.
var queueWaits = []string{"cotenant_queue_wait_seconds", "vllm:request_queue_time_seconds", "sglang:queue_time_seconds", "tgi_request_queue_duration",
	"trtllm_request_queue_time_seconds", "fak_serving_queue_seconds"}

// each makes a rule of each family.
func each(fold fold, scale float64, families ...string) []rule {
	rules := make([]rule, len(families))
	for i, family := range families {
		rules[i] = rule{family: family, fold: fold, scale: scale}
	}
	return rules
}

// Names lists the canonical names in the order of every sample.
func Names() []string {
	names := make([]string, len(table))
	for i, s := range table {
		names[i] = s.name
	}
	return names
}

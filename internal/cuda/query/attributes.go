package query

// attribute is a CUdevice_attribute whose value is reported.
type attribute struct {
	id    int32
	name  string // cuda.h's, lower case, without CU_DEVICE_ATTRIBUTE_
	since int    // CUDA version that added it; an older driver isn't asked
}

// Attributes that Device's own fields are made of.
const (
	attrSMCount = 16
	attrMajor   = 75
	attrMinor   = 76
)

// attributes are those that bear on sharing a GPU. Ids are cuda.h's and never change.
var attributes = []attribute{
	{16, "multiprocessor_count", 0},
	{17, "kernel_exec_timeout", 0},
	{18, "integrated", 0},
	{20, "compute_mode", 0},
	{31, "concurrent_kernels", 0},
	{32, "ecc_enabled", 0},
	{35, "tcc_driver", 0},
	{36, "memory_clock_rate", 0},       // kHz
	{37, "global_memory_bus_width", 0}, // bits
	{38, "l2_cache_size", 0},           // bytes
	{39, "max_threads_per_multiprocessor", 0},
	{40, "async_engine_count", 0},
	{75, "compute_capability_major", 0},
	{76, "compute_capability_minor", 0},
	{78, "stream_priorities_supported", 0},
	{83, "managed_memory", 0},
	{88, "pageable_memory_access", 0},
	{89, "concurrent_managed_access", 0},
	{90, "compute_preemption_supported", 0},
	{95, "cooperative_launch", 0},
	{100, "pageable_memory_access_uses_host_page_tables", 0},
	{102, "virtual_memory_management_supported", 0},
	{106, "max_blocks_per_multiprocessor", 11000},
	{115, "memory_pools_supported", 11020},
	{120, "cluster_launch", 11080},
	{125, "ipc_event_supported", 12000},
	{132, "multicast_supported", 12010},
	{133, "mps_enabled", 12040},
	{149, "locality_domain_count", FloorLocalityDomain},
	{157, "locality_domain_multiprocessor_count", FloorLocalityDomain},
}

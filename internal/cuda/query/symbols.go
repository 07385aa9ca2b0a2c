package query

// callable is every function of libcuda that this package can call. Each reads; none creates a context. The test
// TestOnlyReadersAreCallable keeps it so.
var callable = []string{
	"cuDeviceGet",
	"cuDeviceGetAttribute",
	"cuDeviceGetCount",
	"cuDeviceGetDevResource",
	"cuDeviceGetExecAffinitySupport",
	"cuDeviceGetName",
	"cuDeviceGetPCIBusId",
	"cuDeviceGetUuid",
	"cuDeviceGetUuid_v2",
	"cuDeviceTotalMem_v2",
	"cuDriverGetVersion",
	"cuInit",
}

// runtimeCallable is every function of libcudart that this package can call. cudaRuntimeGetVersion initialises nothing.
var runtimeCallable = []string{"cudaRuntimeGetVersion"}

// presence are the driver symbols whose presence is reported, with the CUDA version that first had them. They are looked up
// by dl.Library.Has, which returns no address.
var presence = map[string]int{
	"cuCtxFromGreenCtx":              12040,
	"cuCtxGetDevResource":            12040,
	"cuDevResourceGenerateDesc":      12040,
	"cuDevSmResourceSplit":           13010,
	"cuDevSmResourceSplitByCount":    12040,
	"cuDeviceGetDevResource":         12040,
	"cuGreenCtxCreate":               12040,
	"cuGreenCtxDestroy":              12040,
	"cuGreenCtxGetDevResource":       12040,
	"cuGreenCtxGetId":                13000,
	"cuGreenCtxRecordEvent":          12040,
	"cuGreenCtxStreamCreate":         12050,
	"cuGreenCtxWaitEvent":            12040,
	"cuStreamGetCtx_v2":              12050,
	"cuStreamGetDevResource":         13010,
	"cuStreamGetGreenCtx":            12040,
	"cuDeviceGetExecAffinitySupport": 11040,
}

// runtimePresence are the Runtime symbols whose presence is reported. All of them are new in CUDA 13.1.
var runtimePresence = []string{
	"cudaDevResourceGenerateDesc",
	"cudaDevSmResourceSplit",
	"cudaDevSmResourceSplitByCount",
	"cudaDeviceGetDevResource",
	"cudaExecutionCtxDestroy",
	"cudaExecutionCtxGetDevResource",
	"cudaExecutionCtxStreamCreate",
	"cudaGreenCtxCreate",
	"cudaStreamGetDevResource",
}

// Introduced returns the CUDA version that first exported each driver symbol whose presence is reported.
func Introduced() map[string]int {
	m := make(map[string]int, len(presence))
	for name, version := range presence {
		m[name] = version
	}
	return m
}

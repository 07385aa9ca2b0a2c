package cuda

// symbols are the functions that this package can call, by their exported names: cuda.h renames many by macro.
var symbols = []string{
	"cuInit", "cuDriverGetVersion",
	"cuDeviceGetCount", "cuDeviceGet", "cuDeviceGetUuid_v2", "cuDeviceGetName", "cuDeviceGetAttribute",

	"cuDevicePrimaryCtxRetain", "cuDevicePrimaryCtxRelease_v2", "cuDevicePrimaryCtxGetState",
	"cuCtxSetCurrent", "cuCtxSynchronize", "cuCtxGetStreamPriorityRange", "cuCtxGetDevResource",

	"cuDeviceGetDevResource", "cuDevSmResourceSplitByCount", "cuDevSmResourceSplit", "cuDevResourceGenerateDesc",
	"cuGreenCtxCreate", "cuGreenCtxDestroy", "cuGreenCtxGetDevResource", "cuGreenCtxGetId", "cuCtxFromGreenCtx",
	"cuGreenCtxRecordEvent", "cuGreenCtxWaitEvent", "cuGreenCtxStreamCreate",

	"cuStreamCreateWithPriority", "cuStreamDestroy_v2", "cuStreamSynchronize", "cuStreamQuery", "cuStreamGetPriority",
	"cuStreamGetGreenCtx", "cuStreamGetDevResource", "cuStreamWaitEvent",
	"cuEventCreate", "cuEventDestroy_v2", "cuEventRecord", "cuEventQuery", "cuEventSynchronize", "cuEventElapsedTime",

	"cuMemAlloc_v2", "cuMemFree_v2", "cuMemGetInfo_v2", "cuMemcpyHtoD_v2", "cuMemcpyDtoH_v2", "cuMemsetD8_v2",
	"cuMemHostAlloc", "cuMemFreeHost", "cuMemHostRegister_v2", "cuMemHostUnregister",
	"cuMemcpyHtoDAsync_v2", "cuMemcpyDtoHAsync_v2", "cuMemcpyDtoDAsync_v2", "cuMemsetD8Async",
	"cuModuleLoadDataEx", "cuModuleUnload", "cuModuleGetFunction", "cuFuncGetAttribute", "cuFuncSetAttribute",
	"cuLaunchKernel", "cuLaunchKernelEx", "cuTensorMapEncodeTiled",
	"cuStreamBeginCapture_v2", "cuStreamEndCapture", "cuGraphInstantiateWithFlags", "cuGraphExecUpdate_v2", "cuGraphLaunch",
	"cuGraphDestroy", "cuGraphExecDestroy",
}

// Symbols returns the functions that this package can call.
func Symbols() []string { return append([]string(nil), symbols...) }

// GreenSymbols are those without which no Green Context can be made, given streams and queried.
var GreenSymbols = []string{
	"cuDeviceGetDevResource", "cuDevSmResourceSplitByCount", "cuDevResourceGenerateDesc", "cuGreenCtxCreate", "cuGreenCtxDestroy",
	"cuGreenCtxGetDevResource", "cuGreenCtxStreamCreate",
}

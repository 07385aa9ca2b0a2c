// A libcudart that answers from data. FAKE_CUDART is its version.
#include "fake.h"

EXPORT int cudaRuntimeGetVersion(int *version) {
    ENTER();
    *version = (int)NUMBER(0, "version");
    return 0;
}

MUTATING(cudaDeviceReset)
MUTATING(cudaFree)
MUTATING(cudaMalloc)
MUTATING(cudaSetDevice)
#if FAKE_CUDART >= 13010
MUTATING(cudaDevResourceGenerateDesc)
MUTATING(cudaDevSmResourceSplit)
MUTATING(cudaDevSmResourceSplitByCount)
MUTATING(cudaDeviceGetDevResource)
MUTATING(cudaExecutionCtxDestroy)
MUTATING(cudaExecutionCtxGetDevResource)
MUTATING(cudaExecutionCtxStreamCreate)
MUTATING(cudaGreenCtxCreate)
MUTATING(cudaStreamGetDevResource)
#endif

// A libcuda.so.1 that answers from data. FAKE_CUDA is the CUDA version whose symbols it exports.
#include "fake.h"
#include <stdint.h>

typedef int CUresult;
typedef int CUdevice;

enum { INVALID_VALUE = 1, NOT_INITIALIZED = 3, INVALID_DEVICE = 101, INVALID_RESOURCE_TYPE = 914 };

static int initialised;

// The driver's resource: 96 bytes that are its own, then the resource, whose fields grew with each version.
struct resource {
    unsigned type;
    unsigned char internal[92];
    union {
        struct { unsigned count, min, alignment, flags, domain; } sm;
        struct { int device; unsigned limit, scope; } wq;
        unsigned char bytes[40];
    } u;
    void *next;
};

#define READY() if (!initialised) return NOT_INITIALIZED
#include "create.h"

// An MPS control daemon that answers starts a server for a process that initialises CUDA.
static void meet_mps(void) {
    const char *dir = getenv("CUDA_MPS_PIPE_DIRECTORY");
    char path[4096];
    if (!dir) dir = text("mps.default");
    if (!dir) return;
    snprintf(path, sizeof path, "%s/control", dir);
    if (!access(path, F_OK)) note("MUTATING cuInit started an MPS server at %s", dir);
}

EXPORT CUresult cuInit(unsigned flags) {
    ENTER();
    (void)flags;
    meet_mps();
    int code = (int)NUMBER(0, "init");
    if (!code) initialised = 1;
    read_visible();
    if (!code && visible == -2) return 100;
    if (!code) code = mps_connect();
    return code;
}

EXPORT CUresult cuDriverGetVersion(int *version) {
    ENTER();
    *version = (int)NUMBER(0, "version");
    return 0;
}

#define DEVICE(d) \
    ENTER_AT("cuda", d); \
    READY(); \
    if (d < 0 || d >= NUMBER(0, "cuda.count")) return INVALID_DEVICE

EXPORT CUresult cuDeviceGetCount(int *count) {
    ENTER();
    READY();
    *count = visible >= 0 ? 1 : (int)NUMBER(0, "cuda.count");
    return 0;
}

EXPORT CUresult cuDeviceGet(CUdevice *device, int d) {
    DEVICE(d);
    if (visible >= 0 && d) return INVALID_DEVICE;
    *device = visible >= 0 ? visible : d;
    return 0;
}

EXPORT CUresult cuDeviceGetName(char *name, int length, CUdevice d) {
    DEVICE(d);
    put_text(name, length, text("cuda.%d.name", d));
    return 0;
}

EXPORT CUresult cuDeviceGetPCIBusId(char *id, int length, CUdevice d) {
    DEVICE(d);
    put_text(id, length, text("cuda.%d.pci", d));
    return 0;
}

static void put_uuid(unsigned char *out, const char *hex) {
    for (int i = 0; hex && i < 16; i++) {
        unsigned x = 0;
        sscanf(hex + 2 * i, "%2x", &x);
        out[i] = x;
    }
}

EXPORT CUresult cuDeviceGetUuid(unsigned char *uuid, CUdevice d) {
    DEVICE(d);
    put_uuid(uuid, text("cuda.%d.parent", d));
    return 0;
}

#if FAKE_CUDA >= 11040
EXPORT CUresult cuDeviceGetUuid_v2(unsigned char *uuid, CUdevice d) {
    DEVICE(d);
    put_uuid(uuid, text("cuda.%d.uuid", d));
    return 0;
}

EXPORT CUresult cuDeviceGetExecAffinitySupport(int *supported, int type, CUdevice d) {
    DEVICE(d);
    if (type) return INVALID_VALUE;
    *supported = (int)NUMBER(1, "cuda.%d.affinity", d);
    return 0;
}
MUTATING(cuCtxCreate_v3)
#endif

EXPORT CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice d) {
    DEVICE(d);
    *bytes = (size_t)NUMBER(0, "cuda.%d.memory", d);
    return 0;
}

EXPORT CUresult cuDeviceGetAttribute(int *value, int attribute, CUdevice d) {
    DEVICE(d);
    const char *known = text("cuda.%d.attr.%d", d, attribute);
    if (!known) return INVALID_VALUE;
    *value = atoi(known);
    if (attribute == 133) *value = mps_on;
    if (attribute == 16 && mps_share >= 0) *value = mps_share;
    return 0;
}

#if FAKE_CUDA >= 12040
EXPORT CUresult cuDeviceGetDevResource(CUdevice d, struct resource *r, int type) {
    DEVICE(d);
    int version = (int)NUMBER(0, "version");
    memset(r, 0xa5, 144); // what a version doesn't fill must not be read
    r->type = type;
    switch (type) {
    case 1: {
        mask m = all_sms(d);
        make_sm(r, d, &m, 0);
        return 0;
    }
    case 1000:
        if (version < 13010) return INVALID_RESOURCE_TYPE;
        r->u.wq.device = d;
        r->u.wq.limit = (unsigned)NUMBER(8, "cuda.%d.workqueues", d);
        r->u.wq.scope = 0;
        return 0;
    case 10000:
        if (version < 13010) return INVALID_RESOURCE_TYPE;
        memset(r->u.bytes, 0, sizeof r->u.bytes);
        return 0;
    }
    return INVALID_RESOURCE_TYPE;
}

#endif
#if FAKE_CUDA >= 13000
MUTATING(cuCtxCreate_v4)
#endif

MUTATING(cuCtxCreate_v2)
MUTATING(cuCtxDestroy_v2)
MUTATING(cuCtxSetLimit)
MUTATING(cuDevicePrimaryCtxReset_v2)
MUTATING(cuDevicePrimaryCtxSetFlags_v2)
MUTATING(cuLibraryLoadData)
MUTATING(cuModuleLoadData)
MUTATING(cuStreamCreate)

// A libnvidia-ml.so.1 that answers from data. FAKE_NVML is the CUDA version of the driver that it plays.
#include "fake.h"
#include "nvml.h"
#include "usage.h"

enum {
    UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7,
    ARGUMENT_VERSION_MISMATCH = 25
};

static int initialised;

// A handle is the address of one of these: the GPU, and the MIG slot plus one, 0 for the GPU itself.
typedef struct { int gpu, slot; } *device;
static struct { int gpu, slot; } handles[64][33];

static device handle(int gpu, int slot) {
    handles[gpu][slot].gpu = gpu;
    handles[gpu][slot].slot = slot;
    return (device)&handles[gpu][slot];
}

static int start(void) {
    int code = (int)NUMBER(0, "init");
    if (!code) initialised = 1;
    return code;
}

// With NVML_INIT_FLAG_NO_ATTACH a driver lists no GPU: measured on an H200, driver 580.159.04.
static int attached = 1;
EXPORT int nvmlInitWithFlags(unsigned flags) { ENTER(); attached = !(flags & 2); return start(); }
EXPORT int nvmlInit_v2(void) { ENTER(); return start(); }
EXPORT int nvmlShutdown(void) { ENTER(); initialised = 0; return 0; }

#define READY() if (!initialised) return UNINITIALIZED
#define GPU(d) \
    if (!d) return INVALID_ARGUMENT; \
    ENTER_AT("nvml", d->gpu); \
    READY()
// A call that MIG handles don't have.
#define WHOLE(d) \
    GPU(d); \
    if (d->slot) return NOT_SUPPORTED

EXPORT int nvmlSystemGetDriverVersion(char *out, unsigned length) {
    ENTER(); READY();
    put_text(out, length, text("driver"));
    return 0;
}

EXPORT int nvmlSystemGetNVMLVersion(char *out, unsigned length) {
    ENTER();
    put_text(out, length, text("nvml"));
    return 0;
}

EXPORT int nvmlSystemGetCudaDriverVersion_v2(int *version) {
    ENTER();
    *version = (int)NUMBER(0, "cuda");
    return 0;
}

EXPORT int nvmlDeviceGetCount_v2(unsigned *count) {
    ENTER(); READY();
    *count = attached ? (unsigned)NUMBER(0, "nvml.count") : 0;
    return 0;
}

EXPORT int nvmlDeviceGetHandleByIndex_v2(unsigned index, device *out) {
    ENTER_AT("nvml", index); READY();
    if (index >= NUMBER(0, "nvml.count")) return INVALID_ARGUMENT;
    *out = handle(index, 0);
    return 0;
}

EXPORT int nvmlDeviceGetHandleByUUID(const char *uuid, device *out) {
    ENTER(); READY();
    for (int i = 0; i < NUMBER(0, "nvml.count"); i++)
    {
        if (text("nvml.%d.uuid", i) && !strcmp(uuid, text("nvml.%d.uuid", i))) { *out = handle(i, 0); return 0; }
        for (int k = 0; k < 32; k++)
            if (text("nvml.%d.mig.%d.uuid", i, k) && !strcmp(uuid, text("nvml.%d.mig.%d.uuid", i, k))) { *out = handle(i, k + 1); return 0; }
    }
    return NOT_FOUND;
}

EXPORT int nvmlDeviceGetUUID(device d, char *out, unsigned length) {
    GPU(d);
    put_text(out, length, d->slot ? text("nvml.%d.mig.%d.uuid", d->gpu, d->slot - 1) : text("nvml.%d.uuid", d->gpu));
    return 0;
}

EXPORT int nvmlDeviceGetName(device d, char *out, unsigned length) {
    GPU(d);
    put_text(out, length, d->slot ? text("nvml.%d.mig.%d.name", d->gpu, d->slot - 1) : text("nvml.%d.name", d->gpu));
    return 0;
}

EXPORT int nvmlDeviceGetPciInfo_v3(device d, pciInfo *out) {
    WHOLE(d);
    memset(out, 0, sizeof *out);
    put_text(out->busId, sizeof out->busId, text("nvml.%d.bus", d->gpu));
    sscanf(out->busId, "%x:%x:%x", &out->domain, &out->bus, &out->device);
    snprintf(out->busIdLegacy, sizeof out->busIdLegacy, "%04X:%02X:%02X.0", out->domain & 0xffff, out->bus & 0xff, out->device & 0xff);
    out->pciDeviceId = (unsigned)NUMBER(0, "nvml.%d.pciid", d->gpu);
    return 0;
}

EXPORT int nvmlDeviceGetCudaComputeCapability(device d, int *major, int *minor) {
    WHOLE(d);
    sscanf(text("nvml.%d.cc", d->gpu), "%d.%d", major, minor);
    return 0;
}

// Calls that write one unsigned int, one unsigned long long, or two unsigned ints, from a key of their GPU.
#define GET(name, type, key) \
    EXPORT int name(device d, type *out) { \
        WHOLE(d); \
        const char *value = text("nvml.%d." key, d->gpu); \
        if (!value) return NOT_SUPPORTED; \
        *out = (type)number_of(value, 0); \
        return 0; \
    }
#define GET2(name, key) \
    EXPORT int name(device d, unsigned *current, unsigned *pending) { \
        WHOLE(d); \
        const char *value = text("nvml.%d." key, d->gpu); \
        if (!value || sscanf(value, "%u,%u", current, pending) != 2) return NOT_SUPPORTED; \
        return 0; \
    }
// Calls with an enumeration's value before the result; the key ends in it.
#define GET_BY(name, key) \
    EXPORT int name(device d, unsigned kind, unsigned *out) { \
        WHOLE(d); \
        const char *value = text("nvml.%d." key ".%u", d->gpu, kind); \
        if (!value) return NOT_SUPPORTED; \
        *out = (unsigned)number_of(value, 0); \
        return 0; \
    }

GET(nvmlDeviceGetMinorNumber, unsigned, "minor")
GET(nvmlDeviceGetComputeMode, unsigned, "computemode")
GET(nvmlDeviceGetPersistenceMode, unsigned, "persistence")
GET(nvmlDeviceGetDisplayMode, unsigned, "display")
GET(nvmlDeviceGetDisplayActive, unsigned, "display")
GET(nvmlDeviceGetVirtualizationMode, unsigned, "virtualization")
GET(nvmlDeviceGetHostVgpuMode, unsigned, "hostvgpu")
GET(nvmlDeviceGetPowerUsage, unsigned, "power")
GET(nvmlDeviceGetEnforcedPowerLimit, unsigned, "limit")
GET(nvmlDeviceGetTotalEnergyConsumption, unsigned long long, "energy")
GET(nvmlDeviceGetPerformanceState, unsigned, "pstate")
GET(nvmlDeviceGetCurrentClocksThrottleReasons, unsigned long long, "throttle")
GET(nvmlDeviceGetRetiredPagesPendingStatus, unsigned, "retired")
GET2(nvmlDeviceGetEccMode, "ecc")
GET_BY(nvmlDeviceGetClockInfo, "clock")
GET_BY(nvmlDeviceGetMaxClockInfo, "maxclock")

EXPORT int nvmlDeviceGetTemperature(device d, unsigned sensor, unsigned *out) {
    WHOLE(d);
    if (sensor) return INVALID_ARGUMENT;
    *out = (unsigned)NUMBER(0, "nvml.%d.temperature", d->gpu);
    return 0;
}

EXPORT int nvmlDeviceGetTotalEccErrors(device d, int type, int counter, unsigned long long *out) {
    WHOLE(d);
    const char *value = text("nvml.%d.eccerrors", d->gpu);
    if (!value) return NOT_SUPPORTED;
    (void)counter;
    *out = type == 1 ? (unsigned long long)number_of(value, 0) : 0;
    return 0;
}

EXPORT int nvmlDeviceGetUtilizationRates(device d, utilization *out) {
    WHOLE(d);
    out->gpu = (unsigned)NUMBER(0, "nvml.%d.busy", d->gpu);
    out->memory = out->gpu / 2;
    return 0;
}

EXPORT int nvmlDeviceGetMemoryInfo(device d, memory *out) {
    GPU(d);
    if (d->slot) {
        out->total = (unsigned long long)NUMBER(0, "nvml.%d.mig.%d.mib", d->gpu, d->slot - 1) << 20;
        out->used = 0;
    } else {
        out->total = (unsigned long long)NUMBER(0, "nvml.%d.memory", d->gpu);
        out->used = (unsigned long long)(NUMBER(0, "nvml.%d.used", d->gpu) + NUMBER(0, "nvml.%d.reserved", d->gpu)) + held_bytes(d->gpu);
    }
    out->free = out->total - out->used;
    return 0;
}

// List calls: *count is the room, then the length; too little room is an error that tells the length.
static int list_processes(device d, const char *kind, unsigned *count, void *out, int v1) {
    struct holder held[64];
    unsigned listed = (unsigned)NUMBER(0, "nvml.%d.%s.count", d->gpu, kind), room = *count;
    unsigned n = listed + (strcmp(kind, "compute") ? 0 : live_holders(d->gpu, held, 64));
    *count = n;
    if (!n) return 0;
    if (room < n || !out) return INSUFFICIENT_SIZE;
    for (unsigned i = 0; i < n; i++) {
        unsigned pid = (unsigned)NUMBER(0, "nvml.%d.%s.%u.pid", d->gpu, kind, i);
        unsigned long long used = (unsigned long long)NUMBER(-1, "nvml.%d.%s.%u.used", d->gpu, kind, i);
        if (i >= listed) { pid = held[i - listed].pid; used = held[i - listed].bytes; }
        if (v1) ((processInfoV1 *)out)[i] = (processInfoV1){pid, used};
        else ((processInfo *)out)[i] = (processInfo){pid, used, 0xffffffff, 0xffffffff};
    }
    return 0;
}

#define PROCESSES(name, kind, v1) \
    EXPORT int name(device d, unsigned *count, void *out) { WHOLE(d); return list_processes(d, kind, count, out, v1); }

PROCESSES(nvmlDeviceGetComputeRunningProcesses, "compute", 1)
PROCESSES(nvmlDeviceGetGraphicsRunningProcesses, "graphics", 1)

#if FAKE_NVML >= 11000
PROCESSES(nvmlDeviceGetMPSComputeRunningProcesses, "mps", 1)
PROCESSES(nvmlDeviceGetComputeRunningProcesses_v2, "compute", 0)
PROCESSES(nvmlDeviceGetGraphicsRunningProcesses_v2, "graphics", 0)
PROCESSES(nvmlDeviceGetMPSComputeRunningProcesses_v2, "mps", 0)
GET(nvmlDeviceGetArchitecture, unsigned, "architecture")
GET2(nvmlDeviceGetMigMode, "mig")
GET(nvmlDeviceGetMaxMigDeviceCount, unsigned, "migmax")

EXPORT int nvmlDeviceGetMigDeviceHandleByIndex(device d, unsigned slot, device *out) {
    WHOLE(d);
    if (slot >= NUMBER(0, "nvml.%d.migmax", d->gpu)) return INVALID_ARGUMENT;
    if (!text("nvml.%d.mig.%u.uuid", d->gpu, slot)) return NOT_FOUND;
    *out = handle(d->gpu, slot + 1);
    return 0;
}

static int instance(device d, const char *key, unsigned *out) {
    if (!d->slot) return NOT_SUPPORTED;
    *out = (unsigned)NUMBER(0, "nvml.%d.mig.%d.%s", d->gpu, d->slot - 1, key);
    return 0;
}

EXPORT int nvmlDeviceGetGpuInstanceId(device d, unsigned *out) { GPU(d); return instance(d, "gi", out); }
EXPORT int nvmlDeviceGetComputeInstanceId(device d, unsigned *out) { GPU(d); return instance(d, "ci", out); }

EXPORT int nvmlDeviceGetAttributes_v2(device d, deviceAttributes *out) {
    GPU(d);
    if (!d->slot) return NOT_SUPPORTED;
    memset(out, 0, sizeof *out);
    instance(d, "sms", &out->multiprocessorCount);
    instance(d, "slices", &out->gpuInstanceSliceCount);
    instance(d, "cislices", &out->computeInstanceSliceCount);
    out->sharedCopyEngineCount = out->gpuInstanceSliceCount;
    out->memorySizeMB = (unsigned long long)NUMBER(0, "nvml.%d.mig.%d.mib", d->gpu, d->slot - 1);
    return 0;
}

#define PROFILE(key) (unsigned)NUMBER(0, "nvml.%d.profile.%u." key, d->gpu, index)
#define FILL_PROFILE(p) \
    (p)->id = PROFILE("id"); (p)->sliceCount = PROFILE("slices"); (p)->instanceCount = PROFILE("instances"); \
    (p)->multiprocessorCount = PROFILE("sms"); (p)->copyEngineCount = PROFILE("slices"); \
    (p)->memorySizeMB = (unsigned long long)NUMBER(0, "nvml.%d.profile.%u.mib", d->gpu, index)

EXPORT int nvmlDeviceGetGpuInstanceProfileInfo(device d, unsigned index, profileInfoV1 *out) {
    WHOLE(d);
    if (!text("nvml.%d.profile.%u.id", d->gpu, index)) return index < 10 ? NOT_SUPPORTED : INVALID_ARGUMENT;
    FILL_PROFILE(out);
    return 0;
}

EXPORT int nvmlDeviceGetGpuInstanceRemainingCapacity(device d, unsigned id, unsigned *out) {
    WHOLE(d);
    const char *value = text("nvml.%d.remaining.%u", d->gpu, id);
    if (!value) return NOT_SUPPORTED;
    *out = (unsigned)number_of(value, 0);
    return 0;
}

EXPORT int nvmlDeviceGetGpuInstancePossiblePlacements_v2(device d, unsigned id, placement *out, unsigned *count) {
    WHOLE(d);
    unsigned n = (unsigned)NUMBER(0, "nvml.%d.placements.%u", d->gpu, id);
    if (!n) return NOT_SUPPORTED;
    if (!out) { *count = n; return 0; }
    if (*count < n) return INSUFFICIENT_SIZE;
    *count = n;
    for (unsigned i = 0; i < n; i++) out[i] = (placement){i, 1};
    return 0;
}

EXPORT int nvmlDeviceGetRemappedRows(device d, unsigned *corrected, unsigned *uncorrected, unsigned *pending, unsigned *failed) {
    WHOLE(d);
    const char *value = text("nvml.%d.remap", d->gpu);
    if (!value) return NOT_SUPPORTED;
    sscanf(value, "%u,%u,%u,%u", corrected, uncorrected, pending, failed);
    return 0;
}

GET(nvmlDeviceGetNumGpuCores, unsigned, "cores")
MUTATING(nvmlDeviceSetMigMode)
MUTATING(nvmlDeviceCreateGpuInstance)
MUTATING(nvmlGpuInstanceCreateComputeInstance)
MUTATING(nvmlGpuInstanceDestroy)
#endif

#if FAKE_NVML >= 11060
PROCESSES(nvmlDeviceGetComputeRunningProcesses_v3, "compute", 0)
PROCESSES(nvmlDeviceGetGraphicsRunningProcesses_v3, "graphics", 0)
PROCESSES(nvmlDeviceGetMPSComputeRunningProcesses_v3, "mps", 0)

EXPORT int nvmlDeviceGetMemoryInfo_v2(device d, memoryV2 *out) {
    GPU(d);
    if (out->version != NVML_VERSIONED(memoryV2, 2)) return ARGUMENT_VERSION_MISMATCH;
    memory m;
    int code = nvmlDeviceGetMemoryInfo(d, &m);
    if (code) return code;
    out->reserved = d->slot ? 0 : (unsigned long long)NUMBER(0, "nvml.%d.reserved", d->gpu);
    out->total = m.total;
    out->free = m.free;
    out->used = m.used - out->reserved;
    return 0;
}

EXPORT int nvmlDeviceGetGpuInstanceProfileInfoV(device d, unsigned index, void *out) {
    WHOLE(d);
    unsigned version = *(unsigned *)out;
    if (version != NVML_VERSIONED(profileInfoV2, 2) && (FAKE_NVML < 12020 || version != NVML_VERSIONED(profileInfoV3, 3)))
        return ARGUMENT_VERSION_MISMATCH;
    if (!text("nvml.%d.profile.%u.id", d->gpu, index)) return index < 18 ? NOT_SUPPORTED : INVALID_ARGUMENT;
    if (version >> 24 == 2) {
        profileInfoV2 *p = out;
        FILL_PROFILE(p);
        put_text(p->name, sizeof p->name, text("nvml.%d.profile.%u.name", d->gpu, index));
    } else {
        profileInfoV3 *p = out;
        FILL_PROFILE(p);
        put_text(p->name, sizeof p->name, text("nvml.%d.profile.%u.name", d->gpu, index));
    }
    return 0;
}
#endif

#if FAKE_NVML >= 12020
GET(nvmlDeviceGetCurrentClocksEventReasons, unsigned long long, "throttle")

EXPORT int nvmlDeviceGetGpuFabricInfoV(device d, fabricInfo *out) {
    WHOLE(d);
    if (out->version != NVML_VERSIONED(fabricInfo, 2)) return ARGUMENT_VERSION_MISMATCH;
    const char *value = text("nvml.%d.fabric", d->gpu);
    if (!value) return NOT_SUPPORTED;
    out->state = (unsigned char)number_of(value, 0);
    out->status = 0;
    out->healthMask = 0;
    return 0;
}

EXPORT int nvmlSystemGetConfComputeState(confCompute *out) {
    ENTER(); READY();
    memset(out, 0, sizeof *out);
    return 0;
}
#endif

#if FAKE_NVML >= 13000
EXPORT int nvmlDeviceGetAddressingMode(device d, addressingMode *out) {
    WHOLE(d);
    if (out->version != NVML_VERSIONED(addressingMode, 1)) return ARGUMENT_VERSION_MISMATCH;
    out->value = (unsigned)NUMBER(0, "nvml.%d.addressing", d->gpu);
    return 0;
}

EXPORT int nvmlDeviceGetTemperatureV(device d, temperature *out) {
    WHOLE(d);
    if (out->version != NVML_VERSIONED(temperature, 1)) return ARGUMENT_VERSION_MISMATCH;
    if (out->sensorType) return INVALID_ARGUMENT;
    out->temperature = (int)NUMBER(0, "nvml.%d.temperature", d->gpu);
    return 0;
}

EXPORT int nvmlDeviceGetRepairStatus(device d, repairStatus *out) {
    WHOLE(d);
    if (out->version != NVML_VERSIONED(repairStatus, 1)) return ARGUMENT_VERSION_MISMATCH;
    if (!text("nvml.%d.remap", d->gpu)) return NOT_SUPPORTED;
    out->channelPending = out->tpcPending = 0;
    return 0;
}
#endif

MUTATING(nvmlDeviceSetComputeMode)
MUTATING(nvmlDeviceSetPersistenceMode)
MUTATING(nvmlDeviceSetPowerManagementLimit)
MUTATING(nvmlDeviceResetApplicationsClocks)
MUTATING(nvmlDeviceSetGpuLockedClocks)

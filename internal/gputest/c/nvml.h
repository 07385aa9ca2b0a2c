// The structs of NVML's public interface that this project uses, written from its documentation for 64-bit platforms.
#define NVML_VERSIONED(type, n) ((unsigned)sizeof(type) | (unsigned)(n) << 24)

typedef struct {
    char busIdLegacy[16];
    unsigned domain, bus, device, pciDeviceId, pciSubSystemId;
    char busId[32];
} pciInfo;

typedef struct { unsigned long long total, free, used; } memory;
typedef struct { unsigned version; unsigned long long total, reserved, free, used; } memoryV2;
typedef struct { unsigned pid; unsigned long long usedGpuMemory; } processInfoV1;
typedef struct { unsigned pid; unsigned long long usedGpuMemory; unsigned gpuInstanceId, computeInstanceId; } processInfo;

typedef struct {
    unsigned multiprocessorCount, sharedCopyEngineCount, sharedDecoderCount, sharedEncoderCount, sharedJpegCount, sharedOfaCount;
    unsigned gpuInstanceSliceCount, computeInstanceSliceCount;
    unsigned long long memorySizeMB;
} deviceAttributes;

typedef struct {
    unsigned id, isP2pSupported, sliceCount, instanceCount, multiprocessorCount;
    unsigned copyEngineCount, decoderCount, encoderCount, jpegCount, ofaCount;
    unsigned long long memorySizeMB;
} profileInfoV1;

typedef struct {
    unsigned version, id, isP2pSupported, sliceCount, instanceCount, multiprocessorCount;
    unsigned copyEngineCount, decoderCount, encoderCount, jpegCount, ofaCount;
    unsigned long long memorySizeMB;
    char name[96];
} profileInfoV2;

typedef struct {
    unsigned version, id, sliceCount, instanceCount, multiprocessorCount;
    unsigned copyEngineCount, decoderCount, encoderCount, jpegCount, ofaCount;
    unsigned long long memorySizeMB;
    char name[96];
    unsigned capabilities;
} profileInfoV3;

typedef struct { unsigned start, size; } placement;
typedef struct { unsigned version, value; } addressingMode;
typedef struct { unsigned version, channelPending, tpcPending; } repairStatus;
typedef struct { unsigned version, sensorType; int temperature; } temperature;
typedef struct { unsigned gpu, memory; } utilization;

typedef struct {
    unsigned version;
    unsigned char clusterUuid[16];
    int status;
    unsigned cliqueId;
    unsigned char state;
    unsigned healthMask;
} fabricInfo;

typedef struct { unsigned environment, ccFeature, devToolsMode; } confCompute;

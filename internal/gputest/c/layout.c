// Prints size and offsets of the structs of nvml.h, for a test that compares them with Go's.
#include "nvml.h"
#include <stddef.h>
#include <stdio.h>

#define SIZE(type) printf(#type " %zu\n", sizeof(type))
#define FIELD(type, field) printf(#type "." #field " %zu\n", offsetof(type, field))

int main(void) {
    SIZE(pciInfo); FIELD(pciInfo, busIdLegacy); FIELD(pciInfo, domain); FIELD(pciInfo, bus); FIELD(pciInfo, device);
    FIELD(pciInfo, pciDeviceId); FIELD(pciInfo, pciSubSystemId); FIELD(pciInfo, busId);
    SIZE(memory); FIELD(memory, total); FIELD(memory, free); FIELD(memory, used);
    SIZE(memoryV2); FIELD(memoryV2, version); FIELD(memoryV2, total); FIELD(memoryV2, reserved); FIELD(memoryV2, free); FIELD(memoryV2, used);
    SIZE(processInfoV1); FIELD(processInfoV1, pid); FIELD(processInfoV1, usedGpuMemory);
    SIZE(processInfo); FIELD(processInfo, pid); FIELD(processInfo, usedGpuMemory); FIELD(processInfo, gpuInstanceId); FIELD(processInfo, computeInstanceId);
    SIZE(deviceAttributes); FIELD(deviceAttributes, multiprocessorCount); FIELD(deviceAttributes, sharedOfaCount);
    FIELD(deviceAttributes, gpuInstanceSliceCount); FIELD(deviceAttributes, computeInstanceSliceCount); FIELD(deviceAttributes, memorySizeMB);
    SIZE(profileInfoV1); FIELD(profileInfoV1, id); FIELD(profileInfoV1, ofaCount); FIELD(profileInfoV1, memorySizeMB);
    SIZE(profileInfoV2); FIELD(profileInfoV2, version); FIELD(profileInfoV2, sliceCount); FIELD(profileInfoV2, memorySizeMB); FIELD(profileInfoV2, name);
    SIZE(profileInfoV3); FIELD(profileInfoV3, version); FIELD(profileInfoV3, sliceCount); FIELD(profileInfoV3, memorySizeMB); FIELD(profileInfoV3, name);
    FIELD(profileInfoV3, capabilities);
    SIZE(placement); FIELD(placement, start); FIELD(placement, size);
    SIZE(addressingMode); FIELD(addressingMode, value);
    SIZE(repairStatus); FIELD(repairStatus, channelPending); FIELD(repairStatus, tpcPending);
    SIZE(temperature); FIELD(temperature, sensorType); FIELD(temperature, temperature);
    SIZE(utilization); FIELD(utilization, memory);
    SIZE(fabricInfo); FIELD(fabricInfo, clusterUuid); FIELD(fabricInfo, status); FIELD(fabricInfo, cliqueId); FIELD(fabricInfo, state); FIELD(fabricInfo, healthMask);
    SIZE(confCompute); FIELD(confCompute, ccFeature);
    return 0;
}

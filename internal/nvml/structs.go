package nvml

// Layouts of nvml.h's structs on 64-bit platforms. A test compares sizes and offsets with a C compiler's. Structs with a
// version field carry their size in its low 24 bits and their version above (NVML_STRUCT_VERSION).

func structVersion(size uintptr, version uint32) uint32 { return uint32(size) | version<<24 }

type pciInfo struct { // nvmlPciInfo_t, of nvmlDeviceGetPciInfo_v3
	busIDLegacy    [16]byte
	domain         uint32
	bus            uint32
	device         uint32
	pciDeviceID    uint32
	pciSubSystemID uint32
	busID          [32]byte
}

type memory struct { // nvmlMemory_t
	total, free, used uint64
}

type memoryV2 struct { // nvmlMemory_v2_t
	version                     uint32
	total, reserved, free, used uint64
}

type processInfoV1 struct { // nvmlProcessInfo_v1_t
	pid           uint32
	usedGpuMemory uint64
}

type processInfo struct { // nvmlProcessInfo_t of the calls with suffixes _v2 and _v3
	pid               uint32
	usedGpuMemory     uint64
	gpuInstanceID     uint32
	computeInstanceID uint32
}

type deviceAttributes struct { // nvmlDeviceAttributes_t
	multiprocessorCount       uint32
	sharedCopyEngineCount     uint32
	sharedDecoderCount        uint32
	sharedEncoderCount        uint32
	sharedJpegCount           uint32
	sharedOfaCount            uint32
	gpuInstanceSliceCount     uint32
	computeInstanceSliceCount uint32
	memorySizeMB              uint64
}

type profileInfoV1 struct { // nvmlGpuInstanceProfileInfo_t
	id, isP2pSupported, sliceCount, instanceCount, multiprocessorCount uint32
	copyEngineCount, decoderCount, encoderCount, jpegCount, ofaCount   uint32
	memorySizeMB                                                       uint64
}

type profileInfoV2 struct { // nvmlGpuInstanceProfileInfo_v2_t
	version, id, isP2pSupported, sliceCount, instanceCount, multiprocessorCount uint32
	copyEngineCount, decoderCount, encoderCount, jpegCount, ofaCount            uint32
	memorySizeMB                                                                uint64
	name                                                                        [96]byte
}

type profileInfoV3 struct { // nvmlGpuInstanceProfileInfo_v3_t
	version, id, sliceCount, instanceCount, multiprocessorCount      uint32
	copyEngineCount, decoderCount, encoderCount, jpegCount, ofaCount uint32
	memorySizeMB                                                     uint64
	name                                                             [96]byte
	capabilities                                                     uint32
}

type placement struct{ start, size uint32 } // nvmlGpuInstancePlacement_t

type addressingMode struct{ version, value uint32 } // nvmlDeviceAddressingMode_v1_t

type repairStatus struct{ version, channelPending, tpcPending uint32 } // nvmlRepairStatus_v1_t

type temperature struct { // nvmlTemperature_v1_t
	version, sensorType uint32
	temperature         int32
}

type utilization struct{ gpu, memory uint32 } // nvmlUtilization_t

type fabricInfo struct { // nvmlGpuFabricInfo_v2_t
	version     uint32
	clusterUUID [16]byte
	status      int32
	cliqueID    uint32
	state       uint8
	healthMask  uint32
}

type confCompute struct{ environment, ccFeature, devToolsMode uint32 } // nvmlConfComputeSystemState_t

package nvml

import "strconv"

// Return is an nvmlReturn_t. Its text needs no library.
type Return int32

// Codes that callers branch on; names holds all.
const (
	Success                 Return = 0
	Uninitialized           Return = 1
	InvalidArgument         Return = 2
	NotSupported            Return = 3
	NoPermission            Return = 4
	NotFound                Return = 6
	InsufficientSize        Return = 7
	DriverNotLoaded         Return = 9
	Timeout                 Return = 10
	LibraryNotFound         Return = 12
	FunctionNotFound        Return = 13
	GPUIsLost               Return = 15
	ResetRequired           Return = 16
	OperatingSystem         Return = 17
	LibRMVersionMismatch    Return = 18
	InUse                   Return = 19
	ArgumentVersionMismatch Return = 25
	NotReady                Return = 27
	GPUNotFound             Return = 28
	Unknown                 Return = 999
)

// names holds every result code of nvml.h as of CUDA 13.5.
var names = map[Return]string{
	0:   "NVML_SUCCESS",
	1:   "NVML_ERROR_UNINITIALIZED",
	2:   "NVML_ERROR_INVALID_ARGUMENT",
	3:   "NVML_ERROR_NOT_SUPPORTED",
	4:   "NVML_ERROR_NO_PERMISSION",
	5:   "NVML_ERROR_ALREADY_INITIALIZED",
	6:   "NVML_ERROR_NOT_FOUND",
	7:   "NVML_ERROR_INSUFFICIENT_SIZE",
	8:   "NVML_ERROR_INSUFFICIENT_POWER",
	9:   "NVML_ERROR_DRIVER_NOT_LOADED",
	10:  "NVML_ERROR_TIMEOUT",
	11:  "NVML_ERROR_IRQ_ISSUE",
	12:  "NVML_ERROR_LIBRARY_NOT_FOUND",
	13:  "NVML_ERROR_FUNCTION_NOT_FOUND",
	14:  "NVML_ERROR_CORRUPTED_INFOROM",
	15:  "NVML_ERROR_GPU_IS_LOST",
	16:  "NVML_ERROR_RESET_REQUIRED",
	17:  "NVML_ERROR_OPERATING_SYSTEM",
	18:  "NVML_ERROR_LIB_RM_VERSION_MISMATCH",
	19:  "NVML_ERROR_IN_USE",
	20:  "NVML_ERROR_MEMORY",
	21:  "NVML_ERROR_NO_DATA",
	22:  "NVML_ERROR_VGPU_ECC_NOT_SUPPORTED",
	23:  "NVML_ERROR_INSUFFICIENT_RESOURCES",
	24:  "NVML_ERROR_FREQ_NOT_SUPPORTED",
	25:  "NVML_ERROR_ARGUMENT_VERSION_MISMATCH",
	26:  "NVML_ERROR_DEPRECATED",
	27:  "NVML_ERROR_NOT_READY",
	28:  "NVML_ERROR_GPU_NOT_FOUND",
	29:  "NVML_ERROR_INVALID_STATE",
	30:  "NVML_ERROR_RESET_TYPE_NOT_SUPPORTED",
	999: "NVML_ERROR_UNKNOWN",
}

// Name returns the code's symbolic name, or its number where nvml.h of CUDA 13.5 has none.
func (r Return) Name() string {
	if n, ok := names[r]; ok {
		return n
	}
	return "nvmlReturn_t " + strconv.Itoa(int(r))
}

func (r Return) Error() string { return r.Name() + " (" + strconv.Itoa(int(r)) + ")" }

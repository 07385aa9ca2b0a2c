package cuda

import (
	"fmt"
	"runtime"
	"strings"
	"unsafe"

	"cotenant/internal/cuda/query"
	"cotenant/internal/dl"
)

// Options of cuModuleLoadDataEx (CUjit_option).
const (
	jitInfoLog      = 3
	jitInfoLogSize  = 4
	jitErrorLog     = 5
	jitErrorLogSize = 6
)

// jitLogs are what the driver's compiler writes.
type jitLogs struct{ info, failed [4096]byte }

// LoadModule loads PTX into the current context; the driver compiles it for its GPU. The error of a compilation that failed
// holds the compiler's log, and for codes with a usual cause what to do.
func (d *Driver) LoadModule(ptx []byte) (Module, error) {
	text := append(append(make([]byte, 0, len(ptx)+1), ptx...), 0)
	// The driver writes to addresses that it gets as numbers: on the heap nothing moves.
	logs := new(jitLogs)
	d.logs = logs
	options := []uint32{jitInfoLog, jitInfoLogSize, jitErrorLog, jitErrorLogSize}
	// An option's value is a pointer's width, whether it is a pointer or a number.
	values := []uintptr{uintptr(unsafe.Pointer(&logs.info)), uintptr(len(logs.info)), uintptr(unsafe.Pointer(&logs.failed)), uintptr(len(logs.failed))}
	var m Module
	err := d.call("cuModuleLoadDataEx", uintptr(unsafe.Pointer(&m)), uintptr(unsafe.Pointer(&text[0])), uintptr(len(options)),
		uintptr(unsafe.Pointer(&options[0])), uintptr(unsafe.Pointer(&values[0])))
	runtime.KeepAlive(logs)
	if err == nil {
		return m, nil
	}
	if log := strings.TrimSpace(dl.GoString(logs.failed[:])); log != "" {
		err = fmt.Errorf("%w: %s", err, log)
	}
	if e := (*Error)(nil); asError(err, &e) {
		if hint, ok := moduleHints[e.Code]; ok {
			err = fmt.Errorf("%w (%s)", err, hint)
		}
	}
	return 0, err
}

var moduleHints = map[query.Code]string{
	209: "this GPU is older than what the kernels are compiled for",
	221: "libnvidia-ptxjitcompiler.so.1 is missing: in a container, NVIDIA_DRIVER_CAPABILITIES must include compute",
	222: "the driver is older than the kernels' PTX version",
	223: "CUDA_DISABLE_PTX_JIT or CUDA_FORCE_PTX_JIT forbids compiling",
}

// UnloadModule unloads a module.
func (d *Driver) UnloadModule(m Module) error { return d.call("cuModuleUnload", uintptr(m)) }

// Function returns a kernel of a module.
func (d *Driver) Function(m Module, name string) (Function, error) {
	text := append([]byte(name), 0)
	var f Function
	if err := d.call("cuModuleGetFunction", uintptr(unsafe.Pointer(&f)), uintptr(m), uintptr(unsafe.Pointer(&text[0]))); err != nil {
		return 0, fmt.Errorf("kernel %s: %w", name, err)
	}
	return f, nil
}

// FunctionUse returns how many registers and how many bytes of local memory a thread of a kernel has.
func (d *Driver) FunctionUse(f Function) (registers, localBytes int, err error) {
	var r, l int32
	if err := d.call("cuFuncGetAttribute", uintptr(unsafe.Pointer(&r)), 4, uintptr(f)); err != nil {
		return 0, 0, err
	}
	err = d.call("cuFuncGetAttribute", uintptr(unsafe.Pointer(&l)), 3, uintptr(f))
	return int(r), int(l), err
}

// AllowShared lets a kernel have this many bytes of dynamic shared memory a block, where that is more than 48 KiB.
func (d *Driver) AllowShared(f Function, bytes int) error {
	const maxDynamicShared = 8 // CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
	return d.call("cuFuncSetAttribute", uintptr(f), maxDynamicShared, uintptr(bytes))
}

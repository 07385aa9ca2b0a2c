// Package cuda calls the CUDA driver API: contexts, Green Contexts, memory, modules, streams, events, launches. What only asks
// and must be unable to change anything is in cuda/query.
//
// Nothing but libcuda is needed. A function that the library doesn't export is a *MissingError when it is called. Every other
// failure is an *Error that wraps the driver's result code (query.Code). Which context is current is a property of the OS
// thread: a Driver is used by one goroutine that has locked its thread.
package cuda

import (
	"fmt"
	"sort"
	"unsafe"

	"cotenant/internal/cuda/query"
	"cotenant/internal/dl"
)

// Handles of the driver, which Go never follows. The zero value is none.
type (
	Context      uintptr // CUcontext
	GreenContext uintptr // CUgreenCtx
	Descriptor   uintptr // CUdevResourceDesc; no call frees one
	Stream       uintptr // CUstream
	Event        uintptr // CUevent
	Module       uintptr // CUmodule
	Function     uintptr // CUfunction
	Device       int32   // CUdevice
	Pointer      uint64  // CUdeviceptr
)

// Error is a call that the driver refused.
type Error struct {
	Call string
	Code query.Code
}

func (e *Error) Error() string { return e.Call + ": " + e.Code.Error() }
func (e *Error) Unwrap() error { return e.Code }

// MissingError is a function that this libcuda doesn't export: its driver is too old.
type MissingError struct{ Symbol string }

func (e *MissingError) Error() string {
	return "libcuda has no " + e.Symbol + ": the driver is too old"
}

// Driver is an open libcuda.
type Driver struct {
	Library *dl.Library
	// Calling is told of each call before it is made, so that a process that is killed leaves the culprit's name; nil for
	// nobody. Launch and StreamQuery are not announced.
	Calling func(symbol string)

	fn   map[string]dl.Symbol
	logs *jitLogs
}

// Open opens the first of the names that the loader accepts and calls nothing. The error is dl's.
func Open(names ...string) (*Driver, error) {
	lib, err := dl.Open(names...)
	if err != nil {
		return nil, err
	}
	return &Driver{Library: lib, fn: lib.Resolve(symbols)}, nil
}

// Has reports whether the library exports a function of Symbols. Presence proves nothing about whether a call works.
func (d *Driver) Has(symbol string) bool { return d.fn[symbol].Present() }

// Missing returns those of the names that the library doesn't export, sorted.
func (d *Driver) Missing(names ...string) []string {
	missing := []string{}
	for _, n := range names {
		if !d.Has(n) {
			missing = append(missing, n)
		}
	}
	sort.Strings(missing)
	return missing
}

// call makes one call. Pointers are passed as uintptr(unsafe.Pointer(&x)) in the argument list itself.
//
//go:uintptrescapes
func (d *Driver) call(symbol string, args ...uintptr) error {
	f := d.fn[symbol]
	if !f.Present() {
		return &MissingError{symbol}
	}
	if d.Calling != nil {
		d.Calling(symbol)
	}
	if code := query.Code(f.Call(args...)); code != query.Success {
		return &Error{symbol, code}
	}
	return nil
}

// Init initialises the driver in this process. With a running MPS daemon in reach it makes that start a server.
func (d *Driver) Init() error { return d.call("cuInit", 0) }

// Version returns the CUDA version that the driver supports, such as 13000. It needs no Init.
func (d *Driver) Version() (int, error) {
	var v int32
	err := d.call("cuDriverGetVersion", uintptr(unsafe.Pointer(&v)))
	return int(v), err
}

// DeviceCount returns how many devices this process sees.
func (d *Driver) DeviceCount() (int, error) {
	var n int32
	err := d.call("cuDeviceGetCount", uintptr(unsafe.Pointer(&n)))
	return int(n), err
}

// Device returns the device of an ordinal.
func (d *Driver) Device(ordinal int) (Device, error) {
	var dev int32
	err := d.call("cuDeviceGet", uintptr(unsafe.Pointer(&dev)), uintptr(ordinal))
	return Device(dev), err
}

// DeviceUUID returns 8-4-4-4-12 hexadecimal without the prefix GPU- or MIG-. In MIG mode it is the instance's.
func (d *Driver) DeviceUUID(dev Device) (string, error) {
	var b [16]byte
	if err := d.call("cuDeviceGetUuid_v2", uintptr(unsafe.Pointer(&b)), uintptr(dev)); err != nil {
		return "", err
	}
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:]), nil
}

// DeviceName returns the product's name.
func (d *Driver) DeviceName(dev Device) (string, error) {
	var b [256]byte
	err := d.call("cuDeviceGetName", uintptr(unsafe.Pointer(&b)), uintptr(len(b)), uintptr(dev))
	return dl.GoString(b[:]), err
}

// Attributes of a device, by cuda.h's number.
const (
	AttributeSMCount     = 16
	AttributeComputeMode = 20
	AttributeMajor       = 75
	AttributeMinor       = 76
	AttributeMPSEnabled  = 133 // CUDA 12.4
)

// Attribute returns an attribute of a device.
func (d *Driver) Attribute(dev Device, attribute int) (int, error) {
	var v int32
	err := d.call("cuDeviceGetAttribute", uintptr(unsafe.Pointer(&v)), uintptr(attribute), uintptr(dev))
	return int(v), err
}

// Find returns the device whose UUID is uuid, with or without its prefix, and how many devices this process sees.
func (d *Driver) Find(uuid string) (dev Device, visible int, err error) {
	visible, err = d.DeviceCount()
	if err != nil {
		return 0, 0, err
	}
	for i := range visible {
		dev, err = d.Device(i)
		if err != nil {
			return 0, visible, err
		}
		got, err := d.DeviceUUID(dev)
		if err != nil {
			return 0, visible, err
		}
		if got == BareUUID(uuid) {
			return dev, visible, nil
		}
	}
	return 0, visible, fmt.Errorf("none of %d visible devices has UUID %s", visible, uuid)
}

// BareUUID returns a UUID in lower case without the prefix GPU- or MIG-.
func BareUUID(uuid string) string {
	b := []byte(uuid)
	if len(b) > 4 && (string(b[:4]) == "GPU-" || string(b[:4]) == "MIG-") {
		b = b[4:]
	}
	for i, c := range b {
		if c >= 'A' && c <= 'F' {
			b[i] = c + 'a' - 'A'
		}
	}
	return string(b)
}

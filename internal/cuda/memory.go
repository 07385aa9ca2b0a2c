package cuda

import "unsafe"

// Alloc allocates device memory in the current context.
func (d *Driver) Alloc(bytes int64) (Pointer, error) {
	var p Pointer
	err := d.call("cuMemAlloc_v2", uintptr(unsafe.Pointer(&p)), uintptr(bytes))
	return p, err
}

// Free frees device memory.
func (d *Driver) Free(p Pointer) error { return d.call("cuMemFree_v2", uintptr(p)) }

// MemoryInfo returns free and total device memory in bytes as the current context sees them.
func (d *Driver) MemoryInfo() (free, total uint64, err error) {
	err = d.call("cuMemGetInfo_v2", uintptr(unsafe.Pointer(&free)), uintptr(unsafe.Pointer(&total)))
	return free, total, err
}

// ToDevice copies to the device and returns when src may be changed.
func (d *Driver) ToDevice(dst Pointer, src []byte) error {
	if len(src) == 0 {
		return nil
	}
	return d.call("cuMemcpyHtoD_v2", uintptr(dst), uintptr(unsafe.Pointer(&src[0])), uintptr(len(src)))
}

// ToHost copies from the device; the copy waits for nothing but the default stream.
func (d *Driver) ToHost(dst []byte, src Pointer) error {
	if len(dst) == 0 {
		return nil
	}
	return d.call("cuMemcpyDtoH_v2", uintptr(unsafe.Pointer(&dst[0])), uintptr(src), uintptr(len(dst)))
}

// Set sets every byte of device memory.
func (d *Driver) Set(p Pointer, value byte, bytes int64) error {
	return d.call("cuMemsetD8_v2", uintptr(p), uintptr(value), uintptr(bytes))
}

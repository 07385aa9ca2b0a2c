package cuda

import "unsafe"

// AllocHost allocates page-locked host memory, which the device copies from and to without the processor. It isn't Go's: FreeHost
// frees it, and nothing else does before the process ends.
func (d *Driver) AllocHost(bytes int) ([]byte, error) {
	var p unsafe.Pointer
	if err := d.call("cuMemHostAlloc", uintptr(unsafe.Pointer(&p)), uintptr(bytes), 0); err != nil {
		return nil, err
	}
	return unsafe.Slice((*byte)(p), bytes), nil
}

// FreeHost frees what AllocHost returned.
func (d *Driver) FreeHost(memory []byte) error {
	return d.call("cuMemFreeHost", uintptr(unsafe.Pointer(&memory[0])))
}

// hostReadOnly is CU_MEMHOSTREGISTER_READ_ONLY: the device reads only, as it must from a mapping without write permission.
const hostReadOnly = 8

// RegisterHost page-locks memory that exists, such as a file's mapping, for copies to the device. It must not be Go's heap.
func (d *Driver) RegisterHost(memory []byte) error {
	return d.call("cuMemHostRegister_v2", uintptr(unsafe.Pointer(&memory[0])), uintptr(len(memory)), hostReadOnly)
}

// UnregisterHost undoes RegisterHost.
func (d *Driver) UnregisterHost(memory []byte) error {
	return d.call("cuMemHostUnregister", uintptr(unsafe.Pointer(&memory[0])))
}

// ToDeviceAsync copies to the device in a stream. src is page-locked and must not change before the copy has ended.
func (d *Driver) ToDeviceAsync(dst Pointer, src []byte, s Stream) error {
	if len(src) == 0 {
		return nil
	}
	return d.call("cuMemcpyHtoDAsync_v2", uintptr(dst), uintptr(unsafe.Pointer(&src[0])), uintptr(len(src)), uintptr(s))
}

// ToHostAsync copies from the device in a stream. dst is page-locked and must not be read before the copy has ended.
func (d *Driver) ToHostAsync(dst []byte, src Pointer, s Stream) error {
	if len(dst) == 0 {
		return nil
	}
	return d.call("cuMemcpyDtoHAsync_v2", uintptr(unsafe.Pointer(&dst[0])), uintptr(src), uintptr(len(dst)), uintptr(s))
}

// CopyAsync copies within the device in a stream.
func (d *Driver) CopyAsync(dst, src Pointer, bytes int64, s Stream) error {
	return d.call("cuMemcpyDtoDAsync_v2", uintptr(dst), uintptr(src), uintptr(bytes), uintptr(s))
}

// SetAsync sets every byte of device memory in a stream.
func (d *Driver) SetAsync(p Pointer, value byte, bytes int64, s Stream) error {
	return d.call("cuMemsetD8Async", uintptr(p), uintptr(value), uintptr(bytes), uintptr(s))
}

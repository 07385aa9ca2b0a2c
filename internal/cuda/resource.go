package cuda

import (
	"fmt"
	"unsafe"

	"cotenant/internal/cuda/query"
)

// Types of resources (CUdevResourceType).
const (
	TypeInvalid         = 0
	TypeSM              = 1
	TypeWorkqueueConfig = 1000 // CUDA 13.1
	TypeWorkqueue       = 10000
)

// SplitFlags change how SMs are grouped (CUdevSmResourceSplitByCount_flags).
type SplitFlags uint32

// The flags. IgnoreCoscheduling allows groups smaller than the alignment, at the price of large clusters.
const (
	IgnoreCoscheduling SplitFlags = 1
	MaxClusterSize     SplitFlags = 2 // compute capability 9.0 and later
)

// Resource is a CUdevResource: 144 bytes in every driver from CUDA 12.4 on, 8-aligned from 13.1. Its first 96 bytes belong to
// the driver and are copied, never made. Fields follow at 96; which of them a driver fills is decided by its version.
type Resource [18]uint64

func (r *Resource) word(offset uintptr) uint32 {
	return *(*uint32)(unsafe.Add(unsafe.Pointer(r), offset))
}

func (r *Resource) setWord(offset uintptr, v uint32) {
	*(*uint32)(unsafe.Add(unsafe.Pointer(r), offset)) = v
}

// Type returns the resource's type.
func (r *Resource) Type() uint32 { return r.word(0) }

// SMs returns how many SMs an SM resource has.
func (r *Resource) SMs() int { return int(r.word(96)) }

// Limits returns the smallest partition and the alignment of an SM resource, given the driver's version; 0 and 0 before CUDA 13.0,
// which doesn't report them.
func (r *Resource) Limits(version int) (minimum, alignment int) {
	if version < query.FloorResourceLimits {
		return 0, 0
	}
	return int(r.word(100)), int(r.word(104))
}

// checkType refuses an answer of another type than the one asked for: success alone proves nothing.
func checkType(err error, r *Resource, want uint32, call string) error {
	if err == nil && r.Type() != want {
		return fmt.Errorf("%s: success, but the resource's type is %d, not %d", call, r.Type(), want)
	}
	return err
}

// DeviceResource returns a device's SM resource. It needs Init and no context.
func (d *Driver) DeviceResource(dev Device) (Resource, error) {
	var r Resource
	err := d.call("cuDeviceGetDevResource", uintptr(dev), uintptr(unsafe.Pointer(&r)), TypeSM)
	return r, checkType(err, &r, TypeSM, "cuDeviceGetDevResource")
}

// DeviceWorkqueue returns a device's workqueue configuration. It needs CUDA 13.1.
func (d *Driver) DeviceWorkqueue(dev Device) (Resource, error) {
	var r Resource
	err := d.call("cuDeviceGetDevResource", uintptr(dev), uintptr(unsafe.Pointer(&r)), TypeWorkqueueConfig)
	return r, checkType(err, &r, TypeWorkqueueConfig, "cuDeviceGetDevResource(WORKQUEUE_CONFIG)")
}

// SetWorkqueue changes a workqueue configuration: how many streams can work at once before they share a queue, and whether
// queues are kept apart between Green Contexts.
func (r *Resource) SetWorkqueue(limit uint32, greenContextBalanced bool) {
	r.setWord(100, limit)
	r.setWord(104, 0)
	if greenContextBalanced {
		r.setWord(104, 1)
	}
}

// Workqueue returns the concurrency limit and the sharing scope of a workqueue configuration: 0 device context, 1 balanced
// between Green Contexts.
func (r *Resource) Workqueue() (limit, scope uint32) { return r.word(100), r.word(104) }

// SplitByCount splits an SM resource into at most groups groups of at least minimum SMs each. It returns the groups that fit,
// all of one size, and what is left. What comes out can't always be split again before it has become a Green Context.
func (d *Driver) SplitByCount(from *Resource, groups int, minimum int, flags SplitFlags) (parts []Resource, rest Resource, err error) {
	if groups < 1 {
		return nil, rest, fmt.Errorf("splitting into %d groups", groups)
	}
	parts = make([]Resource, groups)
	n := uint32(groups)
	err = d.call("cuDevSmResourceSplitByCount", uintptr(unsafe.Pointer(&parts[0])), uintptr(unsafe.Pointer(&n)),
		uintptr(unsafe.Pointer(from)), uintptr(unsafe.Pointer(&rest)), uintptr(flags), uintptr(uint32(minimum)))
	if err != nil {
		return nil, rest, err
	}
	return parts[:min(int(n), groups)], rest, nil
}

// CountGroups says into how many groups of at least minimum SMs a resource can be split; it makes none.
func (d *Driver) CountGroups(from *Resource, minimum int, flags SplitFlags) (int, error) {
	var n uint32
	err := d.call("cuDevSmResourceSplitByCount", 0, uintptr(unsafe.Pointer(&n)), uintptr(unsafe.Pointer(from)), 0, uintptr(flags),
		uintptr(uint32(minimum)))
	return int(n), err
}

// GroupParams is CU_DEV_SM_RESOURCE_GROUP_PARAMS: 64 bytes, of which all that is reserved is 0.
type GroupParams struct {
	SMs                  uint32 // 0: discover
	Coscheduled          uint32 // 0: the device's alignment
	PreferredCoscheduled uint32
	Flags                uint32 // 1: backfill
	reserved             [12]uint32
}

// Split splits an SM resource into groups of different sizes. It needs CUDA 13.1 and writes what it chose into params.
func (d *Driver) Split(from *Resource, params []GroupParams) (parts []Resource, rest Resource, err error) {
	if len(params) == 0 {
		return nil, rest, fmt.Errorf("splitting into no groups")
	}
	parts = make([]Resource, len(params))
	err = d.call("cuDevSmResourceSplit", uintptr(unsafe.Pointer(&parts[0])), uintptr(len(params)), uintptr(unsafe.Pointer(from)),
		uintptr(unsafe.Pointer(&rest)), 0, uintptr(unsafe.Pointer(&params[0])))
	if err != nil {
		return nil, rest, err
	}
	return parts, rest, nil
}

// Describe makes a descriptor of resources, from which Green Contexts are made. Nothing frees it.
func (d *Driver) Describe(resources ...Resource) (Descriptor, error) {
	if len(resources) == 0 {
		return 0, fmt.Errorf("describing no resources")
	}
	var desc Descriptor
	err := d.call("cuDevResourceGenerateDesc", uintptr(unsafe.Pointer(&desc)), uintptr(unsafe.Pointer(&resources[0])), uintptr(len(resources)))
	return desc, err
}

package cuda

import (
	"errors"
	"unsafe"

	"cotenant/internal/cuda/query"
	"cotenant/internal/dl"
)

// MaxParameters is how many parameters a Launch has room for.
const MaxParameters = 32

// Attributes of a launch (CUlaunchAttributeID).
const (
	attributeCluster   = 4
	attributeDependent = 6 // programmatic stream serialization
)

// launchAttribute is a CUlaunchAttribute: its value is a union of 64 bytes.
type launchAttribute struct {
	id    uint32
	_     uint32
	value [16]uint32
}

// launchConfig is a CUlaunchConfig.
type launchConfig struct {
	grid, block [3]uint32
	shared      uint32
	_           uint32
	stream      Stream
	attributes  unsafe.Pointer
	count       uint32
	_           uint32
}

// Launch is a kernel with its grid and parameters, made once and run often: running it allocates nothing. The driver copies the
// parameters when it is run. A Launch is used by the goroutine of its Driver and must not be copied.
type Launch struct {
	plain, extended dl.Symbol
	args            [11]uintptr // of cuLaunchKernel
	extendedArgs    [4]uintptr  // of cuLaunchKernelEx
	config          launchConfig
	attributes      [2]launchAttribute
	values          [MaxParameters]uint64
	pointers        [MaxParameters]unsafe.Pointer
}

// NewLaunch prepares a kernel for a grid of blocks, with shared bytes of dynamic shared memory a block.
func (d *Driver) NewLaunch(f Function, grid, block [3]uint32, shared uint32) (*Launch, error) {
	l := &Launch{plain: d.fn["cuLaunchKernel"], extended: d.fn["cuLaunchKernelEx"]}
	if !l.plain.Present() {
		return nil, &MissingError{"cuLaunchKernel"}
	}
	return l.Reset(f, grid, block, shared), nil
}

// Reset makes a Launch one of another kernel or grid, without attributes; its parameters must be set again.
func (l *Launch) Reset(f Function, grid, block [3]uint32, shared uint32) *Launch {
	for i := range l.pointers {
		l.pointers[i] = unsafe.Pointer(&l.values[i])
	}
	// cuLaunchKernel(f, gridX, gridY, gridZ, blockX, blockY, blockZ, sharedMemBytes, stream, kernelParams, extra).
	l.args = [11]uintptr{uintptr(f), uintptr(grid[0]), uintptr(grid[1]), uintptr(grid[2]), uintptr(block[0]), uintptr(block[1]),
		uintptr(block[2]), uintptr(shared), 0, uintptr(unsafe.Pointer(&l.pointers[0])), 0}
	// cuLaunchKernelEx(config, f, kernelParams, extra).
	l.extendedArgs = [4]uintptr{uintptr(unsafe.Pointer(&l.config)), uintptr(f), uintptr(unsafe.Pointer(&l.pointers[0])), 0}
	l.config = launchConfig{grid: grid, block: block, shared: shared, attributes: unsafe.Pointer(&l.attributes[0])}
	return l
}

// Set sets parameter i to an integer or pointer of up to 8 bytes; a narrower one lies in the low bytes, as on every platform
// that NVIDIA supports.
func (l *Launch) Set(i int, v uint64) *Launch {
	l.values[i] = v
	return l
}

// SetMap sets parameter i to a tensor map, which must not change until the launch was run.
func (l *Launch) SetMap(i int, m *TensorMap) *Launch {
	l.pointers[i] = m.pointer()
	return l
}

// Dependent lets the kernel begin before the one in front of it in its stream has ended (programmatic dependent launch,
// compute capability 9.0 and later): it must wait by griddepcontrol.wait before it reads what that one wrote.
func (l *Launch) Dependent() *Launch { return l.attribute(attributeDependent, 1) }

// Cluster makes clusters of x × y × z blocks, on compute capability 9.0 and later.
func (l *Launch) Cluster(x, y, z uint32) *Launch { return l.attribute(attributeCluster, x, y, z) }

func (l *Launch) attribute(id uint32, values ...uint32) *Launch {
	a := &l.attributes[l.config.count]
	*a = launchAttribute{id: id}
	copy(a.value[:], values)
	l.config.count++
	return l
}

// Run puts the kernel into a stream; 0 is the current context's default stream.
func (l *Launch) Run(s Stream) error {
	if l.config.count == 0 {
		l.args[8] = uintptr(s)
		if code := query.Code(l.plain.Call(l.args[:]...)); code != query.Success {
			return &Error{"cuLaunchKernel", code}
		}
		return nil
	}
	if !l.extended.Present() {
		return &MissingError{"cuLaunchKernelEx"}
	}
	l.config.stream = s
	if code := query.Code(l.extended.Call(l.extendedArgs[:]...)); code != query.Success {
		return &Error{"cuLaunchKernelEx", code}
	}
	return nil
}

func asError(err error, target **Error) bool { return errors.As(err, target) }

// CodeOf returns the driver's result code in an error; 0 where there is none.
func CodeOf(err error) query.Code {
	var code query.Code
	if errors.As(err, &code) {
		return code
	}
	return query.Success
}

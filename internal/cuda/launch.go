package cuda

import (
	"errors"
	"unsafe"

	"cotenant/internal/cuda/query"
	"cotenant/internal/dl"
)

// maxParameters is how many parameters a Launch has room for.
const maxParameters = 16

// Launch is a kernel with its grid and parameters, made once and run often: running it allocates nothing. The driver copies the
// parameters when it is run. A Launch is used by the goroutine of its Driver and must not be copied.
type Launch struct {
	symbol   dl.Symbol
	args     [11]uintptr
	values   [maxParameters]uint64
	pointers [maxParameters]unsafe.Pointer
}

// NewLaunch prepares a kernel for a grid of blocks, with shared bytes of dynamic shared memory a block.
func (d *Driver) NewLaunch(f Function, grid, block [3]uint32, shared uint32) (*Launch, error) {
	l := &Launch{symbol: d.fn["cuLaunchKernel"]}
	if !l.symbol.Present() {
		return nil, &MissingError{"cuLaunchKernel"}
	}
	for i := range l.pointers {
		l.pointers[i] = unsafe.Pointer(&l.values[i])
	}
	// cuLaunchKernel(f, gridX, gridY, gridZ, blockX, blockY, blockZ, sharedMemBytes, stream, kernelParams, extra).
	l.args = [11]uintptr{uintptr(f), uintptr(grid[0]), uintptr(grid[1]), uintptr(grid[2]), uintptr(block[0]), uintptr(block[1]),
		uintptr(block[2]), uintptr(shared), 0, uintptr(unsafe.Pointer(&l.pointers[0])), 0}
	return l, nil
}

// Set sets parameter i to an integer or pointer of up to 8 bytes; a narrower one lies in the low bytes, as on every platform
// that NVIDIA supports.
func (l *Launch) Set(i int, v uint64) *Launch {
	l.values[i] = v
	return l
}

// Run puts the kernel into a stream; 0 is the current context's default stream.
func (l *Launch) Run(s Stream) error {
	l.args[8] = uintptr(s)
	if code := query.Code(l.symbol.Call(l.args[:]...)); code != query.Success {
		return &Error{"cuLaunchKernel", code}
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

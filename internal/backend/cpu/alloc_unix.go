//go:build unix

package cpu

import (
	"fmt"
	"math"
	"unsafe"

	"golang.org/x/sys/unix"
)

// lazyFloats maps n float32 of zeros, resident only where touched. free unmaps them.
func lazyFloats(n int64) (v []float32, free func(), err error) {
	if n < 1 || n > math.MaxInt/4 {
		return nil, nil, fmt.Errorf("%d float32", n)
	}
	mem, err := unix.Mmap(-1, 0, int(n*4), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		return nil, nil, fmt.Errorf("map %d bytes: %w", n*4, err)
	}
	return unsafe.Slice((*float32)(unsafe.Pointer(&mem[0])), n), func() { _ = unix.Munmap(mem) }, nil
}

//go:build linux || darwin || freebsd || netbsd || openbsd || dragonfly

package weights

import (
	"fmt"
	"os"
	"syscall"
)

// mapping is a read-only view of a whole file.
type mapping struct{ data []byte }

// mapFile maps a regular file that isn't empty.
func mapFile(path string) (*mapping, error) {
	f, size, err := openRegular(path)
	if err != nil {
		return nil, err
	}
	// The mapping outlives the descriptor: a sharded model would otherwise hold one for each shard.
	defer func() { _ = f.Close() }()
	data, err := syscall.Mmap(int(f.Fd()), 0, size, syscall.PROT_READ, syscall.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("map file: %w", os.NewSyscallError("mmap", err))
	}
	return &mapping{data}, nil
}

func (m *mapping) close() error {
	if m.data == nil {
		return nil
	}
	data := m.data
	m.data = nil
	if err := syscall.Munmap(data); err != nil {
		return fmt.Errorf("unmap model: %w", os.NewSyscallError("munmap", err))
	}
	return nil
}

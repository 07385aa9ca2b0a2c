package weights

import (
	"fmt"
	"os"
	"syscall"
)

// forget lets the system take the mapping's pages out of the process; touching one reads it again.
func (m *mapping) forget() error {
	if err := syscall.Madvise(m.data, syscall.MADV_DONTNEED); err != nil {
		return fmt.Errorf("unload model: %w", os.NewSyscallError("madvise", err))
	}
	return nil
}

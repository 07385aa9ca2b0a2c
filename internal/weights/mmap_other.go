//go:build !(linux || darwin || freebsd || netbsd || openbsd || dragonfly)

package weights

import (
	"fmt"
	"io"
)

// mapping is a copy of a whole file, where this package doesn't map files.
type mapping struct{ data []byte }

// mapFile reads a regular file that isn't empty.
func mapFile(path string) (*mapping, error) {
	f, size, err := openRegular(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	data := make([]byte, size)
	if _, err := io.ReadFull(f, data); err != nil {
		return nil, fmt.Errorf("read file: %w", err)
	}
	return &mapping{data}, nil
}

func (m *mapping) close() error {
	m.data = nil
	return nil
}

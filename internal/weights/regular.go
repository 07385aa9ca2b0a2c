package weights

import (
	"errors"
	"fmt"
	"math"
	"os"
)

// openRegular opens a regular file that isn't empty and fits the address space. It asks before opening: opening a FIFO
// would wait for a writer.
func openRegular(path string) (*os.File, int, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, 0, err
	}
	if !info.Mode().IsRegular() {
		return nil, 0, errors.New("is not a regular file")
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, 0, err
	}
	info, err = f.Stat()
	switch {
	case err != nil:
	case info.Size() == 0:
		err = errors.New("is empty")
	case info.Size() > math.MaxInt:
		err = fmt.Errorf("has %d bytes, more than this platform can address", info.Size())
	}
	if err != nil {
		return nil, 0, errors.Join(err, f.Close())
	}
	return f, int(info.Size()), nil
}

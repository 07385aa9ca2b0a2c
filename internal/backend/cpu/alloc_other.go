//go:build !unix

package cpu

import "fmt"

// lazyFloats makes n float32 of zeros on Go's heap.
func lazyFloats(n int64) (v []float32, free func(), err error) {
	if n < 1 || n > 1<<40 {
		return nil, nil, fmt.Errorf("%d float32", n)
	}
	return make([]float32, n), nil, nil
}

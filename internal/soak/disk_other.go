//go:build !unix

package soak

import (
	"math"
	"os"
)

// freeBytes isn't known here: a full disk shows when a row can't be written, which stops the run.
func freeBytes(string) (int64, error) { return math.MaxInt64, nil }

// lockFolder opens the file; this system's locks aren't used.
func lockFolder(file string) (*os.File, error) { return os.Open(file) }

//go:build !amd64

package cpu

import (
	"runtime"

	"github.com/klauspost/cpuid/v2"
)

func deviceName() string {
	if cpuid.CPU.BrandName != "" {
		return cpuid.CPU.BrandName
	}
	return runtime.GOARCH
}

func chooseKernels(Options) *kernels { return plainKernels() }

// pause is one turn of a waiting loop.
func pause() {}

// fastKernels returns the paths, beside the plain one, that this processor can run.
func fastKernels() []*kernels { return nil }

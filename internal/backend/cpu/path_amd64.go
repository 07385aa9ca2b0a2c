package cpu

import "github.com/klauspost/cpuid/v2"

func deviceName() string { return cpuid.CPU.BrandName }

func chooseKernels(plain bool) *kernels { return plainKernels() }

func pause() {}

// fastKernels returns the paths, beside the plain one, that this processor can run; the best last.
func fastKernels() []*kernels { return nil }

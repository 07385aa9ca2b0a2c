package kernels

// ProbeModule holds the kernels witness and fill. It is for sm_70, so that it runs on every GPU that has Green Contexts.
const ProbeModule = "probe_sm70"

// WitnessValue is what the kernel witness writes for a block of this many threads (a multiple of 32, at most 1024).
func WitnessValue(seed, rounds, block, threads uint32) uint32 {
	var sum uint32
	for t := range threads {
		x := seed ^ (block*threads+t)*2654435761
		for range rounds {
			x ^= x << 13
			x ^= x >> 17
			x ^= x << 5
			x += 0x9e3779b9
		}
		sum += x
	}
	return sum
}

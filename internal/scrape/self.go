package scrape

import (
	"math"
	"runtime/metrics"
)

// Self watches the Go runtime of this process between samples. One goroutine uses it.
type Self struct {
	samples [4]metrics.Sample
	sched   []uint64 // counts of the last reading
	pauses  []uint64
}

// Runtime is a sample of this process's Go runtime.
type Runtime struct {
	HeapBytes  int64
	Goroutines int64
	SchedLagUS int64 // p99 of the time from runnable to running since the last sample, as its bucket's upper bound
	GCPauseUS  int64 // longest stop-the-world pause for GC since the last sample, as its bucket's upper bound
}

// NewSelf starts watching: what came before isn't in the first sample.
func NewSelf() *Self {
	s := &Self{}
	s.samples[0].Name = "/memory/classes/heap/objects:bytes"
	s.samples[1].Name = "/sched/goroutines:goroutines"
	s.samples[2].Name = "/sched/latencies:seconds"
	s.samples[3].Name = "/sched/pauses/total/gc:seconds"
	s.Sample()
	return s
}

// Sample reads the runtime.
func (s *Self) Sample() Runtime {
	metrics.Read(s.samples[:])
	var r Runtime
	if v := s.samples[0].Value; v.Kind() == metrics.KindUint64 {
		r.HeapBytes = int64(v.Uint64())
	}
	if v := s.samples[1].Value; v.Kind() == metrics.KindUint64 {
		r.Goroutines = int64(v.Uint64())
	}
	if v := s.samples[2].Value; v.Kind() == metrics.KindFloat64Histogram {
		r.SchedLagUS = quantileSince(v.Float64Histogram(), &s.sched, 0.99)
	}
	if v := s.samples[3].Value; v.Kind() == metrics.KindFloat64Histogram {
		r.GCPauseUS = quantileSince(v.Float64Histogram(), &s.pauses, 1)
	}
	return r
}

// quantileSince is the q-quantile in µs of what h gained since last, which it updates: the upper bound of the bucket, 0 where
// nothing was gained.
func quantileSince(h *metrics.Float64Histogram, last *[]uint64, q float64) int64 {
	old := *last
	var total uint64
	for i, n := range h.Counts {
		if i < len(old) {
			n -= old[i]
		}
		total += n
	}
	rank := uint64(math.Ceil(q * float64(total)))
	var seen uint64
	bound := 0.0
	for i, n := range h.Counts {
		if i < len(old) {
			n -= old[i]
		}
		if seen += n; total > 0 && seen >= rank {
			// Bucket i is [Buckets[i], Buckets[i+1]); the last may have no upper bound.
			if bound = h.Buckets[i+1]; math.IsInf(bound, 1) {
				bound = h.Buckets[i]
			}
			break
		}
	}
	*last = append(old[:0], h.Counts...)
	return int64(math.Ceil(bound * 1e6))
}

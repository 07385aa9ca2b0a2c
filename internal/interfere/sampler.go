package interfere

import (
	"slices"
	"sync"
	"time"

	"cotenant/internal/interfere/record"
	"cotenant/internal/nvml"
)

// samplePeriod is how often NVML is asked during a block. Asking takes the driver some hundred microseconds, in all cells alike.
const samplePeriod = 50 * time.Millisecond

// sampler samples a GPU during blocks; session may be nil.
type sampler struct {
	session *nvml.Session
	uuid    string

	stop    chan struct{}
	done    sync.WaitGroup
	samples []nvml.Sample
	from    time.Time
	energy  *int64
}

func (s *sampler) look() (nvml.Sample, bool) {
	if s.session == nil {
		return nvml.Sample{}, false
	}
	x, err := s.session.Sample(s.uuid)
	return x, err == nil
}

// begin takes the first sample and goes on in a goroutine.
func (s *sampler) begin() {
	s.samples, s.energy = nil, nil
	if x, ok := s.look(); ok {
		s.energy = wide(x.EnergyMJ)
	}
	s.from = time.Now()
	s.stop = make(chan struct{})
	s.done.Go(func() {
		tick := time.NewTicker(samplePeriod)
		defer tick.Stop()
		for {
			select {
			case <-s.stop:
				return
			case <-tick.C:
			}
			if x, ok := s.look(); ok {
				s.samples = append(s.samples, x)
			}
		}
	})
}

// end takes the last sample and sums up.
func (s *sampler) end() record.Clocks {
	close(s.stop)
	s.done.Wait()
	c := record.Clocks{SMMHz: []int64{}, MemoryMHz: []int64{}, Throttle: []string{}}
	if x, ok := s.look(); ok {
		s.samples = append(s.samples, x)
		if last := wide(x.EnergyMJ); last != nil && s.energy != nil && *last >= *s.energy {
			grown, us := *last-*s.energy, time.Since(s.from).Microseconds()
			c.EnergyMJ, c.EnergyUS = &grown, &us
		}
	}
	var sm, memory []int64
	most := func(to **int64, v *int64) {
		if v != nil && (*to == nil || *v > **to) {
			*to = v
		}
	}
	for _, x := range s.samples {
		c.Samples++
		if v := wide(x.SMMHz); v != nil {
			sm = append(sm, *v)
		}
		if v := wide(x.MemoryMHz); v != nil {
			memory = append(memory, *v)
		}
		most(&c.MaxPowerMW, wide(x.PowerMW))
		most(&c.MaxTempC, wide(x.TemperatureC))
		for _, reason := range x.Throttle.Or(nil) {
			if reason != "gpu_idle" && !slices.Contains(c.Throttle, reason) {
				c.Throttle = append(c.Throttle, reason)
			}
		}
	}
	slices.Sort(c.Throttle)
	c.SMMHz, c.MemoryMHz = three(sm), three(memory)
	return c
}

// three returns least, median and greatest; empty for none.
func three(values []int64) []int64 {
	if len(values) == 0 {
		return []int64{}
	}
	slices.Sort(values)
	return []int64{values[0], values[(len(values)-1)/2], values[len(values)-1]}
}

// Package partition divides one GPU's SMs between Green Contexts: it plans, creates, describes and undoes. It changes nothing
// but contexts of its own process. Everything runs on the one OS thread of its cuda.Driver.
package partition

import (
	"fmt"

	"cotenant/internal/cuda"
)

// Rest is a size that means whatever the others leave.
const Rest = -1

// Limits are what a device allows.
type Limits struct {
	Total     int `json:"total_sms"`
	Minimum   int `json:"minimum_sms"`   // smallest partition
	Alignment int `json:"alignment_sms"` // partitions are multiples of it
}

// documented is the CUDA programming guide's table of minimum and alignment by major compute capability.
var documented = map[int][2]int{6: {1, 1}, 7: {2, 2}, 8: {4, 2}}

// LimitsOf reads the limits of a device's SM resource; before CUDA 13.0, which doesn't report them, it takes the programming
// guide's for the major compute capability.
func LimitsOf(r *cuda.Resource, version, major int) (l Limits, reported bool) {
	l.Total = r.SMs()
	l.Minimum, l.Alignment = r.Limits(version)
	if l.Minimum > 0 && l.Alignment > 0 {
		return l, true
	}
	known, ok := documented[major]
	if !ok {
		known = [2]int{8, 8}
	}
	l.Minimum, l.Alignment = known[0], known[1]
	return l, false
}

// Plan says which partitions to make.
type Plan struct {
	// SMs are the sizes asked for, in order; the last may be Rest.
	SMs []int `json:"sms,omitempty"`
	// Groups asks for so many partitions of one size, the largest that fits; SMs is then empty.
	Groups int `json:"groups,omitempty"`
	// IgnoreCoscheduling allows sizes that aren't multiples of the alignment, at the price of large clusters.
	IgnoreCoscheduling bool `json:"ignore_coscheduling"`
}

func (p Plan) flags() cuda.SplitFlags {
	if p.IgnoreCoscheduling {
		return cuda.IgnoreCoscheduling
	}
	return 0
}

// maxPartitions bounds a plan.
const maxPartitions = 64

// Sizes returns the sizes to ask for, Rest as it is. The error says what doesn't fit: it is the plan's, no driver was asked.
func (p Plan) Sizes(l Limits) ([]int, error) {
	minimum, step := l.Minimum, l.Alignment
	if p.IgnoreCoscheduling {
		minimum, step = min(2, minimum), min(2, step)
	}
	if minimum < 1 || step < 1 || l.Total < 1 {
		return nil, fmt.Errorf("the device's limits are %+v", l)
	}
	switch {
	case p.Groups != 0 && len(p.SMs) != 0:
		return nil, fmt.Errorf("a plan has sizes or a number of groups, not both")
	case p.Groups < 0 || p.Groups > maxPartitions || len(p.SMs) > maxPartitions:
		return nil, fmt.Errorf("between 1 and %d partitions can be asked for", maxPartitions)
	case p.Groups > 0:
		size := l.Total / p.Groups / step * step
		if size < minimum {
			return nil, fmt.Errorf("%d partitions of %d SMs would have fewer than the smallest of %d", p.Groups, l.Total, minimum)
		}
		sizes := make([]int, p.Groups)
		for i := range sizes {
			sizes[i] = size
		}
		return sizes, nil
	case len(p.SMs) == 0:
		return nil, fmt.Errorf("a plan without partitions")
	}
	used := 0
	for i, n := range p.SMs {
		if n == Rest {
			if i != len(p.SMs)-1 || i == 0 {
				return nil, fmt.Errorf("the rest can only be the last of several partitions")
			}
			if used >= l.Total {
				return nil, fmt.Errorf("the partitions before the rest take all %d SMs", l.Total)
			}
			continue
		}
		if n < 1 || n > l.Total {
			return nil, fmt.Errorf("a partition of %d SMs on a GPU of %d", n, l.Total)
		}
		used += min(max(minimum, (n+step-1)/step*step), l.Total)
	}
	if used > l.Total {
		return nil, fmt.Errorf("the partitions take %d SMs with the alignment of %d, the GPU has %d", used, step, l.Total)
	}
	return append([]int(nil), p.SMs...), nil
}

// Partition is one Green Context with a stream.
type Partition struct {
	Index     int
	Requested int // SMs asked for; Rest
	Resource  cuda.Resource
	Green     cuda.GreenContext
	// Context stands for Green. It is never made current here: a Green Context may be current on one thread only.
	Context cuda.Context
	Stream  cuda.Stream
}

// Steps is told of each step before it is taken and after. Where Begin fails the step is not taken.
type Steps interface {
	Begin(step string, index int) error
	End(step string, index int, err error)
}

// Set is what was made on one device.
type Set struct {
	Device     cuda.Device
	Partitions []*Partition
	// Method says how the SMs were split: "equal", "heterogeneous", "sequential", or "sequential_through_contexts" where the
	// driver refused to split what a split had left, so that it first had to become a Green Context.
	Method string
	// Left is how many SMs no partition has.
	Left int

	driver  *cuda.Driver
	steps   Steps
	helpers []cuda.GreenContext
}

// Create makes the plan's partitions on a device whose primary context the caller has retained. The Set is returned also with an
// error and must be closed in any case.
func Create(d *cuda.Driver, dev cuda.Device, plan Plan, l Limits, steps Steps) (*Set, error) {
	s := &Set{Device: dev, driver: d, steps: steps}
	sizes, err := plan.Sizes(l)
	if err != nil {
		return s, err
	}
	whole, err := d.DeviceResource(dev)
	if err != nil {
		return s, err
	}
	resources, err := s.split(whole, sizes, plan.flags())
	if err != nil {
		return s, fmt.Errorf("splitting %d SMs into %s: %w", l.Total, sizesText(sizes), err)
	}
	for i, r := range resources {
		if err := s.create(i, sizes[i], r); err != nil {
			return s, fmt.Errorf("partition %d: %w", i, err)
		}
	}
	return s, nil
}

// Contexts is how many Green Contexts are alive in the set, those among them that were only needed to split.
func (s *Set) Contexts() int { return len(s.Partitions) + len(s.helpers) }

func sizesText(sizes []int) string {
	text := ""
	for i, n := range sizes {
		if i > 0 {
			text += ","
		}
		if n == Rest {
			text += "rest"
		} else {
			text += fmt.Sprint(n)
		}
	}
	return text
}

func (s *Set) create(index, requested int, r cuda.Resource) error {
	p := &Partition{Index: index, Requested: requested, Resource: r}
	if err := s.step("create_green_context", index, func() (err error) {
		desc, err := s.driver.Describe(r)
		if err != nil {
			return err
		}
		p.Green, err = s.driver.CreateGreen(s.Device, desc)
		return err
	}); err != nil {
		return err
	}
	s.Partitions = append(s.Partitions, p)
	var err error
	if p.Context, err = s.driver.ContextOfGreen(p.Green); err != nil {
		return err
	}
	return s.step("create_stream", index, func() (err error) {
		p.Stream, err = s.driver.CreateGreenStream(p.Green, 0)
		return err
	})
}

func (s *Set) step(name string, index int, f func() error) error {
	if err := s.steps.Begin(name, index); err != nil {
		return fmt.Errorf("recording %s: %w", name, err)
	}
	err := f()
	s.steps.End(name, index, err)
	return err
}

// Undone is what Close did.
type Undone struct {
	Created   int      `json:"created"`   // streams and Green Contexts
	Destroyed int      `json:"destroyed"` // by calls that said success
	Failures  []string `json:"failures"`
}

// Close destroys streams, then contexts, the last made first, and goes on after a failure. What a call says isn't what the device's
// memory says: see cuda.CreateGreen.
func (s *Set) Close() Undone {
	u := Undone{Failures: []string{}}
	destroy := func(step string, index int, f func() error) {
		u.Created++
		if err := s.step(step, index, f); err != nil {
			u.Failures = append(u.Failures, fmt.Sprintf("%s %d: %v", step, index, err))
			return
		}
		u.Destroyed++
	}
	for i := len(s.Partitions) - 1; i >= 0; i-- {
		p := s.Partitions[i]
		if p.Stream != 0 {
			destroy("destroy_stream", p.Index, func() error { return s.driver.DestroyStream(p.Stream) })
		}
		destroy("destroy_green_context", p.Index, func() error { return s.driver.DestroyGreen(p.Green) })
	}
	for i := len(s.helpers) - 1; i >= 0; i-- {
		destroy("destroy_helper_context", i, func() error { return s.driver.DestroyGreen(s.helpers[i]) })
	}
	s.Partitions, s.helpers = nil, nil
	return u
}

package partition

import (
	"fmt"

	"cotenant/internal/cuda"
	"cotenant/internal/cuda/query"
)

// split returns one resource a size.
func (s *Set) split(whole cuda.Resource, sizes []int, flags cuda.SplitFlags) ([]cuda.Resource, error) {
	exact := sizes
	rest := sizes[len(sizes)-1] == Rest
	if rest {
		exact = sizes[:len(sizes)-1]
	}
	var parts []cuda.Resource
	var left cuda.Resource
	var err error
	switch {
	case allEqual(exact):
		s.Method = "equal"
		parts, left, err = s.driver.SplitByCount(&whole, len(exact), exact[0], flags)
	case s.driver.Has("cuDevSmResourceSplit"):
		s.Method = "heterogeneous"
		params := make([]cuda.GroupParams, len(exact))
		for i, n := range exact {
			params[i].SMs = uint32(n)
			if flags&cuda.IgnoreCoscheduling != 0 {
				params[i].Coscheduled = 2
			}
		}
		parts, left, err = s.driver.Split(&whole, params)
	default:
		s.Method = "sequential"
		parts, left, err = s.sequence(whole, exact, flags)
	}
	if err != nil {
		return nil, err
	}
	if len(parts) < len(exact) {
		hint := ""
		if flags&cuda.IgnoreCoscheduling == 0 {
			hint = ": blocks that run together bind SMs to each other, without coscheduling more may fit"
		}
		return nil, fmt.Errorf("the driver grants %d of %d groups%s", len(parts), len(exact), hint)
	}
	s.Left = left.SMs()
	if left.Type() != cuda.TypeSM {
		s.Left = 0
	}
	if !rest {
		return parts, nil
	}
	if s.Left == 0 {
		return nil, fmt.Errorf("nothing is left for the rest")
	}
	s.Left = 0
	return append(parts, left), nil
}

func allEqual(sizes []int) bool {
	for _, n := range sizes {
		if n != sizes[0] {
			return false
		}
	}
	return true
}

// sequence takes one size after the other from what is left.
func (s *Set) sequence(whole cuda.Resource, sizes []int, flags cuda.SplitFlags) (parts []cuda.Resource, left cuda.Resource, err error) {
	left = whole
	for i, n := range sizes {
		if i == len(sizes)-1 && left.SMs() == n {
			return append(parts, left), cuda.Resource{}, nil
		}
		one, rest, err := s.driver.SplitByCount(&left, 1, n, flags)
		if i > 0 && cuda.CodeOf(err) == query.InvalidResourceConfiguration {
			// What a split has left can't always be split before it is a Green Context.
			if left, err = s.through(left); err == nil {
				one, rest, err = s.driver.SplitByCount(&left, 1, n, flags)
			}
		}
		if err != nil {
			return nil, left, fmt.Errorf("%d of them: %w", n, err)
		}
		parts, left = append(parts, one...), rest
	}
	return parts, left, nil
}

// through makes a Green Context of a resource and returns what that says its resource is.
func (s *Set) through(r cuda.Resource) (cuda.Resource, error) {
	s.Method = "sequential_through_contexts"
	var g cuda.GreenContext
	err := s.step("create_helper_context", len(s.helpers), func() error {
		desc, err := s.driver.Describe(r)
		if err != nil {
			return err
		}
		g, err = s.driver.CreateGreen(s.Device, desc)
		return err
	})
	if err != nil {
		return r, err
	}
	s.helpers = append(s.helpers, g)
	return s.driver.GreenResource(g)
}

// Row is one split that was asked for: a line of a map.
type Row struct {
	IgnoreCoscheduling bool `json:"ignore_coscheduling"`
	Requested          int  `json:"requested_sms"`
	// Code is the driver's; 0 is success.
	Code   int32  `json:"code"`
	Symbol string `json:"symbol"`
	// Granted and Left are for one group: its SMs and what is left.
	Granted int `json:"granted_sms"`
	Left    int `json:"left_sms"`
	// Groups is how many groups of that size fit, GroupsLeft what they leave.
	Groups     int `json:"groups"`
	GroupsLeft int `json:"groups_left_sms"`
}

// Map asks for every size from 1 SM to two more than there are, with and without coscheduling. It makes no context.
func Map(d *cuda.Driver, dev cuda.Device) ([]Row, error) {
	whole, err := d.DeviceResource(dev)
	if err != nil {
		return nil, err
	}
	rows := []Row{}
	for _, flags := range []cuda.SplitFlags{0, cuda.IgnoreCoscheduling} {
		for n := 1; n <= whole.SMs()+2; n++ {
			rows = append(rows, row(d, whole, n, flags))
		}
	}
	return rows, nil
}

func row(d *cuda.Driver, whole cuda.Resource, n int, flags cuda.SplitFlags) Row {
	r := Row{IgnoreCoscheduling: flags != 0, Requested: n}
	one, left, err := d.SplitByCount(&whole, 1, n, flags)
	r.Code, r.Symbol = codeText(err)
	if err != nil || len(one) == 0 {
		return r
	}
	r.Granted, r.Left = one[0].SMs(), countOf(left)
	all, left, err := d.SplitByCount(&whole, max(1, whole.SMs()/max(1, r.Granted)), n, flags)
	if err == nil {
		r.Groups, r.GroupsLeft = len(all), countOf(left)
	}
	return r
}

func countOf(r cuda.Resource) int {
	if r.Type() != cuda.TypeSM {
		return 0
	}
	return r.SMs()
}

func codeText(err error) (int32, string) {
	code := cuda.CodeOf(err)
	if err != nil && code == query.Success {
		return -1, err.Error()
	}
	return int32(code), code.Name()
}

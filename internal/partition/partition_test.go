package partition_test

import (
	"errors"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"

	"cotenant/internal/cuda"
	"cotenant/internal/gputest"
	"cotenant/internal/partition"
)

func TestMain(m *testing.M) {
	code := m.Run()
	gputest.Cleanup()
	os.Exit(code)
}

type steps struct {
	taken  []string
	refuse string
}

func (s *steps) Begin(step string, index int) error {
	if step == s.refuse {
		return errors.New("the disk is full")
	}
	s.taken = append(s.taken, step)
	return nil
}

func (s *steps) End(string, int, error) {}

func open(t *testing.T, version int, faults ...gputest.Fault) (*cuda.Driver, cuda.Device, partition.Limits) {
	t.Helper()
	runtime.LockOSThread()
	t.Cleanup(runtime.UnlockOSThread)
	m := gputest.Start(t, gputest.Host{CUDA: []gputest.CUDA{{Version: version}}, Faults: faults,
		GPUs: []gputest.GPU{{UUID: "GPU-11111111-2222-3333-4444-555555555555", CC: "9.0", SMs: 132, Bus: "00000000:06:00.0", Memory: 150754820096}}})
	d, err := cuda.Open(m.Path("/usr/lib/x86_64-linux-gnu/libcuda.so.1"))
	if err != nil {
		t.Fatal(err)
	}
	if err := d.Init(); err != nil {
		t.Fatal(err)
	}
	dev, err := d.Device(0)
	if err != nil {
		t.Fatal(err)
	}
	c, err := d.RetainPrimary(dev)
	if err != nil {
		t.Fatal(err)
	}
	if err := d.SetCurrent(c); err != nil {
		t.Fatal(err)
	}
	whole, err := d.DeviceResource(dev)
	if err != nil {
		t.Fatal(err)
	}
	l, _ := partition.LimitsOf(&whole, version, 9)
	return d, dev, l
}

func TestSizes(t *testing.T) {
	l := partition.Limits{Total: 132, Minimum: 8, Alignment: 8}
	for _, c := range []struct {
		plan partition.Plan
		want []int
		fail string
	}{
		{partition.Plan{SMs: []int{8, partition.Rest}}, []int{8, -1}, ""},
		{partition.Plan{SMs: []int{16, 64, 32}}, []int{16, 64, 32}, ""},
		{partition.Plan{Groups: 8}, []int{16, 16, 16, 16, 16, 16, 16, 16}, ""},
		{partition.Plan{Groups: 2}, []int{64, 64}, ""},
		{partition.Plan{Groups: 17}, nil, "smallest of 8"},
		{partition.Plan{Groups: 66, IgnoreCoscheduling: true}, nil, "between 1 and 64"},
		{partition.Plan{Groups: 60, IgnoreCoscheduling: true}, slices.Repeat([]int{2}, 60), ""},
		{partition.Plan{SMs: []int{65, 66}}, nil, "take 144 SMs with the alignment of 8"},
		{partition.Plan{SMs: []int{65, 66}, IgnoreCoscheduling: true}, []int{65, 66}, ""},
		{partition.Plan{SMs: []int{132, partition.Rest}}, nil, "take all 132"},
		{partition.Plan{SMs: []int{partition.Rest}}, nil, "rest can only be the last"},
		{partition.Plan{SMs: []int{8, partition.Rest, 8}}, nil, "rest can only be the last"},
		{partition.Plan{SMs: []int{0}}, nil, "partition of 0 SMs"},
		{partition.Plan{SMs: []int{133}}, nil, "partition of 133 SMs"},
		{partition.Plan{}, nil, "without partitions"},
		{partition.Plan{SMs: []int{8}, Groups: 2}, nil, "not both"},
	} {
		got, err := c.plan.Sizes(l)
		if !slices.Equal(got, c.want) || (err == nil) != (c.fail == "") || err != nil && !strings.Contains(err.Error(), c.fail) {
			t.Errorf("%+v: got %v, %v", c.plan, got, err)
		}
	}
	if _, err := (partition.Plan{Groups: 1}).Sizes(partition.Limits{}); err == nil {
		t.Error("limits of 0 were taken")
	}
}

func TestLimitsOfOldDriver(t *testing.T) {
	_, _, l := open(t, 12050)
	if want := (partition.Limits{Total: 132, Minimum: 8, Alignment: 8}); l != want {
		t.Errorf("got %+v, want %+v", l, want)
	}
}

func TestCreate(t *testing.T) {
	for _, c := range []struct {
		version int
		plan    partition.Plan
		method  string
		granted []int
		left    int
	}{
		{13000, partition.Plan{SMs: []int{16, partition.Rest}}, "equal", []int{16, 116}, 0},
		{13000, partition.Plan{SMs: []int{8, 8}}, "equal", []int{8, 8}, 116},
		{13000, partition.Plan{Groups: 16}, "equal", slices.Repeat([]int{8}, 16), 4},
		{13000, partition.Plan{SMs: []int{16, 64}}, "sequential_through_contexts", []int{16, 64}, 52},
		{13000, partition.Plan{SMs: []int{16, 32, partition.Rest}}, "sequential_through_contexts", []int{16, 32, 84}, 0},
		{13010, partition.Plan{SMs: []int{16, 64, 8}}, "heterogeneous", []int{16, 64, 8}, 44},
		{13000, partition.Plan{SMs: []int{10, 10}, IgnoreCoscheduling: true}, "equal", []int{10, 10}, 112},
	} {
		d, dev, l := open(t, c.version)
		st := &steps{}
		s, err := partition.Create(d, dev, c.plan, l, st)
		if err != nil {
			t.Fatalf("%+v: %v", c, err)
		}
		var granted []int
		for _, p := range s.Partitions {
			r, err := d.GreenResource(p.Green)
			if err != nil {
				t.Fatal(err)
			}
			granted = append(granted, r.SMs())
		}
		if s.Method != c.method || !slices.Equal(granted, c.granted) || s.Left != c.left {
			t.Errorf("%+v: method %s, granted %v, left %d", c, s.Method, granted, s.Left)
		}
		made := 0
		for _, step := range st.taken {
			if strings.HasPrefix(step, "create") {
				made++
			}
		}
		if u := s.Close(); u.Created != made || u.Destroyed != made || len(u.Failures) != 0 {
			t.Errorf("%+v: %d made, undone %+v", c, made, u)
		}
		if err := d.ReleasePrimary(dev); err != nil {
			t.Error(err)
		}
		if active, err := d.PrimaryActive(dev); err != nil || active {
			t.Errorf("%+v: the primary context is still there, %v", c, err)
		}
	}
}

// Whatever call fails, what was made is undone: the primary context goes with the last of it.
func TestCreateFails(t *testing.T) {
	plan := partition.Plan{SMs: []int{16, 32, partition.Rest}}
	for _, symbol := range []string{"cuDevSmResourceSplitByCount", "cuDevResourceGenerateDesc", "cuGreenCtxCreate",
		"cuGreenCtxGetDevResource", "cuCtxFromGreenCtx", "cuGreenCtxStreamCreate"} {
		for call := 1; call <= 4; call++ {
			d, dev, l := open(t, 13000, gputest.Fault{Symbol: symbol, Call: call, Code: 999})
			s, err := partition.Create(d, dev, plan, l, &steps{})
			if err == nil && call < 3 && symbol != "cuGreenCtxGetDevResource" {
				t.Errorf("%s, call %d: no error", symbol, call)
			}
			if u := s.Close(); len(u.Failures) > 0 || u.Created != u.Destroyed {
				t.Errorf("%s, call %d: undone %+v", symbol, call, u)
			}
			if err := d.ReleasePrimary(dev); err != nil {
				t.Error(err)
			}
			if active, err := d.PrimaryActive(dev); err != nil || active {
				t.Errorf("%s, call %d: something holds the primary context, %v", symbol, call, err)
			}
		}
	}
}

// A destroying call that fails is reported, and the others are made.
func TestCloseFails(t *testing.T) {
	d, dev, l := open(t, 13000, gputest.Fault{Symbol: "cuGreenCtxDestroy", Call: 1, Code: 719})
	s, err := partition.Create(d, dev, partition.Plan{Groups: 2}, l, &steps{})
	if err != nil {
		t.Fatal(err)
	}
	if u := s.Close(); u.Created != 4 || u.Destroyed != 3 || len(u.Failures) != 1 || !strings.Contains(u.Failures[0], "CUDA_ERROR_LAUNCH_FAILED") {
		t.Errorf("%+v", u)
	}
}

// A step that can't be recorded isn't taken.
func TestStepsRefuse(t *testing.T) {
	d, dev, l := open(t, 13000)
	s, err := partition.Create(d, dev, partition.Plan{Groups: 2}, l, &steps{refuse: "create_green_context"})
	if err == nil || len(s.Partitions) != 0 {
		t.Errorf("%v, %d partitions", err, len(s.Partitions))
	}
}

func TestMap(t *testing.T) {
	d, dev, _ := open(t, 13000)
	rows, err := partition.Map(d, dev)
	if err != nil || len(rows) != 2*134 {
		t.Fatalf("%d rows, %v", len(rows), err)
	}
	for _, want := range []partition.Row{
		{false, 16, 0, "CUDA_SUCCESS", 16, 116, 8, 4},
		{false, 66, 0, "CUDA_SUCCESS", 72, 60, 1, 60},
		{false, 133, 915, "CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION", 0, 0, 0, 0},
		{true, 66, 0, "CUDA_SUCCESS", 66, 66, 2, 0},
	} {
		if !slices.Contains(rows, want) {
			t.Errorf("no row %+v", want)
		}
	}
}

package cuda_test

import (
	"testing"

	"cotenant/internal/cuda"
	"cotenant/internal/gputest"
)

// A copy to the device, a kernel and a copy back, captured and launched: each launch does all of it again with what the
// page-locked memory holds then.
func TestGraph(t *testing.T) {
	d, _ := open(t, 13000)
	module, err := d.LoadModule(ptx(t))
	must(t, err)
	fill, err := d.Function(module, "fill")
	must(t, err)
	s, err := d.CreateStream(0)
	must(t, err)
	p, err := d.Alloc(4096)
	must(t, err)
	host, err := d.AllocHost(4096)
	must(t, err)
	l, err := d.NewLaunch(fill, [3]uint32{1, 1, 1}, [3]uint32{32, 1, 1}, 0)
	must(t, err)
	l.Set(0, uint64(p)).Set(1, 1).Dependent()

	capture := func(value uint64) cuda.Graph {
		must(t, d.BeginCapture(s))
		if _, err := d.StreamDone(s); err != nil && cuda.CodeOf(err) != 900 {
			t.Error(err)
		}
		must(t, d.ToDeviceAsync(p, host[:8], s))
		must(t, l.Set(2, value).Run(s))
		must(t, d.CopyAsync(p+16, p, 8, s))
		must(t, d.SetAsync(p+24, 9, 4, s))
		must(t, d.ToHostAsync(host[8:40], p, s))
		g, err := d.EndCapture(s)
		must(t, err)
		return g
	}
	g := capture(0x01020304)
	e, err := d.Instantiate(g)
	must(t, err)
	must(t, d.DestroyGraph(g))
	clear(host)
	for i := range byte(3) {
		host[4] = i
		must(t, d.LaunchGraph(e, s))
		must(t, d.SynchronizeStream(s))
		if host[8] != 4 || host[11] != 1 || host[12] != i || host[24] != 4 || host[28] != i || host[32] != 9 {
			t.Errorf("launch %d: % x", i, host[8:40])
		}
	}
	changed := capture(5)
	must(t, d.UpdateGraph(e, changed))
	must(t, d.LaunchGraph(e, s))
	must(t, d.SynchronizeStream(s))
	if host[8] != 5 || host[11] != 0 {
		t.Errorf("after the update: % x", host[8:40])
	}
	must(t, d.BeginCapture(s))
	other, err := d.EndCapture(s)
	must(t, err)
	if err := d.UpdateGraph(e, other); cuda.CodeOf(err) != 910 {
		t.Errorf("an update of another shape: %v", err)
	}
	if err := d.LaunchGraph(cuda.GraphExec(other), s); err == nil {
		t.Error("a graph that wasn't instantiated ran")
	}
	must(t, d.DestroyGraphExec(e))
	must(t, d.FreeHost(host))
}

// Shared memory beyond 48 KiB must be allowed, clusters divide the grid, and an attribute goes with Reset.
func TestLaunchAttributes(t *testing.T) {
	d, _ := open(t, 13000)
	module, err := d.LoadModule(ptx(t))
	must(t, err)
	f, err := d.Function(module, "fill")
	must(t, err)
	p, err := d.Alloc(64)
	must(t, err)
	set := func(l *cuda.Launch) *cuda.Launch { return l.Set(0, uint64(p)).Set(1, 16).Set(2, 7) }
	l, err := d.NewLaunch(f, [3]uint32{4, 1, 1}, [3]uint32{32, 1, 1}, 100<<10)
	must(t, err)
	if err := set(l).Run(0); cuda.CodeOf(err) != 1 {
		t.Errorf("100 KiB of shared memory: %v", err)
	}
	must(t, d.AllowShared(f, 100<<10))
	must(t, l.Run(0))
	if err := d.AllowShared(f, 300<<10); cuda.CodeOf(err) != 1 {
		t.Errorf("300 KiB of shared memory: %v", err)
	}
	must(t, set(l.Reset(f, [3]uint32{4, 1, 1}, [3]uint32{32, 1, 1}, 0)).Cluster(2, 1, 1).Dependent().Run(0))
	if err := set(l.Reset(f, [3]uint32{3, 1, 1}, [3]uint32{32, 1, 1}, 0)).Cluster(2, 1, 1).Run(0); cuda.CodeOf(err) != 1 {
		t.Errorf("3 blocks in clusters of 2: %v", err)
	}
	must(t, set(l.Reset(f, [3]uint32{3, 1, 1}, [3]uint32{32, 1, 1}, 0)).Run(0))
	if n := testing.AllocsPerRun(20, func() {
		must(t, set(l.Reset(f, [3]uint32{2, 1, 1}, [3]uint32{32, 1, 1}, 0)).Dependent().Run(0))
	}); n != 0 {
		t.Errorf("%v allocations a launch", n)
	}
}

func TestTensorMap(t *testing.T) {
	d, _ := open(t, 13000)
	p, err := d.Alloc(1 << 20)
	must(t, err)
	if _, err := d.EncodeBF16(p, 128, 896, 896, 128, 64); err != nil {
		t.Error(err)
	}
	for _, c := range []struct {
		p                                  cuda.Pointer
		rows, cols, stride, boxRow, boxCol int
	}{{p + 8, 128, 896, 896, 128, 64}, {p, 128, 900, 900, 128, 64}, {p, 128, 896, 896, 512, 64}, {p, 128, 896, 896, 64, 128}} {
		if _, err := d.EncodeBF16(c.p, c.rows, c.cols, c.stride, c.boxRow, c.boxCol); cuda.CodeOf(err) != 1 {
			t.Errorf("%+v: %v", c, err)
		}
	}
}

// A driver without the function says so.
func TestHostMemoryErrors(t *testing.T) {
	d, _ := open(t, 13000, gputest.Fault{Symbol: "cuMemHostAlloc", Code: 2}, gputest.Fault{Symbol: "cuMemHostRegister_v2", Code: 801})
	if _, err := d.AllocHost(4096); cuda.CodeOf(err) != 2 {
		t.Error(err)
	}
	if err := d.RegisterHost(make([]byte, 4096)); cuda.CodeOf(err) != 801 {
		t.Error(err)
	}
}

package cuda_test

import (
	"errors"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"cotenant/internal/cuda"
	"cotenant/internal/cuda/query"
	"cotenant/internal/gputest"
	"cotenant/internal/kernels"
)

func TestMain(m *testing.M) {
	code := m.Run()
	gputest.Cleanup()
	os.Exit(code)
}

const uuid = "GPU-11111111-2222-3333-4444-555555555555"

// open loads a fake of its own for the version, with a device of 132 SMs in a primary context that is current.
func open(t *testing.T, version int, faults ...gputest.Fault) (*cuda.Driver, cuda.Device) {
	t.Helper()
	runtime.LockOSThread()
	t.Cleanup(runtime.UnlockOSThread)
	m := gputest.Start(t, gputest.Host{CUDA: []gputest.CUDA{{Version: version}}, Faults: faults,
		GPUs: []gputest.GPU{{UUID: uuid, Name: "NVIDIA H200", Bus: "00000000:06:00.0", CC: "9.0", SMs: 132, Memory: 150754820096}}})
	d, err := cuda.Open(m.Path("/usr/lib/x86_64-linux-gnu/libcuda.so.1"))
	if err != nil {
		t.Fatal(err)
	}
	must(t, d.Init())
	dev, n, err := d.Find(uuid)
	if err != nil || n != 1 {
		t.Fatalf("%d devices, %v", n, err)
	}
	c, err := d.RetainPrimary(dev)
	must(t, err)
	must(t, d.SetCurrent(c))
	return d, dev
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// What shared measurements of driver 580 say: SplitByCount of one group with flags 0, and with coscheduling ignored.
func TestSplitByCount(t *testing.T) {
	d, dev := open(t, 13000)
	whole, err := d.DeviceResource(dev)
	must(t, err)
	minimum, alignment := whole.Limits(13000)
	if whole.SMs() != 132 || minimum != 8 || alignment != 8 {
		t.Fatalf("%d SMs, minimum %d, alignment %d", whole.SMs(), minimum, alignment)
	}
	for _, c := range []struct {
		flags             cuda.SplitFlags
		ask, group, spare int
		code              query.Code
	}{
		{0, 1, 8, 124, 0}, {0, 8, 8, 124, 0}, {0, 10, 16, 116, 0}, {0, 20, 24, 108, 0}, {0, 32, 32, 100, 0}, {0, 64, 64, 68, 0}, {0, 66, 72, 60, 0},
		{0, 100, 104, 28, 0}, {0, 128, 128, 4, 0}, {0, 132, 132, 0, 0}, {0, 140, 0, 0, 915},
		{1, 1, 2, 130, 0}, {1, 10, 10, 122, 0}, {1, 66, 66, 66, 0}, {1, 100, 100, 32, 0}, {1, 140, 0, 0, 915},
	} {
		parts, rest, err := d.SplitByCount(&whole, 1, c.ask, c.flags)
		if cuda.CodeOf(err) != c.code {
			t.Errorf("%+v: %v", c, err)
		}
		if err != nil {
			continue
		}
		if len(parts) != 1 || parts[0].SMs() != c.group || rest.SMs() != c.spare {
			t.Errorf("%+v: %d groups of %d, rest %d", c, len(parts), parts[0].SMs(), rest.SMs())
		}
	}
	parts, rest, err := d.SplitByCount(&whole, 32, 16, 0)
	if err != nil || len(parts) != 8 || rest.SMs() != 4 {
		t.Errorf("32 groups of 16: %d groups, rest %d, %v", len(parts), rest.SMs(), err)
	}
	if n, err := d.CountGroups(&whole, 16, 0); n != 8 || err != nil {
		t.Errorf("CountGroups: %d, %v", n, err)
	}
}

// The whole life of two Green Contexts, by the driver's own queries, and a kernel in each.
func TestGreenContexts(t *testing.T) {
	for _, version := range []int{12050, 13000, 13010} {
		d, dev := open(t, version)
		whole, err := d.DeviceResource(dev)
		must(t, err)
		parts, rest, err := d.SplitByCount(&whole, 1, 16, 0)
		must(t, err)
		module, err := d.LoadModule(ptx(t))
		must(t, err)
		witness, err := d.Function(module, "witness")
		must(t, err)
		seen := make(map[uint32]int)
		for i, r := range []cuda.Resource{parts[0], rest} {
			desc, err := d.Describe(r)
			must(t, err)
			g, err := d.CreateGreen(dev, desc)
			must(t, err)
			got, err := d.GreenResource(g)
			must(t, err)
			c, err := d.ContextOfGreen(g)
			must(t, err)
			viaContext, err := d.ContextResource(c)
			must(t, err)
			if got.SMs() != r.SMs() || viaContext.SMs() != r.SMs() {
				t.Errorf("%d: created with %d SMs, has %d and %d", version, r.SMs(), got.SMs(), viaContext.SMs())
			}
			s, err := d.CreateGreenStream(g, -1)
			must(t, err)
			if p, err := d.StreamPriority(s); p != -1 || err != nil {
				t.Errorf("priority %d, %v", p, err)
			}
			if owner, err := d.GreenOfStream(s); owner != g || err != nil {
				t.Errorf("the stream belongs to %x, not to %x, %v", owner, g, err)
			}
			if r, err := d.StreamResource(s); version >= 13010 && (err != nil || r.SMs() != got.SMs()) {
				t.Errorf("stream has %d SMs, %v", r.SMs(), err)
			} else if version < 13010 && !errors.As(err, new(*cuda.MissingError)) {
				t.Errorf("%d: %v, want a missing function", version, err)
			}
			for id := range runWitness(t, d, witness, s, uint32(i)) {
				seen[id]++
			}
			must(t, d.DestroyStream(s))
			must(t, d.DestroyGreen(g))
			if err := d.DestroyGreen(g); cuda.CodeOf(err) != 400 {
				t.Errorf("destroyed twice: %v", err)
			}
		}
		if len(seen) != 132 {
			t.Errorf("%d SMs were seen, each once: want 132", len(seen))
		}
		for id, n := range seen {
			if n != 1 {
				t.Errorf("SM %d was seen in %d contexts", id, n)
			}
		}
		must(t, d.UnloadModule(module))
		must(t, d.ReleasePrimary(dev))
		if active, err := d.PrimaryActive(dev); active || err != nil {
			t.Errorf("primary context still there: %v, %v", active, err)
		}
	}
}

func ptx(t *testing.T) []byte {
	t.Helper()
	text, _, err := kernels.Module(kernels.ProbeModule)
	must(t, err)
	return text
}

// runWitness returns how many blocks ran on each SM, and checks the values.
func runWitness(t *testing.T, d *cuda.Driver, f cuda.Function, s cuda.Stream, seed uint32) map[uint32]int {
	t.Helper()
	const blocks, threads, rounds = 512, 64, 8
	ids, err := d.Alloc(4 * blocks)
	must(t, err)
	values, err := d.Alloc(4 * blocks)
	must(t, err)
	times, err := d.Alloc(16 * blocks)
	must(t, err)
	l, err := d.NewLaunch(f, [3]uint32{blocks, 1, 1}, [3]uint32{threads, 1, 1}, 0)
	must(t, err)
	l.Set(0, uint64(ids)).Set(1, uint64(values)).Set(2, uint64(times)).Set(3, uint64(seed)).Set(4, rounds).Set(5, 1000)
	must(t, l.Run(s))
	must(t, d.WaitStream(s, time.Now().Add(time.Second)))
	sm, value := make([]byte, 4*blocks), make([]byte, 4*blocks)
	must(t, d.ToHost(sm, ids))
	must(t, d.ToHost(value, values))
	count := make(map[uint32]int)
	for b := range uint32(blocks) {
		word := func(x []byte) uint32 {
			return uint32(x[4*b]) | uint32(x[4*b+1])<<8 | uint32(x[4*b+2])<<16 | uint32(x[4*b+3])<<24
		}
		count[word(sm)]++
		if got, want := word(value), kernels.WitnessValue(seed, rounds, b, threads); got != want {
			t.Fatalf("block %d: value %d, want %d", b, got, want)
		}
	}
	for _, p := range []cuda.Pointer{ids, values, times} {
		must(t, d.Free(p))
	}
	return count
}

func TestHeterogeneousSplit(t *testing.T) {
	d, dev := open(t, 13010)
	whole, err := d.DeviceResource(dev)
	must(t, err)
	parts, rest, err := d.Split(&whole, []cuda.GroupParams{{SMs: 16}, {SMs: 64}})
	if err != nil || parts[0].SMs() != 16 || parts[1].SMs() != 64 || rest.SMs() != 52 {
		t.Errorf("%v, rest %d, %v", parts, rest.SMs(), err)
	}
	if _, _, err := d.Split(&whole, []cuda.GroupParams{{SMs: 100}, {SMs: 64}}); cuda.CodeOf(err) != 915 {
		t.Errorf("too much: %v", err)
	}
	q, err := d.DeviceWorkqueue(dev)
	must(t, err)
	q.SetWorkqueue(4, true)
	if limit, scope := q.Workqueue(); limit != 4 || scope != 1 {
		t.Errorf("workqueue %d, %d", limit, scope)
	}
	if _, err := d.Describe(parts[0], q); err != nil {
		t.Error(err)
	}
}

// Each code at each call comes back as an error that names both.
func TestErrors(t *testing.T) {
	codes := []query.Code{1, 2, 46, 201, 304, 719, 800, 801, 802, 805, 915, 999, 12345}
	for i, code := range codes {
		d, dev := open(t, 13000, gputest.Fault{Symbol: "cuGreenCtxCreate", Code: int(code)}, gputest.Fault{Symbol: "cuMemAlloc_v2", Call: 2, Code: int(code)},
			gputest.Fault{Symbol: "cuStreamQuery", Code: 600}, gputest.Fault{Symbol: "cuDeviceGetDevResource", Call: 2, Action: gputest.Lie})
		whole, err := d.DeviceResource(dev)
		must(t, err)
		desc, err := d.Describe(whole)
		must(t, err)
		_, err = d.CreateGreen(dev, desc)
		if cuda.CodeOf(err) != code || !strings.Contains(err.Error(), "cuGreenCtxCreate: "+code.Name()) {
			t.Errorf("%d: %v", code, err)
		}
		_, err = d.Alloc(1024)
		must(t, err)
		if _, err = d.Alloc(1024); cuda.CodeOf(err) != code {
			t.Errorf("%d: second allocation: %v", code, err)
		}
		if i > 0 {
			continue
		}
		s, err := d.CreateStream(0)
		must(t, err)
		if err := d.WaitStream(s, time.Now().Add(20*time.Millisecond)); !errors.Is(err, cuda.ErrDeadline) {
			t.Errorf("a stream that never ends: %v", err)
		}
		if _, err := d.DeviceResource(dev); err == nil || !strings.Contains(err.Error(), "type is 0, not 1") {
			t.Errorf("a lie was believed: %v", err)
		}
		if _, err := d.Alloc(1 << 50); cuda.CodeOf(err) != query.OutOfMemory {
			t.Errorf("out of memory: %v", err)
		}
		if _, err := d.LoadModule([]byte("nonsense")); cuda.CodeOf(err) != 218 || !strings.Contains(err.Error(), "ptxas") {
			t.Errorf("no PTX: %v", err)
		}
	}
}

// A driver below the floor lacks functions, which is an error of their call and no crash.
func TestOldDriver(t *testing.T) {
	d, dev := open(t, 11040)
	var missing *cuda.MissingError
	if _, err := d.DeviceResource(dev); !errors.As(err, &missing) || missing.Symbol != "cuDeviceGetDevResource" {
		t.Errorf("%v", err)
	}
	if got := d.Missing(cuda.GreenSymbols...); len(got) != len(cuda.GreenSymbols) {
		t.Errorf("missing %v", got)
	}
}

// A launch allocates nothing: it is made per kernel and token.
func TestLaunchAllocatesNothing(t *testing.T) {
	d, _ := open(t, 13000)
	module, err := d.LoadModule(ptx(t))
	must(t, err)
	f, err := d.Function(module, "fill")
	must(t, err)
	p, err := d.Alloc(4096)
	must(t, err)
	l, err := d.NewLaunch(f, [3]uint32{1, 1, 1}, [3]uint32{32, 1, 1}, 0)
	must(t, err)
	l.Set(0, uint64(p)).Set(1, 1024).Set(2, 7)
	if n := testing.AllocsPerRun(20, func() { must(t, l.Run(0)) }); n != 0 {
		t.Errorf("%v allocations a launch", n)
	}
	out := make([]byte, 4096)
	must(t, d.ToHost(out, p))
	if out[0] != 7 || out[4092] != 7 || out[1] != 0 {
		t.Errorf("fill wrote % x …", out[:8])
	}
}

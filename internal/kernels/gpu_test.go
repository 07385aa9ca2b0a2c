package kernels

import (
	"encoding/binary"
	"math"
	"math/rand/v2"
	"runtime"
	"slices"
	"testing"
	"unsafe"

	"cotenant/internal/cuda"
	"cotenant/internal/testenv"
)

// device is a real GPU in its primary context, for one test.
type device struct {
	t         testing.TB
	d         *cuda.Driver
	context   cuda.Context
	gpu       GPU
	stream    cuda.Stream
	modules   map[string]cuda.Module
	functions map[string]cuda.Function
}

// openDevice takes the first GPU; without one it skips the test.
func openDevice(t testing.TB) *device {
	t.Helper()
	d, err := cuda.Open("libcuda.so.1")
	if err != nil {
		testenv.NoGPU(t, err.Error())
	}
	if err := d.Init(); err != nil {
		testenv.NoGPU(t, err.Error())
	}
	g := &device{t: t, d: d, modules: map[string]cuda.Module{}, functions: map[string]cuda.Function{}}
	dev, err := d.Device(0)
	g.must(err)
	g.context, err = d.RetainPrimary(dev)
	g.must(err)
	g.enter(t)
	// CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, _MINOR, MULTIPROCESSOR_COUNT.
	var values [3]int
	for i, a := range []int{75, 76, 16} {
		values[i], err = d.Attribute(dev, a)
		g.must(err)
	}
	g.gpu = GPU{Capability: values[0]*10 + values[1], SMs: values[2]}
	g.stream, err = d.CreateStream(0)
	g.must(err)
	t.Cleanup(func() {
		_ = d.DestroyStream(g.stream)
		_ = d.ReleasePrimary(dev)
	})
	return g
}

// enter makes the GPU that of the goroutine: a part of a test or benchmark has one of its own.
func (g *device) enter(t testing.TB) {
	t.Helper()
	runtime.LockOSThread()
	t.Cleanup(runtime.UnlockOSThread)
	g.must(g.d.SetCurrent(g.context))
}

func (g *device) must(err error) {
	g.t.Helper()
	if err != nil {
		g.t.Fatal(err)
	}
}

// alloc returns device memory that is freed when the test ends, filled with ones, which as floating point is NaN.
func (g *device) alloc(bytes int) cuda.Pointer {
	g.t.Helper()
	p, err := g.d.Alloc(int64(max(bytes, 1)))
	g.must(err)
	g.must(g.d.Set(p, 0xff, int64(bytes)))
	g.t.Cleanup(func() { _ = g.d.Free(p) })
	return p
}

func raw[T any](values []T) []byte {
	if len(values) == 0 {
		return nil
	}
	return unsafe.Slice((*byte)(unsafe.Pointer(&values[0])), len(values)*int(unsafe.Sizeof(values[0])))
}

// upload allocates room for values and extra bytes behind them.
func upload[T any](g *device, values []T, extra int) cuda.Pointer {
	g.t.Helper()
	p := g.alloc(len(raw(values)) + extra)
	g.must(g.d.ToDevice(p, raw(values)))
	return p
}

func download[T any](g *device, p cuda.Pointer, n int) []T {
	g.t.Helper()
	g.must(g.d.Synchronize())
	values := make([]T, n)
	g.must(g.d.ToHost(raw(values), p))
	return values
}

func (g *device) function(module, kernel string, shared uint32) cuda.Function {
	g.t.Helper()
	if _, ok := g.modules[module]; !ok {
		ptx, info, err := Module(module)
		g.must(err)
		g.modules[module], err = g.d.LoadModule(ptx)
		g.must(err)
		g.t.Logf("module %s %s", info.Name, info.SHA256) // for the record of bench/h200/check-gpu.sh
	}
	f, ok := g.functions[module+kernel]
	if !ok {
		var err error
		f, err = g.d.Function(g.modules[module], kernel)
		g.must(err)
		g.functions[module+kernel] = f
	}
	if shared > 48<<10 {
		g.must(g.d.AllowShared(f, int(shared)))
	}
	return f
}

// launch prepares a plan; args are pointers and integers. dependent lets it begin early.
func (g *device) launch(p Plan, dependent bool, args ...any) *cuda.Launch {
	g.t.Helper()
	l, err := g.d.NewLaunch(g.function(p.Module, p.Kernel, p.Shared), p.Grid, p.Block, p.Shared)
	g.must(err)
	for i, a := range args {
		switch v := a.(type) {
		case cuda.Pointer:
			l.Set(i, uint64(v))
		case int:
			l.Set(i, uint64(uint32(v)))
		case Mode:
			l.Set(i, uint64(v))
		case float32:
			l.Set(i, uint64(math.Float32bits(v)))
		default:
			g.t.Fatalf("argument %d is a %T", i, a)
		}
	}
	if p.Cluster > 0 {
		l.Cluster(p.Cluster, 1, 1)
	}
	if dependent {
		l.Dependent()
	}
	return l
}

func (g *device) run(l *cuda.Launch) {
	g.t.Helper()
	g.must(l.Run(g.stream))
	g.must(g.d.SynchronizeStream(g.stream))
}

// microseconds times launches in a graph: the median of replays, a launch.
func (g *device) microseconds(launches []*cuda.Launch, replays int) float64 {
	g.t.Helper()
	g.must(g.d.BeginCapture(g.stream))
	for _, l := range launches {
		g.must(l.Run(g.stream))
	}
	graph, err := g.d.EndCapture(g.stream)
	g.must(err)
	exec, err := g.d.Instantiate(graph)
	g.must(err)
	g.must(g.d.DestroyGraph(graph))
	from, err := g.d.CreateEvent(0)
	g.must(err)
	to, err := g.d.CreateEvent(0)
	g.must(err)
	var times []float32
	for i := range replays + 1 {
		g.must(g.d.RecordEvent(from, g.stream))
		g.must(g.d.LaunchGraph(exec, g.stream))
		g.must(g.d.RecordEvent(to, g.stream))
		g.must(g.d.SynchronizeStream(g.stream))
		ms, err := g.d.ElapsedMS(from, to)
		g.must(err)
		if i > 0 {
			times = append(times, ms)
		}
	}
	_ = g.d.DestroyEvent(from)
	_ = g.d.DestroyEvent(to)
	_ = g.d.DestroyGraphExec(exec)
	slices.Sort(times)
	return float64(times[len(times)/2]) * 1000 / float64(len(launches))
}

// tensorMap puts a tensor map into device memory.
func (g *device) tensorMap(m *cuda.TensorMap, err error) cuda.Pointer {
	g.t.Helper()
	g.must(err)
	return upload(g, m.Bytes(), 0)
}

func toBF16(v float32) uint16 {
	b := math.Float32bits(v)
	if v != v {
		return uint16(b>>16) | 0x40
	}
	return uint16((b + 0x7fff + b>>16&1) >> 16)
}

func fromBF16(b uint16) float64 { return float64(math.Float32frombits(uint32(b) << 16)) }

// normalBF16 returns n normal deviates times scale.
func normalBF16(r *rand.Rand, n int, scale float64) []uint16 {
	v := make([]uint16, n)
	for i := range v {
		v[i] = toBF16(float32(r.NormFloat64() * scale))
	}
	return v
}

func normalF32(r *rand.Rand, n int) []float32 {
	v := make([]float32, n)
	for i := range v {
		v[i] = float32(r.NormFloat64())
	}
	return v
}

func float32sOf(b []byte) []float32 {
	v := make([]float32, len(b)/4)
	for i := range v {
		v[i] = math.Float32frombits(binary.LittleEndian.Uint32(b[4*i:]))
	}
	return v
}

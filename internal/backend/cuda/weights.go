package cuda

import (
	"errors"
	"fmt"
	"runtime"
	"sync"
	"unsafe"

	"cotenant/internal/backend"
	driver "cotenant/internal/cuda"
	"cotenant/internal/kernels"
	"cotenant/internal/weights"
)

// matrix implements backend.Matrix: [rows, cols] bf16, or segments of rows that stay quantised.
type matrix struct {
	p             driver.Pointer // of segments: where they are expanded to, 0 until they are
	rows, cols    int
	segments      []segment
	plain, paired uint64 // tensor maps in device memory, of the matrix and of a gate and up; 0: not made yet
}

func (m *matrix) Rows() int { return m.rows }
func (m *matrix) Cols() int { return m.cols }
func (m *matrix) Bytes() int64 {
	if !m.quantized() {
		return 2 * int64(m.rows) * int64(m.cols)
	}
	var n int64
	for _, s := range m.segments {
		bytes, _ := kernels.QuantizedBytes(s.format, s.rows, m.cols)
		n += bytes
	}
	return n
}

// vector implements backend.Vector: float32.
type vector struct {
	p driver.Pointer
	n int
}

func (v *vector) Len() int { return v.n }

// Matrix implements backend.Backend. Quantised parts stay so; a matrix with others among them, or with rows that are no multiple of 8, is
// bf16 on the device: F32 and F16 are rounded there, quantised formats are expanded on the host.
func (g *gpu) Matrix(parts ...weights.Tensor) (backend.Matrix, error) {
	if len(parts) == 0 || len(parts[0].Shape) != 2 {
		return nil, errors.New("cuda backend: a matrix needs parts with two dimensions")
	}
	m := &matrix{cols: parts[0].Shape[1]}
	for _, t := range parts {
		if len(t.Shape) != 2 || t.Shape[1] != m.cols || t.Shape[0] < 1 || m.cols < 1 {
			return nil, fmt.Errorf("cuda backend: tensor %s of shape %v in a matrix of %d columns", t.Name, t.Shape, m.cols)
		}
		m.rows += t.Shape[0]
	}
	g.step.loaded = false
	if m.segments = g.segmentsOf(parts); m.quantized() {
		if err := g.loadSegments(m, parts); err != nil {
			return nil, fmt.Errorf("cuda backend: %w", err)
		}
		return m, nil
	}
	var err error
	if m.p, err = g.mem.alloc("weights", 2*int64(m.rows)*int64(m.cols)); err != nil {
		return nil, fmt.Errorf("cuda backend: %w", err)
	}
	to := m.p
	for _, t := range parts {
		if err := g.upload(to, t); err != nil {
			return nil, fmt.Errorf("cuda backend: tensor %s: %w", t.Name, err)
		}
		to += driver.Pointer(2 * t.Shape[0] * m.cols)
	}
	return m, nil
}

// Vector implements backend.Backend.
func (g *gpu) Vector(parts ...weights.Tensor) (backend.Vector, error) {
	g.step.loaded = false
	var all []float32
	for _, t := range parts {
		n := len(t.Data) / t.Type.BlockBytes() * t.Type.BlockSize()
		at := len(all)
		all = append(all, make([]float32, n)...)
		weights.Dequantize(all[at:], t.Type, t.Data)
	}
	if len(all) == 0 {
		return nil, errors.New("cuda backend: a vector without elements")
	}
	p, err := g.mem.alloc("weights", 4*int64(len(all)))
	if err == nil {
		err = g.d.ToDevice(p, bytesOf(all))
	}
	if err != nil {
		return nil, fmt.Errorf("cuda backend: %w", err)
	}
	return &vector{p, len(all)}, nil
}

// staging moves files to the device: a chunk is copied, or expanded, into page-locked memory while the device takes the one before.
type staging struct {
	host    [2][]byte
	device  [2]driver.Pointer // where chunks lie that the device converts; 0 until one does
	taken   [2]driver.Event
	pending [2]bool
	next    int
}

const stagingBytes = 16 << 20

// upload writes a tensor to the device as bf16.
func (g *gpu) upload(to driver.Pointer, t weights.Tensor) error {
	block, bytes := t.Type.BlockSize(), t.Type.BlockBytes()
	elements := len(t.Data) / bytes * block
	width, convert := 2, "" // bytes of an element on its way
	switch t.Type {
	case weights.BF16:
	case weights.F16:
		convert = "f16_to_bf16"
	default:
		width, convert = 4, "f32_to_bf16"
	}
	per := stagingBytes / width / block * block
	for first := 0; first < elements; first += per {
		n := min(per, elements-first)
		slot, err := g.slot(convert != "")
		if err != nil {
			return err
		}
		s := &g.step.staging
		chunk := s.host[slot][:n*width]
		from := t.Data[first/block*bytes : (first+n)/block*bytes]
		parallel(n/block, func(a, b int) {
			if block == 1 {
				copy(chunk[a*width:b*width], from[a*width:b*width])
				return
			}
			weights.Dequantize(floats(chunk[a*block*4:b*block*4]), t.Type, from[a*bytes:b*bytes])
		})
		at := to + driver.Pointer(2*first)
		if convert == "" {
			err = g.d.ToDeviceAsync(at, chunk, g.stream)
		} else if err = g.d.ToDeviceAsync(s.device[slot], chunk, g.stream); err == nil {
			err = g.convert(convert, at, s.device[slot], n)
		}
		if err == nil {
			err = g.d.RecordEvent(s.taken[slot], g.stream)
		}
		if err != nil {
			return err
		}
		s.pending[slot] = true
	}
	return nil
}

// slot returns a staging slot that the device is done with.
func (g *gpu) slot(converts bool) (int, error) {
	s := &g.step.staging
	i := s.next
	s.next = 1 - i
	var err error
	if s.host[i] == nil {
		if s.host[i], err = g.d.AllocHost(stagingBytes); err != nil {
			return 0, fmt.Errorf("page-locked host memory: %w", err)
		}
		if s.taken[i], err = g.d.CreateEvent(driver.EventDisableTiming); err != nil {
			return 0, err
		}
	}
	if converts && s.device[i] == 0 {
		if s.device[i], err = g.mem.alloc("workspace", stagingBytes); err != nil {
			return 0, err
		}
	}
	if s.pending[i] {
		s.pending[i] = false
		return i, g.d.SynchronizeEvent(s.taken[i])
	}
	return i, nil
}

// settle waits for what was uploaded, by copies outside the stream too, and frees the staging memory: the first step comes after the
// last weight.
func (g *gpu) settle() error {
	g.step.loaded = true
	if err := g.d.Synchronize(); err != nil {
		return err
	}
	if err := g.unstage(); err != nil {
		return err
	}
	return g.makeRoom()
}

// unstage frees the staging memory.
func (g *gpu) unstage() error {
	s := &g.step.staging
	var first error
	keep := func(err error) {
		if first == nil {
			first = err
		}
	}
	for i := range s.host {
		if s.pending[i] {
			keep(g.d.SynchronizeEvent(s.taken[i]))
		}
		if s.host[i] != nil {
			keep(g.d.FreeHost(s.host[i]))
			keep(g.d.DestroyEvent(s.taken[i]))
		}
		if s.device[i] != 0 {
			keep(g.mem.release("workspace", s.device[i], stagingBytes))
		}
	}
	*s = staging{}
	return first
}

// parallel calls f for pieces of 0 to n-1 on several threads where that is worth it.
func parallel(n int, f func(first, end int)) {
	workers := min(runtime.GOMAXPROCS(0), 8)
	if n < 1<<12 || workers == 1 {
		f(0, n)
		return
	}
	var wg sync.WaitGroup
	for i := range workers {
		wg.Go(func() { f(n*i/workers, n*(i+1)/workers) })
	}
	wg.Wait()
}

func matrixOf(m backend.Matrix, op string) *matrix {
	x, ok := m.(*matrix)
	if !ok {
		misfit(op, "a matrix of another backend: %T", m)
	}
	return x
}

// vectorOf returns nil for nil.
func vectorOf(v backend.Vector, op string, n int) *vector {
	if v == nil {
		return nil
	}
	x, ok := v.(*vector)
	if !ok {
		misfit(op, "a vector of another backend: %T", v)
	}
	if x.n != n {
		misfit(op, "a vector of %d where %d are wanted", x.n, n)
	}
	return x
}

func bytesOf[T float32 | int32 | uint32](v []T) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(v))), 4*len(v))
}

func floats(b []byte) []float32 {
	return unsafe.Slice((*float32)(unsafe.Pointer(unsafe.SliceData(b))), len(b)/4)
}

func words(b []byte) []int32 {
	return unsafe.Slice((*int32)(unsafe.Pointer(unsafe.SliceData(b))), len(b)/4)
}

// hostAddress is what the device knows page-locked memory by: with unified addressing, which every 64-bit platform has, the same as
// the host.
func hostAddress(b []byte) uint64 { return uint64(uintptr(unsafe.Pointer(unsafe.SliceData(b)))) }

package cuda

import (
	"fmt"
	"slices"

	"cotenant/internal/backend"
	driver "cotenant/internal/cuda"
	"cotenant/internal/cuda/query"
)

// memory is what the backend has allocated on the device, by kind.
type memory struct {
	d        *driver.Driver
	context  bool // the primary context is retained
	blocks   []driver.Pointer
	bytes    map[string]int64
	measured int64 // what was free before anything was allocated
}

func (m *memory) open(d *driver.Driver) error {
	m.d, m.bytes = d, map[string]int64{}
	free, _, err := d.MemoryInfo()
	m.measured = int64(free)
	return err
}

// alloc allocates device memory until close. Everything is aligned to 256 bytes.
func (m *memory) alloc(kind string, bytes int64) (driver.Pointer, error) {
	bytes = (max(bytes, 1) + 255) &^ 255
	p, err := m.d.Alloc(bytes)
	if driver.CodeOf(err) == query.OutOfMemory {
		free, total, infoErr := m.d.MemoryInfo()
		if infoErr != nil {
			return 0, err
		}
		return 0, fmt.Errorf("%d MiB for %s: %d of the GPU's %d MiB are free: %w", bytes>>20, kind, free>>20, total>>20, err)
	}
	if err != nil {
		return 0, fmt.Errorf("%d MiB for %s: %w", bytes>>20, kind, err)
	}
	m.blocks = append(m.blocks, p)
	m.bytes[kind] += bytes
	return p, nil
}

// release frees an allocation before close.
func (m *memory) release(kind string, p driver.Pointer, bytes int64) error {
	i := slices.Index(m.blocks, p)
	m.blocks = slices.Delete(m.blocks, i, i+1)
	m.bytes[kind] -= (max(bytes, 1) + 255) &^ 255
	return m.d.Free(p)
}

// scratch is device memory that grows. What is too small is kept until close: a graph may use it.
type scratch struct {
	p     driver.Pointer
	bytes int64
}

func (s *scratch) room(m *memory, bytes int64) (driver.Pointer, error) {
	if bytes > s.bytes {
		p, err := m.alloc("workspace", max(bytes, 2*s.bytes))
		if err != nil {
			return 0, err
		}
		s.p, s.bytes = p, max(bytes, 2*s.bytes)
	}
	return s.p, nil
}

func (m *memory) close() error {
	var first error
	for _, p := range m.blocks {
		if err := m.d.Free(p); err != nil && first == nil {
			first = err
		}
	}
	m.blocks = nil
	return first
}

// Memory implements backend.Backend. Besides what was allocated it has graphs (what was free before a graph was made less what was
// free after it), and by the driver's own count free and other: what neither is free nor was allocated here, so the contexts of
// this process and everything of others.
func (g *gpu) Memory() []backend.Memory {
	out := []backend.Memory{}
	own := g.graphs.bytes
	for _, kind := range []string{"weights", quantizedMemory, "kv", "rope", "activations", "workspace"} {
		out = append(out, backend.Memory{Kind: kind, Bytes: g.mem.bytes[kind]})
		own += g.mem.bytes[kind]
	}
	out = append(out, backend.Memory{Kind: "graphs", Bytes: g.graphs.bytes})
	free, total, err := g.d.MemoryInfo()
	if err != nil {
		return out // the step's calls report a device that is lost
	}
	return append(out, backend.Memory{Kind: backend.MemoryFree, Bytes: int64(free)},
		backend.Memory{Kind: backend.MemoryOther, Bytes: max(int64(total)-int64(free)-own, 0)})
}

// KVBudget implements backend.Budgeter: nine tenths of what is free, less room for graphs.
func (g *gpu) KVBudget() (int64, error) {
	if err := g.makeRoom(); err != nil {
		return 0, fmt.Errorf("cuda backend: %w", err)
	}
	free, _, err := g.d.MemoryInfo()
	if err != nil {
		return 0, fmt.Errorf("cuda backend: free memory: %w", err)
	}
	budget := int64(free)/10*9 - graphReserve
	if budget <= 0 {
		return 0, fmt.Errorf("cuda backend: %d MiB of the GPU are free, too few for keys and values", free>>20)
	}
	return budget, nil
}

const graphReserve = 256 << 20

// kind is the format of a buffer's elements.
type kind uint8

const (
	f32 kind = iota
	bf16
)

// buffer implements backend.Buffer.
type buffer struct {
	p    driver.Pointer
	n    int
	kind kind // its last writer's, as recorded
}

func (b *buffer) Len() int { return b.n }

// Buffer implements backend.Backend.
func (g *gpu) Buffer(n int) (backend.Buffer, error) {
	if n < 1 {
		return nil, fmt.Errorf("cuda backend: a buffer of %d elements", n)
	}
	p, err := g.mem.alloc("activations", 4*int64(n))
	if err != nil {
		return nil, fmt.Errorf("cuda backend: %w", err)
	}
	return &buffer{p: p, n: n}, nil
}

func bufferOf(b backend.Buffer, op string) *buffer {
	x, ok := b.(*buffer)
	if !ok {
		misfit(op, "a buffer of another backend: %T", b)
	}
	return x
}

// fits panics unless b has rows of width elements.
func fits(op string, b *buffer, rows, width int) {
	if rows < 1 || width < 1 || rows*width > b.n {
		misfit(op, "%d rows of %d in a buffer of %d", rows, width, b.n)
	}
}

// kv implements backend.KV: [layer][page][kv head][key, value][slot in the page][head dim] bf16.
type kv struct {
	c    backend.KVConfig
	p    driver.Pointer
	maps []uint64 // tensor maps of the layers, where they were needed
}

func (k *kv) Config() backend.KVConfig { return k.c }
func (k *kv) Bytes() int64             { return kvBytes(k.c) }

// layer returns where a layer's pages begin.
func (k *kv) layer(i int) driver.Pointer {
	return k.p + driver.Pointer(int64(i)*(kvBytes(k.c)/int64(k.c.Layers)))
}

func kvBytes(c backend.KVConfig) int64 {
	return int64(c.Layers) * int64(c.Pages) * int64(c.KVHeads) * 2 * int64(c.PageSize) * int64(c.HeadDim) * 2
}

// KVBytes implements backend.Backend.
func (g *gpu) KVBytes(c backend.KVConfig) int64 { return kvBytes(c) }

// KV implements backend.Backend. The pages are zeroed: rows that pad a step read page 0.
func (g *gpu) KV(c backend.KVConfig) (backend.KV, error) {
	if c.Layers < 1 || c.KVHeads < 1 || c.HeadDim < 1 || c.PageSize < 1 || c.Pages < 1 || int64(c.Pages)*int64(c.PageSize) > 1<<31-1 {
		return nil, fmt.Errorf("cuda backend: KV memory of shape %+v", c)
	}
	if err := g.makeRoom(); err != nil {
		return nil, fmt.Errorf("cuda backend: %w", err)
	}
	p, err := g.mem.alloc("kv", kvBytes(c))
	if err != nil {
		return nil, fmt.Errorf("cuda backend: %w", err)
	}
	k := &kv{c: c, p: p}
	per := kvBytes(c) / int64(c.Layers)
	for i := range c.Layers {
		if err := g.d.SetAsync(k.layer(i), 0, per/int64(c.Pages), g.stream); err != nil {
			return nil, fmt.Errorf("cuda backend: clearing page 0: %w", err)
		}
	}
	return k, nil
}

func kvOf(m backend.KV, a backend.Attention, layer int, op string) *kv {
	k, ok := m.(*kv)
	if !ok {
		misfit(op, "KV memory of another backend: %T", m)
	}
	if k.c.KVHeads != a.KVHeads || k.c.HeadDim != a.HeadDim || layer < 0 || layer >= k.c.Layers || a.Heads%a.KVHeads != 0 {
		misfit(op, "attention %+v on layer %d of KV memory %+v", a, layer, k.c)
	}
	return k
}

// rope implements backend.RoPEHandle.
type rope struct {
	cos, sin       driver.Pointer
	positions, dim int
	interleaved    bool
}

func (r *rope) Positions() int { return r.positions }

// RoPE implements backend.Backend.
func (g *gpu) RoPE(r backend.RoPE) (backend.RoPEHandle, error) {
	half := r.Dim / 2
	if half < 1 || len(r.Cos) != len(r.Sin) || len(r.Cos) < half || len(r.Cos)%half != 0 {
		return nil, fmt.Errorf("cuda backend: rotary tables of %d and %d elements for %d dimensions", len(r.Cos), len(r.Sin), r.Dim)
	}
	g.step.loaded = false
	h := &rope{positions: len(r.Cos) / half, dim: r.Dim, interleaved: r.Interleaved}
	for _, t := range []struct {
		to   *driver.Pointer
		from []float32
	}{{&h.cos, r.Cos}, {&h.sin, r.Sin}} {
		p, err := g.mem.alloc("rope", 4*int64(len(t.from)))
		if err == nil {
			err = g.d.ToDevice(p, bytesOf(t.from))
		}
		if err != nil {
			return nil, fmt.Errorf("cuda backend: rotary tables: %w", err)
		}
		*t.to = p
	}
	return h, nil
}

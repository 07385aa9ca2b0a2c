package interfere

import (
	"cotenant/internal/cuda"
	"cotenant/internal/interfere/record"
)

// buffers allocates and fills what a workload reads and writes, once a worker.
func (x *device) buffers(w record.Workload) (*data, error) {
	if b, ok := x.data[w.ID]; ok {
		return b, nil
	}
	b := &data{}
	a := allocator{x: x}
	switch w.Kind {
	case record.Decode:
		most := int64(0)
		for _, g := range w.GEMV {
			most = max(most, g[1])
		}
		b.x = a.scattered(most)
		for range w.Layers {
			var weights, outputs []cuda.Pointer
			for _, g := range w.GEMV {
				weights, outputs = append(weights, a.scattered(g[0]*g[1])), append(outputs, a.zeroed(2*g[0]))
			}
			b.matrices, b.outputs = append(b.matrices, weights), append(b.outputs, outputs)
		}
	case record.GEMM:
		b.x, b.from, b.to = a.scattered(w.M*w.K), a.scattered(w.N*w.K), a.zeroed(2*w.M*w.N)
	case record.HBM:
		b.from, b.to = a.scattered(w.Bytes/4), a.zeroed(w.Bytes/2)
	case record.L2:
		b.from, b.out, b.outWords = a.scattered(w.Bytes/2), a.zeroed(4), 1
	case record.Copy:
		b.from, b.to = a.scattered(w.Bytes/2), a.zeroed(w.Bytes)
		b.hostFrom, b.hostTo = a.pinned(w.Bytes), a.pinned(w.Bytes)
	case record.Critical:
		b.out, b.outWords = a.zeroed(4*w.Blocks), w.Blocks
	case record.FMA:
		b.outWords = w.Blocks * x.plan.SMs
		b.out = a.zeroed(4 * b.outWords)
	case record.Tiny:
		b.out, b.outWords = a.zeroed(4), 1
	case record.Persistent:
		b.out, b.outWords, b.state = a.zeroed(4), 1, a.zeroed(8)
	}
	if a.err == nil {
		a.err = x.d.Synchronize()
	}
	if a.err != nil {
		return nil, a.err
	}
	x.data[w.ID] = b
	return b, nil
}

// allocator keeps the first error.
type allocator struct {
	x   *device
	err error
}

func (a *allocator) alloc(bytes int64) (p cuda.Pointer) {
	if a.err == nil {
		p, a.err = a.x.d.Alloc(bytes)
	}
	return p
}

func (a *allocator) zeroed(bytes int64) cuda.Pointer {
	p := a.alloc(bytes)
	if a.err == nil {
		a.err = a.x.d.Set(p, 0, bytes)
	}
	return p
}

// scattered holds n bf16 numbers of the kernel scatter.
func (a *allocator) scattered(n int64) cuda.Pointer {
	p := a.alloc(2 * n)
	if a.err != nil {
		return p
	}
	f, err := a.x.kernel("scatter")
	if err == nil {
		var l *cuda.Launch
		if l, err = a.x.d.NewLaunch(f, [3]uint32{uint32(4 * a.x.sms), 1, 1}, [3]uint32{256, 1, 1}, 0); err == nil {
			err = l.Set(0, uint64(p)).Set(1, uint64(n)).Run(0)
		}
	}
	a.err = err
	return p
}

func (a *allocator) pinned(bytes int64) []byte {
	if a.err != nil {
		return nil
	}
	var b []byte
	b, a.err = a.x.d.AllocHost(int(bytes))
	for i := range b {
		b[i] = byte(i * 7)
	}
	return b
}

package interfere

import (
	"fmt"

	"cotenant/internal/cuda"
	"cotenant/internal/interfere/record"
	"cotenant/internal/kernels"
)

// job is a workload made ready for one lane. submit puts one launch of a victim, or one unit of an aggressor, in the lane's stream; it
// may be called by one thread at a time, whose driver it is given.
type job struct {
	submit func(d *cuda.Driver) error
}

// data are a workload's buffers; which are used depends on its kind.
type data struct {
	matrices [][]cuda.Pointer // weights by layer and matrix
	outputs  [][]cuda.Pointer
	x        cuda.Pointer
	from, to cuda.Pointer
	out      cuda.Pointer // numbers that kernels add to
	outWords int64
	state    cuda.Pointer
	hostFrom []byte
	hostTo   []byte
}

// job returns a workload's job in a lane, made at the first call.
func (x *device) job(id string, l lane) (*job, error) {
	key := jobKey{id, l.stream}
	if j, ok := x.jobs[key]; ok {
		return j, nil
	}
	w, err := x.workload(id)
	if err != nil {
		return nil, err
	}
	b, err := x.buffers(w)
	if err != nil {
		return nil, fmt.Errorf("buffers of %s: %w", id, err)
	}
	j, err := x.make(w, b, l)
	if err != nil {
		return nil, fmt.Errorf("preparing %s: %w", id, err)
	}
	x.jobs[key] = j
	return j, nil
}

// single is a job of one kernel.
func (x *device) single(name string, grid, threads int64, l lane, parameters ...uint64) (*job, error) {
	f, err := x.kernel(name)
	if err != nil {
		return nil, err
	}
	launch, err := x.d.NewLaunch(f, [3]uint32{uint32(grid), 1, 1}, [3]uint32{uint32(threads), 1, 1}, 0)
	if err != nil {
		return nil, err
	}
	for i, p := range parameters {
		launch.Set(i, p)
	}
	return &job{func(*cuda.Driver) error { return launch.Run(l.stream) }}, nil
}

// streamBlocks is how many blocks an SM gets of kernels that read and write memory.
const streamBlocks = 8

func (x *device) make(w record.Workload, b *data, l lane) (*job, error) {
	switch w.Kind {
	case record.Decode:
		return x.decode(w, b, l)
	case record.GEMM:
		launch, err := x.product(w.M, w.N, w.K, b.x, b.from, b.to, l, kernels.Ordered)
		if err != nil {
			return nil, err
		}
		return &job{func(*cuda.Driver) error { return launch.Run(l.stream) }}, nil
	case record.Critical:
		return x.single("arithmetic", w.Blocks, w.Threads, l, uint64(b.out), uint64(w.Rounds))
	case record.FMA:
		return x.single("arithmetic", w.Blocks*x.plan.SMs, w.Threads, l, uint64(b.out), uint64(w.Rounds))
	case record.HBM:
		return x.repeated(w.Passes)(x.single("stream", streamBlocks*l.sms, 256, l, uint64(b.from), uint64(b.to), uint64(w.Bytes/2/16)))
	case record.L2:
		return x.single("reread", streamBlocks*l.sms, 256, l, uint64(b.from), uint64(w.Bytes/16), uint64(w.Passes), uint64(b.out))
	case record.Tiny:
		return x.repeated(w.Launches)(x.single("tiny", 1, 32, l, uint64(b.out)))
	case record.Persistent:
		return x.single("tickets", w.Blocks*l.sms, w.Threads, l, uint64(b.state), uint64(b.out), uint64(tickets(w, x.plan.SMs)), uint64(w.SpinUS*1000))
	case record.Copy:
		return x.copies(w, b, l)
	}
	return nil, fmt.Errorf("kind %q", w.Kind)
}

// tickets is how many a unit has, whatever the lane.
func tickets(w record.Workload, sms int64) int64 { return w.Rounds * w.Blocks * sms }

// repeated makes a job of several of one.
func (x *device) repeated(n int64) func(*job, error) (*job, error) {
	return func(j *job, err error) (*job, error) {
		if err != nil || n == 1 {
			return j, err
		}
		return &job{func(d *cuda.Driver) error {
			for range n {
				if err := j.submit(d); err != nil {
					return err
				}
			}
			return nil
		}}, nil
	}
}

// copies copies to and from pinned memory at once, the second way in the side stream between two events.
func (x *device) copies(w record.Workload, b *data, l lane) (*job, error) {
	fork, err := x.d.CreateEvent(cuda.EventDisableTiming)
	if err != nil {
		return nil, err
	}
	join, err := x.d.CreateEvent(cuda.EventDisableTiming)
	if err != nil {
		return nil, err
	}
	return &job{func(d *cuda.Driver) error {
		for _, step := range []func() error{
			func() error { return d.RecordEvent(fork, l.stream) },
			func() error { return d.StreamWaitEvent(l.side, fork) },
			func() error { return d.ToHostAsync(b.hostTo, b.from, l.side) },
			func() error { return d.RecordEvent(join, l.side) },
			func() error { return d.ToDeviceAsync(b.to, b.hostFrom, l.stream) },
			func() error { return d.StreamWaitEvent(l.stream, join) },
		} {
			if err := step(); err != nil {
				return err
			}
		}
		return nil
	}}, nil
}

// product plans c = x wᵀ as models do.
func (x *device) product(m, n, k int64, in, weights, out cuda.Pointer, l lane, order kernels.Order) (*cuda.Launch, error) {
	p := kernels.Product(kernels.GPU{Capability: int(x.capability), SMs: int(l.sms)}, order, int(m), int(n), int(k), kernels.StoreBF16)
	f, err := x.function(p.Module, p.Kernel)
	if err != nil {
		return nil, err
	}
	if p.Shared > 48<<10 {
		if err := x.d.AllowShared(f, int(p.Shared)); err != nil {
			return nil, err
		}
	}
	launch, err := x.d.NewLaunch(f, p.Grid, p.Block, p.Shared)
	if err != nil {
		return nil, err
	}
	first, second := in, weights
	if p.Maps {
		if first, err = x.deviceMap(in, m, k, p.BoxRows); err != nil {
			return nil, err
		}
		if second, err = x.deviceMap(weights, n, k, 64); err != nil {
			return nil, err
		}
	}
	if p.Cluster > 0 {
		launch.Cluster(p.Cluster, 1, 1)
	}
	launch.Set(0, uint64(first)).Set(1, uint64(second)).Set(2, uint64(out)).Set(3, 0)
	launch.Set(4, uint64(m)).Set(5, uint64(n)).Set(6, uint64(k)).Set(7, uint64(kernels.StoreBF16))
	return launch, nil
}

// deviceMap puts a tensor map in device memory.
func (x *device) deviceMap(base cuda.Pointer, rows, cols int64, boxRows int) (cuda.Pointer, error) {
	m, err := x.d.EncodeBF16(base, int(rows), int(cols), int(cols), boxRows, 64)
	if err != nil {
		return 0, err
	}
	p, err := x.d.Alloc(128)
	if err != nil {
		return 0, err
	}
	return p, x.d.ToDevice(p, m.Bytes())
}

// decode captures the products of all layers as one graph.
func (x *device) decode(w record.Workload, b *data, l lane) (*job, error) {
	var launches []*cuda.Launch
	for layer := range w.Layers {
		for i, g := range w.GEMV {
			launch, err := x.product(1, g[0], g[1], b.x, b.matrices[layer][i], b.outputs[layer][i], l, kernels.Sliced)
			if err != nil {
				return nil, err
			}
			launches = append(launches, launch)
		}
	}
	if err := x.d.BeginCapture(l.stream); err != nil {
		return nil, err
	}
	for _, launch := range launches {
		if err := launch.Run(l.stream); err != nil {
			_, _ = x.d.EndCapture(l.stream)
			return nil, err
		}
	}
	graph, err := x.d.EndCapture(l.stream)
	if err != nil {
		return nil, err
	}
	exec, err := x.d.Instantiate(graph)
	if err != nil {
		return nil, err
	}
	return &job{func(d *cuda.Driver) error { return d.LaunchGraph(exec, l.stream) }}, x.d.DestroyGraph(graph)
}

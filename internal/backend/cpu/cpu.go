// Package cpu runs a model's operations on the processor's cores. It is the default backend and the reference for every
// other one: each operation exists in plain Go, and faster paths for particular processors are tested against that.
//
// Numbers: activations, keys, values and sums are float32; weights stay in the format of their file and are expanded to
// float32, exactly as ggml defines the format, where they are used. Nothing is rounded to fewer bits on the way.
//
// Order of sums: an output element is always summed over its inputs in one order, which depends on the code path
// (Info.Features) and on the operation's widths alone. So a row's result is the same, bit for bit, whatever other rows a
// step has, how many threads run and how a prompt was cut into chunks. Options.Tiles gives that up for speed.
package cpu

import (
	"errors"
	"fmt"
	"runtime"

	"cotenant/internal/backend"
)

// Options configures a backend. The zero value uses every processor that Go may use and the fastest paths it has.
type Options struct {
	Threads int  // threads that compute, the caller's included; 0: GOMAXPROCS
	Plain   bool // plain Go only, whatever the processor offers
	// Tiles multiplies nine rows or more by the processor's tile unit where it has one (AMX: Intel from Sapphire Rapids on;
	// Linux). Prompts take about a third less time; a row among many then differs from the same row alone, by the rounding
	// of float32 sums.
	Tiles bool
}

// MaxThreads bounds Options.Threads.
const MaxThreads = 1024

// cpuBackend implements backend.Backend. All its operations are complete when they return.
type cpuBackend struct {
	k       *kernels
	pool    *pool
	scratch []*scratch // by thread
	device  string

	batch batch
	plan  attention
	ops   ops
	tiles tileMem
	err   error // first error since Begin

	weights, mapped, kv, rope, buffers int64 // bytes held
	unmap                              []func()
	closed                             bool
}

// New starts a backend and its threads; Close stops them.
func New(o Options) (backend.Backend, error) {
	n := o.Threads
	if n == 0 {
		n = runtime.GOMAXPROCS(0)
	}
	if n < 1 || n > MaxThreads {
		return nil, fmt.Errorf("cpu backend: %d threads; 1 to %d are possible, 0 takes all processors", o.Threads, MaxThreads)
	}
	b := &cpuBackend{k: chooseKernels(o), device: deviceName()}
	b.scratch = make([]*scratch, n)
	for i := range b.scratch {
		b.scratch[i] = &scratch{}
	}
	b.pool = newPool(n)
	return b, nil
}

// Info implements backend.Backend.
func (b *cpuBackend) Info() backend.Info {
	return backend.Info{Name: "cpu", Device: b.device, Features: []string{b.k.name}, Threads: b.pool.threads}
}

// Memory implements backend.Backend. Weights count as weights_mapped where they are used in place in the file's mapping;
// kv is address space: pages become resident as tokens are written to them.
func (b *cpuBackend) Memory() []backend.Memory {
	var work int64
	for _, s := range b.scratch {
		work += s.bytes()
	}
	return []backend.Memory{
		{Kind: "weights_mapped", Bytes: b.mapped},
		{Kind: "weights", Bytes: b.weights},
		{Kind: "kv", Bytes: b.kv},
		{Kind: "rope", Bytes: b.rope},
		{Kind: "activations", Bytes: b.buffers},
		{Kind: "workspace", Bytes: work + b.batch.bytes() + b.tiles.bytes() + 4*int64(cap(b.plan.partial))},
	}
}

// Begin implements backend.Backend.
func (b *cpuBackend) Begin(in *backend.Batch) error {
	b.err = nil
	if b.closed {
		return errors.New("cpu backend: begin after close")
	}
	if err := b.batch.set(in); err != nil {
		return fmt.Errorf("cpu backend: begin: %w", err)
	}
	b.plan.valid = false
	b.pool.wake()
	return nil
}

// Read implements backend.Backend.
func (b *cpuBackend) Read(dst []float32, src backend.Buffer) error {
	if b.err != nil {
		return b.err
	}
	s := data(src, "Read")
	if len(dst) > len(s) {
		misfit("Read", "%d elements of a buffer of %d", len(dst), len(s))
	}
	copy(dst, s)
	return nil
}

// End implements backend.Backend.
func (b *cpuBackend) End() error { return b.err }

// Close implements backend.Backend. Handles made by the backend must not be used afterwards.
func (b *cpuBackend) Close() error {
	if b.closed {
		return nil
	}
	b.closed = true
	b.pool.close()
	for _, f := range b.unmap {
		f()
	}
	b.unmap = nil
	return nil
}

// fail keeps the first error of a step.
func (b *cpuBackend) fail(err error) {
	if b.err == nil {
		b.err = err
	}
}

// misfit panics because shapes do not fit together: the model's code is wrong, not its input.
func misfit(op, format string, args ...any) {
	panic("cpu backend: " + op + ": " + fmt.Sprintf(format, args...))
}

// fits panics unless v has rows of width elements.
func fits(op string, rows, width int, v []float32) {
	if rows < 1 || width < 1 || rows*width > len(v) {
		misfit(op, "%d rows of %d in a buffer of %d", rows, width, len(v))
	}
}

// Package cuda runs a model's operations on an NVIDIA GPU of compute capability 8.0 or later. It needs the driver's libcuda and
// nothing else: kernels are PTX that the program carries and the driver compiles.
//
// Numbers: weights (expanded, where they are quantised), keys, values and the inputs and outputs of matrix products are bf16, except for the logits; the residual
// stream, logits, sums, norms' scales and biases are float32. A Buffer of n elements has n × 4 bytes, and holds what its last
// writer wrote.
//
// A step is recorded and then run: operations between Begin and Read, Sample or End only note what is to be done. So a decode
// step (one row a sequence) that has the shape of an earlier one is replayed as a CUDA graph, with the number of rows rounded up
// to a bucket; rows beyond the batch's are computed from page 0 and stored nowhere, and nobody reads them. What a step needs to
// know (tokens, positions, block tables, sampling parameters) goes to the device in one copy.
//
// Order of sums: a row's result doesn't depend on what the other rows hold, but how many rows there are selects kernels whose
// sums have other orders: the same row alone and in a batch can differ by the rounding of float32 sums and what bf16 makes of
// it.
//
// An error of the driver is returned by Read, Sample and End. After one that the driver calls sticky nothing works any more, in
// this process.
package cuda

import (
	"errors"
	"fmt"
	"log/slog"

	"cotenant/internal/backend"
	driver "cotenant/internal/cuda"
)

// Options configures a backend.
type Options struct {
	// Library is the libcuda to open; the loader's libcuda.so.1 where it is empty.
	Library string
	// GPU is the UUID of the GPU, with or without "GPU-"; empty: the first that the process sees.
	GPU string
	// Rows is the most sequences that are computed at once: it bounds the rows to which a decode step is padded, and, from 64 on,
	// those of a Sample. 0: 256.
	Rows int
	// NoGraphs launches every kernel by itself.
	NoGraphs bool
	// Expand makes quantised weights bf16 when they are loaded. Results are the same, to the bit.
	Expand bool
	Log    *slog.Logger // nil: nothing is logged
}

const defaultRows = 256

// gpu implements backend.Backend.
type gpu struct {
	opt       Options
	d         *driver.Driver
	dev       driver.Device
	name      string
	sm        int // compute capability, 90 for 9.0
	sms       int // multiprocessors
	stream    driver.Stream
	kernels   kernelTable
	mem       memory
	step      step
	host      []byte // page-locked, for Read
	graphs    graphs
	samples   sampling
	attending attending
	maps      maps
	narrowed  scratch // inputs of products, as bf16
	expansion expansion
	err       error // first of this step
	closed    bool
}

// New makes a backend on the calling thread, which must be locked and the only one to use it.
func New(o Options) (backend.Backend, error) {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Rows == 0 {
		o.Rows = defaultRows
	}
	g := &gpu{opt: o}
	if err := g.open(); err != nil {
		return nil, fmt.Errorf("cuda backend: %w", errors.Join(err, g.Close()))
	}
	return g, nil
}

// open makes the context, the stream and the kernels.
func (g *gpu) open() error {
	names := []string{"libcuda.so.1"}
	if g.opt.Library != "" {
		names = []string{g.opt.Library}
	}
	var err error
	if g.d, err = driver.Open(names...); err != nil {
		return fmt.Errorf("%w; the NVIDIA driver brings libcuda.so.1, in a container its runtime does", err)
	}
	if err = g.d.Init(); err != nil {
		return err
	}
	if err = g.choose(); err != nil {
		return err
	}
	context, err := g.d.RetainPrimary(g.dev)
	if err != nil {
		return err
	}
	g.mem.context = true
	if err = g.d.SetCurrent(context); err != nil {
		return err
	}
	if g.stream, err = g.d.CreateStream(0); err != nil {
		return err
	}
	if err = g.mem.open(g.d); err != nil {
		return err
	}
	if err = g.loadKernels(); err != nil {
		return err
	}
	if err = g.samples.open(g, max(g.opt.Rows, 64)); err != nil {
		return err
	}
	return g.step.open(g)
}

// choose finds the GPU and what it is.
func (g *gpu) choose() error {
	n, err := g.d.DeviceCount()
	if err != nil {
		return err
	}
	if n == 0 {
		return errors.New("this process sees no GPU: is CUDA_VISIBLE_DEVICES empty?")
	}
	if g.opt.GPU == "" {
		g.dev, err = g.d.Device(0)
	} else {
		g.dev, _, err = g.d.Find(g.opt.GPU)
	}
	if err != nil {
		return err
	}
	if g.name, err = g.d.DeviceName(g.dev); err != nil {
		return err
	}
	major, err := g.d.Attribute(g.dev, driver.AttributeMajor)
	if err != nil {
		return err
	}
	minor, err := g.d.Attribute(g.dev, driver.AttributeMinor)
	if err != nil {
		return err
	}
	if g.sm = 10*major + minor; g.sm < 80 {
		return fmt.Errorf("%s has compute capability %d.%d, the kernels need 8.0 (Ampere) or later; --backend cpu serves the same models",
			g.name, major, minor)
	}
	g.sms, err = g.d.Attribute(g.dev, driver.AttributeSMCount)
	return err
}

// Info implements backend.Backend.
func (g *gpu) Info() backend.Info {
	features := []string{fmt.Sprintf("sm_%d", g.sm), "bf16"}
	if !g.opt.NoGraphs {
		features = append(features, "graphs")
	}
	return backend.Info{Name: "cuda", Device: g.name, Features: features}
}

// CopiesWeights implements backend.Copier.
func (g *gpu) CopiesWeights() {}

// fail keeps the first error of a step.
func (g *gpu) fail(err error) {
	if g.err == nil && err != nil {
		g.err = fmt.Errorf("cuda backend: %w", err)
	}
}

// Close implements backend.Backend. It returns the first error; the process's end frees what is left.
func (g *gpu) Close() error {
	if g.closed {
		return nil
	}
	g.closed = true
	if g.d == nil {
		return nil
	}
	var err error
	if g.stream != 0 {
		err = g.d.SynchronizeStream(g.stream)
	}
	if g.mem.context {
		err = errors.Join(err, g.graphs.drop(g.d), g.step.close(g.d), g.samples.close(g.d), g.maps.close(g.d), g.mem.close())
		if g.host != nil {
			err = errors.Join(err, g.d.FreeHost(g.host))
		}
		if g.stream != 0 {
			err = errors.Join(err, g.d.DestroyStream(g.stream))
		}
		err = errors.Join(err, g.d.SetCurrent(0), g.d.ReleasePrimary(g.dev))
	}
	return err
}

// misfit panics because shapes do not fit together: the model's code is wrong, not its input.
func misfit(op, format string, args ...any) {
	panic("cuda backend: " + op + ": " + fmt.Sprintf(format, args...))
}

package interfere

import (
	"encoding/binary"
	"fmt"
	"math"

	"cotenant/internal/cuda"
	"cotenant/internal/interfere/record"
	"cotenant/internal/kernels"
)

// check runs every workload that this worker has a job of once, in each lane that it has one in, and compares what it left with a plain
// reference. A workload's check passes where all its lanes do.
func (w *workerState) check() ([]record.Check, error) {
	checks := []record.Check{}
	for _, list := range []struct {
		workloads []record.Workload
		victims   bool
	}{{w.plan.Victims, true}, {w.plan.Aggressors, false}} {
		for _, load := range list.workloads {
			lanes := 0
			c := record.Check{Kernel: w.req.Name + ": " + load.ID, Result: record.Pass}
			for _, m := range w.plan.Mechanisms {
				p, ok := w.device.lanes[m.ID]
				l := p.aggressor
				if list.victims {
					l = p.victim
				}
				j := w.device.jobs[jobKey{load.ID, l.stream}]
				if !ok || j == nil {
					continue
				}
				lanes++
				detail, err := w.checkOne(load, j, l)
				if err != nil {
					return checks, fmt.Errorf("checking %s in %s: %w", load.ID, m.ID, err)
				}
				if c.Detail = detail; c.Result == record.Pass && detail != "" {
					c.Result, c.Detail = record.Fail, m.ID+": "+detail
					break
				}
			}
			if lanes == 0 {
				continue
			}
			if c.Result == record.Pass {
				c.Detail = fmt.Sprintf("as the reference says, in %d lanes", lanes)
			}
			checks = append(checks, c)
		}
	}
	return checks, nil
}

// checkOne returns what is wrong; empty for nothing.
func (w *workerState) checkOne(load record.Workload, j *job, l lane) (string, error) {
	x := w.device
	b := x.data[load.ID]
	k := checker{x: x, load: load, data: b}
	if err := k.clear(); err != nil {
		return "", err
	}
	if err := j.submit(x.d); err != nil {
		return "", err
	}
	if err := x.d.SynchronizeStream(l.stream); err != nil {
		return "", err
	}
	detail := k.compare()
	return detail, k.err
}

// checker compares one workload's output; err is the driver's first.
type checker struct {
	x    *device
	load record.Workload
	data *data
	err  error
}

// clear makes what is left of an earlier launch not look like this one's.
func (k *checker) clear() error {
	b := k.data
	set := func(p cuda.Pointer, bytes int64) {
		if k.err == nil && p != 0 {
			k.err = k.x.d.Set(p, 0, bytes)
		}
	}
	set(b.out, 4*b.outWords)
	switch k.load.Kind {
	case record.GEMM:
		set(b.to, 2*k.load.M*k.load.N)
	case record.HBM:
		set(b.to, k.load.Bytes/2)
	case record.Copy:
		set(b.to, k.load.Bytes)
		clear(b.hostTo)
	case record.Decode:
		for _, layer := range b.outputs {
			for i, p := range layer {
				set(p, 2*k.load.GEMV[i][0])
			}
		}
	}
	if k.err == nil {
		k.err = k.x.d.Synchronize()
	}
	return k.err
}

func (k *checker) read(p cuda.Pointer, offset, bytes int64) []byte {
	b := make([]byte, bytes)
	if k.err == nil {
		k.err = k.x.d.ToHost(b, p+cuda.Pointer(offset))
	}
	return b
}

func (k *checker) word() uint32 { return binary.LittleEndian.Uint32(k.read(k.data.out, 0, 4)) }

func (k *checker) compare() string {
	w := k.load
	switch w.Kind {
	case record.Critical, record.FMA:
		return k.arithmetic()
	case record.HBM:
		return k.places(k.data.to, w.Bytes/8, func(i int64) uint32 { return scatterWord(i) + 1 })
	case record.Copy:
		if detail := k.places(k.data.to, w.Bytes/4, func(i int64) uint32 { return binary.LittleEndian.Uint32(k.data.hostFrom[4*i:]) }); detail != "" {
			return "to the device: " + detail
		}
		for i := range samples {
			at := place(int64(i), w.Bytes/4)
			if got, want := binary.LittleEndian.Uint32(k.data.hostTo[4*at:]), scatterWord(at); got != want {
				return fmt.Sprintf("from the device: word %d is %#x, want %#x", at, got, want)
			}
		}
	case record.L2:
		sum := uint32(0)
		for i := range w.Bytes / 4 {
			sum += scatterWord(i)
		}
		return equal(k.word(), sum*uint32(w.Passes))
	case record.Tiny:
		return equal(k.word(), uint32(w.Launches))
	case record.Persistent:
		if state := k.read(k.data.state, 0, 8); binary.LittleEndian.Uint64(state) != 0 {
			return "the counters weren't put back"
		}
		return equal(k.word(), uint32(tickets(w, k.x.plan.SMs)))
	case record.GEMM:
		return k.product(k.data.to, w.M, w.N, w.K)
	case record.Decode:
		for _, layer := range k.data.outputs {
			for i, g := range w.GEMV {
				if detail := k.product(layer[i], 1, g[0], g[1]); detail != "" {
					return fmt.Sprintf("matrix %d: %s", i, detail)
				}
			}
		}
	}
	return ""
}

func equal(got, want uint32) string {
	if got != want {
		return fmt.Sprintf("%d, want %d", got, want)
	}
	return ""
}

// scatterWord is the word of two numbers that the kernel scatter leaves.
func scatterWord(i int64) uint32 {
	half := func(i int64) uint32 { return uint32(kernels.BF16(kernels.ScatterValue(uint64(i)))) }
	return half(2*i) | half(2*i+1)<<16
}

// samples are how many places of an output are looked at.
const samples = 64

// place is the i-th of samples places of n, from the first to the last.
func place(i, n int64) int64 { return i * (n - 1) / (samples - 1) }

func (k *checker) places(p cuda.Pointer, words int64, want func(int64) uint32) string {
	for i := range samples {
		at := place(int64(i), words)
		if got := binary.LittleEndian.Uint32(k.read(p, 4*at, 4)); k.err == nil && got != want(at) {
			return fmt.Sprintf("word %d is %#x, want %#x", at, got, want(at))
		}
	}
	return ""
}

// arithmetic computes two blocks again; all others must be equal to the block 64 before, since only that counts.
func (k *checker) arithmetic() string {
	out := k.read(k.data.out, 0, 4*k.data.outWords)
	at := func(i int64) uint32 { return binary.LittleEndian.Uint32(out[4*i:]) }
	for _, i := range []int64{0, min(37, k.data.outWords-1)} {
		if want := kernels.ArithmeticValue(uint32(i), uint32(k.load.Threads), uint32(k.load.Rounds)); k.err == nil && at(i) != want {
			return fmt.Sprintf("block %d left %d, want %d", i, at(i), want)
		}
	}
	for i := int64(64); i < k.data.outWords; i++ {
		if at(i) != at(i-64) {
			return fmt.Sprintf("block %d left %d, want %d", i, at(i), at(i-64))
		}
	}
	return ""
}

// product computes places of c = x wᵀ again. Sums are exact in float32 (kernels.ScatterValue), so that only one value is right.
func (k *checker) product(p cuda.Pointer, rows, columns, inner int64) string {
	for i := range samples {
		m, n := place(int64(i), rows), place(int64(i*29%samples), columns)
		sum := float32(0)
		for c := range inner {
			sum += kernels.ScatterValue(uint64(m*inner+c)) * kernels.ScatterValue(uint64(n*inner+c))
		}
		got := binary.LittleEndian.Uint16(k.read(p, 2*(m*columns+n), 2))
		if want := kernels.BF16(sum); k.err == nil && got != want {
			return fmt.Sprintf("row %d, column %d is %v, want %v", m, n, math.Float32frombits(uint32(got)<<16), sum)
		}
	}
	return ""
}

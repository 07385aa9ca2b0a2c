package probe

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"slices"
	"time"

	"cotenant/internal/cuda"
	"cotenant/internal/kernels"
	"cotenant/internal/probe/evidence"
)

// What the witness is given. Two blocks of its size are resident on an SM of most GPUs, one on others; several waves cover every SM.
const (
	witnessSeed    = 20260712
	witnessRounds  = 8
	witnessThreads = 1024
	blocksPerSM    = 8
)

// witness holds what running the kernel in every partition needs, allocated before memory is first looked at.
type witness struct {
	w        *worker
	module   cuda.Module
	function cuda.Function
	buffers  []buffers
	spinNS   uint64
}

type buffers struct{ smid, value, times cuda.Pointer }

// newWitness loads the kernels into the current context and allocates for n runs at a time, each on all SMs at most.
func (w *worker) newWitness(n int, spin time.Duration) (*witness, error) {
	run := &witness{w: w, spinNS: uint64(spin.Nanoseconds())}
	ptx, info, err := kernels.Module(kernels.ProbeModule)
	if err != nil {
		return nil, err
	}
	w.out.Part("witness", evidence.Witness{Module: info.Name, SHA256: info.SHA256, Seed: witnessSeed, Rounds: witnessRounds,
		Threads: witnessThreads, SpinNS: run.spinNS})
	err = w.take("load_kernels", 0, func() (err error) {
		if run.module, err = w.d.LoadModule(ptx); err != nil {
			return err
		}
		run.function, err = w.d.Function(run.module, "witness")
		return err
	})
	if err == nil {
		err = w.take("allocate", 0, func() error { return run.allocate(n) })
	}
	if err != nil {
		w.undone.Failures = append(w.undone.Failures, run.free()...)
		return nil, err
	}
	return run, nil
}

func (run *witness) allocate(n int) (err error) {
	blocks := int64(max(run.w.facts.Limits.Total, run.w.facts.SMs)) * blocksPerSM
	for range n {
		run.buffers = append(run.buffers, buffers{})
		b := &run.buffers[len(run.buffers)-1]
		for _, x := range []struct {
			p *cuda.Pointer
			n int64
		}{{&b.smid, 4 * blocks}, {&b.value, 4 * blocks}, {&b.times, 16 * blocks}} {
			if *x.p, err = run.w.d.Alloc(x.n); err != nil {
				return err
			}
			// What the kernel doesn't write must not look like an answer.
			if err := run.w.d.Set(*x.p, 0xff, x.n); err != nil {
				return err
			}
		}
	}
	return run.w.d.Synchronize()
}

// free gives memory and module back and returns what failed.
func (run *witness) free() (failures []string) {
	note := func(err error) {
		if err != nil {
			failures = append(failures, err.Error())
		}
	}
	for _, b := range run.buffers {
		for _, p := range []cuda.Pointer{b.smid, b.value, b.times} {
			if p != 0 {
				note(run.w.d.Free(p))
			}
		}
	}
	if run.module != 0 {
		note(run.w.d.UnloadModule(run.module))
	}
	run.buffers, run.module = nil, 0
	return failures
}

// target is a stream that the witness runs in, and how many SMs are said to be behind it.
type target struct {
	stream cuda.Stream
	sms    int
}

// all launches the witness in every target before it waits for any, and fills in where it ran. It returns the %globaltimer of the
// first block, from which the results count.
func (run *witness) all(targets []target, results []evidence.Partition) (first int64, err error) {
	w := run.w
	for i, t := range targets {
		results[i].Blocks = t.sms * blocksPerSM
		l, err := w.d.NewLaunch(run.function, [3]uint32{uint32(results[i].Blocks), 1, 1}, [3]uint32{witnessThreads, 1, 1}, 0)
		if err != nil {
			return 0, err
		}
		b := run.buffers[i]
		l.Set(0, uint64(b.smid)).Set(1, uint64(b.value)).Set(2, uint64(b.times)).Set(3, uint64(witnessSeed+uint32(i))).Set(4, witnessRounds).Set(5, run.spinNS)
		if err := w.take("launch", i, func() error {
			w.out.Calling("cuLaunchKernel")
			return l.Run(t.stream)
		}); err != nil {
			return 0, err
		}
	}
	deadline := time.Now().Add(time.Duration(w.req.KernelMS) * time.Millisecond)
	for i, t := range targets {
		if err := w.take("wait", i, func() error {
			w.out.Calling("cuStreamQuery")
			return w.d.WaitStream(t.stream, deadline)
		}); err != nil {
			return 0, fmt.Errorf("partition %d: %w", i, err)
		}
	}
	origin := uint64(1<<64 - 1)
	times := make([][2]uint64, len(results))
	for i := range results {
		var err error
		if times[i], err = run.read(i, &results[i]); err != nil {
			return 0, fmt.Errorf("partition %d: %w", i, err)
		}
		origin = min(origin, times[i][0])
	}
	for i := range results {
		results[i].BeganNS, results[i].EndedNS = int64(times[i][0]-origin), int64(times[i][1]-origin)
	}
	return int64(origin), nil
}

// read copies a partition's answers back and checks them.
func (run *witness) read(i int, r *evidence.Partition) (span [2]uint64, err error) {
	n := r.Blocks
	smid, value, times := make([]byte, 4*n), make([]byte, 4*n), make([]byte, 16*n)
	for _, c := range []struct {
		to   []byte
		from cuda.Pointer
	}{{smid, run.buffers[i].smid}, {value, run.buffers[i].value}, {times, run.buffers[i].times}} {
		if err := run.w.d.ToHost(c.to, c.from); err != nil {
			return span, err
		}
	}
	count := make(map[int]int)
	r.OutputCorrect = true
	span = [2]uint64{1<<64 - 1, 0}
	for b := range n {
		count[int(binary.LittleEndian.Uint32(smid[4*b:]))]++
		if binary.LittleEndian.Uint32(value[4*b:]) != kernels.WitnessValue(witnessSeed+uint32(i), witnessRounds, uint32(b), witnessThreads) {
			r.OutputCorrect = false
		}
		span[0] = min(span[0], binary.LittleEndian.Uint64(times[16*b:]))
		span[1] = max(span[1], binary.LittleEndian.Uint64(times[16*b+8:]))
	}
	sum := sha256.Sum256(value)
	r.OutputSHA256 = hex.EncodeToString(sum[:])
	r.SMIDs, r.LeastBlocks, r.MostBlocks = []int{}, n, 0
	for id, c := range count {
		r.SMIDs = append(r.SMIDs, id)
		r.LeastBlocks, r.MostBlocks = min(r.LeastBlocks, c), max(r.MostBlocks, c)
	}
	slices.Sort(r.SMIDs)
	return span, nil
}

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
	"cotenant/internal/partition"
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

// newWitness loads the kernels into the current context and allocates for as many partitions as the plan can have.
func (w *worker) newWitness() (*witness, error) {
	run := &witness{w: w, spinNS: uint64(w.req.Request.SpinUS) * 1000}
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
		err = w.take("allocate", 0, run.allocate)
	}
	if err != nil {
		w.undone.Failures = append(w.undone.Failures, run.free()...)
		return nil, err
	}
	return run, nil
}

func (run *witness) allocate() error {
	sizes, err := run.w.req.Request.Plan.Sizes(run.w.facts.Limits)
	if err != nil {
		return err
	}
	blocks := int64(run.w.facts.Limits.Total) * blocksPerSM
	for range sizes {
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

// all launches the witness in every partition before it waits for any, and fills in where it ran.
func (run *witness) all(set *partition.Set, results []evidence.Partition) error {
	w := run.w
	for i, p := range set.Partitions {
		results[i].Blocks = p.Resource.SMs() * blocksPerSM
		l, err := w.d.NewLaunch(run.function, [3]uint32{uint32(results[i].Blocks), 1, 1}, [3]uint32{witnessThreads, 1, 1}, 0)
		if err != nil {
			return err
		}
		b := run.buffers[i]
		l.Set(0, uint64(b.smid)).Set(1, uint64(b.value)).Set(2, uint64(b.times)).Set(3, uint64(witnessSeed+uint32(i))).Set(4, witnessRounds).Set(5, run.spinNS)
		if err := w.take("launch", i, func() error { return l.Run(p.Stream) }); err != nil {
			return err
		}
	}
	deadline := time.Now().Add(time.Duration(w.req.KernelMS) * time.Millisecond)
	for i, p := range set.Partitions {
		if err := w.take("wait", i, func() error { return w.d.WaitStream(p.Stream, deadline) }); err != nil {
			return fmt.Errorf("partition %d: %w", i, err)
		}
	}
	origin := uint64(1<<64 - 1)
	times := make([][2]uint64, len(results))
	for i := range results {
		var err error
		if times[i], err = run.read(i, &results[i]); err != nil {
			return fmt.Errorf("partition %d: %w", i, err)
		}
		origin = min(origin, times[i][0])
	}
	for i := range results {
		results[i].BeganNS, results[i].EndedNS = int64(times[i][0]-origin), int64(times[i][1]-origin)
	}
	return nil
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

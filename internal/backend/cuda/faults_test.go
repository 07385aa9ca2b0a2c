package cuda

import (
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"cotenant/internal/backend"
	driver "cotenant/internal/cuda"
	"cotenant/internal/cuda/query"
	"cotenant/internal/gputest"
	"cotenant/internal/weights"
)

var small = shape{heads: 2, kvHeads: 1, dim: 64, hidden: 64, ffn: 64, vocab: 128, ropeDim: 64}

// Memory that runs out is an error that says how much there is; what came before can be closed.
func TestOutOfMemory(t *testing.T) {
	g := open(t, Options{})
	_, total, err := g.d.MemoryInfo()
	if err != nil {
		t.Fatal(err)
	}
	c := backend.KVConfig{Layers: 1, KVHeads: 1, HeadDim: 128, PageSize: 16}
	c.Pages = int(total/uint64(512*16)) + 1
	if _, err := g.KV(c); driver.CodeOf(err) != query.OutOfMemory || !strings.Contains(err.Error(), "MiB are free") {
		t.Errorf("more KV memory than the GPU has: %v", err)
	}
	if _, err := g.Buffer(1 << 40); driver.CodeOf(err) != query.OutOfMemory {
		t.Errorf("a buffer of 4 TiB: %v", err)
	}
	if _, err := g.Buffer(1024); err != nil {
		t.Errorf("after that: %v", err)
	}
	budget, err := g.KVBudget()
	if err != nil || budget <= 0 || uint64(budget) > total {
		t.Errorf("KV budget %d of %d, %v", budget, total, err)
	}
}

// A second server on the same GPU sizes itself from what the first left, and counts that as somebody else's.
func TestSharedGPU(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	const first = 100 << 30
	var budgets []int64
	for _, beside := range []bool{false, true} {
		library := fake(t)
		if beside { // what a fake driver of the parent process would say
			usage := filepath.Join(filepath.Dir(library), "../../../.fake/usage", strconv.Itoa(os.Getppid()))
			line := fmt.Sprintf("%s %d\n", strings.ReplaceAll(strings.TrimPrefix(uuid, "GPU-"), "-", ""), first)
			if err := os.WriteFile(usage, []byte(line), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		be, err := New(Options{Library: library})
		if err != nil {
			t.Fatal(err)
		}
		g := be.(*gpu)
		n, err := g.KVBudget()
		if err != nil {
			t.Fatal(err)
		}
		budgets = append(budgets, n)
		held := map[string]int64{}
		for _, m := range g.Memory() {
			held[m.Kind] = m.Bytes
		}
		if other := held[backend.MemoryOther]; (other >= first) != beside || held[backend.MemoryFree] == 0 {
			t.Errorf("others hold %d, %d are free", other, held[backend.MemoryFree])
		}
		if beside {
			if _, err := g.Buffer(int(held[backend.MemoryFree])/4 + 1); driver.CodeOf(err) != query.OutOfMemory {
				t.Errorf("more than the first server left: %v", err)
			}
		}
		if err := g.Close(); err != nil {
			t.Error(err)
		}
	}
	if d := budgets[0] - budgets[1]; d < first/10*8 || d > first {
		t.Errorf("the second server takes %d less than alone, beside one that holds %d", d, first)
	}
}

// A driver that refuses a call while the backend opens, loads or runs is an error of that; nothing panics.
func TestFaults(t *testing.T) {
	for _, symbol := range []string{"cuInit", "cuDeviceGetCount", "cuDevicePrimaryCtxRetain", "cuStreamCreateWithPriority", "cuMemGetInfo_v2",
		"cuModuleLoadDataEx", "cuMemAlloc_v2", "cuMemHostAlloc"} {
		runtime.LockOSThread()
		if _, err := New(Options{Library: fake(t, gputest.Fault{Symbol: symbol, Code: 999})}); driver.CodeOf(err) != 999 {
			t.Errorf("%s fails: %v", symbol, err)
		}
	}
	for _, f := range []gputest.Fault{
		{Symbol: "cuMemcpyHtoDAsync_v2", Call: 9, Code: 719},
		{Symbol: "cuLaunchKernelEx", Call: 7, Code: 700},
		{Symbol: "cuLaunchKernel", Call: 2, Code: 700},
		{Symbol: "cuStreamBeginCapture_v2", Code: 900},
		{Symbol: "cuGraphInstantiateWithFlags", Code: 2},
		{Symbol: "cuGraphLaunch", Call: 2, Code: 719},
		{Symbol: "cuStreamSynchronize", Call: 3, Code: 719},
		{Symbol: "cuMemcpyDtoHAsync_v2", Call: 3, Code: 719},
	} {
		g := open(t, Options{}, f)
		l := newLayer(t, g, small, 16, 16)
		q := newSequences(16, small.vocab)
		var failed error
		for range 5 {
			b := q.batch([2]int{0, 1}, [2]int{1, 1})
			out := make([]float32, 2*small.vocab)
			err := g.Begin(b)
			if err == nil {
				l.step(b)
				if err = g.Read(out, l.lo); err == nil {
					err = g.End()
				} else if again := g.End(); again == nil {
					t.Errorf("%s: End forgot the step's error", f.Symbol)
				}
			}
			if err != nil {
				failed = err
				break
			}
		}
		if int(driver.CodeOf(failed)) != f.Code {
			t.Errorf("%s fails: %v", f.Symbol, failed)
		}
	}
}

// What the caller got wrong is an error of the step, and the next one is as if nothing had been.
func TestBadBatches(t *testing.T) {
	g := open(t, Options{})
	l := newLayer(t, g, small, 16, 4)
	q := newSequences(4, small.vocab)
	good := q.batch([2]int{0, 3})
	want := l.logits(t, good)
	for name, spoil := range map[string]func(b *backend.Batch){
		"token":    func(b *backend.Batch) { b.Tokens[1] = int32(small.vocab) },
		"position": func(b *backend.Batch) { b.Positions[0] = 4096 },
		"slot":     func(b *backend.Batch) { b.Slots[2] = 64 },
		"page":     func(b *backend.Batch) { b.Seqs[0].Pages = []int32{9} },
		"pages":    func(b *backend.Batch) { b.Seqs[0].Past = 40 },
		"rows":     func(b *backend.Batch) { b.Seqs[0].Rows = 2 },
		"output":   func(b *backend.Batch) { b.Outputs[0] = 3 },
		"length":   func(b *backend.Batch) { b.Slots = b.Slots[:2] },
	} {
		b := &backend.Batch{Tokens: append([]int32(nil), good.Tokens...), Positions: append([]int32(nil), good.Positions...),
			Slots: append([]int32(nil), good.Slots...), Outputs: append([]int32(nil), good.Outputs...), Seqs: append([]backend.Seq(nil), good.Seqs...)}
		spoil(b)
		err := g.Begin(b)
		if err == nil {
			l.step(b)
			err = g.End()
		}
		if err == nil || driver.CodeOf(err) != query.Success {
			t.Errorf("a bad %s: %v", name, err)
		}
		if d := difference(l.logits(t, good), want); d != 0 {
			t.Errorf("after a bad %s the same batch gives other logits, by %g", name, d)
		}
	}
}

// A row that isn't finite is -1, and the rows beside it are what they are without it.
func TestNonFiniteRow(t *testing.T) {
	g := open(t, Options{Rows: 4})
	rng := rand.New(rand.NewPCG(5, 5))
	const vocab, width = 9000, 9001
	table := tensor(rng, 5, width, 1)
	nan := weights.F32ToBF16(float32(math.NaN()))
	inf := weights.F32ToBF16(float32(math.Inf(1)))
	table.Data[2*(1*width+8999)], table.Data[2*(1*width+8999)+1] = byte(nan), byte(nan>>8)
	table.Data[2*(3*width+17)], table.Data[2*(3*width+17)+1] = byte(inf), byte(inf>>8)
	// Beyond the vocabulary nothing counts.
	table.Data[2*(4*width+vocab)], table.Data[2*(4*width+vocab)+1] = byte(nan), byte(nan>>8)
	m, err := g.Matrix(table)
	if err != nil {
		t.Fatal(err)
	}
	x, err := g.Buffer(8 * width)
	if err != nil {
		t.Fatal(err)
	}
	ids := func(tokens ...int32) []int32 {
		b := &backend.Batch{Tokens: tokens}
		for i := range tokens {
			b.Positions, b.Slots, b.Outputs = append(b.Positions, 0), append(b.Slots, 0), append(b.Outputs, int32(i))
			b.Seqs = append(b.Seqs, backend.Seq{Row: i, Rows: 1, Pages: []int32{0}})
		}
		if err := g.Begin(b); err != nil {
			t.Fatal(err)
		}
		g.Embed(x, m)
		g.Sample(x, width, vocab, make([]backend.Draw, len(tokens)))
		out := make([]int32, len(tokens))
		if err := g.Wait(out); err != nil {
			t.Fatal(err)
		}
		return out
	}
	alone := []int32{ids(0)[0], ids(2)[0], ids(4)[0]}
	for range 3 {
		got := ids(0, 1, 2, 3, 4)
		if got[0] != alone[0] || got[1] != -1 || got[2] != alone[1] || got[3] != -1 || got[4] != alone[2] || alone[0] < 0 || alone[1] < 0 || alone[2] < 0 {
			t.Errorf("got %v, alone %v", got, alone)
		}
	}
}

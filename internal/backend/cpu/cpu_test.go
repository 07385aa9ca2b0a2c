package cpu

import (
	"encoding/binary"
	"math"
	"math/rand/v2"
	"testing"

	"cotenant/internal/backend"
	"cotenant/internal/weights"
)

// rowCounts are the batch sizes that every operation is tested at: around the kernels' tiles and the usual traps.
var rowCounts = []int{1, 2, 7, 8, 9, 63, 64, 65}

// allTypes are the formats of weights.
var allTypes = []weights.DType{
	weights.F32, weights.F16, weights.BF16, weights.Q8_0, weights.Q4_0, weights.Q4_1, weights.Q5_0, weights.Q5_1,
	weights.Q4K, weights.Q5K, weights.Q6K,
}

// paths returns the code paths of this processor, plain first.
func paths(t testing.TB) []*kernels {
	out := []*kernels{plainKernels()}
	out = append(out, fastKernels()...)
	return out
}

// eachPath runs f on every code path with three threads, and on the last with one.
func eachPath(t *testing.T, f func(t *testing.T, b *cpuBackend)) {
	all := paths(t)
	for _, k := range all {
		t.Run(k.name+"/3", func(t *testing.T) { f(t, open(t, k, 3)) })
	}
	last := all[len(all)-1]
	t.Run(last.name+"/1", func(t *testing.T) { f(t, open(t, last, 1)) })
}

func open(t testing.TB, k *kernels, threads int) *cpuBackend {
	t.Helper()
	b, err := New(Options{Threads: threads})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { b.Close() })
	c := b.(*cpuBackend)
	c.k = k // before any matrix is made
	return c
}

func random(seed uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, 3)) }

func gaussian(r *rand.Rand, n int) []float32 {
	v := make([]float32, n)
	for i := range v {
		v[i] = float32(r.NormFloat64())
	}
	return v
}

// tensor makes random weights of about unit size.
func tensor(r *rand.Rand, dt weights.DType, rows, cols int) weights.Tensor {
	data := make([]byte, rows*dt.RowBytes(cols))
	for i := range data {
		data[i] = byte(r.Uint32())
	}
	h := func(at int, scale float64) {
		binary.LittleEndian.PutUint16(data[at:], floatToHalf(float32(scale*(0.5+r.Float64()))))
	}
	for at := 0; at < len(data); at += dt.BlockBytes() {
		switch dt {
		case weights.F32:
			binary.LittleEndian.PutUint32(data[at:], math.Float32bits(float32(r.NormFloat64())))
		case weights.F16:
			binary.LittleEndian.PutUint16(data[at:], floatToHalf(float32(r.NormFloat64())))
		case weights.BF16:
			binary.LittleEndian.PutUint16(data[at:], uint16(math.Float32bits(float32(r.NormFloat64()))>>16))
		case weights.Q8_0:
			h(at, 1.0/80)
		case weights.Q4_0:
			h(at, 1.0/5)
		case weights.Q5_0:
			h(at, 1.0/10)
		case weights.Q4_1:
			h(at, 1.0/5)
			h(at+2, -1.5)
		case weights.Q5_1:
			h(at, 1.0/10)
			h(at+2, -1.5)
		case weights.Q4K:
			h(at, 1.0/150)
			h(at+2, 1.0/20)
		case weights.Q5K:
			h(at, 1.0/300)
			h(at+2, 1.0/20)
		case weights.Q6K:
			h(at+208, 1.0/1200)
		}
	}
	return weights.Tensor{Name: dt.String(), Type: dt, Shape: []int{rows, cols}, Data: data}
}

// floatToHalf rounds a normal number of binary16's range towards zero.
func floatToHalf(f float32) uint16 {
	b := math.Float32bits(f)
	e := int(b>>23&0xff) - 127 + 15
	if e <= 0 || e >= 31 {
		return uint16(b >> 16 & 0x8000)
	}
	return uint16(b>>16&0x8000) | uint16(e)<<10 | uint16(b>>13&0x3ff)
}

func must[T any](v T, err error) func(testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

func upload(t testing.TB, b *cpuBackend, v []float32) *buffer {
	t.Helper()
	x := must(b.Buffer(len(v)))(t).(*buffer)
	copy(x.v, v)
	return x
}

// nans is a buffer of NaN: what an operation leaves out shows.
func nans(t testing.TB, b *cpuBackend, n int) *buffer {
	v := make([]float32, n)
	for i := range v {
		v[i] = float32(math.NaN())
	}
	return upload(t, b, v)
}

// near fails unless got is within tol of want, relative to want's largest element.
func near(t testing.TB, what string, got []float32, want []float64, tol float64) {
	t.Helper()
	nearTop(t, what, got, want, tol, 0)
}

// nearTop is near where a result of size top is ordinary, should all of want be small by accident.
func nearTop(t testing.TB, what string, got []float32, want []float64, tol, top float64) {
	t.Helper()
	for _, w := range want {
		top = max(top, math.Abs(w))
	}
	for i, w := range want {
		if d := math.Abs(float64(got[i]) - w); !(d <= tol*top) {
			t.Fatalf("%s: element %d is %v, want %v (largest %v)", what, i, got[i], w, top)
		}
	}
}

func same(t testing.TB, what string, got, want []float32) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("%s: %d elements, want %d", what, len(got), len(want))
	}
	for i := range want {
		if math.Float32bits(got[i]) != math.Float32bits(want[i]) {
			t.Fatalf("%s: element %d is %v, want exactly %v", what, i, got[i], want[i])
		}
	}
}

// rowsBatch is a batch of rows of one new sequence on pages 0, 1, ….
func rowsBatch(rows, pageSize int) *backend.Batch {
	return mixedBatch([][2]int{{0, rows}}, pageSize)
}

// mixedBatch has sequences of {past, rows} tokens on interleaved pages.
func mixedBatch(seqs [][2]int, pageSize int) *backend.Batch {
	b := &backend.Batch{}
	pages := make([][]int32, len(seqs))
	next := int32(0)
	for more := true; more; {
		more = false
		for i, s := range seqs {
			if len(pages[i])*pageSize < s[0]+s[1] {
				pages[i] = append(pages[i], next)
				next++
				more = true
			}
		}
	}
	for i, s := range seqs {
		b.Seqs = append(b.Seqs, backend.Seq{Row: len(b.Tokens), Rows: s[1], Past: s[0], Pages: pages[i]})
		for j := range s[1] {
			pos := s[0] + j
			b.Tokens = append(b.Tokens, int32(len(b.Tokens)))
			b.Positions = append(b.Positions, int32(pos))
			b.Slots = append(b.Slots, pages[i][pos/pageSize]*int32(pageSize)+int32(pos%pageSize))
		}
		b.Outputs = append(b.Outputs, int32(len(b.Tokens)-1))
	}
	return b
}

func begin(t testing.TB, b *cpuBackend, batch *backend.Batch) {
	t.Helper()
	if err := b.Begin(batch); err != nil {
		t.Fatal(err)
	}
}

func end(t testing.TB, b *cpuBackend) {
	t.Helper()
	if err := b.End(); err != nil {
		t.Fatal(err)
	}
}

type jobFunc func(thread, piece int)

func (f jobFunc) do(thread, piece int) { f(thread, piece) }

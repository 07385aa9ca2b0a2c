package cpu

import (
	"encoding/binary"
	"fmt"
	"math"
	"strings"
	"testing"

	"cotenant/internal/backend"
	"cotenant/internal/weights"
)

func f32Tensor(v []float32) weights.Tensor {
	data := make([]byte, 4*len(v))
	for i, f := range v {
		binary.LittleEndian.PutUint32(data[4*i:], math.Float32bits(f))
	}
	return weights.Tensor{Name: "v", Type: weights.F32, Shape: []int{len(v)}, Data: data}
}

func TestRMSNorm(t *testing.T) {
	eachPath(t, func(t *testing.T, b *cpuBackend) {
		for _, n := range []int{1, 8, 13, 64, 576} {
			for _, rows := range rowCounts {
				r := random(uint64(n))
				x, w := gaussian(r, rows*n), gaussian(r, n)
				want := make([]float64, rows*n)
				for i := range rows {
					normRef(want[i*n:], x[i*n:(i+1)*n], w, 1e-5)
				}
				wv := must(b.Vector(f32Tensor(w)))(t)
				xb, dst := upload(t, b, x), nans(t, b, rows*n)
				b.RMSNorm(dst, xb, rows, wv, 1e-5)
				near(t, fmt.Sprint(n, " wide, ", rows, " rows"), dst.v, want, 1e-6)
				b.RMSNorm(xb, xb, rows, wv, 1e-5)
				same(t, "in place", xb.v, dst.v)
			}
		}
	})
}

func normRef(dst []float64, x, w []float32, eps float64) {
	var s float64
	for _, v := range x {
		s += float64(v) * float64(v)
	}
	s = 1 / math.Sqrt(s/float64(len(x))+eps)
	for i, v := range x {
		dst[i] = float64(v) * s * float64(w[i])
	}
}

func TestSwiGLU(t *testing.T) {
	eachPath(t, func(t *testing.T, b *cpuBackend) {
		for _, n := range []int{1, 9, 192} {
			for _, rows := range rowCounts {
				x := gaussian(random(uint64(n)), 2*rows*n)
				for i := range x {
					x[i] *= 8
				}
				dst := nans(t, b, rows*n)
				b.SwiGLU(dst, upload(t, b, x), rows, n)
				want := make([]float64, rows*n)
				for i := range rows {
					for j := range n {
						g := float64(x[2*i*n+j])
						want[i*n+j] = g / (1 + math.Exp(-g)) * float64(x[2*i*n+n+j])
					}
				}
				near(t, fmt.Sprint(n, " wide, ", rows, " rows"), dst.v, want, 1e-6)
			}
		}
	})
}

// TestSwiGLUEdges checks that what is not a number stays so and that large gates neither overflow nor vanish.
func TestSwiGLUEdges(t *testing.T) {
	eachPath(t, func(t *testing.T, b *cpuBackend) {
		inf, nan := float32(math.Inf(1)), float32(math.NaN())
		gate := []float32{nan, 1, inf, 1e30, -1e30, -200, 200, 0, nan}
		up := []float32{1, nan, 1, 1, 1, 1, 1, 1, nan}
		dst := nans(t, b, len(gate))
		b.SwiGLU(dst, upload(t, b, append(append([]float32(nil), gate...), up...)), 1, len(gate))
		for i, ok := range []bool{
			dst.v[0] != dst.v[0], dst.v[1] != dst.v[1], dst.v[2] == inf, dst.v[3] == 1e30, math.Abs(float64(dst.v[4])) < 1e-6,
			math.Abs(float64(dst.v[5])) < 1e-30, dst.v[6] == 200, dst.v[7] == 0, dst.v[8] != dst.v[8],
		} {
			if !ok {
				t.Errorf("silu(%v)*%v = %v", gate[i], up[i], dst.v[i])
			}
		}
	})
}

func TestEmbedAndGather(t *testing.T) {
	const cols = 256
	for _, dt := range allTypes {
		r := random(uint64(dt))
		parts := []weights.Tensor{tensor(r, dt, 10, cols), tensor(r, dt, 61, cols)}
		table := make([]float32, 71*cols)
		weights.Dequantize(table, dt, append(append([]byte(nil), parts[0].Data...), parts[1].Data...))
		eachPath(t, func(t *testing.T, b *cpuBackend) {
			m := must(b.Matrix(parts...))(t)
			for _, rows := range rowCounts {
				batch := rowsBatch(rows, 16)
				batch.Outputs = nil
				var want, picked []float32
				for i := range batch.Tokens {
					tok := (i*29 + rows) % 71
					batch.Tokens[i] = int32(tok)
					want = append(want, table[tok*cols:(tok+1)*cols]...)
					if i%3 == 0 || i == rows-1 {
						batch.Outputs = append(batch.Outputs, int32(i))
					}
				}
				n := len(batch.Outputs)
				first := n / 2
				for _, o := range batch.Outputs[first:] {
					picked = append(picked, want[int(o)*cols:int(o+1)*cols]...)
				}
				begin(t, b, batch)
				dst, got := nans(t, b, rows*cols), nans(t, b, n*cols)
				b.Embed(dst, m)
				b.Gather(got, dst, cols, first, n-first)
				end(t, b)
				same(t, fmt.Sprint("embed ", dt, rows), dst.v, want)
				same(t, fmt.Sprint("gather ", rows), got.v[:len(picked)], picked)
			}
		})
	}
}

func TestHeadNorm(t *testing.T) {
	eachPath(t, func(t *testing.T, b *cpuBackend) {
		a := backend.Attention{Heads: 4, KVHeads: 2, HeadDim: 40}
		for _, rows := range rowCounts {
			r := random(uint64(rows))
			x, q, k := gaussian(r, rows*a.QKVWidth()), gaussian(r, a.HeadDim), gaussian(r, a.HeadDim)
			want := make([]float64, len(x))
			for i := range x {
				want[i] = float64(x[i])
			}
			for i := range rows {
				for h := range a.Heads + a.KVHeads {
					at := i*a.QKVWidth() + h*a.HeadDim
					w := q
					if h >= a.Heads {
						w = k
					}
					normRef(want[at:], x[at:at+a.HeadDim], w, 1e-6)
				}
			}
			begin(t, b, rowsBatch(rows, 16))
			xb := upload(t, b, x)
			b.HeadNorm(xb, a, must(b.Vector(f32Tensor(q)))(t), must(b.Vector(f32Tensor(k)))(t), 1e-6)
			end(t, b)
			near(t, fmt.Sprint(rows, " rows"), xb.v, want, 1e-6)
		}
	})
}

// TestErrors checks that a step which names what isn't there ends in an error, not in a panic or a read outside memory.
func TestErrors(t *testing.T) {
	b := open(t, plainKernels(), 2)
	a := backend.Attention{Heads: 2, KVHeads: 1, HeadDim: 8, Scale: 1}
	m := must(b.KV(backend.KVConfig{Layers: 1, KVHeads: 1, HeadDim: 8, PageSize: 4, Pages: 3}))(t)
	rope := must(b.RoPE(backend.RoPE{Dim: 8, Cos: make([]float32, 4*4), Sin: make([]float32, 4*4)}))(t)
	table := must(b.Matrix(tensor(random(1), weights.F32, 5, 8)))(t)
	x, out := upload(t, b, make([]float32, 200)), upload(t, b, make([]float32, 200))
	for _, c := range []struct {
		want   string
		change func(*backend.Batch)
	}{
		{"token 5", func(b *backend.Batch) { b.Tokens[1] = 5 }},
		{"token -1", func(b *backend.Batch) { b.Tokens[0] = -1 }},
		{"position 4", func(b *backend.Batch) { b.Positions[1] = 4 }},
		{"slot 12", func(b *backend.Batch) { b.Slots[0] = 12 }},
		{"page 3", func(b *backend.Batch) { b.Seqs[0].Pages[0] = 3 }},
		{"hold no token", func(b *backend.Batch) { b.Seqs[0].Pages = nil }},
		{"without rows", func(b *backend.Batch) { *b = backend.Batch{} }},
		{"positions", func(b *backend.Batch) { b.Positions = b.Positions[1:] }},
		{"cover", func(b *backend.Batch) { b.Seqs[0].Rows = 1 }},
		{"sequence 0", func(b *backend.Batch) { b.Seqs[0].Past = -1 }},
		{"output row", func(b *backend.Batch) { b.Outputs = []int32{1, 1} }},
		{"output row", func(b *backend.Batch) { b.Outputs = []int32{2} }},
	} {
		batch := rowsBatch(2, 4)
		c.change(batch)
		err := b.Begin(batch)
		if err == nil {
			b.Embed(x, table)
			b.RoPEStore(x, a, rope, m, 0)
			b.Attention(out, x, a, m, 0)
			err = b.End()
			if e := b.Read(make([]float32, 1), x); e != err {
				t.Errorf("%s: Read says %v, End %v", c.want, e, err)
			}
		}
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("want an error about %q, got %v", c.want, err)
		}
	}
}

// TestShapesPanic checks that shapes which don't fit are told by the operation's name.
func TestShapesPanic(t *testing.T) {
	b := open(t, plainKernels(), 1)
	small := upload(t, b, make([]float32, 8))
	w := must(b.Vector(f32Tensor(make([]float32, 8))))(t)
	m := must(b.Matrix(tensor(random(1), weights.F32, 4, 8)))(t)
	begin(t, b, rowsBatch(1, 4))
	for op, f := range map[string]func(){
		"RMSNorm": func() { b.RMSNorm(small, small, 2, w, 0) },
		"MatMul":  func() { b.MatMul(small, small, 1, m, nil, false) },
		"SwiGLU":  func() { b.SwiGLU(small, small, 1, 5) },
		"Gather":  func() { b.Gather(small, small, 8, 0, 2) },
		"Read":    func() { b.Read(make([]float32, 9), small) },
	} {
		func() {
			defer func() {
				if s, _ := recover().(string); !strings.Contains(s, op) {
					t.Errorf("%s: panic %q", op, s)
				}
			}()
			f()
		}()
	}
}

// TestStepAllocatesNothing runs a layer's operations.
func TestStepAllocatesNothing(t *testing.T) {
	b := open(t, plainKernels(), 2)
	a := backend.Attention{Heads: 4, KVHeads: 2, HeadDim: 16, Scale: 1}
	m := must(b.KV(backend.KVConfig{Layers: 1, KVHeads: 2, HeadDim: 16, PageSize: 16, Pages: 8}))(t)
	rope := must(b.RoPE(ropeTables(128, 16, true)))(t)
	w := must(b.Matrix(tensor(random(1), weights.Q4_1, 128, 64)))(t)
	v := must(b.Vector(f32Tensor(make([]float32, 64))))(t)
	v16 := must(b.Vector(f32Tensor(make([]float32, 16))))(t)
	x, y := upload(t, b, make([]float32, 128*128)), upload(t, b, make([]float32, 128*128))
	batch := rowsBatch(100, 16)
	step := func() {
		begin(t, b, batch)
		b.Embed(x, w)
		b.RMSNorm(y, x, 100, v, 1e-5)
		b.MatMul(x, y, 100, w, nil, false)
		b.HeadNorm(x, a, v16, v16, 1e-5)
		b.RoPEStore(x, a, rope, m, 0)
		b.Attention(y, x, a, m, 0)
		b.SwiGLU(x, y, 100, 64)
		b.Gather(y, x, 64, 0, 1)
		end(t, b)
	}
	step() // grows what is kept
	if n := testing.AllocsPerRun(10, step); n >= 1 {
		t.Errorf("a step allocates %v times", n)
	}
}

// TestOptions checks which path New takes, and that it says so.
func TestOptions(t *testing.T) {
	for _, c := range []struct {
		o    Options
		want func(k *kernels) bool
	}{
		{Options{Threads: 1, Plain: true, Tiles: true}, func(k *kernels) bool { return k.name == "plain" }},
		{Options{Threads: 2}, func(k *kernels) bool { return k.tiles == nil }},
		{Options{Tiles: true}, func(k *kernels) bool {
			all := paths(t)
			return k.name == all[len(all)-1].name
		}},
	} {
		b := must(New(c.o))(t)
		if i := b.Info(); !c.want(b.(*cpuBackend).k) || len(i.Features) != 1 || i.Features[0] != b.(*cpuBackend).k.name || i.Name != "cpu" {
			t.Errorf("%+v: %+v", c.o, i)
		}
		if err := b.Close(); err != nil {
			t.Error(err)
		}
		if err := b.Begin(rowsBatch(1, 16)); err == nil {
			t.Error("a step after Close")
		}
	}
	for _, n := range []int{-1, MaxThreads + 1} {
		if _, err := New(Options{Threads: n}); err == nil {
			t.Errorf("%d threads: accepted", n)
		}
	}
}

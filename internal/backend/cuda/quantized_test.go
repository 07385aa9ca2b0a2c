package cuda

import (
	"bytes"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"cotenant/internal/backend"
	"cotenant/internal/backend/cpu"
	"cotenant/internal/kernels"
	"cotenant/internal/loadgen"
	"cotenant/internal/weights"
	"cotenant/internal/weights/weightstest"
)

// quantizedShapes are layers of every format that stays quantised, and of two in one matrix as files of a mixed quantisation have them.
func quantizedShapes() map[string]shape {
	all := map[string]shape{}
	for _, f := range []weights.DType{weights.Q8_0, weights.Q4_0, weights.Q4_1, weights.Q5_0, weights.Q5_1} {
		all[f.String()] = shape{heads: 3, kvHeads: 1, dim: 64, hidden: 96, ffn: 224, vocab: 264, bias: true, ropeDim: 64, formats: []weights.DType{f}}
	}
	for _, f := range []weights.DType{weights.Q4K, weights.Q5K, weights.Q6K} {
		all[f.String()] = shape{heads: 4, kvHeads: 1, dim: 64, hidden: 256, ffn: 512, vocab: 264, interleaved: true, ropeDim: 64, formats: []weights.DType{f}}
	}
	all["Q4_K and Q6_K"] = shape{heads: 4, kvHeads: 2, dim: 128, hidden: 512, ffn: 256, vocab: 520, norms: true, bias: true, ropeDim: 128,
		formats: []weights.DType{weights.Q4K, weights.Q6K}}
	all["Q5_0 and Q8_0"] = shape{heads: 4, kvHeads: 2, dim: 32, hidden: 128, ffn: 160, vocab: 520, ropeDim: 32, formats: []weights.DType{weights.Q5_0, weights.Q8_0}}
	// Rows that are no multiple of 8, and bf16 beside others: expanded when they are loaded.
	all["expanded"] = shape{heads: 8, kvHeads: 1, dim: 12, hidden: 64, ffn: 96, vocab: 77, ropeDim: 8, formats: []weights.DType{weights.Q8_0, weights.BF16}}
	return all
}

// A layer whose weights stay quantised gives, in prompts, decode steps, graphs and mixed steps, the bits of one whose weights are expanded
// when they are loaded, and what the CPU gives but for bf16's rounding.
func TestQuantizedLayer(t *testing.T) {
	for name, s := range quantizedShapes() {
		t.Run(name, func(t *testing.T) {
			reference, err := cpu.New(cpu.Options{})
			if err != nil {
				t.Fatal(err)
			}
			defer reference.Close()
			const rows, pages = 200, 160
			exact := newLayer(t, reference, s, rows, pages)
			kept, expanded := newLayer(t, open(t, Options{Rows: 96}), s, rows, pages), newLayer(t, open(t, Options{Rows: 96, Expand: true}), s, rows, pages)
			q := newSequences(pages, s.vocab)
			many, most := [][2]int{}, [][2]int{}
			for i := range 75 {
				if i < 33 {
					many = append(many, [2]int{10 + i, 1})
				}
				most = append(most, [2]int{10 + i, 1})
			}
			plan := [][][2]int{{{0, 70}}, {{0, 1}}, {{0, 31}, {1, 17}, {2, 1}}, {{0, 1}, {1, 1}, {2, 1}, {3, 40}}, {{0, 1}, {1, 1}, {2, 1}}, {{0, 1}, {1, 1}, {2, 1}},
				many, many, many, append(slices.Clone(many), [2]int{100, 90}), most, most, {{0, 1}}}
			for i, p := range plan {
				b := q.batch(p...)
				w, g, e := exact.logits(t, b), kept.logits(t, b), expanded.logits(t, b)
				if !slices.Equal(g, e) {
					t.Errorf("step %d, %d rows: kept quantised and expanded differ by %.3g of the largest logit", i, len(b.Tokens), difference(g, e))
				}
				if d := difference(g, w); !(d < 0.03) {
					t.Errorf("step %d, %d rows: off by %.3g of the CPU's largest logit", i, len(b.Tokens), d)
				}
			}
			if g := kept.be.(*gpu); len(g.graphs.programs) == 0 {
				t.Error("no graph was made")
			}
		})
	}
}

func memoryOf(be backend.Backend, kind string) int64 {
	for _, m := range be.Memory() {
		if m.Kind == kind {
			return m.Bytes
		}
	}
	return -1
}

// What stays quantised takes what its format takes; products of many rows share room for the largest matrix.
func TestQuantizedMemory(t *testing.T) {
	rng := rand.New(rand.NewPCG(7, 8))
	g := open(t, Options{})
	random := func(f weights.DType, rows, cols int) weights.Tensor {
		v := make([]float32, rows*cols)
		for i := range v {
			v[i] = float32(rng.NormFloat64())
		}
		return weightstest.Float32("random", f, v, rows, cols)
	}
	want, file := int64(0), int64(0)
	for _, f := range []weights.DType{weights.Q8_0, weights.Q4_0, weights.Q4_1, weights.Q5_0, weights.Q5_1, weights.Q4K, weights.Q5K, weights.Q6K} {
		m := random(f, 256, 1024)
		file += int64(len(m.Data))
		bytes, ok := kernels.QuantizedBytes(f, 256, 1024)
		if most := int64(len(m.Data)) * 103 / 100; !ok || bytes < int64(len(m.Data)) || bytes > most {
			t.Errorf("%v: %d bytes on the device, %d in the file", f, bytes, len(m.Data))
		}
		want += bytes
		if _, err := g.Matrix(m); err != nil {
			t.Fatal(err)
		}
	}
	if got := memoryOf(g, quantizedMemory); got != want || memoryOf(g, "weights") != 0 {
		t.Errorf("%d bytes of quantised weights and %d others, want %d and 0", got, memoryOf(g, "weights"), want)
	}
	if file*2 > 8*256*1024*2 {
		t.Errorf("the files' %d bytes aren't half of bf16's", file)
	}
	staged := memoryOf(g, "workspace")
	if _, err := g.KVBudget(); err != nil {
		t.Fatal(err)
	}
	if got := memoryOf(g, "workspace") - staged; got != 256*1024*2 {
		t.Errorf("%d bytes to expand the largest matrix", got)
	}
	// A vocabulary is never expanded.
	if _, err := g.Matrix(random(weights.Q8_0, mostExpanded+8, 32)); err != nil {
		t.Fatal(err)
	}
	if g.expansion.need != 256*1024*2 {
		t.Errorf("room for %d bytes is wanted", g.expansion.need)
	}
}

// requantized is a backend whose matrices are packed anew, in a format if its blocks fit the columns, else in another.
type requantized struct {
	format, other weights.DType
}

func (r requantized) parts(parts []weights.Tensor) []weights.Tensor {
	out := slices.Clone(parts)
	for i, t := range out {
		f := r.format
		if t.Shape[1]%f.BlockSize() != 0 {
			f = r.other
		}
		v := make([]float32, t.Shape[0]*t.Shape[1])
		weights.Dequantize(v, t.Type, t.Data)
		out[i] = weightstest.Float32(t.Name, f, v, t.Shape...)
	}
	return out
}

type requantizedCPU struct {
	backend.Backend
	requantized
}

func (r requantizedCPU) Matrix(parts ...weights.Tensor) (backend.Matrix, error) {
	return r.Backend.Matrix(r.parts(parts)...)
}

type requantizedGPU struct {
	*gpu
	requantized
}

func (r requantizedGPU) Matrix(parts ...weights.Tensor) (backend.Matrix, error) {
	return r.gpu.Matrix(r.parts(parts)...)
}

// The embedded model packed in every format says on the GPU what it says on the CPU, but where two tokens are within bf16's rounding.
func TestQuantizedGreedyEqualsCPU(t *testing.T) {
	work, err := loadgen.New(loadgen.Options{Seed: 6, BaseTokens: loadgen.MinBaseTokens})
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range []requantized{{weights.Q4_0, 0}, {weights.Q4_1, 0}, {weights.Q5_0, 0}, {weights.Q5_1, 0}, {weights.Q4K, weights.Q5_0},
		{weights.Q5K, weights.Q5_1}, {weights.Q6K, weights.Q8_0}} {
		t.Run(r.format.String(), func(t *testing.T) {
			reference, err := cpu.New(cpu.Options{})
			if err != nil {
				t.Fatal(err)
			}
			g := open(t, Options{Rows: 64})
			want, got := load(t, requantizedCPU{reference, r}, ""), load(t, requantizedGPU{g, r}, "")
			if memoryOf(g, quantizedMemory) == 0 {
				t.Error("nothing stayed quantised")
			}
			var prompts [][]int32
			for i := range int64(3) {
				prompts = append(prompts, encode(t, want.Model, work.Task(i).Messages))
			}
			w, k := want.greedy(t, prompts, 8), got.greedy(t, prompts, 8)
			for i := range prompts {
				a, b := text(want.Model, w[i]), text(want.Model, k[i])
				if a == b {
					continue
				}
				if margin := want.margin(t, prompts[i], w[i], k[i]); !(margin < tie) {
					t.Errorf("prompt %d: the CPU prefers its token by %.4f of the largest logit\nCPU  %q\nCUDA %q", i, margin, a, b)
				}
			}
		})
	}
}

// Exactly the modules that are listed as unproven are warned of, also those that are loaded for the formats of a model.
func TestUnprovenIsTold(t *testing.T) {
	var log bytes.Buffer
	g := open(t, Options{Log: slog.New(slog.NewTextHandler(&log, nil))})
	if _, err := g.Matrix(weightstest.Float32("m", weights.Q4K, make([]float32, 8*256), 8, 256)); err != nil {
		t.Fatal(err)
	}
	reasons, err := kernels.Unproven()
	if err != nil {
		t.Fatal(err)
	}
	quantized := 0
	for _, m := range g.kernels.loaded {
		if strings.HasPrefix(m.Name, "quant_q4_k_") {
			quantized++
		}
		_, unproven := reasons[m.Name]
		if told := strings.Contains(log.String(), m.Name); told != unproven {
			t.Errorf("%s: listed as unproven %v, told %v:\n%s", m.Name, unproven, told, log.String())
		}
	}
	if quantized != 1 || len(g.kernels.loaded) < 7 {
		t.Errorf("%d modules were loaded, %d of Q4_K", len(g.kernels.loaded), quantized)
	}
}

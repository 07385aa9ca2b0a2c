package cuda

import (
	"math"
	"os"
	"path/filepath"
	"testing"

	"cotenant/internal/backend"
	"cotenant/internal/testenv"
)

// TestLogits holds the logits of models that COTENANT_CUDA_LOGITS has (bench/h200/logits.py makes them) against transformers' float32:
// they are off by no more than transformers' bf16 on the same GPU. The text is computed as a prompt in chunks and, from its middle
// on, token by token.
func TestLogits(t *testing.T) {
	root := os.Getenv("COTENANT_CUDA_LOGITS")
	if root == "" {
		testenv.NoGPU(t, "COTENANT_CUDA_LOGITS names no folder of bench/h200/logits.py")
	}
	for _, name := range []string{"llama", "qwen2", "qwen3"} {
		t.Run(name, func(t *testing.T) {
			read := func(file string) []byte {
				b, err := os.ReadFile(filepath.Join(root, name, file))
				if err != nil {
					t.Fatal(err)
				}
				return b
			}
			tokens, truth, low := words(read("tokens.i32")), floats(read("truth.f32")), floats(read("bf16.f32"))
			m := load(t, open(t, Options{Rows: 8}), filepath.Join(root, name))
			vocab := m.Config().VocabSize
			got := make([]float32, 0, len(truth))
			for at := 0; at < len(tokens); {
				n := 1
				if at < 150 {
					n = min(70, 150-at)
				}
				b := &backend.Batch{Seqs: []backend.Seq{{Rows: n, Past: at}}}
				for p := range (at+n)/16 + 1 {
					b.Seqs[0].Pages = append(b.Seqs[0].Pages, int32(p*7%64))
				}
				for i := range n {
					b.Tokens = append(b.Tokens, tokens[at+i])
					b.Positions = append(b.Positions, int32(at+i))
					b.Slots = append(b.Slots, b.Seqs[0].Pages[(at+i)/16]*16+int32((at+i)%16))
					b.Outputs = append(b.Outputs, int32(i))
				}
				row := make([]float32, n*vocab)
				if err := m.Forward(m.kv, b, row); err != nil {
					t.Fatal(err)
				}
				got = append(got, row...)
				at += n
			}
			half := 150 * vocab
			for _, part := range []struct {
				name     string
				from, to int
			}{{"prompt", 0, half}, {"decode", half, len(truth)}} {
				ours, theirs := distance(got[part.from:part.to], truth[part.from:part.to]), distance(low[part.from:part.to], truth[part.from:part.to])
				t.Logf("%s: off by %.5f, transformers' bf16 by %.5f", part.name, ours, theirs)
				if !(ours <= theirs) {
					t.Errorf("%s: logits are off by %.5f of their norm, transformers' bf16 by %.5f", part.name, ours, theirs)
				}
			}
		})
	}
}

// distance is the norm of the difference over want's.
func distance(got, want []float32) float64 {
	var d, n float64
	for i := range want {
		e := float64(got[i]) - float64(want[i])
		d += e * e
		n += float64(want[i]) * float64(want[i])
	}
	return math.Sqrt(d / n)
}

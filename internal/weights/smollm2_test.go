package weights_test

import (
	"math"
	"testing"

	"cotenant/internal/testenv"
	"cotenant/internal/weights"
)

// TestSmolLM2 opens a real model and checks what is known of it from other readers.
func TestSmolLM2(t *testing.T) {
	f, err := weights.Open(testenv.Model(t, "SmolLM2-135M-Instruct.Q4_1.gguf"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	if f.Format() != weights.GGUF {
		t.Errorf("format %s", f.Format())
	}
	counts := map[weights.DType]int{}
	for _, x := range f.Tensors() {
		counts[x.Type]++
	}
	if counts[weights.Q4_1] != 210 || counts[weights.F32] != 61 || counts[weights.Q8_0] != 1 || len(f.Tensors()) != 272 {
		t.Errorf("tensors by type: %v", counts)
	}
	if n, ok, err := f.Int("llama.block_count"); n != 30 || !ok || err != nil {
		t.Errorf("block count: %d, %v, %v", n, ok, err)
	}
	if base, ok, err := f.Float32("llama.rope.freq_base"); base != 100_000 || !ok || err != nil {
		t.Errorf("rope base: %v, %v, %v", base, ok, err)
	}
	if bos, ok, err := f.Bool("tokenizer.ggml.add_bos_token"); bos || !ok || err != nil {
		t.Errorf("add_bos_token: %v, %v, %v", bos, ok, err)
	}
	tokens, ok, err := f.Strings("tokenizer.ggml.tokens")
	if !ok || err != nil || tokens.Len() != 49152 || tokens.At(1) != "<|im_start|>" || tokens.At(2) != "<|im_end|>" {
		t.Errorf("tokens: %d, %v, %v", tokens.Len(), ok, err)
	}
	if _, ok := f.Tensor("output.weight"); ok {
		t.Error("the tied model has an output.weight")
	}
	embedding, err := f.Expect("token_embd.weight", 49152, 576)
	if err != nil {
		t.Fatal(err)
	}
	row := make([]float32, 576)
	weights.Dequantize(row, embedding.Type, embedding.Data[:embedding.Type.RowBytes(len(row))])
	var sum float64
	for _, x := range row {
		sum += float64(x) * float64(x)
	}
	if norm := math.Sqrt(sum); norm < 1 || norm > 10 {
		t.Errorf("the first row's norm is %v", norm)
	}
}

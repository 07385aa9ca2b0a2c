package model

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"cotenant/internal/backend"
	"cotenant/internal/backend/cpu"
	"cotenant/internal/weights"
)

// altered is a file with tensors changed, removed or added.
type altered struct {
	*weights.File
	change func(*weights.Tensor)
	remove string
	add    []weights.Tensor
}

func (a *altered) Tensors() []weights.Tensor {
	ts := append(a.File.Tensors(), a.add...)
	ts = slices.DeleteFunc(ts, func(t weights.Tensor) bool { return t.Name == a.remove })
	for i := range ts {
		if a.change != nil {
			a.change(&ts[i])
		}
	}
	return ts
}

func (a *altered) Tensor(name string) (weights.Tensor, bool) {
	for _, t := range a.Tensors() {
		if t.Name == name {
			return t, true
		}
	}
	return weights.Tensor{}, false
}

// buildAltered builds a random model from an altered file and returns the error.
func buildAltered(t *testing.T, name string, a *altered) error {
	t.Helper()
	f, err := weights.Open(filepath.Join("testdata", "random", name))
	if err != nil {
		t.Fatal(err)
	}
	a.File = f
	be, err := cpu.New(cpu.Options{Threads: 1, Plain: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = be.Close(), f.Close() })
	var src *source
	if f.Format() == weights.GGUF {
		src, _, err = describeGGUF(f, a)
	} else {
		src, _, err = describeHF(a)
	}
	if err != nil {
		return err
	}
	_, err = build(src, be, Options{})
	return err
}

// TestMissingTensors takes each tensor away in turn: every one is noticed by name and layer, in both formats.
func TestMissingTensors(t *testing.T) {
	for _, name := range []string{"llama-gqa3", "llama3-bias.gguf", "qwen2-tied", "qwen3-bias", "qwen3-tied.gguf"} {
		f, err := weights.Open(filepath.Join("testdata", "random", name))
		if err != nil {
			t.Fatal(err)
		}
		tensors := f.Tensors()
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
		for _, tensor := range tensors {
			if tensor.Name == "rope_freqs.weight" {
				continue // nothing else in the file says that there was scaling
			}
			err := buildAltered(t, name, &altered{remove: tensor.Name})
			checkNames(t, name, tensor.Name, err)
		}
	}
}

// checkNames wants an error with the tensor's name and its layer. One bias of a group that is gone in layer 0 is told
// apart from a model without biases by the rest of its group.
func checkNames(t *testing.T, file, tensor string, err error) {
	t.Helper()
	if err == nil {
		t.Errorf("%s without %s was accepted", file, tensor)
		return
	}
	if !strings.Contains(err.Error(), tensor) && !strings.HasSuffix(tensor, ".bias") {
		t.Errorf("%s without %s: %v", file, tensor, err)
	}
	for _, mark := range []string{"layers.", "blk."} {
		if _, rest, ok := strings.Cut(tensor, mark); ok {
			layer, _, _ := strings.Cut(rest, ".")
			if !strings.Contains(err.Error(), "layer "+layer) && !strings.HasSuffix(tensor, ".bias") {
				t.Errorf("%s without %s: the message lacks the layer: %v", file, tensor, err)
			}
		}
	}
}

// TestMisshapenTensors gives each tensor a row too many.
func TestMisshapenTensors(t *testing.T) {
	for _, name := range []string{"llama-gqa3", "llama-linear.gguf", "qwen2-untied", "qwen3-bias"} {
		f, err := weights.Open(filepath.Join("testdata", "random", name))
		if err != nil {
			t.Fatal(err)
		}
		tensors := f.Tensors()
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
		for _, tensor := range tensors {
			err := buildAltered(t, name, &altered{change: func(u *weights.Tensor) {
				if u.Name == tensor.Name {
					u.Shape = slices.Clone(u.Shape)
					u.Shape[0]++
				}
			}})
			if tensor.Name == ggufNames.embed && err != nil {
				continue // the vocabulary's size comes from it: another tensor or the backend disagrees
			}
			checkNames(t, name, tensor.Name, err)
		}
	}
}

// TestUnusedTensors refuses what the forward pass would leave out.
func TestUnusedTensors(t *testing.T) {
	one := func(name string) []weights.Tensor {
		return []weights.Tensor{{Name: name, Type: weights.F32, Shape: []int{1}, Data: make([]byte, 4)}}
	}
	for _, c := range []struct{ file, tensor, want string }{
		{"llama-gqa3", "model.layers.0.self_attn.q_norm.weight", "q_norm"},
		{"llama-gqa3", "model.layers.2.input_layernorm.weight", "model.layers.2"},
		{"llama-gqa3", "model.layers.0.self_attn.q_proj.lora_A.weight", "lora_A"},
		{"llama-gqa3", "model.layers.1.self_attn.q_proj.bias", "q_proj.bias"},
		{"llama-gqa3", "model.layers.0.self_attn.q_proj.bias", "attention_bias is false"},
		{"llama-gqa3", "model.layers.0.mlp.down_proj.bias", "mlp_bias is false"},
		{"qwen2-tied", "model.layers.0.self_attn.o_proj.bias", "o_proj"},
		{"qwen2-tied.gguf", "blk.0.attn_q_norm.weight", "attn_q_norm"},
		{"qwen3-tied.gguf", "blk.1.attn_q.bias", "blk.1.attn_q.bias"},
		{"llama-linear.gguf", "blk.0.ffn_gate_inp.weight", "ffn_gate_inp"},
	} {
		err := buildAltered(t, c.file, &altered{add: one(c.tensor)})
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s with %s: %v", c.file, c.tensor, err)
		}
	}
	for _, c := range []struct{ file, tensor string }{
		{"llama-gqa3", "model.layers.0.self_attn.rotary_emb.inv_freq"},
		{"llama-linear.gguf", "blk.0.attn_rot_embd"},
	} {
		if err := buildAltered(t, c.file, &altered{add: one(c.tensor)}); err != nil {
			t.Errorf("%s with %s: %v", c.file, c.tensor, err)
		}
	}
}

// TestTies: tie_word_embeddings decides where both an embedding and a head are there, and a head's absence ties unless
// the file says that it isn't tied.
func TestTies(t *testing.T) {
	yes, no := true, false
	for _, c := range []struct {
		head bool
		says *bool
		want bool
	}{{true, nil, false}, {true, &yes, true}, {true, &no, false}, {false, nil, true}, {false, &yes, true}, {false, &no, false}} {
		s := &source{Config: Config{Arch: ArchLlama}, names: &hfNames, tensors: &altered{File: &weights.File{}}}
		if c.head {
			s.tensors = &altered{File: &weights.File{}, add: []weights.Tensor{{Name: hfNames.head}}}
		}
		if err := s.settle(hints{tied: c.says}); err != nil || s.Tied != c.want {
			t.Errorf("head %t, file says %v: tied %t, %v", c.head, c.says, s.Tied, err)
		}
	}
}

// TestRedundantHead: with tie_word_embeddings true the head in the file is ignored, whatever it holds.
func TestRedundantHead(t *testing.T) {
	err := buildAltered(t, "llama-linear", &altered{add: []weights.Tensor{{Name: hfNames.head, Type: weights.F32, Shape: []int{3}}}})
	if err != nil {
		t.Error(err)
	}
}

// TestLoadErrors: what isn't a whole model is refused in words, and the backend stays the caller's.
func TestLoadErrors(t *testing.T) {
	be, err := cpu.New(cpu.Options{Threads: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = be.Close() }()
	copyWithout := func(names ...string) string {
		dir := t.TempDir()
		if err := os.CopyFS(dir, os.DirFS(filepath.Join("testdata", "random", "qwen3-tied"))); err != nil {
			t.Fatal(err)
		}
		for _, n := range names {
			if err := os.Remove(filepath.Join(dir, n)); err != nil {
				t.Fatal(err)
			}
		}
		return dir
	}
	broken := copyWithout()
	if err := os.WriteFile(filepath.Join(broken, "generation_config.json"), []byte(`{"eos_token_id":[1,"x"]}`), 0o644); err != nil {
		t.Fatal(err)
	}
	outside := copyWithout()
	if err := os.WriteFile(filepath.Join(outside, "generation_config.json"), []byte(`{"eos_token_id":[311]}`), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ path, want string }{
		{filepath.Join(t.TempDir(), "absent"), "find model"},
		{copyWithout("config.json"), "config.json is missing"},
		{copyWithout("tokenizer.json"), "tokenizer.json is missing"},
		{copyWithout("model.safetensors"), "neither .safetensors nor .gguf"},
		{broken, "generation_config.json"},
		{outside, "end token 311"},
	} {
		if _, err := Load(c.path, be, Options{}); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", c.path, err, c.want)
		}
	}
	for _, o := range []Options{{ContextLength: 513}, {ContextLength: -1}, {MaxBatchTokens: -1}, {MaxBatchTokens: 1 << 20}, {OutputChunk: -1}} {
		if _, err := Load("testdata/random/qwen3-tied", be, o); err == nil {
			t.Errorf("options %+v were accepted", o)
		}
	}
}

// TestForwardRefuses gives batches that don't fit together; the model stays usable.
func TestForwardRefuses(t *testing.T) {
	m := open(t, "testdata/random/qwen3-tied", cpu.Options{Threads: 1}, Options{MaxBatchTokens: 8, ContextLength: 40})
	kv, err := m.NewKV(4, 12)
	if err != nil {
		t.Fatal(err)
	}
	good := func() *backend.Batch {
		return &backend.Batch{
			Tokens: []int32{1, 2, 3}, Positions: []int32{3, 4, 0}, Slots: []int32{23, 24, 8},
			Seqs:    []backend.Seq{{Row: 0, Rows: 2, Past: 3, Pages: []int32{5, 6}}, {Row: 2, Rows: 1, Pages: []int32{2}}},
			Outputs: []int32{1, 2},
		}
	}
	logits := make([]float32, 2*m.cfg.VocabSize)
	for _, c := range []struct {
		name  string
		spoil func(*backend.Batch)
	}{
		{"no rows", func(b *backend.Batch) { *b = backend.Batch{} }},
		{"a token beyond the vocabulary", func(b *backend.Batch) { b.Tokens[1] = 311 }},
		{"a negative token", func(b *backend.Batch) { b.Tokens[1] = -1 }},
		{"a position beyond the context", func(b *backend.Batch) { b.Positions[2], b.Seqs[1].Past = 40, 40 }},
		{"a position out of order", func(b *backend.Batch) { b.Positions[1] = 5 }},
		{"too few positions", func(b *backend.Batch) { b.Positions = b.Positions[:2] }},
		{"a slot of another page", func(b *backend.Batch) { b.Slots[0] = 27 }},
		{"too few pages", func(b *backend.Batch) { b.Seqs[0].Pages = b.Seqs[0].Pages[:1] }},
		{"a page beyond the memory", func(b *backend.Batch) { b.Seqs[1].Pages[0], b.Slots[2] = 12, 48 }},
		{"a negative page", func(b *backend.Batch) { b.Seqs[1].Pages[0], b.Slots[2] = -1, -4 }},
		{"a row of no sequence", func(b *backend.Batch) { b.Seqs = b.Seqs[:1] }},
		{"a sequence without rows", func(b *backend.Batch) { b.Seqs[1].Rows = 0 }},
		{"sequences that overlap", func(b *backend.Batch) { b.Seqs[1].Row = 1 }},
		{"a sequence beyond the rows", func(b *backend.Batch) { b.Seqs[1].Rows = 1 << 62 }},
		{"negative past", func(b *backend.Batch) { b.Seqs[1].Past = -1 }},
		{"outputs that don't ascend", func(b *backend.Batch) { b.Outputs = []int32{2, 2} }},
		{"an output beyond the rows", func(b *backend.Batch) { b.Outputs[1] = 3 }},
		{"room for other outputs", func(b *backend.Batch) { b.Outputs = b.Outputs[:1] }},
	} {
		b := good()
		c.spoil(b)
		if err := m.Forward(kv, b, logits); err == nil {
			t.Errorf("%s was accepted", c.name)
		}
	}
	big := &backend.Batch{Tokens: make([]int32, 9), Positions: make([]int32, 9), Slots: make([]int32, 9)}
	if err := m.Forward(kv, big, nil); err == nil {
		t.Error("a batch of 9 rows was accepted, the model takes 8")
	}
	other, err := m.be.KV(backend.KVConfig{Layers: 2, KVHeads: 2, HeadDim: 16, PageSize: 4, Pages: 12})
	if err != nil {
		t.Fatal(err)
	}
	if err := m.Forward(other, good(), logits); err == nil {
		t.Error("KV memory of another shape was accepted")
	}
	if err := m.Forward(kv, good(), logits); err != nil {
		t.Errorf("a good batch after bad ones: %v", err)
	}
	for _, shape := range [][2]int{{0, 4}, {4, 0}, {-1, 1}} {
		if _, err := m.NewKV(shape[0], shape[1]); err == nil {
			t.Errorf("KV memory of %v was accepted", shape)
		}
	}
}

// TestEOSUnion: config.json has 259, generation_config.json 259 and 258; GGUF has 259.
func TestEOSUnion(t *testing.T) {
	for _, c := range []struct {
		path string
		want []int32
	}{
		{"testdata/random/llama-gqa3", []int32{258, 259}},
		{"testdata/random/qwen2-tied", []int32{259}},
		{"testdata/random/qwen2-tied.gguf", []int32{259}},
	} {
		m := open(t, c.path, cpu.Options{Threads: 1}, Options{MaxBatchTokens: 8})
		if got := m.EOS(); !slices.Equal(got, c.want) {
			t.Errorf("%s: end tokens %v, want %v", c.path, got, c.want)
		}
	}
}

// TestDigest: of a folder it changes with any file that counts, and with no other.
func TestDigest(t *testing.T) {
	dir := t.TempDir()
	if err := os.CopyFS(dir, os.DirFS("testdata/random/qwen2-tied")); err != nil {
		t.Fatal(err)
	}
	m := open(t, dir, cpu.Options{Threads: 1}, Options{MaxBatchTokens: 8})
	digest := func() string {
		t.Helper()
		d, err := m.Digest()
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	write := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	first := digest()
	write("README.md", "a note")
	if digest() != first {
		t.Error("the digest changed with README.md")
	}
	write("generation_config.json", "{}")
	if digest() == first {
		t.Error("the digest didn't change with generation_config.json")
	}
	if err := os.Remove(filepath.Join(dir, "generation_config.json")); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(dir, "x.json"), 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := m.Digest(); err == nil {
		t.Error("a folder called x.json was read")
	}
	if err := os.Remove(filepath.Join(dir, "x.json")); err != nil || digest() != first {
		t.Errorf("the digest isn't what it was: %v", err)
	}
}

func TestNames(t *testing.T) {
	for path, want := range map[string]string{
		"/m/SmolLM2.Q4_1.gguf":            "SmolLM2.Q4_1",
		"/m/Qwen3-0.6B/model.safetensors": "Qwen3-0.6B",
		"/m/Qwen3-0.6B":                   "Qwen3-0.6B",
		"/c/hub/models--Qwen--Qwen3-0.6B/snapshots/c1899de289a04d12100db370d81485cdf75e47ca/model.safetensors": "Qwen/Qwen3-0.6B",
		"/c/hub/models--Qwen--Qwen3-0.6B/snapshots/c1899de289a04d12100db370d81485cdf75e47ca":                   "Qwen/Qwen3-0.6B",
	} {
		if got := nameOf(filepath.FromSlash(path)); got != want {
			t.Errorf("%s is called %s, want %s", path, got, want)
		}
	}
}

// Convert turns the trainer's Hugging Face folder into the GGUF file that the program embeds, and prints its SHA-256.
// Matrices become Q8_0, norms stay float32.
//
//	go run ./tools/train/convert FOLDER internal/embedded/model.gguf
package main

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"cotenant/internal/weights"
	"cotenant/internal/weights/weightstest"
)

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: convert FOLDER FILE.gguf")
		os.Exit(2)
	}
	if err := run(os.Args[1], os.Args[2]); err != nil {
		fmt.Fprintln(os.Stderr, "convert:", err)
		os.Exit(1)
	}
}

type config struct {
	Hidden   int     `json:"hidden_size"`
	FFN      int     `json:"intermediate_size"`
	Layers   int     `json:"num_hidden_layers"`
	Heads    int     `json:"num_attention_heads"`
	KVHeads  int     `json:"num_key_value_heads"`
	HeadDim  int     `json:"head_dim"`
	Vocab    int     `json:"vocab_size"`
	Context  int     `json:"max_position_embeddings"`
	Theta    float32 `json:"rope_theta"`
	Eps      float32 `json:"rms_norm_eps"`
	EOS      uint32  `json:"eos_token_id"`
	Template string  `json:"chat_template"` // from tokenizer_config.json
}

type tokenizerFile struct {
	Added []struct {
		ID      int    `json:"id"`
		Content string `json:"content"`
	} `json:"added_tokens"`
	Model struct {
		Vocab  map[string]int `json:"vocab"`
		Merges [][2]string    `json:"merges"`
	} `json:"model"`
}

func run(folder, out string) error {
	var c config
	var t tokenizerFile
	for name, into := range map[string]any{"config.json": &c, "tokenizer_config.json": &c, "tokenizer.json": &t} {
		data, err := os.ReadFile(filepath.Join(folder, name))
		if err != nil {
			return err
		}
		if err := json.Unmarshal(data, into); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	f, err := weights.Open(filepath.Join(folder, "model.safetensors"))
	if err != nil {
		return err
	}
	defer f.Close()
	var tensors []weights.Tensor
	for _, from := range f.Tensors() {
		tensors = append(tensors, convert(from))
	}
	slices.SortFunc(tensors, func(a, b weights.Tensor) int { return strings.Compare(a.Name, b.Name) })
	data, err := weightstest.GGUF(metadata(c, t), tensors)
	if err != nil {
		return err
	}
	fmt.Printf("%x  %s  %d bytes\n", sha256.Sum256(data), filepath.Base(out), len(data))
	return os.WriteFile(out, data, 0o644)
}

// names maps Hugging Face's parts of a tensor's name to GGUF's (gguf-py's tensor_mapping.py).
var names = strings.NewReplacer(
	"model.embed_tokens", "token_embd", "model.norm", "output_norm", "model.layers.", "blk.",
	"self_attn.q_proj", "attn_q", "self_attn.k_proj", "attn_k", "self_attn.v_proj", "attn_v", "self_attn.o_proj", "attn_output",
	"self_attn.q_norm", "attn_q_norm", "self_attn.k_norm", "attn_k_norm",
	"mlp.gate_proj", "ffn_gate", "mlp.up_proj", "ffn_up", "mlp.down_proj", "ffn_down",
	"input_layernorm", "attn_norm", "post_attention_layernorm", "ffn_norm",
)

func convert(t weights.Tensor) weights.Tensor {
	n := 1
	for _, d := range t.Shape {
		n *= d
	}
	values := make([]float32, n)
	weights.Dequantize(values, t.Type, t.Data)
	to := weights.F32
	if len(t.Shape) == 2 {
		to = weights.Q8_0
	}
	return weightstest.Float32(names.Replace(t.Name), to, values, t.Shape...)
}

func metadata(c config, t tokenizerFile) []weightstest.KV {
	tokens := make([]string, c.Vocab)
	types := make([]int32, c.Vocab) // 1 normal, 3 control (llama.cpp's llama_token_type)
	for text, id := range t.Model.Vocab {
		tokens[id], types[id] = text, 1
	}
	for _, a := range t.Added {
		tokens[a.ID], types[a.ID] = a.Content, 3
	}
	var merges []string
	for _, m := range t.Model.Merges {
		merges = append(merges, m[0]+" "+m[1])
	}
	return []weightstest.KV{
		{Key: "general.architecture", Value: "qwen3"},
		{Key: "general.name", Value: "Cotenant tasks 3M"},
		{Key: "general.license", Value: "apache-2.0"},
		{Key: "general.file_type", Value: uint32(7)}, // mostly Q8_0
		{Key: "qwen3.block_count", Value: uint32(c.Layers)},
		{Key: "qwen3.context_length", Value: uint32(c.Context)},
		{Key: "qwen3.embedding_length", Value: uint32(c.Hidden)},
		{Key: "qwen3.feed_forward_length", Value: uint32(c.FFN)},
		{Key: "qwen3.attention.head_count", Value: uint32(c.Heads)},
		{Key: "qwen3.attention.head_count_kv", Value: uint32(c.KVHeads)},
		{Key: "qwen3.attention.key_length", Value: uint32(c.HeadDim)},
		{Key: "qwen3.attention.value_length", Value: uint32(c.HeadDim)},
		{Key: "qwen3.attention.layer_norm_rms_epsilon", Value: c.Eps},
		{Key: "qwen3.rope.freq_base", Value: c.Theta},
		{Key: "tokenizer.ggml.model", Value: "gpt2"},
		{Key: "tokenizer.ggml.pre", Value: "qwen2"},
		{Key: "tokenizer.ggml.tokens", Value: tokens},
		{Key: "tokenizer.ggml.token_type", Value: types},
		{Key: "tokenizer.ggml.merges", Value: merges},
		{Key: "tokenizer.ggml.eos_token_id", Value: c.EOS},
		{Key: "tokenizer.ggml.add_bos_token", Value: false},
		{Key: "tokenizer.chat_template", Value: c.Template},
	}
}

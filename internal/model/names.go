package model

import "fmt"

// naming is how a file format names a decoder's tensors. Names of layers hold one %d.
type naming struct {
	embed, norm, head string   // whole names
	attnNorm, ffnNorm string   // whole names with %d
	q, k, v, out      string   // without .weight and .bias
	qNorm, kNorm      string   // whole names with %d
	gate, up, down    string   // without .weight and .bias
	ropeFactors       string   // whole name, may be empty
	ignored           []string // tensors that say nothing that the configuration doesn't; may hold %d
}

// ggufNames: ggml-org/llama.cpp gguf-py/gguf/constants.py, TENSOR_NAMES.
var ggufNames = naming{
	embed:       "token_embd.weight",
	norm:        "output_norm.weight",
	head:        "output.weight",
	attnNorm:    "blk.%d.attn_norm.weight",
	ffnNorm:     "blk.%d.ffn_norm.weight",
	q:           "blk.%d.attn_q",
	k:           "blk.%d.attn_k",
	v:           "blk.%d.attn_v",
	out:         "blk.%d.attn_output",
	qNorm:       "blk.%d.attn_q_norm.weight",
	kNorm:       "blk.%d.attn_k_norm.weight",
	gate:        "blk.%d.ffn_gate",
	up:          "blk.%d.ffn_up",
	down:        "blk.%d.ffn_down",
	ropeFactors: "rope_freqs.weight",
	ignored:     []string{"blk.%d.attn_rot_embd"},
}

// hfNames: transformers, models/llama, qwen2 and qwen3.
var hfNames = naming{
	embed:    "model.embed_tokens.weight",
	norm:     "model.norm.weight",
	head:     "lm_head.weight",
	attnNorm: "model.layers.%d.input_layernorm.weight",
	ffnNorm:  "model.layers.%d.post_attention_layernorm.weight",
	q:        "model.layers.%d.self_attn.q_proj",
	k:        "model.layers.%d.self_attn.k_proj",
	v:        "model.layers.%d.self_attn.v_proj",
	out:      "model.layers.%d.self_attn.o_proj",
	qNorm:    "model.layers.%d.self_attn.q_norm.weight",
	kNorm:    "model.layers.%d.self_attn.k_norm.weight",
	gate:     "model.layers.%d.mlp.gate_proj",
	up:       "model.layers.%d.mlp.up_proj",
	down:     "model.layers.%d.mlp.down_proj",
	ignored:  []string{"model.layers.%d.self_attn.rotary_emb.inv_freq"},
}

func inLayer(pattern string, i int) string { return fmt.Sprintf(pattern, i) }

package model

import (
	"errors"
	"fmt"
)

// metadata is a GGUF file's key-value pairs: value, presence, and an error where the type is another one.
type metadata interface {
	String(key string) (string, bool, error)
	Int(key string) (int, bool, error)
	Ints(key string) ([]int, bool, error)
	Float32(key string) (float32, bool, error)
	Bool(key string) (bool, bool, error)
}

// reader reads metadata and keeps the first error.
type reader struct {
	meta metadata
	arch string // prefix of the architecture's keys
	err  error
}

// parseGGUF reads the configuration of a GGUF file (ggml's docs/gguf.md; keys as in gguf-py/gguf/constants.py). The
// vocabulary's size is that of the embedding, whose shape the caller knows; biases and the head follow from tensors.
func parseGGUF(meta metadata, vocab int) (Config, hints, error) {
	r := &reader{meta: meta}
	c := Config{Arch: r.text("general.architecture"), Name: r.text("general.name"), VocabSize: vocab}
	r.arch = c.Arch
	if r.err != nil {
		return c, hints{}, r.err
	}
	if c.Arch == "" {
		return c, hints{}, errors.New("general.architecture is missing")
	}
	if !known(c.Arch) {
		return c, hints{}, unknownArch(c.Arch)
	}
	c.Layers = r.need(".block_count")
	c.ContextLength = r.need(".context_length")
	c.Hidden = r.need(".embedding_length")
	c.FFN = r.need(".feed_forward_length")
	c.Heads = r.need(".attention.head_count")
	if r.err == nil && (c.Heads < 1 || c.Hidden < 1) {
		r.err = fmt.Errorf("%d attention heads, width %d", c.Heads, c.Hidden)
	}
	if r.err != nil {
		return c, hints{}, r.err
	}
	c.KVHeads = r.int(".attention.head_count_kv", c.Heads)
	r.headDim(&c)
	c.RMSEps = r.float(".attention.layer_norm_rms_epsilon", 0) // no default: Validate refuses 0
	c.QKNorm = c.Arch == ArchQwen3
	c.RoPE = r.rope(c.Arch, c.HeadDim)
	r.refuse()
	return c, hints{eos: r.eos()}, r.err
}

func (r *reader) headDim(c *Config) {
	c.HeadDim = r.int(".attention.key_length", 0)
	if c.HeadDim == 0 {
		if c.Hidden%c.Heads != 0 {
			r.fail(fmt.Errorf("%s.embedding_length %d is not a multiple of %s.attention.head_count %d, and key_length is missing",
				r.arch, c.Hidden, r.arch, c.Heads))
		}
		c.HeadDim = c.Hidden / c.Heads
	}
	if v := r.int(".attention.value_length", c.HeadDim); v != c.HeadDim {
		r.fail(fmt.Errorf("values of %d and keys of %d elements a head are not supported", v, c.HeadDim))
	}
}

func (r *reader) rope(arch string, headDim int) RoPE {
	p := RoPE{
		Theta:       float64(r.float(".rope.freq_base", 10000)), // llama.cpp's default
		Dim:         r.int(".rope.dimension_count", headDim),
		Interleaved: arch == ArchLlama, // its converter permutes the rows of Q and K (LlamaModel.permute)
		Scaling:     RoPEScaling{Type: ScalingNone},
	}
	factor := r.float(".rope.scaling.factor", r.float(".rope.scale_linear", 1)) // the second is the older key
	switch kind := r.string(".rope.scaling.type", ""); kind {
	case "linear":
		p.Scaling = RoPEScaling{Type: ScalingLinear, Factor: float64(factor)}
	case "":
		if factor != 1 && factor != 0 { // llama.cpp: a factor alone is linear, 0 is none
			p.Scaling = RoPEScaling{Type: ScalingLinear, Factor: float64(factor)}
		}
	case "none":
	default:
		r.fail(fmt.Errorf("%s.rope.scaling.type %.80q is not supported; none and linear are", r.arch, kind))
	}
	return p
}

// refuse names what the file asks for that this package doesn't compute.
func (r *reader) refuse() {
	if n := r.int(".expert_count", 0); n > 0 {
		r.fail(fmt.Errorf("mixture of experts (%d) is not supported", n))
	}
	if n := r.int(".attention.sliding_window", 0); n > 0 {
		r.fail(fmt.Errorf("a sliding window of %d tokens is not supported", n))
	}
	if b, ok, err := r.meta.Bool(r.arch + ".attention.causal"); err != nil {
		r.fail(err)
	} else if ok && !b {
		r.fail(errors.New("attention that isn't causal is not supported"))
	}
	for _, key := range []string{
		".attention.scale", ".rope.scaling.attn_factor", ".logit_scale", ".residual_scale", ".embedding_scale",
		".attn_logit_softcapping", ".final_logit_softcapping", ".attention.clamp_kqv", ".attention.max_alibi_bias",
	} {
		if f := r.float(key, 0); f != 0 && f != 1 {
			r.fail(fmt.Errorf("%s%s is not supported", r.arch, key))
		}
	}
	if n := r.int(".pooling_type", 0); n > 0 {
		r.fail(errors.New("an embedding model is not supported"))
	}
	if s := r.text("general.type"); s != "" && s != "model" {
		r.fail(fmt.Errorf("a file of type %.80q is not a model", s))
	}
}

// eos lists the end tokens that the file names.
func (r *reader) eos() []int32 {
	var ids []int32
	for _, key := range []string{"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id"} {
		if id := r.tokenID(key); id >= 0 {
			ids = append(ids, id)
		}
	}
	return ids
}

func (r *reader) fail(err error) {
	if r.err == nil {
		r.err = err
	}
}

// text returns a string by its whole key, "" where it is absent.
func (r *reader) text(key string) string {
	s, _, err := r.meta.String(key)
	if err != nil {
		r.fail(err)
	}
	return s
}

func (r *reader) string(key, def string) string {
	s, ok, err := r.meta.String(r.arch + key)
	if err != nil {
		r.fail(err)
	}
	if !ok {
		return def
	}
	return s
}

func (r *reader) float(key string, def float32) float32 {
	f, ok, err := r.meta.Float32(r.arch + key)
	if err != nil {
		r.fail(err)
	}
	if !ok {
		return def
	}
	return f
}

func (r *reader) plainInt(key string, def int) int {
	n, ok, err := r.meta.Int(key)
	if err != nil {
		r.fail(err)
	}
	if !ok {
		return def
	}
	return n
}

// int returns a number, or the one number that an array with an element a layer repeats.
func (r *reader) int(key string, def int) int {
	key = r.arch + key
	n, ok, err := r.meta.Int(key)
	if err == nil && !ok {
		return def
	}
	if err == nil {
		return n
	}
	list, _, arrayErr := r.meta.Ints(key)
	if arrayErr != nil || len(list) == 0 {
		r.fail(err)
		return def
	}
	for i, v := range list {
		if v != list[0] {
			r.fail(fmt.Errorf("%s differs between layers (%d in layer 0, %d in layer %d): not supported", key, list[0], v, i))
			break
		}
	}
	return list[0]
}

// need is int without a default.
func (r *reader) need(key string) int {
	const absent = -1 << 31
	n := r.int(key, absent)
	if n == absent {
		r.fail(fmt.Errorf("%s%s is missing", r.arch, key))
	}
	return n
}

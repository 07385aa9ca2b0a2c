package model

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
)

// hfConfig holds config.json's keys that this package heeds (transformers 4 and 5). A pointer is nil where the key is
// absent or null.
type hfConfig struct {
	ModelType        string          `json:"model_type"`
	Architectures    []string        `json:"architectures"`
	VocabSize        *int            `json:"vocab_size"`
	HiddenSize       *int            `json:"hidden_size"`
	Layers           *int            `json:"num_hidden_layers"`
	Heads            *int            `json:"num_attention_heads"`
	KVHeads          *int            `json:"num_key_value_heads"`
	HeadDim          *int            `json:"head_dim"`
	FFN              *int            `json:"intermediate_size"`
	ContextLength    *int            `json:"max_position_embeddings"`
	RMSEps           *float64        `json:"rms_norm_eps"`
	HiddenAct        *string         `json:"hidden_act"`
	AttentionBias    *bool           `json:"attention_bias"`
	MLPBias          *bool           `json:"mlp_bias"`
	Tied             *bool           `json:"tie_word_embeddings"`
	RopeTheta        *float64        `json:"rope_theta"`
	RopeScaling      *hfRope         `json:"rope_scaling"`
	RopeParameters   *hfRope         `json:"rope_parameters"`
	PartialRotary    *float64        `json:"partial_rotary_factor"`
	UseSlidingWindow *bool           `json:"use_sliding_window"`
	SlidingWindow    *int            `json:"sliding_window"`
	MaxWindowLayers  *int            `json:"max_window_layers"`
	LayerTypes       []string        `json:"layer_types"`
	Experts          *int            `json:"num_experts"`
	LocalExperts     *int            `json:"num_local_experts"`
	Quantization     json.RawMessage `json:"quantization_config"`
	EOS              tokenIDs        `json:"eos_token_id"`
}

// hfRope is rope_scaling (transformers 4: type or rope_type) or rope_parameters (5, with the base).
type hfRope struct {
	RopeType        *string  `json:"rope_type"`
	Type            *string  `json:"type"` // before rope_type
	Theta           *float64 `json:"rope_theta"`
	Factor          *float64 `json:"factor"`
	LowFreqFactor   *float64 `json:"low_freq_factor"`
	HighFreqFactor  *float64 `json:"high_freq_factor"`
	OriginalContext *int     `json:"original_max_position_embeddings"`
	PartialRotary   *float64 `json:"partial_rotary_factor"`
}

// tokenIDs is a token id, a list of them, or null.
type tokenIDs []int32

func (t *tokenIDs) UnmarshalJSON(b []byte) error {
	var one int32
	if err := json.Unmarshal(b, &one); err == nil {
		if *t = (tokenIDs)(nil); string(b) != "null" {
			*t = tokenIDs{one}
		}
		return nil
	}
	var many []int32
	if err := json.Unmarshal(b, &many); err != nil {
		return errors.New("a token id or a list of them is wanted")
	}
	*t = many
	return nil
}

// parseHF reads config.json. Biases and tied embeddings are only what the file says; tensors decide the rest (settle).
func parseHF(data []byte) (Config, hints, error) {
	var h hfConfig
	if err := json.Unmarshal(data, &h); err != nil {
		return Config{}, hints{}, fmt.Errorf("config.json: %w", err)
	}
	c, hint, err := h.config()
	if err != nil {
		return Config{}, hints{}, fmt.Errorf("config.json: %w", err)
	}
	return c, hint, nil
}

func (h *hfConfig) config() (Config, hints, error) {
	c := Config{Arch: h.ModelType}
	hint := hints{attentionBias: h.AttentionBias, mlpBias: h.MLPBias, tied: h.Tied, eos: h.EOS}
	if err := h.refuse(); err != nil {
		return c, hint, err
	}
	for _, f := range []struct {
		key string
		dst *int
		src *int
	}{
		{"vocab_size", &c.VocabSize, h.VocabSize},
		{"hidden_size", &c.Hidden, h.HiddenSize},
		{"num_hidden_layers", &c.Layers, h.Layers},
		{"num_attention_heads", &c.Heads, h.Heads},
		{"intermediate_size", &c.FFN, h.FFN},
		{"max_position_embeddings", &c.ContextLength, h.ContextLength},
	} {
		if f.src == nil {
			return c, hint, fmt.Errorf("%s is missing", f.key)
		}
		*f.dst = *f.src
	}
	c.KVHeads = c.Heads
	if h.KVHeads != nil {
		c.KVHeads = *h.KVHeads
	}
	switch {
	case h.HeadDim != nil:
		c.HeadDim = *h.HeadDim
	case c.Arch == ArchQwen3:
		c.HeadDim = 128 // transformers, Qwen3Config
	default:
		if c.Heads < 1 || c.Hidden%c.Heads != 0 {
			return c, hint, fmt.Errorf("hidden_size %d is not a multiple of num_attention_heads %d, and head_dim is missing",
				c.Hidden, c.Heads)
		}
		c.HeadDim = c.Hidden / c.Heads
	}
	c.RMSEps = 1e-6 // transformers, all three configurations
	if h.RMSEps != nil {
		c.RMSEps = float32(*h.RMSEps)
	}
	c.QKNorm = c.Arch == ArchQwen3
	rope, err := h.rope()
	if err != nil {
		return c, hint, err
	}
	rope.Dim = c.HeadDim
	c.RoPE = rope
	return c, hint, nil
}

// refuse names what the file asks for that this package doesn't compute.
func (h *hfConfig) refuse() error {
	causal := map[string]string{
		ArchLlama: "LlamaForCausalLM", ArchQwen2: "Qwen2ForCausalLM", ArchQwen3: "Qwen3ForCausalLM",
	}[h.ModelType]
	if causal == "" {
		return unknownArch(h.ModelType)
	}
	if len(h.Architectures) > 0 && !slices.Contains(h.Architectures, causal) {
		return fmt.Errorf("architecture %.80q is not supported; %s is", h.Architectures[0], causal)
	}
	if h.HiddenAct != nil && *h.HiddenAct != "silu" && *h.HiddenAct != "swish" {
		return fmt.Errorf("activation %.80q is not supported; silu is", *h.HiddenAct)
	}
	if len(h.Quantization) > 0 && string(h.Quantization) != "null" {
		var q struct {
			Method string `json:"quant_method"`
		}
		_ = json.Unmarshal(h.Quantization, &q) // only for the message
		return fmt.Errorf("quantization_config (%.80q) is not supported; unquantised safetensors and GGUF are", q.Method)
	}
	if h.Experts != nil && *h.Experts > 0 || h.LocalExperts != nil && *h.LocalExperts > 0 {
		return errors.New("mixture of experts is not supported")
	}
	for _, f := range []*float64{h.PartialRotary, h.RopeParameters.partial(), h.RopeScaling.partial()} {
		if f != nil && *f != 1 {
			return fmt.Errorf("partial_rotary_factor %g is not supported", *f)
		}
	}
	return h.refuseWindow()
}

// refuseWindow refuses a sliding window in use (transformers, Qwen2Config: layers from max_window_layers up have one when
// use_sliding_window is set).
func (h *hfConfig) refuseWindow() error {
	for i, t := range h.LayerTypes {
		if t != "full_attention" {
			return fmt.Errorf("layer %d: attention of type %.80q is not supported; full_attention is", i, t)
		}
	}
	if h.SlidingWindow == nil || h.UseSlidingWindow != nil && !*h.UseSlidingWindow {
		return nil
	}
	if h.Layers != nil && h.MaxWindowLayers != nil && *h.MaxWindowLayers >= *h.Layers {
		return nil
	}
	return fmt.Errorf("a sliding window of %d tokens is not supported", *h.SlidingWindow)
}

func (r *hfRope) partial() *float64 {
	if r == nil {
		return nil
	}
	return r.PartialRotary
}

// rope reads the base and the scaling from wherever this version of the file keeps them.
func (h *hfConfig) rope() (RoPE, error) {
	r := RoPE{Theta: 10000, Scaling: RoPEScaling{Type: ScalingNone}} // transformers, default_theta
	if h.RopeTheta != nil {
		r.Theta = *h.RopeTheta
	}
	s := h.RopeParameters
	if s == nil {
		s = h.RopeScaling
	}
	if s == nil {
		return r, nil
	}
	if s.Theta != nil {
		r.Theta = *s.Theta
	}
	switch {
	case s.RopeType != nil:
		r.Scaling.Type = *s.RopeType
	case s.Type != nil:
		r.Scaling.Type = *s.Type
	case s.Factor != nil:
		return r, errors.New("rope scaling has a factor but no rope_type")
	}
	switch r.Scaling.Type {
	case ScalingNone:
		return r, nil
	case ScalingLinear, ScalingLlama3:
	default:
		return r, fmt.Errorf("rope_type %.80q is not supported; default, linear and llama3 are", r.Scaling.Type)
	}
	if s.Factor == nil {
		return r, fmt.Errorf("rope_type %s without factor", r.Scaling.Type)
	}
	r.Scaling.Factor = *s.Factor
	if r.Scaling.Type == ScalingLlama3 {
		if s.LowFreqFactor == nil || s.HighFreqFactor == nil || s.OriginalContext == nil {
			return r, errors.New("rope_type llama3 needs low_freq_factor, high_freq_factor and original_max_position_embeddings")
		}
		r.Scaling.LowFreqFactor, r.Scaling.HighFreqFactor = *s.LowFreqFactor, *s.HighFreqFactor
		r.Scaling.OriginalContext = *s.OriginalContext
	}
	return r, nil
}

// generationEOS reads the end tokens of generation_config.json, where there is one.
func generationEOS(f sidecars) ([]int32, error) {
	data, ok, err := f.Sidecar("generation_config.json")
	if err != nil || !ok {
		return nil, err
	}
	var g struct {
		EOS tokenIDs `json:"eos_token_id"`
	}
	if err := json.Unmarshal(data, &g); err != nil {
		return nil, fmt.Errorf("generation_config.json: %w", err)
	}
	return g.EOS, nil
}

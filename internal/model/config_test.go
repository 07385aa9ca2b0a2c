package model

import (
	"fmt"
	"math"
	"reflect"
	"strings"
	"testing"
)

// hfBase is a configuration that loads; tests change one thing.
const hfBase = `{"model_type":"qwen2","architectures":["Qwen2ForCausalLM"],"hidden_size":896,"num_hidden_layers":24,
"num_attention_heads":14,"num_key_value_heads":2,"intermediate_size":4864,"vocab_size":151936,"tie_word_embeddings":true,
"rope_theta":1000000.0,"rms_norm_eps":1e-06,"max_position_embeddings":32768,"hidden_act":"silu","use_sliding_window":false,
"sliding_window":32768,"max_window_layers":21,"eos_token_id":[151643,151645]}`

// edit replaces the member that begins with `"key":` in a JSON object, or adds it; an empty value removes it.
func edit(t testing.TB, doc, key, value string) string {
	t.Helper()
	quoted := `"` + key + `":`
	at := strings.Index(doc, quoted)
	if at < 0 {
		return strings.Replace(doc, "{", "{"+quoted+value+",", 1)
	}
	end, depth := at+len(quoted), 0
	for ; depth > 0 || !strings.ContainsRune(",}", rune(doc[end])); end++ {
		switch doc[end] {
		case '[', '{':
			depth++
		case ']', '}':
			depth--
		}
	}
	if value == "" {
		if doc[end] == ',' {
			end++
		}
		return doc[:at] + doc[end:]
	}
	return doc[:at] + quoted + value + doc[end:]
}

func TestHFConfig(t *testing.T) {
	c, h, err := parseHF([]byte(hfBase))
	if err != nil {
		t.Fatal(err)
	}
	c.QKVBias, c.Tied = true, true
	want := Config{
		Arch: ArchQwen2, VocabSize: 151936, Hidden: 896, Layers: 24, Heads: 14, KVHeads: 2, HeadDim: 64, FFN: 4864,
		ContextLength: 32768, RMSEps: 1e-6, QKVBias: true, Tied: true,
		RoPE: RoPE{Theta: 1e6, Dim: 64, Scaling: RoPEScaling{Type: ScalingNone}},
	}
	if !reflect.DeepEqual(c, want) {
		t.Errorf("got %+v, want %+v", c, want)
	}
	if err := c.Validate(); err != nil {
		t.Error(err)
	}
	if got := c.Parameters(); got != 494_032_768 { // Qwen2.5-0.5B, as transformers counts it
		t.Errorf("%d parameters", got)
	}
	if len(h.eos) != 2 || h.tied == nil || !*h.tied {
		t.Errorf("hints %+v", h)
	}
}

// TestHFRefused gives configurations that this package would compute wrongly, and what the message must name.
func TestHFRefused(t *testing.T) {
	for _, c := range []struct{ key, value, want string }{
		{"model_type", `"gemma3"`, `"gemma3"`},
		{"model_type", `"qwen3_moe"`, `"qwen3_moe"`},
		{"model_type", `7`, "model_type"},
		{"model_type", "", `architecture ""`},
		{"architectures", `["Qwen2ForSequenceClassification"]`, "Qwen2ForSequenceClassification"},
		{"hidden_act", `"gelu"`, `"gelu"`},
		{"rope_scaling", `{"rope_type":"yarn","factor":4.0,"original_max_position_embeddings":32768}`, `"yarn"`},
		{"rope_scaling", `{"type":"dynamic","factor":2.0}`, `"dynamic"`},
		{"rope_scaling", `{"type":"linear"}`, "factor"},
		{"rope_scaling", `{"factor":2}`, "rope_type"},
		{"rope_scaling", `{"rope_type":"linear","factor":0.5}`, "factor is 0.5"},
		{"rope_scaling", `{"rope_type":"llama3","factor":8}`, "low_freq_factor"},
		{"rope_scaling", `{"rope_type":"llama3","factor":8,"low_freq_factor":4,"high_freq_factor":1,"original_max_position_embeddings":8192}`, "low_freq_factor (4)"},
		{"rope_parameters", `{"rope_type":"longrope"}`, `"longrope"`},
		{"rope_parameters", `{"rope_theta":1e6,"rope_type":"default","partial_rotary_factor":0.5}`, "partial_rotary_factor"},
		{"use_sliding_window", `true`, "sliding window"},
		{"use_sliding_window", "", "sliding window"},
		{"layer_types", `["full_attention","sliding_attention"]`, "layer 1"},
		{"num_experts", `8`, "mixture of experts"},
		{"num_local_experts", `8`, "mixture of experts"},
		{"quantization_config", `{"quant_method":"awq"}`, `"awq"`},
		{"hidden_size", "", "hidden_size is missing"},
		{"hidden_size", `1000`, "multiple"},
		{"hidden_size", `-896`, "must be from 1"},
		{"hidden_size", `9223372036854775807`, "multiple"},
		{"hidden_size", `1e400`, "hidden_size"},
		{"num_attention_heads", `0`, "num_attention_heads 0"},
		{"num_attention_heads", `-9223372036854775808`, "num_attention_heads"},
		{"num_key_value_heads", `3`, "multiple of 3"},
		{"num_key_value_heads", `0`, "key/value heads is 0"},
		{"head_dim", `63`, "odd"},
		{"head_dim", `0`, "head dimension is 0"},
		{"num_hidden_layers", `513`, "layers is 513"},
		{"num_hidden_layers", `2.5`, "num_hidden_layers"},
		{"intermediate_size", `0`, "feed-forward"},
		{"vocab_size", `4294967296`, "vocabulary"},
		{"max_position_embeddings", `4194305`, "context length"},
		{"rms_norm_eps", `0`, "epsilon"},
		{"rms_norm_eps", `1`, "epsilon"},
		{"rope_theta", `0`, "base is 0"},
		{"rope_theta", `-1`, "base is -1"},
		{"eos_token_id", `"</s>"`, "token id"},
		{"eos_token_id", `99999999999`, "token id"},
	} {
		t.Run(c.key+"="+c.value, func(t *testing.T) {
			cfg, _, err := parseHF([]byte(edit(t, hfBase, c.key, c.value)))
			if err == nil {
				cfg.QKVBias = true
				err = cfg.Validate()
			}
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %v, want one that names %s", err, c.want)
			}
		})
	}
	for _, bad := range []string{"", "null", "[]", `"x"`, "{", strings.Repeat("[", 20000), "{}"} {
		if _, _, err := parseHF([]byte(bad)); err == nil {
			t.Errorf("%.20q was accepted", bad)
		}
	}
}

// TestHFAccepted gives the ways in which a thing may be said.
func TestHFAccepted(t *testing.T) {
	llama3 := RoPEScaling{Type: ScalingLlama3, Factor: 8, LowFreqFactor: 1, HighFreqFactor: 4, OriginalContext: 8192}
	const ramp = `"factor":8.0,"low_freq_factor":1.0,"high_freq_factor":4.0,"original_max_position_embeddings":8192`
	for _, c := range []struct {
		name, key, value string
		get              func(Config) any
		want             any
	}{
		{"llama3", "rope_scaling", `{"rope_type":"llama3",` + ramp + `}`, func(c Config) any { return c.RoPE.Scaling }, llama3},
		{"llama3, old key", "rope_scaling", `{"type":"llama3",` + ramp + `}`, func(c Config) any { return c.RoPE.Scaling }, llama3},
		{"llama3, transformers 5", "rope_parameters", `{"rope_theta":500000.0,"rope_type":"llama3",` + ramp + `}`, func(c Config) any { return c.RoPE.Scaling }, llama3},
		{"base, transformers 5", "rope_parameters", `{"rope_theta":500000.0,"rope_type":"default"}`, func(c Config) any { return c.RoPE.Theta }, 500000.0},
		{"null scaling", "rope_scaling", "null", func(c Config) any { return c.RoPE.Scaling.Type }, ScalingNone},
		{"window beyond the layers", "use_sliding_window", `true,"max_window_layers":24`, func(c Config) any { return c.Layers }, 24},
		{"null window", "sliding_window", `null`, func(c Config) any { return c.Layers }, 24},
		{"default base", "rope_theta", "", func(c Config) any { return c.RoPE.Theta }, 10000.0},
		{"heads without groups", "num_key_value_heads", "", func(c Config) any { return c.KVHeads }, 14},
		{"null head size", "head_dim", "null", func(c Config) any { return c.HeadDim }, 64},
		{"own head size", "head_dim", "128", func(c Config) any { return c.HeadDim }, 128},
		{"default epsilon", "rms_norm_eps", "", func(c Config) any { return c.RMSEps }, float32(1e-6)},
		{"swish", "hidden_act", `"swish"`, func(c Config) any { return c.Layers }, 24},
	} {
		t.Run(c.name, func(t *testing.T) {
			doc := hfBase
			if strings.Contains(c.value, "max_window_layers") {
				doc = edit(t, doc, "max_window_layers", "")
			}
			cfg, _, err := parseHF([]byte(edit(t, doc, c.key, c.value)))
			if err != nil {
				t.Fatal(err)
			}
			if got := c.get(cfg); got != c.want {
				t.Errorf("got %v, want %v", got, c.want)
			}
		})
	}
}

// fakeMeta is GGUF metadata as Go values: string, int, []int, float32, bool.
type fakeMeta map[string]any

func lookup[T any](m fakeMeta, key string) (T, bool, error) {
	var zero T
	v, ok := m[key]
	if !ok {
		return zero, false, nil
	}
	t, ok := v.(T)
	if !ok {
		return zero, true, fmt.Errorf("metadata key %q is a %T", key, v)
	}
	return t, true, nil
}

func (m fakeMeta) String(key string) (string, bool, error)   { return lookup[string](m, key) }
func (m fakeMeta) Int(key string) (int, bool, error)         { return lookup[int](m, key) }
func (m fakeMeta) Ints(key string) ([]int, bool, error)      { return lookup[[]int](m, key) }
func (m fakeMeta) Float32(key string) (float32, bool, error) { return lookup[float32](m, key) }
func (m fakeMeta) Bool(key string) (bool, bool, error)       { return lookup[bool](m, key) }

// ggufBase is SmolLM2's metadata.
func ggufBase() fakeMeta {
	return fakeMeta{
		"general.architecture": "llama", "general.type": "model", "general.name": "Smollm2 135M",
		"llama.block_count": 30, "llama.context_length": 8192, "llama.embedding_length": 576,
		"llama.feed_forward_length": 1536, "llama.attention.head_count": 9, "llama.attention.head_count_kv": 3,
		"llama.rope.freq_base": float32(100000), "llama.attention.layer_norm_rms_epsilon": float32(1e-5),
		"llama.rope.dimension_count": 64, "tokenizer.ggml.eos_token_id": 2,
	}
}

func TestGGUFConfig(t *testing.T) {
	c, h, err := parseGGUF(ggufBase(), 49152)
	if err != nil {
		t.Fatal(err)
	}
	want := Config{
		Arch: ArchLlama, Name: "Smollm2 135M", VocabSize: 49152, Hidden: 576, Layers: 30, Heads: 9, KVHeads: 3, HeadDim: 64,
		FFN: 1536, ContextLength: 8192, RMSEps: 1e-5,
		RoPE: RoPE{Theta: 100000, Dim: 64, Interleaved: true, Scaling: RoPEScaling{Type: ScalingNone}},
	}
	if !reflect.DeepEqual(c, want) {
		t.Errorf("got %+v, want %+v", c, want)
	}
	if err := c.Validate(); err != nil {
		t.Error(err)
	}
	if len(h.eos) != 1 || h.eos[0] != 2 {
		t.Errorf("end tokens %v", h.eos)
	}
}

// TestGGUFRefused changes one value of ggufBase; a nil removes it.
func TestGGUFRefused(t *testing.T) {
	for _, c := range []struct {
		key   string
		value any
		want  string
	}{
		{"general.architecture", "mamba", `"mamba"`},
		{"general.architecture", nil, "general.architecture is missing"},
		{"general.architecture", 3, "general.architecture"},
		{"general.type", "adapter", `"adapter"`},
		{"llama.block_count", nil, "llama.block_count is missing"},
		{"llama.block_count", "30", "llama.block_count"},
		{"llama.block_count", 513, "layers is 513"},
		{"llama.block_count", -1, "layers is -1"},
		{"llama.context_length", nil, "llama.context_length is missing"},
		{"llama.embedding_length", 577, "multiple"},
		{"llama.embedding_length", 0, "width 0"},
		{"llama.embedding_length", 9 << 40, "must be from 1"},
		{"llama.attention.head_count", 0, "0 attention heads"},
		{"llama.attention.head_count", -9, "-9 attention heads"},
		{"llama.attention.head_count", []int{9, 9, 6}, "layer 2"},
		{"llama.attention.head_count", []int{}, "llama.attention.head_count"},
		{"llama.attention.head_count_kv", 2, "multiple of 2"},
		{"llama.attention.head_count_kv", []int{3, 1}, "layer 1"},
		{"llama.attention.key_length", 65, "odd"},
		{"llama.attention.value_length", 32, "values of 32"},
		{"llama.attention.layer_norm_rms_epsilon", nil, "epsilon"},
		{"llama.attention.layer_norm_rms_epsilon", float32(math.NaN()), "epsilon"},
		{"llama.rope.dimension_count", 66, "66 rotating"},
		{"llama.rope.dimension_count", 63, "63 rotating"},
		{"llama.rope.dimension_count", 0, "0 rotating"},
		{"llama.rope.freq_base", float32(math.Inf(1)), "base"},
		{"llama.rope.freq_base", 10000, "llama.rope.freq_base"},
		{"llama.rope.scaling.type", "yarn", `"yarn"`},
		{"llama.rope.scaling.factor", float32(0.25), "factor is 0.25"},
		{"llama.rope.scaling.attn_factor", float32(1.2), "attn_factor"},
		{"llama.expert_count", 8, "mixture of experts (8)"},
		{"llama.attention.sliding_window", 4096, "sliding window of 4096"},
		{"llama.attention.causal", false, "causal"},
		{"llama.attention.scale", float32(0.5), "attention.scale"},
		{"llama.pooling_type", 1, "embedding model"},
		{"tokenizer.ggml.eos_token_id", -5, "eos_token_id is -5"},
		{"tokenizer.ggml.eot_token_id", "x", "eot_token_id"},
	} {
		t.Run(fmt.Sprintf("%s=%v", c.key, c.value), func(t *testing.T) {
			m := ggufBase()
			if m[c.key] = c.value; c.value == nil {
				delete(m, c.key)
			}
			cfg, _, err := parseGGUF(m, 49152)
			if err == nil {
				err = cfg.Validate()
			}
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %v, want one that names %s", err, c.want)
			}
		})
	}
}

func TestGGUFAccepted(t *testing.T) {
	for _, c := range []struct {
		name   string
		change fakeMeta
		get    func(Config, hints) any
		want   any
	}{
		{"one number per layer", fakeMeta{"llama.attention.head_count_kv": []int{3, 3, 3}}, func(c Config, _ hints) any { return c.KVHeads }, 3},
		{"head size", fakeMeta{"llama.attention.key_length": 128, "llama.attention.value_length": 128}, func(c Config, _ hints) any { return c.HeadDim }, 128},
		{"linear", fakeMeta{"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": float32(4)}, func(c Config, _ hints) any { return c.RoPE.Scaling }, RoPEScaling{Type: ScalingLinear, Factor: 4}},
		{"linear, older key", fakeMeta{"llama.rope.scale_linear": float32(2)}, func(c Config, _ hints) any { return c.RoPE.Scaling }, RoPEScaling{Type: ScalingLinear, Factor: 2}},
		{"no scaling", fakeMeta{"llama.rope.scaling.type": "none", "llama.rope.scaling.factor": float32(4)}, func(c Config, _ hints) any { return c.RoPE.Scaling.Type }, ScalingNone},
		{"end of turn", fakeMeta{"tokenizer.ggml.eot_token_id": 7, "tokenizer.ggml.eom_token_id": math.MaxUint32}, func(_ Config, h hints) any { return fmt.Sprint(h.eos) }, "[2 7]"},
		{"partial rotation", fakeMeta{"llama.rope.dimension_count": 32}, func(c Config, _ hints) any { return c.RoPE.Dim }, 32},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := ggufBase()
			for k, v := range c.change {
				m[k] = v
			}
			cfg, h, err := parseGGUF(m, 49152)
			if err == nil {
				err = cfg.Validate()
			}
			if err != nil {
				t.Fatal(err)
			}
			if got := c.get(cfg, h); got != c.want {
				t.Errorf("got %v, want %v", got, c.want)
			}
		})
	}
}

func TestMergeEOS(t *testing.T) {
	got, err := mergeEOS(200, []int32{9, 3}, nil, []int32{3, 199})
	if err != nil || !reflect.DeepEqual(got, []int32{3, 9, 199}) {
		t.Errorf("got %v, %v", got, err)
	}
	for _, id := range []int32{-1, 200} {
		if _, err := mergeEOS(200, []int32{id}); err == nil {
			t.Errorf("end token %d of 200 was accepted", id)
		}
	}
}

// TestLlama3Frequencies compares with figures computed by hand from the definition: base 500,000, head size 128, factor 8, low 1,
// high 4, original context 8,192. A wavelength is 2π·base^(2i/128).
func TestLlama3Frequencies(t *testing.T) {
	r := RoPE{Theta: 500000, Dim: 128, Scaling: RoPEScaling{
		Type: ScalingLlama3, Factor: 8, LowFreqFactor: 1, HighFreqFactor: 4, OriginalContext: 8192,
	}}
	freqs := r.frequencies()
	for i, f := range freqs {
		plain := math.Pow(500000, -2*float64(i)/128)
		wavelength := 2 * math.Pi / plain
		switch {
		case wavelength < 8192/4.0 && math.Abs(f-plain) > 1e-15:
			t.Errorf("pair %d: short wavelength %.1f was scaled", i, wavelength)
		case wavelength > 8192 && math.Abs(f-plain/8) > 1e-15:
			t.Errorf("pair %d: long wavelength %.1f isn't divided by 8", i, wavelength)
		case f > plain || f < plain/8:
			t.Errorf("pair %d: %g is outside [%g, %g]", i, f, plain/8, plain)
		}
	}
	if len(freqs) != 64 {
		t.Errorf("%d frequencies", len(freqs))
	}
}

package model

import (
	"errors"
	"fmt"
	"math"
)

// The architectures that this package computes, by the name that GGUF and Hugging Face share.
const (
	ArchLlama = "llama"
	ArchQwen2 = "qwen2"
	ArchQwen3 = "qwen3"
)

// Bounds on what a configuration may ask for: far above any model of these architectures, and low enough that no size
// computed from them overflows an int.
const (
	maxVocab   = 1 << 21
	maxHidden  = 1 << 16
	maxLayers  = 512
	maxHeads   = 1 << 10
	maxHeadDim = 1 << 8
	maxFFN     = 1 << 19
	maxContext = 1 << 22
)

// Config is a decoder's shape. Every model of this package is: token embedding; per layer RMSNorm, attention with grouped
// keys and values and rotary positions, RMSNorm, gated SiLU feed-forward; a last RMSNorm and the LM head.
type Config struct {
	Arch          string // llama, qwen2, qwen3
	Name          string // GGUF's general.name, may be empty
	VocabSize     int    // rows of the embedding; may exceed the tokenizer's size (padding)
	Hidden        int    // width of the residual
	Layers        int
	Heads         int // query heads, a multiple of KVHeads
	KVHeads       int
	HeadDim       int // even; not always Hidden/Heads
	FFN           int // width of the gated feed-forward
	ContextLength int // tokens that the model was made for
	RMSEps        float32
	RoPE          RoPE
	QKNorm        bool // RMSNorm over each query and key head before rotation (qwen3)
	QKVBias       bool
	OutBias       bool // bias of the attention's output projection
	MLPBias       bool
	Tied          bool // the LM head is the embedding
}

// RoPE says how positions rotate.
type RoPE struct {
	Theta       float64 // base of the frequencies
	Dim         int     // leading elements of a head that rotate, even
	Interleaved bool    // pairs (2i, 2i+1) as GGUF stores llama; else (i, i+Dim/2)
	Scaling     RoPEScaling
	// Factors divide the frequencies one by one (GGUF's rope_freqs.weight), Dim/2 of them or none.
	Factors []float32
}

// RoPEScaling is a way to stretch the positions.
type RoPEScaling struct {
	Type string // ScalingNone, ScalingLinear, ScalingLlama3
	// Factor divides the frequencies (llama3: the low ones only).
	Factor float64
	// LowFreqFactor, HighFreqFactor and OriginalContext place llama3's ramp between scaled and unscaled frequencies.
	LowFreqFactor, HighFreqFactor float64
	OriginalContext               int
}

// Types of RoPEScaling.
const (
	ScalingNone   = "default"
	ScalingLinear = "linear"
	ScalingLlama3 = "llama3"
)

// Validate reports the first thing that this package could not compute, in words that name the field.
func (c Config) Validate() error {
	if !known(c.Arch) {
		return unknownArch(c.Arch)
	}
	for _, f := range []struct {
		name     string
		v, limit int
	}{
		{"vocabulary size", c.VocabSize, maxVocab},
		{"hidden size", c.Hidden, maxHidden},
		{"number of layers", c.Layers, maxLayers},
		{"number of attention heads", c.Heads, maxHeads},
		{"number of key/value heads", c.KVHeads, maxHeads},
		{"head dimension", c.HeadDim, maxHeadDim},
		{"feed-forward size", c.FFN, maxFFN},
		{"context length", c.ContextLength, maxContext},
	} {
		if f.v < 1 || f.v > f.limit {
			return fmt.Errorf("%s is %d, must be from 1 to %d", f.name, f.v, f.limit)
		}
	}
	if c.Heads%c.KVHeads != 0 {
		return fmt.Errorf("%d attention heads are not a multiple of %d key/value heads", c.Heads, c.KVHeads)
	}
	if c.HeadDim%2 != 0 {
		return fmt.Errorf("head dimension %d is odd, rotary positions need pairs", c.HeadDim)
	}
	if !(c.RMSEps > 0 && c.RMSEps <= 0.1) { // also refuses NaN
		return fmt.Errorf("RMSNorm epsilon is %g, must be above 0 and at most 0.1", c.RMSEps)
	}
	if err := c.RoPE.validate(c.HeadDim); err != nil {
		return fmt.Errorf("rotary positions: %w", err)
	}
	if c.QKNorm != (c.Arch == ArchQwen3) {
		return fmt.Errorf("norms of query and key heads: %t, but the architecture is %s", c.QKNorm, c.Arch)
	}
	if c.Arch == ArchQwen2 && !c.QKVBias {
		return errors.New("qwen2 without query, key and value biases")
	}
	return nil
}

func (r *RoPE) validate(headDim int) error {
	if !(r.Theta >= 1 && r.Theta <= 1e12) {
		return fmt.Errorf("base is %g, must be from 1 to 1e12", r.Theta)
	}
	if r.Dim < 2 || r.Dim > headDim || r.Dim%2 != 0 {
		return fmt.Errorf("%d rotating elements, must be even and from 2 to the head dimension %d", r.Dim, headDim)
	}
	if len(r.Factors) != 0 && len(r.Factors) != r.Dim/2 {
		return fmt.Errorf("%d frequency factors for %d pairs", len(r.Factors), r.Dim/2)
	}
	for i, f := range r.Factors {
		if !(f > 0 && !math.IsInf(float64(f), 0)) {
			return fmt.Errorf("frequency factor %d is %g, must be positive", i, f)
		}
	}
	s := r.Scaling
	switch s.Type {
	case ScalingNone:
		return nil
	case ScalingLinear, ScalingLlama3:
	default:
		return fmt.Errorf("scaling type %.80q is not supported; default, linear and llama3 are", s.Type)
	}
	if !(s.Factor >= 1 && s.Factor <= 1e6) {
		return fmt.Errorf("scaling factor is %g, must be from 1 to 1e6", s.Factor)
	}
	if s.Type == ScalingLinear {
		return nil
	}
	if !(s.LowFreqFactor > 0 && s.HighFreqFactor > s.LowFreqFactor && s.HighFreqFactor <= 1e6) {
		return fmt.Errorf("llama3 scaling needs 0 < low_freq_factor (%g) < high_freq_factor (%g)",
			s.LowFreqFactor, s.HighFreqFactor)
	}
	if s.OriginalContext < 1 || s.OriginalContext > maxContext {
		return fmt.Errorf("llama3 scaling: original context is %d, must be from 1 to %d", s.OriginalContext, maxContext)
	}
	return nil
}

// Parameters is the number of weights, each counted once: a tied LM head adds none.
func (c Config) Parameters() int64 {
	h, f, d := int64(c.Hidden), int64(c.FFN), int64(c.HeadDim)
	q, kv := int64(c.Heads)*d, int64(c.KVHeads)*d
	layer := 2*h + (q+2*kv)*h + h*q + 3*h*f
	if c.QKVBias {
		layer += q + 2*kv
	}
	if c.OutBias {
		layer += h
	}
	if c.MLPBias {
		layer += 2*f + h
	}
	if c.QKNorm {
		layer += 2 * d
	}
	n := int64(c.Layers)*layer + h + int64(c.VocabSize)*h
	if !c.Tied {
		n += int64(c.VocabSize) * h
	}
	return n
}

func known(arch string) bool { return arch == ArchLlama || arch == ArchQwen2 || arch == ArchQwen3 }

func unknownArch(name string) error {
	return fmt.Errorf("architecture %.80q is not supported; llama, qwen2 and qwen3 are", name)
}

// scale multiplies q·k.
func (c Config) scale() float32 { return float32(1 / math.Sqrt(float64(c.HeadDim))) }

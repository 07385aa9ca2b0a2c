package model

import (
	"math"

	"cotenant/internal/backend"
)

// frequencies returns the Dim/2 angles per position, in float64: float32 angles are off by 5e-4 at position 8,000.
func (r *RoPE) frequencies() []float64 {
	freqs := make([]float64, r.Dim/2)
	for i := range freqs {
		f := math.Pow(r.Theta, -2*float64(i)/float64(r.Dim))
		switch r.Scaling.Type {
		case ScalingLinear:
			f /= r.Scaling.Factor
		case ScalingLlama3:
			f = r.Scaling.llama3(f)
		}
		if len(r.Factors) != 0 {
			f /= float64(r.Factors[i])
		}
		freqs[i] = f
	}
	return freqs
}

// llama3 leaves frequencies whose wavelength is short against the original context, divides those whose wavelength is
// long by Factor, and blends between (transformers, modeling_rope_utils, _compute_llama3_parameters).
func (s *RoPEScaling) llama3(f float64) float64 {
	turns := float64(s.OriginalContext) * f / (2 * math.Pi) // rotations within the original context
	if turns < s.LowFreqFactor {
		return f / s.Factor
	}
	if turns > s.HighFreqFactor {
		return f
	}
	smooth := (turns - s.LowFreqFactor) / (s.HighFreqFactor - s.LowFreqFactor)
	return (1-smooth)*f/s.Factor + smooth*f
}

// tables returns cosines and sines for positions 0 … positions-1.
func (r *RoPE) tables(positions int) backend.RoPE {
	freqs := r.frequencies()
	t := backend.RoPE{
		Dim:         r.Dim,
		Interleaved: r.Interleaved,
		Cos:         make([]float32, positions*len(freqs)),
		Sin:         make([]float32, positions*len(freqs)),
	}
	i := 0
	for p := range positions {
		for _, f := range freqs {
			sin, cos := math.Sincos(float64(p) * f)
			t.Cos[i], t.Sin[i] = float32(cos), float32(sin)
			i++
		}
	}
	return t
}

package model

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"

	"cotenant/internal/backend"
	"cotenant/internal/weights"
)

// Load reads the model at path (a GGUF file, a safetensors file, a folder, or a repository in the local Hugging Face
// cache, as weights.Resolve finds it) and uploads it to be. On success the model owns be: Close closes it. On an error be
// stays the caller's, with whatever was uploaded, and must be closed before anything else is loaded.
func Load(path string, be backend.Backend, opt Options) (*Model, error) {
	resolved, err := weights.Resolve(path)
	if err != nil {
		return nil, fmt.Errorf("load model: %w", err)
	}
	f, err := weights.Open(resolved)
	if err != nil {
		return nil, fmt.Errorf("load model: %w", err)
	}
	m, err := fromFile(f, be, opt)
	if err != nil {
		return nil, fmt.Errorf("load model %s: %w", resolved, errors.Join(err, f.Close()))
	}
	return m, nil
}

// LoadBytes is Load for a GGUF file that is already in memory, called name in messages. gguf is borrowed and mustn't change
// until Close.
func LoadBytes(name string, gguf []byte, be backend.Backend, opt Options) (*Model, error) {
	f, err := weights.FromBytes(name, gguf)
	if err != nil {
		return nil, fmt.Errorf("load model: %w", err)
	}
	if f.Format() != weights.GGUF {
		return nil, fmt.Errorf("load model %s: not a GGUF file", name)
	}
	m, err := fromFile(f, be, opt)
	if err != nil {
		return nil, fmt.Errorf("load model %s: %w", name, err)
	}
	m.data = gguf
	return m, nil
}

// fromFile builds a model that owns f.
func fromFile(f *weights.File, be backend.Backend, opt Options) (*Model, error) {
	src, h, err := describe(f)
	if err != nil {
		return nil, err
	}
	tok, err := loadTokenizer(f, src.VocabSize) // before the weights: a model that can't be talked to is refused soon
	if err != nil {
		return nil, err
	}
	eos, err := mergeEOS(src.VocabSize, h.eos, tok.EOS())
	if err != nil {
		return nil, err
	}
	m, err := build(src, be, opt)
	if err != nil {
		return nil, err
	}
	m.tok, m.eos = tok, eos
	m.chat, m.noChat = loadTemplate(f, tok)
	m.file = f
	m.summarise(src)
	if _, ok := be.(backend.Copier); ok {
		return m, f.Forget()
	}
	return m, nil
}

// describe reads a file's configuration, checked against what its tensors show.
func describe(f *weights.File) (*source, hints, error) {
	if f.Format() == weights.GGUF {
		return describeGGUF(f, f)
	}
	return describeHF(f)
}

// sidecars is what a Hugging Face folder holds beside its tensors.
type sidecars interface {
	tensors
	Sidecar(name string) ([]byte, bool, error)
}

func describeHF(f sidecars) (*source, hints, error) {
	data, ok, err := f.Sidecar("config.json")
	if err != nil {
		return nil, hints{}, err
	}
	if !ok {
		return nil, hints{}, errors.New("config.json is missing: the folder isn't a whole Hugging Face model")
	}
	c, h, err := parseHF(data)
	if err != nil {
		return nil, h, err
	}
	generation, err := generationEOS(f)
	if err != nil {
		return nil, h, err
	}
	h.eos = append(h.eos, generation...)
	src := &source{Config: c, tensors: f, names: &hfNames}
	return src, h, src.settle(h)
}

func describeGGUF(meta metadata, t tensors) (*source, hints, error) {
	embed, ok := t.Tensor(ggufNames.embed)
	if !ok || len(embed.Shape) != 2 {
		// The architecture is the better message for a file of another kind.
		if arch, _, err := meta.String("general.architecture"); err == nil && arch != "" && !known(arch) {
			return nil, hints{}, unknownArch(arch)
		}
		return nil, hints{}, fmt.Errorf("tensor %s is missing or not a matrix", ggufNames.embed)
	}
	c, h, err := parseGGUF(meta, embed.Shape[0])
	if err != nil {
		return nil, h, err
	}
	if factors, ok := t.Tensor(ggufNames.ropeFactors); ok {
		if c.RoPE.Factors, err = float32s(factors); err != nil {
			return nil, h, err
		}
	}
	src := &source{Config: c, tensors: t, names: &ggufNames}
	return src, h, src.settle(h)
}

// float32s copies a short vector of F32.
func float32s(t weights.Tensor) ([]float32, error) {
	if t.Type != weights.F32 || len(t.Shape) != 1 || t.Shape[0] > maxHeadDim {
		return nil, fmt.Errorf("tensor %s is %v of shape %v, want a short vector of F32", t.Name, t.Type, t.Shape)
	}
	out := make([]float32, t.Shape[0])
	for i := range out {
		out[i] = math.Float32frombits(binary.LittleEndian.Uint32(t.Data[4*i:]))
	}
	return out, nil
}

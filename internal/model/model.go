// Package model computes decoders of the architectures llama, qwen2 and qwen3 on a backend: it reads their configuration
// and tensors from a GGUF file or a Hugging Face folder, refuses what it would compute wrongly, and turns batches of
// tokens into logits.
package model

import (
	"errors"
	"fmt"

	"cotenant/internal/backend"
	"cotenant/internal/chat"
	"cotenant/internal/tokenizer"
	"cotenant/internal/weights"
)

// Options bound the memory of a model's workspace. The zero value takes the defaults.
type Options struct {
	// ContextLength is how many positions a sequence may have; 0 takes the model's own, but at most 131,072, since rotary
	// tables grow with it. More than the model's own is refused.
	ContextLength int
	// MaxBatchTokens is how many rows one Forward takes; 0 is 512.
	MaxBatchTokens int
	// OutputChunk is how many rows go through the LM head at a time. Forward takes any number of outputs; the workspace holds this
	// many rows of logits. 0 is 64, or fewer where the vocabulary makes them larger than 32 MiB.
	OutputChunk int
}

const (
	defaultContext     = 128 << 10 // at most, where none is asked for
	defaultBatchTokens = 512
	maxWorkspaceBytes  = 4 << 30 // a small file could ask for much more
	defaultOutputChunk = 64
	maxLogitsFloats    = 8 << 20 // 32 MiB of float32
)

// Model is a decoder whose weights lie on one backend. Like the backend, it belongs to one goroutine: only Config,
// ContextLength, MaxBatchTokens, KVBytesPerToken, Tokenizer, Template, EOS, Info and Digest may be called from others.
type Model struct {
	cfg    Config
	ctx    int
	be     backend.Backend
	attn   backend.Attention
	rope   backend.RoPEHandle
	embed  backend.Matrix
	head   backend.Matrix // embed where tied
	norm   backend.Vector
	layer  []layer
	work   workspace
	drawn  int // choices of the latest Start
	eos    []int32
	file   *weights.File
	info   Info
	data   []byte // the file, where it was in memory
	tok    *tokenizer.Tokenizer
	chat   *chat.Template
	noChat error // why chat is nil
}

// layer is one decoder layer's weights; biases and head norms are nil where the model has none.
type layer struct {
	attnNorm, ffnNorm backend.Vector // [Hidden]
	qkv               backend.Matrix // [QKVWidth, Hidden]: queries, keys, values
	qkvBias           backend.Vector // [QKVWidth]
	qNorm, kNorm      backend.Vector // [HeadDim]
	out               backend.Matrix // [Hidden, Heads*HeadDim]
	outBias           backend.Vector // [Hidden]
	gateUp            backend.Matrix // [2*FFN, Hidden]: gate, up
	gateUpBias        backend.Vector // [2*FFN]
	down              backend.Matrix // [Hidden, FFN]
	downBias          backend.Vector // [Hidden]
}

// StepBytes is how many bytes of weight matrices a step of one row reads: all but a table of embeddings that isn't the head too.
func (m *Model) StepBytes() int64 {
	n := m.head.Bytes()
	for i := range m.layer {
		l := &m.layer[i]
		n += l.qkv.Bytes() + l.out.Bytes() + l.gateUp.Bytes() + l.down.Bytes()
	}
	return n
}

// Config returns the model's shape.
func (m *Model) Config() Config { return m.cfg }

// ContextLength is how many positions a sequence may have: Options.ContextLength or the model's own.
func (m *Model) ContextLength() int { return m.ctx }

// MaxBatchTokens is how many rows one Forward takes.
func (m *Model) MaxBatchTokens() int { return m.work.tokens }

// EOS lists the tokens that end an answer, ascending: all that the file's parts name (config.json,
// generation_config.json, GGUF's eos and eot). It may be empty. The caller doesn't modify it.
func (m *Model) EOS() []int32 { return m.eos }

// Tokenizer returns the model's tokenizer. It is safe for concurrent use, and outlives the model. Ids from its VocabSize to
// Config().VocabSize have logits, of padding that was never trained: they mustn't be chosen.
func (m *Model) Tokenizer() *tokenizer.Tokenizer { return m.tok }

// Template returns the model's chat template, nil where TemplateError says why there is none. It is safe for concurrent use.
func (m *Model) Template() *chat.Template { return m.chat }

// TemplateError says why the model has no chat template: its file has none, or one that this program can't run. Such a
// model still completes plain text. It is nil where Template isn't.
func (m *Model) TemplateError() error { return m.noChat }

// NewKV allocates paged memory for keys and values of all layers.
func (m *Model) NewKV(pageSize, pages int) (backend.KV, error) {
	if pageSize < 1 || pages < 1 {
		return nil, fmt.Errorf("KV memory of %d pages of %d tokens", pages, pageSize)
	}
	kv, err := m.be.KV(m.kvConfig(pageSize, pages))
	if err != nil {
		return nil, fmt.Errorf("KV memory of %d pages of %d tokens: %w", pages, pageSize, err)
	}
	return kv, nil
}

// KVBytesPerToken is how much KV memory one token takes in all layers, in the backend's number format.
func (m *Model) KVBytesPerToken() int64 {
	const tokens = 4096 // enough for padding of the whole to vanish
	return m.be.KVBytes(m.kvConfig(tokens, 1)) / tokens
}

func (m *Model) kvConfig(pageSize, pages int) backend.KVConfig {
	return backend.KVConfig{
		Layers: m.cfg.Layers, KVHeads: m.cfg.KVHeads, HeadDim: m.cfg.HeadDim, PageSize: pageSize, Pages: pages,
	}
}

// Close closes the backend, which may read weights from the file's mapping until then, and unmaps the file.
func (m *Model) Close() error {
	return errors.Join(m.be.Close(), m.file.Close())
}

package engine

import (
	"cotenant/internal/backend"
	"cotenant/internal/chat"
	"cotenant/internal/model"
	"cotenant/internal/tokenizer"
)

// Model is what an Engine needs of a model; *model.Model is one. Forward and NewKV are called on the engine's thread alone,
// the others from any.
type Model interface {
	// Forward computes the rows of b, stores their keys and values in kv and writes the logits of the rows b.Outputs to
	// logits [len(b.Outputs), LogitsWidth]. An error means that the model can't be used any more.
	Forward(kv backend.KV, b *backend.Batch, logits []float32) error
	NewKV(pageSize, pages int) (backend.KV, error)
	KVBytesPerToken() int64
	ContextLength() int
	MaxBatchTokens() int
	EOS() []int32 // tokens that end an answer
}

// chooser is a Model that can choose tokens where it computes, and go on while they are on their way; *model.Model is one.
type chooser interface {
	Draws() int // rows of a step that it can choose for; 0: it can't
	// Start is Forward with a choice for each output, which Wait delivers, -1 where the logits are not finite. Another Start may
	// come before that; in it the token ^i stands for the i-th choice of this one.
	Start(kv backend.KV, b *backend.Batch, vocab int, draws []backend.Draw) error
	// Wait returns the choices of the earliest Start with outputs without one.
	Wait(ids []int32) error
}

// Device says what a model runs on; a backend.Backend is one. It is called on the engine's thread.
type Device interface {
	Info() backend.Info
	Memory() []backend.Memory
}

// Runtime is what an Engine computes with.
type Runtime struct {
	Model       Model
	Device      Device
	StepBytes   int64 // of weights that a step of one row reads
	LogitsWidth int   // of a row of logits; ids from the tokenizer's size on are padding, and never chosen
	Tokenizer   *tokenizer.Tokenizer
	Template    *chat.Template // nil: chats are refused, with NoTemplate as the reason where it isn't nil
	NoTemplate  error
	Close       func() error // nil: nothing to close
}

// FromModel makes a Runtime of a model and the backend that it was loaded to; it owns both.
func FromModel(m *model.Model, be backend.Backend) Runtime {
	return Runtime{
		Model: m, Device: be, StepBytes: m.StepBytes(), LogitsWidth: m.Config().VocabSize, Tokenizer: m.Tokenizer(),
		Template: m.Template(), NoTemplate: m.TemplateError(), Close: m.Close,
	}
}

func (r *Runtime) close() error {
	if r.Close == nil {
		return nil
	}
	return r.Close()
}

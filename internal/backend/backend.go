// Package backend is the one seam between a model and a device: buffers, weights, paged KV memory and the operations of
// a decoder layer.
//
// A backend belongs to one goroutine (for CUDA: locked to one OS thread); no method may be called concurrently. A step is
// Begin, operations in order, Read of what is wanted, End. Operations may be asynchronous: arguments that are device
// handles stay valid until Close, host slices passed to Begin are copied before it returns. An operation does not report
// errors; the first one is kept and returned by Read and End. Shapes that do not fit together are programming errors
// and panic with a message that names the operation.
package backend

import "cotenant/internal/weights"

// Matrix is a weight of Rows × Cols kept in the format of its file where the backend can compute with it.
// It is used as y = x·Wᵀ: Rows outputs, Cols inputs.
type Matrix interface {
	Rows() int
	Cols() int
	// Bytes is what a product of one row reads of it.
	Bytes() int64
}

// Vector is a float32 weight: a norm's scale or a bias.
type Vector interface{ Len() int }

// Buffer is device memory for Len float32 activations, row-major [rows, width] as the operation says.
type Buffer interface{ Len() int }

// KV is the paged memory for keys and values of all layers.
type KV interface {
	Config() KVConfig
	Bytes() int64
}

// KVConfig is the shape of paged KV memory. A slot is page*PageSize + offset in the page.
type KVConfig struct {
	Layers, KVHeads, HeadDim int
	PageSize                 int // tokens in a page
	Pages                    int
}

// Attention is the shape of a layer's attention. A row of a qkv buffer is
// [Heads*HeadDim queries | KVHeads*HeadDim keys | KVHeads*HeadDim values].
type Attention struct {
	Heads, KVHeads, HeadDim int
	Scale                   float32 // multiplies q·k, usually 1/sqrt(HeadDim)
}

// QKVWidth is the width of a qkv row.
func (a Attention) QKVWidth() int { return (a.Heads + 2*a.KVHeads) * a.HeadDim }

// RoPE holds rotary embedding tables, [positions, dim/2] float32 each, computed on the host in float64 (attention
// scaling folded in). Dim is how many leading elements of a head rotate. Interleaved pairs elements (2i, 2i+1), as GGUF
// stores the llama architecture; else (i, i+Dim/2), as Hugging Face and NeoX do.
type RoPE struct {
	Dim         int
	Interleaved bool
	Cos, Sin    []float32
}

// Batch is the work of one step: rows of tokens, grouped by sequence.
type Batch struct {
	Tokens    []int32 // [rows]; what is below 0 is explained at Sampler
	Positions []int32 // [rows] position in the sequence, from 0
	Slots     []int32 // [rows] KV slot that receives the row's key and value
	Seqs      []Seq   // consecutive, covering all rows
	Outputs   []int32 // rows whose logits are wanted, ascending
}

// Seq is one sequence's rows in a Batch.
type Seq struct {
	Row, Rows int     // first row and number of rows
	Past      int     // tokens already in KV before Row; a row at index i attends to Past+i+1 tokens
	Pages     []int32 // block table: page of token t is Pages[t/PageSize]
}

// Info describes a backend for people and for /metrics.
type Info struct {
	Name     string   // "cpu", "cuda"
	Device   string   // processor or GPU name
	Features []string // code paths chosen at start, for instance "avx2+fma"
	Threads  int      // 0 where it has no meaning
}

// Memory is how many bytes the backend holds, by kind.
type Memory struct {
	Kind  string // weights, weights_mapped, kv, workspace, rope, …
	Bytes int64
}

// Kinds of Memory that the backend doesn't hold, where its device has memory of its own: what is free, and what all others hold (the
// device's own contexts, other processes).
const (
	MemoryFree  = "free"
	MemoryOther = "other"
)

// Backend runs a model's operations on one device.
type Backend interface {
	Info() Info
	Memory() []Memory

	// Matrix makes a weight from parts stacked along rows (q, k, v; gate, up); all have equal cols, and may differ in
	// format. The backend may keep Data (the caller keeps the mapping until Close) or copy it.
	Matrix(parts ...weights.Tensor) (Matrix, error)
	// Vector makes a float32 weight from parts laid end to end.
	Vector(parts ...weights.Tensor) (Vector, error)
	// Buffer allocates n float32.
	Buffer(n int) (Buffer, error)
	// KV allocates paged memory; pages need not be zeroed.
	KV(KVConfig) (KV, error)
	// KVBytes returns how many bytes KV would allocate; it allocates nothing.
	KVBytes(KVConfig) int64
	// RoPE uploads tables.
	RoPE(RoPE) (RoPEHandle, error)

	// Begin starts a step for a batch of at least one row.
	Begin(*Batch) error
	// Embed writes row Tokens[i] of m to row i of dst [rows, m.Cols()].
	Embed(dst Buffer, m Matrix)
	// RMSNorm writes x/sqrt(mean(x²)+eps)*w for each of rows rows of width w.Len(). dst may be x.
	RMSNorm(dst, x Buffer, rows int, w Vector, eps float32)
	// MatMul computes dst [rows, m.Rows()] = x [rows, m.Cols()]·mᵀ + bias (nil: none), or adds that to dst where
	// accumulate is set. dst may not be x. A row's result does not depend on the other rows, nor on how many there are.
	MatMul(dst, x Buffer, rows int, m Matrix, bias Vector, accumulate bool)
	// HeadNorm applies RMSNorm over HeadDim to each query head (weight q) and key head (weight k) of all rows, in place.
	HeadNorm(qkv Buffer, a Attention, q, k Vector, eps float32)
	// RoPEStore rotates queries and keys of all rows in place by Positions and writes keys and values to Slots of layer.
	RoPEStore(qkv Buffer, a Attention, r RoPEHandle, kv KV, layer int)
	// Attention writes causal softmax(q·K·Scale)·V of each row over its sequence's pages to dst [rows, Heads*HeadDim].
	Attention(dst, qkv Buffer, a Attention, kv KV, layer int)
	// SwiGLU writes silu(gate)*up to dst [rows, width] from a buffer whose rows are [gate (width) | up (width)].
	SwiGLU(dst, gateUp Buffer, rows, width int)
	// Gather copies rows Outputs[first], …, Outputs[first+n-1] of x [rows, width] to the first n rows of dst. dst may not
	// be x.
	Gather(dst, x Buffer, width, first, n int)
	// Read waits for the operations before it and copies the first len(dst) elements of src.
	Read(dst []float32, src Buffer) error
	// End finishes the step and returns its first error.
	End() error

	// Close releases everything made by this backend.
	Close() error
}

// RoPEHandle is an uploaded RoPE table.
type RoPEHandle interface{ Positions() int }

// Draw says how a token is chosen from a row of logits. The order of things is engine's sampler's: adjustments, penalties; the
// largest logit where Temperature is 0; else min_p, top_k, top_p and a draw with the number of Seed, Choice and Position.
type Draw struct {
	Temperature, TopP, MinP         float32
	TopK                            int32 // 0: no bound
	Seed                            uint64
	Choice, Position                int32
	Repetition, Frequency, Presence float32 // 1, 0 and 0: no penalty
	Adjust                          []Adjustment
}

// Adjustment changes one token's logit; a token occurs once in a Draw.
type Adjustment struct {
	ID    int32
	Ban   bool    // ruled out
	Seen  bool    // penalties apply
	Bias  float32 // added first
	Count int32   // times in the answer
}

// Sampler is a Backend that chooses tokens where the logits are, so that nothing but ids leaves the device. It doesn't wait for them:
// a step may begin while the one before still runs, and in its Batch the token ^i stands for the i-th id of the latest Sample.
type Sampler interface {
	// Sample chooses a token below vocab for each row of logits [len(draws), width]; -1 where a row is not finite below vocab. It
	// may change logits. At most two may be without their Wait.
	Sample(logits Buffer, width, vocab int, draws []Draw)
	// Wait waits for the earliest Sample without one, and copies what it chose. An error may be of any operation so far.
	Wait(ids []int32) error
}

// Budgeter is a Backend whose memory others share: it says how many bytes paged KV memory may take of what is free.
type Budgeter interface{ KVBudget() (int64, error) }

// Copier is a Backend that keeps no reference to Data of the tensors that it was given.
type Copier interface{ CopiesWeights() }

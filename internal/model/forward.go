package model

import (
	"errors"
	"fmt"

	"cotenant/internal/backend"
)

// workspace is the memory of activations, allocated once. Widths are those of Config.
type workspace struct {
	tokens, outputs int // rows of a batch; rows through the LM head at a time

	x      backend.Buffer // [tokens, Hidden] residual
	normed backend.Buffer // [tokens, Hidden]
	qkv    backend.Buffer // [tokens, QKVWidth]
	heads  backend.Buffer // [tokens, Heads*HeadDim] attention's output
	gateUp backend.Buffer // [tokens, 2*FFN]
	ffn    backend.Buffer // [tokens, FFN]

	// The same for the rows whose logits are wanted, in the last layer and after it.
	outX, outNormed backend.Buffer // [outputs, Hidden]
	outHeads        backend.Buffer // [outputs, Heads*HeadDim]
	logits          backend.Buffer // [outputs, VocabSize]
}

func newWorkspace(be backend.Backend, c *Config, opt Options) (workspace, error) {
	w := workspace{tokens: opt.MaxBatchTokens, outputs: opt.OutputChunk}
	if w.tokens == 0 {
		w.tokens = defaultBatchTokens
	}
	if w.outputs == 0 {
		w.outputs = min(defaultOutputChunk, max(1, maxLogitsFloats/c.VocabSize))
	}
	if w.tokens < 1 || w.tokens > 1<<16 || w.outputs < 1 {
		return w, fmt.Errorf("%d tokens a batch and %d rows through the LM head", w.tokens, w.outputs)
	}
	w.outputs = min(w.outputs, w.tokens)
	heads := c.Heads * c.HeadDim
	buffers := []struct {
		dst         *backend.Buffer
		rows, width int
	}{
		{&w.x, w.tokens, c.Hidden},
		{&w.normed, w.tokens, c.Hidden},
		{&w.qkv, w.tokens, heads + 2*c.KVHeads*c.HeadDim},
		{&w.heads, w.tokens, heads},
		{&w.gateUp, w.tokens, 2 * c.FFN},
		{&w.ffn, w.tokens, c.FFN},
		{&w.outX, w.outputs, c.Hidden},
		{&w.outNormed, w.outputs, c.Hidden},
		{&w.outHeads, w.outputs, heads},
		{&w.logits, w.outputs, c.VocabSize},
	}
	var bytes int64
	for _, b := range buffers {
		bytes += 4 * int64(b.rows) * int64(b.width)
	}
	if bytes > maxWorkspaceBytes {
		return w, fmt.Errorf("activations of %d tokens a step would take %d MiB: take fewer tokens a step", w.tokens, bytes>>20)
	}
	for _, b := range buffers {
		buf, err := be.Buffer(b.rows * b.width)
		if err != nil {
			return w, fmt.Errorf("workspace of %d rows: %w", w.tokens, err)
		}
		*b.dst = buf
	}
	return w, nil
}

// Forward runs one step: it computes all rows of b, stores their keys and values in kv, and writes the logits of the rows
// b.Outputs to logits [len(b.Outputs), VocabSize]. b may have up to MaxBatchTokens rows, of any number of sequences. A row's
// logits don't depend on what else is in the batch. An error before the step (a batch that doesn't fit together) leaves
// the model usable; an error of the backend doesn't.
func (m *Model) Forward(kv backend.KV, b *backend.Batch, logits []float32) error {
	vocab := m.cfg.VocabSize
	if len(logits) != len(b.Outputs)*vocab {
		return fmt.Errorf("forward: room for %d logits, %d outputs of %d", len(logits), len(b.Outputs), vocab)
	}
	return m.run(kv, b, 0, func(first, n int) error { return m.be.Read(logits[first*vocab:(first+n)*vocab], m.work.logits) })
}

// Draws is how many rows of a step the backend can choose tokens for, by Start; 0 where it can't.
func (m *Model) Draws() int {
	if _, ok := m.be.(backend.Sampler); ok {
		return m.work.outputs
	}
	return 0
}

// Start is Forward where tokens below vocab are chosen on the device, by draws[i] for row b.Outputs[i], and not waited for: Wait
// returns them. Another Start may come before, whose tokens ^i stand for the i-th choice of this one.
func (m *Model) Start(kv backend.KV, b *backend.Batch, vocab int, draws []backend.Draw) error {
	s, ok := m.be.(backend.Sampler)
	if !ok {
		return errors.New("start: the backend has no sampler")
	}
	if len(draws) != len(b.Outputs) || len(draws) > m.work.outputs || vocab < 1 || vocab > m.cfg.VocabSize {
		return fmt.Errorf("start: %d draws, %d outputs of at most %d, vocabulary %d of %d", len(draws), len(b.Outputs), m.work.outputs, vocab, m.cfg.VocabSize)
	}
	known := m.drawn
	m.drawn = len(draws)
	return m.run(kv, b, known, func(first, n int) error {
		s.Sample(m.work.logits, m.cfg.VocabSize, vocab, draws)
		return nil
	})
}

// Wait returns what the earliest Start without a Wait chose, -1 where a row's logits aren't finite. A Start without outputs has none.
func (m *Model) Wait(ids []int32) error {
	if err := m.be.(backend.Sampler).Wait(ids); err != nil {
		return fmt.Errorf("wait: %w", err)
	}
	return nil
}

// run computes a step and calls take for each part of the outputs whose logits are in work.logits. Tokens may stand for drawn
// choices.
func (m *Model) run(kv backend.KV, b *backend.Batch, drawn int, take func(first, n int) error) error {
	if err := m.check(kv.Config(), b, drawn); err != nil {
		return fmt.Errorf("forward: %w", err)
	}
	if err := m.be.Begin(b); err != nil {
		return fmt.Errorf("forward: begin: %w", err)
	}
	m.be.Embed(m.work.x, m.embed)
	rows, last := len(b.Tokens), len(m.layer)-1
	for i := range m.layer {
		m.attention(kv, i, rows)
		if i < last {
			l := &m.layer[i]
			m.be.MatMul(m.work.x, m.work.heads, rows, l.out, l.outBias, true)
			m.feedForward(l, m.work.x, m.work.normed, rows)
		}
	}
	// Rows whose logits nobody wants are done: keys and values of the last layer are stored.
	for first := 0; first < len(b.Outputs); first += m.work.outputs {
		n := min(m.work.outputs, len(b.Outputs)-first)
		m.outputs(first, n)
		if err := take(first, n); err != nil {
			_ = m.be.End() // repeats the step's first error
			return fmt.Errorf("forward: %w", err)
		}
	}
	if err := m.be.End(); err != nil {
		return fmt.Errorf("forward: %w", err)
	}
	return nil
}

// attention computes layer i's attention of work.x into work.heads, short of its output projection.
func (m *Model) attention(kv backend.KV, i, rows int) {
	l, w := &m.layer[i], &m.work
	m.be.RMSNorm(w.normed, w.x, rows, l.attnNorm, m.cfg.RMSEps)
	m.be.MatMul(w.qkv, w.normed, rows, l.qkv, l.qkvBias, false)
	if l.qNorm != nil {
		m.be.HeadNorm(w.qkv, m.attn, l.qNorm, l.kNorm, m.cfg.RMSEps)
	}
	m.be.RoPEStore(w.qkv, m.attn, m.rope, kv, i)
	m.be.Attention(w.heads, w.qkv, m.attn, kv, i)
}

// feedForward adds a layer's feed-forward of x to x; normed is memory of the same size.
func (m *Model) feedForward(l *layer, x, normed backend.Buffer, rows int) {
	w := &m.work
	m.be.RMSNorm(normed, x, rows, l.ffnNorm, m.cfg.RMSEps)
	m.be.MatMul(w.gateUp, normed, rows, l.gateUp, l.gateUpBias, false)
	m.be.SwiGLU(w.ffn, w.gateUp, rows, m.cfg.FFN)
	m.be.MatMul(x, w.ffn, rows, l.down, l.downBias, true)
}

// outputs finishes the last layer for n of the wanted rows, down to their logits.
func (m *Model) outputs(first, n int) {
	l, w := &m.layer[len(m.layer)-1], &m.work
	m.be.Gather(w.outX, w.x, m.cfg.Hidden, first, n)
	m.be.Gather(w.outHeads, w.heads, m.cfg.Heads*m.cfg.HeadDim, first, n)
	m.be.MatMul(w.outX, w.outHeads, n, l.out, l.outBias, true)
	m.feedForward(l, w.outX, w.outNormed, n)
	m.be.RMSNorm(w.outNormed, w.outX, n, m.norm, m.cfg.RMSEps)
	m.be.MatMul(w.logits, w.outNormed, n, m.head, nil, false)
}

// check reports a batch that doesn't fit together, the model or its KV memory: the backend would panic or read another
// sequence's memory.
func (m *Model) check(kv backend.KVConfig, b *backend.Batch, drawn int) error {
	rows := len(b.Tokens)
	if want := m.kvConfig(kv.PageSize, kv.Pages); kv != want {
		return fmt.Errorf("KV memory is of shape %+v, the model's is %+v", kv, want)
	}
	if rows < 1 || rows > m.work.tokens {
		return fmt.Errorf("%d rows, must be from 1 to %d", rows, m.work.tokens)
	}
	if len(b.Positions) != rows || len(b.Slots) != rows {
		return fmt.Errorf("%d tokens, %d positions, %d slots", rows, len(b.Positions), len(b.Slots))
	}
	for i, r := range b.Outputs {
		if r < 0 || int(r) >= rows || i > 0 && r <= b.Outputs[i-1] {
			return fmt.Errorf("output %d is row %d: rows must ascend and be below %d", i, r, rows)
		}
	}
	for i, t := range b.Tokens {
		if t < 0 && int(^t) >= drawn || int(t) >= m.cfg.VocabSize {
			return fmt.Errorf("row %d: token %d is not below the vocabulary's %d", i, t, m.cfg.VocabSize)
		}
		if p := b.Positions[i]; p < 0 || int(p) >= m.ctx {
			return fmt.Errorf("row %d: position %d is not below the context's %d", i, p, m.ctx)
		}
	}
	next := 0
	for i := range b.Seqs {
		s := &b.Seqs[i]
		if s.Row != next || s.Rows < 1 || s.Rows > rows-next {
			return fmt.Errorf("sequence %d has %d rows from %d, the one before ends at %d of %d", i, s.Rows, s.Row, next, rows)
		}
		if err := checkSeq(kv, b, s); err != nil {
			return fmt.Errorf("sequence %d: %w", i, err)
		}
		next += s.Rows
	}
	if next != rows {
		return fmt.Errorf("the sequences cover %d of %d rows", next, rows)
	}
	return nil
}

// checkSeq checks that s's rows are consecutive positions, each stored where the block table says.
func checkSeq(kv backend.KVConfig, b *backend.Batch, s *backend.Seq) error {
	if s.Past < 0 || (s.Past+s.Rows-1)/kv.PageSize >= len(s.Pages) {
		return fmt.Errorf("%d pages of %d tokens for %d past and %d more", len(s.Pages), kv.PageSize, s.Past, s.Rows)
	}
	for i, p := range s.Pages {
		if p < 0 || int(p) >= kv.Pages {
			return fmt.Errorf("page %d is number %d of %d", i, p, kv.Pages)
		}
	}
	for i := range s.Rows {
		t := s.Past + i
		if got := int(b.Positions[s.Row+i]); got != t {
			return fmt.Errorf("row %d has position %d, its place in the sequence is %d", s.Row+i, got, t)
		}
		slot := int(s.Pages[t/kv.PageSize])*kv.PageSize + t%kv.PageSize
		if got := int(b.Slots[s.Row+i]); got != slot {
			return fmt.Errorf("row %d stores to slot %d, its page has slot %d", s.Row+i, got, slot)
		}
	}
	return nil
}

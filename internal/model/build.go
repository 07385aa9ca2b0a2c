package model

import (
	"errors"
	"fmt"
	"slices"

	"cotenant/internal/backend"
	"cotenant/internal/weights"
)

// tensors finds a file's tensors by name.
type tensors interface {
	Tensor(name string) (weights.Tensor, bool)
	Tensors() []weights.Tensor
}

// source is a model file as this package reads it: what it says of its shape, its tensors, and their names.
type source struct {
	Config
	tensors tensors
	names   *naming
}

// builder uploads weights; the first error is kept.
type builder struct {
	src  *source
	be   backend.Backend
	used map[string]bool
	err  error
}

// build uploads all weights of src to be and allocates the workspace.
func build(src *source, be backend.Backend, opt Options) (*Model, error) {
	c := src.Config
	if err := c.Validate(); err != nil {
		return nil, err
	}
	m := &Model{cfg: c, ctx: min(c.ContextLength, defaultContext), be: be, layer: make([]layer, c.Layers)}
	if opt.ContextLength != 0 {
		if opt.ContextLength < 1 || opt.ContextLength > c.ContextLength {
			return nil, fmt.Errorf("a context of %d tokens: the model was made for %d", opt.ContextLength, c.ContextLength)
		}
		m.ctx = opt.ContextLength
	}
	m.attn = backend.Attention{Heads: c.Heads, KVHeads: c.KVHeads, HeadDim: c.HeadDim, Scale: c.scale()}

	b := builder{src: src, be: be, used: map[string]bool{}}
	m.embed = b.matrix(-1, c.Hidden, part{src.names.embed, c.VocabSize})
	m.norm = b.vector(-1, part{src.names.norm, c.Hidden})
	if m.head = m.embed; !c.Tied {
		m.head = b.matrix(-1, c.Hidden, part{src.names.head, c.VocabSize})
	}
	for i := range m.layer {
		if m.layer[i] = b.layer(i); b.err != nil {
			return nil, b.err
		}
	}
	if err := errors.Join(b.err, b.leftover()); err != nil {
		return nil, err
	}
	var err error
	if m.rope, err = be.RoPE(c.RoPE.tables(m.ctx)); err != nil {
		return nil, fmt.Errorf("rotary tables of %d positions: %w", m.ctx, err)
	}
	if m.work, err = newWorkspace(be, &c, opt); err != nil {
		return nil, err
	}
	return m, nil
}

// part is one tensor of a stacked weight.
type part struct {
	name string
	rows int
}

func (b *builder) layer(i int) layer {
	c, n := &b.src.Config, b.src.names
	q, kv := c.Heads*c.HeadDim, c.KVHeads*c.HeadDim
	weight := func(pattern string, rows int) part { return part{inLayer(pattern, i) + ".weight", rows} }
	bias := func(pattern string, rows int) part { return part{inLayer(pattern, i) + ".bias", rows} }
	l := layer{
		attnNorm: b.vector(i, part{inLayer(n.attnNorm, i), c.Hidden}),
		ffnNorm:  b.vector(i, part{inLayer(n.ffnNorm, i), c.Hidden}),
		qkv:      b.matrix(i, c.Hidden, weight(n.q, q), weight(n.k, kv), weight(n.v, kv)),
		out:      b.matrix(i, q, weight(n.out, c.Hidden)),
		gateUp:   b.matrix(i, c.Hidden, weight(n.gate, c.FFN), weight(n.up, c.FFN)),
		down:     b.matrix(i, c.FFN, weight(n.down, c.Hidden)),
	}
	if c.QKNorm {
		l.qNorm = b.vector(i, part{inLayer(n.qNorm, i), c.HeadDim})
		l.kNorm = b.vector(i, part{inLayer(n.kNorm, i), c.HeadDim})
	}
	if c.QKVBias {
		l.qkvBias = b.vector(i, bias(n.q, q), bias(n.k, kv), bias(n.v, kv))
	}
	if c.OutBias {
		l.outBias = b.vector(i, bias(n.out, c.Hidden))
	}
	if c.MLPBias {
		l.gateUpBias = b.vector(i, bias(n.gate, c.FFN), bias(n.up, c.FFN))
		l.downBias = b.vector(i, bias(n.down, c.Hidden))
	}
	return l
}

// matrix uploads parts stacked along rows. Layer is for messages, -1 for none.
func (b *builder) matrix(layer, cols int, parts ...part) backend.Matrix {
	ts := b.take(layer, parts, cols)
	if b.err != nil {
		return nil
	}
	m, err := b.be.Matrix(ts...)
	if err != nil {
		b.fail(layer, parts[0].name, err)
	}
	return m
}

// vector uploads parts laid end to end.
func (b *builder) vector(layer int, parts ...part) backend.Vector {
	ts := b.take(layer, parts)
	if b.err != nil {
		return nil
	}
	v, err := b.be.Vector(ts...)
	if err != nil {
		b.fail(layer, parts[0].name, err)
	}
	return v
}

// take finds the parts and checks their shapes: [rows, cols…].
func (b *builder) take(layer int, parts []part, cols ...int) []weights.Tensor {
	if b.err != nil {
		return nil
	}
	ts := make([]weights.Tensor, 0, len(parts))
	for _, p := range parts {
		t, ok := b.src.tensors.Tensor(p.name)
		want := append([]int{p.rows}, cols...)
		switch {
		case !ok:
			b.fail(layer, p.name, errors.New("is missing"))
		case !slices.Equal(t.Shape, want):
			b.fail(layer, p.name, fmt.Errorf("has shape %v, the configuration wants %v", t.Shape, want))
		}
		b.used[p.name] = true
		ts = append(ts, t)
	}
	return ts
}

func (b *builder) fail(layer int, tensor string, err error) {
	if b.err != nil {
		return
	}
	if layer < 0 {
		b.err = fmt.Errorf("tensor %s: %w", tensor, err)
	} else {
		b.err = fmt.Errorf("layer %d: tensor %s: %w", layer, tensor, err)
	}
}

// leftover refuses tensors that the forward pass would leave out: adapters, experts, scales of quantised weights, a
// layer beyond the configured ones.
func (b *builder) leftover() error {
	n := b.src.names
	for _, name := range []string{n.head, n.ropeFactors} { // redundant where tied; read with the configuration
		b.used[name] = true
	}
	for _, pattern := range n.ignored {
		for i := range b.src.Layers {
			b.used[inLayer(pattern, i)] = true
		}
	}
	var extra []string
	for _, t := range b.src.tensors.Tensors() {
		if !b.used[t.Name] {
			extra = append(extra, t.Name)
		}
	}
	if len(extra) == 0 {
		return nil
	}
	slices.Sort(extra)
	return fmt.Errorf("%d tensors that architecture %s doesn't use, the first is %.80q: the model is of a kind that is not supported",
		len(extra), b.src.Arch, extra[0])
}

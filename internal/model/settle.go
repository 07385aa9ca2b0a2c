package model

import (
	"fmt"
	"slices"
)

// hints are what a file says of things that its tensors show too. A pointer is nil where it says nothing.
type hints struct {
	attentionBias, mlpBias, tied *bool
	eos                          []int32
}

// settle sets the biases and the tied head from the tensors of the first layer, and refuses a file whose configuration
// says otherwise. That a tensor is in every layer and no other one is left over is build's to see.
func (s *source) settle(h hints) error {
	has := func(pattern string) bool {
		_, ok := s.tensors.Tensor(inLayer(pattern, 0) + ".bias")
		return ok
	}
	n := s.names
	s.QKVBias = s.Arch == ArchQwen2 || has(n.q) || has(n.k) || has(n.v)
	s.OutBias = has(n.out)
	s.MLPBias = has(n.gate) || has(n.up) || has(n.down)
	if h.attentionBias != nil && s.Arch != ArchQwen2 { // qwen2 has its biases, whatever the key says
		if !*h.attentionBias && (s.QKVBias || s.OutBias) {
			return fmt.Errorf("attention_bias is false, but layer 0 has attention biases")
		}
		s.QKVBias, s.OutBias = *h.attentionBias, *h.attentionBias
	}
	if h.mlpBias != nil {
		if !*h.mlpBias && s.MLPBias {
			return fmt.Errorf("mlp_bias is false, but layer 0 has feed-forward biases")
		}
		s.MLPBias = *h.mlpBias
	}
	_, head := s.tensors.Tensor(n.head)
	s.Tied = !head
	if h.tied != nil {
		s.Tied = *h.tied // false without a head: build names the missing tensor; true with one: it is redundant
	}
	return nil
}

// mergeEOS returns the union of lists, ascending, and refuses ids outside the vocabulary.
func mergeEOS(vocab int, lists ...[]int32) ([]int32, error) {
	all := slices.Concat(lists...)
	slices.Sort(all)
	all = slices.Compact(all)
	for _, id := range all {
		if id < 0 || int(id) >= vocab {
			return nil, fmt.Errorf("end token %d is not below the vocabulary's %d", id, vocab)
		}
	}
	return all, nil
}

package kernels

import (
	"fmt"
	"math/bits"
)

// Heads is the shape of a layer's attention.
type Heads struct {
	Heads, KVHeads int // query heads, a multiple of the key heads
	Dim            int // elements of a head
}

const (
	decodeSplit  = 256 // tokens in a part of a sequence, at least
	decodeSplits = 16  // parts, at most
	decodeHeads  = 8   // query heads in a block
	prefillRows  = 64  // rows in a block
)

// CheckAttention says why the kernels can't compute an attention of this shape over pages of so many tokens.
func CheckAttention(h Heads, pageSize int) error {
	switch {
	case h.Dim != 64 && h.Dim != 128:
		return fmt.Errorf("no attention kernel for heads of %d elements: there are some for 64 and 128", h.Dim)
	case h.KVHeads < 1 || h.Heads < h.KVHeads || h.Heads%h.KVHeads != 0:
		return fmt.Errorf("no attention kernel for %d query heads to %d key heads: the one has to be a multiple of the other", h.Heads, h.KVHeads)
	case pageSize < 16 || bits.OnesCount(uint(pageSize)) != 1:
		return fmt.Errorf("no attention kernel for pages of %d tokens: a power of two from 16 on", pageSize)
	}
	return nil
}

// DecodeAttention plans the attention of the sequences that have one row, among seqs sequences of up to longest tokens, the row
// included. Keys and values of a layer are bf16 [page][key head][key, value][token of the page][Dim]; scores are summed in
// float32, and how a row's tokens are cut into parts is a matter of their number alone. The kernel's parameters are
//
//	qkv u64     bf16 [rows, (Heads + 2·KVHeads)·Dim], rotated; the queries are read
//	out u64     bf16 [rows, Heads·Dim]
//	cache u64   the layer's keys and values, those of the rows included
//	tables u64  int32 [seqs, maxPages]: page of token t is t / page size
//	row, rows, past u64  int32 [seqs] each: first row, how many, tokens before them
//	maxPages, Heads, KVHeads, log2(page size) i32
//	scale f32
//	partial u64 DecodePartial bytes, not read before they are written
//	arrived u64 DecodeArrived bytes, zero before the first launch; kept zero
func DecodeAttention(g GPU, h Heads, seqs, longest int) Plan {
	parts := min(ceil(longest, decodeSplit), decodeSplits)
	return Plan{Module: attentionModule(g), Kernel: fmt.Sprintf("attend_one_%d", h.Dim), Block: [3]uint32{256, 1, 1},
		Grid: [3]uint32{uint32(parts), uint32(decodeGroups(h)), uint32(seqs)}}
}

// PrefillAttention plans the attention of the sequences that have more than one row, among seqs sequences of up to most rows. A
// row's result does not depend on which rows came before it in other steps. The parameters are those of DecodeAttention up to
// scale.
func PrefillAttention(g GPU, h Heads, seqs, most int) Plan {
	return Plan{Module: attentionModule(g), Kernel: fmt.Sprintf("attend_many_%d", h.Dim), Block: [3]uint32{128, 1, 1},
		Grid: [3]uint32{uint32(ceil(most, prefillRows)), uint32(h.Heads), uint32(seqs)}, Shared: uint32(4 * 64 * h.Dim * 2)}
}

// DecodePartial returns the size in bytes of DecodeAttention's partial, and DecodeArrived of arrived.
func DecodePartial(h Heads, seqs int) int64 {
	return int64(seqs) * int64(decodeGroups(h)) * decodeSplits * decodeHeads * int64(h.Dim+2) * 4
}

// DecodeArrived is described at DecodePartial.
func DecodeArrived(h Heads, seqs int) int64 { return int64(seqs) * int64(decodeGroups(h)) * 4 }

func decodeGroups(h Heads) int { return h.KVHeads * ceil(h.Heads/h.KVHeads, decodeHeads) }

func attentionModule(g GPU) string {
	if g.Hopper() {
		return "attention_sm90a"
	}
	return "attention_sm80"
}

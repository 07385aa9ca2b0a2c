package kernels

import (
	"fmt"
	"math/bits"
	"strings"
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
	prefillRows  = 64  // rows in a block, a row of each of a key head's query heads counted
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
//	partial u64 DecodePartial bytes, not read before they are written; 0 where Plan.Cluster isn't
//	arrived u64 DecodeArrived bytes, zero before the first launch; kept zero; 0 where Plan.Cluster isn't
func DecodeAttention(g GPU, h Heads, seqs, longest int) Plan {
	parts := min(ceil(longest, decodeSplit), decodeSplits)
	p := Plan{Module: module(g, "attend_one"), Kernel: fmt.Sprintf("attend_one_%d", h.Dim), Block: [3]uint32{256, 1, 1},
		Grid: [3]uint32{uint32(parts), uint32(decodeGroups(h)), uint32(seqs)}, Shared: 64 << 10}
	if g.Hopper() && parts <= 8 {
		p.Kernel, p.Cluster = fmt.Sprintf("attend_cluster_%d", h.Dim), uint32(parts)
	}
	return p
}

// DecodeAttentionRoPE is DecodeAttention for rows whose queries and keys are not rotated yet and whose keys and values are not in
// the cache: it rotates the queries, and rotates the keys and stores them and the values to the page that tables names for the
// token. A row's position is the number of tokens before it, and all Dim elements of a head rotate. Besides DecodeAttention's
// parameters it has
//
//	cos, sin u64  float32 [positions, Dim/2]
//	interleaved i32  0: pairs are (i, i + Dim/2); 1: (2i, 2i+1)
func DecodeAttentionRoPE(g GPU, h Heads, seqs, longest int) Plan {
	p := DecodeAttention(g, h, seqs, longest)
	p.Kernel = strings.Replace(p.Kernel, "attend_one", "attend_rope", 1)
	p.Kernel = strings.Replace(p.Kernel, "attend_cluster", "attend_rope_cluster", 1)
	return p
}

// RotatesInAttention reports whether DecodeAttentionRoPE takes less time than rotating first, which has the same results to the
// bit: every block rotates the queries again, which is time where there are many.
func RotatesInAttention(h Heads, seqs int) bool { return seqs*decodeGroups(h) <= 128 }

// PrefillAttention plans the attention of the sequences that have more than one row, among seqs sequences of up to most rows. A
// row's result does not depend on which rows came before it in other steps. The parameters are those of DecodeAttention up to
// scale.
func PrefillAttention(g GPU, h Heads, seqs, most int) Plan {
	threads := uint32(128) // twice as many where a head is small
	if h.Dim == 64 {
		threads = 256
	}
	return Plan{Module: module(g, "attend_many"), Kernel: fmt.Sprintf("attend_many_%d", h.Dim), Block: [3]uint32{threads, 1, 1},
		Grid: [3]uint32{uint32(ceil(most*(h.Heads/h.KVHeads), prefillRows)), uint32(h.KVHeads), uint32(seqs)}, Shared: 64 << 10}
}

// DecodePartial returns the size in bytes of DecodeAttention's partial, and DecodeArrived of arrived.
func DecodePartial(h Heads, seqs int) int64 {
	return int64(seqs) * int64(decodeGroups(h)) * decodeSplits * decodeHeads * int64(h.Dim+2) * 4
}

// DecodeArrived is described at DecodePartial.
func DecodeArrived(h Heads, seqs int) int64 { return int64(seqs) * int64(decodeGroups(h)) * 4 }

func decodeGroups(h Heads) int { return h.KVHeads * ceil(h.Heads/h.KVHeads, decodeHeads) }

// module returns a module that is compiled for Hopper and for every GPU from Ampere on.
func module(g GPU, name string) string {
	if g.Hopper() {
		return name + "_sm90a"
	}
	return name + "_sm80"
}

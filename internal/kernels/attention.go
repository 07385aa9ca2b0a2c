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

// PrefillSequences is how many sequences a launch of PrefillAttention has room to tell apart.
const PrefillSequences = 1024

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
//	parts, ring i32 the plan's
//
// On Hopper the kernel reads the sequences, the tables, and keys and values of tokens before the row ahead of its wait for the kernels
// in front of it: they have to be complete before the first kernel of the step begins, and that one must not be launched as a dependent.
func DecodeAttention(g GPU, h Heads, seqs, longest int) Plan {
	parts, blocks := min(ceil(longest, decodeSplit), decodeSplits), seqs*decodeGroups(h)
	ring := 4 // 64 KiB
	if h.Dim == 128 {
		ring = 2
	}
	// Few sequences are spread over the GPU by their parts. Of many each has a block, or as few as it needs not to be what all wait for;
	// small heads in blocks of three teams as long as each has an SM of its own.
	switch {
	case blocks*2 <= g.SMs && (!g.Hopper() || h.Dim == 128 || blocks*parts <= g.SMs):
		return decodePlan(g, h, seqs, parts, 1, ring, 1, g.Hopper() && parts <= 8)
	case g.Hopper() && h.Dim == 64 && blocks*ceil(parts, 6) <= g.SMs:
		return decodePlan(g, h, seqs, parts, 3, 2, 6, false)
	}
	return decodePlan(g, h, seqs, parts, 1, ring, 4, false)
}

// decodePlan plans blocks of so many teams of 4 warps, which copy ring tiles ahead and take per parts each. Nothing of that changes a
// result.
func decodePlan(g GPU, h Heads, seqs, parts, teams, ring, per int, cluster bool) Plan {
	p := Plan{Module: module(g, "attend_one"), Kernel: fmt.Sprintf("attend_one_%d", h.Dim), Block: [3]uint32{uint32(128 * teams), 1, 1}, Parts: per, Ring: ring,
		Grid:   [3]uint32{uint32(ceil(parts, per)), uint32(decodeGroups(h)), uint32(seqs)},
		Shared: uint32(4 * teams * (ring*32*h.Dim*2 + min(h.Heads/h.KVHeads, decodeHeads)*(h.Dim+4)*4))}
	switch {
	case cluster:
		p.Kernel, p.Cluster = fmt.Sprintf("attend_cluster_%d", h.Dim), uint32(parts)
	case teams > 1:
		p.Kernel = fmt.Sprintf("attend_teams_%d", h.Dim)
	}
	return p
}

// rotating is p with the kernel that rotates and stores besides.
func (p Plan) rotating() Plan {
	p.Kernel = strings.Replace(strings.Replace(p.Kernel, "attend_", "attend_rope_", 1), "rope_one", "rope", 1)
	return p
}

// DecodeAttentionRoPE is DecodeAttention for rows whose queries and keys are not rotated yet and whose keys and values are not in
// the cache: it rotates the queries, and rotates the keys and stores them and the values to the page that tables names for the
// token. A row's position is the number of tokens before it, and all Dim elements of a head rotate. In front of parts it has the
// parameters
//
//	cos, sin u64  float32 [positions, Dim/2], complete before the step
//	interleaved i32  0: pairs are (i, i + Dim/2); 1: (2i, 2i+1)
func DecodeAttentionRoPE(g GPU, h Heads, seqs, longest int) Plan {
	return DecodeAttention(g, h, seqs, longest).rotating()
}

// PrefillAttention plans the attention of the sequences that have more than one row, among seqs sequences, at most PrefillSequences,
// of up to most rows. A row's result does not depend on which rows came before it in other steps. The parameters are those of
// DecodeAttention up to scale, and with Plan.Maps
//
//	map u64  tensor map of cache (cuda.EncodeKVBF16), at a multiple of 64
//	seqs, most i32
func PrefillAttention(g GPU, h Heads, seqs, most int) Plan {
	packed := most * (h.Heads / h.KVHeads)
	if g.Hopper() {
		// Warp groups that compute, tokens of a tile, pairs of tiles, blocks that fit in: as attend_wgmma.cu has them.
		groups, keys, pairs, blocks := 2, 128, 2, 1
		if h.Dim == 64 {
			groups, blocks = 1, 2
		}
		rows := 64 * groups
		return Plan{Module: "attend_wgmma_sm90a", Kernel: fmt.Sprintf("attend_wgmma_%d", h.Dim), Block: [3]uint32{uint32(128*groups + 128), 1, 1},
			Grid: [3]uint32{uint32(min(g.SMs*blocks, ceil(packed, rows)*h.KVHeads*seqs)), 1, 1}, Shared: uint32(4*h.Dim*(rows+pairs*keys) + 1024 + 16*seqs), Maps: true}
	}
	threads := uint32(128) // twice as many where a head is small
	if h.Dim == 64 {
		threads = 256
	}
	return Plan{Module: "attend_many_sm80", Kernel: fmt.Sprintf("attend_many_%d", h.Dim), Block: [3]uint32{threads, 1, 1},
		Grid: [3]uint32{uint32(ceil(packed, prefillRows)), uint32(h.KVHeads), uint32(seqs)}, Shared: 64 << 10}
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

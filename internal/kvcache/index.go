package kvcache

import (
	"encoding/binary"
	"hash/maphash"
	"slices"
)

// hashOf hashes a page's tokens with a seed of this process, so that nobody outside can build long collision chains.
func (c *Cache) hashOf(tokens []int32) uint64 {
	for i, t := range tokens {
		binary.LittleEndian.PutUint32(c.scratch[4*i:], uint32(t))
	}
	return maphash.Bytes(c.seed, c.scratch[:4*len(tokens)])
}

// edgeTokens returns the tokens of p's edge.
func (c *Cache) edgeTokens(p int32) []int32 { return c.edges[int(p)*c.size : (int(p)+1)*c.size] }

// find returns the indexed page that holds tokens below parent, or none.
func (c *Cache) find(parent int64, hash uint64, tokens []int32) int32 {
	p, ok := c.index[edge{parent, hash}]
	if !ok {
		return none
	}
	for ; p != none; p = c.pages[p].nextEqual {
		if slices.Equal(c.edgeTokens(p), tokens) {
			return p
		}
	}
	return none
}

// walk calls visit for the pages of the longest indexed prefix of tokens that leaves at least one token to compute.
func (c *Cache) walk(salt string, tokens []int32, visit func(p int32)) {
	r := c.roots[salt]
	if r == nil {
		return
	}
	parent := r.id
	for i := 0; i+c.size < len(tokens); i += c.size {
		part := tokens[i : i+c.size]
		p := c.find(parent, c.hashOf(part), part)
		if p == none {
			return
		}
		visit(p)
		parent = int64(p)
	}
}

// insert puts p, whose edge is tokens, into the index below parent (none: below r).
func (c *Cache) insert(p, parent int32, r *root, hash uint64, tokens []int32) {
	copy(c.edgeTokens(p), tokens)
	g := &c.pages[p]
	g.indexed, g.parent, g.hash, g.child = true, parent, hash, none
	key := edge{int64(parent), hash}
	first := &r.child
	if parent == none {
		g.root = r
		key.parent = r.id
	} else {
		first = &c.pages[parent].child
	}
	g.nextEqual = none
	if old, ok := c.index[key]; ok {
		g.nextEqual = old
	}
	c.index[key] = p
	g.prevSib, g.nextSib = none, *first
	if *first != none {
		c.pages[*first].prevSib = p
	}
	*first = p
}

// unindex takes p out of the index. Its children must be gone, or going in the same call from above.
func (c *Cache) unindex(p int32) {
	g := &c.pages[p]
	key := edge{int64(g.parent), g.hash}
	if g.parent == none {
		key.parent = g.root.id
	}
	if at := c.index[key]; at != p {
		for c.pages[at].nextEqual != p {
			at = c.pages[at].nextEqual
		}
		c.pages[at].nextEqual = g.nextEqual
	} else if g.nextEqual != none {
		c.index[key] = g.nextEqual
	} else {
		delete(c.index, key)
	}
	if g.prevSib != none {
		c.pages[g.prevSib].nextSib = g.nextSib
	} else if g.parent != none {
		c.pages[g.parent].child = g.nextSib
	} else {
		g.root.child = g.nextSib
	}
	if g.nextSib != none {
		c.pages[g.nextSib].prevSib = g.prevSib
	}
	r := g.root
	g.indexed, g.parent, g.root, g.nextEqual, g.prevSib, g.nextSib = false, none, nil, none, none, none
	if r != nil {
		c.dropRoot(r)
	}
}

// forget takes p and everything below it out of the index; held pages stay with their holders.
func (c *Cache) forget(p int32) {
	stack := []int32{p}
	for len(stack) > 0 {
		p := stack[len(stack)-1]
		if child := c.pages[p].child; child != none {
			stack = append(stack, child)
			continue
		}
		stack = stack[:len(stack)-1]
		if c.pages[p].refs == 0 {
			c.lru.remove(c.pages, p)
			c.free = append(c.free, p)
		}
		c.unindex(p)
	}
}

// rootOf returns the root of a salt and holds it for a sequence.
func (c *Cache) rootOf(salt string) *root {
	r := c.roots[salt]
	if r == nil {
		c.rootIDs--
		r = &root{id: c.rootIDs, salt: salt, child: none}
		c.roots[salt] = r
	}
	r.seqs++
	return r
}

// dropRoot deletes a root that nobody needs, so that salts that are used once leave nothing behind.
func (c *Cache) dropRoot(r *root) {
	if r.seqs == 0 && r.child == none {
		delete(c.roots, r.salt)
	}
}

package kvcache

import "fmt"

// CheckInvariants returns the first violation of the package's invariants, nil where all hold. It changes nothing and
// visits every page.
func (c *Cache) CheckInvariants() error {
	holders := make([]int32, len(c.pages))
	seqs := 0
	for s := range c.seqs {
		if len(s.pages) > 0 {
			seqs++
		}
		if err := c.checkSeq(s, holders); err != nil {
			return err
		}
	}
	if seqs != c.stats.Seqs {
		return fmt.Errorf("%d sequences hold pages, counted %d", seqs, c.stats.Seqs)
	}
	const (
		isFree = 1 << iota
		isIdle
		isUsed
	)
	state := make([]uint8, len(c.pages))
	for _, p := range c.free {
		if state[p] != 0 {
			return fmt.Errorf("page %d is free twice", p)
		}
		state[p] = isFree
	}
	age := make([]int, len(c.pages))
	n := 0
	for p, prev := c.lru.head, none; p != none; prev, p = p, c.pages[p].nextIdle {
		if state[p] != 0 || n > len(c.pages) || c.pages[p].prevIdle != prev {
			return fmt.Errorf("page %d is in the eviction order twice, or also free", p)
		}
		state[p] = isIdle
		n++
		age[p] = n
	}
	if n != c.lru.n {
		return fmt.Errorf("%d cached pages, counted %d", n, c.lru.n)
	}
	for i := range c.pages {
		g := &c.pages[i]
		if g.refs != holders[i] {
			return fmt.Errorf("page %d: %d references, %d holders", i, g.refs, holders[i])
		}
		if g.refs > 0 {
			if state[i] != 0 {
				return fmt.Errorf("page %d is held and also free or cached", i)
			}
			state[i] = isUsed
		}
		if state[i] == 0 || (state[i] == isIdle) != (g.refs == 0 && g.indexed) {
			return fmt.Errorf("page %d is in no state, or cached without being indexed (state %d, indexed %v)", i, state[i], g.indexed)
		}
	}
	return c.checkIndex(age)
}

func (c *Cache) checkSeq(s *Seq, holders []int32) error {
	if s.closed || s.complete > len(s.pages) {
		return fmt.Errorf("an open sequence is closed, or has %d complete pages of %d", s.complete, len(s.pages))
	}
	seen := make(map[int32]bool, len(s.pages))
	for i, p := range s.pages {
		if seen[p] {
			return fmt.Errorf("page %d is twice in one block table", p)
		}
		seen[p] = true
		holders[p]++
		g := &c.pages[p]
		if (g.refs > 1 || g.indexed) && i >= s.complete {
			return fmt.Errorf("page %d is shared or indexed and can still be written by a holder", p)
		}
		if !g.indexed {
			continue
		}
		if i == 0 && (g.parent != none || g.root != s.root) || i > 0 && g.parent != s.pages[i-1] {
			return fmt.Errorf("page %d at place %d of a block table is not below the page before it", p, i)
		}
	}
	return nil
}

func (c *Cache) checkIndex(age []int) error {
	found, indexed := 0, 0
	for key, p := range c.index {
		for ; p != none; p = c.pages[p].nextEqual {
			g := &c.pages[p]
			id := int64(g.parent)
			if g.indexed && g.parent == none {
				id = g.root.id
			}
			if !g.indexed || id != key.parent || g.hash != key.hash || c.hashOf(c.edgeTokens(p)) != g.hash {
				return fmt.Errorf("page %d stands in the index where it doesn't belong", p)
			}
			if found++; found > len(c.pages) {
				return fmt.Errorf("the index has a loop")
			}
		}
	}
	for i := range c.pages {
		g := &c.pages[i]
		if !g.indexed {
			if g.child != none {
				return fmt.Errorf("page %d has a child in the index and isn't there itself", i)
			}
			continue
		}
		indexed++
		if g.parent == none {
			if c.roots[g.root.salt] != g.root {
				return fmt.Errorf("page %d hangs below a root that is gone", i)
			}
			continue
		}
		up := &c.pages[g.parent]
		if !up.indexed || g.refs > 0 && up.refs == 0 {
			return fmt.Errorf("page %d: its parent %d is not indexed, or not held though it is", i, g.parent)
		}
		if g.refs == 0 && up.refs == 0 && age[i] > age[g.parent] {
			return fmt.Errorf("page %d would be evicted after its parent %d", i, g.parent)
		}
	}
	if found != indexed {
		return fmt.Errorf("%d pages are indexed, the index finds %d", indexed, found)
	}
	return c.checkChildren(indexed)
}

// checkChildren walks the child lists from the roots: they must reach every indexed page.
func (c *Cache) checkChildren(indexed int) error {
	var stack []int32
	for salt, r := range c.roots {
		if r.salt != salt || r.seqs == 0 && r.child == none {
			return fmt.Errorf("root %d is not needed", r.id)
		}
		if r.child != none {
			stack = append(stack, r.child)
		}
	}
	reached := 0
	for len(stack) > 0 {
		p := stack[len(stack)-1]
		stack = stack[:len(stack)-1]
		for prev := none; p != none; prev, p = p, c.pages[p].nextSib {
			if reached++; reached > indexed || c.pages[p].prevSib != prev {
				return fmt.Errorf("the children of a page have a loop or a broken link at page %d", p)
			}
			if child := c.pages[p].child; child != none {
				stack = append(stack, child)
			}
		}
	}
	if reached != indexed {
		return fmt.Errorf("%d pages are indexed, %d are reached from the roots", indexed, reached)
	}
	return nil
}

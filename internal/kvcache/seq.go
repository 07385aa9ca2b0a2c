package kvcache

import "fmt"

// Seq is the pages of one sequence, its block table. It belongs to the Cache that opened it.
type Seq struct {
	root     *root
	pages    []int32
	complete int // leading pages that were committed or taken from the cache; never written again
	cached   int // tokens that were cached when the sequence was opened
	closed   bool
}

// Pages returns the block table: token t's page is Pages()[t/PageSize]. It is borrowed, and Commit may exchange entries:
// read it again after every Commit.
func (s *Seq) Pages() []int32 { return s.pages }

// Cached returns how many leading tokens were found in the cache by Open: a multiple of the page size, and less than
// the number of tokens that Open was given.
func (s *Seq) Cached() int { return s.cached }

// Match is what Lookup found.
type Match struct {
	Tokens int // leading tokens whose keys and values are there
	idle   int // pages among them that are cached, so they count as available until they are taken
}

// Lookup finds the longest cached prefix of tokens under salt. It changes nothing. At least one token is always left to
// compute: without it there would be no logits to sample from. As pages aren't shared before they are complete, this
// means the whole last page where every page of the prompt is cached.
func (c *Cache) Lookup(salt string, tokens []int32) Match {
	var m Match
	c.walk(salt, tokens, func(p int32) {
		m.Tokens += c.size
		if c.pages[p].refs == 0 {
			m.idle++
		}
	})
	return m
}

// CanOpen reports whether a sequence that takes m's pages can get the rest of the pages for n tokens, with spare pages
// left over. It changes nothing. m is from a Lookup since the last change, or the zero Match for no reuse.
func (c *Cache) CanOpen(m Match, n, spare int) bool {
	return c.PagesFor(n)-m.Tokens/c.size+spare <= c.Available()-m.idle
}

// Open makes a sequence that holds pages for all of tokens: the longest cached prefix under salt where reuse is set,
// and fresh pages for the rest. The caller owns it and must Close it. Fails with ErrNoPages, changing nothing.
func (c *Cache) Open(salt string, tokens []int32, reuse bool) (*Seq, error) {
	var m Match
	if reuse {
		m = c.Lookup(salt, tokens)
	}
	if !c.CanOpen(m, len(tokens), 0) {
		return nil, fmt.Errorf("opening a sequence of %d tokens: %w", len(tokens), ErrNoPages)
	}
	s := &Seq{root: c.rootOf(salt), pages: make([]int32, 0, c.PagesFor(len(tokens))+4)}
	if reuse {
		c.walk(salt, tokens, func(p int32) {
			c.hold(p)
			s.pages = append(s.pages, p)
		})
	}
	s.complete = len(s.pages)
	s.cached = s.complete * c.size
	c.seqs[s] = struct{}{}
	if len(s.pages) > 0 {
		c.stats.Seqs++
	}
	c.grow(s, len(tokens))
	return s, nil
}

// CanGrow reports whether Grow to n tokens would succeed. It changes nothing.
func (c *Cache) CanGrow(s *Seq, n int) bool { return c.PagesFor(n)-len(s.pages) <= c.Available() }

// Grow adds pages until the block table holds n tokens. Fails with ErrNoPages, changing nothing.
func (c *Cache) Grow(s *Seq, n int) error {
	s.mustBeOpen("Grow")
	if !c.CanGrow(s, n) {
		return fmt.Errorf("growing a sequence to %d tokens: %w", n, ErrNoPages)
	}
	c.grow(s, n)
	return nil
}

func (c *Cache) grow(s *Seq, n int) {
	had := len(s.pages)
	for len(s.pages) < c.PagesFor(n) {
		p := c.take()
		c.pages[p].refs = 1
		s.pages = append(s.pages, p)
	}
	if had == 0 && len(s.pages) > 0 {
		c.stats.Seqs++
	}
}

// Slot returns where the key and value of the token at position pos go.
func (c *Cache) Slot(s *Seq, pos int) int32 {
	return s.pages[pos/c.size]*int32(c.size) + int32(pos%c.size)
}

// Commit says that the keys and values of tokens, which is the sequence from its start, have been written. Pages that
// became complete can be found by Lookup from then on. Where an equal page was committed by somebody else in the meantime
// the sequence takes that one and gives its own back: so a block table is always a path in the index.
func (c *Cache) Commit(s *Seq, tokens []int32) {
	s.mustBeOpen("Commit")
	if len(tokens) > len(s.pages)*c.size {
		panic(fmt.Sprintf("kvcache: Commit of %d tokens in %d pages of %d", len(tokens), len(s.pages), c.size))
	}
	for ; (s.complete+1)*c.size <= len(tokens); s.complete++ {
		i := s.complete
		parent, id := none, s.root.id
		if i > 0 {
			parent = s.pages[i-1]
			id = int64(parent)
			if !c.pages[parent].indexed {
				continue // below a quarantined page nothing is worth finding
			}
		}
		part := tokens[i*c.size : (i+1)*c.size]
		hash := c.hashOf(part)
		own := s.pages[i]
		if equal := c.find(id, hash, part); equal != none {
			c.hold(equal)
			s.pages[i] = equal
			c.drop(own)
			c.stats.Deduplicated++
			continue
		}
		c.insert(own, parent, s.root, hash, part)
	}
}

// Close gives the sequence's pages back: complete ones stay findable until they are evicted. Closing again does nothing.
func (c *Cache) Close(s *Seq) {
	if s.closed {
		return
	}
	s.closed = true
	delete(c.seqs, s)
	if len(s.pages) > 0 {
		c.stats.Seqs--
	}
	// The deepest page first: it is then evicted before its parent.
	for i := len(s.pages) - 1; i >= 0; i-- {
		c.drop(s.pages[i])
	}
	s.pages = nil
	s.root.seqs--
	c.dropRoot(s.root)
}

// Quarantine closes a sequence whose keys and values can't be trusted (its logits were not finite). None of its pages, and
// nothing computed on top of one, can be found any more; sequences that share pages with it go on.
func (c *Cache) Quarantine(s *Seq) {
	if s.closed {
		return
	}
	if len(s.pages) > 0 && c.pages[s.pages[0]].indexed {
		c.forget(s.pages[0])
	}
	c.Close(s)
}

func (s *Seq) mustBeOpen(op string) {
	if s.closed {
		panic("kvcache: " + op + " of a closed sequence")
	}
}

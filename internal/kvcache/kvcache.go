// Package kvcache keeps the books of paged KV memory: which page belongs to which sequence, and which pages hold a prefix
// that another sequence can use again. It touches no device and no clock.
//
// A page holds the keys and values of PageSize consecutive tokens of all layers. Every page is in exactly one state:
//
//	free    nobody holds it and nothing in it is worth keeping
//	used    one or more open sequences hold it
//	cached  nobody holds it, it is complete and indexed: the next sequence with this prefix takes it; evicted when needed
//
// The index is a tree of complete pages. Its root is a cache salt, an edge is the PageSize tokens of a page, compared
// exactly (a hash only finds candidates), so a path from a root spells a whole prefix and nothing else can match it
// (CVE-2025-25183 is what happens where a hash alone decides).
//
// Invariants, checked by CheckInvariants:
//
//  1. each page is in exactly one state, and the three counts add up to all pages;
//  2. a page's reference count is the number of block tables that it appears in, at most once in each;
//  3. a page in two block tables is complete: nobody writes it again;
//  4. an indexed page was committed, that is its keys and values are written, and holds exactly the tokens of its edge;
//  5. a held indexed page's parent is held, and a cached page is older in the eviction order than its cached parent:
//     so what is evicted never has children.
//
// Every operation costs time in proportion to the pages that it touches. A Cache is not safe for concurrent use.
package kvcache

import (
	"errors"
	"fmt"
	"hash/maphash"
	"math"
)

// DefaultPageSize is the tokens in a page where nothing else is asked for. Small pages waste little at a sequence's end
// and at the point where prompts part; 16 is what vLLM uses, and attention kernels like multiples of 16.
const DefaultPageSize = 16

// ErrNoPages is returned where a sequence can't grow: ask CanOpen or CanGrow first.
var ErrNoPages = errors.New("no free KV pages")

// Config is the size of the memory.
type Config struct {
	Pages    int
	PageSize int // tokens in a page
}

// Stats counts pages by state, and what happened to them.
type Stats struct {
	Used, Free, Cached int
	Seqs               int    // open sequences that hold at least one page
	Evictions          uint64 // cached pages that were given to somebody else
	Deduplicated       uint64 // pages given back because an equal one was cached in the meantime
}

// Cache owns the bookkeeping of all pages.
type Cache struct {
	size  int
	pages []page
	edges []int32 // tokens of page p's edge at [p*size, (p+1)*size), valid while indexed
	free  []int32
	lru   list // cached pages, least recently held first
	index map[edge]int32
	roots map[string]*root
	seqs  map[*Seq]struct{}
	// rootIDs only ever falls: a salt that comes back gets another identity, and no stale edge can name it.
	rootIDs int64
	seed    maphash.Seed
	scratch []byte
	stats   Stats
}

const none = int32(-1)

type page struct {
	refs    int32
	indexed bool
	parent  int32 // page, or none below a root
	root    *root // only where parent is none
	hash    uint64
	// Neighbours, each none where there is none: in the index among edges of equal hash, among the parent's children,
	// and in the eviction order.
	nextEqual          int32
	child              int32
	prevSib, nextSib   int32
	prevIdle, nextIdle int32
}

// edge is where the index looks for a page: parent is a page's number or a root's (negative) identity.
type edge struct {
	parent int64
	hash   uint64
}

// root is where the prefixes of one cache salt begin. It lives while a sequence or an indexed page needs it.
type root struct {
	id    int64
	salt  string
	child int32
	seqs  int
}

// New makes a cache whose pages are all free.
func New(c Config) (*Cache, error) {
	switch {
	case c.PageSize < 1 || c.PageSize > 1<<12:
		return nil, fmt.Errorf("KV page size of %d tokens: want 1 to %d", c.PageSize, 1<<12)
	case c.Pages < 1:
		return nil, fmt.Errorf("%d KV pages: want at least 1", c.Pages)
	case c.Pages > math.MaxInt32/c.PageSize:
		return nil, fmt.Errorf("%d KV pages of %d tokens: more slots than an int32 counts", c.Pages, c.PageSize)
	}
	k := &Cache{
		size:    c.PageSize,
		pages:   make([]page, c.Pages),
		edges:   make([]int32, c.Pages*c.PageSize),
		free:    make([]int32, c.Pages),
		lru:     list{head: none, tail: none},
		index:   map[edge]int32{},
		roots:   map[string]*root{},
		seqs:    map[*Seq]struct{}{},
		seed:    maphash.MakeSeed(),
		scratch: make([]byte, 4*c.PageSize),
	}
	for i := range k.pages {
		k.pages[i] = page{parent: none, nextEqual: none, child: none, prevSib: none, nextSib: none, prevIdle: none, nextIdle: none}
		k.free[i] = int32(c.Pages - 1 - i) // lowest number first
	}
	return k, nil
}

// PageSize returns the tokens in a page.
func (c *Cache) PageSize() int { return c.size }

// Pages returns the number of pages in all states.
func (c *Cache) Pages() int { return len(c.pages) }

// PagesFor returns how many pages hold n tokens.
func (c *Cache) PagesFor(n int) int { return (n + c.size - 1) / c.size }

// Available returns how many pages can be handed out: free ones and cached ones.
func (c *Cache) Available() int { return len(c.free) + c.lru.n }

// Stats returns the counts.
func (c *Cache) Stats() Stats {
	s := c.stats
	s.Free, s.Cached = len(c.free), c.lru.n
	s.Used = len(c.pages) - s.Free - s.Cached
	return s
}

// Flush forgets every cached page and returns how many became free. Held pages stay with their holders and in the index.
func (c *Cache) Flush() int {
	n := c.lru.n
	for c.lru.n > 0 {
		p := c.evict()
		c.free = append(c.free, p)
	}
	return n
}

// take hands out a page that nobody holds and that isn't indexed. Available must not be 0.
func (c *Cache) take() int32 {
	if n := len(c.free); n > 0 {
		p := c.free[n-1]
		c.free = c.free[:n-1]
		return p
	}
	c.stats.Evictions++
	return c.evict()
}

// evict takes the page that was held least recently out of the index. By invariant 5 it has no children.
func (c *Cache) evict() int32 {
	p := c.lru.head
	if c.pages[p].child != none {
		panic(fmt.Sprintf("kvcache: internal error: page %d is evicted before its child %d", p, c.pages[p].child))
	}
	c.lru.remove(c.pages, p)
	c.unindex(p)
	return p
}

// hold adds a reference.
func (c *Cache) hold(p int32) {
	if c.pages[p].refs == 0 && c.pages[p].indexed {
		c.lru.remove(c.pages, p)
	}
	c.pages[p].refs++
}

// drop removes a reference; a page that nobody holds any more is cached where it is indexed, and free where not.
func (c *Cache) drop(p int32) {
	g := &c.pages[p]
	g.refs--
	switch {
	case g.refs > 0:
	case g.indexed:
		c.lru.push(c.pages, p)
	default:
		c.free = append(c.free, p)
	}
}

// list is the eviction order: pages linked by prevIdle and nextIdle.
type list struct {
	head, tail int32
	n          int
}

func (l *list) push(pages []page, p int32) {
	pages[p].prevIdle, pages[p].nextIdle = l.tail, none
	if l.tail == none {
		l.head = p
	} else {
		pages[l.tail].nextIdle = p
	}
	l.tail = p
	l.n++
}

func (l *list) remove(pages []page, p int32) {
	prev, next := pages[p].prevIdle, pages[p].nextIdle
	if prev == none {
		l.head = next
	} else {
		pages[prev].nextIdle = next
	}
	if next == none {
		l.tail = prev
	} else {
		pages[next].prevIdle = prev
	}
	pages[p].prevIdle, pages[p].nextIdle = none, none
	l.n--
}

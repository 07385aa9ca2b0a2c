package kvcache

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"testing"
)

func newCache(t testing.TB, pages, size int) *Cache {
	t.Helper()
	c, err := New(Config{Pages: pages, PageSize: size})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// seq returns n tokens that start with base and go on with values that belong to tail alone.
func prompt(base []int32, n int, tail int32) []int32 {
	out := slices.Clone(base)
	for len(out) < n {
		out = append(out, 1000*tail+int32(len(out)))
	}
	return out
}

func check(t testing.TB, c *Cache) {
	t.Helper()
	if err := c.CheckInvariants(); err != nil {
		t.Fatal(err)
	}
}

func wantStats(t *testing.T, c *Cache, used, free, cached, seqs int) {
	t.Helper()
	check(t, c)
	s := c.Stats()
	if s.Used != used || s.Free != free || s.Cached != cached || s.Seqs != seqs {
		t.Fatalf("used %d free %d cached %d seqs %d, want %d %d %d %d", s.Used, s.Free, s.Cached, s.Seqs, used, free, cached, seqs)
	}
}

func open(t *testing.T, c *Cache, salt string, tokens []int32) *Seq {
	t.Helper()
	s, err := c.Open(salt, tokens, true)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestConfigIsChecked(t *testing.T) {
	for _, c := range []Config{{0, 16}, {-1, 16}, {8, 0}, {8, -1}, {8, 1 << 13}, {math.MaxInt32 / 16, 17}, {math.MaxInt, 16}} {
		if _, err := New(c); err == nil {
			t.Errorf("New(%+v) succeeded", c)
		}
	}
}

func TestLifeOfAPrefix(t *testing.T) {
	c := newCache(t, 10, 4)
	base := prompt(nil, 9, 1) // two complete pages and a token
	a := open(t, c, "", base)
	wantStats(t, c, 3, 7, 0, 1)
	if m := c.Lookup("", base); m.Tokens != 0 {
		t.Fatalf("found %d tokens that nobody wrote", m.Tokens)
	}
	c.Commit(a, base[:7])
	if m := c.Lookup("", base); m.Tokens != 4 {
		t.Fatalf("found %d tokens, want the one complete page", m.Tokens)
	}
	c.Commit(a, base)
	b := open(t, c, "", prompt(base[:8], 11, 2))
	if b.Cached() != 8 || !slices.Equal(a.Pages()[:2], b.Pages()[:2]) || a.Pages()[2] == b.Pages()[2] {
		t.Fatalf("b reuses %d tokens, pages %v and %v", b.Cached(), a.Pages(), b.Pages())
	}
	wantStats(t, c, 4, 6, 0, 2)
	c.Close(a)
	c.Close(a)
	wantStats(t, c, 3, 7, 0, 1)
	c.Close(b)
	wantStats(t, c, 0, 8, 2, 0)
	if n := c.Flush(); n != 2 {
		t.Fatalf("flushed %d pages, want 2", n)
	}
	wantStats(t, c, 0, 10, 0, 0)
	if len(c.roots) != 0 {
		t.Fatalf("%d roots are left", len(c.roots))
	}
}

func TestFullHitLeavesATokenToCompute(t *testing.T) {
	c := newCache(t, 10, 4)
	p := prompt(nil, 8, 1)
	a := open(t, c, "", p)
	c.Commit(a, p)
	b := open(t, c, "", p)
	if b.Cached() != 4 {
		t.Fatalf("reused %d tokens of 8, want 4: the last page is computed again, in a page of its own", b.Cached())
	}
	if a.Pages()[1] == b.Pages()[1] {
		t.Fatal("both sequences write the same page")
	}
	own := b.Pages()[1]
	c.Commit(b, p)
	if b.Pages()[1] != a.Pages()[1] || c.Stats().Deduplicated != 1 {
		t.Fatalf("after Commit the equal pages %d and %d are both kept", a.Pages()[1], own)
	}
	wantStats(t, c, 2, 8, 0, 2)
}

func TestTwoThatComputeTheSameEndOnOnePath(t *testing.T) {
	c := newCache(t, 10, 4)
	p, q := prompt(nil, 12, 1), prompt(prompt(nil, 8, 1), 12, 2)
	a, b := open(t, c, "", p), open(t, c, "", q)
	c.Commit(a, p)
	c.Close(a)
	c.Commit(b, q)
	wantStats(t, c, 3, 6, 1, 1)
	c.Close(b)
	wantStats(t, c, 0, 6, 4, 0)
}

func TestSaltsAreApart(t *testing.T) {
	c := newCache(t, 10, 4)
	p := prompt(nil, 9, 1)
	a := open(t, c, "tenant a", p)
	c.Commit(a, p)
	for _, salt := range []string{"", "tenant b", "tenant a "} {
		if m := c.Lookup(salt, p); m.Tokens != 0 {
			t.Errorf("salt %q finds %d tokens of tenant a", salt, m.Tokens)
		}
	}
	if m := c.Lookup("tenant a", p); m.Tokens != 8 {
		t.Errorf("tenant a finds %d of its tokens, want 8", m.Tokens)
	}
}

func TestEqualHashesAreTold(t *testing.T) {
	// Two pages in one chain of the index, as a collision would put them: the exact comparison must tell them apart.
	c := newCache(t, 10, 4)
	p, q := prompt(nil, 5, 1), prompt(nil, 5, 2)
	a, b := open(t, c, "", p), open(t, c, "", q)
	c.Commit(a, p)
	c.insert(b.pages[0], none, b.root, c.hashOf(p[:4]), q[:4])
	b.complete = 1
	if got := c.find(b.root.id, c.hashOf(p[:4]), p[:4]); got != a.pages[0] {
		t.Fatalf("p is found in page %d, want %d", got, a.pages[0])
	}
	if got := c.find(b.root.id, c.hashOf(p[:4]), q[:4]); got != b.pages[0] {
		t.Fatalf("q is found in page %d, want %d", got, b.pages[0])
	}
	c.unindex(a.pages[0])
	a.complete = 0
	if got := c.find(b.root.id, c.hashOf(p[:4]), q[:4]); got != b.pages[0] {
		t.Fatalf("q is lost with p: page %d", got)
	}
}

func TestEvictionTakesTheLeastRecentlyHeld(t *testing.T) {
	c := newCache(t, 6, 4)
	old, fresh := prompt(nil, 9, 1), prompt(nil, 9, 2)
	for _, p := range [][]int32{old, fresh, old} { // old is held again last
		s := open(t, c, "", p)
		c.Commit(s, p)
		c.Close(s)
	}
	wantStats(t, c, 0, 2, 4, 0)
	s := open(t, c, "", prompt(nil, 12, 3)) // 3 pages: 2 free ones and fresh's last
	if n := c.Lookup("", fresh).Tokens; n != 4 {
		t.Errorf("%d tokens of the older prefix are left, want its first page", n)
	}
	if n := c.Lookup("", old).Tokens; n != 8 {
		t.Errorf("%d tokens of the younger prefix are left, want 8", n)
	}
	if c.Stats().Evictions != 1 {
		t.Errorf("%d evictions, want 1", c.Stats().Evictions)
	}
	c.Close(s)
	check(t, c)
}

func TestAskThenAct(t *testing.T) {
	c := newCache(t, 4, 4)
	p := prompt(nil, 9, 1)
	a := open(t, c, "", p)
	c.Commit(a, p)
	if c.CanGrow(a, 17) || !c.CanGrow(a, 16) {
		t.Fatal("CanGrow is wrong about 4 pages")
	}
	if err := c.Grow(a, 17); !errors.Is(err, ErrNoPages) {
		t.Fatalf("Grow beyond the memory: %v", err)
	}
	q := prompt(p[:8], 12, 2)
	m := c.Lookup("", q)
	if !c.CanOpen(m, len(q), 0) || c.CanOpen(m, len(q), 1) || c.CanOpen(Match{}, len(q), 0) {
		t.Fatal("CanOpen is wrong: one page is needed and one is there")
	}
	c.Close(a)
	m = c.Lookup("", q)
	if !c.CanOpen(m, len(q), 1) || c.CanOpen(m, len(q), 2) {
		t.Fatal("CanOpen counts cached pages that the sequence itself takes as available")
	}
	if _, err := c.Open("", prompt(nil, 17, 4), true); !errors.Is(err, ErrNoPages) {
		t.Fatalf("Open beyond the memory: %v", err)
	}
	check(t, c)
}

func TestQuarantine(t *testing.T) {
	c := newCache(t, 12, 4)
	p := prompt(nil, 9, 1)
	a := open(t, c, "", p)
	c.Commit(a, p)
	q := prompt(p[:8], 13, 2)
	b := open(t, c, "", q)
	c.Commit(b, q)
	other := prompt(nil, 9, 7)
	o := open(t, c, "", other)
	c.Commit(o, other)
	c.Close(b) // its third page is cached, on top of a's
	c.Quarantine(a)
	c.Quarantine(a)
	wantStats(t, c, 3, 9, 0, 1)
	if n := c.Lookup("", q).Tokens; n != 0 {
		t.Errorf("%d quarantined tokens are found", n)
	}
	if n := c.Lookup("", other).Tokens; n != 8 {
		t.Errorf("%d tokens of an unrelated prefix are found, want 8", n)
	}

	// One that shares pages with a quarantined sequence goes on, and nothing on top of them is found.
	a, b = open(t, c, "", p), (*Seq)(nil)
	c.Commit(a, p)
	b = open(t, c, "", q)
	c.Quarantine(a)
	c.Commit(b, q)
	if n := c.Lookup("", q).Tokens; n != 0 {
		t.Errorf("%d tokens on top of quarantined pages are found", n)
	}
	check(t, c)
	c.Close(b)
	c.Close(o)
	wantStats(t, c, 0, 10, 2, 0)
}

func TestMisuseIsSaid(t *testing.T) {
	c := newCache(t, 4, 4)
	s := open(t, c, "", prompt(nil, 5, 1))
	mustPanic(t, func() { c.Commit(s, prompt(nil, 9, 1)) })
	c.Close(s)
	mustPanic(t, func() { c.Commit(s, nil) })
	mustPanic(t, func() { _ = c.Grow(s, 1) })
	check(t, c)
}

func mustPanic(t *testing.T, f func()) {
	t.Helper()
	defer func() {
		if recover() == nil {
			t.Error("no panic")
		}
	}()
	f()
}

// TestCheckFindsDamage breaks each of the books in turn: a check that can't fail proves nothing.
func TestCheckFindsDamage(t *testing.T) {
	damage := map[string]func(c *Cache, a, b *Seq){
		"reference too many":    func(c *Cache, a, b *Seq) { c.pages[a.pages[0]].refs++ },
		"page twice":            func(c *Cache, a, b *Seq) { a.pages[2] = a.pages[1] },
		"free and held":         func(c *Cache, a, b *Seq) { c.free = append(c.free, a.pages[0]) },
		"free twice":            func(c *Cache, a, b *Seq) { c.free = append(c.free, c.free[0]) },
		"lost page":             func(c *Cache, a, b *Seq) { c.free = c.free[1:] },
		"shared and writable":   func(c *Cache, a, b *Seq) { a.complete = 0 },
		"wrong sequences count": func(c *Cache, a, b *Seq) { c.stats.Seqs++ },
		"edge changed":          func(c *Cache, a, b *Seq) { c.edgeTokens(a.pages[0])[1]++ },
		"index entry lost":      func(c *Cache, a, b *Seq) { clear(c.index) },
		"root lost":             func(c *Cache, a, b *Seq) { clear(c.roots) },
		"root left behind":      func(c *Cache, a, b *Seq) { c.roots["x"] = &root{salt: "x", child: none} },
		"child lost":            func(c *Cache, a, b *Seq) { c.pages[a.pages[0]].child = none },
		"eviction order": func(c *Cache, a, b *Seq) {
			c.Close(b)
			c.Close(a)
			p := c.lru.head
			c.lru.remove(c.pages, p)
			c.lru.push(c.pages, p)
		},
		"cached page lost": func(c *Cache, a, b *Seq) { c.Close(b); c.Close(a); c.lru.remove(c.pages, c.lru.head) },
	}
	for name, f := range damage {
		c := newCache(t, 10, 4)
		p := prompt(nil, 9, 1)
		a := open(t, c, "", p)
		c.Commit(a, p)
		b := open(t, c, "", p)
		check(t, c)
		f(c, a, b)
		if err := c.CheckInvariants(); err == nil {
			t.Errorf("%s: not found", name)
		}
	}
}

func BenchmarkOpenCommitClose(b *testing.B) {
	c := newCache(b, 1024, DefaultPageSize)
	base := prompt(nil, 690, 1)
	ps := make([][]int32, 64)
	for i := range ps {
		ps[i] = prompt(base, 704, int32(i+2))
	}
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		p := ps[i%len(ps)]
		s, err := c.Open("", p, true)
		if err != nil {
			b.Fatal(err)
		}
		c.Commit(s, p)
		c.Close(s)
	}
}

func ExampleCache() {
	c, _ := New(Config{Pages: 8, PageSize: 4})
	tokens := []int32{1, 2, 3, 4, 5, 6}
	a, _ := c.Open("", tokens, true)
	c.Commit(a, tokens)
	b, _ := c.Open("", []int32{1, 2, 3, 4, 9}, true)
	fmt.Println(a.Pages(), b.Pages(), b.Cached())
	// Output: [0 1] [0 2] 4
}

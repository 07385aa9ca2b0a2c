package stats

import (
	"encoding/binary"
	"iter"
	"slices"
)

// Column holds integers in the order in which they were added, each as the difference from the one before it, in as many bytes as that
// takes: two or three where neighbours are alike, as times of one run are. Order statistics come from passes over it with a buffer of
// bounded size, so that a million values need no more than a few megabytes. The zero Column is empty. Differences of two values must fit
// 64 bits.
type Column struct {
	chunks   [][]byte
	n        int64
	last     int64
	min, max int64
}

// columnChunk is the size of a piece of a column: the first grows up to it, so that small columns stay small.
const columnChunk = 32 << 10

// Add appends a value.
func (c *Column) Add(v int64) {
	if c.n == 0 {
		c.min, c.max = v, v
	}
	c.min, c.max = min(c.min, v), max(c.max, v)
	k := len(c.chunks) - 1
	if k < 0 || len(c.chunks[k]) > columnChunk-binary.MaxVarintLen64 {
		var fresh []byte
		if k >= 0 {
			fresh = make([]byte, 0, columnChunk)
		}
		c.chunks = append(c.chunks, fresh)
		k++
	}
	c.chunks[k] = binary.AppendVarint(c.chunks[k], v-c.last)
	c.last = v
	c.n++
}

// Len is the number of values.
func (c *Column) Len() int64 { return c.n }

// Min is the smallest value, 0 of an empty column.
func (c *Column) Min() int64 { return c.min }

// Max is the largest value, 0 of an empty column.
func (c *Column) Max() int64 { return c.max }

// All yields the values in the order in which they were added.
func (c *Column) All() iter.Seq[int64] {
	return func(yield func(int64) bool) {
		v := int64(0)
		for _, b := range c.chunks {
			for len(b) > 0 {
				d, n := binary.Varint(b)
				b = b[n:]
				if v += d; !yield(v) {
					return
				}
			}
		}
	}
}

// Order returns order statistics: for each rank, counted from 1 and not falling from one to the next, the rank-th smallest value. It wants
// ranks of 1 to Len.
func (c *Column) Order(ranks ...int64) []int64 {
	out := make([]int64, 0, len(ranks))
	a, at, v := c.Ascending(), int64(0), int64(0)
	for _, rank := range ranks {
		for ; at < rank; at++ {
			v, _ = a.Next()
		}
		out = append(out, v)
	}
	return out
}

// Ascending starts a walk over the values from the smallest to the largest. Nothing may be added during it.
func (c *Column) Ascending() *Ascending {
	a := &Ascending{c: c}
	if c.n > 0 {
		a.todo = []interval{{c.min, c.max, c.n}}
	}
	return a
}

// Ascending walks over a column's values in their order. It holds orderBatch of them at most.
type Ascending struct {
	c       *Column
	batch   []int64 // sorted, what is left of it
	buffer  []int64
	repeats int64 // of one value that is there too often for a batch
	value   int64
	todo    []interval // what is left, the lowest last
}

// interval is the values from low to high, both included, and how many they are.
type interval struct{ low, high, n int64 }

const (
	orderBatch   = 1 << 16
	orderBuckets = 1 << 10
)

// Next returns the next value; false at the end.
func (a *Ascending) Next() (int64, bool) {
	for {
		if len(a.batch) > 0 {
			v := a.batch[0]
			a.batch = a.batch[1:]
			return v, true
		}
		if a.repeats > 0 {
			a.repeats--
			return a.value, true
		}
		k := len(a.todo) - 1
		if k < 0 {
			return 0, false
		}
		next := a.todo[k]
		a.todo = a.todo[:k]
		switch {
		case next.n <= orderBatch:
			a.load(next)
		case next.low == next.high:
			a.value, a.repeats = next.low, next.n
		default:
			a.split(next)
		}
	}
}

// load takes an interval's values into the batch.
func (a *Ascending) load(x interval) {
	a.buffer = a.buffer[:0]
	for v := range a.c.All() {
		if v >= x.low && v <= x.high {
			a.buffer = append(a.buffer, v)
		}
	}
	slices.Sort(a.buffer)
	a.batch = a.buffer
}

// split puts parts of an interval in its place, neighbours together where they fit a batch.
func (a *Ascending) split(x interval) {
	width := (x.high-x.low)/orderBuckets + 1
	counts := make([]int64, orderBuckets)
	for v := range a.c.All() {
		if v >= x.low && v <= x.high {
			counts[(v-x.low)/width]++
		}
	}
	var parts []interval
	for i, n := range counts {
		low := x.low + int64(i)*width
		high := min(low+width-1, x.high)
		if k := len(parts) - 1; k >= 0 && parts[k].n+n <= orderBatch {
			parts[k].high, parts[k].n = high, parts[k].n+n
		} else if n > 0 {
			parts = append(parts, interval{low, high, n})
		}
	}
	slices.Reverse(parts)
	a.todo = append(a.todo, parts...)
}

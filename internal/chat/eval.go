package chat

import (
	"math"
	"strings"
)

func (n *constNode) eval(*state, *scope) value { return n.v }

func (n *nameNode) eval(st *state, sc *scope) value {
	st.step()
	if v, ok := sc.get(n.name); ok {
		return v
	}
	if f, ok := globals[n.name]; ok {
		return f
	}
	return undefined{"'" + n.name + "' is undefined"}
}

func (n *attrNode) eval(st *state, sc *scope) value {
	st.descend()
	v := st.attr(n.x.eval(st, sc), n.name)
	st.ascend()
	return v
}

// attr is x.name: a method, else an element. Nothing else can be reached, Python's internals least of all.
func (st *state) attr(x value, name string) value {
	switch x := x.(type) {
	case undefined:
		st.fail("%s", x.why)
	case *namespace:
		if v, ok := x.attrs[name]; ok {
			return v
		}
	case *loop:
		if v, ok := x.attr(name); ok {
			return v
		}
	case text, *list:
		if f := method(x, name); f != nil {
			return f
		}
	case *dict:
		if f := method(x, name); f != nil {
			return f
		}
		if v, ok := x.get(foreign(name)); ok {
			return v
		}
	}
	return undefined{missing(x, name)}
}

func missing(x value, name string) string {
	if len(name) > 100 {
		name = name[:100] + "…"
	}
	if x == nil {
		return "None has no attribute " + quote(name)
	}
	return "a " + typeName(x) + " has no attribute " + quote(name)
}

func quote(s string) string {
	var b strings.Builder
	reprString(&b, s)
	return b.String()
}

func (n *itemNode) eval(st *state, sc *scope) value {
	st.descend()
	x := n.x.eval(st, sc)
	v := st.item(x, n.key.eval(st, sc))
	st.ascend()
	return v
}

// item is x[key].
func (st *state) item(x, key value) value {
	switch x := x.(type) {
	case undefined:
		st.fail("%s", x.why)
	case *dict:
		if v, ok := x.get(key); ok {
			return v
		}
	case *list:
		if i, ok := integer(key); ok {
			if j, ok := index(i, len(x.items)); ok {
				return x.items[j]
			}
			return undefined{"a list of " + itoa(len(x.items)) + " has no item " + itoa(int(i))}
		}
	case text:
		if i, ok := integer(key); ok {
			st.steps(len(x.s) / 64)
			if j, ok := index(i, x.len()); ok {
				return x.slice(x.offset(j), x.offset(j+1))
			}
			return undefined{"a str of " + itoa(x.len()) + " has no character " + itoa(int(i))}
		}
	}
	if s, ok := key.(text); ok {
		return st.attr(x, s.s)
	}
	return undefined{"a " + typeName(x) + " has no such item"}
}

// index brings Python's index to 0…n-1.
func index(i int64, n int) (int, bool) {
	if i < 0 {
		i += int64(n)
	}
	return int(i), 0 <= i && i < int64(n)
}

func (n *sliceNode) eval(st *state, sc *scope) value {
	st.descend()
	defer st.ascend()
	x := n.x.eval(st, sc)
	bound := func(e expr) *int64 {
		if e == nil {
			return nil
		}
		v := e.eval(st, sc)
		if v == nil {
			return nil
		}
		i, ok := integer(v)
		if !ok {
			st.fail("a slice by %s", typeName(v))
		}
		return &i
	}
	from, to, step := bound(n.from), bound(n.to), bound(n.step)
	switch x := x.(type) {
	case text:
		return st.sliceText(x, from, to, step)
	case *list:
		st.alloc(16 * len(x.items))
		out := &list{tuple: x.tuple}
		for i, s, k := st.sliceBounds(len(x.items), from, to, step); k > 0; i, k = i+s, k-1 {
			out.items = append(out.items, x.items[i])
		}
		return out
	case undefined:
		st.fail("%s", x.why)
	}
	st.fail("a %s can't be sliced", typeName(x))
	return nil
}

func (st *state) sliceText(x text, from, to, step *int64) value {
	st.alloc(2 * len(x.s))
	start, s, k := st.sliceBounds(x.len(), from, to, step)
	if k == 0 {
		return text{}
	}
	if s == 1 {
		a := x.offset(start)
		rest := x.slice(a, len(x.s))
		return rest.slice(0, rest.offset(k))
	}
	st.alloc(32 * len(x.s))
	chars := x.chars()
	var b builder
	for i := start; k > 0; i, k = i+s, k-1 {
		b.add(chars[i].(text))
	}
	return b.text()
}

// sliceBounds returns the first index, the step and the number of elements of [from:to:step] of n elements (Python's
// slice.indices).
func (st *state) sliceBounds(n int, from, to, step *int64) (first, by, count int) {
	s := int64(1)
	if step != nil {
		s = *step
	}
	if s == 0 {
		st.fail("a slice by steps of 0")
	}
	low, high := int64(0), int64(n)
	if s < 0 {
		low, high = -1, int64(n)-1
	}
	clamp := func(p *int64, absent int64) int64 {
		if p == nil {
			return absent
		}
		i := *p
		if i < 0 {
			i += int64(n)
		}
		return min(max(i, low), high)
	}
	s = min(max(s, -int64(n)-1), int64(n)+1)
	if s > 0 {
		a, b := clamp(from, low), clamp(to, high)
		return int(a), int(s), int(max(0, (b-a+s-1)/s))
	}
	a, b := clamp(from, high), clamp(to, low)
	return int(a), int(s), int(max(0, (a-b-s-1)/-s))
}

func (n *callNode) eval(st *state, sc *scope) value {
	st.descend()
	fn := n.fn.eval(st, sc)
	v := st.call(fn, st.args(n.args, sc))
	st.ascend()
	return v
}

func (st *state) call(fn value, a args) value {
	switch fn := fn.(type) {
	case *function:
		return fn.call(st, a)
	case undefined:
		st.fail("%s", fn.why)
	}
	st.fail("a %s can't be called", typeName(fn))
	return nil
}

func (st *state) args(n argNodes, sc *scope) args {
	a := args{names: n.names}
	for _, x := range n.pos {
		a.pos = append(a.pos, x.eval(st, sc))
	}
	for _, x := range n.named {
		a.named = append(a.named, x.eval(st, sc))
	}
	// The names belong to the tree; a call block appends to its copy.
	a.names = a.names[:len(a.names):len(a.names)]
	return a
}

func (n *filterNode) eval(st *state, sc *scope) value {
	st.descend()
	x := n.x.eval(st, sc)
	v := n.fn(st, x, st.args(n.args, sc))
	st.ascend()
	return v
}

func (n *testNode) eval(st *state, sc *scope) value {
	st.descend()
	x := n.x.eval(st, sc)
	v := n.fn(st, x, st.args(n.args, sc).pos)
	st.ascend()
	return v
}

func (n *notNode) eval(st *state, sc *scope) value {
	st.descend()
	v := !truth(n.x.eval(st, sc))
	st.ascend()
	return v
}

func (n *signNode) eval(st *state, sc *scope) value {
	st.descend()
	defer st.ascend()
	v := n.x.eval(st, sc)
	if i, ok := integer(v); ok {
		if !n.negative {
			return i
		}
		if i == math.MinInt64 {
			st.overflow()
		}
		return -i
	}
	f, ok := v.(float64)
	if !ok {
		st.fail("a %s has no sign", typeName(v))
	}
	if n.negative {
		return -f
	}
	return f
}

func (n *logicNode) eval(st *state, sc *scope) value {
	st.descend()
	v := n.left.eval(st, sc)
	if truth(v) != n.or {
		v = n.right.eval(st, sc)
	}
	st.ascend()
	return v
}

func (n *condNode) eval(st *state, sc *scope) value {
	st.descend()
	defer st.ascend()
	if truth(n.test.eval(st, sc)) {
		return n.then.eval(st, sc)
	}
	if n.other == nil {
		return undefined{"an if expression without else has no value"}
	}
	return n.other.eval(st, sc)
}

func (n *compareNode) eval(st *state, sc *scope) value {
	st.descend()
	defer st.ascend()
	left := n.first.eval(st, sc)
	for _, op := range n.ops {
		right := op.x.eval(st, sc)
		if !st.compare(op.op, left, right) {
			return false
		}
		left = right
	}
	return true
}

func (st *state) compare(op string, a, b value) bool {
	switch op {
	case "==":
		return st.equal(a, b, 0)
	case "!=":
		return !st.equal(a, b, 0)
	case "<":
		return st.less(a, b, 0)
	case ">":
		return st.less(b, a, 0)
	case "<=":
		return !st.less(b, a, 0)
	case ">=":
		return !st.less(a, b, 0)
	case "in":
		return st.contains(b, a)
	}
	return !st.contains(b, a)
}

func (n *concatNode) eval(st *state, sc *scope) value {
	st.descend()
	var b builder
	for _, x := range n.items {
		t := st.str(x.eval(st, sc))
		st.alloc(len(t.s) + 16*len(t.trusted))
		b.add(t)
	}
	st.ascend()
	return b.text()
}

func (n *listNode) eval(st *state, sc *scope) value {
	st.descend()
	st.alloc(24 + 16*len(n.items))
	l := &list{make([]value, len(n.items)), n.tuple}
	for i, x := range n.items {
		l.items[i] = x.eval(st, sc)
	}
	st.ascend()
	return l
}

func (n *dictNode) eval(st *state, sc *scope) value {
	st.descend()
	st.alloc(64 + 96*len(n.keys))
	d := newDict(len(n.keys))
	for i, k := range n.keys {
		key := k.eval(st, sc)
		if !d.set(key, n.values[i].eval(st, sc)) {
			st.fail("a %s can't be a key", typeName(key))
		}
	}
	st.ascend()
	return d
}

func (n *arithNode) eval(st *state, sc *scope) value {
	st.descend()
	a := n.left.eval(st, sc)
	v := st.arith(n.op, a, n.right.eval(st, sc))
	st.ascend()
	return v
}

package chat

func (st *state) run(body []stmt, sc *scope) control {
	for _, s := range body {
		st.step()
		if c := s.exec(st, sc); c != goOn {
			return c
		}
	}
	return goOn
}

func (n *dataNode) exec(st *state, _ *scope) control {
	st.write(n.text)
	return goOn
}

func (n *printNode) exec(st *state, sc *scope) control {
	st.line = n.line
	st.write(st.str(n.x.eval(st, sc)))
	return goOn
}

// loop is the variable of that name inside a for loop.
type loop struct {
	items []value
	index int
	last  value // argument of changed
	seen  bool  // changed was called
}

func (l *loop) attr(name string) (value, bool) {
	n := len(l.items)
	switch name {
	case "index":
		return int64(l.index + 1), true
	case "index0":
		return int64(l.index), true
	case "revindex":
		return int64(n - l.index), true
	case "revindex0":
		return int64(n - l.index - 1), true
	case "first":
		return l.index == 0, true
	case "last":
		return l.index == n-1, true
	case "length":
		return int64(n), true
	case "depth":
		return int64(1), true
	case "depth0":
		return int64(0), true
	case "previtem":
		if l.index == 0 {
			return undefined{"there is no previous item"}, true
		}
		return l.items[l.index-1], true
	case "nextitem":
		if l.index == n-1 {
			return undefined{"there is no next item"}, true
		}
		return l.items[l.index+1], true
	case "cycle":
		index := l.index
		return &function{"cycle", func(st *state, a args) value {
			if len(a.pos) == 0 {
				st.fail("cycle needs arguments")
			}
			return a.pos[index%len(a.pos)]
		}}, true
	case "changed":
		return &function{"changed", func(st *state, a args) value {
			v := &list{a.pos, true}
			if l.seen && st.equal(l.last, v, 0) {
				return false
			}
			l.last, l.seen = v, true
			return true
		}}, true
	}
	return nil, false
}

func (n *forNode) exec(st *state, sc *scope) control {
	st.line = n.line
	items := st.items(n.iter.eval(st, sc))
	if n.test != nil {
		var kept []value
		for _, item := range items {
			st.alloc(16)
			inner := sc.inner()
			st.assign(inner, n.target, item)
			if truth(n.test.eval(st, inner)) {
				kept = append(kept, item)
			}
		}
		items = kept
	}
	if len(items) == 0 {
		return st.run(n.or, sc.inner())
	}
	l := &loop{items: items}
	for i, item := range items {
		st.alloc(64)
		l.index = i
		inner := sc.inner()
		inner.set("loop", l)
		st.assign(inner, n.target, item)
		if st.run(n.body, inner) == breakLoop {
			break
		}
	}
	return goOn
}

func (n *ifNode) exec(st *state, sc *scope) control {
	st.line = n.line
	for i, test := range n.tests {
		if truth(test.eval(st, sc)) {
			return st.run(n.bodies[i], sc)
		}
	}
	if len(n.bodies) > len(n.tests) {
		return st.run(n.bodies[len(n.tests)], sc)
	}
	return goOn
}

// assign binds v to a target in sc.
func (st *state) assign(sc *scope, t target, v value) {
	switch {
	case t.parts != nil:
		items := st.items(v)
		if len(items) != len(t.parts) {
			st.fail("%d values for %d names", len(items), len(t.parts))
		}
		for i, part := range t.parts {
			st.assign(sc, part, items[i])
		}
	case t.attr != "":
		v0, _ := sc.get(t.name)
		ns, ok := v0.(*namespace)
		if !ok {
			st.fail("%s isn't a namespace, so %s.%s can't be set", t.name, t.name, t.attr)
		}
		st.alloc(64)
		ns.attrs[t.attr] = v
	default:
		st.alloc(64)
		sc.set(t.name, v)
	}
}

func (n *setNode) exec(st *state, sc *scope) control {
	st.line = n.line
	st.assign(sc, n.target, n.x.eval(st, sc))
	return goOn
}

func (n *setBlockNode) exec(st *state, sc *scope) control {
	st.line = n.line
	var v value = st.capture(func() { st.run(n.body, sc.inner()) })
	st.assign(sc, n.target, st.pipe(n.filters, v, sc))
	return goOn
}

func (n *filterBlockNode) exec(st *state, sc *scope) control {
	st.line = n.line
	var v value = st.capture(func() { st.run(n.body, sc.inner()) })
	st.write(st.str(st.pipe(n.filters, v, sc)))
	return goOn
}

// pipe passes v through the filters of a block.
func (st *state) pipe(filters []*filterNode, v value, sc *scope) value {
	for _, f := range filters {
		v = f.fn(st, v, st.args(f.args, sc))
	}
	return v
}

func (n *macroNode) exec(st *state, sc *scope) control {
	sc.set(n.name, st.macro(n.name, n.params, n.body, n.varargs, n.kwargs, sc))
	return goOn
}

// macro makes a function that returns what body writes with the parameters bound in a scope inside sc.
func (st *state) macro(name string, p params, body []stmt, varargs, kwargs bool, sc *scope) *function {
	return &function{name, func(st *state, a args) value {
		if st.macros++; st.macros > maxMacros {
			st.fail("more than %d macros call each other", maxMacros)
		}
		inner := sc.inner()
		rest := st.bindParams(inner, name, p, a)
		if !varargs && len(rest.pos) > 0 {
			st.fail("the macro %s takes %d arguments, not %d", name, len(p.names), len(a.pos))
		}
		extra := newDict(0)
		for i, key := range rest.names {
			if key == "caller" {
				inner.set("caller", rest.named[i])
			} else if !kwargs {
				st.fail("the macro %s has no parameter %s", name, key)
			} else {
				extra.set(literal(key), rest.named[i])
			}
		}
		inner.set("varargs", &list{rest.pos, true})
		inner.set("kwargs", extra)
		line := st.line
		t := st.capture(func() { st.run(body, inner) })
		st.line = line
		st.macros--
		return t
	}}
}

// bindParams sets the parameters in inner and returns the arguments that are left over.
func (st *state) bindParams(inner *scope, name string, p params, a args) (rest args) {
	bound := make(map[string]bool, len(p.names))
	for i, v := range a.pos {
		if i >= len(p.names) {
			rest.pos = a.pos[i:]
			break
		}
		inner.set(p.names[i], v)
		bound[p.names[i]] = true
	}
	known := make(map[string]bool, len(p.names))
	for _, n := range p.names {
		known[n] = true
	}
	for i, key := range a.names {
		switch {
		case !known[key]:
			rest.names, rest.named = append(rest.names, key), append(rest.named, a.named[i])
		case bound[key]:
			st.fail("the macro %s got %s twice", name, key)
		default:
			inner.set(key, a.named[i])
			bound[key] = true
		}
	}
	first := len(p.names) - len(p.defaults)
	for i, n := range p.names {
		switch {
		case bound[n]:
		case i >= first:
			inner.set(n, p.defaults[i-first].eval(st, inner))
		default:
			inner.set(n, undefined{"the parameter " + n + " wasn't given"})
		}
	}
	return rest
}

func (n *callBlockNode) exec(st *state, sc *scope) control {
	st.line = n.line
	fn := n.call.fn.eval(st, sc)
	a := st.args(n.call.args, sc)
	a.names = append(a.names, "caller")
	a.named = append(a.named, st.macro("caller", n.params, n.body, false, false, sc))
	st.write(st.str(st.call(fn, a)))
	return goOn
}

func (n *withNode) exec(st *state, sc *scope) control {
	st.line = n.line
	inner := sc.inner()
	for i, t := range n.targets {
		st.assign(inner, t, n.values[i].eval(st, sc))
	}
	return st.run(n.body, inner)
}

func (n *scopeNode) exec(st *state, sc *scope) control { return st.run(n.body, sc.inner()) }

func (n *controlNode) exec(*state, *scope) control { return n.c }

package chat

import (
	"sort"
	"strings"
	"unicode"
)

func isWord(r rune) bool { return unicode.IsLetter(r) || unicode.IsNumber(r) }

func filterLength(st *state, x value, a args) value {
	st.bind("length", a)
	switch x := x.(type) {
	case undefined:
		return int64(0)
	case text:
		st.steps(len(x.s) / 64)
		return int64(x.len())
	case *list:
		return int64(len(x.items))
	case *dict:
		return int64(len(x.keys))
	}
	st.fail("a %s has no length", typeName(x))
	return nil
}

func filterList(st *state, x value, a args) value {
	st.bind("list", a)
	return &list{items: st.items(x)}
}

func filterFirst(st *state, x value, a args) value {
	st.bind("first", a)
	if items := st.items(x); len(items) > 0 {
		return items[0]
	}
	return undefined{"an empty sequence has no first item"}
}

func filterLast(st *state, x value, a args) value {
	st.bind("last", a)
	if items := st.items(x); len(items) > 0 {
		return items[len(items)-1]
	}
	return undefined{"an empty sequence has no last item"}
}

func filterReverse(st *state, x value, a args) value {
	st.bind("reverse", a)
	items := st.items(x)
	st.alloc(16 * len(items))
	if _, ok := x.(text); ok {
		return st.joinText(text{}, reversed(items), true)
	}
	return &list{items: reversed(items)}
}

func filterItems(st *state, x value, a args) value {
	st.bind("items", a)
	switch x := x.(type) {
	case undefined:
		return &list{}
	case *dict:
		return &list{items: st.pairs(x)}
	}
	st.fail("items of a %s", typeName(x))
	return nil
}

func filterJoin(st *state, x value, a args) value {
	v := st.bind("join", a, "d", "attribute")
	items := st.items(x)
	if !isAbsent(v[1]) && v[1] != nil {
		items = st.each(items, func(item value) value { return st.path(item, v[1], nil) })
	}
	return st.joinText(st.textArg("join", v[0], ""), items, true)
}

// each returns f of each item.
func (st *state) each(items []value, f func(value) value) []value {
	st.alloc(16 * len(items))
	out := make([]value, len(items))
	for i, item := range items {
		st.step()
		out[i] = f(item)
	}
	return out
}

// path follows an attribute name with dots, or an index. What is missing on the way is def, unless that is absent.
func (st *state) path(x, attribute, def value) value {
	t, ok := attribute.(text)
	if !ok {
		return orDefault(st.item(x, attribute), def)
	}
	for part := range strings.SplitSeq(t.s, ".") {
		st.step()
		var key value = foreign(part)
		if n := len(part); n > 0 && n < 10 && strings.Trim(part, "0123456789") == "" {
			i := int64(0)
			for _, d := range part {
				i = 10*i + int64(d-'0')
			}
			key = i
		}
		x = orDefault(st.item(x, key), def)
	}
	return x
}

func orDefault(x, def value) value {
	if is[undefined](x) && def != nil && !isAbsent(def) {
		return def
	}
	return x
}

func filterMap(st *state, x value, a args) value {
	if !truth(x) {
		return &list{} // Jinja doesn't look further
	}
	items := st.items(x)
	if len(a.pos) == 0 {
		v := st.bind("map", a, "", "attribute", "default")
		if isAbsent(v[1]) {
			st.fail("map needs the name of a filter or an attribute")
		}
		return &list{items: st.each(items, func(item value) value {
			return st.path(item, v[1], v[2])
		})}
	}
	name := st.textArg("map", a.pos[0], "").s
	f, ok := filters[name]
	if !ok {
		st.fail("the filter %s isn't supported", quote(name))
	}
	rest := args{a.pos[1:], a.names, a.named}
	st.descend()
	out := &list{items: st.each(items, func(item value) value { return f(st, item, rest) })}
	st.ascend()
	return out
}

// filterSelect is select, reject and their forms by attribute.
func filterSelect(name string, byAttr, reject bool) filterFunc {
	return func(st *state, x value, a args) value {
		if len(a.named) > 0 {
			st.fail("%s with named arguments isn't supported", name)
		}
		pos := a.pos
		var attribute value
		if byAttr {
			if len(pos) == 0 {
				st.fail("%s needs the name of an attribute", name)
			}
			attribute, pos = pos[0], pos[1:]
		}
		check := func(_ *state, x value, _ []value) bool { return truth(x) }
		if len(pos) > 0 {
			test := st.textArg(name, pos[0], "").s
			f, ok := tests[test]
			if !ok {
				st.fail("the test %s isn't supported", quote(test))
			}
			check, pos = f, pos[1:]
		}
		out := &list{}
		if !truth(x) {
			return out
		}
		for _, item := range st.items(x) {
			st.alloc(16)
			v := item
			if byAttr {
				v = st.path(item, attribute, nil)
			}
			if check(st, v, pos) != reject {
				out.items = append(out.items, item)
			}
		}
		return out
	}
}

// sortKey returns what items are ordered by: an attribute, in lower case unless case counts.
func (st *state) sortKey(attribute value, caseSensitive bool) func(value) value {
	return func(v value) value {
		if attribute != nil && !isAbsent(attribute) {
			v = st.path(v, attribute, nil)
		}
		if t, ok := v.(text); ok && !caseSensitive {
			return st.fold(t, lower)
		}
		return v
	}
}

// sorted sorts items by key, stably.
func (st *state) sorted(items []value, key func(value) value, reverse bool) []value {
	keys := st.each(items, key)
	st.alloc(24 * len(items))
	order := make([]int, len(items))
	for i := range order {
		order[i] = i
	}
	sort.SliceStable(order, func(i, j int) bool {
		if reverse {
			return st.less(keys[order[j]], keys[order[i]], 0)
		}
		return st.less(keys[order[i]], keys[order[j]], 0)
	})
	out := make([]value, len(items))
	for i, j := range order {
		out[i] = items[j]
	}
	return out
}

func filterSort(st *state, x value, a args) value {
	v := st.bind("sort", a, "reverse", "case_sensitive", "attribute")
	if t, ok := v[2].(text); ok && strings.Contains(t.s, ",") {
		st.fail("sort by several attributes isn't supported")
	}
	return &list{items: st.sorted(st.items(x), st.sortKey(v[2], boolArg(v[1], false)), boolArg(v[0], false))}
}

func filterDictsort(st *state, x value, a args) value {
	v := st.bind("dictsort", a, "case_sensitive", "by", "reverse")
	d, ok := x.(*dict)
	if !ok {
		st.fail("dictsort of a %s", typeName(x))
	}
	part := int64(0)
	switch by := st.textArg("dictsort", v[1], "key").s; by {
	case "key":
	case "value":
		part = 1
	default:
		st.fail("dictsort by %s", quote(by))
	}
	return &list{items: st.sorted(st.pairs(d), st.sortKey(part, boolArg(v[0], false)), boolArg(v[2], false))}
}

func filterUnique(st *state, x value, a args) value {
	v := st.bind("unique", a, "case_sensitive", "attribute")
	key := st.sortKey(v[1], boolArg(v[0], false))
	seen := newDict(0)
	out := &list{}
	for _, item := range st.items(x) {
		st.alloc(64)
		k := key(item)
		if _, have := seen.get(k); have {
			continue
		}
		if !seen.set(k, true) {
			st.fail("unique over a %s", typeName(k))
		}
		out.items = append(out.items, item)
	}
	return out
}

func filterExtreme(name string, largest bool) filterFunc {
	return func(st *state, x value, a args) value {
		v := st.bind(name, a, "case_sensitive", "attribute")
		key := st.sortKey(v[1], boolArg(v[0], false))
		items := st.items(x)
		if len(items) == 0 {
			return undefined{"an empty sequence has no " + name}
		}
		best := 0
		keys := st.each(items, key)
		for i := range keys {
			if largest && st.less(keys[best], keys[i], 0) || !largest && st.less(keys[i], keys[best], 0) {
				best = i
			}
		}
		return items[best]
	}
}

func filterSum(st *state, x value, a args) value {
	v := st.bind("sum", a, "attribute", "start")
	var total value = int64(0)
	if !isAbsent(v[1]) {
		total = v[1]
	}
	for _, item := range st.items(x) {
		if !isAbsent(v[0]) && v[0] != nil {
			item = st.path(item, v[0], nil)
		}
		total = st.arith("+", total, item)
	}
	return total
}

func filterBatch(st *state, x value, a args) value {
	v := st.bind("batch", a, "linecount", "fill_with")
	n := st.intArg("batch", v[0], 0)
	if n < 1 {
		st.fail("batch of %d", n)
	}
	items := st.items(x)
	st.alloc(32 * len(items))
	out := &list{}
	for len(items) > 0 {
		row := items[:min(n, len(items)):min(n, len(items))]
		items = items[len(row):]
		if !isAbsent(v[1]) && v[1] != nil && len(row) < n {
			st.alloc(16 * n)
			for len(row) < n {
				row = append(row, v[1])
			}
		}
		out.items = append(out.items, &list{items: row})
	}
	return out
}

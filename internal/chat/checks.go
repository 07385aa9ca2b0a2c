package chat

import "unicode"

// testFunc is x is name(args).
type testFunc func(st *state, x value, a []value) bool

// tests are Jinja's.
var tests map[string]testFunc

func init() {
	tests = map[string]testFunc{
		"defined": func(_ *state, x value, _ []value) bool { return !is[undefined](x) },
		"undefined": func(_ *state, x value, _ []value) bool {
			return is[undefined](x)
		},
		"none":    func(_ *state, x value, _ []value) bool { return x == nil },
		"boolean": func(_ *state, x value, _ []value) bool { return is[bool](x) },
		"true":    func(_ *state, x value, _ []value) bool { return x == true },
		"false":   func(_ *state, x value, _ []value) bool { return x == false },
		"integer": func(_ *state, x value, _ []value) bool { return is[int64](x) },
		"float":   func(_ *state, x value, _ []value) bool { return is[float64](x) },
		"number": func(_ *state, x value, _ []value) bool {
			_, ok := number(x)
			return ok
		},
		"string":  func(_ *state, x value, _ []value) bool { return is[text](x) },
		"mapping": func(_ *state, x value, _ []value) bool { return is[*dict](x) },
		"sequence": func(_ *state, x value, _ []value) bool {
			return is[text](x) || is[*list](x) || is[*dict](x) || is[undefined](x)
		},
		"iterable": func(_ *state, x value, _ []value) bool {
			return is[text](x) || is[*list](x) || is[*dict](x) || is[undefined](x)
		},
		"callable": func(_ *state, x value, _ []value) bool { return is[*function](x) },
		"escaped":  func(*state, value, []value) bool { return false },
		"lower":    func(st *state, x value, _ []value) bool { return cased(st.str(x).s, unicode.IsLower) },
		"upper":    func(st *state, x value, _ []value) bool { return cased(st.str(x).s, unicode.IsUpper) },
		"odd":      func(st *state, x value, _ []value) bool { return st.remainder(x, int64(2)) == 1 },
		"even":     func(st *state, x value, _ []value) bool { return st.remainder(x, int64(2)) == 0 },
		"divisibleby": func(st *state, x value, a []value) bool {
			return st.remainder(x, st.operand("divisibleby", a)) == 0
		},
		"sameas": func(st *state, x value, a []value) bool {
			y := st.operand("sameas", a)
			return typeName(x) == typeName(y) && st.equal(x, y, 0)
		},
		"in": func(st *state, x value, a []value) bool { return st.contains(st.operand("in", a), x) },
		"filter": func(st *state, x value, _ []value) bool {
			_, ok := filters[st.str(x).s]
			return ok
		},
		"test": func(st *state, x value, _ []value) bool {
			_, ok := tests[st.str(x).s]
			return ok
		},
	}
	for op, names := range map[string][]string{
		"==": {"==", "eq", "equalto"}, "!=": {"!=", "ne"}, "<": {"<", "lt", "lessthan"}, "<=": {"<=", "le"},
		">": {">", "gt", "greaterthan"}, ">=": {">=", "ge"},
	} {
		for _, name := range names {
			tests[name] = func(st *state, x value, a []value) bool { return st.compare(op, x, st.operand(name, a)) }
		}
	}
}

func is[T any](x value) bool {
	_, ok := x.(T)
	return ok
}

func (st *state) operand(test string, a []value) value {
	if len(a) != 1 {
		st.fail("the test %s needs one argument", test)
	}
	return a[0]
}

func (st *state) remainder(x, y value) float64 {
	if !is[int64](x) && !is[float64](x) && !is[bool](x) {
		st.fail("a %s can't be divided", typeName(x))
	}
	f, _ := number(st.arith("%", x, y))
	return f
}

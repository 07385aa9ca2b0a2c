package chat

// absent marks a parameter that a call left out.
type absent struct{}

// bind sorts the arguments of a call to what into the named parameters; left out ones are absent{}.
func (st *state) bind(what string, a args, names ...string) []value {
	out := make([]value, len(names))
	for i := range out {
		out[i] = absent{}
	}
	if len(a.pos) > len(names) {
		st.fail("%s takes at most %d arguments, not %d", what, len(names), len(a.pos))
	}
	copy(out, a.pos)
named:
	for i, name := range a.names {
		for j, known := range names {
			if name != known {
				continue
			}
			if _, free := out[j].(absent); !free {
				st.fail("%s got %s twice", what, name)
			}
			out[j] = a.named[i]
			continue named
		}
		st.fail("%s has no parameter %s", what, name)
	}
	return out
}

func isAbsent(v value) bool {
	_, ok := v.(absent)
	return ok
}

// textArg returns a parameter that must be a string; absent gives def.
func (st *state) textArg(what string, v value, def string) text {
	switch v := v.(type) {
	case absent:
		return literal(def)
	case text:
		return v
	}
	st.fail("%s needs a str, not a %s", what, typeName(v))
	return text{}
}

// intArg returns a parameter that must be an integer; absent and None give def.
func (st *state) intArg(what string, v value, def int) int {
	switch v.(type) {
	case absent, nil:
		return def
	}
	i, ok := integer(v)
	if !ok {
		st.fail("%s needs an int, not a %s", what, typeName(v))
	}
	return int(min(max(i, -1<<31), 1<<31-1))
}

func boolArg(v value, def bool) bool {
	if isAbsent(v) {
		return def
	}
	return truth(v)
}

package chat

import (
	"math"
	"strconv"
	"strings"
)

// filterFunc is x | name(args).
type filterFunc func(st *state, x value, a args) value

// filters are Jinja's, as far as chat templates use them. tojson is transformers'.
var filters map[string]filterFunc

func init() {
	filters = map[string]filterFunc{
		"abs":        filterAbs,
		"batch":      filterBatch,
		"capitalize": filterFold("capitalize", capitalize),
		"count":      filterLength,
		"d":          filterDefault,
		"default":    filterDefault,
		"dictsort":   filterDictsort,
		"e":          filterEscape,
		"escape":     filterEscape,
		"first":      filterFirst,
		"float":      filterFloat,
		"format":     filterFormat,
		"indent":     filterIndent,
		"int":        filterInt,
		"items":      filterItems,
		"join":       filterJoin,
		"last":       filterLast,
		"length":     filterLength,
		"list":       filterList,
		"lower":      filterFold("lower", lower),
		"map":        filterMap,
		"max":        filterExtreme("max", true),
		"min":        filterExtreme("min", false),
		"reject":     filterSelect("reject", false, true),
		"rejectattr": filterSelect("rejectattr", true, true),
		"replace":    filterReplace,
		"reverse":    filterReverse,
		"round":      filterRound,
		"safe":       filterString("safe"),
		"select":     filterSelect("select", false, false),
		"selectattr": filterSelect("selectattr", true, false),
		"sort":       filterSort,
		"string":     filterString("string"),
		"sum":        filterSum,
		"title":      filterFold("title", titleWords),
		"tojson":     filterToJSON,
		"trim":       filterTrim,
		"unique":     filterUnique,
		"upper":      filterFold("upper", upper),
		"wordcount":  filterWordcount,
	}
}

func filterFold(name string, f func(string) string) filterFunc {
	return func(st *state, x value, a args) value {
		st.bind(name, a)
		return st.fold(st.str(x), f)
	}
}

func filterString(name string) filterFunc {
	return func(st *state, x value, a args) value {
		st.bind(name, a)
		return st.str(x)
	}
}

func filterTrim(st *state, x value, a args) value {
	t := st.str(x)
	st.alloc(16 * len(t.trusted))
	v := st.bind("trim", a, "chars")
	if v[0] == nil || isAbsent(v[0]) {
		return strip(t, "", false, true, true)
	}
	return strip(t, st.textArg("trim", v[0], "").s, true, true, true)
}

func filterReplace(st *state, x value, a args) value {
	v := st.bind("replace", a, "old", "new", "count")
	if isAbsent(v[0]) || isAbsent(v[1]) {
		st.fail("replace needs two arguments")
	}
	return st.replace(st.str(x), st.str(v[0]), st.str(v[1]), st.intArg("replace", v[2], -1))
}

// escapes are markupsafe's.
var escapes = []struct{ old, new string }{{"&", "&amp;"}, {">", "&gt;"}, {"<", "&lt;"}, {"'", "&#39;"}, {`"`, "&#34;"}}

func filterEscape(st *state, x value, a args) value {
	st.bind("escape", a)
	t := st.str(x)
	for _, e := range escapes {
		t = st.replace(t, foreign(e.old), foreign(e.new), -1)
	}
	return t
}

func filterIndent(st *state, x value, a args) value {
	v := st.bind("indent", a, "width", "first", "blank")
	t, ok := x.(text)
	if !ok {
		st.fail("indent of a %s", typeName(x))
	}
	var by text
	if s, ok := v[0].(text); ok {
		by = s
	} else {
		by = st.repeat(literal(" "), int64(st.intArg("indent", v[0], 4))).(text)
	}
	blank := boolArg(v[2], false)
	newline := literal("\n")
	st.alloc(25 * len(t.s))
	lines := st.lines(st.join(t, newline).(text), false)
	for i, l := range lines {
		if i > 0 && (blank || l.(text).s != "") || i == 0 && boolArg(v[1], false) {
			lines[i] = st.join(by, l)
		}
	}
	return st.joinText(newline, lines, false)
}

func filterFormat(st *state, x value, a args) value {
	if len(a.named) > 0 {
		st.fail("format with named values isn't supported")
	}
	return st.percent(st.str(x), a.pos, false)
}

func filterWordcount(st *state, x value, a args) value {
	st.bind("wordcount", a)
	inWord := func(r rune) bool { return r == '_' || all(string(r), isWord) }
	t := st.str(x)
	st.alloc(len(t.s))
	return int64(len(strings.FieldsFunc(t.s, func(r rune) bool { return !inWord(r) })))
}

func filterDefault(st *state, x value, a args) value {
	v := st.bind("default", a, "default_value", "boolean")
	_, missing := x.(undefined)
	if missing || boolArg(v[1], false) && !truth(x) {
		if isAbsent(v[0]) {
			return text{}
		}
		return v[0]
	}
	return x
}

func filterAbs(st *state, x value, a args) value {
	st.bind("abs", a)
	if i, ok := integer(x); ok {
		if i == math.MinInt64 {
			st.overflow()
		}
		return max(i, -i)
	}
	f, ok := x.(float64)
	if !ok {
		st.fail("abs of a %s", typeName(x))
	}
	return math.Abs(f)
}

func filterInt(st *state, x value, a args) value {
	v := st.bind("int", a, "default", "base")
	if u, ok := x.(undefined); ok {
		st.fail("%s", u.why)
	}
	def := value(int64(0))
	if !isAbsent(v[0]) {
		def = v[0]
	}
	if i, ok := integer(x); ok {
		return i
	}
	f, ok := x.(float64)
	if t, isText := x.(text); isText {
		s := strings.ReplaceAll(strings.TrimFunc(t.s, isSpace), "_", "")
		base := st.intArg("int", v[1], 10)
		if base != 0 && (base < 2 || base > 36) {
			st.fail("int with base %d", base)
		}
		if prefix := map[int]string{16: "0x", 8: "0o", 2: "0b"}[base]; prefix != "" {
			s = strings.TrimPrefix(strings.ToLower(s), prefix)
		}
		if i, err := strconv.ParseInt(s, base, 64); err == nil {
			return i
		}
		f, ok = parseFloat(t.s)
	}
	if !ok || math.Abs(f) >= 1<<63 || f != f {
		return def
	}
	return int64(f)
}

func filterFloat(st *state, x value, a args) value {
	v := st.bind("float", a, "default")
	if u, ok := x.(undefined); ok {
		st.fail("%s", u.why)
	}
	if f, ok := number(x); ok {
		return f
	}
	if t, ok := x.(text); ok {
		if f, ok := parseFloat(t.s); ok {
			return f
		}
	}
	if isAbsent(v[0]) {
		return 0.0
	}
	return v[0]
}

// parseFloat is Python's float(s), which knows no hexadecimal.
func parseFloat(s string) (float64, bool) {
	s = strings.TrimFunc(s, isSpace)
	if strings.ContainsAny(s, "xXpP") {
		return 0, false
	}
	f, err := strconv.ParseFloat(s, 64)
	return f, err == nil || math.IsInf(f, 0)
}

func filterRound(st *state, x value, a args) value {
	v := st.bind("round", a, "precision", "method")
	precision := st.intArg("round", v[0], 0)
	method := st.textArg("round", v[1], "common").s
	f, ok := number(x)
	if !ok {
		st.fail("round of a %s", typeName(x))
	}
	if precision < -300 || precision > 300 {
		return x
	}
	p := math.Pow(10, float64(precision))
	switch method {
	case "ceil":
		f = math.Ceil(f*p) / p
	case "floor":
		f = math.Floor(f*p) / p
	case "common":
		if i, isInt := integer(x); isInt && precision >= 0 {
			return i // Python rounds an int to an int
		}
		if precision >= 0 { // the decimal digits decide, as in Python
			f, _ = strconv.ParseFloat(strconv.FormatFloat(f, 'f', precision, 64), 64)
		} else {
			f = math.RoundToEven(f*p) / p
		}
	default:
		st.fail("round by the method %s", quote(method))
	}
	return f
}

package chat

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
)

// filterToJSON is transformers' tojson: json.dumps with ensure_ascii off, which escapes no HTML and keeps the order of
// keys.
func filterToJSON(st *state, x value, a args) value {
	v := st.bind("tojson", a, "ensure_ascii", "indent", "separators", "sort_keys")
	w := jsonWriter{st: st, item: ", ", key: ": ", ascii: boolArg(v[0], false), sortKeys: boolArg(v[3], false), indent: -1}
	switch by := v[1].(type) {
	case absent, nil:
	case text:
		w.indent, w.by, w.item = 1, by.s, ","
	default:
		w.indent = min(max(st.intArg("tojson", by, 0), 0), 64)
		w.by, w.item = " ", ","
	}
	if l, ok := v[2].(*list); ok {
		if len(l.items) != 2 {
			st.fail("tojson needs two separators")
		}
		w.item, w.key = st.textArg("tojson", l.items[0], "").s, st.textArg("tojson", l.items[1], "").s
	}
	w.value(x, 0)
	return foreign(w.b.String())
}

type jsonWriter struct {
	st        *state
	b         strings.Builder
	item, key string // separators
	ascii     bool
	sortKeys  bool
	indent    int    // repeats of by for each level; -1: all on one line
	by        string // what to indent by
}

func (w *jsonWriter) write(s string) {
	w.st.alloc(len(s))
	w.b.WriteString(s)
}

func (w *jsonWriter) newline(depth int) {
	if w.indent >= 0 {
		w.write("\n" + strings.Repeat(w.by, w.indent*depth))
	}
}

func (w *jsonWriter) value(v value, depth int) {
	if depth > maxValueDepth {
		w.st.fail("a value nests more than %d levels", maxValueDepth)
	}
	switch v := v.(type) {
	case nil:
		w.write("null")
	case bool:
		w.write(strconv.FormatBool(v))
	case int64:
		w.write(strconv.FormatInt(v, 10))
	case float64:
		w.write(jsonFloat(v))
	case text:
		w.string(v.s)
	case *list:
		if len(v.items) == 0 {
			w.write("[]")
			return
		}
		w.write("[")
		for i, item := range v.items {
			if i > 0 {
				w.write(w.item)
			}
			w.newline(depth + 1)
			w.value(item, depth+1)
		}
		w.newline(depth)
		w.write("]")
	case *dict:
		w.dict(v, depth)
	default:
		w.st.fail("a %s can't be written as JSON", typeName(v))
	}
}

func (w *jsonWriter) dict(d *dict, depth int) {
	if len(d.keys) == 0 {
		w.write("{}")
		return
	}
	order := make([]int, len(d.keys))
	w.st.alloc(8 * len(order))
	for i := range order {
		order[i] = i
	}
	if w.sortKeys {
		slices.SortStableFunc(order, func(i, j int) int {
			switch {
			case w.st.less(d.keys[i], d.keys[j], 0):
				return -1
			case w.st.less(d.keys[j], d.keys[i], 0):
				return 1
			}
			return 0
		})
	}
	w.write("{")
	for n, i := range order {
		if n > 0 {
			w.write(w.item)
		}
		w.newline(depth + 1)
		switch k := d.keys[i].(type) {
		case text:
			w.string(k.s)
		case nil:
			w.string("null")
		case bool:
			w.string(strconv.FormatBool(k))
		case float64:
			w.string(jsonFloat(k))
		case int64:
			w.string(strconv.FormatInt(k, 10))
		}
		w.write(w.key)
		w.value(d.values[i], depth+1)
	}
	w.newline(depth)
	w.write("}")
}

// jsonFloat is Python's, which writes what JSON hasn't.
func jsonFloat(f float64) string {
	switch {
	case math.IsInf(f, 1):
		return "Infinity"
	case math.IsInf(f, -1):
		return "-Infinity"
	case math.IsNaN(f):
		return "NaN"
	}
	return pyFloat(f)
}

func (w *jsonWriter) string(s string) {
	w.st.alloc(len(s) + 2)
	short := map[rune]string{'"': `\"`, '\\': `\\`, '\n': `\n`, '\r': `\r`, '\t': `\t`, '\b': `\b`, '\f': `\f`}
	w.b.WriteByte('"')
	for _, r := range s {
		esc, ok := short[r]
		switch {
		case ok:
			w.b.WriteString(esc)
		case r < ' ' || w.ascii && 0x7f <= r && r < 0x10000:
			fmt.Fprintf(&w.b, `\u%04x`, r)
		case w.ascii && r >= 0x10000:
			r -= 0x10000
			fmt.Fprintf(&w.b, `\u%04x\u%04x`, 0xd800+r>>10, 0xdc00+r&0x3ff)
		default:
			w.b.WriteRune(r)
		}
	}
	w.b.WriteByte('"')
}

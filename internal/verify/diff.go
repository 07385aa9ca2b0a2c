package verify

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"cotenant/internal/ledger"
)

// difference compares two values of documents and names the first places that differ by JSON pointer below at; empty where
// none does.
func difference(at string, claimed, computed any) string {
	a, errA := ledger.Marshal(claimed)
	b, errB := ledger.Marshal(computed)
	if errA != nil || errB != nil {
		return fmt.Sprintf("%s can't be compared: %v, %v", at, errA, errB)
	}
	if bytes.Equal(a, b) {
		return ""
	}
	var places []string
	walk(at, generic(a), generic(b), &places)
	const most = 3
	more := ""
	if len(places) > most {
		more = fmt.Sprintf(", and %d more", len(places)-most)
		places = places[:most]
	}
	return strings.Join(places, "; ") + more
}

func generic(b []byte) any {
	dec := json.NewDecoder(bytes.NewReader(b))
	dec.UseNumber()
	var v any
	if err := dec.Decode(&v); err != nil {
		panic("internal error: canonical form doesn't decode: " + err.Error())
	}
	return v
}

func walk(at string, a, b any, places *[]string) {
	switch x := a.(type) {
	case map[string]any:
		y, ok := b.(map[string]any)
		if !ok {
			break
		}
		keys := make([]string, 0, len(x))
		for k := range x {
			keys = append(keys, k)
		}
		slices.Sort(keys)
		for _, k := range keys {
			walk(at+"/"+k, x[k], y[k], places)
		}
		return
	case []any:
		y, ok := b.([]any)
		if !ok {
			break
		}
		for i := range min(len(x), len(y)) {
			walk(at+"/"+strconv.Itoa(i), x[i], y[i], places)
		}
		if len(x) != len(y) {
			*places = append(*places, fmt.Sprintf("%s has %d members, the files give %d", at, len(x), len(y)))
		}
		return
	}
	if a != b {
		*places = append(*places, fmt.Sprintf("%s is %s, the files give %s", at, show(a), show(b)))
	}
}

func show(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		return fmt.Sprint(v)
	}
	const most = 80
	if len(b) > most {
		return string(b[:most]) + "…"
	}
	return string(b)
}

// at follows a JSON pointer (RFC 6901) through a document; pointers of ours need no escapes.
func at(doc any, pointer string) (any, bool) {
	if pointer != "" && pointer[0] != '/' {
		return nil, false
	}
	for _, token := range strings.Split(pointer, "/")[1:] {
		switch v := doc.(type) {
		case map[string]any:
			next, ok := v[token]
			if !ok {
				return nil, false
			}
			doc = next
		case []any:
			i, err := strconv.Atoi(token)
			if err != nil || i < 0 || i >= len(v) {
				return nil, false
			}
			doc = v[i]
		default:
			return nil, false
		}
	}
	return doc, true
}

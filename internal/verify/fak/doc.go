package fak

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// maxDocument bounds a document; theirs have up to 175 kB.
const maxDocument = 16 << 20

// maxDepth bounds how deep objects and lists may nest; theirs nest four deep.
const maxDepth = 32

// doc is a JSON object: members are string, bool, json.Number, []any, doc or nil.
type doc map[string]any

// decode reads one JSON object. A member that comes twice is reported and its last value kept, as encoding/json does.
func decode(data []byte) (d doc, duplicates []string, err error) {
	switch {
	case len(data) > maxDocument:
		return nil, nil, fmt.Errorf("document has %d bytes: the limit is %d", len(data), maxDocument)
	case !utf8.Valid(data):
		return nil, nil, errors.New("document isn't valid UTF-8")
	}
	r := reader{dec: json.NewDecoder(bytes.NewReader(data))}
	r.dec.UseNumber()
	v, err := r.value("", 0)
	if err != nil {
		return nil, nil, fmt.Errorf("reading JSON: %w", err)
	}
	if _, err := r.dec.Token(); err != io.EOF {
		return nil, nil, errors.New("reading JSON: data after the document")
	}
	d, ok := v.(doc)
	if !ok {
		return nil, nil, errors.New("the document isn't a JSON object")
	}
	slices.Sort(r.duplicates)
	return d, slices.Compact(r.duplicates), nil
}

type reader struct {
	dec        *json.Decoder
	duplicates []string // paths
}

func (r *reader) value(path string, depth int) (any, error) {
	token, err := r.dec.Token()
	if err != nil {
		if err == io.EOF {
			err = io.ErrUnexpectedEOF
		}
		return nil, err
	}
	delim, ok := token.(json.Delim)
	if !ok {
		return token, nil
	}
	if depth == maxDepth {
		return nil, fmt.Errorf("nested deeper than %d", maxDepth)
	}
	if delim == '[' {
		out := []any{}
		for r.dec.More() {
			v, err := r.value(path+"[]", depth+1)
			if err != nil {
				return nil, err
			}
			out = append(out, v)
		}
		_, err := r.dec.Token()
		return out, err
	}
	out := doc{}
	for r.dec.More() {
		name, err := r.dec.Token()
		if err != nil {
			return nil, err
		}
		key, ok := name.(string)
		if !ok {
			return nil, errors.New("a member has no name")
		}
		at := strings.TrimPrefix(path+"."+key, ".")
		if _, twice := out[key]; twice && len(r.duplicates) < 100 {
			r.duplicates = append(r.duplicates, at)
		}
		if out[key], err = r.value(at, depth+1); err != nil {
			return nil, err
		}
	}
	_, err = r.dec.Token()
	return out, err
}

// memberType is what their decoder has a member as.
type memberType struct {
	name   string // int, number, text, bool, object, list
	needed bool   // some rule or check asks for it
}

var (
	isInt    = memberType{"int", true}
	isNumber = memberType{"number", true}
	isText   = memberType{"text", true}
	isBool   = memberType{"bool", true}
	isObject = memberType{"object", true}
	isList   = memberType{"list", true}
)

// maybe is a type of a member that may be left out: nothing asks for it, or only where it is there.
func maybe(t memberType) memberType { return memberType{t.name, false} }

// members builds a table from types and lists of names.
func members(pairs ...any) map[string]memberType {
	out := map[string]memberType{"schema": isText}
	for i := 0; i < len(pairs); i += 2 {
		for name := range strings.FieldsSeq(pairs[i+1].(string)) {
			out[name] = pairs[i].(memberType)
		}
	}
	return out
}

// typeErrors names members of another type than the decoder's; null is absence.
func (d doc) typeErrors(types map[string]memberType) string {
	var wrong []string
	for name, t := range types {
		if v := d[name]; v != nil && !t.fits(v) {
			wrong = append(wrong, name+" isn't "+t.name)
		}
	}
	slices.Sort(wrong)
	return list(wrong)
}

func (t memberType) fits(v any) bool {
	switch v := v.(type) {
	case json.Number:
		if t.name == "int" {
			_, err := strconv.ParseInt(v.String(), 10, 64)
			return err == nil
		}
		_, err := v.Float64() // an error where it is beyond float64
		return t.name == "number" && err == nil
	case string:
		return t.name == "text"
	case bool:
		return t.name == "bool"
	case doc:
		return t.name == "object"
	case []any:
		return t.name == "list"
	}
	return false
}

// rename gives members their present names and returns which had another.
func (d doc) rename(aliases map[string]string) []string {
	var out []string
	for old, present := range aliases {
		if v, ok := d[old]; ok && d[present] == nil {
			d[present] = v
			delete(d, old)
			out = append(out, old+" for "+present)
		}
	}
	for _, arm := range d.objects("arms") {
		out = append(out, doc(arm).renameArm(aliases)...)
	}
	slices.Sort(out)
	return slices.Compact(out)
}

func (d doc) renameArm(aliases map[string]string) []string {
	var out []string
	for old, present := range aliases {
		if v, ok := d[old]; ok && d[present] == nil {
			d[present] = v
			delete(d, old)
			out = append(out, "arms[]."+old+" for "+present)
		}
	}
	return out
}

// integer is a member's value, 0 where it is absent or no integer.
func (d doc) integer(name string) int64 {
	n, _ := d[name].(json.Number)
	v, err := strconv.ParseInt(n.String(), 10, 64)
	if err != nil {
		return 0
	}
	return v
}

// number is a member's value, 0 where it is absent or no number.
func (d doc) number(name string) float64 {
	n, _ := d[name].(json.Number)
	v, err := n.Float64()
	if err != nil {
		return 0
	}
	return v
}

func (d doc) text(name string) string { s, _ := d[name].(string); return s }
func (d doc) flag(name string) bool   { b, _ := d[name].(bool); return b }
func (d doc) object(name string) doc  { o, _ := d[name].(doc); return o }
func (d doc) list(name string) []any  { l, _ := d[name].([]any); return l }

// objects are the objects in a list.
func (d doc) objects(name string) []doc {
	var out []doc
	for _, v := range d.list(name) {
		if o, ok := v.(doc); ok {
			out = append(out, o)
		}
	}
	return out
}

// clip cuts s to n bytes at a character's edge, for people to read: a foreign document says nothing to their terminal.
func clip(s string, n int) string {
	s = strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return utf8.RuneError
		}
		return r
	}, s)
	if len(s) <= n {
		return s
	}
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n] + "…"
}

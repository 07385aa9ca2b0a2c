package report

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
)

// document is a JSON document that a page takes its numbers from. Places in it are named by JSON pointers (RFC 6901).
type document struct {
	id   string // "a", "b", …: the page embeds it under this name
	data []byte
	root any // numbers are json.Number
}

func newDocument(id string, data []byte) (*document, error) {
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.UseNumber()
	d := &document{id: id, data: data}
	if err := dec.Decode(&d.root); err != nil {
		return nil, fmt.Errorf("reading document %s: %w", id, err)
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("reading document %s: something follows it", id)
	}
	return d, nil
}

// get is the value at pointer.
func (d *document) get(pointer string) (any, error) {
	at := d.root
	if pointer == "" {
		return at, nil
	}
	if pointer[0] != '/' {
		return nil, fmt.Errorf("%q is no pointer", pointer)
	}
	for _, key := range strings.Split(pointer[1:], "/") {
		key = strings.NewReplacer("~1", "/", "~0", "~").Replace(key)
		switch v := at.(type) {
		case map[string]any:
			next, ok := v[key]
			if !ok {
				return nil, fmt.Errorf("document %s has nothing at %s", d.id, pointer)
			}
			at = next
		case []any:
			i, err := strconv.Atoi(key)
			if err != nil || i < 0 || i >= len(v) {
				return nil, fmt.Errorf("document %s has nothing at %s", d.id, pointer)
			}
			at = v[i]
		default:
			return nil, fmt.Errorf("document %s has nothing at %s", d.id, pointer)
		}
	}
	return at, nil
}

// literal is a scalar as the page's data-v attribute holds it.
func literal(v any) (string, error) {
	switch v := v.(type) {
	case nil:
		return "null", nil
	case bool:
		return strconv.FormatBool(v), nil
	case json.Number:
		return v.String(), nil
	case string:
		return visible(v), nil
	}
	return "", errors.New("not a number, text, truth or null")
}

// documents by id; a place is "id:pointer", and of the document "a" the pointer alone.
type documents map[string]*document

func (ds documents) get(place string) (any, error) {
	id, pointer, ok := strings.Cut(place, ":")
	if !ok || strings.Contains(id, "/") {
		id, pointer = "a", place
	}
	d, ok := ds[id]
	if !ok {
		return nil, fmt.Errorf("there is no document %q", id)
	}
	return d.get(pointer)
}

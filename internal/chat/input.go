package chat

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"
)

// maxInputDepth bounds the nesting of JSON that a request hands to the template.
const maxInputDepth = 64

// fromJSON reads a JSON value; objects keep the order of their keys. Its text isn't trusted.
func fromJSON(raw []byte) (value, error) {
	d := json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber()
	v, err := jsonValue(d, 0)
	if err != nil {
		return nil, err
	}
	if _, err := d.Token(); err != io.EOF {
		return nil, fmt.Errorf("there is more after the JSON value")
	}
	return v, nil
}

func jsonValue(d *json.Decoder, depth int) (value, error) {
	if depth > maxInputDepth {
		return nil, fmt.Errorf("it nests more than %d levels", maxInputDepth)
	}
	t, err := d.Token()
	if err != nil {
		return nil, err
	}
	switch t := t.(type) {
	case string:
		return foreign(t), nil
	case json.Number:
		return jsonNumber(t.String())
	case json.Delim:
		if t == '[' {
			l := &list{}
			for d.More() {
				v, err := jsonValue(d, depth+1)
				if err != nil {
					return nil, err
				}
				l.items = append(l.items, v)
			}
			_, err := d.Token()
			return l, err
		}
		out := newDict(0)
		for d.More() {
			key, err := d.Token()
			if err != nil {
				return nil, err
			}
			v, err := jsonValue(d, depth+1)
			if err != nil {
				return nil, err
			}
			out.set(foreign(key.(string)), v)
		}
		_, err := d.Token()
		return out, err
	}
	return t, nil // nil, bool
}

func jsonNumber(s string) (value, error) {
	if !strings.ContainsAny(s, ".eE") {
		if i, err := strconv.ParseInt(s, 10, 64); err == nil {
			return i, nil
		}
		return nil, fmt.Errorf("the number %.40s doesn't fit 64 bits", s)
	}
	f, err := strconv.ParseFloat(s, 64)
	if err != nil {
		return nil, fmt.Errorf("the number %.40s is too large", s)
	}
	return f, nil
}

// reasoningNames are the names that clients give a message's reasoning. transformers fills in the first, which
// templates read, and the second.
var reasoningNames = []string{"reasoning_content", "thinking", "reasoning"}

// messageValue brings a message to what the template sees. As in transformers, fields that are null don't exist.
func messageValue(m Message) (*dict, error) {
	d := newDict(4)
	d.set(foreign("role"), foreign(m.Role))
	d.set(foreign("content"), foreign(m.Content))
	if m.Name != "" {
		d.set(foreign("name"), foreign(m.Name))
	}
	if len(m.Extra) > 0 {
		v, err := fromJSON(m.Extra)
		if err != nil {
			return nil, err
		}
		extra, ok := v.(*dict)
		if !ok {
			return nil, fmt.Errorf("further fields must be a JSON object, not a %s", typeName(v))
		}
		for i, k := range extra.keys {
			if extra.values[i] != nil {
				d.set(k, extra.values[i])
			}
		}
	}
	for _, name := range reasoningNames {
		v, ok := d.get(foreign(name))
		if !ok {
			continue
		}
		if _, have := d.get(foreign("thinking")); !have {
			d.set(foreign("thinking"), v)
		}
		d.set(foreign("reasoning_content"), v)
		break
	}
	return d, nil
}

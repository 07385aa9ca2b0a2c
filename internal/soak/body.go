package soak

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"

	"cotenant/internal/ledger"
	"cotenant/internal/loadgen"
)

// Members of the request body that the client sets and a user's own JSON must not.
var ownMembers = []string{"model", "messages", "prompt", "stream", "stream_options", "n", "max_tokens", "max_completion_tokens"}

// bodyMaker builds request bodies. A copy with another field is another maker.
type bodyMaker struct {
	model        string
	maxTokens    int64
	tokensMember string // max_tokens or max_completion_tokens
	includeUsage bool
	sampling     []member
	extra        []byte // members as sent, without braces; empty: none

	base        loadgen.Message // what most requests begin with, and its JSON
	baseEncoded []byte
}

type member struct {
	name  string
	value string
}

// newBodyMaker checks the sampling fields against the user's own JSON, which must be an object.
func newBodyMaker(o *Options) (*bodyMaker, error) {
	m := &bodyMaker{model: o.Model, maxTokens: o.MaxTokens, tokensMember: "max_tokens", includeUsage: true}
	names, extra, err := parseExtra(o.BodyJSON)
	if err != nil {
		return nil, err
	}
	if first := o.Source.Task(0).Messages; len(first) > 1 {
		m.base = first[0]
		if m.baseEncoded, err = json.Marshal(m.base); err != nil {
			return nil, fmt.Errorf("encoding messages: %w", err)
		}
	}
	m.extra = extra
	add := func(name string, given bool, value string) error {
		if !slices.Contains(names, name) {
			m.sampling = append(m.sampling, member{name, value})
		} else if given {
			return usage("%s is given twice: as a flag and in the body's JSON", name)
		}
		return nil
	}
	if err := add("temperature", *o.Temperature != 0, strconv.FormatFloat(*o.Temperature, 'g', -1, 64)); err != nil {
		return nil, err
	}
	if o.TopP != nil {
		if err := add("top_p", true, strconv.FormatFloat(*o.TopP, 'g', -1, 64)); err != nil {
			return nil, err
		}
	}
	if o.Seed != nil {
		if err := add("seed", true, strconv.FormatInt(*o.Seed, 10)); err != nil {
			return nil, err
		}
	}
	return m, nil
}

// parseExtra checks a user's JSON object and returns its members' names and its inside.
func parseExtra(b []byte) (names []string, inside []byte, err error) {
	b = bytes.TrimSpace(b)
	if len(b) == 0 {
		return nil, nil, nil
	}
	dec := json.NewDecoder(bytes.NewReader(b))
	open, err := dec.Token()
	if err != nil || open != json.Delim('{') {
		return nil, nil, usage("the body's JSON isn't an object like {\"top_k\": 1}")
	}
	for dec.More() {
		t, err := dec.Token()
		if err != nil {
			return nil, nil, usage("the body's JSON: %v", err)
		}
		name := t.(string) // json.Decoder gives an object's keys as strings
		var value json.RawMessage
		if err := dec.Decode(&value); err != nil {
			return nil, nil, usage("the body's JSON, member %q: %v", name, err)
		}
		if slices.Contains(ownMembers, name) {
			return nil, nil, usage("the body's JSON must not set %q: the client does", name)
		}
		if slices.Contains(names, name) {
			return nil, nil, usage("the body's JSON sets %q twice", name)
		}
		names = append(names, name)
	}
	if _, err := dec.Token(); err != nil {
		return nil, nil, usage("the body's JSON: %v", err)
	}
	if _, err := dec.Token(); err != io.EOF {
		return nil, nil, usage("the body's JSON goes on behind its object")
	}
	return names, bytes.TrimSpace(b[1 : len(b)-1]), nil
}

// extras is what one request says beside what all say.
type extras struct {
	maxTokens int64  // 0: as all
	user      string // the tenant; empty: none
}

// append builds a request body for messages behind dst.
func (m *bodyMaker) append(dst []byte, messages []loadgen.Message, x extras) ([]byte, error) {
	model, err := json.Marshal(m.model)
	if err != nil {
		return nil, err
	}
	dst = append(append(dst, `{"model":`...), model...)
	dst = append(dst, `,"messages":[`...)
	for i, msg := range messages {
		if i > 0 {
			dst = append(dst, ',')
		}
		encoded := m.baseEncoded
		if encoded == nil || msg != m.base {
			if encoded, err = json.Marshal(msg); err != nil {
				return nil, fmt.Errorf("encoding messages: %w", err)
			}
		}
		dst = append(dst, encoded...)
	}
	dst = append(dst, ']')
	if x.user != "" { // a tenant's name needs no escapes
		dst = append(append(append(dst, `,"user":"`...), x.user...), '"')
	}
	dst = append(dst, `,"stream":true`...)
	if m.includeUsage {
		dst = append(dst, `,"stream_options":{"include_usage":true}`...)
	}
	dst = append(dst, ',', '"')
	dst = append(append(dst, m.tokensMember...), '"', ':')
	dst = strconv.AppendInt(dst, cmp.Or(x.maxTokens, m.maxTokens), 10)
	for _, s := range m.sampling {
		dst = append(append(append(dst, ',', '"'), s.name...), '"', ':')
		dst = append(dst, s.value...)
	}
	if len(m.extra) > 0 {
		dst = append(append(dst, ','), m.extra...)
	}
	return append(dst, '}'), nil
}

// describe is what the config says of how answers are asked for.
func (m *bodyMaker) describe(o *Options) ledger.Sampling {
	s := ledger.Sampling{MaxTokens: m.maxTokens, Stream: true, IncludeUsage: m.includeUsage, MaxTokensMember: m.tokensMember}
	if len(m.extra) > 0 {
		s.ExtraBody = "{" + string(m.extra) + "}"
	}
	millionths := func(v float64) ledger.Opt { return ledger.Some(int64(math.Round(v * 1e6))) }
	for _, f := range m.sampling {
		switch f.name {
		case "temperature":
			s.TemperatureE6 = millionths(*o.Temperature)
		case "top_p":
			s.TopPE6 = millionths(*o.TopP)
		case "seed":
			s.Seed = ledger.Some(*o.Seed)
		}
	}
	return s
}

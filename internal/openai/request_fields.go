package openai

import (
	"math"
	"strconv"
	"strings"
)

// maxTokenID bounds token ids where the vocabulary isn't known yet.
const maxTokenID = math.MaxInt32

func readInt(r *requestReader, lo, hi int) (int, error) {
	n, err := r.integer(int64(lo), int64(hi))
	return int(n), err
}

func readPointer(r *requestReader, dst **int, lo, hi int) error {
	n, err := readInt(r, lo, hi)
	*dst = &n
	return err
}

// readLimit reads a token limit. One beyond 2^31-1 is read as that: no context is longer.
func readLimit(r *requestReader, dst **int) error {
	n, err := r.integer(0, math.MaxInt64)
	limit := int(min(n, math.MaxInt32))
	*dst = &limit
	return err
}

// readPositive reads a number in (0, hi].
func readPositive(r *requestReader, dst *float64, hi float64) error {
	f, err := r.float(0, hi)
	if err == nil && f <= 0 {
		return r.wrong("must be above 0 and at most %g, got %g", hi, f)
	}
	*dst = f
	return err
}

// readTopK takes -1 (vLLM) and 0 (llama.cpp) for off.
func readTopK(r *requestReader, q *Request) error {
	n, err := r.integer(-1, math.MaxInt64)
	q.TopK = int(min(max(n, 0), math.MaxInt32))
	return err
}

func readSeed(r *requestReader, q *Request) error {
	text, err := r.rawNumber("an integer")
	if err != nil {
		return err
	}
	seed, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		f, err := strconv.ParseFloat(text, 64)
		switch {
		case err == nil && f != math.Trunc(f):
			return r.wrong("expected an integer, got %s", clip(text))
		case err != nil || math.Abs(f) > 1<<53: // beyond, neighbours have the same float
			return r.wrong("expected an integer of 64 bits, got %s", clip(text))
		}
		seed = int64(f)
	}
	q.Seed = &seed
	return nil
}

func readCacheSalt(r *requestReader, q *Request) error {
	s, err := r.string()
	switch {
	case err != nil:
		return err
	case s == "" || len(s) > maxSaltBytes:
		return r.wrong("must have 1 to %d bytes, got %d", maxSaltBytes, len(s))
	}
	q.CacheSalt = s
	return nil
}

func readStreamOptions(r *requestReader, q *Request) error {
	q.streamOptions = true
	return object(r, fields[Request]{
		"include_usage":          func(r *requestReader, q *Request) (err error) { q.IncludeUsage, err = r.bool(); return },
		"continuous_usage_stats": func(r *requestReader, q *Request) (err error) { q.ContinuousUsage, err = r.bool(); return },
	}, q)
}

// readStop takes one string or several. An empty one would match at once, so it is refused.
func readStop(r *requestReader, q *Request) error {
	one := func() error {
		s, err := r.string()
		switch {
		case err != nil:
			return err
		case s == "":
			return r.wrong("must not be empty")
		case len(s) > MaxStopBytes:
			return r.wrong("has %d bytes; at most %d are allowed", len(s), MaxStopBytes)
		}
		q.Stop = append(q.Stop, s)
		return nil
	}
	switch r.peek() {
	case '"':
		return one()
	case '[':
		return r.array(func(i int) error {
			if i == MaxStops {
				return BadRequest("stop", "stop: at most %d strings are allowed", MaxStops)
			}
			return one()
		})
	}
	return r.expected("a string or an array of strings")
}

// readTokens reads an array of at most limit token ids. The result isn't nil, even when it is empty.
func readTokens(r *requestReader, limit int) ([]int32, error) {
	tokens := []int32{}
	err := r.array(func(i int) error {
		if i == limit {
			return r.wrong("at most %d token ids are allowed", limit)
		}
		id, err := r.integer(0, maxTokenID)
		tokens = append(tokens, int32(id))
		return err
	})
	return tokens, err
}

func readLogitBias(r *requestReader, q *Request) error {
	bias := map[int32]float32{}
	err := r.members(func(name string) error {
		id, err := strconv.ParseUint(name, 10, 31)
		if err != nil {
			return r.wrong("the name must be a token id, such as \"50256\"")
		}
		if _, twice := bias[int32(id)]; twice {
			return r.wrong("given twice")
		}
		if len(bias) == MaxBiases {
			return BadRequest("logit_bias", "logit_bias: at most %d tokens are allowed", MaxBiases)
		}
		v, err := r.float(-100, 100)
		bias[int32(id)] = float32(v)
		return err
	})
	q.LogitBias = bias
	return err
}

// readPrompts takes a string, an array of strings, an array of token ids, or an array of such arrays.
func readPrompts(r *requestReader, q *Request) error {
	if r.peek() == '"' {
		s, err := r.string()
		q.Prompts = []Prompt{{Text: s}}
		return err
	}
	const forms = "a string, an array of strings, an array of token ids or an array of arrays of token ids"
	if r.peek() != '[' {
		return r.expected(forms)
	}
	var flat []int32
	form := ""
	err := r.array(func(i int) error {
		got := r.kind()
		if form == "" {
			form = got
		}
		if got != form {
			return r.expected(form + " as before it (a prompt can't mix forms)")
		}
		if i == MaxAllChoices && form != "a number" {
			return BadRequest("prompt", "prompt: at most %d prompts are allowed", MaxAllChoices)
		}
		switch form {
		case "a string":
			s, err := r.string()
			q.Prompts = append(q.Prompts, Prompt{Text: s})
			return err
		case "a number":
			if i == MaxPromptTokens {
				return r.wrong("at most %d token ids are allowed", MaxPromptTokens)
			}
			id, err := r.integer(0, maxTokenID)
			flat = append(flat, int32(id))
			return err
		case "an array":
			tokens, err := readTokens(r, MaxPromptTokens)
			if err == nil && len(tokens) == 0 {
				return r.wrong("has no tokens")
			}
			q.Prompts = append(q.Prompts, Prompt{Tokens: tokens})
			return err
		}
		return r.expected("a string, a token id or an array of token ids")
	})
	if flat != nil {
		q.Prompts = []Prompt{{Tokens: flat}}
	}
	return err
}

// rawMessage is a message while it is read.
type rawMessage struct {
	Message
	content bool
}

var messageFields = fields[rawMessage]{
	"role":          func(r *requestReader, m *rawMessage) (err error) { m.Role, err = readRole(r); return },
	"name":          func(r *requestReader, m *rawMessage) (err error) { m.Name, err = r.string(); return },
	"content":       readContent,
	"tool_calls":    refuse[rawMessage]("[]"),
	"function_call": refuse[rawMessage](),
	"audio":         refuse[rawMessage](),
	"refusal":       refuse[rawMessage](`""`),
}

func readMessages(r *requestReader, q *Request) error {
	return r.array(func(int) error {
		var m rawMessage
		if err := object(r, messageFields, &m); err != nil {
			return err
		}
		switch {
		case m.Role == "":
			return BadRequest(r.param()+".role", "%s.role: is missing", r.param())
		case !m.content:
			return BadRequest(r.param()+".content", "%s.content: is missing", r.param())
		}
		q.Messages = append(q.Messages, m.Message)
		return nil
	})
}

// readRole knows the roles that a prompt can be made of. Developer is the later name of system.
func readRole(r *requestReader) (string, error) {
	role, err := r.string()
	if err != nil {
		return "", err
	}
	switch role {
	case "system", "user", "assistant":
		return role, nil
	case "developer":
		return "system", nil
	case "tool", "function":
		return "", r.wrong("%q is not supported, since tools are not", role)
	}
	return "", r.wrong("unknown role %q; the roles are system, developer, user and assistant", clip(role))
}

func readContent(r *requestReader, m *rawMessage) error {
	m.content = true
	switch r.peek() {
	case '"':
		s, err := r.string()
		m.Content = s
		return err
	case '[':
		var texts []string
		err := r.array(func(int) error {
			text, err := readPart(r)
			texts = append(texts, text)
			return err
		})
		if err == nil && len(texts) == 0 {
			return r.wrong("has no parts")
		}
		m.Content = strings.Join(texts, "\n")
		return err
	}
	return r.expected("a string or an array of parts")
}

// rawPart is an element of a list content while it is read.
type rawPart struct {
	kind string
	text *string
}

var partFields = fields[rawPart]{
	"type": func(r *requestReader, p *rawPart) (err error) { p.kind, err = r.string(); return },
	"text": func(r *requestReader, p *rawPart) error {
		s, err := r.string()
		p.text = &s
		return err
	},
}

func readPart(r *requestReader) (string, error) {
	var p rawPart
	if err := object(r, partFields, &p); err != nil {
		return "", err
	}
	switch at := r.param(); {
	case p.kind == "":
		return "", BadRequest(at+".type", "%s.type: is missing", at)
	case p.kind != "text":
		return "", BadRequest(at+".type", "%s.type: %q is not supported; only text parts are", at, clip(p.kind))
	case p.text == nil:
		return "", BadRequest(at+".text", "%s.text: is missing", at)
	}
	return *p.text, nil
}

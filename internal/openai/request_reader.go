package openai

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// requestReader reads one request body. Its methods return an *Error that names the field they stand on.
type requestReader struct {
	jsonCursor
	path []pathStep
}

type pathStep struct {
	name    string // of a member
	index   int
	element bool
}

// newRequestReader checks that the body is UTF-8 as a whole, which JSON demands (RFC 8259, section 8.1).
func newRequestReader(body []byte) (*requestReader, error) {
	if !utf8.Valid(body) {
		at := 0
		for r, size := utf8.DecodeRune(body); r != utf8.RuneError || size != 1; r, size = utf8.DecodeRune(body[at:]) {
			at += size
		}
		return nil, BadRequest("", "body is not valid UTF-8 at byte %d", at)
	}
	return &requestReader{jsonCursor: jsonCursor{b: body}}, nil
}

// param is the name of the field that the reader stands on, such as messages[0].content.
func (r *requestReader) param() string {
	var b strings.Builder
	for i, s := range r.path {
		switch {
		case s.element:
			fmt.Fprintf(&b, "[%d]", s.index)
		case i > 0:
			b.WriteString("." + clip(s.name))
		default:
			b.WriteString(clip(s.name))
		}
	}
	return b.String()
}

// wrong is an error about the field that the reader stands on.
func (r *requestReader) wrong(format string, args ...any) error {
	if err := r.syntax(); err != nil {
		return err
	}
	param, text := r.param(), fmt.Sprintf(format, args...)
	if param == "" {
		return BadRequest("", "body: %s", text)
	}
	return BadRequest(param, "%s: %s", param, text)
}

// syntax is the cursor's error as an *Error, nil if there is none. The place is found by reading the body a second time, since
// only broken bodies pay for that.
func (r *requestReader) syntax() error {
	switch {
	case r.err == nil:
		return nil
	case errors.Is(r.err, errJSONDepth):
		return BadRequest(r.param(), "body is %v", r.err)
	}
	var raw json.RawMessage
	var at *json.SyntaxError
	if err := json.Unmarshal(r.b, &raw); errors.As(err, &at) {
		return BadRequest("", "body is not valid JSON at byte %d: %v", at.Offset, at)
	}
	return BadRequest("", "body is not valid JSON")
}

// kind names the type of the next value, with its article.
func (r *requestReader) kind() string {
	switch ch := r.peek(); {
	case ch == '{':
		return "an object"
	case ch == '[':
		return "an array"
	case ch == '"':
		return "a string"
	case ch == 't', ch == 'f':
		return "a boolean"
	case ch == 'n':
		return "null"
	case ch == '-', ch >= '0' && ch <= '9':
		return "a number"
	}
	return "no value"
}

// expected is the error for a value of the wrong type. It checks the value's own syntax first, so that `tru` isn't called a
// boolean.
func (r *requestReader) expected(what string) error {
	got := r.kind()
	r.skip()
	return r.wrong("expected %s, got %s", what, got)
}

// null consumes a null and reports whether there was one.
func (r *requestReader) null() bool {
	if r.peek() != 'n' {
		return false
	}
	r.word("null")
	return r.err == nil
}

func (r *requestReader) string() (string, error) {
	if r.peek() != '"' {
		return "", r.expected("a string")
	}
	r.invalidUTF8 = false
	r.scratch = r.text(r.scratch[:0])
	if r.err != nil {
		return "", r.syntax()
	}
	if r.invalidUTF8 {
		return "", r.wrong(`has a lone surrogate (\ud800 to \udfff must come in pairs)`)
	}
	return string(r.scratch), nil
}

func (r *requestReader) bool() (bool, error) {
	switch r.peek() {
	case 't':
		r.word("true")
		return true, r.syntax()
	case 'f':
		r.word("false")
		return false, r.syntax()
	}
	return false, r.expected("a boolean")
}

// rawNumber passes over a number and returns its text.
func (r *requestReader) rawNumber(what string) (string, error) {
	if r.kind() != "a number" {
		return "", r.expected(what)
	}
	from := r.i
	r.number()
	if r.err != nil {
		return "", r.syntax()
	}
	return string(r.b[from:r.i]), nil
}

// integer reads a whole number between lo and hi.
func (r *requestReader) integer(lo, hi int64) (int64, error) {
	text, err := r.rawNumber("an integer")
	if err != nil {
		return 0, err
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		f, ferr := strconv.ParseFloat(text, 64)
		if ferr == nil && f != math.Trunc(f) {
			return 0, r.wrong("expected an integer, got %s", clip(text))
		}
		if ferr != nil || math.Abs(f) > 1<<53 {
			return 0, r.wrong("%s, got %s", between(float64(lo), float64(hi)), clip(text))
		}
		n = int64(f)
	}
	if n < lo || n > hi {
		return 0, r.wrong("%s, got %s", between(float64(lo), float64(hi)), clip(text))
	}
	return n, nil
}

// float reads a number between lo and hi.
func (r *requestReader) float(lo, hi float64) (float64, error) {
	text, err := r.rawNumber("a number")
	if err != nil {
		return 0, err
	}
	f, err := strconv.ParseFloat(text, 64)
	if err != nil || f < lo || f > hi {
		return 0, r.wrong("%s, got %s", between(lo, hi), clip(text))
	}
	return f, nil
}

func between(lo, hi float64) string {
	if hi >= math.MaxInt32 {
		return "must be at least " + strconv.FormatFloat(lo, 'f', -1, 64)
	}
	return "must be between " + strconv.FormatFloat(lo, 'f', -1, 64) + " and " + strconv.FormatFloat(hi, 'f', -1, 64)
}

// clip keeps what is quoted back to a client short.
func clip(s string) string {
	if len(s) <= 40 {
		return s
	}
	return strings.ToValidUTF8(s[:40], "") + "…"
}

// array calls item for each element with the reader on it.
func (r *requestReader) array(item func(i int) error) error {
	if r.peek() != '[' {
		return r.expected("an array")
	}
	if !r.open('[') {
		return r.syntax()
	}
	r.path = append(r.path, pathStep{element: true})
	for i, first := 0, true; r.element(&first); i++ {
		r.path[len(r.path)-1].index = i
		if err := item(i); err != nil {
			return err
		}
	}
	r.path = r.path[:len(r.path)-1]
	return r.syntax()
}

// members calls field for each member with the reader on its value.
func (r *requestReader) members(field func(name string) error) error {
	if r.peek() != '{' {
		return r.expected("an object")
	}
	if !r.open('{') {
		return r.syntax()
	}
	for first := true; ; {
		key, ok := r.key(&first)
		if !ok {
			return r.syntax()
		}
		name := string(key)
		r.path = append(r.path, pathStep{name: name})
		if err := field(name); err != nil {
			return err
		}
		if err := r.syntax(); err != nil {
			return err
		}
		r.path = r.path[:len(r.path)-1]
	}
}

// fields is a table of an object's known members: each reads its value into dst.
type fields[T any] map[string]func(r *requestReader, dst *T) error

// object reads an object into dst by a table: unknown members are passed over, a null leaves the field as it is, and a known
// member given twice is an error.
func object[T any](r *requestReader, table fields[T], dst *T) error {
	var seen []string
	return r.members(func(name string) error {
		read, known := table[name]
		if !known {
			r.skip()
			return r.syntax()
		}
		if slices.Contains(seen, name) {
			return r.wrong("given twice")
		}
		seen = append(seen, name)
		if r.null() {
			return nil
		}
		return read(r, dst)
	})
}

package chat

import (
	"fmt"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

type tokenKind uint8

const (
	tokEOF tokenKind = iota
	tokData
	tokVarBegin
	tokVarEnd
	tokBlockBegin
	tokBlockEnd
	tokName
	tokString
	tokInt
	tokFloat
	tokOp
)

type token struct {
	kind tokenKind
	text string // of a string: its value
	line int
}

// lexer cuts a template into tokens as Jinja does with trim_blocks and lstrip_blocks: the first newline after a block
// or comment goes, and so does white space before one at the start of a line.
type lexer struct {
	src         string
	pos, line   int
	lineStarted bool // src[:pos] ends inside a line, as Jinja sees it: a newline that a tag took counts as an end
	out         []token
}

func lex(src string) ([]token, error) {
	src = strings.NewReplacer("\r\n", "\n", "\r", "\n").Replace(src)
	src = strings.TrimSuffix(src, "\n") // keep_trailing_newline is off
	l := &lexer{src: src, line: 1}
	for l.pos < len(l.src) {
		if err := l.root(); err != nil {
			return nil, err
		}
	}
	l.emit(tokEOF, "")
	return l.out, nil
}

func (l *lexer) emit(kind tokenKind, text string) {
	l.out = append(l.out, token{kind, text, l.line})
}

// take consumes n bytes.
func (l *lexer) take(n int) string {
	s := l.src[l.pos : l.pos+n]
	l.pos += n
	l.line += strings.Count(s, "\n")
	if n > 0 {
		l.lineStarted = s[n-1] != '\n'
	}
	return s
}

// root reads data up to the next tag, and the tag.
func (l *lexer) root() error {
	rest := l.src[l.pos:]
	at, kind := nextTag(rest)
	if at < 0 {
		l.data(rest, l.take(len(rest)))
		return nil
	}
	data := rest[:at]
	sign := byte(0)
	if at+2 < len(rest) && (rest[at+2] == '-' || rest[at+2] == '+') {
		sign = rest[at+2]
	}
	kept := data
	switch {
	case sign == '-':
		kept = strings.TrimRightFunc(data, isSpace)
	case sign == 0 && kind != '{':
		start := strings.LastIndexByte(data, '\n') + 1
		if (start > 0 || !l.lineStarted) && strings.TrimFunc(data[start:], isSpace) == "" {
			kept = data[:start]
		}
	}
	l.data(kept, l.take(at))
	if kind == '%' {
		if raw, ok := l.rawBegin(); ok {
			return l.raw(raw)
		}
	}
	n := 2
	if sign != 0 {
		n = 3
	}
	switch kind {
	case '#':
		return l.comment(n)
	case '%':
		l.emit(tokBlockBegin, "")
		l.take(n)
		return l.tag("%}", tokBlockEnd)
	}
	l.emit(tokVarBegin, "")
	l.take(n)
	return l.tag("}}", tokVarEnd)
}

// data emits kept, which stands on the lines before taken was taken.
func (l *lexer) data(kept, taken string) {
	if kept != "" {
		l.out = append(l.out, token{tokData, kept, l.line - strings.Count(taken, "\n")})
	}
}

func nextTag(s string) (at int, kind byte) {
	for i := 0; i+1 < len(s); {
		n := strings.IndexByte(s[i:], '{')
		if n < 0 || i+n+1 >= len(s) {
			break
		}
		i += n
		if k := s[i+1]; k == '{' || k == '%' || k == '#' {
			return i, k
		}
		i++
	}
	return -1, 0
}

func (l *lexer) comment(begin int) error {
	start := l.pos + begin
	n := strings.Index(l.src[start:], "#}")
	if n < 0 {
		return l.errorf("a comment has no end")
	}
	end := start + n
	sign := byte(0)
	if n > 0 {
		sign = l.src[end-1]
	}
	l.take(end + 2 - l.pos)
	l.afterEnd(sign, true)
	return nil
}

// afterEnd drops what the end of a tag takes along.
func (l *lexer) afterEnd(sign byte, trim bool) {
	rest := l.src[l.pos:]
	switch {
	case sign == '-':
		l.take(len(rest) - len(strings.TrimLeftFunc(rest, isSpace)))
	case sign != '+' && trim && strings.HasPrefix(rest, "\n"):
		l.take(1)
	}
}

// rawBegin returns the length of {% raw %} at pos.
func (l *lexer) rawBegin() (n int, ok bool) {
	s := l.src[l.pos:]
	rest := s[2:]
	if rest != "" && (rest[0] == '-' || rest[0] == '+') {
		rest = rest[1:]
	}
	rest = strings.TrimLeftFunc(rest, isSpace)
	rest, ok = strings.CutPrefix(rest, "raw")
	if !ok {
		return 0, false
	}
	rest = strings.TrimLeftFunc(rest, isSpace)
	if after, ok := strings.CutPrefix(rest, "-%}"); ok {
		return len(s) - len(strings.TrimLeftFunc(after, isSpace)), true
	}
	if after, ok := strings.CutPrefix(rest, "%}"); ok {
		return len(s) - len(after), true
	}
	return 0, false
}

// raw emits everything up to {% endraw %} as data.
func (l *lexer) raw(begin int) error {
	l.take(begin)
	started := l.lineStarted
	for i := l.pos; ; {
		n := strings.Index(l.src[i:], "{%")
		if n < 0 {
			return l.errorf("a raw block has no end")
		}
		i += n
		rest := l.src[i+2:]
		sign := byte(0)
		if rest != "" && (rest[0] == '-' || rest[0] == '+') {
			sign, rest = rest[0], rest[1:]
		}
		rest, ok := strings.CutPrefix(strings.TrimLeftFunc(rest, isSpace), "endraw")
		rest = strings.TrimLeftFunc(rest, isSpace)
		closing := byte(0)
		if rest != "" && (rest[0] == '-' || rest[0] == '+') {
			closing, rest = rest[0], rest[1:]
		}
		if !ok || !strings.HasPrefix(rest, "%}") {
			i += 2
			continue
		}
		body := l.src[l.pos:i]
		kept := body
		if sign == '-' {
			kept = strings.TrimRightFunc(body, isSpace)
		} else if start := strings.LastIndexByte(body, '\n') + 1; sign == 0 && (start > 0 || !started) &&
			strings.TrimFunc(body[start:], isSpace) == "" {
			kept = body[:start]
		}
		l.data(kept, l.take(len(body)))
		l.take(len(l.src) - len(rest) + 2 - l.pos)
		l.afterEnd(closing, true)
		return nil
	}
}

// operators, longest first.
var operators = []string{"//", "**", "==", "!=", ">=", "<=", "+", "-", "/", "*", "%", "~", "[", "]", "(", ")", "{", "}", ">", "<", "=",
	".", ":", "|", ",", ";"}

// tag reads tokens up to the end of a tag. Within brackets the end is read as operators.
func (l *lexer) tag(end string, kind tokenKind) error {
	var open []byte
	for {
		rest := l.src[l.pos:]
		if rest == "" {
			return l.errorf("a tag has no end")
		}
		if len(open) == 0 {
			sign := byte(0)
			if rest[0] == '-' || rest[0] == '+' && kind == tokBlockEnd {
				sign = rest[0]
			}
			n := 0
			if sign != 0 {
				n = 1
			}
			if strings.HasPrefix(rest[n:], end) {
				l.emit(kind, "")
				l.take(n + len(end))
				l.afterEnd(sign, kind == tokBlockEnd)
				return nil
			}
		}
		if err := l.inTag(rest, &open); err != nil {
			return err
		}
	}
}

// inTag reads one token inside a tag.
func (l *lexer) inTag(rest string, open *[]byte) error {
	r, n := utf8.DecodeRuneInString(rest)
	switch {
	case isSpace(r):
		l.take(n)
		return nil
	case '0' <= r && r <= '9':
		return l.number(rest)
	case r == '_' || unicode.IsLetter(r):
		for n < len(rest) {
			r, m := utf8.DecodeRuneInString(rest[n:])
			if r != '_' && !unicode.IsLetter(r) && !unicode.IsDigit(r) {
				break
			}
			n += m
		}
		l.emit(tokName, rest[:n])
		l.take(n)
		return nil
	case r == '"' || r == '\'':
		return l.string(rest)
	}
	for _, op := range operators {
		if !strings.HasPrefix(rest, op) {
			continue
		}
		switch op {
		case "(":
			*open = append(*open, ')')
		case "[":
			*open = append(*open, ']')
		case "{":
			*open = append(*open, '}')
		case ")", "]", "}":
			if len(*open) == 0 || (*open)[len(*open)-1] != op[0] {
				return l.errorf("unexpected %s", op)
			}
			*open = (*open)[:len(*open)-1]
		}
		l.emit(tokOp, op)
		l.take(len(op))
		return nil
	}
	return l.errorf("unexpected character %q", r)
}

func (l *lexer) number(rest string) error {
	digits := func(i int) int {
		for i < len(rest) && ('0' <= rest[i] && rest[i] <= '9' || rest[i] == '_' && i+1 < len(rest) && '0' <= rest[i+1] && rest[i+1] <= '9') {
			i++
		}
		return i
	}
	kind := tokInt
	n := digits(0)
	if len(rest) > 2 && rest[0] == '0' && strings.IndexByte("xXoObB", rest[1]) >= 0 {
		for n = 2; n < len(rest) && (unicode.Is(unicode.ASCII_Hex_Digit, rune(rest[n])) || rest[n] == '_'); n++ {
		}
	} else if p := len(l.out) - 1; p < 0 || l.out[p].kind != tokOp || l.out[p].text != "." {
		if n+1 < len(rest) && rest[n] == '.' && digits(n+1) > n+1 {
			kind, n = tokFloat, digits(n+1)
		}
		if n < len(rest) && (rest[n] == 'e' || rest[n] == 'E') {
			m := n + 1
			if m < len(rest) && (rest[m] == '+' || rest[m] == '-') {
				m++
			}
			if digits(m) > m {
				kind, n = tokFloat, digits(m)
			}
		}
	}
	l.emit(kind, strings.ReplaceAll(rest[:n], "_", ""))
	l.take(n)
	return nil
}

func (l *lexer) string(rest string) error {
	for n := 1; n < len(rest); n++ {
		switch rest[n] {
		case '\\':
			n++
		case rest[0]:
			s, err := unescape(rest[1:n])
			if err != nil {
				return l.errorf("%v", err)
			}
			l.emit(tokString, s)
			l.take(n + 1)
			return nil
		}
	}
	return l.errorf("a string has no end")
}

// unescape reads the escapes of Python string literals. An unknown one stands for itself.
func unescape(s string) (string, error) {
	if strings.IndexByte(s, '\\') < 0 {
		return s, nil
	}
	var out strings.Builder
	simple := map[byte]string{'\n': "", '\\': "\\", '\'': "'", '"': "\"", 'a': "\a", 'b': "\b", 'f': "\f", 'n': "\n", 'r': "\r", 't': "\t", 'v': "\v"}
	for i := 0; i < len(s); i++ {
		if s[i] != '\\' || i+1 == len(s) {
			out.WriteByte(s[i])
			continue
		}
		i++
		if v, ok := simple[s[i]]; ok {
			out.WriteString(v)
			continue
		}
		base, n := 16, map[byte]int{'x': 2, 'u': 4, 'U': 8}[s[i]]
		start := i + 1
		switch {
		case s[i] == 'N':
			return "", fmt.Errorf(`\N{…} in a string isn't supported`)
		case '0' <= s[i] && s[i] <= '7':
			base, start = 8, i
			for n = 1; n < 3 && start+n < len(s) && '0' <= s[start+n] && s[start+n] <= '7'; n++ {
			}
		case n == 0:
			out.WriteString(s[i-1 : i+1])
			continue
		}
		if start+n > len(s) {
			return "", fmt.Errorf("an escape in a string is cut off")
		}
		v, err := strconv.ParseUint(s[start:start+n], base, 32)
		if err != nil || !utf8.ValidRune(rune(v)) {
			return "", fmt.Errorf("bad escape \\%s in a string", s[i:start+n])
		}
		out.WriteRune(rune(v))
		i = start + n - 1
	}
	return out.String(), nil
}

func (l *lexer) errorf(format string, args ...any) error {
	return &syntaxError{l.line, fmt.Sprintf(format, args...)}
}

// syntaxError says what is wrong with a template's source.
type syntaxError struct {
	line int
	text string
}

func (e *syntaxError) Error() string { return fmt.Sprintf("line %d: %s", e.line, e.text) }

// isSpace is Python's str.isspace.
func isSpace(r rune) bool { return unicode.IsSpace(r) || 0x1c <= r && r <= 0x1f }

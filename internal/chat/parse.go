package chat

import (
	"fmt"
	"slices"
	"strconv"
)

const (
	maxTemplate = 1 << 20 // bytes
	maxNesting  = 100     // of blocks and brackets in a template
)

// parser is a recursive descent over tokens, in the order of precedence of Jinja's parser.
type parser struct {
	tokens []token
	pos    int
	depth  int
	loops  int            // enclosing for loops of the current macro
	uses   map[string]int // how often each name has been read
}

// parse returns the statements of a template. Errors are *syntaxError, raised by fail.
func parse(src string) (body []stmt, err error) {
	if len(src) > maxTemplate {
		return nil, fmt.Errorf("the template has %d bytes, more than %d", len(src), maxTemplate)
	}
	tokens, err := lex(src)
	if err != nil {
		return nil, err
	}
	defer func() {
		switch e := recover().(type) {
		case nil:
		case *syntaxError:
			err = e
		default:
			panic(e)
		}
	}()
	p := &parser{tokens: tokens, uses: map[string]int{}}
	return p.statements(nil), nil
}

func (p *parser) fail(format string, args ...any) {
	panic(&syntaxError{p.peek().line, fmt.Sprintf(format, args...)})
}

func (p *parser) peek() token { return p.tokens[p.pos] }

func (p *parser) next() token {
	t := p.tokens[p.pos]
	if t.kind != tokEOF {
		p.pos++
	}
	return t
}

// enter counts nesting; the function that it returns ends it.
func (p *parser) enter() func() {
	if p.depth++; p.depth > maxNesting {
		p.fail("the template nests more than %d levels", maxNesting)
	}
	return func() { p.depth-- }
}

func (p *parser) isOp(op string) bool   { return p.peek().kind == tokOp && p.peek().text == op }
func (p *parser) isName(s string) bool  { return p.peek().kind == tokName && p.peek().text == s }
func (p *parser) skipOp(op string) bool { return p.isOp(op) && p.skip() }
func (p *parser) skipName(s string) bool {
	return p.isName(s) && p.skip()
}

func (p *parser) skip() bool {
	p.pos++
	return true
}

func (p *parser) expectOp(op string) {
	if !p.skipOp(op) {
		p.fail("%s expected, %s found", op, describe(p.peek()))
	}
}

func (p *parser) expect(kind tokenKind, what string) token {
	if p.peek().kind != kind {
		p.fail("%s expected, %s found", what, describe(p.peek()))
	}
	return p.next()
}

func (p *parser) expectName(s string) {
	if !p.skipName(s) {
		p.fail("%q expected, %s found", s, describe(p.peek()))
	}
}

func describe(t token) string {
	switch t.kind {
	case tokEOF:
		return "the end of the template"
	case tokVarEnd:
		return "}}"
	case tokBlockEnd:
		return "%}"
	case tokString:
		return "a string"
	}
	return strconv.Quote(t.text)
}

// statements reads up to a block whose first word is one of ends, which is left to be read; without ends, up to the
// end.
func (p *parser) statements(ends []string) []stmt {
	defer p.enter()()
	var body []stmt
	for {
		t := p.peek()
		switch t.kind {
		case tokEOF:
			if ends != nil {
				p.fail("the template ends where %q is missing", ends[len(ends)-1])
			}
			return body
		case tokData:
			p.next()
			body = append(body, &dataNode{literal(t.text)})
		case tokVarBegin:
			p.next()
			x := p.tuple(nil)
			p.expect(tokVarEnd, "}}")
			body = append(body, &printNode{x, t.line})
		default: // a block
			p.next()
			name := p.expect(tokName, "the name of a block")
			if slices.Contains(ends, name.text) {
				p.pos--
				return body
			}
			if s := p.statement(name); s != nil {
				body = append(body, s)
			}
			p.expect(tokBlockEnd, "%}")
		}
	}
}

// block reads the rest of the current tag, a body, and the word that ends it.
func (p *parser) block(ends ...string) (body []stmt, end string) {
	p.skipOp(":")
	p.expect(tokBlockEnd, "%}")
	body = p.statements(ends)
	return body, p.next().text
}

func (p *parser) statement(t token) stmt {
	switch t.text {
	case "for":
		return p.forLoop(t.line)
	case "if":
		return p.ifElse(t.line)
	case "set":
		return p.set(t.line)
	case "macro":
		return p.macro()
	case "call":
		return p.callBlock(t.line)
	case "filter":
		filters := p.filterChain(true)
		body, _ := p.block("endfilter")
		return &filterBlockNode{filters, body, t.line}
	case "with":
		return p.with(t.line)
	case "print":
		x := &concatNode{[]expr{p.expression()}}
		for p.skipOp(",") {
			x.items = append(x.items, p.expression())
		}
		return &printNode{x, t.line}
	case "generation":
		body, _ := p.block("endgeneration")
		return &scopeNode{body}
	case "break", "continue":
		if p.loops == 0 {
			p.fail("%s outside a loop", t.text)
		}
		if t.text == "break" {
			return &controlNode{breakLoop}
		}
		return &controlNode{continueLoop}
	}
	p.fail("the block %q isn't supported", t.text)
	return nil
}

func (p *parser) forLoop(line int) stmt {
	n := &forNode{line: line, target: p.target("in")}
	p.expectName("in")
	n.iter = p.tupleOf(p.or, func() bool { return p.isName("recursive") || p.isName("if") })
	if p.skipName("if") {
		n.test = p.expression()
	}
	if p.isName("recursive") {
		p.fail("recursive loops aren't supported")
	}
	p.loops++
	body, end := p.block("else", "endfor")
	p.loops--
	n.body = body
	if end == "else" {
		n.or, _ = p.block("endfor")
	}
	return n
}

func (p *parser) ifElse(line int) stmt {
	n := &ifNode{line: line}
	for {
		n.tests = append(n.tests, p.tupleOf(p.or, nil))
		body, end := p.block("elif", "else", "endif")
		n.bodies = append(n.bodies, body)
		switch end {
		case "elif":
			continue
		case "else":
			body, _ := p.block("endif")
			n.bodies = append(n.bodies, body)
		}
		return n
	}
}

func (p *parser) set(line int) stmt {
	t := p.target("")
	if p.skipOp("=") {
		return &setNode{t, p.tuple(nil), line}
	}
	filters := p.filterChain(false)
	body, _ := p.block("endset")
	return &setBlockNode{t, filters, body, line}
}

func (p *parser) macro() stmt {
	n := &macroNode{name: p.expect(tokName, "the macro's name").text}
	p.expectOp("(")
	n.params = p.params()
	loops := p.loops
	p.loops = 0
	varargs, kwargs := p.uses["varargs"], p.uses["kwargs"]
	n.body, _ = p.block("endmacro")
	n.varargs, n.kwargs = p.uses["varargs"] > varargs, p.uses["kwargs"] > kwargs
	p.loops = loops
	return n
}

// params reads what follows the opening parenthesis.
func (p *parser) params() params {
	var out params
	for !p.skipOp(")") {
		if len(out.names) > 0 {
			p.expectOp(",")
		}
		out.names = append(out.names, p.expect(tokName, "a parameter").text)
		if p.skipOp("=") {
			out.defaults = append(out.defaults, p.expression())
		} else if len(out.defaults) > 0 {
			p.fail("a parameter without a default follows one with a default")
		}
	}
	return out
}

func (p *parser) callBlock(line int) stmt {
	n := &callBlockNode{line: line}
	if p.skipOp("(") {
		n.params = p.params()
	}
	call, ok := p.expression().(*callNode)
	if !ok {
		p.fail("a call block needs a call")
	}
	n.call = call
	loops := p.loops
	p.loops = 0
	n.body, _ = p.block("endcall")
	p.loops = loops
	return n
}

func (p *parser) with(line int) stmt {
	n := &withNode{line: line}
	for p.peek().kind != tokBlockEnd {
		if len(n.targets) > 0 {
			p.expectOp(",")
		}
		n.targets = append(n.targets, p.target(""))
		p.expectOp("=")
		n.values = append(n.values, p.expression())
	}
	n.body, _ = p.block("endwith")
	return n
}

// target reads names up to the word end, or to what can't follow a target.
func (p *parser) target(end string) target {
	defer p.enter()()
	var parts []target
	tuple := false
	for {
		switch {
		case p.skipOp("("):
			parts = append(parts, p.target(""))
			p.expectOp(")")
		default:
			t := target{name: p.expect(tokName, "a name to assign to").text}
			switch t.name {
			case "true", "True", "false", "False", "none", "None":
				p.fail("can't assign to %s", t.name)
			}
			if p.skipOp(".") {
				t.attr = p.expect(tokName, "an attribute").text
			}
			parts = append(parts, t)
		}
		if !p.skipOp(",") {
			break
		}
		tuple = true
		if end != "" && p.isName(end) || p.isOp("=") || p.isOp(")") {
			break
		}
	}
	if !tuple {
		return parts[0]
	}
	return target{parts: parts}
}

package chat

import (
	"strconv"
	"strings"
)

// maxChain bounds how many operators of one level follow each other, and with maxNesting the depth of an expression.
const maxChain = 1000

// chain counts the operators of one loop.
func (p *parser) chain(n *int) {
	if *n++; *n > maxChain {
		p.fail("more than %d operators in a row", maxChain)
	}
}

// tuple reads an expression, or several with commas between, which are a tuple.
func (p *parser) tuple(end func() bool) expr { return p.tupleOf(p.expression, end) }

func (p *parser) tupleOf(item func() expr, end func() bool) expr {
	var items []expr
	for {
		items = append(items, item())
		if !p.skipOp(",") {
			break
		}
		if k := p.peek().kind; k == tokVarEnd || k == tokBlockEnd || p.isOp(")") || end != nil && end() {
			return &listNode{items, true}
		}
	}
	if len(items) == 1 {
		return items[0]
	}
	return &listNode{items, true}
}

func (p *parser) expression() expr {
	defer p.enter()()
	x := p.or()
	for n := 0; p.skipName("if"); p.chain(&n) {
		test := p.or()
		var other expr
		if p.skipName("else") {
			other = p.expression()
		}
		x = &condNode{test, x, other}
	}
	return x
}

func (p *parser) or() expr {
	x := p.and()
	for n := 0; p.skipName("or"); p.chain(&n) {
		x = &logicNode{x, p.and(), true}
	}
	return x
}

func (p *parser) and() expr {
	x := p.not()
	for n := 0; p.skipName("and"); p.chain(&n) {
		x = &logicNode{x, p.not(), false}
	}
	return x
}

func (p *parser) not() expr {
	if p.skipName("not") {
		defer p.enter()()
		return &notNode{p.not()}
	}
	return p.compare()
}

func (p *parser) compare() expr {
	x := p.math1()
	var ops []compareOp
	for {
		op := ""
		switch t := p.peek(); {
		case t.kind == tokOp:
			switch t.text {
			case "==", "!=", "<", "<=", ">", ">=":
				op = t.text
			}
		case p.isName("in"):
			op = "in"
		case p.isName("not") && p.tokens[p.pos+1].kind == tokName && p.tokens[p.pos+1].text == "in":
			p.next()
			op = "not in"
		}
		if op == "" {
			break
		}
		p.next()
		ops = append(ops, compareOp{op, p.math1()})
	}
	if ops == nil {
		return x
	}
	return &compareNode{x, ops}
}

func (p *parser) math1() expr {
	x := p.concat()
	for n := 0; p.isOp("+") || p.isOp("-"); p.chain(&n) {
		op := p.next().text
		x = &arithNode{op, x, p.concat()}
	}
	return x
}

func (p *parser) concat() expr {
	items := []expr{p.math2()}
	for p.skipOp("~") {
		items = append(items, p.math2())
	}
	if len(items) == 1 {
		return items[0]
	}
	return &concatNode{items}
}

func (p *parser) math2() expr {
	x := p.power()
	for n := 0; p.isOp("*") || p.isOp("/") || p.isOp("//") || p.isOp("%"); p.chain(&n) {
		op := p.next().text
		x = &arithNode{op, x, p.power()}
	}
	return x
}

func (p *parser) power() expr {
	x := p.unary(true)
	for n := 0; p.skipOp("**"); p.chain(&n) {
		x = &arithNode{"**", x, p.unary(true)}
	}
	return x
}

func (p *parser) unary(filters bool) expr {
	var x expr
	switch {
	case p.isOp("-") || p.isOp("+"):
		defer p.enter()()
		negative := p.next().text == "-"
		x = &signNode{p.unary(false), negative}
	default:
		x = p.primary()
	}
	x = p.postfix(x)
	if filters {
		x = p.filters(x)
	}
	return x
}

func (p *parser) primary() expr {
	t := p.next()
	switch t.kind {
	case tokName:
		switch t.text {
		case "true", "True":
			return &constNode{true}
		case "false", "False":
			return &constNode{false}
		case "none", "None":
			return &constNode{nil}
		}
		p.uses[t.text]++
		return &nameNode{t.text}
	case tokString:
		var s strings.Builder
		s.WriteString(t.text)
		for p.peek().kind == tokString {
			s.WriteString(p.next().text)
		}
		return &constNode{literal(s.String())}
	case tokInt:
		n, err := strconv.ParseInt(t.text, 0, 64)
		if err != nil {
			p.fail("bad integer %s", t.text)
		}
		return &constNode{n}
	case tokFloat:
		f, err := strconv.ParseFloat(t.text, 64)
		if err != nil {
			p.fail("bad number %s", t.text)
		}
		return &constNode{f}
	case tokOp:
		switch t.text {
		case "(":
			return p.parenthesis()
		case "[":
			return p.list()
		case "{":
			return p.dict()
		}
	}
	p.pos--
	if t.kind == tokEOF {
		p.pos++
	}
	p.fail("an expression expected, %s found", describe(t))
	return nil
}

func (p *parser) parenthesis() expr {
	if p.skipOp(")") {
		return &listNode{nil, true}
	}
	x := p.tuple(nil)
	p.expectOp(")")
	return x
}

func (p *parser) list() expr {
	n := &listNode{}
	for !p.skipOp("]") {
		if len(n.items) > 0 {
			p.expectOp(",")
			if p.skipOp("]") {
				break
			}
		}
		n.items = append(n.items, p.expression())
	}
	return n
}

func (p *parser) dict() expr {
	n := &dictNode{}
	for !p.skipOp("}") {
		if len(n.keys) > 0 {
			p.expectOp(",")
			if p.skipOp("}") {
				break
			}
		}
		n.keys = append(n.keys, p.expression())
		p.expectOp(":")
		n.values = append(n.values, p.expression())
	}
	return n
}

func (p *parser) postfix(x expr) expr {
	for n := 0; ; p.chain(&n) {
		switch {
		case p.skipOp("."):
			switch t := p.next(); t.kind {
			case tokName:
				x = &attrNode{x, t.text}
			case tokInt:
				i, err := strconv.ParseInt(t.text, 10, 64)
				if err != nil {
					p.fail("bad index %s", t.text)
				}
				x = &itemNode{x, &constNode{i}}
			default:
				p.fail("a name or number expected after the dot")
			}
		case p.skipOp("["):
			x = p.subscript(x)
		case p.skipOp("("):
			x = &callNode{x, p.args()}
		default:
			return x
		}
	}
}

// subscript reads what follows the opening bracket.
func (p *parser) subscript(x expr) expr {
	var part [3]expr
	i := 0
	for !p.skipOp("]") {
		switch {
		case p.skipOp(":"):
			if i++; i > 2 {
				p.fail("a slice has at most three parts")
			}
		case part[i] != nil:
			p.fail("] expected, %s found", describe(p.peek()))
		default:
			part[i] = p.expression()
		}
	}
	if i > 0 {
		return &sliceNode{x, part[0], part[1], part[2]}
	}
	if part[0] == nil {
		p.fail("a subscript is empty")
	}
	return &itemNode{x, part[0]}
}

// args reads what follows the opening parenthesis of a call.
func (p *parser) args() argNodes {
	var a argNodes
	for first := true; !p.skipOp(")"); first = false {
		if !first {
			p.expectOp(",")
			if p.skipOp(")") {
				break
			}
		}
		switch {
		case p.isOp("*") || p.isOp("**"):
			p.fail("%s in a call isn't supported", p.peek().text)
		case p.peek().kind == tokName && p.tokens[p.pos+1].kind == tokOp && p.tokens[p.pos+1].text == "=":
			name := p.next().text
			p.next()
			a.names, a.named = append(a.names, name), append(a.named, p.expression())
		case a.named != nil:
			p.fail("an argument without a name follows one with a name")
		default:
			a.pos = append(a.pos, p.expression())
		}
	}
	return a
}

// filters reads filters, tests and calls after an operand.
func (p *parser) filters(x expr) expr {
	for n := 0; ; p.chain(&n) {
		switch {
		case p.skipOp("|"):
			x = p.filter(x)
		case p.skipName("is"):
			x = p.test(x)
		case p.skipOp("("):
			x = &callNode{x, p.args()}
		default:
			return x
		}
	}
}

func (p *parser) filter(x expr) *filterNode {
	name := p.expect(tokName, "the name of a filter").text
	fn, ok := filters[name]
	if !ok {
		p.fail("the filter %q isn't supported", name)
	}
	n := &filterNode{x: x, name: name, fn: fn}
	if p.skipOp("(") {
		n.args = p.args()
	}
	return n
}

// filterChain reads the filters of a block. start: the first one has no bar before it.
func (p *parser) filterChain(start bool) []*filterNode {
	var out []*filterNode
	for start || p.skipOp("|") {
		start = false
		out = append(out, p.filter(nil))
	}
	return out
}

func (p *parser) test(x expr) expr {
	not := p.skipName("not")
	name := p.expect(tokName, "the name of a test").text
	fn, ok := tests[name]
	if !ok {
		p.fail("the test %q isn't supported", name)
	}
	n := &testNode{x: x, name: name, fn: fn}
	switch t := p.peek(); {
	case p.skipOp("("):
		n.args = p.args()
	case p.isName("else") || p.isName("or") || p.isName("and") || p.isName("if"):
		// In Jinja "x is defined if y" reads y's "if" as an argument and then fails; here it ends the test.
	case p.isName("is"):
		p.fail("tests can't be chained")
	case t.kind == tokName || t.kind == tokString || t.kind == tokInt || t.kind == tokFloat || p.isOp("(") || p.isOp("[") || p.isOp("{"):
		n.args.pos = []expr{p.postfix(p.primary())}
	}
	if not {
		return &notNode{n}
	}
	return n
}

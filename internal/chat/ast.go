package chat

// expr is an expression. eval aborts the rendering (see state.fail) where Jinja would raise.
type expr interface{ eval(*state, *scope) value }

type (
	constNode struct{ v value }
	nameNode  struct{ name string }
	attrNode  struct { // x.name
		x    expr
		name string
	}
	itemNode struct { // x[key]
		x, key expr
	}
	sliceNode struct { // x[from:to:step]; absent ones are nil
		x, from, to, step expr
	}
	callNode struct {
		fn   expr
		args argNodes
	}
	filterNode struct {
		x    expr // nil in a filter block
		name string
		fn   filterFunc
		args argNodes
	}
	testNode struct {
		x    expr
		name string
		fn   testFunc
		args argNodes
	}
	notNode  struct{ x expr }
	signNode struct {
		x        expr
		negative bool
	}
	logicNode struct { // and, or
		left, right expr
		or          bool
	}
	condNode struct { // then if test else other; other may be nil
		test, then, other expr
	}
	compareNode struct {
		first expr
		ops   []compareOp
	}
	compareOp struct {
		op string // ==, !=, <, <=, >, >=, in, not in
		x  expr
	}
	arithNode struct {
		op          string
		left, right expr
	}
	concatNode struct{ items []expr } // a ~ b
	listNode   struct {
		items []expr
		tuple bool
	}
	dictNode struct{ keys, values []expr }
)

type argNodes struct {
	pos   []expr
	names []string
	named []expr
}

// stmt is a statement; exec says whether a break or continue is under way.
type stmt interface {
	exec(*state, *scope) control
}

type control uint8

const (
	goOn control = iota
	breakLoop
	continueLoop
)

type (
	dataNode  struct{ text text }
	printNode struct {
		x    expr
		line int
	}
	forNode struct {
		target     target
		iter, test expr // test may be nil
		body, or   []stmt
		line       int
	}
	ifNode struct {
		tests  []expr
		bodies [][]stmt // one more than tests if there is an else
		line   int
	}
	setNode struct {
		target target
		x      expr
		line   int
	}
	setBlockNode struct { // {% set x | filter %}…{% endset %}
		target  target
		filters []*filterNode
		body    []stmt
		line    int
	}
	macroNode struct {
		name            string
		params          params
		body            []stmt
		varargs, kwargs bool // the body uses these names
	}
	callBlockNode struct {
		params params
		call   *callNode
		body   []stmt
		line   int
	}
	filterBlockNode struct {
		filters []*filterNode
		body    []stmt
		line    int
	}
	withNode struct {
		targets []target
		values  []expr
		body    []stmt
		line    int
	}
	scopeNode   struct{ body []stmt } // {% generation %}
	controlNode struct{ c control }
)

type params struct {
	names    []string
	defaults []expr // of the last names
}

// target is what is assigned to: a name, namespace.attribute, or a tuple of names.
type target struct {
	name, attr string
	parts      []target
}

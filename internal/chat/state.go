package chat

import (
	"fmt"
	"time"
)

// Limits on what one rendering may use. The deadline and the caps on output and memory are options.
const (
	maxValueDepth = 100  // nesting of a value that is printed, compared or written as JSON
	maxDepth      = 2000 // nesting of evaluation, macros included
	maxMacros     = 100  // calls of macros under way
	maxRange      = 100_000
	memoryFactor  = 32 // bytes that may be made, all in all, for each byte of output that is allowed
)

// state is one rendering. It runs on the caller's goroutine and stops itself: each evaluation of a node, each element
// that is visited and each byte that is made is counted, and the clock is read every few hundred counts.
type state struct {
	out       *builder
	line      int
	depth     int
	macros    int
	count     int   // steps until the clock is read
	left      int64 // bytes that may still be made
	outLeft   int64
	deadline  time.Time
	timeout   time.Duration
	maxOutput int
	clock     func() time.Time // for deadlines
	now       func() time.Time // for strftime_now
}

// TemplateError is a template's refusal of the messages, or its failure. Message says why, for whoever sent them.
type TemplateError struct {
	Message string
	Line    int  // in the template; 0 if unknown
	Raised  bool // the template called raise_exception, and Message is its text
	TooLong bool // the output reached Options.MaxBytes
}

func (e *TemplateError) Error() string {
	if e.Raised || e.Line == 0 {
		return "chat template: " + e.Message
	}
	return fmt.Sprintf("chat template, line %d: %s", e.Line, e.Message)
}

// fail aborts the rendering.
func (st *state) fail(format string, args ...any) {
	panic(&TemplateError{Message: fmt.Sprintf(format, args...), Line: st.line})
}

const stepsPerClock = 256

func (st *state) step() { st.steps(1) }

// steps counts n units of work of well under a microsecond each.
func (st *state) steps(n int) {
	if st.count -= n; st.count > 0 {
		return
	}
	st.count = stepsPerClock
	if st.clock().After(st.deadline) {
		st.fail("it took longer than %v", st.timeout)
	}
}

// alloc counts n bytes that are about to be made or have been.
func (st *state) alloc(n int) {
	st.steps(1 + n/256)
	if st.left -= int64(n); st.left < 0 {
		st.fail("it makes more than %d MB of text and lists", st.memory()>>20)
	}
}

func (st *state) memory() int64 { return int64(st.maxOutput) * memoryFactor }

// write appends to the output.
func (st *state) write(t text) {
	st.alloc(len(t.s) + 16*len(t.trusted))
	if st.outLeft -= int64(len(t.s)); st.outLeft < 0 {
		panic(&TemplateError{Message: fmt.Sprintf("its output is longer than %d bytes", st.maxOutput), Line: st.line, TooLong: true})
	}
	st.out.add(t)
}

// capture runs f and returns what it writes instead of putting it out.
func (st *state) capture(f func()) text {
	outer := st.out
	st.out = new(builder)
	f()
	t := st.out.text()
	st.out = outer
	st.outLeft += int64(len(t.s))
	return t
}

// descend counts a level of evaluation.
func (st *state) descend() {
	st.step()
	if st.depth++; st.depth > maxDepth {
		st.fail("it nests more than %d levels deep", maxDepth)
	}
}

func (st *state) ascend() { st.depth-- }

// scope holds variables. Lookups go outwards, assignments stay.
type scope struct {
	vars   map[string]value
	parent *scope
}

func (s *scope) inner() *scope { return &scope{parent: s} }

func (s *scope) set(name string, v value) {
	if s.vars == nil {
		s.vars = make(map[string]value, 4)
	}
	s.vars[name] = v
}

func (s *scope) get(name string) (value, bool) {
	for ; s != nil; s = s.parent {
		if v, ok := s.vars[name]; ok {
			return v, true
		}
	}
	return nil, false
}

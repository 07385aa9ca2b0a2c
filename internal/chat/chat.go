// Package chat renders a conversation with a model's own chat template (Jinja) into text that says which of it comes
// from the template.
//
// # An interpreter of its own
//
// Templates come with downloaded models, so they are programs of strangers. This package interprets the part of Jinja
// that chat templates use, with the settings of transformers (trim_blocks, lstrip_blocks, loop controls, its tojson,
// raise_exception, strftime_now, and generation blocks, whose body is rendered). In a general engine one line of
// template can exhaust the stack ({% macro f() %}{{ f() }}…) or the memory ('x' * 3000000000), either of which ends a
// Go program, and include reads files (gonja 2.9.1 does all three). Here there is nothing to escape to: no include,
// import or extends, no loader, no attribute but elements and a fixed list of methods that change nothing.
//
// A rendering runs on the caller's goroutine and stops by itself: every node, element and byte is counted, the clock is
// read every 256 counts, and time, output, memory, depth and the calls of macros have limits. Source size and nesting
// are limited when a template is parsed. What isn't supported (recursive loops, * and ** in calls, several filters) is
// refused by name, in New where it can be seen there.
//
// # Provenance
//
// Every string in a rendering knows which of its bytes are literals of the template (or BOS and EOS): that is trusted
// text, in which control tokens may be recognised. Slicing, stripping, splitting, joining and replacing keep the
// knowledge byte for byte; where an operation can't (changes of case in mixed text, numbers, JSON), the result isn't
// trusted. Messages and all other inputs never are. So the output is always exactly the plain rendering, whatever a
// template does with a message, and a message can't pass for the template.
package chat

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"
)

// Message is one message. Extra, if not empty, is a JSON object of further fields (tool_calls, reasoning_content, …),
// which win over the others.
type Message struct {
	Role, Name, Content string
	Extra               json.RawMessage
}

// Segment is a stretch of the rendered prompt. Trusted text stands in the template; only there may control tokens be
// recognised.
type Segment struct {
	Text    string
	Trusted bool
}

// Options belong to a model and to the limits of its renderings.
type Options struct {
	BOS, EOS string            // literals of these tokens: bos_token and eos_token
	Special  map[string]string // further literals by name, such as pad_token
	Timeout  time.Duration     // of one rendering; 0 means 1 s
	MaxBytes int               // of output; 0 means 4 MiB. A rendering may make 32 times as much on the way
	Now      func() time.Time  // for strftime_now; nil means time.Now
}

// RenderOptions belong to one request.
type RenderOptions struct {
	// AddGenerationPrompt appends what begins the model's answer.
	AddGenerationPrompt bool
	// ContinueFinal leaves the last message open, so that the model goes on with it. It excludes AddGenerationPrompt.
	ContinueFinal bool
	// Tools is a JSON array of tool definitions; empty means none.
	Tools json.RawMessage
	// Vars are further variables as JSON, for instance enable_thinking. They win over those of Options;
	// messages, tools, documents and add_generation_prompt can't be set.
	Vars map[string]json.RawMessage
}

// Template is a parsed chat template. It doesn't change and is safe for concurrent use.
type Template struct {
	body []stmt
	opts Options
}

// New parses a template. An error says what is wrong with it or isn't supported, and on which line.
func New(template string, opts Options) (*Template, error) {
	body, err := parse(template)
	if err != nil {
		return nil, fmt.Errorf("chat template: %w", err)
	}
	if opts.Timeout <= 0 {
		opts.Timeout = time.Second
	}
	if opts.MaxBytes <= 0 {
		opts.MaxBytes = 4 << 20
	}
	if opts.Now == nil {
		opts.Now = time.Now
	}
	return &Template{body, opts}, nil
}

// Render returns the prompt for messages, whose segments joined are what transformers' apply_chat_template returns.
// Every error is a *TemplateError: the template refused the messages or failed on them, or a limit was reached.
func (t *Template) Render(messages []Message, o RenderOptions) ([]Segment, error) {
	out, err := t.render(messages, o)
	if err != nil {
		return nil, err
	}
	return out.segments(), nil
}

func (t *Template) render(messages []Message, o RenderOptions) (text, error) {
	if o.ContinueFinal && o.AddGenerationPrompt {
		return text{}, &TemplateError{Message: "the last message can't be continued with a generation prompt"}
	}
	root, tag, err := t.variables(messages, o)
	if err != nil {
		return text{}, &TemplateError{Message: err.Error()}
	}
	out, err := t.execute(root)
	if err != nil || tag == "" {
		return out, err
	}
	return cutAt(out, tag)
}

// variables returns the scope that the template starts with, and the tag that was put behind a message to be continued.
func (t *Template) variables(messages []Message, o RenderOptions) (root *scope, tag string, err error) {
	root = &scope{vars: map[string]value{
		"tools": nil, "documents": nil, "add_generation_prompt": o.AddGenerationPrompt,
	}}
	for name, literalText := range t.opts.Special {
		root.set(name, literal(literalText))
	}
	for name, s := range map[string]string{"bos_token": t.opts.BOS, "eos_token": t.opts.EOS} {
		if s != "" {
			root.set(name, literal(s))
		}
	}
	if len(o.Tools) > 0 {
		v, err := fromJSON(o.Tools)
		if err != nil {
			return nil, "", fmt.Errorf("tools: %w", err)
		}
		root.set("tools", v)
	}
	for name, raw := range o.Vars {
		if _, ours := map[string]bool{"messages": true, "tools": true, "documents": true, "add_generation_prompt": true}[name]; ours {
			return nil, "", fmt.Errorf("the template variable %s can't be set", name)
		}
		v, err := fromJSON(raw)
		if err != nil {
			return nil, "", fmt.Errorf("template variable %.40q: %w", name, err)
		}
		root.set(name, v)
	}
	if o.ContinueFinal {
		if messages, tag, err = tagFinal(messages); err != nil {
			return nil, "", err
		}
	}
	list := &list{items: make([]value, len(messages))}
	for i, m := range messages {
		if list.items[i], err = messageValue(m); err != nil {
			return nil, "", fmt.Errorf("message %d: %w", i, err)
		}
	}
	root.set("messages", list)
	return root, tag, nil
}

func (t *Template) execute(root *scope) (out text, err error) {
	st := &state{
		out:       new(builder),
		count:     stepsPerClock,
		maxOutput: t.opts.MaxBytes,
		outLeft:   int64(t.opts.MaxBytes),
		timeout:   t.opts.Timeout,
		clock:     time.Now,
		now:       t.opts.Now,
	}
	st.left = st.memory()
	st.deadline = st.clock().Add(t.opts.Timeout)
	defer func() {
		switch e := recover().(type) {
		case nil:
		case *TemplateError:
			out, err = text{}, e
		default:
			panic(e)
		}
	}()
	st.run(t.body, root)
	return st.out.text(), nil
}

// tagFinal puts a tag behind the last message's content. Its space shows afterwards whether the template strips
// content.
func tagFinal(messages []Message) ([]Message, string, error) {
	if len(messages) == 0 {
		return nil, "", errors.New("there is no message to continue")
	}
	out := append([]Message(nil), messages...)
	last := &out[len(out)-1]
	const mark = "\ufdd0" // a noncharacter; repeated until no message holds it
	tag := mark
	for _, m := range messages {
		for strings.Contains(m.Content, tag) || strings.Contains(m.Role, tag) || strings.Contains(m.Name, tag) || strings.Contains(string(m.Extra), tag) {
			tag += mark
		}
	}
	last.Content += tag + "\ufdd1 "
	return out, tag + "\ufdd1 ", nil
}

// cutAt ends out where the tag stands, and drops white space before it where the template stripped the content.
func cutAt(out text, tag string) (text, error) {
	bare := strings.TrimSuffix(tag, " ")
	i := strings.LastIndex(out.s, bare)
	if i < 0 {
		return text{}, &TemplateError{Message: "the last message can't be continued: the template doesn't write it out"}
	}
	head := out.slice(0, i)
	if !strings.HasPrefix(out.s[i:], tag) {
		head = strip(head, "", false, false, true)
	}
	return head, nil
}

package openai

import (
	"bytes"
	"fmt"
)

// StreamUsage is token counts as the server reports them. A field is -1 where the server didn't give it: not given and 0 are
// different things.
type StreamUsage struct {
	Prompt, Completion, Total, Cached, Reasoning int64
}

var noUsage = StreamUsage{Prompt: -1, Completion: -1, Total: -1, Cached: -1, Reasoning: -1}

// StreamChunk is what a client needs of one chunk of a chat or text completion, from a stream or as a whole body. Byte slices
// belong to the chunk and are overwritten by the next Decode.
type StreamChunk struct {
	ID        []byte
	Choices   int    // elements of "choices"; the usage chunk has none
	HasChoice bool   // "choices" was there and an array
	Content   []byte // delta.content, message.content, or text; parts of a list joined
	Reasoning []byte // delta.reasoning_content or delta.reasoning
	Refusal   []byte
	Role      bool // a role was given
	ToolBytes int  // length of tool-call names and arguments: they are tokens too

	FinishReason []byte // empty: none yet
	IndexDrift   bool   // a choice index other than 0
	NullUsage    bool   // usage: null
	HasUsage     bool   // a usage object
	Usage        StreamUsage
	// HasTimings is set by llama.cpp's "timings" object; TimingsCached is its cache_n, -1 where absent.
	HasTimings    bool
	TimingsCached int64

	HasError     bool // an error object, or an error object in place of a chunk
	ErrorMessage []byte
	ErrorCode    int64 // HTTP-like code in the error, -1 where absent or not a number
	ErrorType    []byte

	InvalidUTF8 bool // some bytes were not UTF-8 and read as U+FFFD

	cur jsonCursor
}

// Decode reads one JSON text into c, which it empties first. It is strict about JSON's grammar and lenient about the types that
// servers are seen to vary: null usage, absent or empty choices, unknown members, ids and indexes of any kind. The error is
// about grammar, or that the text isn't an object.
func (c *StreamChunk) Decode(data []byte) error {
	*c = StreamChunk{
		ID: c.ID[:0], Content: c.Content[:0], Reasoning: c.Reasoning[:0], Refusal: c.Refusal[:0], FinishReason: c.FinishReason[:0],
		ErrorMessage: c.ErrorMessage[:0], ErrorType: c.ErrorType[:0],
		Usage: noUsage, TimingsCached: -1, ErrorCode: -1,
		cur: jsonCursor{b: data, scratch: c.cur.scratch[:0]},
	}
	cur := &c.cur
	if cur.peek() != '{' {
		cur.skip()
		if cur.end(); cur.err == nil {
			return fmt.Errorf("stream chunk: a JSON object was expected")
		}
		return fmt.Errorf("stream chunk: %w", cur.err)
	}
	object := false // {"object":"error","message":…}, an older form of vLLM
	cur.open('{')
	for first := true; ; {
		key, ok := cur.key(&first)
		if !ok {
			break
		}
		switch string(key) {
		case "id":
			c.ID, _ = cur.str(c.ID[:0])
		case "object":
			v, ok := cur.str(cur.scratch[:0])
			cur.scratch = v
			object = ok && string(v) == "error"
		case "choices":
			c.choices()
		case "usage":
			c.usage()
		case "timings":
			c.timings()
		case "error":
			c.errorValue()
		case "message":
			if cur.peek() == '"' {
				c.ErrorMessage, _ = cur.str(c.ErrorMessage[:0])
			} else {
				cur.skip()
			}
		case "code":
			c.code()
		default:
			cur.skip()
		}
	}
	cur.end()
	c.InvalidUTF8 = cur.invalidUTF8
	c.cur.b = nil
	if cur.err != nil {
		return fmt.Errorf("stream chunk: %w", cur.err)
	}
	c.HasError = c.HasError || object
	if !c.HasError {
		c.ErrorMessage = c.ErrorMessage[:0]
		c.ErrorCode = -1
	}
	return nil
}

func (c *StreamChunk) choices() {
	if !c.cur.open('[') {
		return
	}
	c.HasChoice = true
	for first := true; c.cur.element(&first); {
		c.Choices++
		if !c.cur.open('{') {
			continue
		}
		for first := true; ; {
			key, ok := c.cur.key(&first)
			if !ok {
				break
			}
			switch string(key) {
			case "delta", "message":
				c.delta()
			case "text":
				c.Content, _ = c.cur.str(c.Content)
			case "finish_reason":
				if v, ok := c.cur.str(c.FinishReason[:0]); ok {
					c.FinishReason = v
				}
			case "index":
				n, ok := c.cur.count()
				c.IndexDrift = c.IndexDrift || ok && n != 0
			case "usage":
				c.usage()
			default:
				c.cur.skip()
			}
		}
	}
}

func (c *StreamChunk) delta() {
	if !c.cur.open('{') {
		return
	}
	for first := true; ; {
		key, ok := c.cur.key(&first)
		if !ok {
			return
		}
		switch string(key) {
		case "content":
			c.content()
		case "reasoning_content", "reasoning":
			// Some servers send both names with one text: only one of them counts.
			if before := len(c.Reasoning); before == 0 {
				c.Reasoning, _ = c.cur.str(c.Reasoning)
			} else {
				c.cur.skip()
			}
		case "refusal":
			c.Refusal, _ = c.cur.str(c.Refusal)
		case "role":
			c.Role = c.cur.peek() == '"'
			c.cur.skip()
		case "tool_calls":
			c.tools()
		case "function_call":
			c.function()
		default:
			c.cur.skip()
		}
	}
}

// content is a string, or a list of parts {"type":"text","text":…}.
func (c *StreamChunk) content() {
	if c.cur.peek() != '[' {
		c.Content, _ = c.cur.str(c.Content)
		return
	}
	c.cur.open('[')
	for first := true; c.cur.element(&first); {
		if !c.cur.open('{') {
			continue
		}
		for first := true; ; {
			key, ok := c.cur.key(&first)
			if !ok {
				break
			}
			if string(key) == "text" {
				c.Content, _ = c.cur.str(c.Content)
			} else {
				c.cur.skip()
			}
		}
	}
}

// tools counts what is new in tool calls; "index" is optional and means nothing for one choice.
func (c *StreamChunk) tools() {
	if !c.cur.open('[') {
		return
	}
	for first := true; c.cur.element(&first); {
		if !c.cur.open('{') {
			continue
		}
		for first := true; ; {
			key, ok := c.cur.key(&first)
			if !ok {
				break
			}
			if string(key) == "function" {
				c.function()
			} else {
				c.cur.skip()
			}
		}
	}
}

func (c *StreamChunk) function() {
	if !c.cur.open('{') {
		return
	}
	for first := true; ; {
		key, ok := c.cur.key(&first)
		if !ok {
			return
		}
		switch string(key) {
		case "name", "arguments":
			c.cur.scratch, _ = c.cur.str(c.cur.scratch[:0])
			c.ToolBytes += len(c.cur.scratch)
			c.cur.scratch = c.cur.scratch[:0]
		default:
			c.cur.skip()
		}
	}
}

func (c *StreamChunk) usage() {
	c.NullUsage = c.NullUsage || c.cur.peek() == 'n'
	if !c.cur.open('{') {
		return
	}
	c.HasUsage = true
	for first := true; ; {
		key, ok := c.cur.key(&first)
		if !ok {
			return
		}
		switch string(key) {
		case "prompt_tokens":
			c.Usage.Prompt = c.number()
		case "completion_tokens":
			c.Usage.Completion = c.number()
		case "total_tokens":
			c.Usage.Total = c.number()
		case "prompt_tokens_details":
			c.member("cached_tokens", &c.Usage.Cached)
		case "completion_tokens_details":
			c.member("reasoning_tokens", &c.Usage.Reasoning)
		default:
			c.cur.skip()
		}
	}
}

func (c *StreamChunk) timings() {
	c.HasTimings = c.cur.peek() == '{'
	c.member("cache_n", &c.TimingsCached)
}

// member sets dst from one member of an object, where it is a count.
func (c *StreamChunk) member(name string, dst *int64) {
	if !c.cur.open('{') {
		return
	}
	for first := true; ; {
		key, ok := c.cur.key(&first)
		if !ok {
			return
		}
		if string(key) == name {
			*dst = c.number()
		} else {
			c.cur.skip()
		}
	}
}

func (c *StreamChunk) number() int64 {
	if n, ok := c.cur.count(); ok {
		return n
	}
	return -1
}

// errorValue takes an error object or an error string; null, false, "" and {} say that there is none.
func (c *StreamChunk) errorValue() {
	switch c.cur.peek() {
	case '"':
		c.ErrorMessage, _ = c.cur.str(c.ErrorMessage[:0])
		c.HasError = c.HasError || len(bytes.TrimSpace(c.ErrorMessage)) > 0
	case '{':
		c.cur.open('{')
		for first := true; ; {
			key, ok := c.cur.key(&first)
			if !ok {
				return
			}
			c.HasError = true
			switch string(key) {
			case "message":
				c.ErrorMessage, _ = c.cur.str(c.ErrorMessage[:0])
			case "type":
				c.ErrorType, _ = c.cur.str(c.ErrorType[:0])
			case "code":
				c.code()
			default:
				c.cur.skip()
			}
		}
	case 'n', 'f':
		c.cur.skip()
	default:
		c.HasError = true
		c.cur.skip()
	}
}

// code reads an error code given as a number or as a string of digits.
func (c *StreamChunk) code() {
	if c.cur.peek() != '"' {
		c.ErrorCode = c.number()
		return
	}
	v, _ := c.cur.str(c.cur.scratch[:0])
	n := int64(0)
	for _, d := range v {
		if d < '0' || d > '9' || n > 1e6 {
			return
		}
		n = n*10 + int64(d-'0')
	}
	if len(v) > 0 {
		c.ErrorCode = n
	}
}

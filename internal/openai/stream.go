package openai

// Done ends a stream that went well.
const Done = "data: [DONE]\n\n"

// StreamEncoder renders the chunks of one streamed answer as server-sent events. What all chunks share is rendered once. The
// grammar of a stream, for each choice: in chat one Role, then Content any number of times, then one Finish; after all choices one
// Usage where it was asked for, then Done. One goroutine uses an encoder.
type StreamEncoder struct {
	chat    bool
	usage   bool   // usage was asked for: null in chunks that carry none
	head    []byte // data: {…"choices":[{"index":
	empty   []byte // data: {…"choices":[
	offsets []textOffset
}

// NewStream starts a stream of chat.completion.chunk or text_completion objects.
func (e *Envelope) NewStream(includeUsage bool) *StreamEncoder {
	object := "text_completion"
	if e.Chat {
		object = "chat.completion.chunk"
	}
	empty := e.head([]byte("data: "), object)
	head := append(empty[:len(empty):len(empty)], `{"index":`...)
	return &StreamEncoder{chat: e.Chat, usage: includeUsage, head: head, empty: empty}
}

// Role appends the chunk that opens a choice. Completions have none.
func (s *StreamEncoder) Role(dst []byte, index int) []byte {
	if !s.chat {
		return dst
	}
	dst = append(dst, s.head...)
	dst = appendInt(dst, index)
	dst = append(dst, `,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}`...)
	return s.tail(dst, nil)
}

// Content appends a chunk of text. logprobs is nil where they weren't asked for; running is nil unless usage goes into every
// chunk.
func (s *StreamEncoder) Content(dst []byte, index int, text string, logprobs []TokenLogprob, running *Usage) []byte {
	dst = append(dst, s.head...)
	dst = appendInt(dst, index)
	if s.chat {
		dst = append(dst, `,"delta":{"content":"`...)
		dst = appendEscaped(dst, text)
		dst = append(dst, `"},"logprobs":`...)
	} else {
		dst = append(dst, `,"text":"`...)
		dst = appendEscaped(dst, text)
		dst = append(dst, `","logprobs":`...)
	}
	switch {
	case logprobs == nil:
		dst = append(dst, "null"...)
	case s.chat:
		dst = appendChatLogprobs(dst, logprobs)
	default:
		dst = appendCompletionLogprobs(dst, logprobs, s.offset(index))
	}
	dst = append(dst, `,"finish_reason":null}`...)
	return s.tail(dst, running)
}

// Finish appends the chunk that ends a choice. Its delta is empty.
func (s *StreamEncoder) Finish(dst []byte, index int, reason, stop string, running *Usage) []byte {
	dst = append(dst, s.head...)
	dst = appendInt(dst, index)
	if s.chat {
		dst = append(dst, `,"delta":{},"logprobs":null`...)
	} else {
		dst = append(dst, `,"text":"","logprobs":null`...)
	}
	dst = append(appendFinish(dst, reason, stop), '}')
	return s.tail(dst, running)
}

// Usage appends the chunk that carries the answer's usage and no choice.
func (s *StreamEncoder) Usage(dst []byte, u Usage) []byte {
	dst = append(dst, s.empty...)
	return s.tail(dst, &u)
}

func (s *StreamEncoder) tail(dst []byte, u *Usage) []byte {
	switch {
	case u != nil:
		dst = append(dst, `],"usage":`...)
		dst = u.append(dst)
		return append(dst, "}\n\n"...)
	case s.usage:
		return append(dst, `],"usage":null}`+"\n\n"...)
	}
	return append(dst, "]}\n\n"...)
}

func (s *StreamEncoder) offset(index int) *textOffset {
	for len(s.offsets) <= index {
		s.offsets = append(s.offsets, textOffset{})
	}
	return &s.offsets[index]
}

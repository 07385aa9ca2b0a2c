package faultproxy

import (
	"bytes"

	"cotenant/internal/openai"
)

// eventEnd is where the first event of a stream ends, its blank line included; 0 where it isn't whole. Lines end in LF, CR or CRLF
// (WHATWG, server-sent events, 9.2.6).
func eventEnd(b []byte) int {
	start := 0 // of a line
	for i := 0; i < len(b); i++ {
		if b[i] != '\n' && b[i] != '\r' {
			continue
		}
		end := i + 1
		if b[i] == '\r' {
			if end == len(b) {
				return 0 // an LF may follow
			}
			if b[end] == '\n' {
				end++
			}
		}
		if i == start {
			return end
		}
		start, i = end, end-1
	}
	return 0
}

// seen is what an event is to the plan.
type seen struct {
	data bool // it has data
	text bool // it has content, reasoning or tool text: a token
	last bool // it ends the answer
}

// examine reads one event's bytes.
func examine(b []byte) seen {
	var data []byte
	for line := range bytes.FieldsFuncSeq(b, func(r rune) bool { return r == '\n' || r == '\r' }) {
		rest, ok := bytes.CutPrefix(line, []byte("data:"))
		if !ok {
			continue
		}
		if len(data) > 0 {
			data = append(data, '\n')
		}
		data = append(data, bytes.TrimPrefix(rest, []byte(" "))...)
	}
	s := seen{data: len(bytes.TrimSpace(data)) > 0}
	if string(bytes.TrimSpace(data)) == "[DONE]" {
		s.last = true
		return s
	}
	var c openai.StreamChunk
	if !s.data || c.Decode(data) != nil {
		return s
	}
	s.text = len(c.Content)+len(c.Reasoning)+len(c.Refusal)+c.ToolBytes > 0
	s.last = len(c.FinishReason) > 0
	return s
}

// Package tokenizer turns text into token ids and back: byte-level BPE (the "gpt2" family) with the pre-tokenizers of
// GPT-2, SmolLM, Qwen2/2.5/3 and Llama 3, read from a Hugging Face tokenizer.json or from the vocabulary in a GGUF
// file.
//
// Its ids equal those of Hugging Face's tokenizers library. A file that asks for anything that this package doesn't do
// is refused by name, because a nearly right tokenizer degrades a model without a sign.
//
// # Text that can't become control tokens
//
// A control token (<|im_start|>, <|eot_id|>) ends turns and changes roles, so text of a user must never become one.
// Encode never makes control tokens. EncodeSegments makes them only where every byte of the literal is trusted, and
// treats all segments as one string otherwise, so trusted and other text next to each other tokenises as if it were one
// text. Literals of user-defined tokens that aren't control tokens (<think>, <tool_call>) are matched everywhere, as
// Hugging Face does.
//
// # Bytes
//
// Text should be valid UTF-8. Each invalid byte is kept and counts as a symbol. A byte that the vocabulary has no token
// for is left out, as Hugging Face does when there is no unknown token: SmolLM2 lacks eight bytes that valid text can
// hold (among them U+0004). Lacks lists them. Decode(Encode(s)) is otherwise s, or its normal form C where the
// tokenizer normalises.
package tokenizer

import (
	"math"
	"slices"
	"strings"
)

// Segment is a stretch of a prompt. Trusted text comes from the model's own template, never from a user.
type Segment struct {
	Text    string
	Trusted bool
}

// Tokenizer encodes and decodes. It doesn't change after it was made and is safe for concurrent use.
type Tokenizer struct {
	pre    scanner
	usesC  bool // normal form C before splitting
	bpe    bpe
	raw    matcher // added tokens, looked for in the text as it is
	normed matcher // added tokens, looked for in normalised text

	blob    []byte   // bytes of all tokens, back to back
	offsets []uint32 // token i is blob[offsets[i]:offsets[i+1]]
	control []bool
	ids     map[string]int32 // literals of added tokens

	bos            int32
	eos            []int32
	addBOS, addEOS bool
}

// Encode returns the ids of text, without BOS or EOS and without any control token.
func (t *Tokenizer) Encode(text string) []int32 {
	ids, _ := t.encode(text, nil, math.MaxInt)
	return ids
}

// EncodeSpecial returns the ids of text in which the literals of control tokens become these tokens. It is for
// templates and for callers who were told that they may write control tokens.
func (t *Tokenizer) EncodeSpecial(text string) []int32 {
	ids, _ := t.encode(text, []span{{0, len(text)}}, math.MaxInt)
	return ids
}

// EncodeSegments returns the ids of the segments' joined text, in which literals of control tokens become these tokens
// only where they lie in trusted text (in one trusted segment, or over several that touch). Without such literals in
// untrusted text the result is EncodeSpecial of the joined text.
func (t *Tokenizer) EncodeSegments(segments []Segment) []int32 {
	ids, _ := t.EncodeWithin(segments, math.MaxInt)
	return ids
}

// EncodeWithin is EncodeSegments for a place that holds so many ids: where there are more it returns false, and ids is
// the start of them or a little more. It stops there, so that beyond reading the text once neither time nor memory grows
// with what doesn't fit.
func (t *Tokenizer) EncodeWithin(segments []Segment, most int) (ids []int32, ok bool) {
	var text strings.Builder
	n := 0
	for _, s := range segments {
		n += len(s.Text)
	}
	text.Grow(n)
	var trusted []span
	for _, s := range segments {
		start := text.Len()
		text.WriteString(s.Text)
		if !s.Trusted || s.Text == "" {
			continue
		}
		if last := len(trusted) - 1; last >= 0 && trusted[last].end == start {
			trusted[last].end = text.Len()
		} else {
			trusted = append(trusted, span{start, text.Len()})
		}
	}
	return t.encode(text.String(), trusted, most)
}

// encode splits added tokens out, first those that are looked for in the text as it is, then in what lies between those
// that are looked for in normalised text, and encodes the rest. It gives up where that makes more than most ids.
func (t *Tokenizer) encode(text string, trusted []span, most int) (out []int32, ok bool) {
	out = make([]int32, 0, min(len(text)/4, most)+4)
	w := t.bpe.worker()
	defer t.bpe.release(w)
	plain := func(s string) bool {
		for len(s) > 0 {
			n := t.pre(s)
			if room := most - len(out); n/t.bpe.longest > room && t.bpe.fewest(s[:n]) > room {
				return false
			}
			if out = t.bpe.encodeWord(w, out, s[:n]); len(out) > most {
				return false
			}
			s = s[n:]
		}
		return true
	}
	token := func(id int32) bool {
		out = append(out, id)
		return len(out) <= most
	}
	between := func(s string, start int) bool {
		if t.normed.empty() {
			if t.usesC {
				s = toC(s)
			}
			return plain(s)
		}
		inside := clip(trusted, start, start+len(s))
		if t.usesC {
			s, inside = toCSpans(s, inside)
		}
		return t.normed.split(s, inside, func(s string, _ int) bool { return plain(s) }, token)
	}
	return out, t.raw.split(text, trusted, between, token)
}

// TokenBytes returns what a token stands for; nothing for an id outside the vocabulary and for unused tokens. The slice
// belongs to the tokenizer and must not be changed.
func (t *Tokenizer) TokenBytes(id int32) []byte {
	if id < 0 || int(id) >= t.VocabSize() {
		return nil
	}
	from, to := t.offsets[id], t.offsets[id+1]
	return t.blob[from:to:to]
}

// Decode returns the bytes of ids, control tokens as their literals. They need not be valid UTF-8.
func (t *Tokenizer) Decode(ids []int32) []byte {
	n := 0
	for _, id := range ids {
		n += len(t.TokenBytes(id))
	}
	out := make([]byte, 0, n)
	for _, id := range ids {
		out = append(out, t.TokenBytes(id)...)
	}
	return out
}

// VocabSize is the largest id plus one. A model's output may be wider than this.
func (t *Tokenizer) VocabSize() int { return len(t.offsets) - 1 }

// IsControl reports whether a token is a control token: its text is never part of an answer.
func (t *Tokenizer) IsControl(id int32) bool {
	return id >= 0 && int(id) < len(t.control) && t.control[id]
}

// TokenID returns the id of an added token (control or user-defined) by its literal.
func (t *Tokenizer) TokenID(literal string) (int32, bool) {
	id, ok := t.ids[literal]
	return id, ok
}

// BOS returns the token that begins a text, -1 where there is none.
func (t *Tokenizer) BOS() int32 { return t.bos }

// EOS returns the tokens that end an answer, most important first: the declared ones, then every control token that
// ends a turn or a text by its well-known literal. A model's own configuration may name more.
func (t *Tokenizer) EOS() []int32 { return slices.Clone(t.eos) }

// AddBOS reports whether the model expects BOS before a plain prompt. A rendered chat template brings its own.
func (t *Tokenizer) AddBOS() bool { return t.addBOS }

// AddEOS reports whether the model expects EOS after a plain prompt.
func (t *Tokenizer) AddEOS() bool { return t.addEOS }

// Lacks returns the bytes that have no token, ascending. Encode leaves them out.
func (t *Tokenizer) Lacks() []byte {
	var out []byte
	for b, id := range t.bpe.byteIDs {
		if id < 0 {
			out = append(out, byte(b))
		}
	}
	return out
}

// span is text[start:end].
type span struct{ start, end int }

// clip returns the parts of ascending spans within [start, end), counted from start.
func clip(spans []span, start, end int) []span {
	var out []span
	for _, s := range spans {
		if a, b := max(s.start, start), min(s.end, end); a < b {
			out = append(out, span{a - start, b - start})
		}
	}
	return out
}

package openai

import (
	"strconv"
	"strings"
	"unicode/utf8"
)

// TokenLogprob is a token with its natural log-probability and its most likely alternatives, best first.
type TokenLogprob struct {
	Bytes   []byte
	Logprob float32
	Top     []TopLogprob
	First   bool // first token of a prompt: it has no log-probability
}

// TopLogprob is an alternative to a token.
type TopLogprob struct {
	Bytes   []byte
	Logprob float32
}

// appendChatLogprobs renders {"content":[…],"refusal":null}. A token that isn't whole UTF-8 shows U+FFFD in "token"; "bytes" has
// the truth and is never null.
func appendChatLogprobs(dst []byte, tokens []TokenLogprob) []byte {
	dst = append(dst, `{"content":[`...)
	for i := range tokens {
		if i > 0 {
			dst = append(dst, ',')
		}
		t := &tokens[i]
		dst = appendChatToken(dst, t.Bytes, t.Logprob)
		dst = append(dst, `,"top_logprobs":[`...)
		for j, top := range t.Top {
			if j > 0 {
				dst = append(dst, ',')
			}
			dst = append(appendChatToken(dst, top.Bytes, top.Logprob), '}')
		}
		dst = append(dst, "]}"...)
	}
	return append(dst, `],"refusal":null}`...)
}

func appendChatToken(dst, token []byte, logprob float32) []byte {
	dst = append(dst, `{"token":`...)
	dst = appendString(dst, string(token))
	dst = append(dst, `,"logprob":`...)
	dst = appendLogprob(dst, logprob)
	dst = append(dst, `,"bytes":[`...)
	for i, b := range token {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = appendInt(dst, int(b))
	}
	return append(dst, ']')
}

// textOffset counts code points, as OpenAI's text_offset does, over tokens that may end within one.
type textOffset struct{ runes int }

// next returns where token begins in the text and steps past it. A token that begins within a character begins where the
// character does.
func (o *textOffset) next(token []byte) int {
	at := o.runes
	if len(token) > 0 && !utf8.RuneStart(token[0]) && at > 0 {
		at--
	}
	for _, b := range token {
		if utf8.RuneStart(b) {
			o.runes++
		}
	}
	return at
}

// appendCompletionLogprobs renders the four parallel arrays of the completions API. Offsets count from the start of the choice's
// text. top_logprobs always holds the chosen token too, since clients look there whether it was the best one.
func appendCompletionLogprobs(dst []byte, tokens []TokenLogprob, offset *textOffset) []byte {
	list := func(name string, item func(t *TokenLogprob)) {
		dst = append(dst, name...)
		for i := range tokens {
			if i > 0 {
				dst = append(dst, ',')
			}
			item(&tokens[i])
		}
		dst = append(dst, ']')
	}
	list(`{"tokens":[`, func(t *TokenLogprob) { dst = appendString(dst, tokenName(t.Bytes)) })
	list(`,"token_logprobs":[`, func(t *TokenLogprob) {
		if t.First {
			dst = append(dst, "null"...)
		} else {
			dst = appendLogprob(dst, t.Logprob)
		}
	})
	list(`,"top_logprobs":[`, func(t *TokenLogprob) { dst = appendTopMap(dst, t) })
	list(`,"text_offset":[`, func(t *TokenLogprob) { dst = appendInt(dst, offset.next(t.Bytes)) })
	return append(dst, '}')
}

// appendTopMap renders {"token":logprob,…}, best first. Of tokens with the same name the best one stays.
func appendTopMap(dst []byte, t *TokenLogprob) []byte {
	if t.First {
		return append(dst, "null"...)
	}
	names := make([]string, 0, len(t.Top)+1)
	dst = append(dst, '{')
	add := func(token []byte, logprob float32) {
		name := tokenName(token)
		for _, n := range names {
			if n == name {
				return
			}
		}
		if len(names) > 0 {
			dst = append(dst, ',')
		}
		names = append(names, name)
		dst = appendString(dst, name)
		dst = append(dst, ':')
		dst = appendLogprob(dst, logprob)
	}
	for _, top := range t.Top {
		add(top.Bytes, top.Logprob)
	}
	add(t.Bytes, t.Logprob)
	return append(dst, '}')
}

// tokenName is a token's text, or bytes:\xNN… for one that isn't whole UTF-8, as OpenAI writes it: names are keys here and U+FFFD
// would make different tokens one.
func tokenName(token []byte) string {
	if utf8.Valid(token) {
		return string(token)
	}
	var b strings.Builder
	b.WriteString("bytes:")
	for _, c := range token {
		b.WriteString(`\x`)
		if c < 16 {
			b.WriteByte('0')
		}
		b.WriteString(strconv.FormatUint(uint64(c), 16))
	}
	return b.String()
}

package tokenizer

import (
	"strings"
	"unicode/utf8"
)

// scanner returns the length of the first pre-token of s, which isn't empty.
//
// The scanners below do by hand what these regular expressions do, alternatives in order:
//
//	GPT-2:   's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
//	Qwen2:   (?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+
//	Llama 3: as Qwen2, with \p{N}{1,3}
//	SmolLM:  each \p{N} alone, then GPT-2 on what lies between
//
// A regular expression engine would be slower, and backtracking engines have no bound.
type scanner func(s string) int

// preTokenizer is what this package knows about one way to split.
type preTokenizer struct {
	scan         scanner
	usesC        bool // Hugging Face's files for it normalise to form C
	ignoreMerges bool
	addBOS       bool // where a GGUF file doesn't say
}

// ggufPre lists the values of tokenizer.ggml.pre that are known. "default" and an absent value aren't: what llama.cpp
// does for them is a guess of its own, which it warns about.
var ggufPre = map[string]preTokenizer{
	"gpt-2":     {scan: scanGPT2},
	"smollm":    {scan: scanSmolLM},
	"qwen2":     {scan: scanQwen2, usesC: true},
	"llama-bpe": {scan: scanLlama3, ignoreMerges: true, addBOS: true},
	"llama3":    {scan: scanLlama3, ignoreMerges: true, addBOS: true},
	"llama-v3":  {scan: scanLlama3, ignoreMerges: true, addBOS: true},
}

func scanQwen2(s string) int  { return scanFolded(s, 1) }
func scanLlama3(s string) int { return scanFolded(s, 3) }

// scanFolded is Qwen2's and Llama 3's expression; digits is how many numbers stay together.
func scanFolded(s string, digits int) int {
	table := classes()
	if s[0] == '\'' {
		if n := contraction(s, true); n > 0 {
			return n
		}
	}
	c, n := classAt(table, s, 0)
	switch c {
	case letter:
		return n + run(table, s[n:], letter)
	case number:
		for ; digits > 1 && n < len(s); digits-- {
			c, m := classAt(table, s, n)
			if c != number {
				break
			}
			n += m
		}
		return n
	}
	if c != newline {
		if m := run(table, s[n:], letter); m > 0 {
			return n + m
		}
	}
	if m := symbols(table, s); m > 0 {
		return m + run(table, s[m:], newline)
	}
	return whitespace(table, s, true)
}

func scanGPT2(s string) int {
	table := classes()
	if s[0] == '\'' {
		if n := contraction(s, false); n > 0 {
			return n
		}
	}
	lead := 0
	if s[0] == ' ' {
		lead = 1
	}
	if m := run(table, s[lead:], letter); m > 0 {
		return lead + m
	}
	if m := run(table, s[lead:], number); m > 0 {
		return lead + m
	}
	if m := symbols(table, s); m > 0 {
		return m
	}
	return whitespace(table, s, false)
}

// scanSmolLM gives GPT-2's scanner no more than what comes before the next number. That matters to it only for white
// space: the last space of a run before a number doesn't go with the number.
func scanSmolLM(s string) int {
	table := classes()
	c, n := classAt(table, s, 0)
	switch c {
	case number:
		return n
	case space, newline:
		if m := spaces(table, s); m < len(s) {
			if c, _ := classAt(table, s, m); c == number {
				return m
			}
		}
	}
	return scanGPT2(s)
}

// contraction returns the length of 's, 't, 're, 've, 'm, 'll or 'd at the start of s, 0 if there is none. Without
// regard to case the long s (U+017F) is an s: Unicode folds it.
func contraction(s string, fold bool) int {
	at := func(i int) byte {
		switch {
		case i >= len(s):
			return 0
		case fold && 'A' <= s[i] && s[i] <= 'Z':
			return s[i] + 'a' - 'A'
		}
		return s[i]
	}
	switch at(1) {
	case 's', 't', 'm', 'd':
		return 2
	case 'r', 'v':
		if at(2) == 'e' {
			return 3
		}
	case 'l':
		if at(2) == 'l' {
			return 3
		}
	}
	if fold && strings.HasPrefix(s[1:], "ſ") {
		return 1 + len("ſ")
	}
	return 0
}

// run returns how many bytes at the start of s are of class c.
func run(table *classTable, s string, c class) int {
	i := 0
	for i < len(s) {
		d, n := classAt(table, s, i)
		if d != c {
			break
		}
		i += n
	}
	return i
}

// symbols returns the length of ` ?[^\s\p{L}\p{N}]+` at the start of s.
func symbols(table *classTable, s string) int {
	lead := 0
	if s[0] == ' ' {
		lead = 1
	}
	if n := run(table, s[lead:], other); n > 0 {
		return lead + n
	}
	return 0
}

// spaces returns how many bytes at the start of s are white space, newlines included.
func spaces(table *classTable, s string) int {
	i := 0
	for i < len(s) {
		c, n := classAt(table, s, i)
		if c != space && c != newline {
			break
		}
		i += n
	}
	return i
}

// whitespace returns the length of `\s*[\r\n]+|\s+(?!\S)|\s+` at the start of s, which is white space; without lines,
// of the last two. The lookahead leaves the last character of a run to the word that follows.
func whitespace(table *classTable, s string, lines bool) int {
	n := spaces(table, s)
	if lines {
		if i := strings.LastIndexAny(s[:n], "\r\n"); i >= 0 {
			return i + 1
		}
	}
	if n == len(s) {
		return n
	}
	if _, last := utf8.DecodeLastRuneInString(s[:n]); last < n {
		return n - last
	}
	return n
}

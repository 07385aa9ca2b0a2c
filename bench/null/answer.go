package main

import (
	"slices"
	"strconv"
	"strings"

	"cotenant/internal/openai"
)

// answerTokens is how many tokens an answer has: as many as the client asks for by default.
const answerTokens = 8

// reply works a generated task out from what it says. An answer that went to another context's connection would be wrong there, which is
// what the oracle finds. To whatever else is asked it says so.
func reply(messages []openai.Message) string {
	last := messages[len(messages)-1]
	q := last.Content
	if word, ok := between(q, "Repeat the code word ", "."); ok {
		return word
	}
	if sum, ok := between(q, "What is ", "?"); ok {
		a, b, _ := strings.Cut(sum, " + ")
		x, err1 := strconv.Atoi(a)
		y, err2 := strconv.Atoi(b)
		if err1 == nil && err2 == nil {
			return strconv.Itoa(x + y)
		}
	}
	if name, ok := between(q, "Which number does the list give for ", "?"); ok {
		for _, m := range messages {
			if value, ok := between(m.Content, "\n"+name+" ", "\n"); ok {
				return value
			}
		}
	}
	if list, ok := strings.CutPrefix(q, "Put in alphabetical order: "); ok {
		letters := strings.Fields(list)
		slices.Sort(letters)
		return strings.Join(letters, " ")
	}
	return "nothing known of that"
}

// between cuts out what stands between two texts.
func between(s, before, after string) (string, bool) {
	_, s, ok := strings.Cut(s, before)
	if !ok {
		return "", false
	}
	return cutBefore(s, after)
}

func cutBefore(s, after string) (string, bool) {
	s, _, ok := strings.Cut(s, after)
	return s, ok
}

// pieces cuts an answer into tokens: one a byte where it is short, blanks behind it up to eight, the rest in the last one. limit is
// max_tokens, negative where there is none.
func pieces(answer string, limit int) (out []string, finish string) {
	if n := len(answer); n < answerTokens {
		answer += strings.Repeat(" ", answerTokens-n)
	}
	for i := range answerTokens - 1 {
		out = append(out, answer[i:i+1])
	}
	out = append(out, answer[answerTokens-1:])
	if limit >= 0 && limit < len(out) {
		return out[:limit], "length"
	}
	return out, "stop"
}

// promptTokens counts the words of a prompt.
func promptTokens(messages []openai.Message) int {
	n := 0
	for _, m := range messages {
		in := false
		for i := range len(m.Content) {
			blank := m.Content[i] == ' ' || m.Content[i] == '\n'
			if !blank && !in {
				n++
			}
			in = !blank
		}
	}
	return n
}

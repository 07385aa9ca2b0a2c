package loadgen

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"unicode/utf8"
)

// Bounds of a trace.
const (
	MaxTraceUS     = 1 << 42 // of at_us: 50 days
	MaxTraceTokens = 1 << 20
	MaxTraceLines  = 10_000_000
)

// Trace is work that was recorded somewhere: when each request came, and how long it and its answer were. What the prompts said is
// hardly ever part of a trace, so that prompts of about the same length are made, each with a beginning of its own.
type Trace struct {
	lines []traceEntry
	texts map[int64][]Message // of lines that have their own
	name  string
	hash  string
}

type traceEntry struct {
	atUS           int64
	prompt, answer int32 // tokens
}

// traceLine is one line: prompt_tokens, or else prompt or messages.
type traceLine struct {
	AtUS         *int64    `json:"at_us"`
	PromptTokens *int64    `json:"prompt_tokens"`
	OutputTokens *int64    `json:"output_tokens"`
	Prompt       *string   `json:"prompt"`
	Messages     []Message `json:"messages"`
}

// ReadTrace reads a trace: one JSON object a line with at_us (µs from the trace's beginning, not falling), output_tokens, and one of
// prompt_tokens, prompt and messages. Blank lines are skipped.
func ReadTrace(path string) (*Trace, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("opening the trace: %w", err)
	}
	defer f.Close()
	t, err := readTrace(f)
	if err != nil {
		return nil, fmt.Errorf("reading the trace %s: %w", path, err)
	}
	t.name = "trace:" + filepath.Base(path)
	return t, nil
}

func readTrace(r io.Reader) (*Trace, error) {
	h := sha256.New()
	br := bufio.NewReaderSize(io.TeeReader(io.LimitReader(r, MaxPromptBytes+1), h), 1<<16)
	t := &Trace{texts: map[int64][]Message{}}
	total := 0
	for n := 1; ; n++ {
		raw, err := readLine(br)
		if err != nil && err != io.EOF {
			return nil, fmt.Errorf("line %d: %w", n, err)
		}
		if total += len(raw); total > MaxPromptBytes {
			return nil, fmt.Errorf("file is larger than %d bytes", MaxPromptBytes)
		}
		if len(bytes.TrimSpace(raw)) > 0 {
			if perr := t.add(raw); perr != nil {
				return nil, fmt.Errorf("line %d: %w", n, perr)
			}
		}
		if err == io.EOF {
			break
		}
	}
	if len(t.lines) == 0 {
		return nil, errors.New(`no requests; want lines like {"at_us": 0, "prompt_tokens": 700, "output_tokens": 8}`)
	}
	t.hash = hex.EncodeToString(h.Sum(nil))
	return t, nil
}

func (t *Trace) add(raw []byte) error {
	if !utf8.Valid(raw) {
		return errors.New("not valid UTF-8")
	}
	var l traceLine
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&l); err != nil {
		return err
	}
	if _, err := dec.Token(); err != io.EOF {
		return errors.New("more than one JSON value")
	}
	ways := 0
	for _, there := range []bool{l.PromptTokens != nil, l.Prompt != nil, l.Messages != nil} {
		if there {
			ways++
		}
	}
	switch {
	case l.AtUS == nil || *l.AtUS < 0 || *l.AtUS > MaxTraceUS:
		return fmt.Errorf(`"at_us" must be there, from 0 to %d`, int64(MaxTraceUS))
	case l.OutputTokens == nil || *l.OutputTokens < 1 || *l.OutputTokens > MaxTraceTokens:
		return fmt.Errorf(`"output_tokens" must be there, from 1 to %d`, MaxTraceTokens)
	case ways != 1:
		return errors.New(`want exactly one of "prompt_tokens", "prompt" and "messages"`)
	case len(t.lines) == MaxTraceLines:
		return fmt.Errorf("more than %d requests", MaxTraceLines)
	case len(t.lines) > 0 && *l.AtUS < t.lines[len(t.lines)-1].atUS:
		return errors.New(`"at_us" is below that of the line before: sort the trace by time`)
	}
	e := traceEntry{atUS: *l.AtUS, answer: int32(*l.OutputTokens)}
	switch {
	case l.PromptTokens != nil:
		if *l.PromptTokens < 1 || *l.PromptTokens > MaxTraceTokens {
			return fmt.Errorf(`"prompt_tokens" %d: want 1 to %d`, *l.PromptTokens, MaxTraceTokens)
		}
		e.prompt = int32(*l.PromptTokens)
	case l.Prompt != nil:
		t.texts[int64(len(t.lines))] = []Message{{"user", *l.Prompt}}
	default:
		if len(l.Messages) == 0 {
			return errors.New(`"messages" is empty`)
		}
		for i, m := range l.Messages {
			if m.Role == "" {
				return fmt.Errorf(`messages[%d] has no "role"`, i)
			}
		}
		t.texts[int64(len(t.lines))] = l.Messages
	}
	t.lines = append(t.lines, e)
	return nil
}

// Replayed is the kind of a trace's tasks.
const Replayed Kind = "replay"

// templateTokens is about what a chat template adds to a prompt.
const templateTokens = 24

// Task is one request of the trace; a context beyond its end asks what the first ones did.
func (t *Trace) Task(context int64) Task {
	n := context % int64(len(t.lines))
	e := t.lines[n]
	task := Task{Context: context, Kind: Replayed, Messages: t.texts[n], MaxTokens: int64(e.answer)}
	if task.Messages == nil {
		task.Messages = []Message{{"user", filler(context, int(e.prompt)-templateTokens)}}
	}
	return task
}

// filler is text of about so many tokens in a usual vocabulary, at least a few. It begins with words of its own.
func filler(context int64, tokens int) string {
	r := rand.New(rand.NewPCG(mix(uint64(context)), streamTrace))
	var b strings.Builder
	fmt.Fprintf(&b, "Note %s.", codeWord(r))
	for written := 8; written < tokens; written++ {
		b.WriteByte(' ')
		b.WriteString(shortWords[r.IntN(len(shortWords))])
	}
	return b.String()
}

const streamTrace = 6

// shortWords are one token each, with the space before them, in the vocabularies of Llama 3.1 and Qwen 3.
var shortWords = strings.Fields(`the of and to in that it is was for on are as with his they at be this have from or one had by word but not
what all were we when your can said there use an each which she do how their if will up other about out many then them these so some her would
make like him into time has look two more write go see number no way could people my than first water been call who oil its now find long down
day did get come made may part`)

// Len is the number of requests.
func (t *Trace) Len() int { return len(t.lines) }

// At is when a request came, in µs.
func (t *Trace) At(n int64) int64 { return t.lines[n].atUS }

// Answer is how many tokens a request's answer may have.
func (t *Trace) Answer(n int64) int64 { return int64(t.lines[n].answer) }

// Base is empty: what prompts share is not known.
func (t *Trace) Base() string { return "" }

// Hash is the SHA-256 of the file's bytes.
func (t *Trace) Hash() string { return t.hash }

// Name is the file's base name.
func (t *Trace) Name() string { return t.name }

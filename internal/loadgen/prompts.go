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
	"os"
	"path/filepath"
	"unicode/utf8"
)

// Bounds of a prompts file, so that a wrong path ends in an error instead of in memory.
const (
	MaxPromptLine  = 16 << 20
	MaxPromptBytes = 1 << 30
)

// PromptsName begins the name of work that is read from a file; the file's base name follows.
const PromptsName = "prompts:"

// Prompts is work read from a JSON-lines file. Contexts beyond its last line start again at the first.
type Prompts struct {
	tasks []Task
	name  string
	hash  string
}

// promptLine is one line: prompt or messages, and with expect an oracle (equality as Task.Check has it).
type promptLine struct {
	Prompt   *string   `json:"prompt"`
	Messages []Message `json:"messages"`
	Expect   *string   `json:"expect"`
}

// ReadPrompts reads a prompts file: one JSON object a line, {"prompt": "…"} or {"messages": [{"role": …, "content": …}]},
// and optionally "expect". Blank lines are skipped.
func ReadPrompts(path string) (*Prompts, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("opening prompts: %w", err)
	}
	defer f.Close()
	p, err := readPrompts(f)
	if err != nil {
		return nil, fmt.Errorf("reading prompts from %s: %w", path, err)
	}
	p.name = PromptsName + filepath.Base(path)
	return p, nil
}

func readPrompts(r io.Reader) (*Prompts, error) {
	h := sha256.New()
	br := bufio.NewReaderSize(io.TeeReader(io.LimitReader(r, MaxPromptBytes+1), h), 1<<16)
	p := &Prompts{}
	total := 0
	for line := 1; ; line++ {
		raw, err := readLine(br)
		if err != nil && err != io.EOF {
			return nil, fmt.Errorf("line %d: %w", line, err)
		}
		if total += len(raw); total > MaxPromptBytes {
			return nil, fmt.Errorf("file is larger than %d bytes", MaxPromptBytes)
		}
		if len(bytes.TrimSpace(raw)) > 0 {
			t, perr := parsePrompt(raw)
			if perr != nil {
				return nil, fmt.Errorf("line %d: %w", line, perr)
			}
			p.tasks = append(p.tasks, t)
		}
		if err == io.EOF {
			break
		}
	}
	if len(p.tasks) == 0 {
		return nil, errors.New(`no prompts; want lines like {"prompt": "…"}`)
	}
	p.hash = hex.EncodeToString(h.Sum(nil))
	return p, nil
}

func readLine(br *bufio.Reader) ([]byte, error) {
	var line []byte
	for {
		part, err := br.ReadSlice('\n')
		line = append(line, part...)
		if len(line) > MaxPromptLine {
			return nil, fmt.Errorf("longer than %d bytes", MaxPromptLine)
		}
		if err != bufio.ErrBufferFull {
			return line, err
		}
	}
}

func parsePrompt(raw []byte) (Task, error) {
	if !utf8.Valid(raw) {
		return Task{}, errors.New("not valid UTF-8")
	}
	var l promptLine
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&l); err != nil {
		return Task{}, err
	}
	if _, err := dec.Token(); err != io.EOF {
		return Task{}, errors.New("more than one JSON value")
	}
	if (l.Prompt == nil) == (l.Messages == nil) {
		return Task{}, errors.New(`want exactly one of "prompt" and "messages"`)
	}
	t := Task{Kind: Custom, Messages: l.Messages}
	if l.Prompt != nil {
		t.Messages = []Message{{"user", *l.Prompt}}
	}
	if len(t.Messages) == 0 {
		return Task{}, errors.New(`"messages" is empty`)
	}
	for i, m := range t.Messages {
		if m.Role == "" {
			return Task{}, fmt.Errorf(`messages[%d] has no "role"`, i)
		}
	}
	if l.Expect != nil {
		t.Expect, t.HasOracle = *l.Expect, true
	}
	return t, nil
}

// Task returns line context modulo the number of lines.
func (p *Prompts) Task(context int64) Task {
	t := p.tasks[context%int64(len(p.tasks))]
	t.Context = context
	return t
}

// Base is empty: what prompts share is not known.
func (p *Prompts) Base() string { return "" }

// Hash is the SHA-256 of the file's bytes.
func (p *Prompts) Hash() string { return p.hash }

// Name is the file's base name.
func (p *Prompts) Name() string { return p.name }

// Len is the number of prompts.
func (p *Prompts) Len() int { return len(p.tasks) }

package model

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"cotenant/internal/backend/cpu"
	"cotenant/internal/embedded"
)

// folder is sidecars by name.
type folder map[string]string

func (f folder) Sidecar(name string) ([]byte, bool, error) {
	text, ok := f[name]
	return []byte(text), ok, nil
}

func TestHFTemplate(t *testing.T) {
	for _, c := range []struct {
		name  string
		files folder
		want  string
		err   string
	}{
		{"a text", folder{"tokenizer_config.json": `{"chat_template":"a"}`}, "a", ""},
		{"a file beside", folder{"tokenizer_config.json": `{"chat_template":"a"}`, "chat_template.jinja": "b"}, "b", ""},
		{"named ones", folder{"tokenizer_config.json": `{"chat_template":[{"name":"tool_use","template":"t"},{"name":"default","template":"d"}]}`}, "d", ""},
		{"named, without a default", folder{"tokenizer_config.json": `{"chat_template":[{"name":"rag","template":"t"}]}`}, "", "default"},
		{"a number", folder{"tokenizer_config.json": `{"chat_template":7}`}, "", "neither"},
		{"broken JSON", folder{"tokenizer_config.json": `{`}, "", "tokenizer_config.json"},
		{"null", folder{"tokenizer_config.json": `{"chat_template":null}`}, "", errNoTemplate.Error()},
		{"no key", folder{"tokenizer_config.json": `{}`}, "", errNoTemplate.Error()},
		{"no file", folder{}, "", errNoTemplate.Error()},
	} {
		got, err := hfTemplate(c.files)
		if got != c.want && err == nil || (err == nil) != (c.err == "") {
			t.Errorf("%s: %q, %v", c.name, got, err)
		}
		if err != nil && !strings.Contains(err.Error(), c.err) {
			t.Errorf("%s: %v, want %q", c.name, err, c.err)
		}
		if c.err == errNoTemplate.Error() && !errors.Is(err, errNoTemplate) {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}

// TestTemplates: GGUF and Hugging Face folders give the same prompt; a model without a template says so and still loads.
func TestTemplates(t *testing.T) {
	o, opt := cpu.Options{Threads: 1}, Options{MaxBatchTokens: 8}
	a := chatIDs(t, open(t, "testdata/random/qwen3-tied", o, opt), "hell")
	b := chatIDs(t, open(t, "testdata/random/qwen3-tied.gguf", o, opt), "hell")
	if len(a) < 10 || !slices.Equal(a, b) {
		t.Errorf("prompts %v and %v", a, b)
	}
	m := open(t, "testdata/random/qwen2-tied", o, opt)
	if m.Template() != nil || !errors.Is(m.TemplateError(), errNoTemplate) {
		t.Errorf("template %v, reason %v", m.Template(), m.TemplateError())
	}
}

// TestEmbedded loads the program's own model from memory.
func TestEmbedded(t *testing.T) {
	be, err := cpu.New(cpu.Options{})
	if err != nil {
		t.Fatal(err)
	}
	m, err := LoadEmbedded(be, Options{})
	if err != nil {
		_ = be.Close()
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = m.Close() })
	if m.Template() == nil || len(m.EOS()) == 0 {
		t.Errorf("template error %v, end tokens %v", m.TemplateError(), m.EOS())
	}
	if d, err := m.Digest(); err != nil || d != fmt.Sprintf("%x", sha256.Sum256(embedded.GGUF())) {
		t.Errorf("digest %s, %v", d, err)
	}
	ids := chatIDs(t, m, "hello")
	run := newRunner(t, m, 16, 8)
	row := run.all(ids, 64)[len(ids)-1]
	if id := argmax(row); m.Tokenizer().TokenBytes(id) == nil {
		t.Errorf("token %d has no text", id)
	}
	t.Logf("%+v", m.Info())
}

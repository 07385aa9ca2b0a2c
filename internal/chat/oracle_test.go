package chat

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"cotenant/internal/testenv"
)

// casesJSON is what tools/oracle/chat.py writes.
type casesJSON struct {
	Cases []struct {
		Name     string
		Messages []map[string]json.RawMessage
		Options  map[string]json.RawMessage
	}
	Templates map[string]struct {
		SHA256, BOS, EOS string
		Renders          []*string
	}
}

// oracleClock is what tools/oracle/chat.py lets transformers see.
func oracleClock() time.Time { return time.Date(2026, 3, 7, 8, 5, 9, 123456000, time.UTC) }

func readJSON(t testing.TB, path string, v any) {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(b, v); err != nil {
		t.Fatalf("%s: %v", path, err)
	}
}

// message makes a Message; what it has no field for goes into Extra.
func message(t testing.TB, fields map[string]json.RawMessage) Message {
	t.Helper()
	var m Message
	extra := map[string]json.RawMessage{}
	for name, raw := range fields {
		var into *string
		switch name {
		case "role":
			into = &m.Role
		case "content":
			into = &m.Content
		default:
			extra[name] = raw
			continue
		}
		if err := json.Unmarshal(raw, into); err != nil {
			t.Fatal(err)
		}
	}
	if len(extra) > 0 {
		m.Extra, _ = json.Marshal(extra)
	}
	return m
}

func options(t testing.TB, o map[string]json.RawMessage) RenderOptions {
	t.Helper()
	out := RenderOptions{Vars: map[string]json.RawMessage{}}
	for name, raw := range o {
		switch name {
		case "add_generation_prompt":
			out.AddGenerationPrompt = string(raw) == "true"
		case "continue_final_message":
			out.ContinueFinal = string(raw) == "true"
		case "tools":
			out.Tools = raw
		default:
			out.Vars[name] = raw
		}
	}
	return out
}

// source returns a template's text: a fixture, or Llama's from COTENANT_MODEL_DIR.
func source(t testing.TB, name string) string {
	t.Helper()
	if name != "llama3_1" {
		b, err := os.ReadFile(filepath.Join("testdata", name+".jinja"))
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	var config struct {
		Template string `json:"chat_template"`
	}
	readJSON(t, testenv.Model(t, name+"/tokenizer_config.json"), &config)
	return config.Template
}

func TestEqualsTransformers(t *testing.T) {
	var doc casesJSON
	readJSON(t, filepath.Join("testdata", "cases.json"), &doc)
	if len(doc.Cases) < 24 || len(doc.Templates) < 3 {
		t.Fatalf("%d cases of %d templates", len(doc.Cases), len(doc.Templates))
	}
	for name, want := range doc.Templates {
		t.Run(name, func(t *testing.T) {
			src := source(t, name)
			if sum := sha256.Sum256([]byte(src)); hex.EncodeToString(sum[:]) != want.SHA256 {
				t.Fatal("this isn't the template that the oracle was made from")
			}
			tmpl, err := New(src, Options{BOS: want.BOS, EOS: want.EOS, Now: oracleClock})
			if err != nil {
				t.Fatal(err)
			}
			for i, c := range doc.Cases {
				var messages []Message
				for _, m := range c.Messages {
					messages = append(messages, message(t, m))
				}
				got, err := tmpl.Render(messages, options(t, c.Options))
				checkRender(t, c.Name, got, err, want.Renders[i])
			}
		})
	}
}

func checkRender(t *testing.T, name string, got []Segment, err error, want *string) {
	t.Helper()
	switch {
	case want == nil && err == nil:
		t.Errorf("%s: rendered %q, want an error", name, join(got))
	case want != nil && err != nil:
		t.Errorf("%s: %v", name, err)
	case want != nil && join(got) != *want:
		t.Errorf("%s:\n got %q\nwant %q", name, join(got), *want)
	}
}

func join(segments []Segment) string {
	var b strings.Builder
	for _, s := range segments {
		b.WriteString(s.Text)
	}
	return b.String()
}

func TestSnippetsEqualJinja(t *testing.T) {
	var doc struct {
		Variables map[string]json.RawMessage
		Snippets  [][2]*string
	}
	readJSON(t, filepath.Join("testdata", "snippets.json"), &doc)
	if len(doc.Snippets) < 100 {
		t.Fatalf("%d snippets", len(doc.Snippets))
	}
	for _, s := range doc.Snippets {
		got, err := renderVars(*s[0], doc.Variables)
		if known, ok := different[*s[0]]; ok {
			if (err == nil) == (s[1] != nil) && (err != nil || join(got) == *s[1]) {
				t.Errorf("%s gives the same as Jinja; it was to differ: %s", *s[0], known)
			}
			continue
		}
		checkRender(t, *s[0], got, err, s[1])
	}
}

// different lists snippets that are meant to give something else than Jinja does.
var different = map[string]string{
	`{{ "{0.__class__}".format(s) }}`: "attributes in a format are refused, where Jinja's sandbox gives an empty text",
}

func renderVars(src string, vars map[string]json.RawMessage) ([]Segment, error) {
	tmpl, err := New(src, Options{Now: oracleClock})
	if err != nil {
		return nil, err
	}
	// The oracle's snippets have no messages.
	root := &scope{vars: map[string]value{}}
	for name, raw := range vars {
		v, err := fromJSON(raw)
		if err != nil {
			return nil, err
		}
		root.set(name, v)
	}
	out, err := tmpl.execute(root)
	return out.segments(), err
}

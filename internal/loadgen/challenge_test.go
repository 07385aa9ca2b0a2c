package loadgen

import (
	"strings"
	"testing"
)

func TestChallenged(t *testing.T) {
	w := mustNew(t, Options{Seed: 5, BaseTokens: 300})
	if Challenged(w, "") != Source(w) {
		t.Error("no nonce, and another source")
	}
	c, ok := Challenged(w, "n-1").(Conversations)
	if !ok {
		t.Fatal("the conversations are gone")
	}
	const line = "Challenge n-1\n"
	for n := range int64(8) {
		for turn := range int64(3) {
			got, plain := c.Turn(n, turn), w.Turn(n, turn)
			if got.Messages[0].Content != c.Base() || got.Messages[0].Content != line+plain.Messages[0].Content || got.Messages[1] != plain.Messages[1] || got.Expect != plain.Expect {
				t.Errorf("context %d, turn %d: %q", n, turn, got.Messages)
			}
		}
		if task := c.Task(n); task.Messages[0].Content != c.Base() {
			t.Errorf("task %d: %q", n, task.Messages[0].Content)
		}
		if canary := c.Canary(n, c.BadBase()); canary.Messages[0].Content != c.BadBase() || !strings.HasPrefix(c.BadBase(), line) || strings.Count(c.BadBase(), line) != 1 {
			t.Errorf("canary %d: %q", n, canary.Messages[0].Content)
		}
	}
	if strings.HasPrefix(w.Task(0).Messages[0].Content, line) || c.Hash() != w.Hash() || c.Name() != w.Name() {
		t.Error("the source itself has changed")
	}
	p, err := readPrompts(strings.NewReader(`{"prompt":"one"}`))
	if err != nil {
		t.Fatal(err)
	}
	q := Challenged(p, "x")
	if _, ok := q.(Conversations); ok || q.Base() != "" || q.Task(1).Messages[0].Content != "Challenge x\none" || p.Task(1).Messages[0].Content != "one" {
		t.Errorf("prompts: %q, base %q", q.Task(1).Messages, q.Base())
	}
}

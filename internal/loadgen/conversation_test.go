package loadgen

import (
	"fmt"
	"reflect"
	"strings"
	"testing"
)

func TestConversation(t *testing.T) {
	w, err := New(Options{Seed: 5, BaseTokens: 300})
	if err != nil {
		t.Fatal(err)
	}
	var source Conversations = w
	seen := map[string]bool{}
	for c := range int64(40) {
		if !reflect.DeepEqual(source.Turn(c, 0), source.Task(c)) {
			t.Errorf("context %d: turn 0 isn't its task", c)
		}
		for turn := range int64(4) {
			task := source.Turn(c, turn)
			if !reflect.DeepEqual(task, source.Turn(c, turn)) {
				t.Errorf("context %d, turn %d: not the same twice", c, turn)
			}
			if task.Messages[0].Content != source.Base() || len(task.Messages) != 2 || task.Context != c || !task.HasOracle || !task.Check(task.Expect) {
				t.Errorf("context %d, turn %d: %+v", c, turn, task)
			}
			if want := Kinds[(c+turn)%4]; task.Kind != want {
				t.Errorf("context %d, turn %d asks %s, want %s", c, turn, task.Kind, want)
			}
			if task.Kind == Sum || task.Kind == Repeat {
				seen[task.Messages[1].Content] = true
			}
		}
	}
	if len(seen) < 75 { // of 80
		t.Errorf("only %d different questions", len(seen))
	}
}

// A canary can be told from its answers only by who has the list.
func TestBadBase(t *testing.T) {
	w, err := New(Options{Seed: 5, BaseTokens: 690})
	if err != nil {
		t.Fatal(err)
	}
	bad := w.BadBase()
	if !strings.Contains(w.Base(), "The list:\n"+w.base.names[0]) || !strings.HasSuffix(bad, "The list:\nEnd of the list.") {
		t.Errorf("the bad base is %q", bad)
	}
	if head, _, _ := strings.Cut(w.Base(), "The list:"); !strings.HasPrefix(bad, head) {
		t.Error("the bad base lacks more than its list")
	}
	questions := map[string]bool{}
	for n := range int64(16) {
		good, spoilt := w.Canary(n, w.Base()), w.Canary(n, bad)
		if good.Kind != Lookup || good.Messages[0].Content != w.Base() || spoilt.Messages[0].Content != bad {
			t.Errorf("canary %d: %+v", n, good)
		}
		if good.Messages[1] != spoilt.Messages[1] || good.Expect != spoilt.Expect {
			t.Errorf("canary %d asks the bases different things", n)
		}
		name := strings.TrimSuffix(strings.TrimPrefix(good.Messages[1].Content, "Which number does the list give for "), "?")
		if entry := fmt.Sprintf("\n%s %s\n", name, good.Expect); !strings.Contains(w.Base(), entry) || strings.Contains(bad, entry) {
			t.Errorf("canary %d: the answer isn't what the list has", n)
		}
		questions[good.Messages[1].Content] = true
	}
	if len(questions) < 12 {
		t.Errorf("only %d different questions", len(questions))
	}
}

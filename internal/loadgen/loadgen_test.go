package loadgen

import (
	"sort"
	"strconv"
	"strings"
	"testing"
)

func mustNew(t testing.TB, o Options) *Workload {
	t.Helper()
	w, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	return w
}

// The bytes of a workload are part of evidence: they may change only together with Version.
func TestGolden(t *testing.T) {
	w := mustNew(t, Options{Seed: 1})
	if got, want := w.Hash(), "1773acdbf2e3ce1419dc1cc2c754b42f3241a5c9f72f6ab49a48b9d7ee5b22fb"; got != want {
		t.Errorf("hash of seed 1 = %s, want %s: change Version when the generator changes", got, want)
	}
}

func TestTasksAreDeterministicAndDiffer(t *testing.T) {
	a, b := mustNew(t, Options{Seed: 7}), mustNew(t, Options{Seed: 7})
	questions := map[string]int64{}
	for ctx := range int64(400) {
		x, y := a.Task(ctx), b.Task(ctx)
		if x.Messages[0] != y.Messages[0] || x.Messages[1] != y.Messages[1] || x.Expect != y.Expect {
			t.Fatalf("context %d differs between equal workloads", ctx)
		}
		if x.Kind == Repeat {
			if first, dup := questions[x.Messages[1].Content]; dup {
				t.Errorf("contexts %d and %d ask the same", first, ctx)
			}
			questions[x.Messages[1].Content] = ctx
		}
	}
	if mustNew(t, Options{Seed: 8}).Base() == a.Base() {
		t.Error("two seeds share a base")
	}
}

// An independent reading of each question must come to the expected answer.
func TestOracleAgreesWithTheQuestion(t *testing.T) {
	for _, unique := range []bool{false, true} {
		w := mustNew(t, Options{Seed: 3, Unique: unique})
		for ctx := range int64(200) {
			task := w.Task(ctx)
			if got := solve(t, task); got != task.Expect {
				t.Fatalf("context %d: %q: solved %q, expected %q", ctx, task.Messages[1].Content, got, task.Expect)
			}
			if !task.Check(task.Expect) || task.Check(task.Expect+"1") || task.Check("") {
				t.Fatalf("context %d: Check is wrong about %q", ctx, task.Expect)
			}
		}
	}
}

func solve(t *testing.T, task Task) string {
	base, q := task.Messages[0].Content, task.Messages[1].Content
	words := strings.Fields(strings.Trim(q, ".?"))
	last := words[len(words)-1]
	switch task.Kind {
	case Repeat:
		return last
	case Sum:
		x, _ := strconv.Atoi(words[2])
		y, _ := strconv.Atoi(last)
		return strconv.Itoa(x + y)
	case Lookup:
		for line := range strings.Lines(base) {
			if value, ok := strings.CutPrefix(line, last+" "); ok {
				return strings.TrimSpace(value)
			}
		}
	case Order:
		l := words[len(words)-5:]
		sort.Strings(l)
		return strings.Join(l, " ")
	}
	t.Fatalf("no answer to %q", q)
	return ""
}

func TestUniqueBasesShareNoPrefix(t *testing.T) {
	w := mustNew(t, Options{Seed: 3, Unique: true})
	a, b := w.Task(0).Messages[0].Content, w.Task(1).Messages[0].Content
	n := 0
	for n < len(a) && a[n] == b[n] {
		n++
	}
	if n > len("Register ")+2 {
		t.Errorf("two unique bases share %d bytes: %q", n, a[:n])
	}
	if w.Base() != "" {
		t.Error("unique bases have no shared base")
	}
}

func TestCheckForgives(t *testing.T) {
	for _, c := range []struct {
		kind         Kind
		expect, said string
		want         bool
	}{
		{Repeat, "zokari-58", " zokari-58.\n", true},
		{Repeat, "zokari-58", `"zokari-58"`, true},
		{Repeat, "zokari-58", "Zokari-58", false},
		{Repeat, "zokari-58", "the code word is zokari-58", false},
		{Sum, "85", "85.", true},
		{Sum, "85", "85.0", false},
		{Sum, "85", "185", false},
		{Order, "a c d q x", "A, C, D, Q, X", true},
		{Order, "a c d q x", "acdqx", true},
		{Order, "a c d q x", "a c d x q", false},
		{Order, "a c d q x", "a c d q x y", false},
	} {
		task := Task{Kind: c.kind, Expect: c.expect, HasOracle: true}
		if got := task.Check(c.said); got != c.want {
			t.Errorf("%s %q: Check(%q) = %t", c.kind, c.expect, c.said, got)
		}
	}
	if (Task{Kind: Custom}).Check("") {
		t.Error("a task without an oracle passed")
	}
}

func TestBaseTokensBounds(t *testing.T) {
	for _, n := range []int{-1, 1, MinBaseTokens - 1, MaxBaseTokens + 1} {
		if _, err := New(Options{BaseTokens: n}); err == nil {
			t.Errorf("a base of %d tokens was accepted", n)
		}
	}
	if w := mustNew(t, Options{BaseTokens: MaxBaseTokens}); len(w.base.names) >= len(nouns) {
		t.Error("the largest base has run out of nouns")
	}
	seen := map[string]bool{}
	for _, n := range nouns {
		if seen[n] {
			t.Errorf("%s is twice among the nouns", n)
		}
		seen[n] = true
	}
}

func TestReadPrompts(t *testing.T) {
	p, err := readPrompts(strings.NewReader(`{"prompt":"one","expect":"1"}` + "\r\n\n" + `{"messages":[{"role":"system","content":"s"},{"role":"user","content":"u"}]}`))
	if err != nil {
		t.Fatal(err)
	}
	if p.Len() != 2 || !p.Task(2).Check("1") || p.Task(1).HasOracle || p.Task(3).Messages[1].Content != "u" {
		t.Errorf("read %+v", p)
	}
	for name, bad := range map[string]string{
		"nothing":       "\n\n",
		"not JSON":      "hello",
		"two values":    `{"prompt":"a"}{"prompt":"b"}`,
		"neither":       `{"expect":"a"}`,
		"both":          `{"prompt":"a","messages":[{"role":"user","content":"b"}]}`,
		"unknown field": `{"promt":"a"}`,
		"no messages":   `{"messages":[]}`,
		"no role":       `{"messages":[{"content":"b"}]}`,
		"wrong type":    `{"prompt":3}`,
		"not UTF-8":     "{\"prompt\":\"\xff\"}",
	} {
		if _, err := readPrompts(strings.NewReader(bad)); err == nil {
			t.Errorf("%s: accepted %q", name, bad)
		}
	}
}

func FuzzReadPrompts(f *testing.F) {
	for _, s := range []string{`{"prompt":"a"}`, `{"messages":[{"role":"user","content":"b"}],"expect":""}`, "\n", `{"prompt":`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		p, err := readPrompts(strings.NewReader(string(b)))
		if err == nil && (p.Len() == 0 || len(p.Task(0).Messages) == 0) {
			t.Error("accepted a file without prompts")
		}
	})
}

func BenchmarkTask(b *testing.B) {
	w := mustNew(b, Options{Seed: 1})
	b.ReportAllocs()
	for i := range b.N {
		w.Task(int64(i))
	}
}

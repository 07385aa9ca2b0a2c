package loadgen

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestReadTrace(t *testing.T) {
	tr, err := readTrace(strings.NewReader(`{"at_us":7,"prompt_tokens":200,"output_tokens":3}` + "\r\n\n" + `{"at_us":7,"prompt":"one","output_tokens":5}`))
	if err != nil {
		t.Fatal(err)
	}
	if tr.Len() != 2 || tr.At(0) != 7 || tr.At(1) != 7 || tr.Answer(1) != 5 || tr.Task(1).MaxTokens != 5 || tr.Task(1).Messages[0].Content != "one" || tr.Task(0).HasOracle {
		t.Errorf("read %+v", tr)
	}
	// A context beyond the end has a prompt of its own, of the same length.
	a, b := tr.Task(0).Messages[0].Content, tr.Task(2).Messages[0].Content
	if words := len(strings.Fields(a)); a == b || words != len(strings.Fields(b)) || words < 150 || words > 200 {
		t.Errorf("a prompt of 200 tokens has %d words: %q", words, a)
	}
	for name, bad := range map[string]string{
		"nothing":        "\n\n",
		"not JSON":       "0,374,44",
		"two values":     `{"at_us":0,"prompt_tokens":1,"output_tokens":1}{}`,
		"no time":        `{"prompt_tokens":1,"output_tokens":1}`,
		"no answer":      `{"at_us":0,"prompt_tokens":1}`,
		"no prompt":      `{"at_us":0,"output_tokens":1}`,
		"two prompts":    `{"at_us":0,"prompt_tokens":1,"prompt":"a","output_tokens":1}`,
		"empty prompt":   `{"at_us":0,"prompt_tokens":0,"output_tokens":1}`,
		"empty answer":   `{"at_us":0,"prompt_tokens":1,"output_tokens":0}`,
		"before 0":       `{"at_us":-1,"prompt_tokens":1,"output_tokens":1}`,
		"a fraction":     `{"at_us":0.5,"prompt_tokens":1,"output_tokens":1}`,
		"too late":       fmt.Sprintf(`{"at_us":%d,"prompt_tokens":1,"output_tokens":1}`, int64(MaxTraceUS)+1),
		"not in order":   `{"at_us":2,"prompt_tokens":1,"output_tokens":1}` + "\n" + `{"at_us":1,"prompt_tokens":1,"output_tokens":1}`,
		"unknown member": `{"at_us":0,"prompt_tokens":1,"output_tokens":1,"model":"x"}`,
		"no messages":    `{"at_us":0,"messages":[],"output_tokens":1}`,
		"no role":        `{"at_us":0,"messages":[{"content":"b"}],"output_tokens":1}`,
		"not UTF-8":      "{\"at_us\":0,\"prompt\":\"\xff\",\"output_tokens\":1}",
		"huge":           `{"at_us":0,"prompt_tokens":1048577,"output_tokens":1}`,
	} {
		if _, err := readTrace(strings.NewReader(bad)); err == nil {
			t.Errorf("%s: accepted %q", name, bad)
		}
	}
}

// traces are the corpus.
func traces(t testing.TB) [][]byte {
	files, err := filepath.Glob(filepath.Join("testdata", "trace", "*.jsonl"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no traces in testdata: %v", err)
	}
	var out [][]byte
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, b)
	}
	return out
}

func TestTraceCorpus(t *testing.T) {
	for _, b := range traces(t) {
		if tr, err := readTrace(strings.NewReader(string(b))); err != nil || tr.Len() < 2 {
			t.Errorf("%.80q: %v", b, err)
		}
	}
}

func FuzzReadTrace(f *testing.F) {
	for _, b := range traces(f) {
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		tr, err := readTrace(strings.NewReader(string(b)))
		if err != nil {
			return
		}
		last := int64(0)
		for n := range int64(tr.Len()) {
			if tr.At(n) < last || tr.Answer(n) < 1 {
				t.Fatalf("line %d: at %d after %d, %d tokens", n, tr.At(n), last, tr.Answer(n))
			}
			last = tr.At(n)
		}
		if len(tr.Task(0).Messages) == 0 && tr.texts[0] == nil {
			t.Error("a task says nothing")
		}
	})
}

func TestPairs(t *testing.T) {
	p, err := NewPairs(Options{Seed: 3, BaseTokens: 300})
	if err != nil {
		t.Fatal(err)
	}
	seen, firsts := map[string]bool{}, 0
	for k := range int64(200) {
		a, b := p.Task(2*k), p.Task(2*k+1)
		if UniqueArm("3", 2*k) == UniqueArm("3", 2*k+1) {
			t.Fatalf("pair %d has one arm", k)
		}
		shared, unique := a, b
		if UniqueArm("3", 2*k) {
			shared, unique = b, a
			firsts++
		}
		if shared.Messages[0].Content != p.Base() || shared.Messages[1] != unique.Messages[1] || shared.Expect != unique.Expect || shared.Kind != unique.Kind {
			t.Fatalf("pair %d asks two things", k)
		}
		text := unique.Messages[0].Content
		_, rest, _ := strings.Cut(text, "\n")
		if _, want, _ := strings.Cut(p.Base(), "\n"); rest != want || seen[text] || text == p.Base() {
			t.Fatalf("pair %d: the base of its own is %.60q", k, text)
		}
		seen[text] = true
	}
	if firsts < 70 || firsts > 130 {
		t.Errorf("the unique arm came first in %d of 200 pairs", firsts)
	}
	if _, err := NewPairs(Options{Unique: true}); err == nil {
		t.Error("pairs without a shared base were made")
	}
}

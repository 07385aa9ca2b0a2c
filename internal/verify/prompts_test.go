package verify

import (
	"path/filepath"
	"strings"
	"testing"

	"cotenant/internal/ledger"
	"cotenant/internal/loadgen"
)

// promptsFile writes and reads a file of prompts.
func promptsFile(t testing.TB, text string) *loadgen.Prompts {
	t.Helper()
	path := filepath.Join(t.TempDir(), "own.jsonl")
	write(t, path, []byte(text))
	p, err := loadgen.ReadPrompts(path)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// fromFile is the good run as prompts of a file would have made it.
func fromFile(t testing.TB, p *loadgen.Prompts) *run {
	t.Helper()
	r := good(t, 100)
	r.cfg.Workload = ledger.Workload{Name: p.Name(), SHA256: p.Hash()}
	commit, err := ledger.NewCommitter(r.cfg.Secret)
	if err != nil {
		t.Fatal(err)
	}
	r.cfg.Workload.BaseCommit = commit.Commit(ledger.LabelBase, nil)
	for i := range r.events {
		r.events[i].ConfigSHA256 = "" // written anew
	}
	f := newPromptFacts(&r.cfg, "", p)
	for i := range r.rows {
		x := &r.rows[i]
		x.Base = r.cfg.Workload.BaseCommit
		x.PromptCommit = ""
		f.row(x, attemptName{row: x})
		x.PromptCommit = commit.Commit(ledger.LabelPrompt, f.body)
	}
	return r
}

// verdict is what R-PROMPT-02 says of a folder.
func verdict(t testing.TB, dir string, p *loadgen.Prompts) (Result, *Report) {
	t.Helper()
	r, err := Dir(dir, Options{Prompts: p})
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range r.Results {
		if x.Rule == "R-PROMPT-02" {
			return x, r
		}
	}
	t.Fatal("R-PROMPT-02 isn't asked")
	return Result{}, nil
}

func TestPromptsOfAFile(t *testing.T) {
	const text = `{"prompt":"one <&>"}` + "\n\n" + `{"messages":[{"role":"system","content":"s"},{"role":"user","content":"two"}]}` + "\n"
	p, other := promptsFile(t, text), promptsFile(t, text+"\n")
	dir := t.TempDir()
	fromFile(t, p).write(t, dir, nil)
	forged := t.TempDir()
	r := fromFile(t, p)
	r.ok(20).PromptCommit = r.ok(21).PromptCommit
	r.write(t, forged, nil)
	closed := filepath.Join(t.TempDir(), "public")
	if _, err := ledger.Publish(dir, closed, ledger.PublishOptions{MaxRows: 4 << 20}); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name, dir    string
		prompts      *loadgen.Prompts
		result, says string
	}{
		{"without the file", dir, nil, NotApplicable, "not computed again"},
		{"with it", dir, p, Pass, ""},
		{"with another", dir, other, Fail, "isn't the file"},
		{"a row that sent another line", forged, p, Fail, "sent another prompt"},
		{"published, with it", public(t, dir, 0), p, Pass, ""},
		{"a sample, with it", public(t, dir, 40), p, Pass, ""},
		{"published without the secret, with it", closed, p, NotApplicable, "the one that the config registered"},
		{"published without the secret, with another", closed, other, Fail, "isn't the file"},
		{"published without the secret, without it", closed, nil, NotApplicable, "not computed again"},
	} {
		got, report := verdict(t, c.dir, c.prompts)
		if got.Result != c.result || !strings.Contains(got.Detail, c.says) || got.Result == Pass && got.Detail != "" {
			t.Errorf("%s: %s %q", c.name, got.Result, got.Detail)
		}
		if want := map[bool]string{true: "R-PROMPT-02"}[c.result == Fail]; failures(report) != want {
			t.Errorf("%s: failed %q", c.name, failures(report))
		}
	}
	if _, err := Dir("testdata/good-100", Options{Prompts: p}); err == nil || !strings.Contains(err.Error(), "leave --prompts out") {
		t.Errorf("a run of generated tasks: %v", err)
	}
}

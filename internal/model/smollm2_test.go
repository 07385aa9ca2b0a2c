package model

import (
	"fmt"
	"slices"
	"testing"

	"cotenant/internal/backend/cpu"
	"cotenant/internal/chat"
	"cotenant/internal/testenv"
	"cotenant/internal/tokenizer"
)

const smolFile = "SmolLM2-135M-Instruct.Q4_1.gguf"

// smolOracle is testdata/smollm2.json, made by tools/oracle/smollm2.py, whose comment defines the fields.
type smolOracle struct {
	Vocab   int
	Columns []int
	Full    int
	Prompts []smolPrompt
}

type smolPrompt struct {
	Name string
	Chat bool
	Text string
	IDs  []int32
	Rows []struct {
		Position int
		Max      float64
		Top      [][2]float64
		Columns  []float32
	}
	Greedy          []int32
	Margins, Maxima []float64
}

func smol(t testing.TB, o cpu.Options) (*Model, *smolOracle) {
	t.Helper()
	m := open(t, testenv.Model(t, smolFile), o, Options{ContextLength: 1024})
	var oracle smolOracle
	readJSON(t, "testdata/smollm2.json", &oracle)
	if oracle.Vocab != m.cfg.VocabSize || len(oracle.Prompts) != 24 {
		t.Fatalf("the oracle has vocabulary %d and %d prompts", oracle.Vocab, len(oracle.Prompts))
	}
	return m, &oracle
}

// Where the kernels are many times slower (under the race detector, and on processors that have only the plain path) the
// tests on SmolLM2 take every slowPrompts-th prompt and slowTokens tokens. The rest is the same.
const (
	slowPrompts = 5
	slowTokens  = 4
)

func slow(m *Model) bool { return raceEnabled || slices.Contains(m.be.Info().Features, "plain") }

// TestSmolLM2Logits compares the oracle's rows: the 64 largest logits, 256 sampled columns, the largest magnitude, and one
// row whole.
func TestSmolLM2Logits(t *testing.T) {
	m, oracle := smol(t, cpu.Options{})
	full := readRows(t, "testdata/smollm2-row.f32", oracle.Vocab)[0]
	run := newRunner(t, m, 16, 60)
	worst, rows := 0.0, 0
	for i, p := range oracle.Prompts {
		if slow(m) && i%slowPrompts != oracle.Full%slowPrompts {
			continue
		}
		got := run.at(p.IDs, positions(p), 300)
		for j, want := range p.Rows {
			row := got[j]
			d := 0.0
			for _, top := range want.Top {
				d = max(d, abs(float64(row[int(top[0])])-top[1]))
			}
			for k, c := range oracle.Columns {
				d = max(d, abs(float64(row[c])-float64(want.Columns[k])))
			}
			largest := 0.0
			for _, v := range row {
				largest = max(largest, abs(float64(v)))
			}
			d = max(d, abs(largest-want.Max)) / want.Max
			if !(d <= tolerance) {
				t.Errorf("%s, position %d: off by %.2g of the largest logit", p.Name, want.Position, d)
			}
			worst, rows = max(worst, d), rows+1
		}
		if i == oracle.Full {
			d := difference(got[len(got)-1], full)
			if !(d <= tolerance) {
				t.Errorf("%s, whole row: off by %.2g of the largest logit", p.Name, d)
			}
			worst = max(worst, d)
		}
	}
	t.Logf("%d rows, largest difference over the row's largest logit: %.2g", rows, worst)
}

func positions(p smolPrompt) []int {
	var at []int
	for _, r := range p.Rows {
		at = append(at, r.Position)
	}
	return at
}

// at computes tokens in chunks of at most chunk and returns the logits of ascending positions, the last one included. A
// chunk ends at each wanted position, so that its logits are the last of a step.
func (r *runner) at(tokens []int32, positions []int, chunk int) [][]float32 {
	r.t.Helper()
	s := &sequence{tokens: tokens}
	var rows [][]float32
	for _, p := range positions {
		for s.past <= p {
			n := min(chunk, p+1-s.past)
			got := r.step(piece{s, n, 1})
			if s.past == p+1 {
				rows = append(rows, got...)
			}
		}
	}
	r.release(s)
	return rows
}

// TestSmolLM2Greedy decodes 64 tokens for 20 prompts together in one batch, after chunked prefill beside the others'
// decoding. Where the oracle's two largest logits are closer than the tolerance allows to tell apart, the step is listed as a
// tie and goes on with the oracle's token, whichever we took.
func TestSmolLM2Greedy(t *testing.T) {
	m, oracle := smol(t, cpu.Options{})
	tokens := 64
	if slow(m) {
		tokens = slowTokens
	}
	run := newRunner(t, m, 16, 20*13+60)
	type state struct {
		p    smolPrompt
		seq  *sequence
		done int // tokens decoded
	}
	var states []*state
	for i, p := range oracle.Prompts {
		if len(p.Greedy) == 0 || slow(m) && i%slowPrompts != 0 {
			continue
		}
		if len(p.Greedy) != 64 || len(p.Margins) != 64 || len(p.Maxima) != 64 {
			t.Fatalf("%s: the oracle has %d greedy tokens", p.Name, len(p.Greedy))
		}
		states = append(states, &state{p: p, seq: &sequence{tokens: slices.Clone(p.IDs)}})
	}
	if !slow(m) && len(states) != 20 {
		t.Fatalf("%d greedy prompts, want 20", len(states))
	}
	const budget = 200 // tokens a step: the long prompt is prefilled while the others decode
	var ties []string
	same, worstFlip := 0, 0.0
	for {
		var pieces []piece
		var who []*state
		left := budget
		for _, s := range states {
			n := min(left, len(s.seq.tokens)-s.seq.past)
			if s.done == tokens || n == 0 {
				continue
			}
			outputs := 0
			if s.seq.past+n == len(s.seq.tokens) {
				outputs = 1
				who = append(who, s)
			}
			pieces = append(pieces, piece{s.seq, n, outputs})
			left -= n
		}
		if len(pieces) == 0 {
			break
		}
		for i, row := range run.step(pieces...) {
			s, got := who[i], argmax(row)
			want, margin := s.p.Greedy[s.done], s.p.Margins[s.done]/s.p.Maxima[s.done]
			tie := margin <= tolerance
			if tie {
				ties = append(ties, fmt.Sprintf("%s step %d: margin %.2g, same %t", s.p.Name, s.done, margin, got == want))
			}
			if got == want {
				same++
			} else if worstFlip = max(worstFlip, margin); !tie {
				t.Errorf("%s, step %d: token %d, transformers has %d by a margin of %.2g", s.p.Name, s.done, got, want, margin)
			}
			s.seq.tokens = append(s.seq.tokens, want)
			s.done++
		}
	}
	t.Logf("%d of %d tokens equal", same, tokens*len(states))
	for _, tie := range ties {
		t.Log("tie: ", tie)
	}
}

// TestSmolLM2Model pins what the file holds.
func TestSmolLM2Model(t *testing.T) {
	m, oracle := smol(t, cpu.Options{})
	c := m.Config()
	if got := c.Parameters(); got != 134_515_008 { // as transformers counts it, the tied head once
		t.Errorf("%d parameters", got)
	}
	if got := m.KVBytesPerToken(); got != 2*23_040 { // 30 layers × 3 heads × 64 × keys and values × 4 bytes
		t.Errorf("%d bytes of KV a token", got)
	}
	if m.ContextLength() != 1024 || c.ContextLength != 8192 || c.Arch != ArchLlama || !c.Tied || !c.RoPE.Interleaved {
		t.Errorf("context %d, configuration %+v", m.ContextLength(), c)
	}
	if !slices.Contains(m.EOS(), 2) {
		t.Errorf("end tokens %v lack 2", m.EOS())
	}
	info := m.Info()
	if info.Quantisation != "Q4_1 ×210, Q8_0 ×1, F32 ×61" && info.Quantisation != "Q4_1 ×210, F32 ×61, Q8_0 ×1" || info.Format != "gguf" || info.Name != "Smollm2 135M 8k Lc100K Mix1 Ep2" {
		t.Errorf("info %+v", info)
	}
	digest, err := m.Digest()
	if err != nil || digest != "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53" {
		t.Errorf("digest %s, %v", digest, err)
	}
	for _, p := range oracle.Prompts {
		got := m.Tokenizer().EncodeSpecial(p.Text)
		if p.Chat {
			got = chatIDs(t, m, p.Text)
		}
		if !slices.Equal(got, p.IDs) {
			t.Errorf("%s: ids %v, transformers has %v", p.Name, got, p.IDs)
		}
	}
}

// chatIDs is the prompt of one user message.
func chatIDs(t testing.TB, m *Model, content string) []int32 {
	t.Helper()
	if m.Template() == nil {
		t.Fatal(m.TemplateError())
	}
	segments, err := m.Template().Render([]chat.Message{{Role: "user", Content: content}}, chat.RenderOptions{AddGenerationPrompt: true})
	if err != nil {
		t.Fatal(err)
	}
	var in []tokenizer.Segment
	for _, s := range segments {
		in = append(in, tokenizer.Segment(s))
	}
	return m.Tokenizer().EncodeSegments(in)
}

func abs(x float64) float64 { return max(x, -x) }

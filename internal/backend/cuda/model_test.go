package cuda

import (
	"math"
	"os"
	"slices"
	"testing"

	"cotenant/internal/backend"
	"cotenant/internal/backend/cpu"
	"cotenant/internal/chat"
	"cotenant/internal/loadgen"
	"cotenant/internal/model"
	"cotenant/internal/tokenizer"
)

// loaded is a model on a backend.
type loaded struct {
	*model.Model
	kv backend.KV
}

func load(t testing.TB, be backend.Backend, path string) *loaded {
	t.Helper()
	opt := model.Options{MaxBatchTokens: 512, OutputChunk: 64, ContextLength: 1024}
	m, err := func() (*model.Model, error) {
		if path == "" {
			opt.ContextLength = 0
			return model.LoadEmbedded(be, opt)
		}
		return model.Load(path, be, opt)
	}()
	if err != nil {
		_ = be.Close()
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	})
	kv, err := m.NewKV(16, 512)
	if err != nil {
		t.Fatal(err)
	}
	return &loaded{m, kv}
}

// greedy answers several prompts at once, each beginning at another step, and returns the answers' tokens.
func (m *loaded) greedy(t testing.TB, prompts [][]int32, most int) [][]int32 {
	t.Helper()
	type sequence struct {
		tokens []int32
		past   int
		pages  []int32
	}
	seqs := make([]sequence, len(prompts))
	page := int32(0)
	left := len(prompts)
	for step := 0; left > 0; step++ {
		b := &backend.Batch{}
		var active []int
		for i := range seqs {
			q := &seqs[i]
			if q.tokens == nil && i <= step {
				q.tokens = append([]int32(nil), prompts[i]...)
			}
			if q.tokens == nil || len(q.tokens)-len(prompts[i]) == most {
				continue
			}
			row, n := len(b.Tokens), len(q.tokens)-q.past
			for at := q.past; at < len(q.tokens); at++ {
				if at%16 == 0 {
					q.pages = append(q.pages, page)
					page++
				}
				b.Tokens = append(b.Tokens, q.tokens[at])
				b.Positions = append(b.Positions, int32(at))
				b.Slots = append(b.Slots, q.pages[at/16]*16+int32(at%16))
			}
			b.Seqs = append(b.Seqs, backend.Seq{Row: row, Rows: n, Past: q.past, Pages: q.pages})
			b.Outputs = append(b.Outputs, int32(len(b.Tokens)-1))
			active = append(active, i)
		}
		ids := make([]int32, len(b.Outputs))
		if m.Draws() > 0 {
			err := m.Start(m.kv, b, m.Tokenizer().VocabSize(), make([]backend.Draw, len(ids)))
			if err == nil {
				err = m.Wait(ids)
			}
			if err != nil {
				t.Fatal(err)
			}
		} else {
			vocab := m.Config().VocabSize
			logits := make([]float32, len(b.Outputs)*vocab)
			if err := m.Forward(m.kv, b, logits); err != nil {
				t.Fatal(err)
			}
			for i := range ids {
				row := logits[i*vocab : i*vocab+m.Tokenizer().VocabSize()]
				for k, v := range row {
					if v > row[ids[i]] {
						ids[i] = int32(k)
					}
				}
			}
		}
		for i, s := range active {
			q := &seqs[s]
			q.past = len(q.tokens)
			q.tokens = append(q.tokens, ids[i])
			if len(q.tokens)-len(prompts[s]) == most {
				left--
			}
		}
	}
	answers := make([][]int32, len(prompts))
	for i := range seqs {
		answers[i] = seqs[i].tokens[len(prompts[i]):]
	}
	return answers
}

func encode(t testing.TB, m *model.Model, messages []loadgen.Message) []int32 {
	t.Helper()
	var chats []chat.Message
	for _, x := range messages {
		chats = append(chats, chat.Message{Role: x.Role, Content: x.Content})
	}
	segments, err := m.Template().Render(chats, chat.RenderOptions{AddGenerationPrompt: true})
	if err != nil {
		t.Fatal(err)
	}
	var in []tokenizer.Segment
	for _, s := range segments {
		in = append(in, tokenizer.Segment(s))
	}
	tokens, ok := m.Tokenizer().EncodeWithin(in, 900)
	if !ok {
		t.Fatal("the prompt is too long")
	}
	return tokens
}

// tie is the margin, as a share of the row's largest logit, below which bf16's rounding may choose another token than float32 does: half
// of what transformers' own bf16 is off by for models of such a depth (see TestLogits).
const tie = 0.015

// margin returns by how much the first token in which two answers differ is ahead of the other's on m.
func (m *loaded) margin(t testing.TB, prompt, answer, other []int32) float64 {
	t.Helper()
	n := 0
	for n < len(answer) && answer[n] == other[n] {
		n++
	}
	b := &backend.Batch{Tokens: append(append([]int32(nil), prompt...), answer[:n]...), Seqs: []backend.Seq{{}}}
	q := &b.Seqs[0]
	for at := range b.Tokens {
		b.Positions, b.Slots = append(b.Positions, int32(at)), append(b.Slots, int32(at))
		if at%16 == 0 {
			q.Pages = append(q.Pages, int32(at/16))
		}
	}
	q.Rows, b.Outputs = len(b.Tokens), []int32{int32(len(b.Tokens) - 1)}
	row := make([]float32, m.Config().VocabSize)
	if err := m.Forward(m.kv, b, row); err != nil {
		t.Fatal(err)
	}
	largest := 0.0
	for _, v := range row {
		largest = max(largest, math.Abs(float64(v)))
	}
	return float64(row[answer[n]]-row[other[n]]) / largest
}

// text is an answer up to its end.
func text(m *model.Model, tokens []int32) string {
	if i := slices.IndexFunc(tokens, func(id int32) bool { return slices.Contains(m.EOS(), id) }); i >= 0 {
		tokens = tokens[:i]
	}
	return m.Tokenizer().ToText(tokens)
}

// The greedy text of several prompts at once is the CPU's: on the embedded model, and but for ties on the one that COTENANT_CUDA_MODEL
// names.
func TestGreedyEqualsCPU(t *testing.T) {
	work, err := loadgen.New(loadgen.Options{Seed: 5, BaseTokens: loadgen.MinBaseTokens})
	if err != nil {
		t.Fatal(err)
	}
	var tasks, chats [][]loadgen.Message
	for i := range int64(8) {
		tasks = append(tasks, work.Task(i).Messages)
	}
	for _, q := range []string{"What is the capital of France?", "Name three primary colours.", "Write one sentence about the sea.",
		"How many days has a week?", "Translate 'good morning' to Spanish.", "Why is the sky blue?"} {
		chats = append(chats, []loadgen.Message{{Role: "user", Content: q}})
	}
	for _, c := range []struct {
		name, path string
		most       int
		messages   [][]loadgen.Message
	}{{"embedded", "", 12, tasks}, {"named", os.Getenv("COTENANT_CUDA_MODEL"), 40, chats}} {
		if c.name == "named" && c.path == "" {
			continue
		}
		t.Run(c.name, func(t *testing.T) {
			reference, err := cpu.New(cpu.Options{})
			if err != nil {
				t.Fatal(err)
			}
			want, got := load(t, reference, c.path), load(t, open(t, Options{Rows: 64}), c.path)
			var prompts [][]int32
			for _, m := range c.messages {
				prompts = append(prompts, encode(t, want.Model, m))
			}
			w, g := want.greedy(t, prompts, c.most), got.greedy(t, prompts, c.most)
			for i := range prompts {
				a, b := text(want.Model, w[i]), text(want.Model, g[i])
				if a != b {
					margin := want.margin(t, prompts[i], w[i], g[i])
					t.Logf("prompt %d: the CPU prefers its token by %.4f of the largest logit\nCPU  %q\nCUDA %q", i, margin, a, b)
					if c.path == "" || !(margin < tie) {
						t.Errorf("prompt %d: another text", i)
					}
				}
				t.Logf("prompt %d: %q", i, a)
			}
		})
	}
}

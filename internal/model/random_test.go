package model

import (
	"fmt"
	"path/filepath"
	"testing"

	"cotenant/internal/backend/cpu"
)

// randomModel is an entry of testdata/random/random.json, made by tools/oracle/random_models.py.
type randomModel struct {
	Name       string
	Vocab      int
	Parameters int64
	Sequences  []struct {
		Tokens []int32
		Rows   []int
	}
}

func randomModels(t testing.TB) []randomModel {
	t.Helper()
	var doc struct{ Models []randomModel }
	readJSON(t, "testdata/random/random.json", &doc)
	if len(doc.Models) < 7 {
		t.Fatalf("random.json lists %d models, want at least 7", len(doc.Models))
	}
	return doc.Models
}

// path returns the Hugging Face folder or the GGUF file of a random model.
func (r *randomModel) path(format string) string {
	if format == "gguf" {
		return filepath.Join("testdata", "random", r.Name+".gguf")
	}
	return filepath.Join("testdata", "random", r.Name)
}

// eachRandom runs f for every random model in both formats on both code paths; under the race detector, which makes it 20
// times slower, in one format on the fast path.
func eachRandom(t *testing.T, f func(t *testing.T, r randomModel, m *Model)) {
	formats, paths := []string{"hf", "gguf"}, []string{"fast", "plain"}
	if raceEnabled {
		formats, paths = formats[:1], paths[:1]
	}
	for _, r := range randomModels(t) {
		for _, format := range formats {
			for _, path := range paths {
				t.Run(fmt.Sprintf("%s/%s/%s", r.Name, format, path), func(t *testing.T) {
					t.Parallel()
					m := open(t, r.path(format), cpu.Options{Threads: 2, Plain: path == "plain"}, Options{MaxBatchTokens: 160, OutputChunk: 13})
					f(t, r, m)
				})
			}
		}
	}
}

// TestRandomModels compares every kept row with transformers' through several chunk sizes and page sizes. The output chunk
// of 13 splits the LM head's rows unevenly.
func TestRandomModels(t *testing.T) {
	eachRandom(t, func(t *testing.T, r randomModel, m *Model) {
		want := readRows(t, filepath.Join("testdata", "random", r.Name+".f32"), r.Vocab)
		if got := m.Config().Parameters(); got != r.Parameters {
			t.Errorf("%d parameters, transformers counts %d", got, r.Parameters)
		}
		worst := 0.0
		for _, shape := range []struct{ chunk, pageSize int }{{160, 16}, {1, 16}, {7, 4}, {16, 16}, {33, 5}, {64, 32}} {
			run := newRunner(t, m, shape.pageSize, 200/shape.pageSize+1)
			next := 0
			for _, s := range r.Sequences {
				rows := run.all(s.Tokens, shape.chunk)
				for _, p := range s.Rows {
					d := difference(rows[p], want[next])
					if worst = max(worst, d); d > tolerance/100 {
						t.Fatalf("chunk %d, page %d: position %d of %d: off by %.2g of the largest logit",
							shape.chunk, shape.pageSize, p, len(s.Tokens), d)
					}
					next++
				}
			}
			if next != len(want) {
				t.Fatalf("compared %d of %d rows", next, len(want))
			}
		}
		t.Logf("largest difference %.2g", worst)
	})
}

// TestRowsAreIndependent computes a sequence's rows alone, in chunks, and among other sequences that prefill and decode in the
// same batch: equal bit for bit. The page size stays: a backend may sum by pages.
func TestRowsAreIndependent(t *testing.T) {
	eachRandom(t, func(t *testing.T, r randomModel, m *Model) {
		tokens := r.Sequences[len(r.Sequences)-1].Tokens[:100]
		alone := newRunner(t, m, 16, 7).all(tokens, 1)
		for _, chunk := range []int{2, 7, 8, 9, 63, 64, 65} {
			for i, row := range newRunner(t, m, 16, 7).all(tokens, chunk) {
				if !sameBits(row, alone[i]) {
					t.Fatalf("chunks of %d: position %d differs from rows computed one by one by %.2g", chunk, i, difference(row, alone[i]))
				}
			}
		}
		run := newRunner(t, m, 16, 40)
		a, b, c := &sequence{tokens: tokens}, &sequence{tokens: tokens[3:]}, &sequence{tokens: tokens[1:40]}
		run.step(piece{b, 20, 0}) // no outputs: keys and values alone
		got := run.step(piece{b, 1, 1}, piece{a, 30, 2}, piece{c, 5, 0})
		got = append(got, run.step(piece{c, 1, 1}, piece{a, 1, 1}, piece{b, 1, 1})...)
		got = append(got, run.step(piece{a, 65, 1}, piece{c, 33, 1})...)
		other := newRunner(t, m, 16, 7).all(b.tokens[:22], 22)
		third := newRunner(t, m, 16, 7).all(c.tokens, 39)
		want := [][]float32{other[20], alone[28], alone[29], third[5], alone[30], other[21], alone[95], third[38]}
		if len(got) != len(want) {
			t.Fatalf("%d rows, want %d", len(got), len(want))
		}
		for i := range want {
			if !sameBits(got[i], want[i]) {
				t.Errorf("row %d of the mixed batches differs from the sequence alone by %.2g", i, difference(got[i], want[i]))
			}
		}
	})
}

// TestFormatsAgree loads each model from both formats: equal logits although llama's queries and keys are permuted in
// GGUF. Only the order of a head's sum differs, so bits may.
func TestFormatsAgree(t *testing.T) {
	for _, r := range randomModels(t) {
		t.Run(r.Name, func(t *testing.T) {
			t.Parallel()
			tokens := r.Sequences[len(r.Sequences)-1].Tokens
			var rows [2][][]float32
			var cfg [2]Config
			for i, format := range []string{"hf", "gguf"} {
				m := open(t, r.path(format), cpu.Options{Threads: 1, Plain: true}, Options{})
				cfg[i] = m.Config()
				rows[i] = newRunner(t, m, 16, 10).all(tokens, 50)
			}
			worst := 0.0
			for i := range rows[0] {
				worst = max(worst, difference(rows[1][i], rows[0][i]))
			}
			limit := 0.0
			if cfg[1].RoPE.Interleaved {
				limit = 2e-5
			}
			if worst > limit {
				t.Errorf("off by %.2g of the largest logit", worst)
			}
			t.Logf("largest difference %.2g", worst)
			if a, b := cfg[0], cfg[1]; a.Hidden != b.Hidden || a.HeadDim != b.HeadDim || a.Tied != b.Tied ||
				a.QKVBias != b.QKVBias || a.OutBias != b.OutBias || a.MLPBias != b.MLPBias || a.Parameters() != b.Parameters() {
				t.Errorf("configurations differ:\n%+v\n%+v", a, b)
			}
		})
	}
}

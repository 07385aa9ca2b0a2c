package model

import (
	"encoding/binary"
	"encoding/json"
	"math"
	"math/rand/v2"
	"os"
	"testing"

	"cotenant/internal/backend"
	"cotenant/internal/backend/cpu"
)

// tolerance is the issue's: largest difference over the row's largest |logit|.
const tolerance = 1e-3

// open loads a model on the CPU, closed at the test's end.
func open(t testing.TB, path string, o cpu.Options, opt Options) *Model {
	t.Helper()
	be, err := cpu.New(o)
	if err != nil {
		t.Fatal(err)
	}
	m, err := Load(path, be, opt)
	if err != nil {
		_ = be.Close()
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	})
	return m
}

// runner drives a model as an engine does: paged KV memory whose pages are handed out in a shuffled order.
type runner struct {
	t        testing.TB
	m        *Model
	kv       backend.KV
	pageSize int
	free     []int32
}

// sequence is a prompt, or a prompt and its answer so far.
type sequence struct {
	tokens []int32
	past   int // computed
	pages  []int32
}

// piece is what one step does for a sequence: its next n tokens, with the logits of the last `outputs` of them wanted.
type piece struct {
	seq        *sequence
	n, outputs int
}

func newRunner(t testing.TB, m *Model, pageSize, pages int) *runner {
	t.Helper()
	kv, err := m.NewKV(pageSize, pages)
	if err != nil {
		t.Fatal(err)
	}
	r := &runner{t: t, m: m, kv: kv, pageSize: pageSize}
	for _, p := range rand.New(rand.NewPCG(7, uint64(pageSize))).Perm(pages) {
		r.free = append(r.free, int32(p))
	}
	return r
}

// step runs one batch and returns the wanted logits, a row each, in the order of the pieces.
func (r *runner) step(pieces ...piece) [][]float32 {
	r.t.Helper()
	var b backend.Batch
	for _, p := range pieces {
		s := p.seq
		row := len(b.Tokens)
		for i := range p.n {
			at := s.past + i
			if at/r.pageSize == len(s.pages) {
				s.pages = append(s.pages, r.free[0])
				r.free = r.free[1:]
			}
			b.Tokens = append(b.Tokens, s.tokens[at])
			b.Positions = append(b.Positions, int32(at))
			b.Slots = append(b.Slots, s.pages[at/r.pageSize]*int32(r.pageSize)+int32(at%r.pageSize))
			if i >= p.n-p.outputs {
				b.Outputs = append(b.Outputs, int32(row+i))
			}
		}
		b.Seqs = append(b.Seqs, backend.Seq{Row: row, Rows: p.n, Past: s.past, Pages: s.pages})
		s.past += p.n
	}
	vocab := r.m.cfg.VocabSize
	logits := make([]float32, len(b.Outputs)*vocab)
	if err := r.m.Forward(r.kv, &b, logits); err != nil {
		r.t.Fatal(err)
	}
	rows := make([][]float32, len(b.Outputs))
	for i := range rows {
		rows[i] = logits[i*vocab : (i+1)*vocab]
	}
	return rows
}

// all computes a whole sequence in chunks and returns the logits of every position.
func (r *runner) all(tokens []int32, chunk int) [][]float32 {
	r.t.Helper()
	s := &sequence{tokens: tokens}
	var rows [][]float32
	for s.past < len(tokens) {
		n := min(chunk, len(tokens)-s.past)
		rows = append(rows, r.step(piece{s, n, n})...)
	}
	r.release(s)
	return rows
}

// release returns a sequence's pages, which keep what was written to them.
func (r *runner) release(s *sequence) { r.free = append(r.free, s.pages...) }

// difference is the largest difference over want's largest magnitude; NaN in got is infinite.
func difference(got, want []float32) float64 {
	var diff, largest float64
	for i, w := range want {
		d := math.Abs(float64(got[i]) - float64(w))
		if math.IsNaN(d) {
			return math.Inf(1)
		}
		diff, largest = max(diff, d), max(largest, math.Abs(float64(w)))
	}
	return diff / largest
}

// sameBits reports whether two rows are equal bit for bit.
func sameBits(a, b []float32) bool {
	for i := range a {
		if math.Float32bits(a[i]) != math.Float32bits(b[i]) {
			return false
		}
	}
	return len(a) == len(b)
}

func argmax(row []float32) int32 {
	best := 0
	for i, v := range row {
		if v > row[best] {
			best = i
		}
	}
	return int32(best)
}

func readJSON(t testing.TB, path string, v any) {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(data, v); err != nil {
		t.Fatalf("%s: %v", path, err)
	}
}

// readRows reads little-endian float32 rows.
func readRows(t testing.TB, path string, width int) [][]float32 {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if len(data) == 0 || len(data)%(4*width) != 0 {
		t.Fatalf("%s has %d bytes, not rows of %d float32", path, len(data), width)
	}
	var rows [][]float32
	for len(data) > 0 {
		row := make([]float32, width)
		for i := range row {
			row[i] = math.Float32frombits(binary.LittleEndian.Uint32(data[4*i:]))
		}
		rows, data = append(rows, row), data[4*width:]
	}
	return rows
}

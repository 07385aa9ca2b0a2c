package model

import (
	"testing"

	"cotenant/internal/backend/cpu"
	"cotenant/internal/testenv"
)

// BenchmarkLoad opens SmolLM2, reads its tokenizer, uploads its weights and closes it again.
func BenchmarkLoad(b *testing.B) {
	path := testenv.Model(b, smolFile)
	for b.Loop() {
		be, err := cpu.New(cpu.Options{})
		if err != nil {
			b.Fatal(err)
		}
		m, err := Load(path, be, Options{})
		if err != nil {
			b.Fatal(err)
		}
		if err := m.Close(); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkPrefill computes a prompt of 704 tokens from nothing, one row of logits.
func BenchmarkPrefill(b *testing.B) {
	m, oracle := smol(b, cpu.Options{})
	run := newRunner(b, m, 16, 60)
	for _, p := range oracle.Prompts {
		if len(p.IDs) == 704 {
			for b.Loop() {
				run.at(p.IDs, []int{703}, 512)
			}
			b.ReportMetric(704*float64(b.N)/b.Elapsed().Seconds(), "tokens/s")
		}
	}
}

// BenchmarkDecode computes one token after a prompt, alone and in four streams.
func BenchmarkDecode(b *testing.B) {
	m, oracle := smol(b, cpu.Options{})
	for _, streams := range []int{1, 4} {
		b.Run(map[int]string{1: "one", 4: "four"}[streams], func(b *testing.B) {
			run := newRunner(b, m, 16, 60)
			var seqs []*sequence
			for range streams {
				s := &sequence{tokens: append([]int32(nil), oracle.Prompts[0].IDs...)}
				run.step(piece{s, len(s.tokens), 0})
				s.tokens = append(s.tokens, 1)
				seqs = append(seqs, s)
			}
			for b.Loop() {
				var pieces []piece
				for _, s := range seqs {
					pieces = append(pieces, piece{s, 1, 1})
				}
				run.step(pieces...)
				for _, s := range seqs {
					s.past-- // the same position again
				}
			}
			b.ReportMetric(float64(streams*b.N)/b.Elapsed().Seconds(), "tokens/s")
		})
	}
}

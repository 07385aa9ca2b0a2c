package main

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"cotenant/internal/backend"
	"cotenant/internal/backend/cpu"
	"cotenant/internal/model"
)

const (
	prefillTokens = 704
	decodeTokens  = 64
	streams       = 4
	pageSize      = 16
)

// bare measures the engines without a server: what llama-bench measures, on both.
func bare(o options) ([]row, error) {
	prefill := row{name: "prefill of 704", unit: "tokens/s", goal: 1}
	decode := row{name: "decode alone, 64 tokens", unit: "tokens/s", goal: 0.8}
	batch := row{name: "decode at 4 streams, 64 tokens each", unit: "tokens/s"}
	for range o.repeats {
		a, b, c, err := measureOurs(o)
		if err != nil {
			return nil, err
		}
		prefill.ours, decode.ours, batch.ours = append(prefill.ours, a), append(decode.ours, b), append(batch.ours, c)
		if a, err = llamaBench(o, "-p", strconv.Itoa(prefillTokens), "-n", "0"); err != nil {
			return nil, err
		}
		if b, err = llamaBench(o, "-p", "0", "-n", strconv.Itoa(decodeTokens)); err != nil {
			return nil, err
		}
		if c, err = llamaBatched(o); err != nil {
			return nil, err
		}
		prefill.theirs, decode.theirs, batch.theirs = append(prefill.theirs, a), append(decode.theirs, b), append(batch.theirs, c)
	}
	return []row{prefill, decode, batch}, nil
}

// measureOurs runs the model as the engine does, in chunks of its largest batch, with random tokens.
func measureOurs(o options) (prefill, decode, batch float64, err error) {
	be, err := cpu.New(cpu.Options{Threads: o.threads})
	if err != nil {
		return 0, 0, 0, err
	}
	m, err := model.Load(o.model, be, model.Options{})
	if err != nil {
		return 0, 0, 0, err
	}
	defer m.Close()
	r := &runner{m: m, logits: make([]float32, streams*m.Config().VocabSize), rand: rand.New(rand.NewPCG(1, 2))}
	const pages = streams * (prefillTokens + decodeTokens + pageSize) / pageSize
	if r.kv, err = m.NewKV(pageSize, pages); err != nil {
		return 0, 0, 0, err
	}
	if err := r.prefill(prefillTokens); err != nil { // warm-up: pages of the file, of KV memory, of the workspace
		return 0, 0, 0, err
	}
	prefill, err = timed(prefillTokens, func() error { return r.prefill(prefillTokens) })
	if err != nil {
		return 0, 0, 0, err
	}
	if decode, err = timed(decodeTokens, func() error { return r.decode(1) }); err != nil {
		return 0, 0, 0, err
	}
	batch, err = timed(streams*decodeTokens, func() error { return r.decode(streams) })
	return prefill, decode, batch, err
}

// timed returns units per second.
func timed(units int, f func() error) (float64, error) {
	start := time.Now()
	err := f()
	return float64(units) / time.Since(start).Seconds(), err
}

type runner struct {
	m      *model.Model
	kv     backend.KV
	logits []float32
	rand   *rand.Rand
}

func (r *runner) prefill(n int) error {
	for done := 0; done < n; {
		rows := min(r.m.MaxBatchTokens(), n-done)
		b := &backend.Batch{}
		r.add(b, 0, done, rows)
		if done+rows == n {
			b.Outputs = []int32{int32(rows - 1)}
		}
		if err := r.m.Forward(r.kv, b, r.logits[:len(b.Outputs)*r.m.Config().VocabSize]); err != nil {
			return err
		}
		done += rows
	}
	return nil
}

// decode computes decodeTokens steps of n sequences, from an empty context as llama-bench does.
func (r *runner) decode(n int) error {
	for past := range decodeTokens {
		b := &backend.Batch{}
		for s := range n {
			b.Outputs = append(b.Outputs, int32(s))
			r.add(b, s, past, 1)
		}
		if err := r.m.Forward(r.kv, b, r.logits[:len(b.Outputs)*r.m.Config().VocabSize]); err != nil {
			return err
		}
	}
	return nil
}

// add appends rows of sequence s to b; each sequence has its own stretch of pages.
func (r *runner) add(b *backend.Batch, s, past, rows int) {
	const pagesPerSeq = (prefillTokens + decodeTokens) / pageSize
	seq := backend.Seq{Row: len(b.Tokens), Rows: rows, Past: past}
	for p := range (past + rows + pageSize - 1) / pageSize {
		seq.Pages = append(seq.Pages, int32(s*pagesPerSeq+p))
	}
	for i := range rows {
		at := past + i
		b.Tokens = append(b.Tokens, int32(r.rand.IntN(r.m.Config().VocabSize)))
		b.Positions = append(b.Positions, int32(at))
		b.Slots = append(b.Slots, seq.Pages[at/pageSize]*pageSize+int32(at%pageSize))
	}
	b.Seqs = append(b.Seqs, seq)
}

func llamaBench(o options, args ...string) (float64, error) {
	args = append([]string{"-m", o.model, "-t", strconv.Itoa(o.threads), "-r", "1", "-o", "json"}, args...)
	out, err := exec.Command(filepath.Join(o.llama, "llama-bench"), args...).Output()
	if err != nil {
		return 0, fmt.Errorf("llama-bench: %w", err)
	}
	var results []struct {
		Speed float64 `json:"avg_ts"`
	}
	if err := json.Unmarshal(out, &results); err != nil || len(results) != 1 {
		return 0, fmt.Errorf("llama-bench printed %d results: %w", len(results), err)
	}
	return results[0].Speed, nil
}

// llamaBatched reads the speed of token generation from llama-batched-bench's table: its columns are
// PP, TG, B, N_KV, T_PP, S_PP, T_TG, S_TG, T, S.
func llamaBatched(o options) (float64, error) {
	cmd := exec.Command(filepath.Join(o.llama, "llama-batched-bench"), "-m", o.model, "-t", strconv.Itoa(o.threads), "-c", "2048",
		"-npp", "1", "-ntg", strconv.Itoa(decodeTokens), "-npl", strconv.Itoa(streams))
	out, err := cmd.Output()
	if err != nil {
		return 0, fmt.Errorf("llama-batched-bench: %w", err)
	}
	for line := range strings.Lines(string(out)) {
		cells := strings.Split(line, "|")
		if len(cells) < 11 || strings.TrimSpace(cells[3]) != strconv.Itoa(streams) {
			continue
		}
		if v, err := strconv.ParseFloat(strings.TrimSpace(cells[8]), 64); err == nil {
			return v, nil
		}
	}
	return 0, fmt.Errorf("llama-batched-bench printed no row for %d streams:\n%s", streams, out)
}

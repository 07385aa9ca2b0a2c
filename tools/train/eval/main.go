// Eval asks a model held-out questions (taskgen -heldout) on the CPU backend, greedily, and prints how many of each kind
// it answers right, with Wilson's 99 % interval.
//
//	go run ./tools/train/taskgen -heldout -n 100 -seed 5000000000 -turns 4 -min 690 -max 690 | go run ./tools/train/eval
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"runtime"
	"slices"

	"cotenant/internal/backend"
	"cotenant/internal/backend/cpu"
	"cotenant/internal/loadgen"
	"cotenant/internal/model"
)

type sample struct {
	System string         `json:"system"`
	Turns  [][2]string    `json:"turns"`
	Kinds  []loadgen.Kind `json:"kinds"`
}

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "eval:", err)
		os.Exit(1)
	}
}

func run() error {
	be, err := cpu.New(cpu.Options{Threads: runtime.NumCPU()})
	if err != nil {
		return err
	}
	m, err := model.LoadEmbedded(be, model.Options{})
	if err != nil {
		return err
	}
	defer m.Close()
	e, err := newEvaluator(m)
	if err != nil {
		return err
	}
	right, total := map[loadgen.Kind]int{}, map[loadgen.Kind]int{}
	in := bufio.NewScanner(os.Stdin)
	in.Buffer(nil, 1<<20)
	for in.Scan() {
		var s sample
		if err := json.Unmarshal(in.Bytes(), &s); err != nil {
			return err
		}
		if err := e.base(s.System); err != nil {
			return err
		}
		for i, turn := range s.Turns {
			got, err := e.answer(turn[0])
			if err != nil {
				return err
			}
			total[s.Kinds[i]]++
			if (loadgen.Task{Kind: s.Kinds[i], Expect: turn[1], HasOracle: true}).Check(got) {
				right[s.Kinds[i]]++
			} else {
				fmt.Printf("%s: %q answered %q, want %q\n", s.Kinds[i], turn[0], got, turn[1])
			}
		}
	}
	for _, k := range loadgen.Kinds {
		fmt.Printf("%-7s %d of %d\n", k, right[k], total[k])
	}
	return in.Err()
}

// evaluator keeps the base's keys and values, and answers questions one by one on top of them.
type evaluator struct {
	m      *model.Model
	kv     backend.KV
	pages  []int32
	past   int
	logits []float32
}

const pageSize, maxAnswer = 16, 8

func newEvaluator(m *model.Model) (*evaluator, error) {
	pages := m.ContextLength() / pageSize
	kv, err := m.NewKV(pageSize, pages)
	if err != nil {
		return nil, err
	}
	e := &evaluator{m: m, kv: kv, logits: make([]float32, m.Config().VocabSize)}
	for i := range pages {
		e.pages = append(e.pages, int32(i))
	}
	return e, nil
}

func (e *evaluator) base(system string) error {
	ids := e.m.Tokenizer().EncodeSpecial("<|im_start|>system\n" + system + "<|im_end|>\n")
	e.past = 0
	_, err := e.forward(ids, 0)
	e.past = len(ids)
	return err
}

func (e *evaluator) answer(question string) (string, error) {
	t := e.m.Tokenizer()
	ids := t.EncodeSpecial("<|im_start|>user\n" + question + "<|im_end|>\n<|im_start|>assistant\n")
	past := e.past
	var out []int32
	for len(out) < maxAnswer {
		next, err := e.forward(ids, past)
		if err != nil {
			return "", err
		}
		if slices.Contains(e.m.EOS(), next) {
			break
		}
		past += len(ids)
		out = append(out, next)
		ids = []int32{next}
	}
	return string(t.Decode(out)), nil
}

// forward computes ids after past tokens and returns the most likely next token.
func (e *evaluator) forward(ids []int32, past int) (int32, error) {
	for len(ids) > 0 {
		n := min(len(ids), e.m.MaxBatchTokens())
		b := &backend.Batch{Tokens: ids[:n], Seqs: []backend.Seq{{Rows: n, Past: past, Pages: e.pages}}, Outputs: []int32{int32(n - 1)}}
		for i := range n {
			b.Positions = append(b.Positions, int32(past+i))
			b.Slots = append(b.Slots, int32(past+i))
		}
		if err := e.m.Forward(e.kv, b, e.logits); err != nil {
			return 0, err
		}
		ids, past = ids[n:], past+n
	}
	best := 0
	for i, v := range e.logits {
		if v > e.logits[best] {
			best = i
		}
	}
	return int32(best), nil
}

// Taskgen prints training and held-out conversations for the embedded model as JSON lines, made by the same generator
// as a soak's tasks (internal/loadgen): {"system": base, "turns": [[question, answer], …], "kinds": […]}.
//
// A question belongs to the held-out split where a hash of its text and answer says so: one in 16, never trained on.
package main

import (
	"bufio"
	"crypto/sha256"
	"encoding/json"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"sync"

	"cotenant/internal/loadgen"
)

type sample struct {
	System string         `json:"system"`
	Turns  [][2]string    `json:"turns"`
	Kinds  []loadgen.Kind `json:"kinds"`
}

func main() {
	n := flag.Int("n", 1000, "conversations")
	seed := flag.Uint64("seed", 1, "first seed; conversation i uses seed+i")
	low := flag.Int("min", loadgen.MinBaseTokens, "smallest base, tokens")
	high := flag.Int("max", loadgen.MaxBaseTokens, "largest base, tokens")
	turns := flag.Int("turns", 8, "questions in a conversation")
	heldout := flag.Bool("heldout", false, "only held-out questions; otherwise only the others")
	flag.Parse()
	if err := run(*n, *seed, *low, *high, *turns, *heldout); err != nil {
		fmt.Fprintln(os.Stderr, "taskgen:", err)
		os.Exit(1)
	}
}

// run makes conversations on all cores and prints them in order.
func run(n int, seed uint64, low, high, turns int, heldout bool) error {
	out := bufio.NewWriterSize(os.Stdout, 1<<20)
	workers := runtime.NumCPU()
	const chunk = 64
	for start := 0; start < n; start += workers * chunk {
		lines := make([][]byte, min(workers*chunk, n-start))
		var wg sync.WaitGroup
		for k := range workers {
			wg.Go(func() {
				for i := k; i < len(lines); i += workers {
					lines[i] = conversation(seed+uint64(start+i), low, high, turns, heldout)
				}
			})
		}
		wg.Wait()
		for _, l := range lines {
			out.Write(l)
			out.WriteByte('\n')
		}
	}
	return out.Flush()
}

func conversation(seed uint64, low, high, turns int, heldout bool) []byte {
	r := rand.New(rand.NewPCG(seed, 0x636f74656e616e74))
	w, err := loadgen.New(loadgen.Options{Seed: seed, BaseTokens: low + r.IntN(high-low+1)})
	if err != nil {
		panic(err) // flags out of loadgen's bounds
	}
	s := sample{System: w.Base()}
	for ctx := int64(r.IntN(4)); len(s.Turns) < turns; ctx++ {
		t := w.Task(ctx)
		q := t.Messages[1].Content
		if isHeldOut(q, t.Expect) != heldout {
			continue
		}
		s.Turns = append(s.Turns, [2]string{q, t.Expect})
		s.Kinds = append(s.Kinds, t.Kind)
	}
	r.Shuffle(len(s.Turns), func(i, j int) {
		s.Turns[i], s.Turns[j] = s.Turns[j], s.Turns[i]
		s.Kinds[i], s.Kinds[j] = s.Kinds[j], s.Kinds[i]
	})
	b, err := json.Marshal(s)
	if err != nil {
		panic(err)
	}
	return b
}

func isHeldOut(question, answer string) bool {
	h := sha256.Sum256([]byte(question + "\x00" + answer))
	return h[0]%16 == 0
}

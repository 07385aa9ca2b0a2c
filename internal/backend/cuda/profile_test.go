package cuda

import (
	"fmt"
	"os"
	"sort"
	"testing"
	"time"

	"cotenant/internal/backend"
	"cotenant/internal/model"
)

// BenchmarkStep prints what each kernel of a step takes, on the GPU and the model that COTENANT_CUDA_PROFILE names: by events around
// each launch (which adds some microseconds to short ones), and the whole step by graph.
func BenchmarkStep(t *testing.B) {
	path := os.Getenv("COTENANT_CUDA_PROFILE")
	if path == "" {
		t.Skip("COTENANT_CUDA_PROFILE names no model")
	}
	g := open(t, Options{Rows: 256})
	began := time.Now()
	m, err := model.Load(path, g, model.Options{MaxBatchTokens: 4096, OutputChunk: 256, ContextLength: 2048})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	fmt.Printf("load %v\n", time.Since(began).Round(time.Millisecond))
	kv, err := m.NewKV(16, 256*64)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ seqs, rows, past int }{{1, 1, 711}, {8, 1, 711}, {64, 1, 711}, {256, 1, 711}, {1, 704, 0}, {5, 704, 0}, {64, 14, 688}} {
		b := &backend.Batch{}
		for i := range c.seqs {
			var pages []int32
			for p := range (c.past+c.rows)/16 + 1 {
				pages = append(pages, int32(i*64+p))
			}
			b.Seqs = append(b.Seqs, backend.Seq{Row: len(b.Tokens), Rows: c.rows, Past: c.past, Pages: pages})
			for r := range c.rows {
				at := c.past + r
				b.Tokens = append(b.Tokens, int32(100+at%900))
				b.Positions = append(b.Positions, int32(at))
				b.Slots = append(b.Slots, pages[at/16]*16+int32(at%16))
			}
			b.Outputs = append(b.Outputs, int32(len(b.Tokens)-1))
		}
		step := func() {
			ids := make([]int32, c.seqs)
			err := m.Start(kv, b, m.Config().VocabSize, make([]backend.Draw, c.seqs))
			if err == nil {
				err = m.Wait(ids)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		step()
		step()
		var times []float64
		for range 15 {
			at := time.Now()
			step()
			times = append(times, time.Since(at).Seconds()*1e6)
		}
		sort.Float64s(times)
		p := &g.graphs.once
		if g.step.decode {
			for _, list := range g.graphs.programs[graphKey{g.step.l.rows, g.step.l.stride}] {
				p = list
			}
		}
		fmt.Printf("%d sequences of %d rows behind %d: step %.0f us (median with host), %d launches\n", c.seqs, c.rows, c.past, times[7], p.used)
		g.profile(t, p)
	}
}

func (g *gpu) profile(t testing.TB, p *program) {
	from, _ := g.d.CreateEvent(0)
	to, err := g.d.CreateEvent(0)
	if err != nil {
		t.Fatal(err)
	}
	const rounds = 5
	total := map[string]float64{}
	count := map[string]int{}
	for range rounds {
		for i, l := range p.launches[:p.used] {
			if err := g.d.RecordEvent(from, g.stream); err != nil {
				t.Fatal(err)
			}
			if err := l.Run(g.stream); err != nil {
				t.Fatal(err)
			}
			if err := g.d.RecordEvent(to, g.stream); err != nil {
				t.Fatal(err)
			}
			if err := g.d.SynchronizeEvent(to); err != nil {
				t.Fatal(err)
			}
			ms, err := g.d.ElapsedMS(from, to)
			if err != nil {
				t.Fatal(err)
			}
			total[p.names[i]] += float64(ms) * 1000 / rounds
			count[p.names[i]]++
		}
	}
	names := make([]string, 0, len(total))
	for n := range total {
		names = append(names, n)
	}
	sort.Slice(names, func(i, j int) bool { return total[names[i]] > total[names[j]] })
	for _, n := range names {
		fmt.Printf("  %-20s %4d launches %8.1f us, %6.2f each\n", n, count[n]/rounds, total[n], total[n]*rounds/float64(count[n]))
	}
}

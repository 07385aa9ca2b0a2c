package engine

import (
	"math"
	"math/rand/v2"
	"slices"
	"sort"
	"testing"

	"cotenant/internal/server"
)

// Known answers of Philox4x32-10 from Random123 (kat_vectors).
func TestPhilox(t *testing.T) {
	const ones = 0xffffffff
	for _, k := range []struct {
		counter [4]uint32
		key     [2]uint32
		want    [4]uint32
	}{
		{[4]uint32{}, [2]uint32{}, [4]uint32{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
		{[4]uint32{ones, ones, ones, ones}, [2]uint32{ones, ones}, [4]uint32{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
		{[4]uint32{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, [2]uint32{0xa4093822, 0x299f31d0},
			[4]uint32{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
	} {
		if got := philox(k.counter, k.key); got != k.want {
			t.Errorf("philox(%x, %x) = %x, want %x", k.counter, k.key, got, k.want)
		}
	}
}

func TestUniform(t *testing.T) {
	seen := map[float64]bool{}
	var sum float64
	const n = 4000
	for seed := range uint64(2) {
		for choice := range 2 {
			for pos := range n / 4 {
				u := uniform(seed, choice, pos)
				if u < 0 || u >= 1 || seen[u] {
					t.Fatalf("uniform(%d, %d, %d) = %v: out of range, or seen before", seed, choice, pos, u)
				}
				seen[u] = true
				sum += u
			}
		}
	}
	if mean := sum / n; math.Abs(mean-0.5) > 0.03 {
		t.Errorf("mean %v", mean)
	}
}

func TestExp(t *testing.T) {
	var x []float32
	for v := float32(5); v > -82; v -= 0.00317 {
		x = append(x, v)
	}
	y := make([]float32, len(x))
	for _, scale := range []float32{1, 0.25} {
		var want float64
		sum := expAll(y, x, 5, scale)
		for i, v := range x {
			e := math.Exp((float64(v) - 5) * float64(scale))
			argument := 1.2e-7 * math.Abs(float64(v-5)) // rounding of the argument itself
			if math.Abs(float64(y[i])-e) > (2e-7+argument)*e {
				t.Fatalf("e^((%v-5)*%v) = %v, want %v", v, scale, y[i], e)
			}
			want += e
		}
		if math.Abs(sum-want) > 2e-7*want {
			t.Errorf("sum %v, want %v", sum, want)
		}
	}
	ends := []float32{0, -1000, -math.MaxFloat32, float32(math.Inf(-1))}
	if sum := expAll(y, ends, 0, 1); sum != 1 || !slices.Equal(y[:4], []float32{1, 0, 0, 0}) {
		t.Errorf("the ends are %v", y[:4])
	}
}

func row(r *rand.Rand, n int) []float32 {
	x := make([]float32, n)
	for i := range x {
		x[i] = float32(r.NormFloat64()) * 3
	}
	return x
}

func TestArgmax(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	for n := 1; n < 70; n++ {
		x := row(r, n)
		if n > 3 {
			x[r.IntN(n)], x[r.IntN(n)] = 100, 100
		}
		want := 0
		for i, v := range x {
			if v > x[want] {
				want = i
			}
		}
		if got, finite := argmax(x); got != want || !finite {
			t.Fatalf("argmax of %d elements is %d (finite %v), want %d", n, got, finite, want)
		}
		for _, bad := range []float64{math.NaN(), math.Inf(1), math.Inf(-1)} {
			for i := range x {
				y := slices.Clone(x)
				y[i] = float32(bad)
				if _, finite := argmax(y); finite {
					t.Fatalf("%v at %d of %d is not seen", bad, i, n)
				}
			}
		}
	}
	if got, _ := argmax([]float32{1, 5, 5, 5, 5, 5, 5, 5, 5}); got != 1 {
		t.Errorf("of equal elements %d is chosen, want the first", got)
	}
}

func TestSelection(t *testing.T) {
	r := rand.New(rand.NewPCG(2, 2))
	for range 3000 {
		n := 1 + r.IntN(200)
		c := make([]candidate, n)
		x := make([]float32, n)
		var sum float64
		for i := range c {
			x[i] = float32(1+r.IntN(1+r.IntN(40))) / 8 // sums are exact
			c[i] = candidate{x[i], int32(i)}
			sum += float64(x[i])
		}
		sorted := slices.Clone(c)
		sort.Slice(sorted, func(i, j int) bool { return sorted[i].before(sorted[j]) })

		k := 1 + r.IntN(n+3)
		if got := largest(nil, x, k); !slices.Equal(got, sorted[:min(k, n)]) {
			t.Fatalf("the %d largest of %v: %v", k, x, got)
		}
		if got := ordered(topCount(slices.Clone(c), k)); !slices.Equal(got, sorted[:min(k, n)]) {
			t.Fatalf("the %d first of %v: %v", k, x, got)
		}
		mass := sum * r.Float64() * 1.05
		want, reached := 0, 0.0
		for want < n && (reached < mass || want == 0) {
			reached += float64(sorted[want].weight)
			want++
		}
		if got := ordered(topMass(slices.Clone(c), mass)); !slices.Equal(got, sorted[:want]) {
			t.Fatalf("the first of %v that reach %v are %d: %v", x, mass, want, got)
		}
	}
}

func ordered(c []candidate) []candidate {
	c = slices.Clone(c)
	sortCandidates(c)
	return c
}

// distribution is the plain reference for steps 1 to 7: sort, cut, normalise.
func distribution(s *server.Sampling, x []float32, prompt, answer []int32) map[int32]float64 {
	y := make([]float64, len(x))
	for i, v := range x {
		y[i] = float64(v)
	}
	for id, v := range s.LogitBias {
		y[id] += float64(v)
	}
	counts := map[int32]int{}
	for _, id := range answer {
		counts[id]++
	}
	for id := range y {
		n := counts[int32(id)]
		if s.RepetitionPenalty != 0 && (n > 0 || slices.Contains(prompt, int32(id))) {
			if y[id] > 0 {
				y[id] /= float64(s.RepetitionPenalty)
			} else {
				y[id] *= float64(s.RepetitionPenalty)
			}
		}
		if n > 0 {
			y[id] -= float64(s.FrequencyPenalty)*float64(n) + float64(s.PresencePenalty)
		}
	}
	top := slices.Max(y)
	type tok struct {
		id int32
		p  float64
	}
	var all []tok
	for i := range y {
		if p := math.Exp((y[i] - top) / float64(s.Temperature)); p >= float64(s.MinP) {
			all = append(all, tok{int32(i), p})
		}
	}
	sort.SliceStable(all, func(i, j int) bool { return all[i].p > all[j].p })
	if s.TopK > 0 {
		all = all[:min(s.TopK, len(all))]
	}
	total := func() (sum float64) {
		for _, t := range all {
			sum += t.p
		}
		return sum
	}
	if s.TopP > 0 && s.TopP < 1 {
		mass, sum, n := 0.0, total(), 0
		for n == 0 || mass < sum*float64(s.TopP) {
			mass += all[n].p
			n++
		}
		all = all[:n]
	}
	out, sum := map[int32]float64{}, total()
	for _, t := range all {
		out[t.id] = t.p / sum
	}
	return out
}

func TestSamplingFollowsTheDistribution(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 3))
	const draws = 6000
	cases := []server.Sampling{
		{Temperature: 1},
		{Temperature: 0.5},
		{Temperature: 2, TopK: 5},
		{Temperature: 2, TopK: 100},
		{Temperature: 1, TopP: 0.8},
		{Temperature: 3, TopP: 0.9, TopK: 80},
		{Temperature: 2, MinP: 0.1},
		{Temperature: 3, MinP: 0.05, TopK: 20, TopP: 0.7},
		{Temperature: 1, TopP: 1e-9},
		{Temperature: 1, RepetitionPenalty: 1.5},
		{Temperature: 1, PresencePenalty: 1.5, FrequencyPenalty: 0.7},
		{Temperature: 1, RepetitionPenalty: 0.7, PresencePenalty: -1, FrequencyPenalty: -0.2, TopK: 30},
		{Temperature: 1, LogitBias: map[int32]float32{3: 8, 7: -100, 11: 7.5}},
	}
	x := row(r, 150)
	x[3], x[5], x[20] = 4, -3, 6
	prompt, answer := []int32{3, 5, 9, 9}, []int32{20, 5, 20, 20, 60}
	for i := range cases {
		s := &cases[i]
		want := distribution(s, x, prompt, answer)
		p := newSampler(s, prompt, nil, 0, 42)
		if p.index != nil {
			for _, id := range answer {
				p.see(id, 1)
			}
		}
		seen := slices.Clone(p.seen)
		got := map[int32]float64{}
		var b bench
		y := make([]float32, len(x))
		for pos := range draws {
			if p.index != nil { // penalties see the same answer in each draw
				p.seen = append(p.seen[:0], seen...)
				clear(p.index)
				for i, v := range seen {
					p.index[v.id] = int32(i)
				}
			}
			copy(y, x)
			tok, err := p.next(y, pos, &b)
			if err != nil {
				t.Fatal(err)
			}
			got[tok.id] += 1.0 / draws
		}
		for id := range got {
			if _, ok := want[id]; !ok {
				t.Errorf("%+v: token %d can't be drawn, and was", *s, id)
			}
		}
		for id, p := range want {
			if sigma := math.Sqrt(p * (1 - p) / draws); math.Abs(got[id]-p) > 5*sigma+1e-3 {
				t.Errorf("%+v: token %d was drawn with %.4f, want %.4f", *s, id, got[id], p)
			}
		}
	}
}

func TestFilterKeepsTheExactSet(t *testing.T) {
	r := rand.New(rand.NewPCG(4, 4))
	for i := range 200 {
		x := row(r, 50+r.IntN(1000))
		s := &server.Sampling{Temperature: 0.3 + 2*r.Float32()}
		if r.IntN(2) == 0 {
			s.TopP = 0.05 + 0.94*r.Float32()
		}
		if r.IntN(2) == 0 {
			s.TopK = 1 + r.IntN(300)
		}
		if r.IntN(3) == 0 {
			s.MinP = r.Float32() * 0.3
		}
		p := newSampler(s, nil, nil, 0, 1)
		best, _ := argmax(x)
		var b bench
		p.draw(x, x[best], 0.5, &b)
		var sum float64
		for _, w := range b.weights {
			sum += float64(w)
		}
		want := distribution(s, x, nil, nil)
		got := p.filter(b.weights, sum, &b)
		if d := len(got) - len(want); d < -1 || d > 1 { // one at the edge may fall on either side of rounding
			t.Fatalf("row %d, %+v: %d tokens are kept, want %d", i, *s, len(got), len(want))
		}
	}
}

func TestGreedyIsExact(t *testing.T) {
	x := []float32{1, 7, 3, 7, -2}
	for _, s := range []server.Sampling{{}, {TopP: 0.1, TopK: 3, MinP: 0.5}, {Temperature: 1e-40}, {Temperature: 1, TopK: 1}} {
		p := newSampler(&s, nil, nil, 0, 9)
		for pos := range 50 {
			got, err := p.next(slices.Clone(x), pos, &bench{})
			if err != nil {
				t.Fatal(err)
			}
			if tie := s.Temperature > 0 && s.TopK == 0; got.id != 1 && !(tie && got.id == 3) {
				t.Fatalf("%+v chose %d, want the lowest of the largest", s, got.id)
			}
		}
	}
	s := server.Sampling{LogitBias: map[int32]float32{2: 5}}
	if got, _ := newSampler(&s, nil, nil, 0, 9).next(slices.Clone(x), 0, &bench{}); got.id != 2 {
		t.Errorf("with a bias %d was chosen, want 2", got.id)
	}
}

func TestMinTokens(t *testing.T) {
	x := []float32{1, 7, 3, 6, -2}
	s := server.Sampling{MinTokens: 2, Logprobs: true}
	p := newSampler(&s, nil, []int32{1, 3}, 0, 9)
	for pos, want := range []int32{2, 2, 1} {
		got, err := p.next(slices.Clone(x), pos, &bench{})
		if err != nil || got.id != want {
			t.Errorf("token %d is %d (%v), want %d", pos, got.id, err, want)
		}
	}
	p = newSampler(&s, nil, []int32{0, 1, 2, 3, 4}, 0, 9)
	if got, err := p.next(slices.Clone(x), 0, &bench{}); err != nil || got.id != 1 {
		t.Errorf("with every token ruled out: %d, %v", got.id, err)
	}
}

func TestLogprobsAreTheModels(t *testing.T) {
	x := []float32{1, 7, 3, 7, -2}
	var sum float64
	for _, v := range x {
		sum += math.Exp(float64(v))
	}
	want := func(id int) float64 { return float64(x[id]) - math.Log(sum) }
	s := server.Sampling{Temperature: 0.5, Logprobs: true, TopLogprobs: 3, LogitBias: map[int32]float32{4: 100, 1: -3},
		RepetitionPenalty: 1.3, PresencePenalty: 1}
	got, err := newSampler(&s, []int32{4, 1}, []int32{1}, 0, 9).next(slices.Clone(x), 0, &bench{})
	if err != nil || got.id != 4 || len(got.top) != 3 {
		t.Fatalf("chose %+v, %v", got, err)
	}
	if math.Abs(float64(got.logprob)-want(4)) > 1e-5 {
		t.Errorf("log-probability %v, want %v", got.logprob, want(4))
	}
	for i, id := range []int{1, 3, 2} {
		if got.top[i].id != int32(id) || math.Abs(float64(got.top[i].weight)-want(id)) > 1e-5 {
			t.Errorf("alternative %d is %+v, want %d with %v", i, got.top[i], id, want(id))
		}
	}
	far := []float32{0, -3e38, -1e30}
	if got, err := scorePrompt(far, 1, 2, &bench{}); err != nil || got.logprob != leastLogprob || got.top[1].weight != leastLogprob {
		t.Errorf("a token that can't be: %+v, %v", got, err)
	}
	if _, err := scorePrompt([]float32{0, float32(math.NaN())}, 0, 0, &bench{}); err == nil {
		t.Error("NaN in a prompt's row is not seen")
	}
}

func TestNonFiniteRow(t *testing.T) {
	for _, bad := range []float64{math.NaN(), math.Inf(1), math.Inf(-1)} {
		for _, s := range []server.Sampling{{}, {Temperature: 1}, {LogitBias: map[int32]float32{2: -100}}} {
			x := []float32{1, 2, float32(bad), 0, 1, 2, 3}
			if _, err := newSampler(&s, nil, nil, 0, 9).next(x, 0, &bench{}); err == nil {
				t.Errorf("%v in a row is not an error under %+v", bad, s)
			}
		}
	}
}

func TestExtremePenaltiesStayFinite(t *testing.T) {
	s := server.Sampling{Temperature: 1, RepetitionPenalty: 1e-38, FrequencyPenalty: -2, PresencePenalty: -2}
	p := newSampler(&s, []int32{0, 1, 2}, nil, 0, 9)
	for pos := range 20 {
		if got, err := p.next([]float32{30, -30, 30, 0}, pos, &bench{}); err != nil || got.id < 0 || got.id > 3 {
			t.Fatalf("token %d: %+v, %v", pos, got, err)
		}
	}
}

func TestSamplingAllocatesNothing(t *testing.T) {
	x := row(rand.New(rand.NewPCG(5, 5)), 5000)
	y := make([]float32, len(x))
	for _, s := range []server.Sampling{{}, {Temperature: 1}, {Temperature: 1, TopP: 0.9}, {Temperature: 1, TopK: 40, TopP: 0.9},
		{Temperature: 1, TopK: 400, MinP: 0.01}, {Temperature: 1, LogitBias: map[int32]float32{1: 2}, MinTokens: 5}} {
		p := newSampler(&s, nil, []int32{3}, 0, 9)
		var b bench
		pos := 0
		n := testing.AllocsPerRun(50, func() {
			copy(y, x)
			if _, err := p.next(y, pos, &b); err != nil {
				t.Fatal(err)
			}
			pos++
		})
		if n != 0 {
			t.Errorf("%+v: %v allocations a token", s, n)
		}
	}
}

func BenchmarkSample(b *testing.B) {
	r := rand.New(rand.NewPCG(5, 5))
	for _, vocab := range []struct {
		name string
		n    int
	}{{"49k", 49152}, {"152k", 151936}} {
		x := row(r, vocab.n)
		for _, c := range []struct {
			name string
			s    server.Sampling
		}{
			{"greedy", server.Sampling{}},
			{"temperature", server.Sampling{Temperature: 1}},
			{"top_p", server.Sampling{Temperature: 1, TopP: 0.95}},
			{"top_k_20", server.Sampling{Temperature: 0.7, TopK: 20, TopP: 0.8}},
			{"top_k_1000", server.Sampling{Temperature: 0.7, TopK: 1000}},
			{"flat_top_p", server.Sampling{Temperature: 100, TopP: 0.99}},
			{"logprobs", server.Sampling{Logprobs: true, TopLogprobs: 20}},
		} {
			b.Run(vocab.name+"/"+c.name, func(b *testing.B) {
				p := newSampler(&c.s, nil, nil, 0, 1)
				var w bench
				pos := 0
				b.ReportAllocs()
				for b.Loop() {
					if _, err := p.next(x, pos, &w); err != nil {
						b.Fatal(err)
					}
					pos++
				}
			})
		}
	}
}

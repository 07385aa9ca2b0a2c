package cuda

import (
	"cmp"
	"math"
	"math/bits"
	"math/rand/v2"
	"slices"
	"testing"

	"cotenant/internal/backend"
)

// reference chooses as engine's sampler documents, in float64. near is how far the draw was from another token's part, of all.
func reference(row []float32, d backend.Draw) (id int32, near float64) {
	const banned = -1e300
	v := make([]float64, len(row))
	for i, x := range row {
		v[i] = float64(x)
	}
	for _, a := range d.Adjust {
		x := v[a.ID] + float64(a.Bias)
		if a.Seen {
			if x > 0 {
				x /= float64(d.Repetition)
			} else {
				x *= float64(d.Repetition)
			}
			if a.Count > 0 {
				x -= float64(d.Frequency)*float64(a.Count) + float64(d.Presence)
			}
		}
		if v[a.ID] = x; a.Ban {
			v[a.ID] = banned
		}
	}
	type token struct {
		w  float64
		id int32
	}
	best := slices.Max(v)
	var all []token
	for i, x := range v {
		if x == best && d.Temperature == 0 {
			return int32(i), 1
		}
		if w := math.Exp((x - best) / float64(d.Temperature)); w >= float64(d.MinP) && w > 0 {
			all = append(all, token{w, int32(i)})
		}
	}
	slices.SortStableFunc(all, func(a, b token) int { return cmp.Compare(b.w, a.w) })
	if k := int(d.TopK); k > 0 && k < len(all) {
		all = all[:k]
	}
	sum := 0.0
	for _, x := range all {
		sum += x.w
	}
	if d.TopP < 1 {
		mass, n := 0.0, 0
		for n < len(all) && (n == 0 || mass < float64(d.TopP)*sum) {
			mass += all[n].w
			n++
		}
		all, sum = all[:n], mass
	}
	slices.SortFunc(all, func(a, b token) int { return cmp.Compare(a.id, b.id) })
	u := uniform(d.Seed, uint32(d.Choice), uint32(d.Position)) * sum
	for i, x := range all {
		if u < x.w || i == len(all)-1 {
			return x.id, min(u, math.Abs(x.w-u)) / sum
		}
		u -= x.w
	}
	panic("unreachable")
}

func uniform(seed uint64, choice, position uint32) float64 {
	c := [4]uint32{position, 0, choice, 0}
	key := [2]uint32{uint32(seed), uint32(seed >> 32)}
	for range 10 {
		hi0, lo0 := bits.Mul32(0xD2511F53, c[0])
		hi1, lo1 := bits.Mul32(0xCD9E8D57, c[2])
		c = [4]uint32{hi1 ^ c[1] ^ key[0], lo1, hi0 ^ c[3] ^ key[1], lo0}
		key[0] += 0x9E3779B9
		key[1] += 0xBB67AE85
	}
	return float64((uint64(c[0])<<32|uint64(c[1]))>>11) / (1 << 53)
}

// Draws of all kinds, many rows at once, are the reference's; where a draw falls within 1e-5 of another token's part, either is right.
func TestSample(t *testing.T) {
	const rows, width, vocab = 40, 20011, 20000
	g := open(t, Options{Rows: rows})
	rng := rand.New(rand.NewPCG(9, 9))
	table := tensor(rng, rows, width, 3)
	m, err := g.Matrix(table)
	if err != nil {
		t.Fatal(err)
	}
	x, err := g.Buffer(rows * width)
	if err != nil {
		t.Fatal(err)
	}
	values := make([]float32, rows*width)
	widen(values, table.Data)
	b := &backend.Batch{}
	for i := range rows {
		b.Tokens, b.Positions, b.Slots, b.Outputs = append(b.Tokens, int32(i)), append(b.Positions, 0), append(b.Slots, 0), append(b.Outputs, int32(i))
		b.Seqs = append(b.Seqs, backend.Seq{Row: i, Rows: 1, Pages: []int32{0}})
	}
	close := 0
	for round := range 6 {
		draws := make([]backend.Draw, rows)
		for i := range draws {
			d := backend.Draw{Seed: rng.Uint64(), Choice: int32(i % 3), Position: int32(round), TopP: 1, Repetition: 1}
			switch i % 8 {
			case 1:
				d.Temperature = 0.7
			case 2:
				d.Temperature, d.TopK = 1.5, int32(1+rng.IntN(400))
			case 3:
				d.Temperature, d.TopP = 1, 0.9
			case 4:
				d.Temperature, d.MinP = 1, 0.05
			case 5:
				d.Temperature, d.TopK, d.TopP, d.MinP = 0.9, 50, 0.8, 0.01
			case 6:
				d.Temperature, d.TopP = 3, 0.5
			case 7:
				d.Temperature, d.TopP = 1, 1e-6
			}
			if round >= 3 && i%2 == 0 {
				d.Repetition, d.Frequency, d.Presence = 1.3, 0.2, 0.5
				for id := range int32(30) {
					d.Adjust = append(d.Adjust, backend.Adjustment{ID: id * 613, Seen: id%2 == 0, Count: id % 4, Bias: float32(id%5) * 2, Ban: id%7 == 0})
				}
			}
			draws[i] = d
		}
		if err := g.Begin(b); err != nil {
			t.Fatal(err)
		}
		g.Embed(x, m)
		g.Sample(x, width, vocab, draws)
		ids := make([]int32, rows)
		if err := g.Wait(ids); err != nil {
			t.Fatal(err)
		}
		for i, d := range draws {
			want, near := reference(values[i*width:i*width+vocab], d)
			if ids[i] == want {
				continue
			}
			if near > 1e-5 {
				t.Errorf("round %d, row %d, %+v: token %d, want %d (%.2g from another)", round, i, d, ids[i], want, near)
			}
			close++
		}
	}
	if close > 5 {
		t.Errorf("%d draws of %d fell on the next token", close, 6*rows)
	}
}

// A step of more rows than any before changes nothing for ids: what was chosen is still there, for the host and for the next step, and
// decode steps whose graphs are older write to where they are read.
func TestLongStepBetweenGraphs(t *testing.T) {
	const width, many = 64, 1100
	g := open(t, Options{Rows: 4})
	data := tensor(rand.New(rand.NewPCG(1, 1)), width, width, 0)
	for i := range width {
		data.Data[2*(i*width+(i+1)%width)+1] = 0x3f
	}
	m, err := g.Matrix(data)
	if err != nil {
		t.Fatal(err)
	}
	x, err := g.Buffer(many * width)
	if err != nil {
		t.Fatal(err)
	}
	y, err := g.Buffer(4 * width)
	if err != nil {
		t.Fatal(err)
	}
	start := func(b *backend.Batch) {
		t.Helper()
		for i := range b.Tokens {
			b.Positions, b.Slots = append(b.Positions, 0), append(b.Slots, 0)
			if len(b.Outputs) == 0 {
				b.Seqs = append(b.Seqs, backend.Seq{Row: i, Rows: 1, Pages: []int32{0}})
			}
		}
		if len(b.Outputs) > 0 {
			b.Seqs = []backend.Seq{{Rows: len(b.Tokens), Pages: []int32{0}}}
		} else {
			for i := range b.Tokens {
				b.Outputs = append(b.Outputs, int32(i))
			}
		}
		if err := g.Begin(b); err != nil {
			t.Fatal(err)
		}
		g.Embed(x, m)
		logits := x
		if len(b.Outputs) < len(b.Tokens) {
			g.Gather(y, x, width, 0, len(b.Outputs))
			logits = y
		}
		g.Sample(logits, width, width, make([]backend.Draw, len(b.Outputs)))
		if err := g.End(); err != nil {
			t.Fatal(err)
		}
	}
	expect := func(what string, want ...int32) {
		t.Helper()
		ids := make([]int32, len(want))
		if err := g.Wait(ids); err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(ids, want) {
			t.Fatalf("%s chose %v, want %v", what, ids, want)
		}
	}
	for i := range int32(6) { // both halves of host, with graphs
		start(&backend.Batch{Tokens: []int32{i, i + 10, i + 20}})
		expect("a step", i+1, i+11, i+21)
	}
	start(&backend.Batch{Tokens: []int32{7, 8, 9}})
	long := &backend.Batch{Tokens: make([]int32, many), Outputs: []int32{0, many - 1}}
	long.Tokens[0], long.Tokens[many-1] = ^1, 50 // the first is what the step before chose
	start(long)
	expect("the step before", 8, 9, 10)
	start(&backend.Batch{Tokens: []int32{^1, ^0, 30}})
	expect("the long step", 10, 51)
	expect("the step behind", 52, 11, 31)
	for i := range int32(6) {
		start(&backend.Batch{Tokens: []int32{i, i + 10, i + 20}})
		expect("a later step", i+1, i+11, i+21)
	}
}

// Two samples may be on their way, and a token may be what the one before chose.
func TestSampleAhead(t *testing.T) {
	const width = 64
	g := open(t, Options{Rows: 4})
	// Row i's largest value is at i + 1.
	data := tensor(rand.New(rand.NewPCG(1, 1)), width, width, 0)
	for i := range width {
		at := 2 * (i*width + (i+1)%width)
		data.Data[at+1] = 0x3f // 0.5 as bf16
	}
	m, err := g.Matrix(data)
	if err != nil {
		t.Fatal(err)
	}
	x, err := g.Buffer(4 * width)
	if err != nil {
		t.Fatal(err)
	}
	start := func(tokens ...int32) {
		b := &backend.Batch{Tokens: tokens}
		for i := range tokens {
			b.Positions, b.Slots, b.Outputs = append(b.Positions, 0), append(b.Slots, 0), append(b.Outputs, int32(i))
			b.Seqs = append(b.Seqs, backend.Seq{Row: i, Rows: 1, Pages: []int32{0}})
		}
		if err := g.Begin(b); err != nil {
			t.Fatal(err)
		}
		g.Embed(x, m)
		g.Sample(x, width, width, make([]backend.Draw, len(tokens)))
		if err := g.End(); err != nil {
			t.Fatal(err)
		}
	}
	start(5, 20, 40)
	for step := range int32(30) {
		start(^2, ^0, ^1)
		ids := make([]int32, 3)
		if err := g.Wait(ids); err != nil {
			t.Fatal(err)
		}
		want := []int32{5, 20, 40}
		for range step % 3 {
			want = []int32{want[2], want[0], want[1]}
		}
		for i := range want {
			want[i] = (want[i] + step + 1) % width
		}
		if !slices.Equal(ids, want) {
			t.Fatalf("step %d chose %v, want %v", step, ids, want)
		}
	}
	if err := g.Wait(make([]int32, 3)); err != nil {
		t.Fatal(err)
	}
}

package record

import (
	"math"
	"math/big"
	"slices"
	"testing"

	"cotenant/internal/observe"
)

// binomial is P(Bin(n, num/den) ≤ k), by exact arithmetic.
func binomial(n, k, num, den int64) float64 {
	sum, all := new(big.Int), new(big.Int).Exp(big.NewInt(den), big.NewInt(n), nil)
	for i := range k + 1 {
		term := new(big.Int).Binomial(n, i)
		term.Mul(term, new(big.Int).Exp(big.NewInt(num), big.NewInt(i), nil))
		term.Mul(term, new(big.Int).Exp(big.NewInt(den-num), big.NewInt(n-i), nil))
		sum.Add(sum, term)
	}
	f, _ := new(big.Rat).SetFrac(sum, all).Float64()
	return f
}

// Values are 1 to n, so that a percentile and its bounds are their ranks: held against the exact binomial distribution.
func TestDistribution(t *testing.T) {
	for _, n := range []int64{1, 7, 44, 458, 459, 1000} {
		values := make([]int64, n)
		for i := range values {
			values[i] = n - int64(i)
		}
		d := distribution(values)
		if *d.Max != n {
			t.Errorf("n = %d: max %d", n, *d.Max)
		}
		for i, p := range []struct{ num, den int64 }{{1, 2}, {9, 10}, {99, 100}, {999, 1000}} {
			q := d.Quantiles[i]
			upper := math.Pow(float64(p.num)/float64(p.den), float64(n)) <= 0.01
			lower := math.Pow(float64(p.den-p.num)/float64(p.den), float64(n)) <= 0.01
			if (q.State == Established) != (upper && lower) {
				t.Errorf("n = %d, %s: %s", n, q.Percentile, q.State)
			}
			if q.State != Established {
				if q.Value != nil || q.Low != nil || q.High != nil {
					t.Errorf("n = %d, %s isn't established and has a value", n, q.Percentile)
				}
				continue
			}
			if want := (p.num*n + p.den - 1) / p.den; *q.Value != want {
				t.Errorf("n = %d, %s: rank %d, want %d", n, q.Percentile, *q.Value, want)
			}
			// X(low) is above the percentile only if fewer than low values are below it; one rank more would be too likely.
			if binomial(n, *q.Low-1, p.num, p.den) > 0.01 || binomial(n, *q.Low, p.num, p.den) <= 0.01 {
				t.Errorf("n = %d, %s: lower bound at rank %d", n, q.Percentile, *q.Low)
			}
			if over := n - *q.High; binomial(n, over, p.den-p.num, p.den) > 0.01 || binomial(n, over+1, p.den-p.num, p.den) <= 0.01 {
				t.Errorf("n = %d, %s: upper bound at rank %d", n, q.Percentile, *q.High)
			}
		}
	}
	if d := distribution(nil); d.Max != nil || d.Quantiles[0].Value != nil {
		t.Errorf("of nothing: %+v", d)
	}
}

// tinyPlan has one victim, one aggressor and one mechanism.
func tinyPlan() *Plan {
	p := examplePlan()
	p.Victims, p.Aggressors, p.Mechanisms = p.Victims[1:], p.Aggressors[2:], []Mechanism{p.Mechanisms[0], p.Mechanisms[1]}
	p.Sampling.Repeats = 1
	p.Cells = MakeCells(p)
	return p
}

// rowsOf makes one block a cell: so many launches of so many ns each, and units of the aggressor in a second.
func rowsOf(p *Plan, ns map[string]int64, units map[string]int64, change func(*Row)) []Row {
	var rows []Row
	for i, b := range Order(p) {
		cell := p.Cells[b.Cell]
		r := Row{Segment: 1, Block: int64(i), Cell: cell.ID, BeganUS: int64(i) * 2_000_000, EndedUS: int64(i)*2_000_000 + 1_500_000, HostNS: Series{}, EventNS: Series{},
			Units: units[cell.ID], Clocks: Clocks{SMMHz: []int64{1980, 1980, 1980}, MemoryMHz: []int64{}, Throttle: []string{}}}
		for k := range 1000 {
			if cell.Victim != "" {
				r.HostNS, r.EventNS = append(r.HostNS, ns[cell.ID]+int64(k%10)), append(r.EventNS, ns[cell.ID])
			}
		}
		if cell.Aggressor != "" {
			r.UnitsUS = 1_000_000
		}
		if change != nil {
			change(&r)
		}
		rows = append(rows, r)
	}
	return rows
}

const (
	alone, again, beside, other = "critical/-/whole", "critical/-/whole/again", "critical/fma/streams", "-/fma/whole"
)

func cellsOf(l *Ledger) map[string]*CellResult {
	m := make(map[string]*CellResult)
	for i := range l.Cells {
		m[l.Cells[i].ID] = &l.Cells[i]
	}
	return m
}

// Figures by hand: 20 µs alone, 21 µs again, 80 µs beside an aggressor that ends 400 units a second instead of 500.
func TestCompare(t *testing.T) {
	p := tinyPlan()
	rows := rowsOf(p, map[string]int64{alone: 20_000, again: 21_000, beside: 80_000}, map[string]int64{other: 500, beside: 400}, nil)
	l := Compute(p, nil, rows)
	c := cellsOf(l)[beside]
	if c.Own == nil || c.Own.Cell != alone || c.Whole == nil || *c.Own.Slowdowns[2].RatioPPM != 80_009*million/20_009 || *c.Own.Slowdowns[2].Claim != "slower" {
		t.Errorf("references %+v %+v", c.Own, c.Whole)
	}
	if *c.IsolationPPM != 20_009*million/80_009 || *l.Mechanisms[1].WorstIsolationPPM != *c.IsolationPPM || l.Mechanisms[1].WorstCell != beside {
		t.Errorf("isolation %d, worst %+v", *c.IsolationPPM, l.Mechanisms[1])
	}
	if *c.Neighbour.KeptPPM != 800_000 || *c.Neighbour.PerSecond != 400*p.Aggressors[0].Work {
		t.Errorf("neighbour %+v", c.Neighbour)
	}
	if *l.Noise[0].PPM != 1000*million/20_004 {
		t.Errorf("noise %d", *l.Noise[0].PPM)
	}
	if twin := cellsOf(l)[again]; twin.IsolationPPM != nil || twin.Whole == nil || *twin.Whole.Slowdowns[0].Claim != "within_noise" {
		t.Errorf("the null cell: %+v", twin.Whole)
	}
	// 1,000 launches of 80.0045 µs on average.
	if want := muldiv(p.Victims[0].Work*1000, 1_000_000_000, 80_004_500); *c.Victim.PerSecond != want {
		t.Errorf("rate %d, want %d", *c.Victim.PerSecond, want)
	}
	if c.Energy.State != NotEstablished || c.AtClock != nil || c.PowerCapped {
		t.Errorf("energy %+v, clock %+v", c.Energy, c.AtClock)
	}
}

// A difference below the noise floor isn't claimed, whatever the bounds say.
func TestNoiseFloor(t *testing.T) {
	p := tinyPlan()
	for ns, want := range map[int64]string{80_000: "within_noise", 85_000: "slower", 39_000: "within_noise", 19_000: "faster"} {
		l := Compute(p, nil, rowsOf(p, map[string]int64{alone: 40_000, again: 80_500, beside: ns}, nil, nil))
		if got := *cellsOf(l)[beside].Own.Slowdowns[0].Claim; got != want {
			t.Errorf("%d ns against 40,000 with noise of 101 %%: %s, want %s", ns, got, want)
		}
	}
}

// A thermal or hardware slowdown makes a cell void; a power cap doesn't, and says what the reference would be at its clock.
func TestClocks(t *testing.T) {
	p := tinyPlan()
	ns, units := map[string]int64{alone: 20_000, again: 20_000, beside: 30_000}, map[string]int64{other: 500, beside: 400}
	throttled := func(reason string, mhz int64) *Ledger {
		return Compute(p, nil, rowsOf(p, ns, units, func(r *Row) {
			if r.Cell == beside {
				r.Clocks.Throttle, r.Clocks.SMMHz = []string{reason}, []int64{mhz, mhz, mhz}
			}
		}))
	}
	for _, reason := range voiding {
		l := throttled(reason, 1000)
		c := cellsOf(l)[beside]
		if c.State != Void || c.Host.Quantiles[0].Value != nil || c.Host.Max != nil || c.IsolationPPM != nil || c.Victim.PerSecond != nil || c.Neighbour.PerSecond != nil || c.Reason == "" {
			t.Errorf("%s: %+v", reason, c)
		}
		if !slices.Contains(l.DoesNot, "anything in 1 cells that are void or failed") {
			t.Errorf("%s: %v", reason, l.DoesNot)
		}
	}
	c := cellsOf(throttled(powerCap, 1650))[beside]
	if c.State != Measured || !c.PowerCapped || *c.AtClock != (AtClock{1650, 1980, 20_004, 20_004 * 1980 / 1650}) {
		t.Errorf("capped: %s %v %+v", c.State, c.PowerCapped, c.AtClock)
	}
	// The reason alone, at the greatest clock, held nothing down.
	if c := cellsOf(throttled(powerCap, 1980))[beside]; c.PowerCapped || c.AtClock != nil {
		t.Errorf("at the greatest clock: %v %+v", c.PowerCapped, c.AtClock)
	}
}

// Energy counts from 1 s a block on, and is held against the same work alone.
func TestEnergy(t *testing.T) {
	p := tinyPlan()
	mj := map[string]int64{alone: 100_000, again: 100_000, beside: 300_000, other: 200_000}
	ns, units := map[string]int64{alone: 20_000, again: 20_000, beside: 30_000}, map[string]int64{other: 500, beside: 400}
	for us, state := range map[int64]string{999_999: NotEstablished, 1_000_000: Established} {
		l := Compute(p, nil, rowsOf(p, ns, units, func(r *Row) { r.Clocks.EnergyMJ, r.Clocks.EnergyUS = ref(mj[r.Cell]), ref(us) }))
		c := cellsOf(l)
		if c[beside].Energy.State != state {
			t.Fatalf("%d µs: %s", us, c[beside].Energy.State)
		}
		if state != Established {
			continue
		}
		// 1,000 launches of 100 mJ and 400 units of 400 mJ take 260 J alone.
		if *c[alone].Energy.PerLaunchUJ != 100_000 || *c[other].Energy.PerLaunchUJ != 400_000 || *c[beside].Energy.PerLaunchUJ != 300_000 || *c[beside].Energy.RatioPPM != 300*million/260 {
			t.Errorf("%+v %+v %+v", c[alone].Energy, c[other].Energy, c[beside].Energy)
		}
	}
}

func TestMuldiv(t *testing.T) {
	for _, c := range [][4]int64{{7, 3, 2, 10}, {1 << 62, 1 << 62, 1 << 62, 1 << 62}, {1 << 62, 4, 1, math.MaxInt64}, {5, 5, 0, 0}, {-1, 5, 1, 0}, {0, 5, 1, 0}} {
		if got := muldiv(c[0], c[1], c[2]); got != c[3] {
			t.Errorf("%d·%d/%d = %d, want %d", c[0], c[1], c[2], got, c[3])
		}
	}
}

// The smallest allocation that keeps the objective is picked, and none where the evidence doesn't say so.
func TestRecommend(t *testing.T) {
	p := tinyPlan()
	p.Mechanisms = append(p.Mechanisms, Mechanism{ID: "green:16", Kind: Green, VictimSMs: 16, Verdict: observe.SupportedDeclared},
		Mechanism{ID: "green:64", Kind: Green, VictimSMs: 64, Verdict: observe.SupportedDeclared})
	p.Cells = MakeCells(p)
	made := []Segment{{Segment: 1, Made: []Made{{Mechanism: "green:16", VictimSMs: 16, AggressorSMs: 116}, {Mechanism: "green:64", VictimSMs: 64, AggressorSMs: 68}}}}
	ns := map[string]int64{alone: 20_000, again: 20_000, beside: 900_000, "critical/-/green:16": 50_000, "critical/fma/green:16": 60_000, "critical/-/green:64": 25_000, "critical/fma/green:64": 26_000}
	units := map[string]int64{other: 500, beside: 500, "critical/fma/green:16": 440, "critical/fma/green:64": 250}
	rows := rowsOf(p, ns, units, nil)
	for _, c := range []struct {
		slo          string
		pick, answer string
	}{{"p99_us=100", "green:16", Keeps}, {"p99_us=60", "green:64", Keeps}, {"p50_us=30", "green:64", Keeps}, {"p99_us=20", "", Misses}, {"p99_ms=1", "green:16", Keeps}, {"p99.9_us=100", "", Unknown}} {
		o, err := ParseObjective(c.slo)
		if err != nil {
			t.Fatal(err)
		}
		r, err := Recommend(Compute(p, made, rows), o, "critical", "fma")
		if err != nil {
			t.Fatal(err)
		}
		a := r.Advice[0]
		if a.Pick != c.pick || a.Answer != c.answer {
			t.Errorf("%s: %q %s, want %q %s: %+v", c.slo, a.Pick, a.Answer, c.pick, c.answer, a.Candidates)
		}
		if a.Pick == "green:16" && (*a.Candidates[0].LeastKeptPPM != 880_000 || a.Candidates[0].VictimSMs != 16 || a.Candidates[0].Cells[0] != "critical/fma/green:16") {
			t.Errorf("the price: %+v", a.Candidates[0])
		}
	}
	l := Compute(p, made, rows)
	if _, err := Recommend(l, Objective{"p99", 1}, "nobody", ""); err == nil {
		t.Error("a victim that isn't there was accepted")
	}
	if _, err := Recommend(l, Objective{"p99", 1}, "", "nobody"); err == nil {
		t.Error("an aggressor that isn't there was accepted")
	}
}

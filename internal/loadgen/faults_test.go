package loadgen

import "testing"

func TestFaultPlan(t *testing.T) {
	p := FaultPlan{Seed: "7", Contexts: 10_000, Turns: 2, Block: 64}
	if p.Len() != 156 {
		t.Fatalf("%d faults, want one in each of 156 blocks", p.Len())
	}
	kinds, turns, found := map[FaultKind]int{}, map[int64]int{}, int64(0)
	for c := range p.Contexts {
		for turn := range p.Turns {
			f, ok := p.Of(c, turn)
			if !ok {
				continue
			}
			if found++; f.Context != c || f.Turn != turn || f != p.At(c/p.Block) {
				t.Errorf("context %d, turn %d: %+v", c, turn, f)
			}
			kinds[f.Kind]++
			turns[turn]++
		}
	}
	if found != p.Len() {
		t.Errorf("%d faults were found, want %d", found, p.Len())
	}
	for _, k := range FaultKinds() {
		if kinds[k] < 17 || kinds[k] > 18 {
			t.Errorf("%s comes %d times", k, kinds[k])
		}
	}
	if turns[0] < 40 || turns[1] < 40 {
		t.Errorf("by turn: %v", turns)
	}
	if f := p.At(3); f != (FaultPlan{Seed: "7", Contexts: 10_000, Turns: 2, Block: 64}).At(3) {
		t.Error("the plan isn't a function of its fields")
	}
	other := p
	other.Seed = "8"
	same := 0
	for b := range p.Len() {
		if p.At(b) == other.At(b) {
			same++
		}
	}
	if same > 20 {
		t.Errorf("another seed leaves %d of %d faults", same, p.Len())
	}
	for _, c := range []int64{-1, 9_984, 10_000} { // before, in the block that isn't whole, behind
		if _, ok := p.Of(c, 0); ok {
			t.Errorf("context %d meets a fault", c)
		}
	}
}

// The page on the run folder has these values, for whoever writes the plan in another language.
func TestFaultPlanVector(t *testing.T) {
	p := FaultPlan{Seed: "1", Contexts: 10_000, Turns: 2, Block: 64}
	for block, want := range []Fault{{44, 0, ResetBeforeHeaders}, {75, 0, HTTP503}} {
		if got := p.At(int64(block)); got != want {
			t.Errorf("block %d: %+v, want %+v", block, got, want)
		}
	}
}

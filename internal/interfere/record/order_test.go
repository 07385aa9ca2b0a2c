package record

import (
	"slices"
	"testing"
)

// The first numbers of the published generator from seed 1234567.
func TestSplitmix(t *testing.T) {
	s := splitmix(1234567)
	for i, want := range []uint64{6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431, 16408922859458223821} {
		if got := s.next(); got != want {
			t.Errorf("number %d is %d, want %d", i, got, want)
		}
	}
}

// Every repeat goes through all cells once, each in an order of its own, and another seed makes another.
func TestOrder(t *testing.T) {
	p := examplePlan()
	p.Sampling.Repeats = 3
	n := len(p.Cells)
	order := Order(p)
	if len(order) != 3*n {
		t.Fatalf("%d blocks of %d cells", len(order), n)
	}
	var parts [][]int
	for r := range 3 {
		var cells []int
		for _, b := range order[r*n : (r+1)*n] {
			if b.Repeat != int64(r) {
				t.Errorf("repeat %d stands among those of %d", b.Repeat, r)
			}
			cells = append(cells, b.Cell)
		}
		parts = append(parts, slices.Clone(cells))
		slices.Sort(cells)
		for i, c := range cells {
			if c != i {
				t.Fatalf("repeat %d: cell %d at %d", r, c, i)
			}
		}
	}
	if slices.Equal(parts[0], parts[1]) || slices.Equal(parts[1], parts[2]) {
		t.Error("two repeats have one order")
	}
	p.Seed++
	if slices.Equal(order, Order(p)) {
		t.Error("two seeds make one order")
	}
}

package record

import "math/bits"

// Block is one block that a plan asks for.
type Block struct {
	Cell   int // index in Plan.Cells
	Repeat int64
}

// Order is the order in which a plan's blocks are measured: every repeat goes through all cells before the next, each in an order of
// its own, so that what drifts during a run meets all cells alike. It is made of the seed alone: splitmix64 (Steele, Lea, Flood 2014)
// from the seed on, and for each repeat one shuffle of Fisher and Yates from the last place down, whose places are the high words of
// 128-bit products (Lemire 2019, without the rejection).
func Order(p *Plan) []Block {
	state := splitmix(p.Seed)
	order := make([]Block, 0, int(p.Sampling.Repeats)*len(p.Cells))
	for r := range p.Sampling.Repeats {
		cells := make([]int, len(p.Cells))
		for i := range cells {
			cells[i] = i
		}
		for i := len(cells) - 1; i > 0; i-- {
			place, _ := bits.Mul64(state.next(), uint64(i+1))
			cells[i], cells[place] = cells[place], cells[i]
		}
		for _, c := range cells {
			order = append(order, Block{c, r})
		}
	}
	return order
}

type splitmix uint64

func (s *splitmix) next() uint64 {
	*s += 0x9e3779b97f4a7c15
	z := uint64(*s)
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}

// MakeCells combines a plan's workloads and mechanisms: every victim alone on the whole GPU twice and in each partition, share or process of its own, every
// aggressor alone, and each victim beside each aggressor by each mechanism that the host has.
func MakeCells(p *Plan) []Cell {
	var cells []Cell
	add := func(victim, aggressor, mechanism string, twin bool) {
		cells = append(cells, Cell{CellID(victim, aggressor, mechanism, twin), victim, aggressor, mechanism, twin})
	}
	for _, a := range p.Aggressors {
		add("", a.ID, Whole, false)
	}
	for _, v := range p.Victims {
		add(v.ID, "", Whole, false)
		add(v.ID, "", Whole, true)
		for _, m := range p.Mechanisms {
			if !m.Planned() || m.Kind == Whole {
				continue
			}
			if m.Alone() {
				add(v.ID, "", m.ID, false)
			}
			for _, a := range p.Aggressors {
				add(v.ID, a.ID, m.ID, false)
			}
		}
	}
	return cells
}

package record

import "fmt"

// claims says what a ledger establishes, bounded to what was observed, and what it doesn't.
func (l *Ledger) claims() {
	on := fmt.Sprintf("on %s, driver %s", l.GPUName, l.Driver)
	slower, still, capped, void, gaps := 0, 0, 0, 0, 0
	for i := range l.Cells {
		r := &l.Cells[i]
		if r.PowerCapped {
			capped++
		}
		if r.State == Void || r.State == Failed {
			void++
		}
		if r.Cell.Victim == "" || r.Aggressor == "" || r.Own == nil {
			continue
		}
		for _, s := range r.Own.Slowdowns {
			if s.Percentile != "p99" {
				continue
			}
			switch {
			case s.Claim == nil:
				gaps++
			case *s.Claim == "slower":
				slower++
			case *s.Claim == "within_noise":
				still++
			}
		}
	}
	say := func(format string, args ...any) { l.Establishes = append(l.Establishes, fmt.Sprintf(format, args...)) }
	if l.Blocks > 0 {
		say("%d launches of victims in %d of %d blocks %s, timed by the host's clock and by device events", l.Launches, l.Blocks, l.PlannedBlocks, on)
	}
	if slower+still > 0 {
		say("p99 beside a neighbour against alone in the same allocation: slower in %d cells, within noise in %d", slower, still)
	}
	not := func(format string, args ...any) { l.DoesNot = append(l.DoesNot, fmt.Sprintf(format, args...)) }
	if gaps > 0 {
		not("p99 against alone in %d cells: too few launches", gaps)
	}
	if void > 0 {
		not("anything in %d cells that are void or failed", void)
	}
	if capped > 0 {
		not("in %d cells, how much of a slowdown is the shared power limit's: clocks were held down by it", capped)
	}
	if l.State != "complete" {
		not("the whole matrix: %d of %d blocks were measured", l.Blocks, l.PlannedBlocks)
	}
	not("anything about another GPU, driver, clock setting or workload: victims and aggressors are kernels of known bytes and operations, not models")
	not("bounds where launches depend on each other: order statistics assume that they don't; repeats in random order show drift, not the rest")
	not("that differences below the noise floor, or with overlapping bounds, are differences")
}

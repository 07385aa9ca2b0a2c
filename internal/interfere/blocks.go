package interfere

import (
	"fmt"
	"time"

	"cotenant/internal/interfere/record"
)

// blocks measures what the plan asks for and isn't there, until nothing is left, the time limit passes or ctx ends.
func (g *segment) blocks() error {
	p := g.r.plan
	order := record.Order(p)
	done := int64(len(g.r.folder.Rows))
	longest := time.Duration(2*max(p.Sampling.MaxMS, p.Sampling.AloneMS)) * time.Millisecond
	failed := make(map[string]string)
	for _, m := range g.record.Made {
		if m.Failure != "" {
			failed[m.Mechanism] = m.Failure
		}
	}
	for _, b := range order[done:] {
		if g.ctx.Err() != nil || time.Now().Add(longest).After(g.end) {
			return nil
		}
		cell := p.Cells[b.Cell]
		if g.r.o.Progress != nil {
			g.r.o.Progress(done, int64(len(order)), cell.ID)
		}
		row := record.Row{Segment: g.record.Segment, Block: done, Cell: cell.ID, Repeat: b.Repeat, HostNS: record.Series{}, EventNS: record.Series{}}
		var err error
		if why := failed[cell.Mechanism]; why != "" {
			row.BeganUS = time.Since(g.start).Microseconds()
			row.EndedUS, row.Failure = row.BeganUS, why
			row.Clocks = record.Clocks{SMMHz: []int64{}, MemoryMHz: []int64{}, Throttle: []string{}}
		} else if err = g.block(cell, &row); g.ctx.Err() != nil {
			return nil // what was cut off is measured again
		}
		if err != nil {
			return fmt.Errorf("cell %s: %w", cell.ID, err)
		}
		if err := appendLine(g.r.rows, row); err != nil {
			return fmt.Errorf("writing a row: %w", err)
		}
		done++
		g.wait(settle)
	}
	if g.r.o.Progress != nil {
		g.r.o.Progress(done, int64(len(order)), "")
	}
	return nil
}

// block measures one.
func (g *segment) block(cell record.Cell, row *record.Row) (err error) {
	row.BeganUS = time.Since(g.start).Microseconds()
	kind := record.Whole
	for _, m := range g.r.plan.Mechanisms {
		if m.ID == cell.Mechanism {
			kind = m.Kind
		}
	}
	other := g.aggressors[cell.Mechanism]
	feeding := cell.Aggressor != "" && kind != record.Sequential
	if feeding {
		if _, err := other.ask(order{Do: doAggress, Workload: cell.Aggressor, Mechanism: cell.Mechanism}, orderLimit); err != nil {
			return err
		}
		defer func() {
			if _, serr := other.ask(order{Do: doStop}, orderLimit); err == nil {
				err = serr
			}
			row.EndedUS = time.Since(g.start).Microseconds()
		}()
	}
	g.watch.begin()
	var before reply
	if feeding {
		if before, err = other.ask(order{Do: doMark}, orderLimit); err != nil {
			return err
		}
	}
	began := time.Now()
	if cell.Victim == "" {
		g.wait(time.Duration(g.r.plan.Sampling.AloneMS) * time.Millisecond)
	} else {
		o := order{Do: doVictim, Workload: cell.Victim, Mechanism: cell.Mechanism}
		if kind == record.Sequential {
			o.Ahead = cell.Aggressor
		}
		r, err := g.victims[cell.Mechanism].ask(o, orderLimit)
		if err != nil {
			return err
		}
		row.HostNS, row.EventNS, row.Dropped = r.Host, r.Event, g.r.plan.Sampling.Dropped
		if kind == record.Sequential && cell.Aggressor != "" {
			row.Units, row.UnitsUS = r.Units, time.Since(began).Microseconds()
		}
	}
	if feeding {
		after, err := other.ask(order{Do: doMark}, orderLimit)
		if err != nil {
			return err
		}
		row.Units, row.UnitsUS = after.Units-before.Units, after.AtUS-before.AtUS
	}
	row.Clocks = g.watch.end()
	row.EndedUS = time.Since(g.start).Microseconds()
	return nil
}

// settle is how long nothing runs between blocks, so that the power that one took isn't held against the next.
const settle = 20 * time.Millisecond

func (g *segment) wait(d time.Duration) {
	select {
	case <-time.After(d):
	case <-g.ctx.Done():
	}
}

package soak

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"cotenant/internal/ledger"
	"cotenant/internal/loadgen"
)

// pacer hands out contexts as a load plan says: which comes next for a worker, and when. Contexts of an open loop are claimed in their
// order by workers that are free, which then wait for their time: one that is claimed after its time found no worker free.
type pacer struct {
	cfg      *ledger.Config
	plan     *ledger.LoadPlan
	schedule []int64 // of a trace, µs
	records  *records
	clk      *clock
	event    func(ledger.Event) error

	mu      sync.Mutex
	moved   sync.Cond // a stage began or ended
	stage   int64
	begun   bool // the stage's event is written
	level   int64
	out     int64   // contexts with workers
	cursor  []int64 // next context to look at, by lane
	pattern []int   // of lanes; empty: one lane

	began         int64 // µs: when the stage did
	origin, picos int64 // µs: when the schedule began in this segment; ps from there to the last context that was passed
	passed        int64 // contexts whose gap is in picos

	search *ledger.Search // nil: levels are planned
}

func newPacer(cfg *ledger.Config, schedule []int64, r *records, clk *clock, event func(ledger.Event) error) *pacer {
	p := &pacer{cfg: cfg, plan: cfg.Load, schedule: schedule, records: r, clk: clk, event: event, cursor: []int64{0}, passed: -1}
	p.moved.L = &p.mu
	if len(p.plan.Tenants) > 0 && !p.plan.Open() {
		p.pattern, p.cursor = p.plan.Pattern(), make([]int64, len(p.plan.Tenants))
	}
	if p.plan.Search != nil {
		p.search = ledger.NewSearch(p.plan)
	}
	return p
}

// perStage is how many contexts a stage has.
func (p *pacer) perStage() int64 { return p.cfg.Contexts / p.plan.Stages() }

// take gives a worker the next context that is for it, when it is due, and says when that was, or, in a closed loop, when its stage
// began. It returns false when nothing is left for the worker, or ctx has ended.
func (p *pacer) take(ctx context.Context, worker int64) (n int64, rec record, due int64, ok bool, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for ctx.Err() == nil {
		if p.stage == p.plan.Stages() {
			return 0, record{}, 0, false, nil
		}
		if !p.any() {
			if p.search != nil && p.out > 0 {
				p.moved.Wait()
				continue
			}
			p.endStage()
			continue
		}
		if !p.begun {
			if err := p.begin(); err != nil {
				return 0, record{}, 0, false, err
			}
		}
		if !p.plan.Open() && worker >= p.level {
			p.moved.Wait()
			continue
		}
		lane := p.lane(worker)
		n, found := p.next(lane)
		if !found {
			p.moved.Wait() // for other lanes to end the stage
			continue
		}
		p.cursor[lane] = n + 1
		rec := p.records.claim(n)
		p.out++
		if !p.any() {
			p.moved.Broadcast()
		}
		if !p.plan.Open() {
			return n, rec, p.began, true, nil
		}
		due := p.dueAt(n)
		p.mu.Unlock()
		ok := p.wait(ctx, due)
		p.mu.Lock()
		if !ok {
			p.out--
			p.records.release(n, rec)
			return 0, record{}, 0, false, nil
		}
		return n, rec, due, true, nil
	}
	return 0, record{}, 0, false, nil
}

// lane is a worker's.
func (p *pacer) lane(worker int64) int {
	if len(p.pattern) == 0 {
		return 0
	}
	return p.pattern[worker%int64(len(p.pattern))]
}

// next finds a lane's next context that waits in this stage.
func (p *pacer) next(lane int) (int64, bool) {
	end := (p.stage + 1) * p.perStage()
	for c := p.cursor[lane]; c < end; c++ {
		if len(p.pattern) > 0 && ledger.TenantOf(p.pattern, c) != lane || !p.records.waits(c) {
			continue
		}
		p.cursor[lane] = c
		return c, true
	}
	p.cursor[lane] = end
	return 0, false
}

// any reports whether a context of the stage waits to be handed out.
func (p *pacer) any() bool {
	for lane := range p.cursor {
		if _, ok := p.next(lane); ok {
			return true
		}
	}
	return false
}

// begin begins a stage in this segment.
func (p *pacer) begin() error {
	first := int64(-1)
	for lane := range p.cursor {
		if c, ok := p.next(lane); ok && (first < 0 || c < first) {
			first = c
		}
	}
	value := ledger.Opt{}
	switch {
	case p.search != nil:
		p.level = p.search.Next()
		value = ledger.Some(p.level)
	case len(p.plan.Levels) > 0:
		p.level = p.plan.Levels[p.stage]
		value = ledger.Some(p.level)
	}
	now := max(p.clk.now(), p.clk.lastStamp())
	// The schedule goes through a plan's stages without a pause; the steps of a search each begin their own.
	if p.passed < 0 || p.search != nil {
		p.origin, p.picos, p.passed = now, 0, first-1
	}
	p.begun, p.began = true, now
	p.moved.Broadcast()
	return p.event(ledger.Event{TUS: now, Kind: ledger.EventStage, Context: ledger.Some(first), Value: value})
}

func (p *pacer) endStage() {
	if p.begun && p.search != nil {
		p.search.End(p.level)
	}
	p.stage++
	p.begun = false
	p.moved.Broadcast()
}

// dueAt is when the schedule wants a context sent; contexts are asked for in their order.
func (p *pacer) dueAt(n int64) int64 {
	for p.passed < n {
		p.passed++
		level := p.level
		if len(p.plan.Levels) > 0 {
			level = p.plan.Levels[p.plan.Stage(p.passed, p.cfg.Contexts)]
		}
		p.picos += p.plan.Gap(p.passed, level, p.schedule)
	}
	return p.origin + p.picos/loadgen.PicosPerMicro
}

// wait sleeps until a moment of the segment's clock; false where ctx ended before.
func (p *pacer) wait(ctx context.Context, due int64) bool {
	// The clock is looked at again: a timer may be early by what it rounds.
	for {
		left := due - p.clk.now()
		if left <= 0 {
			return ctx.Err() == nil
		}
		timer := time.NewTimer(time.Duration(left) * time.Microsecond)
		select {
		case <-ctx.Done():
			timer.Stop()
			return false
		case <-timer.C:
		}
	}
}

// over takes note of what became of a context that was handed out.
func (p *pacer) over(row *ledger.Row, rec record) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.out--
	if p.search != nil && rec.state == retired {
		p.note(row)
	}
	p.moved.Broadcast()
}

func (p *pacer) note(row *ledger.Row) {
	if row.Outcome == ledger.OK {
		p.search.Result(row)
	} else {
		p.search.Failed()
	}
}

// wake makes workers that wait look at their context again.
func (p *pacer) wake() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.moved.Broadcast()
}

// replay brings a search to where earlier segments left it: rows are those that retired a context, in their order.
func (p *pacer) replay(f *ledger.Folder) error {
	if p.search == nil {
		return nil
	}
	levels := make([]ledger.Opt, p.plan.Stages())
	for e, err := range f.Events() {
		if err != nil {
			return err
		}
		if c, ok := e.Context.Get(); ok && e.Kind == ledger.EventStage && c < p.cfg.Contexts {
			levels[p.plan.Stage(c, p.cfg.Contexts)] = e.Value
		}
	}
	last := map[int64]ledger.Row{} // by context: an earlier segment has less of them than memory has
	for row, err := range f.Rows() {
		if err != nil {
			return err
		}
		if row.Context < p.cfg.Contexts {
			last[row.Context] = row
		}
	}
	for ; p.stage < p.plan.Stages(); p.stage++ {
		first := p.stage * p.perStage()
		for c := first; c < first+p.perStage(); c++ {
			if row, ok := last[c]; ok && p.records.isRetired(c) {
				p.note(&row)
			}
		}
		if p.any() {
			return nil // it goes on; what it has so far is noted
		}
		level, ok := levels[p.stage].Get()
		if !ok {
			return fmt.Errorf("stage %d has rows and no event", p.stage)
		}
		p.search.End(level)
	}
	return nil
}

// claim gives a context to a worker.
func (r *records) claim(n int64) record {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.list[n].state = taken
	r.given++
	r.out++
	return r.list[n]
}

// release takes back a context that was claimed and not sent.
func (r *records) release(n int64, rec record) {
	rec.state = waiting
	r.put(n, rec)
}

// waits reports whether a context is to be sent, or sent again.
func (r *records) waits(n int64) bool { return r.stateOf(n) == waiting }

// isRetired reports whether nothing is left to do for a context.
func (r *records) isRetired(n int64) bool { return r.stateOf(n) == retired }

func (r *records) stateOf(n int64) uint8 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.list[n].state
}

// samePlan reports whether two plans are equal: a run goes on as it was registered.
func samePlan(a, b *ledger.LoadPlan) bool {
	if a == nil || b == nil {
		return a == b
	}
	x, errX := ledger.Marshal(a)
	y, errY := ledger.Marshal(b)
	return errX == nil && errY == nil && slices.Equal(x, y)
}

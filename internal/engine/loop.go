package engine

import (
	"time"

	"cotenant/internal/backend"
	"cotenant/internal/scheduler"
)

// memoryInterval is how often a busy loop reads the backend's memory.
const memoryInterval = 250 * time.Millisecond

// result is what sampling a step's rows gave for one sequence.
type result struct {
	token scored
	err   error // the row isn't finite
}

// loop runs steps until Close.
func (e *Engine) loop() {
	for stop := false; !stop; {
		var idle bool
		err := e.guard(func() error {
			var plan *scheduler.Plan
			if plan, stop = e.plan(); plan != nil {
				return e.step(plan)
			}
			if e.flight != nil && !stop {
				return e.land()
			}
			idle = !stop
			return nil
		})
		if err != nil {
			e.flight = nil
			e.latch(err)
		} else if idle {
			e.readMemory()
			<-e.wake
		}
	}
	e.mu.Lock()
	e.endAll()
	e.mu.Unlock()
	e.closeErr = e.guard(e.rt.close)
}

// plan applies cancellations and plans a step; nil: there is nothing to do.
func (e *Engine) plan() (p *scheduler.Plan, stop bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closing {
		return nil, true
	}
	if e.failed != nil {
		return nil, false
	}
	for _, c := range e.cancels {
		e.end(c)
	}
	clear(e.cancels)
	e.cancels = e.cancels[:0]
	if p = e.sched.Schedule(e.now()); p == nil {
		return nil, false
	}
	for _, q := range p.Started {
		e.admitted(q)
	}
	return p, false
}

// readMemory takes a snapshot of the backend's memory, which may only be asked for on this thread.
func (e *Engine) readMemory() {
	e.checked = time.Now()
	m := append(e.rt.Device.Memory(), backend.Memory{Kind: "logits", Bytes: 4 * int64(cap(e.logits)+cap(e.bench.weights))})
	e.mu.Lock()
	e.memory = m
	e.mu.Unlock()
}

// step computes a plan. Where the device chooses the tokens, they are handed out while the next step runs; else at once. An error
// is the device's.
func (e *Engine) step(p *scheduler.Plan) error {
	if time.Since(e.checked) > memoryInterval {
		e.readMemory()
	}
	if e.draw(p) {
		e.fill(p)
		if err := e.chooser.Start(e.kv, &e.batch, e.vocab, e.draws); err != nil {
			return err
		}
		if e.flight != nil {
			if err := e.land(); err != nil {
				return err
			}
		}
		e.flight = p
		if !e.advance(p) {
			return e.land()
		}
		return nil
	}
	if before := e.flight; before != nil {
		if err := e.land(); err != nil {
			return err
		}
		for i, t := range p.Tokens {
			if t < 0 {
				p.Tokens[i] = max(e.ids[^t], 0) // of a row that has no token the request has ended
			}
		}
	}
	e.fill(p)
	width := e.rt.LogitsWidth
	if n := len(p.Outputs) * width; cap(e.logits) < n {
		e.logits = make([]float32, n)
	}
	logits := e.logits[:len(p.Outputs)*width]
	if err := e.rt.Model.Forward(e.kv, &e.batch, logits); err != nil {
		return err
	}
	e.results = e.results[:0]
	for i := range p.Work {
		e.results = append(e.results, e.sample(&p.Work[i], logits))
	}
	e.commit(p)
	return nil
}

// fill makes the batch of a plan.
func (e *Engine) fill(p *scheduler.Plan) {
	b := &e.batch
	b.Tokens, b.Positions, b.Slots, b.Outputs = p.Tokens, p.Positions, p.Slots, p.Outputs
	b.Seqs = b.Seqs[:0]
	for i := range p.Work {
		w := &p.Work[i]
		b.Seqs = append(b.Seqs, backend.Seq{Row: w.Row, Rows: w.Rows, Past: w.Past, Pages: w.Pages})
	}
}

// draw says how the device is to choose the plan's tokens; false where it can't.
func (e *Engine) draw(p *scheduler.Plan) bool {
	if e.chooser == nil {
		return false
	}
	e.draws = e.draws[:0]
	for i := range p.Work {
		w := &p.Work[i]
		if w.Prompts > 0 {
			return false
		}
		if !w.Sample {
			continue
		}
		c := w.Seq.Data.(*choice)
		// Tokens may be one ahead of the choice's length: the one that is on its way.
		d, ok := c.sampler.remote(len(w.Seq.Tokens) - len(c.r.prompt))
		if !ok {
			return false
		}
		e.draws = append(e.draws, d)
	}
	return true
}

// advance lets the next step be planned while p runs; false where what it chooses must be known first.
func (e *Engine) advance(p *scheduler.Plan) bool {
	for i := range p.Work {
		if w := &p.Work[i]; w.Sample && w.Seq.Data.(*choice).sampler.index != nil {
			return false
		}
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.sched.Advance()
	for i := range p.Work {
		w := &p.Work[i]
		if c := w.Seq.Data.(*choice); w.Sample && !w.Seq.Ended() && c.length+1 < c.r.most {
			e.sched.Append(w.Seq, ^int32(w.Output))
		}
	}
	return true
}

// land waits for the step that runs and hands its tokens out.
func (e *Engine) land() error {
	p := e.flight
	e.flight = nil
	e.ids = append(e.ids[:0], make([]int32, len(p.Outputs))...)
	if len(e.ids) > 0 {
		if err := e.chooser.Wait(e.ids); err != nil {
			return err
		}
	}
	e.results = e.results[:0]
	for i := range p.Work {
		w := &p.Work[i]
		r := result{}
		if w.Sample {
			r.token.id = e.ids[w.Output]
			if r.token.id < 0 {
				r.err = errNonFinite
			} else {
				w.Seq.Data.(*choice).sampler.chose(r.token.id)
			}
		}
		e.results = append(e.results, r)
	}
	e.commit(p)
	return nil
}

// sample turns a sequence's rows of logits into its next token, and the prompt's into log-probabilities.
func (e *Engine) sample(w *scheduler.Work, logits []float32) result {
	c, width := w.Seq.Data.(*choice), e.rt.LogitsWidth
	row := func(i int) []float32 { return logits[i*width : i*width+e.vocab] }
	for k := range w.Prompts {
		s, err := scorePrompt(row(w.Output+k), w.Seq.Tokens[w.PromptFrom+k], c.r.s.TopLogprobs, &e.bench)
		if err != nil {
			return result{err: err}
		}
		c.scores = append(c.scores, s)
	}
	if !w.Sample {
		return result{}
	}
	s, err := c.sampler.next(row(w.Output+w.Prompts), c.length, &e.bench)
	return result{token: s, err: err}
}

// commit books a step that was computed. Where it ran ahead, sequences may have a place for its token already.
func (e *Engine) commit(p *scheduler.Plan) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for i := range p.Work {
		if e.results[i].err == nil || p.Work[i].Seq.Ended() {
			continue
		}
		// Before the pages of this step become findable.
		c := p.Work[i].Seq.Data.(*choice)
		e.counts.nonFinite++
		e.sched.Quarantine(c.seq)
		c.r.fail(e.results[i].err)
		e.end(c.r.choices...)
	}
	work := p.Work // Commit empties the plan's slice, not the memory under it
	e.counts.stepTokens.observe(float64(len(p.Tokens)))
	for i := range work {
		if w := &work[i]; w.Sample && w.Past+w.Rows < len(w.Seq.Tokens) {
			w.Seq.Tokens[w.Past+w.Rows] = e.results[i].token.id // there was ^i
		}
	}
	e.sched.Commit()
	for i := range work {
		w := &work[i]
		c := w.Seq.Data.(*choice)
		if w.Seq.Ended() || !w.Last {
			continue
		}
		ev := event{choice: c, cached: w.Seq.Cached()}
		if c.scores != nil {
			ev.prompt, c.scores = c.scores, nil
		}
		if !w.Sample {
			ev.finish = finishLength
		} else {
			ev.token, ev.hasToken = e.results[i].token, true
			ev.finish = c.take(ev.token.id)
			if ev.finish == running && w.Past+w.Rows == len(w.Seq.Tokens) {
				e.sched.Append(w.Seq, ev.token.id)
			}
		}
		c.r.send(ev)
		if ev.finish != running {
			e.end(c)
		}
	}
}

// end takes choices out, whatever state they are in; it is idempotent. It needs e.mu.
func (e *Engine) end(choices ...*choice) {
	for _, c := range choices {
		e.sched.Finish(c.seq)
		if c.ended {
			continue
		}
		c.ended = true
		if c.r.left--; c.r.left > 0 {
			continue
		}
		delete(e.live, c.r)
		e.signalEmpty()
	}
}

// endAll takes every request out. It needs e.mu.
func (e *Engine) endAll() {
	err := e.guard(func() error {
		for r := range e.live {
			e.end(r.choices...)
		}
		return nil
	})
	if err != nil { // the books are broken, which is why the engine is
		clear(e.live)
	}
	e.cancels = nil
	e.signalEmpty()
}

package engine

import (
	"slices"

	"cotenant/internal/backend"
	"cotenant/internal/scheduler"
	"cotenant/internal/server"
)

// counters is what Stats needs and the scheduler doesn't count. Engine.mu guards it.
type counters struct {
	queueWait, stepTokens histogram
	promptTokens          uint64
	queryTokens           uint64
	hitTokens             uint64
	nonFinite             uint64
}

func newCounters() counters {
	return counters{
		queueWait:  newHistogram(.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 120, 300),
		stepTokens: newHistogram(1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192),
	}
}

// histogram counts observations by their upper bound, not yet summed up.
type histogram struct {
	bounds []float64
	counts []uint64 // one more than bounds
	sum    float64
}

func newHistogram(bounds ...float64) histogram {
	return histogram{bounds: bounds, counts: make([]uint64, len(bounds)+1)}
}

func (h *histogram) observe(v float64) {
	i, _ := slices.BinarySearch(h.bounds, v)
	h.counts[i]++
	h.sum += v
}

// snapshot returns the cumulative form.
func (h *histogram) snapshot() server.Histogram {
	s := server.Histogram{Bounds: h.bounds, Counts: make([]uint64, len(h.bounds)), Sum: h.sum}
	for i, n := range h.counts {
		s.Count += n
		if i < len(s.Counts) {
			s.Counts[i] = s.Count
		}
	}
	return s
}

// admitted counts a sequence's first start; the first of a request's choices counts for the request. It needs e.mu.
func (e *Engine) admitted(q *scheduler.Sequence) {
	r := q.Data.(*choice).r
	if r.started {
		return
	}
	r.started = true
	e.counts.promptTokens += uint64(len(r.prompt))
	if !q.PromptOutputs {
		e.counts.queryTokens += uint64(len(r.prompt))
		e.counts.hitTokens += uint64(q.Cached())
	}
	e.counts.queueWait.observe(q.Wait().Seconds())
}

// Stats implements server.Generator. A request counts once, as its first choice, however many choices it has and however
// often they are preempted: PrefixHitTokens is what usage says was cached, and PrefixQueryTokens is PromptTokens but for
// requests that want their prompt's log-probabilities, which reuse nothing. GeneratedTokens
// counts the tokens of answers, as their usage does: not what was computed behind a stop string, or after a reader went.
// QueueDepth counts requests of which nothing was computed yet; Waiting also those that were preempted and hold no page.
func (e *Engine) Stats() server.Stats {
	e.mu.Lock()
	defer e.mu.Unlock()
	now := e.now()
	pages, sched := e.cache.Stats(), e.sched.Stats(now)
	st := server.Stats{
		PagesUsed: pages.Used, PagesFree: pages.Free, PagesCached: pages.Cached, PageTokens: e.cache.PageSize(),
		Slots:     pages.Seqs,
		QueueWait: e.counts.queueWait.snapshot(), StepTokens: e.counts.stepTokens.snapshot(),
		PrefixQueryTokens: e.counts.queryTokens, PrefixHitTokens: e.counts.hitTokens,
		PromptTokens: e.counts.promptTokens, GeneratedTokens: e.generated.Load(),
		Preemptions: sched.Preemptions, NonFiniteRows: e.counts.nonFinite, Steps: sched.Steps,
	}
	st.StepWeightBytes = e.rt.StepBytes
	for r := range e.live {
		started := false
		for _, c := range r.choices {
			started = started || c.seq.Started()
		}
		if started {
			st.Running++
		} else {
			st.Waiting++
		}
		if !r.started {
			st.QueueDepth++
			st.QueueOldestAge = max(st.QueueOldestAge, now-r.added)
		}
	}
	st.Backend, st.Device = e.host.Name, e.host.Device
	memory := map[string]int64{}
	for _, m := range e.memory {
		memory[m.Kind] += m.Bytes
	}
	if st.Memory = memory; e.host.Name != "cpu" {
		st.DeviceMemory, st.Memory = memory, map[string]int64{"logits": memory["logits"]}
		delete(memory, "logits")
		if _, ok := memory[backend.MemoryFree]; ok {
			st.GPUMemory = map[string]int64{"free": memory[backend.MemoryFree], "other": memory[backend.MemoryOther]}
			delete(memory, backend.MemoryFree)
			delete(memory, backend.MemoryOther)
			for _, n := range memory {
				st.GPUMemory["own"] += n
			}
		}
	}
	return st
}

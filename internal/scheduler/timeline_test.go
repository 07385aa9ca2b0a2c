package scheduler

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// world runs a scheduler in virtual time against a device that keeps, per slot, a hash of the whole history of the token
// written there. The next token is a function of that history read back through the block table, so a wrong page, slot or
// position changes an answer; and answers are compared with what the prompt alone would give.
type world struct {
	t     testing.TB
	s     *Scheduler
	cfg   Config
	slots []uint64
	now   time.Duration
	live  []*job
	// sums over the timeline
	rows, finished, cancelled, refused, deferred, hits int
}

type job struct {
	q      *Sequence
	prompt []int32
	want   []int32 // the answer of a lone run
	got    []int32
}

func mix(h uint64, token int32) uint64 {
	h ^= uint64(uint32(token)) + 0x9e3779b97f4a7c15
	h *= 0xff51afd7ed558ccd
	return h ^ h>>29
}

func start(salt string) uint64 {
	h := uint64(len(salt)) + 1
	for _, c := range salt {
		h = mix(h, c)
	}
	return h
}

const ends = 0 // the token that ends an answer

// next is the "model": a few different tokens, now and then the end.
func next(h uint64) int32 {
	if v := int32(h >> 7 % 60); v != 0 {
		return 1 + v%11
	}
	return ends
}

func lone(salt string, prompt []int32, most int) []int32 {
	h := start(salt)
	for _, t := range prompt {
		h = mix(h, t)
	}
	var out []int32
	for len(out) < most {
		t := next(h)
		out = append(out, t)
		if t == ends {
			break
		}
		h = mix(h, t)
	}
	return out
}

func newWorld(t testing.TB, cfg Config, pages, size int) *world {
	return &world{t: t, s: newScheduler(t, cfg, pages, size), cfg: cfg, slots: make([]uint64, pages*size)}
}

// arrive adds a request of one to four choices.
func (w *world) arrive(r func(n int) int, bases [][]int32) {
	base := bases[r(len(bases))]
	p := slices.Clone(base[:r(len(base)+1)])
	for n := r(12); n > 0 || len(p) == 0; n-- {
		p = append(p, int32(1+r(3)))
	}
	salt := []string{"", "", "", "x"}[r(4)]
	answer := r(30)
	var jobs []*job
	var seqs []*Sequence
	for range []int{1, 1, 1, 1, 2, 4}[r(6)] {
		q := &Sequence{Tokens: slices.Clone(p), MaxLen: len(p) + answer, Salt: salt, NoSample: answer == 0}
		q.PromptOutputs = r(10) == 0
		jobs = append(jobs, &job{q: q, prompt: p, want: lone(salt, p, answer)})
		q.Data = jobs[len(jobs)-1]
		seqs = append(seqs, q)
	}
	if err := w.s.Add(w.now, seqs...); err != nil {
		w.refused++
		return
	}
	w.live = append(w.live, jobs...)
}

func (w *world) cancel(i int, how func(*Sequence)) {
	how(w.live[i].q)
	w.live = slices.Delete(w.live, i, i+1)
	w.cancelled++
}

// step schedules, checks the plan, runs it and hands out tokens. cancelIn > 0 ends a sequence in the middle of the step.
func (w *world) step(cancelIn int) {
	w.now += time.Millisecond
	before := map[*Sequence]bool{}
	for _, q := range w.s.active {
		before[q] = q.kv != nil
	}
	p := w.s.Schedule(w.now)
	if p == nil {
		if len(w.live) > 0 {
			w.t.Fatalf("%d sequences are left and nothing is scheduled", len(w.live))
		}
		return
	}
	w.checkPlan(p)
	w.checkOrder(before)
	hs := w.run(p)
	if cancelIn > 0 && len(w.live) > 0 {
		w.cancel(cancelIn%len(w.live), w.s.Quarantine)
	}
	work := slices.Clone(p.Work)
	w.s.Commit()
	for i, wk := range work {
		q := wk.Seq
		j := q.Data.(*job)
		if q.Ended() {
			continue
		}
		if wk.Sample {
			t := next(hs[i])
			j.got = append(j.got, t)
			if t != ends && len(q.Tokens)+1 < q.MaxLen {
				w.s.Append(q, t)
				continue
			}
		} else if !wk.Last || !q.NoSample {
			continue
		}
		if !slices.Equal(j.got, j.want) {
			w.t.Fatalf("answer %v, alone %v", j.got, j.want)
		}
		w.s.Finish(q)
		w.finished++
		w.hits += q.Cached()
		w.live = slices.DeleteFunc(w.live, func(o *job) bool { return o == j })
	}
	w.check()
}

// checkPlan holds a plan against the rules of a step.
func (w *world) checkPlan(p *Plan) {
	t := w.t
	if n := len(p.Tokens); n == 0 || n > w.cfg.MaxTokens || len(p.Outputs) > w.cfg.MaxOutputs || len(p.Work) > w.cfg.MaxSeqs {
		t.Fatalf("%d rows, %d outputs, %d sequences in a step: limits %+v", n, len(p.Outputs), len(p.Work), w.cfg)
	}
	written := map[int32]bool{}
	seen := map[*Sequence]bool{}
	row, out, decoding := 0, 0, true
	for _, wk := range p.Work {
		q := wk.Seq
		if seen[q] || wk.Row != row || wk.Rows < 1 || wk.Past != q.computed || wk.Past+wk.Rows > len(q.Tokens) {
			t.Fatalf("work %+v doesn't follow row %d", wk, row)
		}
		seen[q] = true
		if single := wk.Rows == 1 && wk.Last; single && !decoding && !slices.Contains(p.Started, q) && wk.Past > q.kv.Cached() {
			t.Fatal("a decoding sequence comes after a prompt")
		} else if !single {
			decoding = false
		}
		size := w.s.cache.PageSize()
		for i := range wk.Rows {
			pos := wk.Past + i
			slot := wk.Pages[pos/size]*int32(size) + int32(pos%size)
			if p.Positions[row] != int32(pos) || p.Tokens[row] != q.Tokens[pos] || p.Slots[row] != slot {
				t.Fatalf("row %d: position %d token %d slot %d", row, p.Positions[row], p.Tokens[row], p.Slots[row])
			}
			if written[slot] {
				t.Fatalf("slot %d is written twice in a step", slot)
			}
			written[slot] = true
			row++
		}
		n := wk.Prompts
		if wk.Sample {
			n++
			if p.Outputs[wk.Output+n-1] != int32(row-1) || !wk.Last {
				t.Fatalf("work %+v samples from another row than its last", wk)
			}
		}
		if wk.Output != out || wk.Sample != (wk.Last && !q.NoSample) {
			t.Fatalf("outputs of %+v", wk)
		}
		out += n
	}
	if row != len(p.Tokens) || out != len(p.Outputs) || !slices.IsSorted(p.Outputs) {
		t.Fatalf("%d of %d rows, %d of %d outputs belong to somebody", row, len(p.Tokens), out, len(p.Outputs))
	}
}

// checkOrder: nobody was started past an earlier one, unless that is deferred; nobody lost pages to a later one.
func (w *world) checkOrder(before map[*Sequence]bool) {
	s := w.s
	for i, q := range s.active {
		if i > 0 && s.active[i-1].arrival >= q.arrival {
			w.t.Fatal("the active sequences are not in order of arrival")
		}
		if q.kv != nil {
			continue
		}
		deferred := false
		for _, o := range s.active {
			common := min(commonPrefix(q.Tokens, o.Tokens), len(q.Tokens)-1) / s.cache.PageSize() * s.cache.PageSize()
			deferred = deferred || o.kv != nil && o.Salt == q.Salt && o.computed < common
		}
		if deferred {
			w.deferred++
		}
		for _, later := range s.active[i+1:] {
			if later.kv != nil && before[q] {
				w.t.Fatal("an earlier sequence was preempted for a later one")
			}
			if later.kv != nil && !before[later] && !deferred {
				w.t.Fatal("a sequence was started past an earlier one that wasn't deferred")
			}
		}
	}
	if s.waiting.n > 0 && len(s.active) < w.cfg.MaxSeqs {
		w.t.Fatal("a place is free and somebody waits")
	}
}

// run is the device: it reads each sequence's history and writes its rows. It returns the history after each work's rows.
func (w *world) run(p *Plan) []uint64 {
	var hs []uint64
	size := w.s.cache.PageSize()
	for _, wk := range p.Work {
		h := start(wk.Seq.Salt)
		for pos := range wk.Past {
			h = mix(h, wk.Seq.Tokens[pos])
			if w.slots[int(wk.Pages[pos/size])*size+pos%size] != h {
				w.t.Fatalf("position %d of a sequence of %d holds another history", pos, len(wk.Seq.Tokens))
			}
		}
		for i := range wk.Rows {
			h = mix(h, p.Tokens[wk.Row+i])
			w.slots[p.Slots[wk.Row+i]] = h
		}
		w.rows += wk.Rows
		hs = append(hs, h)
	}
	return hs
}

func (w *world) check() {
	if err := w.s.cache.CheckInvariants(); err != nil {
		w.t.Fatal(err)
	}
	st, started, tokens := w.s.Stats(w.now), 0, 0
	for _, q := range w.s.active {
		if q.state != active {
			w.t.Fatal("an ended sequence is active")
		}
		if q.kv != nil {
			started++
		}
	}
	n := 0
	for q := w.s.waiting.head; q != nil; q = q.next {
		n++
		tokens += q.prompt
	}
	if st.Started != started || st.Waiting != n || st.WaitingTokens != tokens || w.s.cache.Stats().Seqs != started {
		w.t.Fatalf("stats %+v; %d started, %d wait with %d tokens", st, started, n, tokens)
	}
	if len(w.live) != len(w.s.active)+n {
		w.t.Fatalf("%d sequences live, the scheduler has %d", len(w.live), len(w.s.active)+n)
	}
}

// drain runs until everything has ended; the bound is what a scheduler needs that computes one row a step.
func (w *world) drain() {
	bound := 0
	for _, j := range w.live {
		bound += 40 * j.q.MaxLen
	}
	for ; len(w.live) > 0; bound-- {
		if bound == 0 {
			w.t.Fatalf("no end: %d sequences are left", len(w.live))
		}
		w.step(0)
	}
	if st := w.s.cache.Stats(); st.Used != 0 || st.Seqs != 0 || !w.s.Idle() {
		w.t.Fatalf("all have ended, and pages are held: %+v", st)
	}
}

func TestRandomTimelines(t *testing.T) {
	var finished, cancelled, refused, deferred, hits int
	var preempted uint64
	for seed := range uint64(50) {
		r := rand.New(rand.NewPCG(seed, 3))
		size := 1 + r.IntN(5)
		cfg := Config{MaxSeqs: 1 + r.IntN(8), QueueSeqs: 10 + r.IntN(20), QueueTokens: 600}
		cfg.MaxTokens = cfg.MaxSeqs + r.IntN(40)
		cfg.MaxOutputs = cfg.MaxSeqs + r.IntN(4)
		w := newWorld(t, cfg, (72+r.IntN(60))/size+1, size)
		bases := make([][]int32, 3)
		for i := range bases {
			for range 10 + r.IntN(30) {
				bases[i] = append(bases[i], int32(1+r.IntN(5)))
			}
		}
		load := 1 + r.IntN(6)
		for range 400 {
			for r.IntN(8) < load {
				w.arrive(r.IntN, bases)
			}
			if len(w.live) > 0 && r.IntN(12) == 0 {
				w.cancel(r.IntN(len(w.live)), w.s.Finish)
				w.check()
			}
			if r.IntN(40) == 0 {
				w.step(1 + r.IntN(100))
			} else {
				w.step(0)
			}
		}
		w.drain()
		finished, cancelled, refused, deferred = finished+w.finished, cancelled+w.cancelled, refused+w.refused, deferred+w.deferred
		preempted, hits = preempted+w.s.Stats(0).Preemptions, hits+w.hits
	}
	t.Logf("%d finished, %d cancelled, %d refused, %d preemptions, %d tokens reused, %d times deferred", finished, cancelled,
		refused, preempted, hits, deferred)
	if finished < 3000 || cancelled < 500 || refused < 500 || preempted < 300 || hits < 5000 || deferred < 500 {
		t.Error("the timelines are too tame to prove anything")
	}
}

func FuzzTimeline(f *testing.F) {
	r := rand.New(rand.NewPCG(1, 2))
	for n := range 6 {
		b := make([]byte, 60*(n+1))
		for i := range b {
			b[i] = byte(r.Uint32())
		}
		f.Add(b)
	}
	bases := [][]int32{{1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3}, {1, 2, 3, 4, 9, 9}}
	f.Fuzz(func(t *testing.T, ops []byte) {
		read := func(n int) int {
			if len(ops) == 0 {
				return 0
			}
			v := int(ops[0]) % n
			ops = ops[1:]
			return v
		}
		cfg := Config{MaxSeqs: 1 + read(4), QueueSeqs: 5, QueueTokens: 100}
		cfg.MaxTokens, cfg.MaxOutputs = cfg.MaxSeqs+read(10), cfg.MaxSeqs+read(2)
		w := newWorld(t, cfg, 16+read(10), 3)
		for n := 0; len(ops) > 0 && n < 400; n++ {
			switch op := read(16); {
			case op < 6:
				w.arrive(read, bases)
			case op == 6 && len(w.live) > 0:
				w.cancel(read(len(w.live)), w.s.Finish)
			case op == 7:
				w.step(1 + read(8))
			default:
				w.step(0)
			}
		}
		w.drain()
	})
}

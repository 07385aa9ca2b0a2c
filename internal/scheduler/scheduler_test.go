package scheduler

import (
	"errors"
	"slices"
	"testing"
	"time"

	"cotenant/internal/kvcache"
)

func newScheduler(t testing.TB, cfg Config, pages, size int) *Scheduler {
	t.Helper()
	cache, err := kvcache.New(kvcache.Config{Pages: pages, PageSize: size})
	if err != nil {
		t.Fatal(err)
	}
	s, err := New(cfg, cache)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func prompt(base []int32, n int, tail int32) []int32 {
	out := slices.Clone(base)
	for len(out) < n {
		out = append(out, 1000*tail+int32(len(out)))
	}
	return out
}

func seq(tokens []int32, answer int) *Sequence {
	return &Sequence{Tokens: tokens, MaxLen: len(tokens) + answer}
}

func add(t *testing.T, s *Scheduler, seqs ...*Sequence) {
	t.Helper()
	if err := s.Add(0, seqs...); err != nil {
		t.Fatal(err)
	}
}

// step runs one step: every sequence that samples gets token 1, and ends with its MaxLen. It returns rows by sequence.
func step(t *testing.T, s *Scheduler) map[*Sequence]int {
	t.Helper()
	p := s.Schedule(0)
	if p == nil {
		return nil
	}
	rows := map[*Sequence]int{}
	var sampled []*Sequence
	for _, w := range p.Work {
		rows[w.Seq] = w.Rows
		if w.Sample {
			sampled = append(sampled, w.Seq)
		}
	}
	s.Commit()
	for _, q := range sampled {
		if s.Append(q, 1); len(q.Tokens) == q.MaxLen {
			s.Finish(q)
		}
	}
	if err := s.cache.CheckInvariants(); err != nil {
		t.Fatal(err)
	}
	return rows
}

func TestConfigIsChecked(t *testing.T) {
	cache, err := kvcache.New(kvcache.Config{Pages: 1, PageSize: 1})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []Config{{}, {MaxSeqs: 2, MaxTokens: 1, MaxOutputs: 2}, {MaxSeqs: 2, MaxTokens: 2, MaxOutputs: 1},
		{MaxSeqs: 1, MaxTokens: 1, MaxOutputs: 1, QueueSeqs: -1}, {MaxSeqs: 1, MaxTokens: 1, MaxOutputs: 1, QueueTokens: -1}} {
		if _, err := New(c, cache); err == nil {
			t.Errorf("New(%+v) succeeded", c)
		}
	}
}

// TestSharedBaseIsComputedOnce is the main job: four workers start at once with one base of 690 tokens.
func TestSharedBaseIsComputedOnce(t *testing.T) {
	s := newScheduler(t, Config{MaxSeqs: 8, MaxTokens: 256, MaxOutputs: 8}, 512, 16)
	base := prompt(nil, 690, 1)
	var seqs []*Sequence
	for i := range int32(4) {
		seqs = append(seqs, seq(prompt(base, 704, 2+i), 8))
	}
	add(t, s, seqs...)
	total, steps := 0, 0
	for !s.Idle() {
		steps++
		for _, n := range step(t, s) {
			total += n
		}
	}
	if want := 704 + 3*(704-688) + 4*7; total != want {
		t.Errorf("%d rows were computed, want %d", total, want)
	}
	if want := 3 + 1 + 7; steps != want {
		t.Errorf("%d steps, want %d", steps, want)
	}
	for i, q := range seqs {
		if want := 688 * min(i, 1); q.Cached() != want {
			t.Errorf("sequence %d reuses %d tokens, want %d", i, q.Cached(), want)
		}
	}
}

func TestDeferralEndsWithTheOther(t *testing.T) {
	for name, end := range map[string]func(*Scheduler, *Sequence){"finish": (*Scheduler).Finish, "quarantine": (*Scheduler).Quarantine} {
		s := newScheduler(t, Config{MaxSeqs: 4, MaxTokens: 16, MaxOutputs: 4}, 64, 4)
		p := prompt(nil, 40, 1)
		a, b, c := seq(p, 2), seq(slices.Clone(p), 2), seq(prompt(nil, 12, 9), 2)
		add(t, s, a, b, c)
		if rows := step(t, s); rows[a] != 16 || len(rows) != 1 {
			t.Fatalf("%s: first step computes %v", name, rows)
		}
		step(t, s)
		if rows := step(t, s); rows[a] != 8 || rows[c] != 8 || rows[b] != 0 {
			t.Fatalf("%s: third step: a %d, b %d, c %d rows", name, rows[a], rows[b], rows[c])
		}
		if rows := step(t, s); rows[a] != 1 || rows[b] != 4 || rows[c] != 4 {
			t.Fatalf("%s: fourth step: a %d, b %d, c %d rows", name, rows[a], rows[b], rows[c])
		}

		// The one that computes the base goes: the next in line computes it, or what is left of it.
		a, b = seq(prompt(nil, 40, 5), 2), seq(prompt(nil, 40, 5), 2)
		for !s.Idle() {
			step(t, s)
		}
		add(t, s, a, b)
		step(t, s)
		end(s, a)
		want := 16 // tokens are left to compute, of which a step takes so many
		if rows := step(t, s); rows[b] != want {
			t.Fatalf("%s: after a went b computes %d rows, want %d", name, rows[b], want)
		}
		if got := b.Cached(); (name == "finish") != (got == 16) {
			t.Errorf("%s: b reuses %d tokens", name, got)
		}
	}
}

func TestDecodesComeFirst(t *testing.T) {
	s := newScheduler(t, Config{MaxSeqs: 4, MaxTokens: 8, MaxOutputs: 4}, 64, 4)
	long := seq(prompt(nil, 30, 1), 2)
	short := seq(prompt(nil, 3, 2), 20)
	add(t, s, short)
	step(t, s)
	add(t, s, long)
	for range 3 {
		if rows := step(t, s); rows[short] != 1 || rows[long] != 7 {
			t.Fatalf("short gets %d rows, long %d; want 1 and 7", rows[short], rows[long])
		}
	}
}

func TestPreemptionTakesTheLatestAndResumes(t *testing.T) {
	s := newScheduler(t, Config{MaxSeqs: 4, MaxTokens: 32, MaxOutputs: 4}, 6, 4)
	a, b := seq(prompt(nil, 8, 1), 12), seq(prompt(nil, 7, 2), 12)
	add(t, s, a, b)
	resumed := false
	for !s.Idle() {
		before := len(b.Tokens)
		rows := step(t, s)
		if s.Stats(0).Preemptions > 0 && rows[b] > 1 && before > 7 {
			resumed = true
		}
		if a.Ended() && !b.Ended() && len(b.Tokens) < before {
			t.Fatal("b lost tokens")
		}
	}
	st := s.Stats(0)
	if st.Preemptions == 0 || !resumed {
		t.Errorf("%d preemptions, resumed %v", st.Preemptions, resumed)
	}
	if len(a.Tokens) != 20 || len(b.Tokens) != 19 {
		t.Errorf("a has %d tokens, b %d", len(a.Tokens), len(b.Tokens))
	}
	if b.Cached() != 0 {
		t.Errorf("%d tokens of b count as reused: its own, which it lost", b.Cached())
	}
}

func TestQueueBounds(t *testing.T) {
	s := newScheduler(t, Config{MaxSeqs: 2, MaxTokens: 8, MaxOutputs: 2, QueueSeqs: 2, QueueTokens: 10}, 64, 4)
	if err := s.Add(0, seq(prompt(nil, 257, 1), 0)); !errors.Is(err, ErrTooLong) {
		t.Errorf("257 tokens in a memory of 256: %v", err)
	}
	if err := s.Add(0, seq(prompt(nil, 200, 1), 57)); !errors.Is(err, ErrTooLong) {
		t.Errorf("200 and 57 tokens in a memory of 256: %v", err)
	}
	add(t, s, seq(prompt(nil, 50, 1), 2), seq(prompt(nil, 50, 2), 2)) // free places: the bounds don't count
	step(t, s)
	if err := s.Add(0, seq(prompt(nil, 11, 3), 2)); !errors.Is(err, ErrQueueFull) {
		t.Errorf("11 tokens in a queue of 10: %v", err)
	}
	q := seq(prompt(nil, 4, 3), 2)
	add(t, s, q, seq(prompt(nil, 4, 4), 2))
	if err := s.Add(0, seq(prompt(nil, 1, 5), 2)); !errors.Is(err, ErrQueueFull) {
		t.Errorf("a third in a queue of two: %v", err)
	}
	s.Finish(q)
	s.Finish(q)
	add(t, s, seq(prompt(nil, 6, 6), 2))
	if st := s.Stats(0); st.Waiting != 2 || st.WaitingTokens != 10 || st.Active != 2 {
		t.Errorf("stats %+v", st)
	}

	s = newScheduler(t, Config{MaxSeqs: 2, MaxTokens: 8, MaxOutputs: 2}, 64, 4)
	add(t, s, seq(prompt(nil, 4, 1), 1), seq(prompt(nil, 4, 1), 1), seq(prompt(nil, 4, 1), 1)) // finds everything empty
	if err := s.Add(0, seq(prompt(nil, 4, 3), 2)); !errors.Is(err, ErrQueueFull) {
		t.Errorf("no queue at all: %v", err)
	}
}

func TestAgesAndWaits(t *testing.T) {
	s := newScheduler(t, Config{MaxSeqs: 1, MaxTokens: 8, MaxOutputs: 1, QueueSeqs: 9, QueueTokens: 99}, 64, 4)
	a, b := seq(prompt(nil, 4, 1), 1), seq(prompt(nil, 4, 2), 1)
	if err := s.Add(5*time.Second, a); err != nil {
		t.Fatal(err)
	}
	if err := s.Add(6*time.Second, b); err != nil {
		t.Fatal(err)
	}
	if got := s.Stats(8 * time.Second).OldestAge; got != 3*time.Second {
		t.Errorf("oldest age %v, want 3s", got)
	}
	if p := s.Schedule(9 * time.Second); len(p.Started) != 1 || p.Started[0] != a || a.Wait() != 4*time.Second {
		t.Errorf("started %v after %v", p.Started, a.Wait())
	}
	s.Commit()
	if got := s.Stats(10 * time.Second).OldestAge; got != 4*time.Second {
		t.Errorf("oldest age %v, want 4s", got)
	}
	s.Finish(a)
	s.Schedule(20 * time.Second)
	if got := s.Stats(30 * time.Second); got.OldestAge != 0 || b.Wait() != 14*time.Second || got.Started != 1 {
		t.Errorf("oldest age %v, b waited %v", got.OldestAge, b.Wait())
	}
}

func TestPromptOutputs(t *testing.T) {
	s := newScheduler(t, Config{MaxSeqs: 2, MaxTokens: 64, MaxOutputs: 5}, 64, 4)
	p := prompt(nil, 13, 1)
	for _, noSample := range []bool{false, true} {
		q := seq(slices.Clone(p), 1)
		q.PromptOutputs, q.NoSample = true, noSample
		add(t, s, q)
		var predicted []int
		samples := 0
		for !q.Ended() {
			plan := s.Schedule(0)
			if len(plan.Outputs) > 5 {
				t.Fatalf("%d rows of logits in a step, want at most 5", len(plan.Outputs))
			}
			w := plan.Work[0]
			for k := range w.Prompts {
				row := plan.Outputs[w.Output+k]
				if int(plan.Positions[row])+1 != w.PromptFrom+k {
					t.Fatalf("the logits of position %d are said to predict %d", plan.Positions[row], w.PromptFrom+k)
				}
				predicted = append(predicted, w.PromptFrom+k)
			}
			last := w.Last
			if w.Sample {
				samples++
			}
			if s.Commit(); last {
				s.Finish(q)
			}
		}
		if want := []int{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}; !slices.Equal(predicted, want) {
			t.Errorf("predicted %v, want %v", predicted, want)
		}
		if q.Cached() != 0 || (samples == 0) != noSample {
			t.Errorf("reused %d tokens, sampled %d times", q.Cached(), samples)
		}
	}
	q := seq(slices.Clone(p), 1)
	add(t, s, q)
	if step(t, s); q.Cached() != 12 {
		t.Errorf("what was computed with prompt logits isn't reused: %d tokens", q.Cached())
	}
}

func TestMisuseIsSaid(t *testing.T) {
	s := newScheduler(t, Config{MaxSeqs: 2, MaxTokens: 64, MaxOutputs: 5}, 64, 4)
	q := seq(prompt(nil, 3, 1), 1)
	add(t, s, q)
	for name, f := range map[string]func(){
		"added twice": func() { _ = s.Add(0, q) },
		"no prompt":   func() { _ = s.Add(0, seq(nil, 1)) },
		"not started": func() { s.Append(q, 1) },
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s: no panic", name)
				}
			}()
			f()
		}()
	}
}

package ledger

import (
	"slices"
	"testing"
)

// TestSearchSteps follows a server that keeps its objective up to some level.
func TestSearchSteps(t *testing.T) {
	objective := []Objective{{Metric: MetricLatency, Percentile: 500, LimitUS: 100}}
	for _, c := range []struct {
		name    string
		arrival string
		low, hi int64
		bears   int64
		steps   []int64
	}{
		{"workers", ArrivalClosed, 1, 64, 11, []int64{1, 2, 4, 8, 16, 12, 10, 11, 11, 11}},
		{"all", ArrivalClosed, 1, 6, 100, []int64{1, 2, 4, 6, 6}},
		{"none", ArrivalClosed, 2, 6, 1, []int64{2, 2, 2}},
		{"rates", ArrivalPoisson, 1_000_000, 64_000_000, 3_000_000, []int64{1_000_000, 2_000_000, 4_000_000, 2_828_427, 3_363_585, 3_084_421, 2_953_651, 2_953_651}},
	} {
		s := NewSearch(&LoadPlan{Arrival: c.arrival, Search: &SearchPlan{Low: c.low, High: c.hi, Steps: int64(len(c.steps))}, Objectives: objective})
		var got []int64
		for range c.steps {
			level := s.Next()
			got = append(got, level)
			row := okRow(0, 0)
			row.QueuedUS, row.SentUS, row.FirstTokenUS, row.EndUS = 0, Some(0), Some(1), 50
			if level > c.bears {
				row.EndUS = 500
			}
			for range 20 {
				s.Result(&row)
			}
			s.End(level)
		}
		if !slices.Equal(got, c.steps) {
			t.Errorf("%s: levels %v, want %v", c.name, got, c.steps)
		}
	}
}

func TestGeometricMean(t *testing.T) {
	for _, c := range [][3]int64{{1, 1, 1}, {2, 8, 4}, {3, 5, 3}, {1, 1_000_000_000_000, 1_000_000}, {999_999_999_999, 1_000_000_000_000, 999_999_999_999}} {
		if got := geometricMean(c[0], c[1]); got != c[2] {
			t.Errorf("between %d and %d: %d, want %d", c[0], c[1], got, c[2])
		}
	}
}

// TestPattern: tenants take turns as evenly as their shares allow, and none has always the same kind of task.
func TestPattern(t *testing.T) {
	p := &LoadPlan{Tenants: []Tenant{{"a", 1, 5}, {"b", 1, 1}, {"c", 1, 1}}}
	if got, want := p.Pattern(), []int{0, 0, 1, 0, 2, 0, 0}; !slices.Equal(got, want) {
		t.Errorf("pattern %v, want %v", got, want)
	}
	two := (&LoadPlan{Tenants: []Tenant{{"a", 1, 1}, {"b", 1, 1}}}).Pattern()
	kinds := [2][4]int{}
	for c := range int64(160) {
		kinds[TenantOf(two, c)][c%4]++
	}
	if want := [4]int{20, 20, 20, 20}; kinds[0] != want || kinds[1] != want {
		t.Errorf("tenants' kinds of task: %v", kinds)
	}
}

func TestJain(t *testing.T) {
	even := []Tenant{{"a", 1, 1}, {"b", 1, 1}}
	for _, c := range []struct {
		service []int64
		tenants []Tenant
		want    int64
	}{{[]int64{5, 5}, even, 1_000_000}, {[]int64{5, 0}, even, 500_000}, {[]int64{1, 3}, even, 800_000}, {[]int64{1, 3}, []Tenant{{"a", 1, 1}, {"b", 3, 1}}, 1_000_000}} {
		if got := jain(c.service, c.tenants); got != c.want {
			t.Errorf("Jain's index of %v is %d, want %d", c.service, got, c.want)
		}
	}
}

// TestVerdict: a percentile's bounds decide, and where the sample carries none nothing is decided.
func TestVerdict(t *testing.T) {
	fill := func(n int, fails int64) *step {
		s := &step{fails: fails}
		for i := range n {
			row := okRow(0, 0)
			row.SentUS, row.FirstTokenUS, row.EndUS = Some(0), Some(int64(i)), int64(i)
			s.result(&row, false)
		}
		return s
	}
	p95 := func(limit int64) []Objective {
		return []Objective{{Metric: MetricLatency, Percentile: 950, LimitUS: limit}}
	}
	for _, c := range []struct {
		s    *step
		o    []Objective
		want string
	}{
		{fill(89, 0), p95(1000), VerdictNotEstablished}, {fill(90, 0), p95(89), VerdictKept}, {fill(90, 0), p95(88), VerdictNotEstablished},
		{fill(200, 0), p95(50), VerdictBroken}, {fill(0, 0), p95(50), VerdictNotEstablished}, {fill(100, 40), p95(1000), VerdictBroken}, {fill(0, 40), p95(1000), VerdictBroken},
		{fill(200, 0), append(p95(1000), Objective{MetricTTFT, 500, 10}), VerdictBroken},
	} {
		if got := c.s.verdict(c.o); got != c.want {
			t.Errorf("%d results, %d failures, %v: %s, want %s", c.s.results, c.s.fails, c.o, got, c.want)
		}
	}
	buffered := fill(200, 0)
	buffered.inOnePieces = 11
	if got := buffered.verdict([]Objective{{MetricTTFT, 500, 1000}}); got != VerdictNotEstablished {
		t.Errorf("of answers in one piece a time to first token is %s", got)
	}
}

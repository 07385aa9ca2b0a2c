package record

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Objective is a bound on a percentile of a victim's latency, by the host's clock.
type Objective struct {
	Percentile string `json:"percentile"`
	NS         int64  `json:"ns"`
}

// ParseObjective reads "p99_us=500": a percentile of Percentiles, us or ms, and a number.
func ParseObjective(text string) (Objective, error) {
	name, number, ok := strings.Cut(text, "=")
	p, unit, ok2 := strings.Cut(name, "_")
	scale := map[string]int64{"us": 1_000, "ms": 1_000_000}[unit]
	known := slices.Contains([]string{"p50", "p90", "p99", "p99.9"}, p)
	n, err := strconv.ParseInt(number, 10, 64)
	if !ok || !ok2 || scale == 0 || !known || err != nil || n < 1 || n > 1_000_000_000 {
		return Objective{}, fmt.Errorf("%q isn't an objective: want a percentile (p50, p90, p99, p99.9), _us or _ms, = and a whole number, such as p99_us=500", text)
	}
	return Objective{p, n * scale}, nil
}

// Answers of a recommendation.
const (
	Keeps   = "keeps"  // the percentile's upper bound is no more than the objective, beside every aggressor
	Misses  = "misses" // its lower bound is more, beside one
	Unknown = "not_established"
)

// Candidate is a mechanism as a recommendation sees it.
type Candidate struct {
	Mechanism string `json:"mechanism"`
	Answer    string `json:"answer"`
	VictimSMs int64  `json:"victim_sms"` // 0: all
	// WorstNS is the greatest upper bound (lowest kept: the greatest value known) of the percentile beside any aggressor, and where.
	WorstNS   *int64 `json:"worst_ns"`
	WorstCell string `json:"worst_cell"`
	// KeptPPM is the least and the mean of what aggressors keep of their rate alone on the whole GPU.
	LeastKeptPPM *int64   `json:"least_kept_ppm"`
	MeanKeptPPM  *int64   `json:"mean_kept_ppm"`
	Cells        []string `json:"cells"` // the evidence
	Why          string   `json:"why"`
}

// Advice is for one victim.
type Advice struct {
	Victim string `json:"victim"`
	// Pick is the mechanism; empty where none keeps the objective.
	Pick       string      `json:"pick"`
	Answer     string      `json:"answer"` // keeps, misses, not_established
	Candidates []Candidate `json:"candidates"`
}

// Recommendation is what `--recommend` prints.
type Recommendation struct {
	SchemaVersion int       `json:"schema_version"`
	Operation     string    `json:"operation"`
	RunID         string    `json:"run_id"`
	Objective     Objective `json:"objective"`
	Advice        []Advice  `json:"advice"`
	Notes         []string  `json:"notes"`
}

// Recommend picks, for a victim (all where it is empty) beside an aggressor (all where it is empty), the smallest allocation that keeps
// the objective; among equal ones that which leaves the aggressors most.
func Recommend(l *Ledger, o Objective, victim, aggressor string) (*Recommendation, error) {
	r := &Recommendation{SchemaVersion: SchemaVersion, Operation: RecommendationOperation, RunID: l.RunID, Objective: o, Advice: []Advice{}, Notes: []string{
		"an objective is kept where the upper bound (99 % confidence, order statistics) of the percentile is no more than it beside every aggressor that was measured",
		"the price is what the aggressors keep of their rate alone on the whole GPU",
		"victims run one launch after the other without a pause: a victim with pauses leaves its neighbour more"}}
	var victims []string
	found := aggressor == ""
	for _, c := range l.Cells {
		if c.Cell.Victim != "" && !slices.Contains(victims, c.Cell.Victim) {
			victims = append(victims, c.Cell.Victim)
		}
		found = found || c.Aggressor == aggressor
	}
	if victim != "" {
		if !slices.Contains(victims, victim) {
			return nil, fmt.Errorf("no victim %q in this ledger: it has %s", victim, strings.Join(victims, ", "))
		}
		victims = []string{victim}
	}
	if !found {
		return nil, fmt.Errorf("no aggressor %q in this ledger", aggressor)
	}
	for _, v := range victims {
		r.Advice = append(r.Advice, advise(l, o, v, aggressor))
	}
	return r, nil
}

func advise(l *Ledger, o Objective, victim, aggressor string) Advice {
	a := Advice{Victim: victim, Answer: Misses, Candidates: []Candidate{}}
	for _, m := range l.Mechanisms {
		if m.Kind == Whole {
			continue
		}
		if c := candidate(l, o, m.ID, victim, aggressor); len(c.Cells) > 0 {
			a.Candidates = append(a.Candidates, c)
		}
	}
	// The smallest first; whole GPUs last, and among equals those that leave more.
	size := func(c Candidate) int64 {
		if c.VictimSMs == 0 {
			return l.SMs
		}
		return c.VictimSMs
	}
	kept := func(c Candidate) int64 {
		if c.MeanKeptPPM == nil {
			return 0
		}
		return *c.MeanKeptPPM
	}
	slices.SortStableFunc(a.Candidates, func(x, y Candidate) int {
		return cmp.Or(cmp.Compare(size(x), size(y)), cmp.Compare(kept(y), kept(x)))
	})
	for _, c := range a.Candidates {
		if c.Answer == Keeps {
			a.Pick, a.Answer = c.Mechanism, Keeps
			return a
		}
		if c.Answer == Unknown {
			a.Answer = Unknown
		}
	}
	if len(a.Candidates) == 0 {
		a.Answer = Unknown
	}
	return a
}

func candidate(l *Ledger, o Objective, mechanism, victim, aggressor string) Candidate {
	c := Candidate{Mechanism: mechanism, Answer: Keeps, Cells: []string{}}
	sum, n := int64(0), int64(0)
	for i := range l.Cells {
		r := &l.Cells[i]
		if r.Mechanism != mechanism || r.Cell.Victim != victim || r.Aggressor == "" || aggressor != "" && r.Aggressor != aggressor {
			continue
		}
		c.Cells = append(c.Cells, r.ID)
		c.VictimSMs = max(c.VictimSMs, r.VictimSMs)
		q := r.Host.Of(o.Percentile)
		switch {
		case q.State != Established && above(&r.Host, o):
			c.Answer, c.Why = Misses, r.ID+" is above it"
		case q.State != Established:
			if c.Answer == Keeps {
				c.Answer, c.Why = Unknown, r.ID+": "+cmp.Or(r.Reason, "too few launches")
			}
		case *q.Low > o.NS:
			c.Answer, c.Why = Misses, r.ID+" is above it"
		case *q.High > o.NS && c.Answer == Keeps:
			c.Answer, c.Why = Unknown, r.ID+": the bounds stand on both sides of it"
		}
		if q.State == Established && (c.WorstNS == nil || *q.High > *c.WorstNS) {
			c.WorstNS, c.WorstCell = q.High, r.ID
		}
		if r.Neighbour != nil && r.Neighbour.KeptPPM != nil {
			if sum, n = sum+*r.Neighbour.KeptPPM, n+1; c.LeastKeptPPM == nil || *r.Neighbour.KeptPPM < *c.LeastKeptPPM {
				c.LeastKeptPPM = r.Neighbour.KeptPPM
			}
		}
	}
	if n > 0 {
		c.MeanKeptPPM = ref(sum / n)
	}
	return c
}

// above reports whether a percentile below the objective's, which needs fewer launches, is above it already.
func above(d *Distribution, o Objective) bool {
	for _, q := range d.Quantiles {
		if q.State == Established && *q.Low > o.NS {
			return true
		}
		if q.Percentile == o.Percentile {
			return false
		}
	}
	return false
}

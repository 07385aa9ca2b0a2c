package ledger

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"cotenant/internal/loadgen"
	"cotenant/internal/stats"
)

// LoadPlan says when contexts are sent, and for whom. A run without one is a closed loop of its workers for nobody in particular.
type LoadPlan struct {
	Arrival        string      `json:"arrival"`         // one of Arrivals
	Seed           string      `json:"seed"`            // of Poisson arrivals; else empty
	Levels         []int64     `json:"levels"`          // of the stages, which have equally many contexts: arrivals per 10^6 s, or, closed, workers; empty in a search and of a trace
	Search         *SearchPlan `json:"search"`          // stages whose levels follow from the stages before them; null: levels has them
	Objectives     []Objective `json:"objectives"`      // that each stage is held against
	Tenants        []Tenant    `json:"tenants"`         // whose contexts these are; empty: nobody's in particular
	Paired         bool        `json:"paired"`          // contexts are pairs that ask the same, once over the shared base and once over one of its own
	TraceSHA256    string      `json:"trace_sha256"`    // of the trace's file; empty: none
	ScheduleSHA256 string      `json:"schedule_sha256"` // of schedule.jsonl, which has the trace's times; empty: none
}

// Ways of arriving.
const (
	ArrivalClosed   = "closed"   // a context is taken when a worker is free
	ArrivalConstant = "constant" // at equal distances
	ArrivalPoisson  = "poisson"  // independently of each other
	ArrivalTrace    = "trace"    // when a trace says
)

// Arrivals lists them.
func Arrivals() []string {
	return []string{ArrivalClosed, ArrivalConstant, ArrivalPoisson, ArrivalTrace}
}

// SearchPlan looks for the highest level that keeps the objectives: see Next.
type SearchPlan struct {
	Low   int64 `json:"low"`
	High  int64 `json:"high"`
	Steps int64 `json:"steps"`
}

// Objective is a service-level objective: a percentile of a time has to be at most a limit, failures counted as infinitely slow.
type Objective struct {
	Metric     string `json:"metric"`     // one of Metrics
	Percentile int64  `json:"percentile"` // in thousandths: 500, 900, 950, 990 or 999
	LimitUS    int64  `json:"limit_us"`
}

// What an objective is about. In an open loop both are counted from the schedule, in a closed one from sent.
const (
	MetricTTFT    = "ttft"
	MetricLatency = "latency"
)

// Metrics lists them.
func Metrics() []string { return []string{MetricTTFT, MetricLatency} }

// String is the objective as a user writes it.
func (o Objective) String() string {
	return fmt.Sprintf("%s_p%s_us=%d", o.Metric, strings.TrimSuffix(strconv.FormatInt(o.Percentile, 10), "0"), o.LimitUS)
}

// Tenant has a share of the load and a claim to a share of the service.
type Tenant struct {
	Name   string `json:"name"`
	Weight int64  `json:"weight"` // of its claim
	Share  int64  `json:"share"`  // of the contexts and, in a closed loop, of the workers
}

// Arrival is one line of schedule.jsonl: a context, in their order.
type Arrival struct {
	AtUS      int64 `json:"at_us"`      // from the trace's beginning
	MaxTokens int64 `json:"max_tokens"` // that are asked for
}

func (a *Arrival) check() error {
	if a.AtUS > loadgen.MaxTraceUS || a.MaxTokens < 1 || a.MaxTokens > loadgen.MaxTraceTokens {
		return fmt.Errorf("at_us %d, max_tokens %d: want at most %d, and 1 to %d", a.AtUS, a.MaxTokens, int64(loadgen.MaxTraceUS), loadgen.MaxTraceTokens)
	}
	return nil
}

// Bounds of a plan.
const (
	MaxStages  = 64
	MaxTenants = 16
	maxShares  = 1000
	MaxLimitUS = 1 << 42
)

// Open reports whether contexts arrive whether or not a worker is free.
func (p *LoadPlan) Open() bool { return p != nil && p.Arrival != ArrivalClosed }

// Stages is the number of stages.
func (p *LoadPlan) Stages() int64 {
	if p.Search != nil {
		return p.Search.Steps
	}
	return max(1, int64(len(p.Levels)))
}

// Stage is the stage of a context.
func (p *LoadPlan) Stage(context, contexts int64) int64 { return context / (contexts / p.Stages()) }

// check holds a plan against its run.
func (p *LoadPlan) check(c *Config) error {
	closed, traced := p.Arrival == ArrivalClosed, p.Arrival == ArrivalTrace
	switch {
	case c.Contract != ContractPlain:
		return fmt.Errorf("a load plan goes with the contract %s, and this is %s", ContractPlain, c.Contract)
	case !slices.Contains(Arrivals(), p.Arrival):
		return fmt.Errorf("load.arrival %q isn't known", p.Arrival)
	case (p.Arrival == ArrivalPoisson) != (p.Seed != "") || len(p.Seed) > MaxText:
		return fmt.Errorf("load.seed %q: Poisson arrivals have one of at most %d bytes, others none", clipped(p.Seed), MaxText)
	case traced != (p.TraceSHA256 != "") || traced != (p.ScheduleSHA256 != ""):
		return fmt.Errorf("trace_sha256 and schedule_sha256 go with arrivals by a trace")
	case traced && (!isHex(p.TraceSHA256, 64) || !isHex(p.ScheduleSHA256, 64)):
		return fmt.Errorf("trace_sha256 or schedule_sha256 isn't 64 hexadecimal digits")
	case p.Search != nil && (len(p.Levels) > 0 || traced):
		return fmt.Errorf("a search has neither levels nor a trace")
	case traced != (len(p.Levels) == 0 && p.Search == nil):
		return fmt.Errorf("%d levels with arrival %s", len(p.Levels), p.Arrival)
	case p.Search != nil && len(p.Objectives) == 0:
		return fmt.Errorf("a search needs an objective")
	case p.Stages() < 1 || p.Stages() > MaxStages || c.Contexts%p.Stages() != 0:
		return fmt.Errorf("%d contexts can't be divided into %d stages of equally many, of which there may be %d", c.Contexts, p.Stages(), MaxStages)
	case p.Paired && (c.Contexts/p.Stages()%2 != 0 || len(p.Tenants) > 0):
		return fmt.Errorf("pairs need an even number of contexts a stage, and no tenants")
	}
	levels := slices.Clone(p.Levels)
	if s := p.Search; s != nil {
		if levels = append(levels, s.Low, s.High); s.Low > s.High {
			return fmt.Errorf("a search whose low end lies above its high end")
		}
	}
	for _, level := range levels {
		if closed && (level < 1 || level > c.Workers) {
			return fmt.Errorf("a stage of %d workers in a run of %d", level, c.Workers)
		}
		if !closed && (level < loadgen.MinRate || level > loadgen.MaxRate) {
			return fmt.Errorf("a rate of %d per 10^6 s: want %d to %d", level, loadgen.MinRate, int64(loadgen.MaxRate))
		}
	}
	return p.checkParts(slices.Min(append(levels, c.Workers)))
}

// checkParts holds objectives and tenants against themselves; no stage has fewer workers than workers.
func (p *LoadPlan) checkParts(workers int64) error {
	for i, o := range p.Objectives {
		if !slices.Contains(Metrics(), o.Metric) || o.LimitUS < 1 || o.LimitUS > MaxLimitUS {
			return fmt.Errorf("objective %q, limit %d us: want one of %v, and a limit of 1 to %d", clipped(o.Metric), o.LimitUS, Metrics(), int64(MaxLimitUS))
		}
		if _, ok := percentileOf(o.Percentile); !ok {
			return fmt.Errorf("objective for percentile %d/1000: want 500, 900, 950, 990 or 999", o.Percentile)
		}
		if i >= MaxStages {
			return fmt.Errorf("more than %d objectives", MaxStages)
		}
	}
	if len(p.Tenants) == 0 {
		return nil
	}
	names, shares := map[string]bool{}, int64(0)
	for _, t := range p.Tenants {
		if t.Name == "" || len(t.Name) > MaxFinish || strings.ContainsFunc(t.Name, notName) || names[t.Name] {
			return fmt.Errorf("tenant %q: want letters, digits, - and _, at most %d, each name once", clipped(t.Name), MaxFinish)
		}
		if t.Weight < 1 || t.Weight > maxShares || t.Share < 1 || t.Share > maxShares {
			return fmt.Errorf("tenant %s: weight %d, share %d: want 1 to %d", t.Name, t.Weight, t.Share, maxShares)
		}
		names[t.Name] = true
		shares += t.Share
	}
	if len(p.Tenants) < 2 || len(p.Tenants) > MaxTenants || shares > maxShares {
		return fmt.Errorf("%d tenants with %d shares: want 2 to %d with %d at most", len(p.Tenants), shares, MaxTenants, maxShares)
	}
	if pattern := p.Pattern(); p.Arrival == ArrivalClosed {
		for i := range p.Tenants {
			if n := int64(slices.Index(pattern, i)); n >= workers {
				return fmt.Errorf("tenant %s has no worker: %d workers are too few for these shares", p.Tenants[i].Name, workers)
			}
		}
	}
	return nil
}

func clipped(s string) string { return s[:min(len(s), MaxText)] }

// notName reports a character that isn't in a tenant's name.
func notName(r rune) bool {
	return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '-' || r == '_')
}

// Pattern is the order in which tenants take turns, by index: smooth weighted round robin by their shares. Each step every tenant's
// credit grows by its share; the one with most (the first of equals) has its turn and pays the sum of all shares. The pattern repeats
// after that many steps. In a closed loop, worker w is of the tenant at w modulo its length; see TenantOf for contexts.
func (p *LoadPlan) Pattern() []int {
	total := int64(0)
	for _, t := range p.Tenants {
		total += t.Share
	}
	credit, out := make([]int64, len(p.Tenants)), make([]int, 0, total)
	for range total {
		most := 0
		for i, t := range p.Tenants {
			if credit[i] += t.Share; credit[i] > credit[most] {
				most = i
			}
		}
		credit[most] -= total
		out = append(out, most)
	}
	return out
}

// TenantOf is the index of a context's tenant: that at c modulo the pattern's length L, the pattern turned on by one place after each
// 4·L contexts, so that no tenant always has the same of the four kinds of task.
func TenantOf(pattern []int, context int64) int {
	n := int64(len(pattern))
	return pattern[(context+context/(4*n))%n]
}

// Gap is the time before a context's arrival, from that of the one before it, in ps; level is that of its stage. Of a trace schedule
// has the times in µs.
func (p *LoadPlan) Gap(context, level int64, schedule []int64) int64 {
	switch p.Arrival {
	case ArrivalConstant:
		return loadgen.ConstantGap(level)
	case ArrivalPoisson:
		return loadgen.PoissonGap(p.Seed, context, level)
	case ArrivalTrace:
		at := schedule[context]
		if context > 0 {
			at -= schedule[context-1]
		}
		return at * loadgen.PicosPerMicro
	}
	return 0
}

// UniqueArm reports whether a context of paired arms has a base of its own. Which of a pair comes first follows from seed, the
// workload's, so that neither arm is always the warmer one.
func UniqueArm(seed string, context int64) bool { return loadgen.UniqueArm(seed, context) }

func percentileOf(thousandths int64) (stats.Percentile, bool) {
	switch thousandths {
	case 500:
		return stats.P50, true
	case 900:
		return stats.P90, true
	case 950:
		return stats.P95, true
	case 990:
		return stats.P99, true
	case 999:
		return stats.P999, true
	}
	return stats.Percentile{}, false
}

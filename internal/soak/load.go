package soak

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"cotenant/internal/ledger"
	"cotenant/internal/loadgen"
	"cotenant/internal/stats"
)

// LoadSpec is a load plan as a user writes it. The zero LoadSpec is a closed loop of all workers.
type LoadSpec struct {
	Shape      string // closed, constant or poisson, then :LEVEL[,LEVEL…] or :LOW..HIGH[*STEPS], or trace; levels are workers, or arrivals a second; empty: closed
	Objectives string // METRIC_pNN_us=LIMIT[,…], METRIC ttft or latency; empty: none
	Tenants    string // NAME=WEIGHT[xSHARE],NAME=…; empty: none
	Paired     bool   // the workload is pairs (loadgen.Pairs)
	Seed       string // of Poisson arrivals
}

// Open reports whether contexts arrive whether or not a worker is free.
func (s LoadSpec) Open() bool {
	kind, _, _ := strings.Cut(s.Shape, ":")
	return kind != "" && kind != ledger.ArrivalClosed
}

// searchSteps is how many stages a search has, where it isn't said: each rung can be divided by it.
const searchSteps = 10

// Plan reads a spec. Workers is the run's, trace what is replayed, where something is. It is nil where nothing is asked for beyond
// a closed loop.
func (s LoadSpec) Plan(workers int64, trace *loadgen.Trace) (*ledger.LoadPlan, error) {
	kind, levels, leveled := strings.Cut(s.Shape, ":")
	if kind == "" {
		kind = ledger.ArrivalClosed
	}
	p := &ledger.LoadPlan{Arrival: kind, Levels: []int64{}, Paired: s.Paired}
	switch kind {
	case ledger.ArrivalClosed, ledger.ArrivalConstant, ledger.ArrivalPoisson:
		if kind == ledger.ArrivalPoisson {
			p.Seed = s.Seed
		}
		if !leveled && kind != ledger.ArrivalClosed {
			return nil, usage("load %q: say how many arrivals a second, for instance %s:20", s.Shape, kind)
		}
		if !leveled {
			levels = strconv.FormatInt(workers, 10)
		}
		if err := parseLevels(p, levels); err != nil {
			return nil, err
		}
	case ledger.ArrivalTrace:
		if trace == nil {
			return nil, usage("load %q: no trace was read", s.Shape)
		}
		p.TraceSHA256 = trace.Hash()
	default:
		return nil, usage("load %q: want closed, constant, poisson or trace", s.Shape)
	}
	var err error
	if p.Objectives, err = parseObjectives(s.Objectives); err != nil {
		return nil, err
	}
	if p.Tenants, err = parseTenants(s.Tenants); err != nil {
		return nil, err
	}
	if p.Search != nil && len(p.Objectives) == 0 {
		return nil, usage("load %q is a search: say for what by --slo, for instance ttft_p95_us=500000", s.Shape)
	}
	if kind == ledger.ArrivalClosed && !leveled && len(p.Objectives) == 0 && len(p.Tenants) == 0 && !p.Paired {
		return nil, nil
	}
	return p, nil
}

// parseLevels reads LEVEL[,LEVEL…] or LOW..HIGH[*STEPS].
func parseLevels(p *ledger.LoadPlan, text string) error {
	low, rest, isSearch := strings.Cut(text, "..")
	if !isSearch {
		for _, part := range strings.Split(text, ",") {
			level, err := parseLevel(p, part)
			if err != nil {
				return err
			}
			p.Levels = append(p.Levels, level)
		}
		return nil
	}
	high, count, counted := strings.Cut(rest, "*")
	p.Search = &ledger.SearchPlan{Steps: searchSteps}
	var err error
	if p.Search.Low, err = parseLevel(p, low); err != nil {
		return err
	}
	if p.Search.High, err = parseLevel(p, high); err != nil {
		return err
	}
	if counted {
		if p.Search.Steps, err = strconv.ParseInt(count, 10, 64); err != nil || p.Search.Steps < 1 {
			return usage("a search of %q steps: want a number from 1", count)
		}
	}
	return nil
}

// parseLevel reads a number of workers, or of arrivals a second, which may have a fraction.
func parseLevel(p *ledger.LoadPlan, text string) (int64, error) {
	if !p.Open() {
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			return 0, usage("load: %q isn't a number of workers", text)
		}
		return n, nil
	}
	rate, err := strconv.ParseFloat(text, 64)
	if err != nil || !fraction(rate, 0, 1e6) || math.Round(rate*1e6) < loadgen.MinRate {
		return 0, usage("load: %q isn't a rate of 0.001 to 1000000 arrivals a second", text)
	}
	return int64(math.Round(rate * 1e6)), nil
}

// parseObjectives reads METRIC_pNN_us=LIMIT[,…].
func parseObjectives(text string) ([]ledger.Objective, error) {
	out := []ledger.Objective{}
	if text == "" {
		return out, nil
	}
	percentiles := map[string]int64{"p50": 500, "p90": 900, "p95": 950, "p99": 990, "p999": 999}
	for _, part := range strings.Split(text, ",") {
		name, limit, _ := strings.Cut(part, "=")
		words := strings.Split(name, "_")
		n, err := strconv.ParseInt(limit, 10, 64)
		if len(words) != 3 || words[2] != "us" || percentiles[words[1]] == 0 || err != nil {
			return nil, usage("slo %q: want ttft or latency, _p50, _p90, _p95, _p99 or _p999, and _us=LIMIT, for instance ttft_p95_us=500000", part)
		}
		out = append(out, ledger.Objective{Metric: words[0], Percentile: percentiles[words[1]], LimitUS: n})
	}
	return out, nil
}

// parseTenants reads NAME=WEIGHT[xSHARE][,…].
func parseTenants(text string) ([]ledger.Tenant, error) {
	out := []ledger.Tenant{}
	if text == "" {
		return out, nil
	}
	for _, part := range strings.Split(text, ",") {
		name, numbers, _ := strings.Cut(part, "=")
		weight, share, shared := strings.Cut(numbers, "x")
		t := ledger.Tenant{Name: name}
		var err, err2 error
		t.Weight, err = strconv.ParseInt(weight, 10, 64)
		if t.Share = t.Weight; shared {
			t.Share, err2 = strconv.ParseInt(share, 10, 64)
		}
		if name == "" || err != nil || err2 != nil {
			return nil, usage("tenants: %q: want NAME=WEIGHT or NAME=WEIGHTxSHARE, for instance quiet=1,noisy=1x7", part)
		}
		out = append(out, t)
	}
	return out, nil
}

// longestSchedule bounds an open loop's plan.
const longestSchedule = 30 * 24 * 3600 // s

// checkLoad holds the plan against the other options.
func (o *Options) checkLoad() error {
	p := o.Load
	if p == nil {
		return nil
	}
	for _, level := range p.Levels {
		if p.Open() && float64(o.Contexts)/float64(p.Stages())/(float64(level)/1e6) > longestSchedule {
			return usage("load: %d contexts at this rate take longer than 30 days", o.Contexts)
		}
	}
	if p.Arrival == ledger.ArrivalTrace {
		if o.Trace == nil || o.Contexts > int64(o.Trace.Len()) {
			return usage("load: the trace must have as many requests as there are contexts: %d", o.Contexts)
		}
		o.MaxTokens = 0
		for n := range o.Contexts {
			o.MaxTokens = max(o.MaxTokens, o.Trace.Answer(n))
		}
		p.ScheduleSHA256 = o.scheduleHash(o.Trace)
	}
	if p.Paired != (o.Source.Name() == loadgen.PairsVersion) {
		return usage("load: pairs and a workload of pairs go together")
	}
	if names, _, err := parseExtra(o.BodyJSON); err == nil && len(p.Tenants) > 0 && slices.Contains(names, "user") {
		return usage("the body's JSON must not set %q where there are tenants: it names them", "user")
	}
	// The plan is checked as a whole where it is registered; said here, it is the user's error.
	probe := ledger.Config{Contract: o.Contract, Contexts: o.Contexts, Workers: o.Workers, Load: p}
	if err := probe.CheckLoad(); err != nil {
		return usage("load: %v", err)
	}
	return nil
}

// fewSamples says for each objective whose percentile can have no upper bound with a sample above it in one stage, though all its contexts
// succeed, how many contexts it takes. Such a stage shows its maximum alone.
func fewSamples(p *ledger.LoadPlan, contexts int64) []string {
	var out []string
	if p == nil {
		return nil
	}
	per := contexts / p.Stages()
	for _, o := range p.Objectives {
		q := stats.Percentile{Num: o.Percentile, Den: 1000}
		need := per
		for q.Droppable(need) < 1 {
			need++
		}
		if need > per {
			out = append(out, fmt.Sprintf("%d contexts a stage are too few for %s_p%s_us: 99 %% confidence with a sample above the bound takes %d a stage, %d in all; with fewer only the maximum can be such a bound",
				per, o.Metric, percentileName(o.Percentile), need, need*p.Stages()))
		}
	}
	return out
}

// percentileName is how --slo spells a percentile in thousandths: 95, 999.
func percentileName(thousandths int64) string {
	if thousandths%10 == 0 {
		thousandths /= 10
	}
	return strconv.FormatInt(thousandths, 10)
}

// scheduleBytes is schedule.jsonl: a line a context.
func (o *Options) scheduleBytes(t *loadgen.Trace) []byte {
	var b []byte
	for n := range o.Contexts {
		line, err := ledger.Marshal(ledger.Arrival{AtUS: t.At(n), MaxTokens: t.Answer(n)})
		if err != nil {
			panic("internal error: " + err.Error()) // the reader of traces has checked both
		}
		b = append(append(b, line...), '\n')
	}
	return b
}

func (o *Options) scheduleHash(t *loadgen.Trace) string {
	sum := sha256.Sum256(o.scheduleBytes(t))
	return hex.EncodeToString(sum[:])
}

// openLoad sets up what a load plan needs beside a closed loop, in this segment.
func (s *session) openLoad() error {
	p := s.cfg.Load
	if p == nil {
		return nil
	}
	var schedule []int64
	if trace := s.o.Trace; p.Arrival == ledger.ArrivalTrace {
		for n := range s.o.Contexts {
			schedule = append(schedule, trace.At(n))
		}
		path := filepath.Join(s.o.Out, ledger.ScheduleFile)
		if _, err := os.Stat(path); errors.Is(err, os.ErrNotExist) {
			if err := os.WriteFile(path, s.o.scheduleBytes(trace), 0o600); err != nil {
				return fmt.Errorf("writing the schedule: %w", err)
			}
		}
	}
	if len(p.Tenants) > 0 {
		s.tenants = p.Pattern()
	}
	s.pacer = newPacer(&s.cfg, schedule, s.records, s.clk, func(e ledger.Event) error {
		e.Segment = s.w.Segment()
		return s.w.Event(e)
	})
	if s.w.Segment() == 0 {
		return nil
	}
	f, err := ledger.OpenFolder(s.o.Out)
	if err != nil {
		return err
	}
	if err := s.pacer.replay(f); err != nil {
		return fmt.Errorf("going on with the load plan: %w", err)
	}
	return nil
}

// extras is what a context's request says beside the run's.
func (s *session) extras(n int64, task *loadgen.Task) extras {
	x := extras{maxTokens: task.MaxTokens}
	if len(s.tenants) > 0 {
		x.user = s.cfg.Load.Tenants[ledger.TenantOf(s.tenants, n)].Name
	}
	return x
}

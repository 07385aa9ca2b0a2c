package record

import (
	"fmt"
	"maps"
	"math/bits"
	"slices"
	"strings"

	"cotenant/internal/stats"
)

// Percentiles of a distribution, in order.
var Percentiles = []struct {
	Name string
	P    stats.Percentile
}{{"p50", stats.P50}, {"p90", stats.P90}, {"p99", stats.P99}, {"p99.9", stats.P999}}

const million = 1_000_000

// minEnergyUS is the least time a block, on average, in which a difference of NVML's energy counter tells something: it moves in steps
// of up to 100 ms, so that it is off by a tenth of that at most.
const minEnergyUS = 1_000_000

// voiding are the clock reasons that make a cell void: the GPU protected itself, which isn't the neighbour's doing.
var voiding = []string{"hw_slowdown", "sw_thermal_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown"}

// powerCap is the clock reason that is part of interference: the neighbours share a power limit.
const powerCap = "sw_power_cap"

// muldiv returns a*b/c rounded down, without overflow, and the greatest int64 where that doesn't fit; 0 where c isn't positive.
func muldiv(a, b, c int64) int64 {
	if a <= 0 || b <= 0 || c <= 0 {
		return 0
	}
	hi, lo := bits.Mul64(uint64(a), uint64(b))
	if hi >= uint64(c) {
		return 1<<63 - 1
	}
	q, _ := bits.Div64(hi, lo, uint64(c))
	return int64(min(q, 1<<63-1))
}

func ref[T any](v T) *T { return &v }

// distribution computes percentiles of values, which it sorts.
func distribution(values []int64) Distribution {
	slices.Sort(values)
	n := int64(len(values))
	d := Distribution{Quantiles: []Quantile{}}
	for _, p := range Percentiles {
		q := Quantile{Percentile: p.Name, State: NotEstablished}
		over := p.P.Droppable(n)
		// The mirror image: so many of the smallest values may lie below a lower bound.
		under := stats.Percentile{Num: p.P.Den - p.P.Num, Den: p.P.Den}.Droppable(n)
		if over >= 0 && under >= 0 {
			q.State, q.Value, q.Low, q.High = Established, ref(p.P.Of(values)), ref(values[under]), ref(values[n-1-over])
		}
		d.Quantiles = append(d.Quantiles, q)
	}
	if n > 0 {
		d.Max = ref(values[n-1])
	}
	return d
}

// computer holds what cells need of each other.
type computer struct {
	plan       *Plan
	rows       map[string][]*Row
	made       map[string]Made
	cells      []CellResult
	byID       map[string]*CellResult
	workloads  map[string]Workload
	noise      map[[2]string]*int64
	ceilings   map[string]Ceiling
	mechanisms map[string]Mechanism
	topMHz     int64 // the greatest SM clock seen in any row
}

// Compute makes the ledger of a plan, its segments and its rows. The hashes are left empty: they are the files'.
func Compute(p *Plan, segments []Segment, rows []Row) *Ledger {
	l := &Ledger{SchemaVersion: SchemaVersion, Operation: LedgerOperation, RunID: p.RunID, GPUName: p.GPUName, SMs: p.SMs, State: "incomplete",
		PlannedBlocks: p.Sampling.Repeats * int64(len(p.Cells)), Blocks: int64(len(rows)), Segments: int64(len(segments)),
		Ceilings: []Ceiling{}, Noise: []Noise{}, Mechanisms: []MechanismResult{}, Establishes: []string{}, DoesNot: []string{}}
	if l.Blocks == l.PlannedBlocks {
		l.State = "complete"
	}
	c := &computer{plan: p, rows: make(map[string][]*Row), made: make(map[string]Made), byID: make(map[string]*CellResult),
		workloads: make(map[string]Workload), noise: make(map[[2]string]*int64), ceilings: make(map[string]Ceiling), mechanisms: make(map[string]Mechanism)}
	for i := range rows {
		c.rows[rows[i].Cell] = append(c.rows[rows[i].Cell], &rows[i])
		l.Launches += int64(len(rows[i].HostNS))
		l.MeasuredUS += rows[i].EndedUS - rows[i].BeganUS
		if mhz := rows[i].Clocks.SMMHz; len(mhz) == 3 {
			c.topMHz = max(c.topMHz, mhz[2])
		}
	}
	for _, s := range segments {
		l.Driver = s.Driver
		for _, m := range s.Made {
			if m.Failure == "" {
				c.made[m.Mechanism] = m
			}
		}
	}
	for _, w := range slices.Concat(p.Victims, p.Aggressors) {
		c.workloads[w.ID] = w
	}
	for _, m := range p.Mechanisms {
		c.mechanisms[m.ID] = m
	}
	c.cells = make([]CellResult, len(p.Cells))
	for i, cell := range p.Cells {
		c.cells[i] = c.own(cell)
		c.byID[cell.ID] = &c.cells[i]
	}
	c.ceilingsAndNoise(l)
	for i := range c.cells {
		c.compare(&c.cells[i])
	}
	l.Cells = c.cells
	l.Mechanisms = c.summaries()
	l.claims()
	return l
}

// own computes what a cell says of itself.
func (c *computer) own(cell Cell) CellResult {
	r := CellResult{Cell: cell, State: NotMeasured, SMMHz: []int64{}, Throttle: []string{}, Energy: Energy{State: NotEstablished}}
	m := c.made[cell.Mechanism]
	r.VictimSMs, r.OtherSMs = m.VictimSMs, m.AggressorSMs
	v, hasVictim := c.workloads[cell.Victim]
	a, hasOther := c.workloads[cell.Aggressor]
	r.Victim.Resource = v.Resource
	var host, event, medians []int64
	reasons := make(map[string]bool)
	n := Neighbour{Rate: Rate{Resource: a.Resource}}
	energy, lowest, highest := true, int64(0), int64(0)
	for _, row := range c.rows[cell.ID] {
		r.Blocks++
		if row.Failure != "" {
			r.State, r.Reason = Failed, row.Failure
		}
		host, event = append(host, row.HostNS...), append(event, row.EventNS...)
		r.Dropped += row.Dropped
		n.Units, n.US = n.Units+row.Units, n.US+row.UnitsUS
		for _, t := range row.Clocks.Throttle {
			reasons[t] = true
		}
		if mhz := row.Clocks.SMMHz; len(mhz) == 3 {
			if len(medians) == 0 || mhz[0] < lowest {
				lowest = mhz[0]
			}
			highest = max(highest, mhz[2])
			medians = append(medians, mhz[1])
		}
		if row.Clocks.EnergyMJ == nil || row.Clocks.EnergyUS == nil {
			energy = false
			continue
		}
		r.Energy.MJ, r.Energy.US = r.Energy.MJ+*row.Clocks.EnergyMJ, r.Energy.US+*row.Clocks.EnergyUS
	}
	r.Throttle = slices.Sorted(maps.Keys(reasons))
	if r.Throttle == nil {
		r.Throttle = []string{}
	}
	if len(medians) > 0 {
		slices.Sort(medians)
		r.SMMHz = []int64{lowest, medians[(len(medians)-1)/2], highest}
	}
	r.Launches = int64(len(host))
	// Where the clock was never below the greatest of the run, the cap held nothing down.
	r.PowerCapped = reasons[powerCap] && (len(medians) == 0 || lowest < c.topMHz)
	r.state(c.plan.Sampling.Repeats)
	if r.State == Void || r.State == Failed {
		host, event = nil, nil
	}
	busy := int64(0)
	for _, ns := range host {
		busy += ns
	}
	r.Host, r.Event = distribution(host), distribution(event)
	if hasVictim && busy > 0 {
		r.Victim.PerSecond = ref(muldiv(v.Work*int64(len(host)), 1_000_000_000, busy))
	}
	if hasOther {
		r.Neighbour = &n
		if n.US > 0 && r.State != Void && r.State != Failed {
			n.PerSecond = ref(muldiv(a.Work, n.Units*million, n.US))
		}
	}
	count := r.Launches
	if !hasVictim {
		count = n.Units
	}
	if energy && r.Blocks > 0 && r.Energy.US >= minEnergyUS*r.Blocks && count > 0 {
		r.Energy.State, r.Energy.PerLaunchUJ = Established, ref(muldiv(r.Energy.MJ, 1000, count))
	}
	return r
}

func (r *CellResult) state(repeats int64) {
	switch {
	case r.State == Failed:
	case slices.ContainsFunc(voiding, func(v string) bool { return slices.Contains(r.Throttle, v) }):
		r.State, r.Reason = Void, "the clock was held down by "+strings.Join(r.Throttle, ", ")
	case r.Blocks == 0:
		r.Reason = "no block was measured"
	case r.Blocks < repeats:
		r.State, r.Reason = Partial, fmt.Sprintf("%d of %d blocks", r.Blocks, repeats)
	default:
		r.State = Measured
	}
}

// CellID names a cell.
func CellID(victim, aggressor, mechanism string, twin bool) string {
	or := func(s string) string {
		if s == "" {
			return "-"
		}
		return s
	}
	id := or(victim) + "/" + or(aggressor) + "/" + mechanism
	if twin {
		id += "/again"
	}
	return id
}

func (c *computer) ceilingsAndNoise(l *Ledger) {
	for i := range c.cells {
		r := &c.cells[i]
		rate := r.Victim
		if r.Cell.Victim == "" && r.Neighbour != nil {
			rate = r.Neighbour.Rate
		}
		alone := r.Cell.Victim == "" || r.Aggressor == ""
		if !alone || r.Mechanism != Whole || rate.PerSecond == nil {
			continue
		}
		if old, ok := c.ceilings[rate.Resource]; !ok || *rate.PerSecond > old.PerSecond {
			c.ceilings[rate.Resource] = Ceiling{rate.Resource, *rate.PerSecond, r.ID}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(c.ceilings)) {
		l.Ceilings = append(l.Ceilings, c.ceilings[name])
	}
	for _, v := range c.plan.Victims {
		one, two := c.byID[CellID(v.ID, "", Whole, false)], c.byID[CellID(v.ID, "", Whole, true)]
		for _, p := range Percentiles {
			n := Noise{Victim: v.ID, Percentile: p.Name}
			if one != nil && two != nil {
				a, b := one.Host.Of(p.Name).Value, two.Host.Of(p.Name).Value
				if a != nil && b != nil && min(*a, *b) > 0 {
					n.PPM = ref(muldiv(max(*a, *b)-min(*a, *b), million, min(*a, *b)))
				}
			}
			c.noise[[2]string{v.ID, p.Name}] = n.PPM
			l.Noise = append(l.Noise, n)
		}
	}
}

// allocation names the mechanism by which a victim has alone what it has beside an aggressor in m: a partition, a share, a process of its
// own, or all.
func (c *computer) allocation(victim, m string) string {
	if c.mechanisms[m].Kind == MPSBelow {
		m = MPS // its victim is the same client
	}
	if c.mechanisms[m].Alone() && c.byID[CellID(victim, "", m, false)] != nil {
		return m
	}
	return Whole
}

// compare holds a cell against cells of the same workloads alone.
func (c *computer) compare(r *CellResult) {
	if r.Cell.Victim != "" && r.Victim.PerSecond != nil {
		if top, ok := c.ceilings[r.Victim.Resource]; ok {
			r.Victim.OfCeilingPPM = ref(muldiv(*r.Victim.PerSecond, million, top.PerSecond))
		}
	}
	if n := r.Neighbour; n != nil && n.PerSecond != nil {
		if top, ok := c.ceilings[n.Resource]; ok {
			n.OfCeilingPPM = ref(muldiv(*n.PerSecond, million, top.PerSecond))
		}
		if alone := c.byID[CellID("", r.Aggressor, Whole, false)]; alone != nil && alone.Neighbour.PerSecond != nil {
			n.KeptPPM = ref(muldiv(*n.PerSecond, million, *alone.Neighbour.PerSecond))
		}
	}
	if r.Cell.Victim == "" {
		return
	}
	ownID, wholeID := CellID(r.Cell.Victim, "", c.allocation(r.Cell.Victim, r.Mechanism), false), CellID(r.Cell.Victim, "", Whole, false)
	r.Own, r.Whole = c.against(r, ownID), c.against(r, wholeID)
	if r.Aggressor == "" {
		return
	}
	if own := c.byID[ownID]; own != nil {
		a, b := own.Host.Of("p99"), r.Host.Of("p99")
		if a.Value != nil && b.Value != nil {
			r.IsolationPPM = ref(min(million, muldiv(*a.Value, million, *b.Value)))
		}
		if r.PowerCapped && len(r.SMMHz) == 3 && len(own.SMMHz) == 3 && own.Host.Of("p50").Value != nil {
			low := *own.Host.Of("p50").Value
			r.AtClock = &AtClock{r.SMMHz[1], own.SMMHz[1], low, max(low, muldiv(low, own.SMMHz[1], r.SMMHz[1]))}
		}
	}
	c.energy(r)
}

// energy holds a cell's energy against that of the same work done alone.
func (c *computer) energy(r *CellResult) {
	v, a := c.byID[CellID(r.Cell.Victim, "", Whole, false)], c.byID[CellID("", r.Aggressor, Whole, false)]
	if r.Energy.State != Established || v == nil || a == nil || v.Energy.PerLaunchUJ == nil || a.Energy.PerLaunchUJ == nil {
		return
	}
	alone := r.Launches**v.Energy.PerLaunchUJ + r.Neighbour.Units**a.Energy.PerLaunchUJ
	r.Energy.RatioPPM = ref(muldiv(r.Energy.MJ, 1000*million, alone))
}

// against compares a cell with a reference cell; nil where it is that itself or there is none.
func (c *computer) against(r *CellResult, id string) *Reference {
	other := c.byID[id]
	if other == nil || id == r.ID {
		return nil
	}
	x := &Reference{Cell: id, Slowdowns: []Slowdown{}}
	for _, p := range Percentiles {
		s := Slowdown{Percentile: p.Name}
		a, b := other.Host.Of(p.Name), r.Host.Of(p.Name)
		if a.Value != nil && b.Value != nil && *a.Value > 0 {
			s.RatioPPM = ref(muldiv(*b.Value, million, *a.Value))
			s.Claim = ref(claim(a, b, c.noise[[2]string{r.Cell.Victim, p.Name}]))
		}
		x.Slowdowns = append(x.Slowdowns, s)
	}
	return x
}

// claim says what may be said of b against a: nothing where their bounds overlap, the noise isn't known, or they differ by less than it.
func claim(a, b *Quantile, noise *int64) string {
	small, large, word := a, b, "slower"
	if *b.Value < *a.Value {
		small, large, word = b, a, "faster"
	}
	if noise == nil || *large.Low <= *small.High || muldiv(*large.Value-*small.Value, million, max(1, *small.Value)) <= *noise {
		return "within_noise"
	}
	return word
}

// summaries finds each mechanism's worst cell.
func (c *computer) summaries() []MechanismResult {
	list := []MechanismResult{}
	for _, m := range c.plan.Mechanisms {
		s := MechanismResult{Mechanism: m}
		for i := range c.cells {
			r := &c.cells[i]
			if r.Mechanism == m.ID && r.IsolationPPM != nil && (s.WorstIsolationPPM == nil || *r.IsolationPPM < *s.WorstIsolationPPM) {
				s.WorstIsolationPPM, s.WorstCell = r.IsolationPPM, r.ID
			}
		}
		list = append(list, s)
	}
	return list
}

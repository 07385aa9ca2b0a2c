package record

// States of a cell.
const (
	Measured    = "measured"     // every block that was planned is there
	Partial     = "partial"      // some blocks are
	NotMeasured = "not_measured" // none is
	Void        = "void"         // a thermal or hardware slowdown in one of its blocks: no figure counts
	Failed      = "failed"       // a block could not be measured
)

// States of a figure.
const (
	Established    = "established"
	NotEstablished = "not_established"
)

// Quantile is one percentile of a distribution, nearest rank, with bounds by order statistics: each holds with a confidence of
// 99 % where launches are independent. Value and bounds are null where there aren't samples enough for both bounds.
type Quantile struct {
	Percentile string `json:"percentile"` // p50, p90, p99, p99.9
	State      string `json:"state"`
	Value      *int64 `json:"value_ns"`
	Low        *int64 `json:"low_ns"`
	High       *int64 `json:"high_ns"`
}

// Distribution is that of a cell's launches by one clock.
type Distribution struct {
	Quantiles []Quantile `json:"quantiles"`
	Max       *int64     `json:"max_ns"`
}

// Of returns a percentile by its name.
func (d *Distribution) Of(name string) *Quantile {
	for i := range d.Quantiles {
		if d.Quantiles[i].Percentile == name {
			return &d.Quantiles[i]
		}
	}
	return nil
}

// Slowdown is a percentile of a cell over that of a reference cell, by the host's clock.
type Slowdown struct {
	Percentile string `json:"percentile"`
	// RatioPPM is cell over reference in parts per million; null where one of them isn't established.
	RatioPPM *int64 `json:"ratio_ppm"`
	// Claim is slower, faster, or within_noise: the difference is no more than the noise floor, or the bounds overlap; null with RatioPPM.
	Claim *string `json:"claim"`
}

// Reference is a comparison with a cell of the same victim alone.
type Reference struct {
	Cell      string     `json:"cell"`
	Slowdowns []Slowdown `json:"slowdowns"`
}

// AtClock is what a power-capped cell is held against: the reference at the clock seen, between a victim that doesn't mind the SM clock
// (memory-bound: the reference as measured) and one that slows with it (compute-bound: times the ratio of clocks).
type AtClock struct {
	SMMHz          int64 `json:"sm_mhz"`           // median in this cell
	ReferenceSMMHz int64 `json:"reference_sm_mhz"` // median in the reference
	LowP50NS       int64 `json:"low_p50_ns"`
	HighP50NS      int64 `json:"high_p50_ns"`
}

// Rate is work a second against what was measured alone.
type Rate struct {
	Resource string `json:"resource"`
	// PerSecond is in the resource's unit.
	PerSecond *int64 `json:"per_second"`
	// OfCeilingPPM is PerSecond over the resource's ceiling.
	OfCeilingPPM *int64 `json:"of_ceiling_ppm"`
}

// Neighbour is how the aggressor fared.
type Neighbour struct {
	Rate
	Units int64 `json:"units"`
	US    int64 `json:"us"`
	// KeptPPM is its rate over its rate alone on the whole GPU; null where that wasn't measured.
	KeptPPM *int64 `json:"kept_ppm"`
}

// Energy is the GPU's, all of it, over a cell's blocks.
type Energy struct {
	State string `json:"state"` // not_established where the counter isn't there or the time is too short for its steps
	MJ    int64  `json:"mj"`
	US    int64  `json:"us"`
	// PerLaunchUJ is that over the victim's launches (the aggressor's units where there is no victim), µJ.
	PerLaunchUJ *int64 `json:"per_launch_uj"`
	// RatioPPM is MJ over what the same work takes alone: launches and units, each times its energy alone on the whole GPU.
	RatioPPM *int64 `json:"ratio_ppm"`
}

// CellResult is what came of a cell.
type CellResult struct {
	Cell
	State       string `json:"state"`
	Reason      string `json:"reason"`
	PowerCapped bool   `json:"power_capped"`
	VictimSMs   int64  `json:"victim_sms"`
	OtherSMs    int64  `json:"aggressor_sms"`
	Blocks      int64  `json:"blocks"`
	Launches    int64  `json:"launches"`
	Dropped     int64  `json:"dropped"`
	// Host is what a program sees; Event what the GPU's clock says.
	Host  Distribution `json:"host"`
	Event Distribution `json:"event"`
	// Own is the victim alone in the same allocation (its partition), Whole alone on the whole GPU; null where it is that itself.
	Own   *Reference `json:"own_reference"`
	Whole *Reference `json:"whole_reference"`
	// IsolationPPM is p99 alone in the same allocation over p99 here, at most 1,000,000: see docs/metrics.md.
	IsolationPPM *int64     `json:"isolation_ppm"`
	Victim       Rate       `json:"victim_rate"`
	Neighbour    *Neighbour `json:"neighbour"`
	Energy       Energy     `json:"energy"`
	SMMHz        []int64    `json:"sm_mhz"` // least, median of medians, greatest; empty
	Throttle     []string   `json:"throttle"`
	AtClock      *AtClock   `json:"reference_at_clock"`
}

// Noise is the difference between two equal cells of a victim alone.
type Noise struct {
	Victim     string `json:"victim"`
	Percentile string `json:"percentile"`
	// PPM is the larger over the smaller less one; null where one of them isn't established.
	PPM *int64 `json:"ppm"`
}

// Ceiling is the greatest rate at which a resource was used in the run, alone.
type Ceiling struct {
	Resource  string `json:"resource"`
	PerSecond int64  `json:"per_second"`
	Cell      string `json:"cell"`
}

// MechanismResult sums up a mechanism.
type MechanismResult struct {
	Mechanism
	// WorstIsolationPPM is the least isolation of a victim beside an aggressor, and where.
	WorstIsolationPPM *int64 `json:"worst_isolation_ppm"`
	WorstCell         string `json:"worst_cell"`
}

// Ledger is ledger.json.
type Ledger struct {
	SchemaVersion  int    `json:"schema_version"`
	Operation      string `json:"operation"`
	RunID          string `json:"run_id"`
	PlanSHA256     string `json:"plan_sha256"`
	SegmentsSHA256 string `json:"segments_sha256"`
	RowsSHA256     string `json:"rows_sha256"`

	State         string            `json:"state"` // complete, incomplete
	PlannedBlocks int64             `json:"planned_blocks"`
	Blocks        int64             `json:"blocks"`
	Launches      int64             `json:"launches"`
	Segments      int64             `json:"segments"`
	MeasuredUS    int64             `json:"measured_us"` // in blocks
	GPUName       string            `json:"gpu_name"`
	Driver        string            `json:"driver"`
	SMs           int64             `json:"sms"`
	Mechanisms    []MechanismResult `json:"mechanisms"`
	Ceilings      []Ceiling         `json:"ceilings"`
	Noise         []Noise           `json:"noise"`
	Cells         []CellResult      `json:"cells"`
	Establishes   []string          `json:"establishes"`
	DoesNot       []string          `json:"does_not"`
}

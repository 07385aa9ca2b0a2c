package record

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"cotenant/internal/observe"
)

var update = flag.Bool("update", false, "write testdata/example again")

// examplePlan is a small matrix.
func examplePlan() *Plan {
	p := &Plan{SchemaVersion: SchemaVersion, Operation: PlanOperation, RunID: "20261130T220000Z-00112233445566ff", Created: "2026-11-30T22:00:00Z", Name: "example",
		GPUUUID: "GPU-11111111-2222-3333-4444-555555555555", GPUName: "NVIDIA H200", SMs: 132, Seed: 6,
		Sampling: Sampling{Repeats: 2, Launches: 240, MaxLaunches: 1000, MinMS: 20, MaxMS: 2000, AloneMS: 30, Dropped: 10},
		Victims: []Workload{
			{ID: "decode-0.5b", Kind: Decode, GEMV: [][2]int64{{1152, 896}, {896, 896}, {9728, 896}, {896, 4864}}, Layers: 4, L2State: "beyond"},
			{ID: "critical", Kind: Critical, Blocks: 16, Threads: 256, Rounds: 1000, L2State: "kept"},
		},
		Aggressors: []Workload{
			{ID: "prefill", Kind: GEMM, M: 4096, N: 4096, K: 4096, Depth: 4},
			{ID: "hbm", Kind: HBM, Bytes: 1 << 30, Passes: 1, Depth: 4},
			{ID: "fma", Kind: FMA, Blocks: 64, Threads: 256, Rounds: 1000, Depth: 2},
		},
		Mechanisms: []Mechanism{{ID: Whole, Kind: Whole}, {ID: Streams, Kind: Streams}, {ID: Priority, Kind: Priority},
			{ID: "green:16", Kind: Green, VictimSMs: 16}, {ID: "green:64", Kind: Green, VictimSMs: 64}, {ID: MPS, Kind: MPS},
			{ID: MPSStatic, Kind: MPSStatic, Verdict: observe.BlockedByRuntimeVersion, Reason: "control program 13000, 13010 is needed"},
			{ID: MIG, Kind: MIG, Verdict: observe.BlockedByMode, Reason: "MIG mode is off"}},
	}
	for i := range p.Mechanisms {
		if p.Mechanisms[i].Verdict == "" {
			p.Mechanisms[i].Verdict = observe.SupportedDeclared
		}
	}
	for _, list := range [][]Workload{p.Victims, p.Aggressors} {
		for i := range list {
			list[i] = list[i].Expected(p.SMs)
		}
	}
	p.Cells = MakeCells(p)
	return p
}

// exampleRows makes rows of numbers that look like an H200's: nothing was measured.
func exampleRows(p *Plan) ([]Segment, []Row) {
	s := Segment{Segment: 1, RunID: "20261130T220001Z-8899aabbccddeeff", Started: "2026-11-30T22:00:01Z", Program: "example", Driver: "580.159.04", CUDA: "13.0",
		GPUUUID: p.GPUUUID, GPUName: p.GPUName, SMs: p.SMs, MaxMHz: ref(int64(1980)), LimitMW: ref(int64(700000)), Modules: []Module{{"interfere_sm80", hash(nil)}},
		Checks: []Check{{"gemv", Pass, "every row"}}, Priority: [2]int64{0, -5}, LaunchHostNS: 6500, LaunchEventNS: 2200, SubmitNS: 2400}
	for _, m := range p.Mechanisms {
		if m.Planned() {
			made := Made{Mechanism: m.ID, VictimSMs: p.SMs, AggressorSMs: p.SMs}
			if m.Kind == Green {
				made.VictimSMs, made.AggressorSMs = m.VictimSMs, p.SMs-m.VictimSMs
			}
			s.Made = append(s.Made, made)
		}
	}
	r := rand.New(rand.NewPCG(1, 2))
	base := map[string]float64{"decode-0.5b": 48_000, "critical": 21_000}
	var rows []Row
	clock := int64(1000)
	for i, b := range Order(p) {
		cell := p.Cells[b.Cell]
		row := Row{Segment: 1, Block: int64(i), Cell: cell.ID, Repeat: b.Repeat, BeganUS: clock, HostNS: Series{}, EventNS: Series{}}
		factor, tail := 1.0, 0.02
		green := cell.Mechanism == "green:16" || cell.Mechanism == "green:64"
		if green && cell.Victim == "decode-0.5b" {
			factor = map[string]float64{"green:16": 2.6, "green:64": 1.15}[cell.Mechanism]
		}
		switch {
		case cell.Aggressor == "":
		case cell.Aggressor == "hbm":
			factor, tail = factor*1.9, 0.05
		case !green:
			factor, tail = factor*map[string]float64{Streams: 12, Priority: 4, MPS: 8}[cell.Mechanism], 0.6
		}
		busy := int64(0)
		if cell.Victim != "" {
			row.Dropped = p.Sampling.Dropped
			for range p.Sampling.Launches + r.Int64N(40) {
				ns := int64(base[cell.Victim] * factor * (1 + tail*r.ExpFloat64()))
				row.HostNS, row.EventNS = append(row.HostNS, ns+6000), append(row.EventNS, ns)
				busy += ns + 6500
			}
		} else {
			busy = 30_000_000
		}
		row.EndedUS = clock + busy/1000 + 2000
		if cell.Aggressor != "" {
			row.UnitsUS = busy / 1000
			unit := map[string]int64{"prefill": 200, "hbm": 500, "fma": 2000}[cell.Aggressor]
			if cell.Victim != "" {
				unit = unit * 5 / 4
			}
			row.Units = max(1, row.UnitsUS/unit)
		}
		row.Clocks = Clocks{Samples: 4, SMMHz: []int64{1965, 1980, 1980}, MemoryMHz: []int64{3201, 3201, 3201}, MaxPowerMW: ref(int64(412_000)),
			MaxTempC: ref(int64(41)), Throttle: []string{}, EnergyMJ: ref((row.EndedUS - clock) * 400 / 1000), EnergyUS: ref(row.EndedUS - clock)}
		if cell.Aggressor == "prefill" && cell.Mechanism != Whole {
			row.Clocks.Throttle, row.Clocks.SMMHz = []string{"sw_power_cap"}, []int64{1500, 1620, 1980}
		}
		clock = row.EndedUS + 300
		rows = append(rows, row)
	}
	return []Segment{s}, rows
}

// write puts a folder's documents on disk, with the ledger that they make.
func write(t testing.TB, dir string, p *Plan, segments []Segment, rows []Row) {
	t.Helper()
	put := func(name string, content []byte, err error) {
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, name), content, 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	content, err := Encode(p)
	put(PlanFile, content, err)
	content, err = EncodeLines(segments)
	put(SegmentsFile, content, err)
	content, err = EncodeLines(rows)
	put(RowsFile, content, err)
	f, err := Load(dir)
	if err != nil {
		t.Fatal(err)
	}
	content, err = Encode(f.Compute())
	put(LedgerFile, content, err)
}

// The example in testdata is what is made here, and holds.
func TestExample(t *testing.T) {
	dir := filepath.Join("testdata", "example")
	p := examplePlan()
	segments, rows := exampleRows(p)
	if *update {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		write(t, dir, p, segments, rows)
	}
	fresh := t.TempDir()
	write(t, fresh, p, segments, rows)
	for _, name := range []string{PlanFile, SegmentsFile, RowsFile, LedgerFile} {
		want, _ := os.ReadFile(filepath.Join(fresh, name))
		got, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil || string(want) != string(got) {
			t.Errorf("%s isn't what the test makes (%v): go test -run TestExample -update", name, err)
		}
	}
	f, err := Load(dir)
	if err != nil {
		t.Fatal(err)
	}
	if r := f.Verify(); !r.Holds || r.State != "complete" || len(r.Establishes) == 0 {
		t.Error(fmt.Sprint(r.Failed()), r.State)
	}
}

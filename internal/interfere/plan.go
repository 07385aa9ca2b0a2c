package interfere

import (
	"crypto/rand"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"cotenant/internal/inspect"
	"cotenant/internal/interfere/record"
	"cotenant/internal/observe"
)

// base is a plan before it meets a host; a plan file has this form.
type base struct {
	Name       string            `json:"name"`
	Sampling   record.Sampling   `json:"sampling"`
	Victims    []record.Workload `json:"victims"`    // resource and work are computed
	Aggressors []record.Workload `json:"aggressors"` // the same
	// Mechanisms are ids: a kind, and for green ":" and the victim's SMs, for mps_percent ":" and the victim's
	// percent, for mps_static ":" and its chunks.
	Mechanisms []string `json:"mechanisms"`
}

// layers are the matrices of one decoder layer: query, key and value; output; gate and up; down.
var (
	layer05B = [][2]int64{{1152, 896}, {896, 896}, {9728, 896}, {896, 4864}}        // Qwen2.5-0.5B
	layer8B  = [][2]int64{{6144, 4096}, {4096, 4096}, {28672, 4096}, {4096, 14336}} // Llama-3.1-8B
)

var victims = []record.Workload{
	{ID: "decode-0.5b", Kind: record.Decode, GEMV: layer05B, Layers: 4, L2State: "beyond"},
	{ID: "decode-8b", Kind: record.Decode, GEMV: layer8B, Layers: 1, L2State: "beyond"},
	{ID: "critical", Kind: record.Critical, Blocks: 16, Threads: 256, Rounds: 1000, L2State: "kept"},
	{ID: "prefill", Kind: record.GEMM, M: 704, N: 9728, K: 896, L2State: "kept"},
}

var aggressors = []record.Workload{
	{ID: "gemm", Kind: record.GEMM, M: 4096, N: 14336, K: 4096, Depth: 4},
	{ID: "fma", Kind: record.FMA, Blocks: 64, Threads: 256, Rounds: 2000, Depth: 4},
	{ID: "hbm", Kind: record.HBM, Bytes: 1 << 30, Passes: 4, Depth: 4},
	{ID: "l2", Kind: record.L2, Bytes: 32 << 20, Passes: 128, Depth: 4},
	{ID: "copy", Kind: record.Copy, Bytes: 64 << 20, Depth: 2},
	{ID: "tiny", Kind: record.Tiny, Launches: 256, Depth: 4},
	{ID: "persistent", Kind: record.Persistent, Blocks: 2, Threads: 1024, Rounds: 40, SpinUS: 100, Depth: 2},
}

func pick(list []record.Workload, ids ...string) []record.Workload {
	var out []record.Workload
	for _, w := range list {
		if slices.Contains(ids, w.ID) {
			out = append(out, w)
		}
	}
	return out
}

// quickPlan takes some two minutes on an H200.
func quickPlan() base {
	return base{Name: "quick", Sampling: record.Sampling{Repeats: 2, Launches: 240, MaxLaunches: 3000, MinMS: 150, MaxMS: 2000, AloneMS: 1000, Dropped: 10},
		Victims: pick(victims, "decode-0.5b", "critical"), Aggressors: pick(aggressors, "gemm", "fma", "hbm", "l2", "persistent"),
		Mechanisms: []string{"sequential", "streams", "priority", "green:16", "green:32", "green:64", "processes", "mps", "mps_percent:25", "mps_priority", "mps_static", "mig"}}
}

// fullPlan takes an hour or two: the whole matrix, with launches enough for p99.9.
func fullPlan() base {
	return base{Name: "full", Sampling: record.Sampling{Repeats: 5, Launches: 1000, MaxLaunches: 20_000, MinMS: 400, MaxMS: 10_000, AloneMS: 2000, Dropped: 20},
		Victims: victims, Aggressors: aggressors,
		Mechanisms: []string{"sequential", "streams", "priority", "green:8", "green:16", "green:24", "green:32", "green:48", "green:64", "green:96", "processes",
			"mps", "mps_percent:10", "mps_percent:25", "mps_percent:50", "mps_priority", "mps_static", "mig"}}
}

const maxPlanFile = 1 << 20

// readPlanFile reads a plan file strictly.
func readPlanFile(path string) (base, error) {
	var b base
	info, err := os.Stat(path)
	if err == nil && info.Size() > maxPlanFile {
		err = fmt.Errorf("more than %d bytes", maxPlanFile)
	}
	var content []byte
	if err == nil {
		content, err = os.ReadFile(path)
	}
	if err == nil {
		b, err = parsePlan(content)
	}
	if err != nil {
		return b, fmt.Errorf("%w: plan %s: %w", ErrUsage, path, err)
	}
	return b, nil
}

func parsePlan(content []byte) (b base, err error) {
	if err := record.DecodeStrict("the plan", content, &b); err != nil {
		return b, err
	}
	// A host of a usual kind shows what makes no sense anywhere.
	_, err = b.on(host{sms: 132, verdicts: anything{}}, "20260101T000000Z-0000000000000000", 0)
	return b, err
}

// host is what a plan is made for.
type host struct {
	uuid, name string
	sms        int64
	verdicts   interface {
		of(mechanism string) (observe.Status, string)
	}
}

type anything struct{}

func (anything) of(string) (observe.Status, string) { return observe.SupportedDeclared, "" }

type verdicts map[string]inspect.Verdict

func (v verdicts) of(mechanism string) (observe.Status, string) {
	x, ok := v[mechanism]
	if !ok {
		return observe.Unknown, "not inspected"
	}
	return x.Status, x.Reason
}

// needs maps kinds of mechanisms to the inspection's.
var needs = map[string]string{record.Green: inspect.GreenContexts, record.Processes: inspect.TimeSlicing, record.MPS: inspect.MPSClassic,
	record.MPSPercent: inspect.MPSClassic, record.MPSBelow: inspect.MPSClassic, record.MPSStatic: inspect.MPSStatic, record.MIG: inspect.MIG}

// planFor makes the plan of a base for the GPU with this UUID.
func planFor(b base, report *inspect.Report, uuid string, now time.Time) (*record.Plan, error) {
	for i := range report.GPUs {
		g := &report.GPUs[i]
		if !strings.EqualFold(g.UUID, uuid) {
			continue
		}
		var random [16]byte
		if _, err := rand.Read(random[:]); err != nil {
			return nil, fmt.Errorf("making a run id: %w", err)
		}
		id := now.UTC().Format("20060102T150405Z") + "-" + hex.EncodeToString(random[:8])
		seed := int64(binary.LittleEndian.Uint64(random[8:]) >> 1)
		p, err := b.on(host{g.UUID, g.Name.Or("unknown"), g.SMCount.Or(0), verdicts(g.Mechanisms)}, id, seed)
		if err != nil {
			return nil, fmt.Errorf("%w: %w", ErrUsage, err)
		}
		p.Created = now.UTC().Format(time.RFC3339)
		return p, nil
	}
	// The gates will say what is wrong.
	return b.on(host{uuid, "unknown", 1, verdicts{}}, now.UTC().Format("20060102T150405Z")+"-0000000000000000", 0)
}

// on makes the plan for a host.
func (b base) on(h host, runID string, seed int64) (*record.Plan, error) {
	p := &record.Plan{SchemaVersion: record.SchemaVersion, Operation: record.PlanOperation, RunID: runID, Name: b.Name, GPUUUID: h.uuid, GPUName: h.name, SMs: h.sms,
		Seed: seed, Sampling: b.Sampling, Mechanisms: []record.Mechanism{{ID: record.Whole, Kind: record.Whole, Verdict: observe.SupportedDeclared}}}
	for _, id := range b.Mechanisms {
		m, err := mechanism(id, h)
		if err != nil {
			return nil, err
		}
		p.Mechanisms = append(p.Mechanisms, m)
	}
	for _, x := range []struct {
		from []record.Workload
		to   *[]record.Workload
	}{{b.Victims, &p.Victims}, {b.Aggressors, &p.Aggressors}} {
		*x.to = []record.Workload{}
		for _, w := range x.from {
			*x.to = append(*x.to, w.Expected(h.sms))
		}
	}
	for _, v := range p.Victims {
		if v.Kind != record.Decode && v.Kind != record.Critical && v.Kind != record.GEMM {
			return nil, fmt.Errorf("victim %.70q: a victim is of kind decode, critical or gemm", v.ID)
		}
	}
	for _, a := range p.Aggressors {
		if a.Kind == record.Decode || a.Kind == record.Critical || a.Depth < 1 {
			return nil, fmt.Errorf("aggressor %.70q: of kind %.40q with %d units submitted", a.ID, a.Kind, a.Depth)
		}
	}
	p.Cells = record.MakeCells(p)
	return p, p.Check()
}

// staticChunks is a victim's part where the plan doesn't say: 16 SMs where a chunk has 8.
const staticChunks = 2

// mechanism reads an id.
func mechanism(id string, h host) (record.Mechanism, error) {
	kind, number, has := strings.Cut(id, ":")
	m := record.Mechanism{ID: id, Kind: kind, Verdict: observe.SupportedDeclared}
	n, err := strconv.ParseInt(number, 10, 64)
	switch {
	case kind == record.Green && has && err == nil && n > 0:
		m.VictimSMs = n
	case kind == record.MPSStatic && (!has || err == nil && n > 0 && n < 1000):
		if m.Chunks = n; !has {
			m.Chunks = staticChunks
		}
	case kind == record.MPSPercent && has && err == nil && n > 0 && n < 100:
		m.Percent = n
	case !has && slices.Contains([]string{record.Sequential, record.Streams, record.Priority, record.Processes, record.MPS, record.MPSBelow, record.MIG}, kind):
	default:
		return m, fmt.Errorf("mechanism %.70q: want sequential, streams, priority, green:SMS, processes, mps, mps_percent:N, mps_priority, mps_static:CHUNKS or mig", id)
	}
	if what := needs[kind]; what != "" {
		m.Verdict, m.Reason = h.verdicts.of(what)
	}
	switch {
	case m.Kind == record.Green && m.Planned() && h.sms > 1 && n >= h.sms:
		m.Verdict, m.Reason = observe.Unsupported, fmt.Sprintf("%d SMs of %d leave nothing for a neighbour", n, h.sms)
	case !record.Measurable(kind) && m.Reason == "":
		m.Reason = "it isn't measured by this version"
	case !record.Measurable(kind):
		m.Reason += "; it isn't measured by this version"
	}
	return m, nil
}
